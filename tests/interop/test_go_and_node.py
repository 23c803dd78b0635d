"""client-go and ali-ons as released, on the real brokers and on ours, with accounts but for 5.5.0: every message is
signed.

Each test runs on all. What these clients cannot do on the real broker is no fault of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from other_languages import Running, go_command, node_command, running

import triomq
from triomq.plugins import select_by_hash
from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.servers import Kind

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: program, secretKey: program-secret, admin: false, defaultTopicPerm: PUB|SUB, defaultGroupPerm: PUB|SUB}
- {accessKey: reader-1, secretKey: reader-secret, admin: false, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""
SETTINGS: dict[str, object] = {
    "aclEnable": True,
    "transactionCheckInterval": 1000,
    # No end takes longer, on a busy machine either: RocketMQ would ask about an ended transaction.
    "transactionTimeOut": 5000,
    "transactionCheckMax": 100,
    "enablePropertyFilter": True,
    "traceTopicEnable": True,
    "messageDelayLevel": "1s 1s 1s 1s 1s",
}
OPERATOR = triomq.Credentials("operator", "operator-secret")
PROGRAM = triomq.Credentials("program", "program-secret")

WITHOUT_5 = pytest.mark.parametrize("guarded", [Kind.JAVA, Kind.OURS], indirect=True)
"""The session's broker of 5.5.0 has no accounts and no trace topic; after a transaction it takes all of a core."""

Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="module", params=[Kind.JAVA, Kind.OURS, "java5"])
def guarded(request: pytest.FixtureRequest, servers: Any, scratch: Path) -> Iterator[SingleBroker]:
    """A cluster with access control, whose broker asks about transactions after five seconds; that of 5.5.0, which has no
    `plain_acl.yml`, takes all clients."""
    kind = request.param
    if kind == "java5":
        yield request.getfixturevalue("javas_5")
        return
    home = scratch / f"languages-{kind}-broker"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings = SETTINGS | ({"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1"} if kind is Kind.OURS else {})
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"languages-{kind}-namesrv"))
        broker = stack.enter_context(servers.broker(kind, home.name, names.address, settings))
        yield SingleBroker(kind, names, broker)


@pytest.fixture
async def ready(guarded: SingleBroker, topic: str) -> SingleBroker:
    """The cluster with the test's topic: these clients do not wait for one."""
    async with triomq.open_client(guarded.namesrv.address, credentials=OPERATOR) as client:
        await client.admin.create_topic(topic, queues=2)
        await client.groups.create(f"G-{topic}")
    return guarded


def _start(command: Callable[[], list[str]], guarded: SingleBroker, topic: str, folder: Path) -> Start:
    try:
        found = command()
    except ToolUnavailableError as error:
        pytest.skip(str(error))
    options = {
        "nameServers": guarded.namesrv.address,
        "accessKey": "program",
        "secretKey": "program-secret",
        "group": f"G-{topic}",
        "topic": topic,
    }

    def start(operation: str, **more: object) -> AbstractContextManager[Running]:
        return running(found, operation, folder / f"{operation}-{len(list(folder.iterdir()))}", **{**options, **more})

    return start


@pytest.fixture
def go(ready: SingleBroker, topic: str, tmp_path: Path) -> Start:
    return _start(go_command, ready, topic, tmp_path)


@pytest.fixture(params=[go_command, node_command], ids=["go", "node"])
def either_language(request: pytest.FixtureRequest, ready: SingleBroker, topic: str, tmp_path: Path) -> Start:
    return _start(request.param, ready, topic, tmp_path)


def finished(start: Start, operation: str, **options: object) -> Running:
    with start(operation, **options) as client:
        return client.finish()


in_thread = trio.to_thread.run_sync


@WITHOUT_5
async def test_transactions_end_as_the_go_listener_decides(go: Start, ready: SingleBroker, topic: str) -> None:
    bodies = [f"{told} {checked} {n}" for n in range(2) for told, checked in (
        ("COMMIT", "-"), ("ROLLBACK", "-"), ("UNKNOWN", "COMMIT"), ("UNKNOWN", "ROLLBACK"),
    )]  # fmt: skip
    client = await in_thread(partial(finished, go, "transact", bodies=bodies))
    unknown = {body for body in bodies if body.startswith("UNKNOWN")}
    assert set(client.bodies("checked")) == unknown
    committed = {body.encode() for body in bodies if "COMMIT" in body}
    found: set[bytes] = set()
    async with (
        triomq.open_client(ready.namesrv.address, credentials=PROGRAM) as reader,
        reader.push_consumer(f"R-{topic}", start_from="earliest") as consumer,
    ):
        await consumer.subscribe(topic)
        with trio.fail_after(120):
            async for delivery in consumer:
                async with delivery:
                    found.add(delivery.message.body)
                if found >= committed:
                    break
        with trio.move_on_after(2):  # what was rolled back does not come
            async for delivery in consumer:
                async with delivery:
                    found.add(delivery.message.body)
    assert found == committed


async def answer_once_known(delivery: triomq.Delivery) -> None:
    """client-go may ask before its first heartbeat has reached the broker; then there is no client for the reply."""
    while not await delivery.reply(b"reply to " + delivery.message.body):  # noqa: ASYNC110 - another process is waited for
        await trio.sleep(0.2)


async def test_go_asks_and_python_replies(go: Start, ready: SingleBroker, topic: str) -> None:
    async with (
        triomq.open_client(ready.namesrv.address, credentials=PROGRAM) as client,
        client.push_consumer(f"G-{topic}", start_from="earliest") as consumer,
    ):
        await consumer.subscribe(topic)

        async def answer() -> None:
            async for delivery in consumer:
                async with delivery:
                    await answer_once_known(delivery)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            asking = partial(finished, go, "ask", group=f"A-{topic}", bodies=["one 1", "two 2"])
            asked = await in_thread(asking)
            nursery.cancel_scope.cancel()
    assert asked.bodies("reply") == ["reply to one 1", "reply to two 2"]


async def test_python_asks_and_go_replies(go: Start, ready: SingleBroker, topic: str) -> None:
    with go("reply", count=2) as replying:
        await in_thread(replying.until, lambda: replying.events("started"))
        async with triomq.open_client(ready.namesrv.address, credentials=PROGRAM) as client:
            producer = client.producer(f"A-{topic}")
            for body in (b"one", b"two"):
                answer = await producer.request(triomq.Message(topic, body), timeout_s=120)
                assert answer.body == b"reply to " + body
        await in_thread(replying.finish)


@WITHOUT_5
async def test_a_wrong_secret_and_a_missing_permission_are_refused(either_language: Start) -> None:
    for account in ({"secretKey": "guessed"}, {"accessKey": "reader-1", "secretKey": "reader-secret"}):
        with either_language("send", bodies=["one 1"], **account) as client:
            assert await in_thread(client.process.wait, 120) == 1
            assert not client.events("sent")
            assert client.events("error")


async def test_tags(either_language: Start) -> None:
    for tags in ("red", "blue", "green"):
        sending = partial(finished, either_language, "send", tags=tags, bodies=[f"{tags} {n}" for n in range(4)])
        sent = await in_thread(sending)
        assert len(sent.events("sent")) == 4
    tagged = await in_thread(partial(finished, either_language, "consume", tags="red || blue", count=8))
    assert sorted(tagged.bodies("consumed")) == sorted(f"{tags} {n}" for tags in ("red", "blue") for n in range(4))
    assert {(event["body"].split()[0], event["tags"]) for event in tagged.events("consumed")} == {
        ("red", "red"), ("blue", "blue"),
    }  # fmt: skip


async def test_sql(either_language: Start, topic: str) -> None:
    await in_thread(partial(finished, either_language, "send", bodies=[f"body {n}" for n in range(8)]))
    reading = partial(finished, either_language, "consume", sql="number >= 5", count=3)
    assert sorted((await in_thread(reading)).bodies("consumed")) == ["body 5", "body 6", "body 7"]


async def test_failures_are_retried_and_delays_kept(either_language: Start) -> None:
    """Once each: ali-ons loses what has failed twice, on the real broker too."""
    sending = partial(finished, either_language, "send", delayLevel=2, bodies=["late 1", "late 2"])
    await in_thread(sending)
    read = await in_thread(partial(finished, either_language, "consume", failures=1, count=2))
    consumed = read.events("consumed")
    assert sorted((event["body"], event["reconsumeTimes"]) for event in consumed) == [("late 1", 1), ("late 2", 1)]
    assert len(read.events("failed")) == 2


async def test_go_consumes_in_order(go: Start, ready: SingleBroker, topic: str) -> None:
    async with triomq.open_client(ready.namesrv.address, credentials=PROGRAM) as client:
        producer = client.producer(f"A-{topic}")
        for number in range(20):
            await producer.send(
                triomq.Message(topic, f"{number % 2} {number:02}".encode()),
                selector=select_by_hash,
                arg=str(number % 2),
            )
    read = await in_thread(partial(finished, go, "consume", ordered=True, count=20))
    for key in ("0", "1"):
        assert [body for body in read.bodies("consumed") if body[0] == key] == [
            f"{key} {number:02}" for number in range(20) if str(number % 2) == key
        ]


@WITHOUT_5
async def test_traces_of_go(go: Start, ready: SingleBroker, topic: str) -> None:
    sent = await in_thread(partial(finished, go, "send", traced=True, bodies=["traced 1"]))
    await in_thread(partial(finished, go, "consume", traced=True, count=1))
    (event,) = sent.events("sent")
    async with triomq.open_client(ready.namesrv.address, credentials=OPERATOR) as client:
        with trio.fail_after(120):
            while len(found := await client.messages.trace(event["id"])) < 3:  # noqa: ASYNC110 - written by another process
                await trio.sleep(0.2)
    assert [record.kind.name for record in found] == ["SENT", "CONSUMING", "CONSUMED"]
