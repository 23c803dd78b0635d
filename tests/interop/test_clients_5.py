"""The Java clients of 5.5.0, as they are by default, on our name server and broker.

Sends and pulls of this client are in `test_java_client`.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

import triomq


@pytest.fixture
def address(ours_for_5: Any, java_client_5: Any, topic: str) -> str:
    """The name server; the topic is there, so that no consumer waits for it."""
    found: str = ours_for_5.namesrv.address
    java_client_5.admin(found, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
    java_client_5.eventually(
        lambda: java_client_5.admin(found, "topicRoute", "-t", topic), lambda text: '"writeQueueNums":4' in text
    )
    return found


def test_failing_messages_are_retried_and_become_dead_letters(
    address: str, java_client_5: Any, java_push_5: Any, make_sample: Any, topic: str
) -> None:
    group = f"G-{topic}"[:80]
    bodies = [f"{word} {number}" for word in ("good", "bad") for number in range(5)]
    # A member looks for a retry topic that its own first heartbeat makes half a minute later.
    java_client_5.admin(address, "updateTopic", "-c", "DefaultCluster", "-t", f"%RETRY%{group}", "-r", "1", "-w", "1")
    with java_push_5(address, group, topic, fail_first=9, fail_body="bad", max_reconsume_times=2) as member:
        java_client_5.send(address, topic, [make_sample(body.encode()) for body in bodies])
        member.wait_for(lambda: len(member.bodies(success=False)) == 15)
        member.wait_for(lambda: len(member.bodies()) == 5)
        assert sorted(member.bodies()) == [f"good {number}" for number in range(5)]
        dead = java_client_5.pull_all(address, f"%DLQ%{group}", 5)
    assert sorted(one.body for one in dead) == [b"bad %d" % number for number in range(5)]


def test_delayed_messages_are_filtered_by_sql(
    address: str, java_client_5: Any, java_push_5: Any, make_sample: Any, topic: str
) -> None:
    messages = [
        make_sample(b"%d" % number, properties={"number": str(number)}, delay_level=3 * (number % 2))
        for number in range(10)
    ]
    with java_push_5(address, f"G-{topic}"[:80], topic, type="SQL92", expression="number > 3") as member:
        java_client_5.send(address, topic, messages)
        member.wait_for_messages(6)
        assert sorted(member.bodies()) == [str(number) for number in range(4, 10)]


def test_queues_are_consumed_in_order(
    address: str, java_client_5: Any, java_push_5: Any, make_sample: Any, topic: str
) -> None:
    java_client_5.send(address, topic, [make_sample(b"%d" % number) for number in range(40)], "inTurn")
    with java_push_5(address, f"G-{topic}"[:80], topic, ordered="true", fail_first=1, suspend_ms=10) as member:
        member.wait_for_messages(40, 120)
        numbers = [int(body) for body in member.bodies()]
    for queue in range(4):
        assert [one for one in numbers if one % 4 == queue] == list(range(queue, 40, 4))


def test_lite_consumers_pull_and_commit(address: str, java_client_5: Any, make_samples: Any, topic: str) -> None:
    wanted = make_samples(40)
    group = f"G-{topic}"[:80]
    java_client_5.send(address, topic, wanted)
    seen = java_client_5.lite(address, topic, group, 40)
    assert {one.sample() for one in seen} == set(wanted)
    assert len(seen) == 40
    assert {one.body for one in java_client_5.lite(address, topic, f"{group}-tags", 20, "A")} == {
        one.body for one in wanted if one.tags == "A"
    }

    def committed() -> int:
        return sum(queue["committed"] for queue in java_client_5.offsets(address, topic, 0, group))

    assert java_client_5.eventually(committed, lambda count: count == 40) == 40


def test_transactions_end_and_are_checked(address: str, java_client_5: Any, topic: str) -> None:
    bodies = ["COMMIT_MESSAGE 1", "ROLLBACK_MESSAGE 2", "UNKNOW 3"]
    java_client_5.transact(address, f"P-{topic}"[:80], topic, bodies, "COMMIT_MESSAGE")
    seen = java_client_5.pull_all(address, topic, 2)
    assert {one.body for one in seen} == {b"COMMIT_MESSAGE 1", b"UNKNOW 3"}


def test_requests_are_replied_to(address: str, java_client_5: Any, java_push_5: Any, topic: str) -> None:
    with java_push_5(address, f"G-{topic}"[:80], topic, reply="true"):
        assert java_client_5.request(address, topic, b"question").body == b"re: question"


async def test_python_and_5_5_0_share_a_group(
    address: str, java_client_5: Any, java_push_5: Any, make_sample: Any, topic: str
) -> None:
    """Half of the bodies are compressed, and flagged as 5 does: with a number of the algorithm."""
    group = f"G-{topic}"[:80]
    ours: list[bytes] = []
    async with triomq.open_client(address) as client:
        with java_push_5(address, group, topic) as member:
            consumer = client.push_consumer(group, start_from="earliest")

            async def work() -> None:
                async with consumer:
                    await consumer.subscribe(topic)
                    async for delivery in consumer:
                        async with delivery:
                            ours.append(delivery.message.body)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                # A member that has not given up its further queues yet handles their messages, too.
                with trio.fail_after(120):
                    while not len(consumer.assignment) == len(member.queues()) == 2:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                sent = [make_sample(b"%d" % number + b" " * (8000 * (number // 20))) for number in range(40)]
                await trio.to_thread.run_sync(java_client_5.send, address, topic, sent, "inTurn")
                with trio.fail_after(60):
                    while len(ours) + len(member.bodies()) < 40:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            theirs = member.bodies()
    assert sorted([*map(int, ours), *map(int, theirs)]) == list(range(40))
    assert len(ours) == len(theirs) == 20
