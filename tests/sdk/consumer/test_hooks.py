"""Hooks of consumers: what wraps handlers, what filters messages, and traces of consumption."""

from __future__ import annotations

import contextvars
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from consumer_broker import until

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.names import TRACE_TOPIC

QUEUE = triomq.MessageQueue("T", "broker-a", 0)
inside: contextvars.ContextVar[str] = contextvars.ContextVar("inside", default="")


def fill(cluster: Any, *properties: str) -> None:
    for number, own in enumerate(properties):
        cluster.broker.store("T", 0, b"m%d" % number, f"UNIQ_KEY\x01K{number}{own}".encode())


async def consume(consumer: Any, style: str, handle: Any, count: int) -> None:
    """Handle so many messages, each by `handle(message)`: in an async handler, a plain one, or a loop."""
    seen = 0

    def plain(message: Any) -> None:
        nonlocal seen
        seen += 1
        handle(message)

    async def awaited(message: Any) -> None:
        plain(message)

    if style == "loop":
        async for delivery in consumer:
            async with delivery:
                plain(delivery.message)
            if seen == count:
                return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run, awaited if style == "async" else plain)
        await until(lambda: seen == count)
        consumer.drain()


STYLES = pytest.mark.parametrize("style", ["async", "plain", "loop"])


class Spans:
    """Wraps each call in a block that sets a variable."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    @contextmanager
    def around_consume(self, context: Any) -> Any:
        key = context.messages[0].message_id
        token = inside.set(key)
        try:
            yield
        except Exception as error:
            self.seen.append((key, repr(error)))
            raise
        else:
            self.seen.append((key, ""))
        finally:
            inside.reset(token)


@STYLES
async def test_a_hook_wraps_the_handler(group_cluster, open_consumer, style):
    fill(group_cluster, "", "")
    hook, values = Spans(), []

    def handle(message: Any) -> None:
        values.append(inside.get())
        if message.message_id == "K1":
            raise ValueError("no")

    async with open_consumer(consume_hooks=[hook]) as consumer:
        await consume(consumer, style, handle, 2)
    assert sorted(values) == ["K0", "K1"]
    assert sorted(hook.seen) == [("K0", ""), ("K1", "ValueError('no')")]


@STYLES
async def test_a_hook_that_cannot_wrap_changes_nothing(group_cluster, open_consumer, style, caplog):
    fill(group_cluster, "")

    class Swallows:
        @contextmanager
        def around_consume(self, _context: Any) -> Any:
            try:
                yield
            except ValueError:
                pass

    class Broken:
        def around_consume(self, _context: Any) -> Any:
            raise RuntimeError("a hook's own fault")

    def fail(_message: Any) -> None:
        raise ValueError("no")

    async with open_consumer(consume_hooks=[Swallows(), Broken()]) as consumer:
        await consume(consumer, style, fail, 1)
        await until(lambda: group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK))
    assert "a hook's own fault" in caplog.text


@STYLES
async def test_hooks_see_each_message_alone(group_cluster, open_consumer, style):
    fill(group_cluster, *[""] * 5)
    calls: list[tuple[str, list[str], Any]] = []

    class Hook:
        def before_consume(self, context: Any) -> None:
            calls.append(("before", [each.message_id for each in context.messages], context))

        def after_consume(self, context: Any, _error: Exception | None) -> None:
            calls.append(("after", [each.message_id for each in context.messages], context))

    async with open_consumer(consume_hooks=[Hook()]) as consumer:
        await consume(consumer, style, lambda _: None, 5)
        await until(lambda: len(calls) == 10)
    for kind in ("before", "after"):
        assert sorted(ids for when, ids, _ in calls if when == kind) == [[f"K{n}"] for n in range(5)]
    assert {id(context) for when, _, context in calls if when == "before"} == {
        id(context) for when, _, context in calls if when == "after"
    }


# --- filters -------------------------------------------------------------------------------------------------------------


class Even:
    """Wants messages with an even number; is at a loss about the third."""

    def wants(self, group: str, message: Any) -> bool:
        assert group == "G"
        if message.body == b"m3":
            raise RuntimeError("a filter's own fault")
        return int(message.body[1:]) % 2 == 0


KEPT = [b"m0", b"m2", b"m3", b"m4"]


async def test_a_push_consumer_filters(autojump_clock, group_cluster, open_consumer, caplog):
    fill(group_cluster, *[""] * 6)
    seen: list[bytes] = []
    async with open_consumer(filter_hooks=[Even()]) as consumer:
        await consume(consumer, "async", lambda message: seen.append(message.body), 4)
    assert seen == KEPT
    assert group_cluster.broker.offsets["G", "T", 0] == 6, "what is not wanted counts as consumed"
    assert "a filter's own fault" in caplog.text


async def test_a_lite_pull_consumer_filters(autojump_clock, group_cluster, open_consumer):
    fill(group_cluster, *[""] * 6)
    async with open_consumer("lite", filter_hooks=[Even()]) as consumer:
        assert [message.body for message in await consumer.poll()] == KEPT


async def test_a_pull_consumer_filters(autojump_clock, cluster):
    fill(cluster, *[""] * 6)
    async with cluster.client() as client:
        result = await client.pull_consumer("G", filter_hooks=[Even()]).pull(QUEUE, 0)
        assert [message.body for message in result] == KEPT
        assert result.next_offset == 6


# --- traces --------------------------------------------------------------------------------------------------------------


def traced(cluster: Any) -> list[list[str]]:
    text = b"".join(cluster.broker.bodies(TRACE_TOPIC)).decode()
    return [record.split("\x01") for record in text.split("\x02")[:-1]]


@pytest.fixture
async def trace_cluster(group_cluster: Any) -> Any:
    group_cluster.name_server.add_route(TRACE_TOPIC, group_cluster.broker, queues=1)
    return group_cluster


@STYLES
async def test_consumption_is_traced_as_java_does(trace_cluster, open_consumer, style):
    fill(trace_cluster, "\x02KEYS\x01a b", "\x02MSG_REGION\x01R", "", "\x02TRACE_ON\x01false")

    def handle(message: Any) -> None:
        if message.message_id == "K1":
            raise ValueError("no")
        if message.message_id == "K2":
            raise triomq.Later(3)

    async with open_consumer(trace=True) as consumer:
        await consume(consumer, style, handle, 4)
        await until(lambda: len(trace_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2)
    found = traced(trace_cluster)
    given = {record[5]: record for record in found if record[0] == "SubBefore"}
    ended = {record[2]: record for record in found if record[0] == "SubAfter"}
    assert given.keys() == ended.keys() == {"K0", "K1", "K2"}, "one of them wants no trace"
    assert given["K0"] == ["SubBefore", "1700000000000", "null", "G", given["K0"][4], "K0", "0", "a b"]
    assert ended["K0"] == ["SubAfter", given["K0"][4], "K0", "0", "true", "a b", "0", "1700000000000", "G"]
    assert [given["K1"][2], *ended["K1"][4:7]] == ["R", "false", "null", "2"]
    assert ended["K2"][4:7] == ["false", "null", "4"]
    assert len({record[4] for record in given.values()}) == 3


async def test_a_cancelled_handler_has_no_outcome(autojump_clock, trace_cluster, open_consumer):
    fill(trace_cluster, "")
    async with open_consumer(trace=True) as consumer, trio.open_nursery() as nursery:
        begun = trio.Event()

        async def handler(_message: Any) -> None:
            begun.set()
            await trio.sleep_forever()

        nursery.start_soon(consumer.run, handler)
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert [record[0] for record in traced(trace_cluster)] == ["SubBefore"]


@pytest.mark.parametrize("iterates", [False, True])
async def test_what_is_polled_is_traced(autojump_clock, trace_cluster, open_consumer, iterates):
    fill(trace_cluster, "")
    async with open_consumer("lite", trace=True) as consumer:
        if iterates:
            async for _ in consumer:
                break
        else:
            await consumer.poll()
    assert [record[0] for record in traced(trace_cluster)] == ["SubBefore", "SubAfter"]
    assert traced(trace_cluster)[1][4] == "true"


async def test_a_slow_handler_is_traced_as_such(autojump_clock, trace_cluster):
    fill(trace_cluster, "")
    zero = trio.current_time()
    async with (
        trace_cluster.client(clock=lambda: int((trio.current_time() - zero) * 1000)) as client,
        client.push_consumer(
            "G", start_from="earliest", retries=triomq.ConsumeRetries(timeout_s=2), trace=True
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        await consumer.subscribe("T")
        done = trio.Event()

        async def handler(_message: Any) -> None:
            await trio.sleep(3)
            done.set()

        nursery.start_soon(consumer.run, handler)
        await done.wait()
        consumer.drain()
    ended = next(record for record in traced(trace_cluster) if record[0] == "SubAfter")
    assert ended[3:7] == ["3000", "false", "null", "1"]


async def test_a_loop_without_a_subscription_logs_it(autojump_clock, group_cluster, caplog):
    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        with trio.move_on_after(1):
            async for _ in consumer:
                raise AssertionError("there is nothing")
    assert "group G waits for deliveries and has subscribed to nothing" in caplog.text
