"""A cancel at every await of the wire: nothing stays open, nothing is answered twice, and the next call works."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from cancellation import each_step
from memory_network import MemoryNetwork
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from triomq_protocol.wire.command import Command
from triomq_server.wire import Handlers, Limits, LinkError, open_link, serve
from triomq_server.wire.connections import Connections
from triomq_server.wire.tls.handshakes import serve_accepted


async def answer_late(link, command):
    await trio.sleep(1)
    return command.answer(body=command.body)


HANDLERS = Handlers(plain={1: lambda link, command: command.answer(body=command.body)}, waiting={2: answer_late})


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


async def test_dialling_and_closing(autojump_clock, network, nursery) -> None:
    closed = []
    dialled = []

    async def dial(address: str) -> trio.abc.Stream:
        dialled.append(await network.dial(address))
        return dialled[-1]

    run = partial(serve, HANDLERS, port=7, listen=network.listen, on_closed=closed.append)
    (address,) = await nursery.start(lambda task_status: run(task_status=task_status))
    steps = 0
    for cancel in each_step():
        steps += 1
        with cancel:
            async with open_link(address, dial=dial) as link:
                assert (await link.request(Command.request(1, body=b"x"), 5)).body == b"x"
                assert (await link.request(Command.request(2, body=b"y"), 5)).body == b"y"
        await wait_all_tasks_blocked()
        assert len(closed) == len(dialled), f"step {steps}: the server still has the link"
    assert steps > 4


async def test_requests_of_ours(autojump_clock, network, nursery) -> None:
    run = partial(serve, HANDLERS, port=7, listen=network.listen)
    (address,) = await nursery.start(lambda task_status: run(task_status=task_status))
    async with open_link(address, dial=network.dial) as link:
        steps = 0
        for cancel in each_step():
            steps += 1
            with cancel:
                for code in (1, 2):
                    await link.request(Command.request(code, body=b"dropped"), 5)
            assert link._waiters == {}
            assert not link.closed
            # The answer to a request that was dropped must not be taken for this one's.
            assert (await link.request(Command.request(2, body=b"%d" % steps), 5)).body == b"%d" % steps
        assert steps > 2


async def test_a_server_while_it_starts_serves_and_stops(autojump_clock, network, nursery) -> None:
    connected = 0

    async def keep_asking() -> None:
        nonlocal connected
        while True:
            try:
                async with open_link("127.0.0.1:7", dial=network.dial) as link:
                    connected += 1
                    try:
                        await link.request(Command.request(2), 5)
                    finally:
                        connected -= 1
            except (OSError, LinkError):
                await trio.sleep(0.01)

    nursery.start_soon(keep_asking)
    steps = 0
    for cancel in each_step():
        steps += 1
        closed = []
        with cancel, trio.move_on_after(1.5):
            await serve(HANDLERS, port=7, listen=network.listen, on_closed=closed.append, limits=Limits(grace_s=0.5))
        await wait_all_tasks_blocked()
        assert not connected, f"step {steps}: a link is still served"
        (listener,) = await network.listen("127.0.0.1", 7)  # the address is free again
        await listener.aclose()
    assert steps > 4
    assert closed


async def test_serving_a_connection(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=bytes(400))
    await bench.connect(Limits(output_bytes=1000))  # makes the hub
    hub, before = bench.hub, set(bench.hub.links)
    steps = 0
    for cancel in each_step():
        steps += 1
        ended = len(bench.closed)
        transport = bench.new_transport()
        transport.writable_bytes = 0
        transport.deliver(ask(1, 0)[:20])
        transport.deliver(ask(1, 0)[20:] + b"".join(ask(1, n) for n in range(1, 9)))
        transport.end()
        bench.nursery.start_soon(set_writable_soon, transport)
        with cancel:
            await Connections(hub).serve(transport)
        assert hub.links == before
        assert transport.closed
        assert len(bench.closed) == ended + 1
        await trio.sleep(2)
        assert hub.writer.drains == 0
        assert [command.opaque for command in transport.commands()] == list(range(len(transport.commands())))
    assert len(transport.commands()) == 9
    assert steps > 4


async def set_writable_soon(transport) -> None:
    await trio.sleep(1)
    transport.set_writable(None)


async def test_an_accepted_stream_is_closed(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    await bench.connect()
    steps = 0
    for cancel in each_step():
        steps += 1
        ours, theirs = memory_stream_pair()
        await theirs.send_all(ask(1, 1))
        await theirs.send_eof()
        with cancel:
            await serve_accepted(ours, Connections(bench.hub), None)
        with trio.fail_after(5):
            while await theirs.receive_some():
                pass
    assert steps > 2


async def test_draining(autojump_clock, bench, ask) -> None:
    bench.handlers.waiting[2] = answer_late
    _link, transport = await bench.connect()
    steps = 0
    for cancel in each_step():
        steps += 1
        bench.hub.stopping = False
        transport.deliver(ask(2, steps))
        await trio.sleep(0.1)
        assert bench.hub.waiting_requests == 1
        with cancel:
            await bench.hub.drain()
        with trio.fail_after(5):
            await bench.hub.drain()
        assert bench.hub.waiting_requests == 0
        assert transport.commands()[-1].opaque == steps
    assert steps > 1
