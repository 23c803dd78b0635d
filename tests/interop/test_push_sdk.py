"""Our push consumers on the real broker and on ours, alone and in one group with Java members.

What holds on ours must hold on the real one, or the test itself is wrong.
"""

# ruff: noqa: ASYNC110 - what is waited for happens in other processes

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import trio

import triomq
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.server_state import ask_blocking
from triomq_benchmarks.clusters.servers import Kind
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.flags import PULL_SUBSCRIPTION
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests import GetConsumerStatusBody
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.wire.command import Command

pytestmark = pytest.mark.interop

SETTINGS = {
    "enablePropertyFilter": "true",
    "messageDelayLevel": " ".join(["1s"] * 18),
    "defaultTopicQueueNums": 4,
}


@pytest.fixture(scope="module", params=[Kind.OURS, Kind.JAVA, "java5"])
def target(request: pytest.FixtureRequest, servers: Any) -> Iterator[SingleBroker]:
    kind = request.param
    if kind == "java5":
        yield request.getfixturevalue("javas_5")
        return
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"{kind}-sdk-push-namesrv"))
        serving = stack.enter_context(servers.broker(kind, f"{kind}-sdk-push-broker", names.address, SETTINGS))
        yield SingleBroker(kind, names, serving)


@pytest.fixture
def group(topic: str) -> str:
    return topic.replace("T-", "G-", 1)[:80]


@pytest.fixture
async def client(target: SingleBroker, topic: str) -> AsyncIterator[triomq.Client]:
    async with triomq.open_client(target.namesrv.address) as opened:
        await opened.admin.create_topic(topic, queues=4)
        yield opened


async def send(client: triomq.Client, topic: str, count: int, **fields: Any) -> list[bytes]:
    bodies = [b"%03d" % number for number in range(count)]
    async with client.producer(f"P-{topic}"[:100], send_timeout_s=25) as producer:
        queues = await producer.queues(topic)
        for number, body in enumerate(bodies):
            message = triomq.Message(topic, body, **{name: value(number) for name, value in fields.items()})
            await producer.send(message, queue=queues[number % len(queues)])
    return bodies


async def until(condition: Callable[[], object], limit_s: float = 120.0) -> None:
    with trio.fail_after(limit_s):
        while not condition():
            await trio.sleep(0.05)


async def until_members(client: triomq.Client, group: str, count: int) -> None:
    """Wait until the broker lists so many members."""
    with trio.fail_after(120):
        while True:
            found = await client.groups.members(group)
            if found is not None and len(found.connection_set) == count:
                return
            await trio.sleep(0.1)


async def serve(
    consumer: triomq.PushConsumer,
    topic: str,
    handler: Any,
    expression: Any = "*",
    *,
    task_status: trio.TaskStatus[triomq.PushConsumer] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with consumer:
        await consumer.subscribe(topic, expression)
        task_status.started(consumer)
        await consumer.run(handler)


async def test_a_failing_message_is_retried_and_then_becomes_a_dead_letter(
    client: triomq.Client, topic: str, group: str
) -> None:
    bodies = await send(client, topic, 12)
    seen: list[tuple[bytes, int, str]] = []

    async def handler(message: triomq.ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times, message.topic))
        if message.body == b"003" and message.reconsume_times < 2:
            raise triomq.Later(1)
        if message.body == b"007":
            raise ValueError("always")

    async with trio.open_nursery() as nursery:
        consumer = client.push_consumer(group, start_from="earliest", retries=triomq.ConsumeRetries(max_times=1))
        await nursery.start(partial(serve, consumer, topic, handler))
        await until(lambda: len([each for each in seen if each[0] == b"007"]) == 2)
        dead = client.pull_consumer(f"{group}-dead")
        async with dead:
            with trio.fail_after(120):
                while True:
                    try:
                        (queue,) = await dead.fetch_queues(f"%DLQ%{group}")
                        found = (await dead.pull(queue, 0)).messages
                        if len(found) == 2:
                            break
                    except triomq.RouteError:
                        pass
                    await trio.sleep(0.2)
        assert sorted(message.body for message in found) == [b"003", b"007"]
        await until(lambda: len(seen) >= len(bodies) + 2)
        consumer.drain()
    assert Counter(body for body, _, _ in seen) == Counter([*bodies, b"003", b"007"])
    assert {name for _, _, name in seen} == {topic}
    assert sorted(times for body, times, _ in seen if body == b"007") == [0, 1]


async def test_a_delayed_message(client: triomq.Client, topic: str, group: str) -> None:
    await send(client, topic, 4, delay_level=lambda number: 1 if number == 2 else 0)
    seen: list[tuple[bytes, float]] = []

    async def handler(message: triomq.ReceivedMessage) -> None:
        seen.append((message.body, (message.stored_ms - message.born_ms) / 1000))

    async with trio.open_nursery() as nursery:
        consumer = client.push_consumer(group, start_from="earliest")
        await nursery.start(partial(serve, consumer, topic, handler))
        await until(lambda: len(seen) == 4)
        consumer.drain()
    (later,) = [seconds for body, seconds in seen if body == b"002"]
    assert later >= 0.9


async def test_sql(client: triomq.Client, topic: str, group: str) -> None:
    await send(client, topic, 20, properties=lambda number: {"n": str(number), "even": str(number % 2 == 0).lower()})
    seen: list[bytes] = []

    async def handler(message: triomq.ReceivedMessage) -> None:
        seen.append(message.body)

    async with trio.open_nursery() as nursery:
        consumer = client.push_consumer(group, start_from="earliest")
        sql = triomq.Sql("n > 10 AND even = TRUE")
        await nursery.start(partial(serve, consumer, topic, handler, sql))
        await until(lambda: len(seen) == 4)
        await trio.sleep(1)
        with pytest.raises(triomq.MQError):
            await consumer.subscribe(topic, triomq.Sql("n >"))
        consumer.drain()
    assert sorted(seen) == [b"012", b"014", b"016", b"018"]


async def test_a_group_of_both_kinds(
    client: triomq.Client, target: SingleBroker, topic: str, group: str, java_push: Any
) -> None:
    seen: list[bytes] = []

    async def handler(message: triomq.ReceivedMessage) -> None:
        seen.append(message.body)

    with java_push(target.namesrv.address, group, topic) as java:
        async with trio.open_nursery() as nursery:
            consumer = client.push_consumer(group, start_from="earliest")
            await nursery.start(partial(serve, consumer, topic, handler))

            def shared() -> bool:
                ours = {f"{queue.topic}@{queue.broker_name}@{queue.queue_id}" for queue in consumer.assignment}
                return len(ours) == len(java.queues()) == 2 and not ours & set(java.queues())

            # A member that the broker does not know yet loses its queues once more, and messages are repeated.
            await until_members(client, group, 2)
            await until(shared)
            bodies = await send(client, topic, 80)
            await until(lambda: len(seen) + len(java.bodies()) >= 80)
            assert sorted([*seen, *(body.encode() for body in java.bodies())]) == bodies
            assert len(seen) == 40
            consumer.drain()


async def test_in_order_while_members_join_and_leave(
    client: triomq.Client, target: SingleBroker, topic: str, group: str, java_push: Any
) -> None:
    handled: dict[int, list[int]] = {}

    async def handler(message: triomq.ReceivedMessage) -> None:
        await trio.sleep(0.02)
        handled.setdefault(message.queue_id, []).append(message.queue_offset)

    await send(client, topic, 200)
    async with triomq.open_client(target.namesrv.address) as another, trio.open_nursery() as nursery:
        first = client.push_consumer(group, ordered=True, start_from="earliest")
        await nursery.start(partial(serve, first, topic, handler))
        await until(lambda: sum(map(len, handled.values())) > 20)
        second = another.push_consumer(group, ordered=True, start_from="earliest")
        await nursery.start(partial(serve, second, topic, handler))
        await until(lambda: len(first.assignment) == len(second.assignment) == 2)
        first.drain()
        await until(lambda: sum(len(set(offsets)) for offsets in handled.values()) == 200)
        second.drain()
    assert {queue_id: sorted(set(offsets)) for queue_id, offsets in handled.items()} == {
        queue_id: list(range(50)) for queue_id in range(4)
    }
    for offsets in handled.values():
        # A message may be delivered twice when a queue moves, but never before an earlier one.
        assert [offset for at, offset in enumerate(offsets) if offset not in offsets[:at]] == list(range(50))


async def test_an_expression_that_does_not_compile(client: triomq.Client, target: SingleBroker, topic: str) -> None:
    """A pull with such an expression gets every message, from both brokers; our pull consumers refuse it."""
    bodies = await send(client, topic, 4, properties=lambda number: {"n": str(number)})

    def pull(expression: str, kind: str) -> tuple[int, list[bytes]]:
        header = PullMessageRequest(
            consumer_group="G-plain",
            topic=topic,
            queue_id=1,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=expression,
            sub_version=0,
            expression_type=kind,
        )
        command = Command.request(RequestCode.PULL_MESSAGE, header)
        answer = ask_blocking(target.broker.address, command.code, command.fields)
        return answer.code, [record.body for record in iter_records(answer.body)]

    async with client.pull_consumer("G-plain") as consumer:
        queue = (await consumer.fetch_queues(topic))[1]
        with trio.fail_after(120):
            # Java's broker answers a send before the message is in its queue.
            while not await consumer.max_offset(queue):
                await trio.sleep(0.01)
        for expression, kind, found in (
            ("n = 1", "SQL92", [bodies[1]]),
            ("n = 0", "SQL92", []),
            ("n >", "SQL92", [bodies[1]]),
            ("n = 0", "nothing of the kind", [bodies[1]]),
        ):
            code = ResponseCode.SUCCESS if found else ResponseCode.PULL_RETRY_IMMEDIATELY
            answer = await trio.to_thread.run_sync(pull, expression, kind)
            assert answer == (code, found), (expression, kind)
        assert [each.body for each in (await consumer.pull(queue, 0, sql="n = 1")).messages] == [bodies[1]]
        with pytest.raises(triomq.errors.InvalidCall, match="cannot be used"):
            await consumer.pull(queue, 0, sql="n >")


async def test_broadcast_offsets_are_shared_with_java(
    client: triomq.Client, target: SingleBroker, topic: str, group: str, java_push: Any
) -> None:
    """Our member continues from the file that a Java member wrote, and the other way round."""
    seen: list[bytes] = []

    async def handler(message: triomq.ReceivedMessage) -> None:
        seen.append(message.body)

    # Its shutdown waits for its listeners, whose offsets would be missing in the file else.
    options = {"model": "broadcasting", "instance": "radio", "await_ms": 20_000}
    await send(client, topic, 8)
    with java_push(target.namesrv.address, group, topic, **options) as java:
        await until(lambda: len(java.bodies()) == 8)
        await trio.to_thread.run_sync(java.stop)
    home = java.log.parent
    file = home / ".rocketmq_offsets" / java.client_id / group / "offsets.json"
    assert file.exists()
    await send(client, topic, 3)
    consumer = client.push_consumer(
        group, model="broadcasting", start_from="earliest", offset_store=triomq.plugins.FileOffsets(file)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, consumer, topic, handler))
        await until(lambda: len(seen) >= 3)
        await trio.sleep(1)
        consumer.drain()
    assert sorted(seen) == [b"000", b"001", b"002"]
    await send(client, topic, 2)
    with java_push(target.namesrv.address, group, topic, home=home, **options) as again:
        await until(lambda: len(again.bodies()) >= 2)
        await trio.sleep(1)
        assert sorted(again.bodies()) == ["000", "001"]


async def test_shares_of_java_and_python_make_up_the_topic(
    target: SingleBroker, topic: str, group: str, java_client: Any
) -> None:
    """`PullConsumer.share` and Java's `MQPullConsumerScheduleService` divide the queues of a topic alike."""
    servers = target.namesrv.address
    java = partial(java_client.share, servers, topic, group, f"m-{topic}")
    # All members are of one address: the names after it decide whose part comes first.
    before_java = target.kind is Kind.JAVA
    ours, theirs = ([0, 1], [2, 3]) if before_java else ([2, 3], [0, 1])
    async with triomq.open_client(servers, instance_name=f"{'a' if before_java else 'z'}-{topic}") as client:
        await client.admin.create_topic(topic, queues=4)
        async with client.pull_consumer(group) as consumer, consumer.share(topic) as shared:
            await until(lambda: len(shared.assignment) == 4)
            with trio.fail_after(120):
                while await trio.to_thread.run_sync(java) != theirs:
                    await trio.sleep(0.1)
            await until(lambda: [queue.queue_id for queue in shared.assignment] == ours)


async def test_the_broker_asks_a_member_which_queues_it_has(
    target: SingleBroker, client: triomq.Client, topic: str, group: str
) -> None:
    """As members do of each other after a route's change."""
    await send(client, topic, 4)
    async with client.lite_pull_consumer(group) as consumer:
        await consumer.subscribe(topic)
        await until(lambda: len(consumer.assignment) == 4)
        fields = {"topic": topic, "group": group, "clientAddr": client.client_id}
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answer = await trio.to_thread.run_sync(ask_blocking, target.broker.address, code, fields)
        assert answer.code == ResponseCode.SUCCESS
        [(member, positions)] = GetConsumerStatusBody.decode(answer.body).consumer_table.items()
        assert (member, set(positions)) == (client.client_id, set(consumer.assignment))
