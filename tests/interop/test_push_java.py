"""Java push consumers on our broker: retries, dead letters, delays, SQL92, broadcast, order, resets, and operators'
questions.

Every test runs on the real broker too: what it requires of ours must hold there, or the test itself is wrong.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.clusters.servers import Kind

LATE_S = 60
"""By how much a delivery may be late on a loaded machine."""
# All levels short; level 3 is the first that a broker uses by default.
DELAYS_S = [1, 2, 1, 2, *[1] * 14]
SETTINGS = {
    "enablePropertyFilter": "true",
    "messageDelayLevel": " ".join(f"{delay}s" for delay in DELAYS_S),
    "defaultTopicQueueNums": 4,
}


@pytest.fixture(scope="module", params=[Kind.OURS, Kind.JAVA])
def target(request: pytest.FixtureRequest, servers: Any) -> Iterator[SingleBroker]:
    kind = request.param
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"{kind}-push-namesrv"))
        serving = stack.enter_context(servers.broker(kind, f"{kind}-push-broker", names.address, SETTINGS))
        yield SingleBroker(kind, names, serving)


@pytest.fixture
def group(topic: str) -> str:
    return topic.replace("T-", "G-", 1)[:80]


@pytest.fixture
def send(target: SingleBroker, topic: str, java_client: Any, make_sample: Any) -> Callable[..., None]:
    """Sends bodies through a Java producer; keyword arguments are those of a sample."""

    def sending(*bodies: str, **fields: Any) -> None:
        java_client.send(target.namesrv.address, topic, [make_sample(body.encode(), **fields) for body in bodies])

    return sending


@pytest.fixture
def push(target: SingleBroker, java_push: Any, group: str, topic: str) -> Callable[..., Any]:
    """Starts a member of the test's group."""

    def starting(**options: Any) -> Any:
        return java_push(target.namesrv.address, group, topic, **options)

    return starting


def deliveries(messages: list[dict[str, Any]], body: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["body"] == body]


def numbers(count: int) -> list[str]:
    return [f"{number:03d}" for number in range(count)]


def test_failed_messages_are_delivered_again(send: Any, push: Any, topic: str) -> None:
    send("good", "bad", "worse")
    with push(fail_first=2, fail_body="bad") as one:
        seen = one.wait_for_messages(3)
    assert sorted(one.bodies()) == ["bad", "good", "worse"]
    tries = deliveries(seen, "bad")
    assert [try_["reconsumeTimes"] for try_ in tries] == [0, 1, 2]
    assert [try_["success"] for try_ in tries] == [False, False, True]
    assert {try_["topic"] for try_ in tries} == {topic}
    assert len({try_["msgId"] for try_ in tries}) == 1
    first, *again = tries
    for number, try_ in enumerate(again, 1):
        assert try_["properties"]["RETRY_TOPIC"] == topic
        assert try_["properties"]["ORIGIN_MESSAGE_ID"] == first["offsetMsgId"]
        assert try_["properties"]["DELAY"] == str(2 + number)
        waited_s = (try_["storeTime"] - tries[number - 1]["time"]) / 1000
        assert DELAYS_S[1 + number] - 0.2 <= waited_s < DELAYS_S[1 + number] + LATE_S


def test_a_delay_level_chosen_by_the_listener(send: Any, push: Any) -> None:
    send("bad")
    with push(fail_first=1, delay_level=2) as one:
        first, second = one.wait_for_messages(1)
    assert second["properties"]["DELAY"] == "2"
    assert 1.8 <= (second["storeTime"] - first["time"]) / 1000 < 2 + LATE_S


def test_dead_letters(target: SingleBroker, send: Any, push: Any, group: str, java_client: Any) -> None:
    send("good", "dead")
    dead_letters = f"%DLQ%{group}"
    with push(fail_first=99, fail_body="dead", max_reconsume_times=2, await_ms=20_000) as one:
        one.wait_for(lambda: len(one.bodies(success=False)) >= 3)
        (letter,) = java_client.pull_all(target.namesrv.address, dead_letters, 1)
        time.sleep(2)
        assert [try_["reconsumeTimes"] for try_ in deliveries(one.messages(), "dead")] == [0, 1, 2]
        # What it has not written down the next member gets again. Its stop sends the offsets one way and closes the
        # connection: that can lose them, so they are waited for here.
        java_client.eventually(
            lambda: java_client.admin(target.namesrv.address, "consumerProgress", "-g", group),
            lambda text: "Diff Total: 0" in text,
        )
        one.stop()
    assert letter.body == b"dead"
    assert letter.queue_id == 0
    assert letter.properties["DELAY"] == "0"
    assert letter.properties["RETRY_TOPIC"].startswith("T-")
    with push(fail_first=99, delay_level=-1) as one:
        send("dead at once")
        one.wait_for(lambda: len(one.bodies(success=False)) >= 1)
        letters = java_client.pull_all(target.namesrv.address, dead_letters, 2)
    assert [letter.body for letter in letters] == [b"dead", b"dead at once"]


def test_delayed_messages(send: Any, push: Any) -> None:
    send("first")  # the route of a missing topic is queried every 20 s only
    with push() as one:
        one.wait_for_messages(1)
        send("now")
        send("in a second", delay_level=1)
        send("in two", delay_level=2)
        seen = one.wait_for_messages(4)
    late_s = {message["body"]: (message["time"] - message["bornTime"]) / 1000 for message in seen}
    assert late_s["now"] < LATE_S
    assert 0.99 <= late_s["in a second"] < 1 + LATE_S
    assert 1.99 <= late_s["in two"] < 2 + LATE_S
    (delayed,) = deliveries(seen, "in two")
    assert {"DELAY": "2", "REAL_QID": str(delayed["queue"])}.items() <= delayed["properties"].items()
    assert delayed["reconsumeTimes"] == 0


def test_filters(target: SingleBroker, send: Any, push: Any, java_client: Any, group: str) -> None:
    for number in range(12):
        send(f"{number}", properties={"number": str(number)}, tags="AB"[number % 2])
    with push(type="SQL92", expression="number BETWEEN 3 AND 8 AND TAGS = 'A' OR number IS NULL") as one:
        one.wait_for_messages(3)
        send("none", "neither", tags="C")
        send("7", properties={"number": "7"}, tags="A")
        one.wait_for_messages(6)
        # Filtered messages count as consumed.
        java_client.eventually(
            lambda: java_client.admin(target.namesrv.address, "consumerProgress", "-g", group),
            lambda text: "Diff Total: 0" in text,
        )
        progress = java_client.admin(target.namesrv.address, "consumerProgress", "-g", group)
    assert sorted(one.bodies()) == ["4", "6", "7", "8", "neither", "none"]
    assert "Diff Total: 0" in progress


def test_a_filter_that_does_not_compile_ends_the_start(send: Any, push: Any) -> None:
    send("first")
    with pytest.raises(ChildError, match="CODE: 23"), push(type="SQL92", expression="number >"):
        pass


def test_tags(send: Any, push: Any) -> None:
    for number in range(9):
        send(f"{number}", tags=["A", "B", "C"][number % 3])
    with push(expression="A || C") as one:
        one.wait_for_messages(6)
    assert sorted(one.bodies()) == ["0", "2", "3", "5", "6", "8"]


def test_broadcast(send: Any, push: Any) -> None:
    # Its shutdown waits for its listeners, whose offsets would be missing in the file else.
    radio = {"model": "broadcasting", "instance": "radio", "await_ms": 20_000}
    send("before")
    with push(**radio) as one, push(model="broadcasting") as two:
        send(*numbers(10))
        for member in (one, two):
            member.wait_for_messages(11)
            assert sorted(member.bodies()) == [*numbers(10), "before"]
        one.stop()  # it writes its offsets to a file of its own
        send("while away")
        with push(**radio, home=one.log.parent) as again:
            again.wait_for_messages(1)
            time.sleep(1)
        assert again.bodies() == ["while away"]
        two.wait_for_messages(12)


def test_two_members_share_and_are_notified_of_each_other(send: Any, push: Any) -> None:
    """The broker notifies members; without that they would not rebalance for ten minutes."""
    options = {"properties": {"rocketmq.client.rebalance.waitInterval": "600000"}}
    send(*numbers(40))
    with push(**options) as one:
        one.wait_for_messages(40)
        one.wait_for(lambda: len(one.queues()) == 4)
        with push(**options) as two:
            for member in (one, two):
                member.wait_for(lambda member=member: len(member.queues()) == 2)
            assert not set(one.queues()) & set(two.queues())
            send(*numbers(40))
            two.wait_for(lambda: len(one.bodies()) + len(two.bodies()) >= 80)
            two.stop()
        one.wait_for(lambda: len(one.queues()) == 4)
        with push(**options) as three:
            three.wait_for(lambda: len(one.queues()) == len(three.queues()) == 2)
            three.kill()
            one.wait_for(lambda: len(one.queues()) == 4)


def test_order(send: Any, push: Any) -> None:
    send(*numbers(40))
    with push(ordered="true", fail_first=1, fail_body="01", suspend_ms=200) as one:
        seen = one.wait_for_messages(40)
        assert sorted(one.bodies()) == numbers(40)
        for queue in range(4):
            # Not always ten: the producer sends a message that a busy broker refuses to the next queue.
            offsets = [message["offset"] for message in seen if message["queue"] == queue and message["success"]]
            assert offsets == list(range(len(offsets)))
        failed = [message["body"] for message in seen if not message["success"]]
        assert sorted(failed) == [f"01{number}" for number in range(10)]
        with push(ordered="true") as two:
            # One member's locks pass on when it releases the queues, not before.
            two.wait_for(lambda: len(one.queues()) == len(two.queues()) == 2, 180)
            send(*numbers(40))
            # A queue that moves may bring some a further time.
            two.wait_for(lambda: min(Counter(one.bodies() + two.bodies()).values()) >= 2)
            one.kill()
            # The killed member's locks expire one minute after their last renewal.
            two.wait_for(lambda: len(two.queues()) == 4, 240)


def test_operators(target: SingleBroker, send: Any, push: Any, group: str, topic: str, java_client: Any) -> None:
    servers = target.namesrv.address
    send(*numbers(20))
    with push() as one:
        one.wait_for_messages(20)
        connection = java_client.admin(servers, "consumerConnection", "-g", group)
        assert one.client_id in connection
        assert "ConsumeType: CONSUME_PASSIVELY" in connection
        assert "MessageModel: CLUSTERING" in connection
        assert re.search(rf"{re.escape(topic)} +\*", connection)
        status = java_client.admin(servers, "consumerStatus", "-g", group, "-i", one.client_id)
        assert "#Consumer MQ Detail#" in status
        assert topic in status
        java_client.eventually(
            lambda: java_client.admin(servers, "consumerProgress", "-g", group), lambda text: "Diff Total: 0" in text
        )
        progress = java_client.admin(servers, "consumerProgress", "-g", group)
        assert "Diff Total: 0" in progress
        # Five in each queue, unless the producer turned to another queue: a busy broker refuses sends.
        counts = Counter(message["queue"] for message in one.messages())
        in_memory = {one.client_id: {str(queue): counts[queue] for queue in range(4)}}
        assert java_client.status(servers, topic, group) == in_memory
        assert java_client.status(servers, topic, group, one.client_id) == in_memory
        # Let the consumer consume one message outside of its queues.
        message = one.messages()[0]
        directly = java_client.admin(
            servers, "queryMsgById", "-i", message["offsetMsgId"], "-g", group, "-d", one.client_id
        )
        assert "CR_SUCCESS" in directly
        assert len(deliveries(one.messages(), message["body"])) == 2


def test_a_reset_takes_effect_on_running_members(
    target: SingleBroker, send: Any, push: Any, group: str, topic: str, java_client: Any
) -> None:
    servers = target.namesrv.address
    send(*numbers(20))
    time.sleep(1.1)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.1)
    send(*[f"late {body}" for body in numbers(20)])
    with push() as one, push() as two:
        two.wait_for(lambda: len({*one.bodies(), *two.bodies()}) == 40)
        two.wait_for(lambda: len(one.queues()) == len(two.queues()) == 2)
        java_client.eventually(
            lambda: java_client.admin(servers, "consumerProgress", "-g", group), lambda text: "Diff Total: 0" in text
        )
        before = Counter(one.bodies() + two.bodies())
        java_client.admin(servers, "resetOffsetByTime", "-g", group, "-t", topic, "-s", str(middle_ms), "-f", "true")
        # Clients wait ten seconds before they go on from the new offsets.
        late = {f"late {body}" for body in numbers(20)}
        two.wait_for(lambda: late <= set(Counter(one.bodies() + two.bodies()) - before))
        time.sleep(1)
        again = Counter(one.bodies() + two.bodies()) - before
    # A time between two messages means the nearer one, so each of the four queues may repeat one older message.
    assert len(set(again) - late) <= 4


@pytest.mark.parametrize("writer", [Kind.OURS, Kind.JAVA], ids=["written-by-ours", "written-by-java"])
def test_filters_change_hands(
    writer: Kind, servers: Any, java_client: Any, java_push: Any, topic: str, group: str, make_sample: Any
) -> None:
    """consumerFilter.json: what the one broker compiled, the other one keeps."""
    name = f"filters-{writer}"
    file = servers.scratch / name / "store" / "config" / "consumerFilter.json"

    def entry() -> dict[str, Any]:
        if not file.exists():
            return {}
        topics = json.loads(file.read_text())["filterDataByTopic"]
        return dict(topics.get(topic, {}).get("groupFilterData", {}).get(group, {}))

    with servers.namesrv(Kind.OURS, f"{name}-namesrv") as names:
        with servers.broker(writer, name, names.address, SETTINGS) as broker:
            java_client.send(names.address, topic, [make_sample(b"5", properties={"number": "5"})])
            with java_push(names.address, group, topic, type="SQL92", expression="number > 3") as one:
                one.wait_for_messages(1)
                java_client.eventually(entry, bool)
            port = int(broker.address.rpartition(":")[2])
            broker.stop()
        first = entry()
        assert first["expression"] == "number > 3"
        file.with_suffix(".json.bak").unlink(missing_ok=True)
        other = Kind.JAVA if writer is Kind.OURS else Kind.OURS
        with servers.broker(other, name, names.address, SETTINGS, port):
            file.unlink()  # it has been read; now it is written again
            java_client.send(names.address, topic, [make_sample(b"7", properties={"number": "7"})])
            with java_push(names.address, group, topic, type="SQL92", expression="number > 3") as one:
                one.wait_for(lambda: "7" in one.bodies())
                # The first file may still hold what was read at the start.
                java_client.eventually(entry, lambda found: found.get("clientVersion", 0) > first["clientVersion"])
            second = entry()
        java_client.close(names.address)
    for key in ("consumerGroup", "expression", "expressionType", "topic"):
        assert second[key] == first[key]
    assert second["clientVersion"] > first["clientVersion"]
    # RocketMQ computes the Bloom positions again; we keep the stored ones, since the bit maps were made with them.
    assert second["bloomFilterData"]["bitNum"] == first["bloomFilterData"]["bitNum"] == 112
    assert other is Kind.JAVA or second["bloomFilterData"] == first["bloomFilterData"]
