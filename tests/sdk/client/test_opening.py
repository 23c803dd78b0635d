"""The functions that open a client with one producer or consumer: their arguments are those of the client's methods."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import operator
import pickle
import re
import signal
import subprocess
import sys

import pytest
import trio
import trio.testing

import triomq
from triomq import errors
from triomq._client import opening
from triomq._cluster.broker_offsets import BrokerOffsets
from triomq_protocol.codes import RequestCode

KINDS = ["producer", "pull_consumer", "push_consumer", "lite_pull_consumer"]


@pytest.fixture
def opened(monkeypatch, group_cluster):
    """Has the shorthands open their client in a network of memory streams; the name servers they are given."""
    given = []

    def open_client(name_servers):
        given.append(name_servers)
        return group_cluster.client()

    monkeypatch.setattr(opening, "open_client", open_client)
    return given


@pytest.mark.parametrize("open_it", [triomq.open_client, lambda servers: triomq.open_producer(servers, "G")])
def test_another_loop_gets_an_error_that_names_what_to_use(open_it):
    async def main():
        async with open_it("127.0.0.1:1"):
            pytest.fail("it was opened")

    with pytest.raises(errors.InvalidCall, match=r"this is an asyncio loop; use triomq\.aio\.open_client"):
        asyncio.run(main())
    with pytest.raises(errors.InvalidCall, match=r"needs a trio loop, and none runs here; start one by trio\.run"):
        main().send(None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_arguments_are_those_of_the_method(kind):
    method = inspect.signature(getattr(triomq.Client, kind))
    shorthand = inspect.signature(getattr(triomq, f"open_{kind}"))
    assert list(shorthand.parameters.values())[1:] == list(method.parameters.values())[1:]
    assert next(iter(shorthand.parameters)) == "name_servers"
    assert shorthand.return_annotation == f"AbstractAsyncContextManager[{method.return_annotation}]"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_argument_is_noticed(autojump_clock, opened, kind):
    open_it = getattr(triomq, f"open_{kind}")
    with pytest.raises(TypeError, match="nonsense"):
        async with open_it("ns:9876", "G", nonsense=1):
            pytest.fail("it was opened")


async def test_a_producer_takes_its_options(autojump_clock, opened):
    async with triomq.open_producer("ns:9876", "P", max_body_bytes=3) as producer:
        assert isinstance(producer, triomq.Producer)
        with pytest.raises(errors.CallError):
            await producer.send(triomq.Message("T", b"four"))
        assert (await producer.send(triomq.Message("T", b"tri"))).status is triomq.SendStatus.SEND_OK
    assert opened == ["ns:9876"]
    with pytest.raises(errors.ClientClosed):
        await producer.send(triomq.Message("T", b"x"))


async def test_a_pull_consumer_takes_its_options(autojump_clock, opened, group_cluster):
    group_cluster.broker.store("T", 0, b"x")
    with pytest.raises(errors.RouteNotFound, match="slave"):
        async with triomq.open_pull_consumer("ns:9876", "G", read_preference="slave") as consumer:
            await consumer.pull(triomq.MessageQueue("T", "broker-a", 0), 0)


@pytest.mark.parametrize("start_from", ["earliest", "latest"])
async def test_a_push_consumer_can_choose_where_it_starts(autojump_clock, opened, group_cluster, start_from):
    group_cluster.broker.store("T", 0, b"before")
    async with triomq.open_push_consumer("ns:9876", "G", start_from=start_from) as consumer:
        await consumer.subscribe("T")
        await trio.sleep(5)
        group_cluster.broker.store("T", 0, b"after")
        async for delivery in consumer:
            async with delivery:
                first = delivery.message.body
            break
    assert first == (b"before" if start_from == "earliest" else b"after")


async def test_a_lite_pull_consumer_can_choose_where_it_starts(autojump_clock, opened, group_cluster):
    group_cluster.broker.store("T", 0, b"before")
    async with triomq.open_lite_pull_consumer("ns:9876", "G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        async for message in consumer:
            assert message.body == b"before"
            break


def test_the_error_that_ends_a_client_is_raised_by_a_block_with_its_own_tasks():
    """As Ctrl-C in a task of the client: the block's tasks are cancelled for it, and are not the cause."""

    async def interrupt():
        await trio.testing.wait_all_tasks_blocked()
        raise KeyboardInterrupt

    async def use():
        async with triomq.open_client("127.0.0.1:1") as client:
            client._nursery.start_soon(interrupt)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(trio.sleep_forever)

    with pytest.raises(KeyboardInterrupt):
        trio.run(use)


@pytest.mark.parametrize("nursery", ["_nursery", "_links._nursery"])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_error_that_ends_a_client_is_the_only_one(autojump_clock, group_cluster, kind, nursery):
    """The end of the block still needs the client's nurseries, for connections and asynchronous callbacks."""

    async def crash():
        await trio.sleep(1)
        raise RuntimeError("crash")

    ended = []

    async def note(*_):
        await trio.lowlevel.checkpoint()
        ended.append(True)

    async def use():
        async with group_cluster.client() as client, getattr(client, kind)("G") as member:
            if kind == "producer":
                group_cluster.broker.script(RequestCode.SEND_MESSAGE_V2, None)
                await member.send(triomq.Message("T", b"m"), note)
            elif kind != "pull_consumer":
                await member.subscribe("T")
            operator.attrgetter(nursery)(client).start_soon(crash)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True), contextlib.suppress(errors.MQError):
                    await client.admin.topics()

    with pytest.raises(RuntimeError, match="crash"):
        await use()
    assert ended == [True] * (kind == "producer")


INTERRUPTED = """
import signal, trio, triomq

@trio.lowlevel.enable_ki_protection
def interrupt():
    signal.raise_signal(signal.SIGINT)  # raised at the next wait of the main task

async def main():
    interrupt()
    async with triomq.open_client("127.0.0.1:1"):
        pass

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    trio.run(main)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_the_opening_of_a_client():
    # In a process of its own, which can be killed.
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["interrupted"]


class Silent:
    """The links to brokers that never answer."""

    async def of(self, _queue, *, only_master):
        assert only_master
        await trio.sleep_forever()


@pytest.mark.parametrize("wait", ["route", "send", "commit"])
def test_ctrl_c_is_raised_as_it_is(wait):
    """Also while a call in the main task waits for several tasks: a program expects no group of it."""

    async def dial(_address):
        await trio.sleep_forever()

    async def interrupt():
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)

    async def use():
        async with triomq.open_client("ns:9876", dial=dial) as client:
            trio.lowlevel.spawn_system_task(interrupt)
            if wait == "route":
                await client.pull_consumer("G").fetch_queues("T")
            elif wait == "send":
                await client.producer("G").send(triomq.Message("T", b"m"))
            else:
                queues = {triomq.MessageQueue("T", "broker-a", number): 0 for number in range(2)}
                await BrokerOffsets("G", Silent()).commit(queues)

    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(use, clock=trio.testing.MockClock())
    finally:
        signal.signal(signal.SIGINT, inherited)


@pytest.mark.parametrize("wait", ["route", "commit"])
async def test_a_cancel_is_raised_as_it_is(autojump_clock, wait):
    """Also while a call waits for several tasks, each of which is cancelled."""

    async def dial(_address):
        await trio.sleep_forever()

    async with triomq.open_client(["one:9876", "two:9876"], dial=dial) as client:
        raised = []
        with trio.move_on_after(1):
            try:
                if wait == "route":
                    await client.pull_consumer("G").fetch_queues("T")
                else:
                    queues = {triomq.MessageQueue("T", "broker-a", number): 0 for number in range(2)}
                    await BrokerOffsets("G", Silent()).commit(queues)
            except BaseException as error:
                raised.append(type(error))
                raise
        assert raised == [trio.Cancelled]


@pytest.mark.parametrize("name", ["client", *KINDS])
async def test_a_block_that_is_not_entered_by_async_with_names_the_cure(name):
    def block():
        return getattr(triomq, f"open_{name}")(*["ns:9876", "G"][: 1 if name == "client" else 2])

    how = rf"triomq\.open_{name} is entered by `async with triomq\.open_{name}\(\.\.\.\) as {name}:`"
    with (
        pytest.raises(errors.InvalidCall, match=rf"{how}; without a trio loop use triomq\.blocking\.open_client"),
        block(),
    ):
        pytest.fail("it was entered")
    with pytest.raises(errors.InvalidCall, match=how):
        await block()
    with pytest.raises(AttributeError, match=rf"no attribute 'send': {how}"):
        block().send(None)
    with pytest.raises(AttributeError, match=how):
        copy.copy(block()).send(None)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
async def test_what_a_client_makes_is_not_passed_to_other_processes(autojump_clock, group_cluster, copied):
    how = r"can be neither pickled nor copied: .* open a client in the other process"
    async with group_cluster.client() as client:
        made = [client, client.admin, *(getattr(client, kind)(kind) for kind in KINDS)]
        for each in made:
            with pytest.raises(TypeError, match=how):
                copied(each)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_nor_is_what_a_blocking_client_makes(copied):
    with triomq.blocking.open_client("127.0.0.1:1") as client:
        for each in (client, client.admin, *(getattr(client, kind)(kind) for kind in KINDS)):
            with pytest.raises(TypeError, match=r"triomq\.blocking\.|triomq\._blocking\."):
                copied(each)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("producer", {"hooks": 5}),
        ("producer", {"retry": "often"}),
        ("producer", {"max_in_flight": 10**30}),
        ("producer", {"max_in_flight_bytes": 10**30}),
        ("pull_consumer", {"on_event": 5}),
        ("pull_consumer", {"filter_hooks": 5}),
        ("push_consumer", {"pulling": 5}),
        ("push_consumer", {"retries": 5}),
        ("push_consumer", {"limits": 5}),
        ("lite_pull_consumer", {"callbacks": print}),
        ("lite_pull_consumer", {"limits": 5}),
    ],
)
async def test_an_argument_that_cannot_be_used_leaves_the_group_free(cluster, kind, wrong):
    async with cluster.client() as client:
        followers = list(client._routes.changed)
        make = getattr(client, kind)
        with pytest.raises((errors.InvalidCall, TypeError, AttributeError)) as failure:
            make("G", **wrong)
        if kind != "producer" and "filter_hooks" not in wrong:
            assert isinstance(failure.value, errors.InvalidCall)
        made = make("G")
        with pytest.raises(errors.InvalidCall, match="of group G already"):
            make("G")
        await made.aclose()
        assert client._routes.changed == followers


async def _async_clock():
    return 1


class _AsyncSink:
    async def take(self, statistics):
        """It would not be awaited."""


@pytest.mark.parametrize(
    ("option", "wrong", "says"),
    [
        ("client_ip", 7, "client_ip is int, not text"),
        ("instance_name", 5, "instance_name is int, not text"),
        ("unit_name", 3, "unit_name is int, not text"),
        ("namespace", b"NS", "namespace is bytes, not text"),
        ("default_topic", 1, "default_topic is int, not text"),
        ("backoff", 3, "backoff is int, not triomq.Backoff"),
        ("chance", 5, "chance is int, not random.Random"),
        ("dial", 5, "dial is int; give a function"),
        ("clock", 5, "clock is int; give a function"),
        ("clock", _async_clock, "clock is an async function"),
        ("clock", lambda: None, "clock returned None, not the ms since 1970 as an int"),
        ("clock", lambda: 1.7e12, "clock returned 1700000000000.0, not the ms"),
        ("clock", lambda: -1, "clock returned -1, not the ms"),
        ("clock", lambda: 1 << 63, "clock returned 9223372036854775808, not the ms"),
        ("statistics_sink", 5, "statistics_sink is no object with the method take: 5"),
        ("statistics_sink", _AsyncSink, "statistics_sink is no object with the method take"),
        ("statistics_sink", _AsyncSink(), "take of statistics_sink is an async function"),
    ],
)
async def test_an_option_of_a_wrong_kind_is_refused_by_name(cluster, option, wrong, says):
    """Some would end the client much later: a backoff with the first address that cannot be dialled."""
    with pytest.raises(errors.InvalidCall, match=re.escape(says)):
        async with cluster.client(**{option: wrong}):
            pytest.fail("it was opened")
