"""Push and lite pull consumers own their tasks alike: a failed task ends its consumer, and nothing else."""

# ruff: noqa: PT012 - the end of the block is what raises

from __future__ import annotations

import pytest
import trio
from consumer_broker import until

import triomq
from triomq_protocol.codes import RequestCode

Q0 = triomq.MessageQueue("T", "broker-a", 0)


class BrokenError(Exception):
    """Raised by the tests on purpose."""


def fill(cluster, count=10):
    for number in range(count):
        cluster.broker.store("T", 0, b"%d" % number)


def break_pulling(monkeypatch, consumer):
    """The task that pulls a queue fails as soon as it begins."""

    async def broken(_source, _scope):
        await trio.sleep(1)
        raise BrokenError("injected")

    monkeypatch.setattr(consumer._member.engine, "_pull_queue", broken)


async def use(consumer):
    """Wait for messages as the consumer's users do."""
    if isinstance(consumer, triomq.LitePullConsumer):
        await consumer.poll(60)
    else:
        await anext(consumer)


def make(client, kind, group="G", **options):
    return (client.push_consumer if kind == "push" else client.lite_pull_consumer)(
        group, start_from="earliest", **options
    )


@pytest.fixture(params=["push", "lite"])
def kind(request):
    return request.param


async def test_waiting_for_messages_raises_the_failure(autojump_clock, group_cluster, monkeypatch, caplog, kind):
    fill(group_cluster)
    async with group_cluster.client() as client:
        consumer = make(client, kind)
        with pytest.raises(BrokenError, match="injected"):
            async with consumer:
                break_pulling(monkeypatch, consumer)
                await consumer.subscribe("T")
                with trio.fail_after(30), pytest.raises(BrokenError):
                    await use(consumer)
                # Nothing else can be done with it, and the reason is named.
                with pytest.raises(BrokenError):
                    await consumer.subscribe("other")
        # The client and its other consumers go on.
        async with make(client, kind, "G2") as other:
            await other.subscribe("T")
            with trio.fail_after(60):
                await use(other)
    assert "a task of the consumer of group G failed" in caplog.text


async def test_a_handler_s_loop_gets_the_failure(autojump_clock, group_cluster, monkeypatch):
    fill(group_cluster)
    async with group_cluster.client() as client:
        with pytest.raises(BrokenError):
            async with client.push_consumer("G") as consumer:
                break_pulling(monkeypatch, consumer)
                await consumer.subscribe("T")
                with trio.fail_after(30):
                    await consumer.run(print)


async def test_a_block_that_waits_for_something_else_gets_it_at_its_end(
    autojump_clock, group_cluster, monkeypatch, kind
):
    fill(group_cluster)
    async with group_cluster.client() as client:
        with pytest.raises(BrokenError):
            async with make(client, kind) as consumer:
                break_pulling(monkeypatch, consumer)
                await consumer.subscribe("T")
                await trio.sleep(20)
        # The block's own error is not replaced.
        with pytest.raises(ValueError, match="mine"):
            async with make(client, kind) as consumer:
                break_pulling(monkeypatch, consumer)
                await consumer.subscribe("T")
                await trio.sleep(20)
                raise ValueError("mine")


async def test_a_consumer_that_failed_has_left_its_group(autojump_clock, group_cluster, monkeypatch, kind):
    fill(group_cluster)
    fill(group_cluster)
    async with (
        group_cluster.client(instance_name="1") as one,
        group_cluster.client(instance_name="2") as two,
        make(two, kind) as second,
    ):
        await second.subscribe("T")
        with pytest.raises(BrokenError):
            async with make(one, kind) as first:
                await first.subscribe("T")
                await trio.sleep(25)
                assert len(assignment(first)) == len(assignment(second)) == 1
                break_pulling(monkeypatch, first)
                first._member.engine.seek(assignment(first)[0], 0)
                await trio.sleep(5)
                # Before its block ends: others take over at once.
                assert len(assignment(second)) == 2


def assignment(consumer):
    found = consumer.assignment
    return found() if callable(found) else found


async def test_a_failure_during_the_start_is_raised_by_the_start(autojump_clock, group_cluster, monkeypatch, kind):
    def broken(_nursery):
        raise BrokenError("injected")

    async with group_cluster.client() as client:
        consumer = make(client, kind)
        monkeypatch.setattr(consumer._member, "_start_tasks", broken)
        with pytest.raises(BrokenError, match="injected"):
            await consumer.__aenter__()
        await consumer.aclose()
        # Its group is free again.
        async with make(client, kind):
            pass


@pytest.mark.parametrize("of", [triomq.PushConsumer, triomq.LitePullConsumer, triomq.PullConsumer])
def test_clients_alone_make_consumers(of):
    with pytest.raises(TypeError, match="has no public constructor; a client makes it"):
        of()


async def test_a_client_closes_after_a_member_whose_end_has_failed(autojump_clock, group_cluster, monkeypatch, kind):
    async def broken(_queues):
        await trio.lowlevel.checkpoint()
        raise BrokenError("injected")

    with trio.fail_after(60):
        async with group_cluster.client() as client:
            consumer = make(client, kind)
            with pytest.raises(BrokenError, match="injected"):
                async with consumer:
                    await consumer.subscribe("T")
                    await until(lambda: consumer.assignment)
                    monkeypatch.setattr(consumer._member, "_unlock", broken)


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_a_consumer_commits_and_leaves_when_its_client_is_cancelled_as_well(
    autojump_clock, group_cluster, open_consumer, options
):
    """As by a program that cancels all its tasks at a signal: the links must not end before the consumer has."""
    fill(group_cluster)
    consumers = group_cluster.broker.consumers
    with trio.CancelScope() as scope:
        async with open_consumer(**options, commit_every_s=600) as consumer:
            if "kind" in options:
                while await consumer.poll(1):
                    pass
            else:
                for _ in range(10):
                    async with await anext(consumer):
                        pass
            assert group_cluster.broker.offsets.get(("G", "T", 0), 0) == 0
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert group_cluster.broker.offsets["G", "T", 0] == 10
    assert not consumers.locks


@pytest.mark.parametrize("options", [{"kind": "lite"}, {}, {"ordered": True}], ids=["lite", "push", "ordered"])
async def test_a_start_while_no_name_server_responds(autojump_clock, group_cluster, open_consumer, options, caplog):
    group_cluster.broker.store("T", 0, b"message")
    await group_cluster.name_server.stop()
    async with open_consumer(**options) as consumer:
        await trio.sleep(600)
        assert not consumer.assignment
        group_cluster.name_server.up = True
        with trio.fail_after(2):
            if options.get("kind"):
                assert (await anext(consumer)).body == b"message"
            else:
                async with await anext(consumer) as message:
                    assert message.body == b"message"
    if not options.get("kind"):
        assert "group G consumes it from when a name server answers" in caplog.text


async def test_missing_name_servers_are_dialled_once_in_a_round(autojump_clock, group_cluster, open_consumer):
    """And not for each topic; those that are known are shared out meanwhile."""
    for number in range(50):
        group_cluster.name_server.add_route(f"T{number}", group_cluster.broker)
    async with open_consumer("lite") as consumer:
        await until(lambda: len(consumer.assignment) == 2)
        await group_cluster.name_server.stop()
        for number in range(50):
            await consumer.subscribe(f"T{number}")
        group_cluster.network.dials.clear()
        await trio.sleep(60)
        assert group_cluster.network.dials.count(group_cluster.name_server.address) < 100
        group_cluster.broker.consumers.members["G"]["~other"] = object()
        await until(lambda: len(consumer.assignment) == 1, seconds=3)
        group_cluster.name_server.up = True
        await until(lambda: len(consumer.assignment) == 51, seconds=3)


async def test_a_filter_that_cannot_be_checked_is_an_error(autojump_clock, group_cluster):
    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        await group_cluster.name_server.stop()
        with pytest.raises(triomq.errors.NoNameServer):
            await consumer.subscribe("T", triomq.Sql("a > 1"))
        group_cluster.name_server.up = True
        await consumer.subscribe("T", triomq.Sql("a > 1"))


async def test_an_address_that_is_no_name_servers_is_an_error(autojump_clock, group_cluster):
    group_cluster.name_server.script(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda command: command.answer(3, "request type not supported")
    )
    async with group_cluster.client() as client, client.push_consumer("G") as consumer:
        with pytest.raises(triomq.errors.NotANameServer):
            await consumer.subscribe("T")
