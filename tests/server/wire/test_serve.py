"""serve and open_link over an in-memory network."""

from __future__ import annotations

import errno
import socket
import sys
from contextlib import ExitStack
from functools import partial

import pytest
import trio
from memory_network import MemoryNetwork
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.errors import HeaderError
from triomq_protocol.wire.command import Command
from triomq_server.wire import AnswerTimeoutError, Handlers, Limits, LinkClosedError, TlsSettings, open_link, serve


def echo(link, command):
    return command.answer(remark=link.peer, body=command.body)


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
def start(nursery, network):
    async def start(handlers: Handlers | None = None, **options: object) -> str:
        async def run(task_status):
            await serve(
                handlers or Handlers(plain={1: echo}), port=0, listen=network.listen, task_status=task_status, **options
            )

        (address,) = await nursery.start(run)
        return address

    return start


async def test_request_and_answer(autojump_clock, network, start) -> None:
    address = await start()
    async with open_link(address, dial=network.dial) as link:
        answer = await link.request(Command.request(1, body=b"x"), 5)
    assert link.peer == address
    assert answer.body == b"x"
    assert answer.remark.startswith("127.0.0.1:")


async def test_server_asks_the_dialler(autojump_clock, network, start) -> None:
    async def ask_back(link, command):
        answer = await link.request(Command.request(5), 5)
        return command.answer(remark=answer.remark)

    address = await start(Handlers(waiting={1: ask_back}))
    theirs = Handlers(plain={5: lambda link, command: command.answer(remark="hello")})
    async with open_link(address, dial=network.dial, handlers=theirs) as link:
        assert (await link.request(Command.request(1), 5)).remark == "hello"


async def test_dialler_without_handlers_answers_code_3(autojump_clock, network, start) -> None:
    codes = []

    async def ask_back(link, command):
        codes.append((await link.request(Command.request(5), 5)).code)
        return command.answer()

    address = await start(Handlers(waiting={1: ask_back}))
    async with open_link(address, dial=network.dial) as link:
        await link.request(Command.request(1), 5)
    assert codes == [3]


async def test_no_server_listens(autojump_clock, network) -> None:
    with pytest.raises(ConnectionRefusedError):
        async with open_link("127.0.0.1:9", dial=network.dial):
            pass


async def test_the_body_catches_its_own_exception_unwrapped(autojump_clock, network, start) -> None:
    address = await start()
    with pytest.raises(ZeroDivisionError):
        async with open_link(address, dial=network.dial):
            raise ZeroDivisionError


async def test_cancel_of_the_body_closes_the_link(autojump_clock, network, start) -> None:
    closed = []
    address = await start(on_closed=closed.append)
    with trio.move_on_after(5) as scope:
        async with open_link(address, dial=network.dial) as link:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert link.closed
    await wait_all_tasks_blocked()
    assert len(closed) == 1


async def test_more_connections_than_allowed_are_refused_until_there_is_room(
    autojump_clock, network, start, caplog
) -> None:
    address = await start(limits=Limits(connections=2))
    async with open_link(address, dial=network.dial) as first, open_link(address, dial=network.dial) as second:
        for link in (first, second):
            await link.request(Command.request(1), 5)
        for _ in range(3):
            async with open_link(address, dial=network.dial) as third:
                with pytest.raises(LinkClosedError):
                    await third.request(Command.request(1), 5)
        second.close()
        await wait_all_tasks_blocked()
        async with open_link(address, dial=network.dial) as fourth:
            await fourth.request(Command.request(1), 5)
        await first.request(Command.request(1), 5)
    assert caplog.text.count("refusing connections") == 1


async def test_accept_loop_survives_a_lack_of_descriptors(autojump_clock, network, start, caplog, nursery) -> None:
    class Starved(trio.abc.Listener):
        failures = 25

        def __init__(self, real):
            self.real = real
            self.address = real.address

        async def accept(self):
            await trio.lowlevel.checkpoint()
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return await self.real.accept()

        async def aclose(self):
            await self.real.aclose()

    async def listen(host, port):
        return [Starved(listener) for listener in await network.listen(host, port)]

    async def run(task_status):
        await serve(Handlers(plain={1: echo}), port=0, listen=listen, task_status=task_status)

    (address,) = await nursery.start(run)
    async with open_link(address, dial=network.dial) as link:
        assert (await link.request(Command.request(1), 60)).code == 0
    assert trio.current_time() >= 1.2  # a pause after each two attempts, the second with the reserve descriptor
    assert caplog.text.count("cannot accept") == 1


async def test_stop_lets_waiting_handlers_answer_within_the_grace_period(autojump_clock, network) -> None:
    started, stop = trio.Event(), trio.CancelScope()
    closed = []

    async def slow(link, command):
        started.set()
        await trio.sleep(0.5)
        return command.answer(remark="done")

    async def never(link, command):
        await trio.sleep_forever()

    async def run(task_status):
        with stop:
            await serve(
                Handlers(waiting={1: slow, 2: never}),
                port=0,
                listen=network.listen,
                on_closed=closed.append,
                limits=Limits(grace_s=1),
                task_status=task_status,
            )

    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(run)
        async with open_link(address, dial=network.dial) as link:
            link.send(Command.request(2, oneway=True).encode())

            async def end() -> None:
                await started.wait()
                stop.cancel()
                # What comes after the stop is not read; it must not cost us the answer that is on its way.
                link.send(Command.request(1, opaque=77).encode())

            nursery.start_soon(end)
            assert (await link.request(Command.request(1), 5)).remark == "done"
            # The link ends with the grace period.
            with pytest.raises(LinkClosedError):
                await link.request(Command.request(1), 50)
            with pytest.raises(ConnectionRefusedError):
                await network.dial(address)
    assert trio.current_time() == pytest.approx(1, abs=0.1)
    assert len(closed) == 1


async def test_stop_without_work_is_immediate(autojump_clock, network) -> None:
    async with trio.open_nursery() as nursery:

        async def run(task_status):
            await serve(Handlers(plain={1: echo}), port=0, listen=network.listen, task_status=task_status)

        (address,) = await nursery.start(run)
        async with open_link(address, dial=network.dial) as link:
            await link.request(Command.request(1), 5)
            nursery.cancel_scope.cancel()
    assert trio.current_time() == pytest.approx(0, abs=0.01)


async def test_taken_address_is_a_plain_error(autojump_clock, network) -> None:
    await network.listen("127.0.0.1", 9876)
    with pytest.raises(OSError, match="taken"):
        await serve(Handlers(), host="127.0.0.1", port=9876, listen=network.listen)


async def test_silent_server(autojump_clock, network, start) -> None:
    address = await start(Handlers(plain={1: lambda link, command: None}))
    async with open_link(address, dial=network.dial) as link:
        with pytest.raises(AnswerTimeoutError):
            await link.request(Command.request(1), 5)


async def test_a_burst_of_connections_is_accepted_in_few_turns_of_the_loop(nursery) -> None:
    (address,) = await nursery.start(partial(serve, Handlers(plain={1: echo}), host="127.0.0.1", port=0))
    host, _, port = address.rpartition(":")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    with ExitStack() as stack:
        # Without a wait in between: the server has not seen any of them when the last one asks.
        strangers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(200)]
        last = strangers[-1]
        last.sendall(Command.request(1).encode())
        nursery.start_soon(count_turns)
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(last)
        assert last.recv(1000)
    assert turns < 50
    nursery.cancel_scope.cancel()


async def test_silent_connections_count_where_tls_is_possible(nursery, caplog) -> None:
    limits = Limits(connections=5)
    (address,) = await nursery.start(
        partial(serve, Handlers(plain={1: echo}), host="127.0.0.1", port=0, limits=limits, tls=TlsSettings())
    )
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(8)]
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(strangers[5])
        assert strangers[5].recv(1) == b""
        strangers[0].close()
        await wait_all_tasks_blocked()
        while True:  # until the server has seen that there is room
            late = stack.enter_context(socket.create_connection((host, int(port))))
            late.sendall(Command.request(1).encode())
            with trio.fail_after(30):
                await trio.lowlevel.wait_readable(late)
            try:
                if late.recv(1000):
                    break
            except ConnectionResetError:
                pass
    assert "refusing connections: 5 are open" in caplog.text
    nursery.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="one address of the loopback elsewhere")
async def test_one_host_cannot_keep_all_others_out(nursery, caplog) -> None:
    limits = Limits(connections=20)
    (address,) = await nursery.start(
        partial(serve, Handlers(plain={1: echo}), host="127.0.0.1", port=0, limits=limits, tls=TlsSettings())
    )
    host, _, port = address.rpartition(":")

    async def answered(peer: socket.socket) -> bool:
        peer.sendall(Command.request(1).encode())
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(peer)
        return bool(peer.recv(1000))

    def connect(source: str) -> socket.socket:
        return stack.enter_context(socket.create_connection((host, int(port)), source_address=(source, 0)))

    with ExitStack() as stack:
        strangers = [connect("127.0.0.2") for _ in range(20)]
        assert await answered(strangers[0])
        assert await answered(strangers[1])
        clients = [connect(f"127.0.0.{number}") for number in (3, 4, 5)]
        for client in clients:
            assert await answered(client)
        late = connect("127.0.0.2")
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(late)
        assert late.recv(1) == b""
        assert await answered(strangers[0])
        assert strangers[2].recv(1) == strangers[3].recv(1) == strangers[4].recv(1) == b"", "the idlest"
        for client in clients:
            assert await answered(client)
    assert limits.traffic.refused == 4
    assert "closing 1 idle connections of 127.0.0.2, which has most, for other hosts: 20 are open" in caplog.text
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("request_bytes", [b"noise, and no frame at all", Command.request(2).encode()])
async def test_a_peer_that_sends_unusable_frames_does_not_fill_the_log(
    autojump_clock, network, start, caplog, request_bytes
) -> None:
    def refuse(link, command):
        raise HeaderError("topic", "is missing")

    caplog.set_level("INFO")
    address = await start(Handlers(plain={2: refuse}))
    for _ in range(50):
        stream = await network.dial(address)
        await stream.send_all(request_bytes)
        await stream.receive_some()
        await stream.aclose()
    assert 1 <= len([record for record in caplog.records if record.levelname in ("INFO", "WARNING")]) <= 2
