"""Links: deferred answers, requests of ours, closing."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.wire.command import Command
from triomq_server.wire import AnswerTimeoutError, LinkClosedError, dial_tcp, open_link


async def test_a_burst_of_sends_is_one_write_in_order(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    for number in range(10):
        link.send(b"%d" % number)
    assert wire.writes == []
    await wait_all_tasks_blocked()
    assert wire.writes == [b"0123456789"]


async def test_sends_of_many_tasks_in_one_turn_are_one_write(autojump_clock, bench) -> None:
    link, wire = await bench.connect()

    async def late() -> None:
        await trio.sleep(1)
        link.send(b"x")

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(late)
    await wait_all_tasks_blocked()
    assert wire.writes == [b"xxxxx"]


async def test_order_is_kept_while_the_socket_is_full(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    wire.writable_bytes = 3
    link.send(b"abcdef")
    await wait_all_tasks_blocked()
    link.send(b"ghi")
    await wait_all_tasks_blocked()
    assert wire.writes == [b"abc"]
    assert link.unsent_bytes == 6
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert b"".join(wire.writes) == b"abcdefghi"
    assert link.unsent_bytes == 0


async def test_memory_of_a_view_is_not_used_after_send(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    memory = bytearray(b"before")
    with memoryview(memory) as view:
        link.send(view)
    memory[:] = b"after!"
    await wait_all_tasks_blocked()
    assert wire.writes == [b"before"]


async def test_request_is_paired_with_its_answer_by_opaque(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    answers = {}

    async def ask_peer(name: str) -> None:
        answers[name] = (await link.request(Command.request(220), 5)).remark

    async with trio.open_nursery() as nursery:
        for name in ("a", "b"):
            nursery.start_soon(ask_peer, name)
        await wait_all_tasks_blocked()
        first, second = wire.commands()
        assert first.opaque != second.opaque
        assert not first.is_response
        # Answers in the other order, and one that no task waits for.
        wire.deliver(second.answer(remark="2").encode() + first.answer(remark="1").encode())
        wire.deliver(Command(flag=1, opaque=999).encode())
    assert sorted(answers.values()) == ["1", "2"]
    assert not link.closed


async def test_request_times_out_and_the_late_answer_is_dropped(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    started = trio.current_time()
    with pytest.raises(AnswerTimeoutError, match="220"):
        await link.request(Command.request(220), 10)
    assert trio.current_time() - started == pytest.approx(10)
    wire.deliver(wire.commands()[0].answer().encode())
    await wait_all_tasks_blocked()
    assert not link.closed


@pytest.mark.parametrize("how", ["peer ends", "we close", "peer talks rubbish"])
async def test_waiting_requests_fail_at_once_when_the_link_ends(autojump_clock, bench, how) -> None:
    link, wire = await bench.connect()

    async def end() -> None:
        await trio.sleep(1)
        if how == "peer ends":
            wire.end()
        elif how == "we close":
            link.close()
        else:
            wire.deliver(b"GET / HTTP/1.1\r\n\r\n")

    bench.nursery.start_soon(end)
    started = trio.current_time()
    with pytest.raises(LinkClosedError):
        await link.request(Command.request(220), 100)
    assert trio.current_time() - started == pytest.approx(1)
    with pytest.raises(LinkClosedError):
        await link.request(Command.request(220), 100)
    await wait_all_tasks_blocked()
    assert bench.closed == [link]
    assert wire.closed
    assert link not in bench.hub.links


async def test_cancelled_request_leaves_nothing_behind(autojump_clock, bench) -> None:
    link, _ = await bench.connect()
    with trio.move_on_after(1):
        await link.request(Command.request(220), 100)
    assert not link._waiters


async def test_opaque_in_use_is_not_given_again(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    link._opaques = iter([5, 5, 0x7FFFFFFF + 1])
    for _ in range(2):
        bench.nursery.start_soon(link.request, Command.request(220), 100)
        await wait_all_tasks_blocked()
    assert [c.opaque for c in wire.commands()] == [5, 0]


async def test_notify_is_one_way(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    link.notify(Command.request(40))
    await wait_all_tasks_blocked()
    (command,) = wire.commands()
    assert command.is_oneway
    assert not command.is_response


async def test_closing_gives_unsent_frames_a_last_try(autojump_clock, bench) -> None:
    link, wire = await bench.connect()
    link.send(b"bye")
    link.close()
    assert wire.writes == [b"bye"]
    link.send(b"too late")
    await wait_all_tasks_blocked()
    assert wire.writes == [b"bye"]
    assert bench.closed == [link]


async def test_handler_may_close_its_own_link(autojump_clock, bench, ask) -> None:
    calls = []
    bench.handlers.plain[1] = lambda link, command: calls.append(1) or link.close()
    link, wire = await bench.connect()
    wire.deliver(ask(1) * 3)
    await wait_all_tasks_blocked()
    assert calls == [1]
    assert bench.closed == [link]
    assert wire.closed


@pytest.mark.parametrize("writable_bytes", [None, 0])
async def test_broken_write_ends_the_link(autojump_clock, bench, ask, writable_bytes) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    link, wire = await bench.connect()
    wire.writable_bytes = writable_bytes
    wire.broken = writable_bytes is None
    wire.deliver(ask(1))
    await wait_all_tasks_blocked()
    wire.broken = True
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert link.closed
    assert bench.closed == [link]


async def test_failing_close_hook_does_not_keep_the_link(autojump_clock, bench, caplog) -> None:
    link, wire = await bench.connect()
    bench.hub.writer._on_closed = lambda link: 1 // 0
    wire.end()
    await wait_all_tasks_blocked()
    assert link.closed
    assert wire.closed
    assert "clean-up" in caplog.text


async def test_what_cannot_be_written_ends_only_its_link(autojump_clock, bench, caplog) -> None:
    bad, _ = await bench.connect()
    good, wire = await bench.connect()
    bad.unsent.append("no bytes")
    bad.send(b"x")
    good.send(b"y")
    await wait_all_tasks_blocked()
    assert bad.closed
    assert not good.closed
    assert wire.writes == [b"y"]
    assert "fault of our own" in caplog.text


async def test_a_peer_that_is_gone_at_once_is_an_ordinary_error() -> None:
    """Its reset arrives before the link is made; callers expect OSError, not a group that has one in it."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener.socket.getsockname()

    async def dial(address: str) -> trio.abc.Stream:
        stream = await dial_tcp(address)
        accepted = await listener.accept()
        accepted.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await accepted.aclose()
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(1)
        return stream

    async with listener:
        with pytest.raises(OSError, match="not connected"):
            async with open_link(f"{host}:{port}", dial=dial):
                pytest.fail("there is no link")


async def test_a_name_that_no_thread_can_look_up_is_an_ordinary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of processes. Callers try again after an OSError; another error ends their tasks with a traceback."""

    async def refused(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio, "open_tcp_stream", refused)
    with pytest.raises(
        OSError, match="'broker' cannot be looked up: can't start new thread; raise the limit of processes"
    ):
        await dial_tcp("broker:10911")
