"""One receive, one batch: all its frames, plain calls, one write."""

from __future__ import annotations

import logging

import pytest
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.errors import HeaderError, LocalProtocolError
from triomq_protocol.wire.command import Command
from triomq_server.wire import ignored
from triomq_server.wire.hub import WRITE_BYTES


async def test_all_frames_of_a_receive_are_answered_in_one_write(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(remark=f"to {command.opaque}").encode()
    _, wire = await bench.connect()
    wire.deliver(b"".join(ask(1, opaque) for opaque in range(64)))
    await wait_all_tasks_blocked()
    assert len(wire.writes) == 1
    assert [(c.opaque, c.remark) for c in wire.commands()] == [(n, f"to {n}") for n in range(64)]


@pytest.mark.parametrize("by_handler", [False, True])
async def test_large_answers_leave_before_the_next_request_is_handled(autojump_clock, bench, ask, by_handler) -> None:
    before = []

    def answer(link, command):
        before.append(len(wire.writes))
        pieces = [command.answer().encode(), memoryview(bytes(WRITE_BYTES // 2))]
        if not by_handler:
            return pieces
        for piece in pieces:
            link.send(piece)
        return None

    bench.handlers.plain[1] = answer
    _, wire = await bench.connect()
    wire.deliver(b"".join(ask(1, opaque) for opaque in range(5)))
    await wait_all_tasks_blocked()
    assert before == [0, 0, 1, 1, 2]
    assert len(wire.writes) == 3


async def test_a_slow_peer_is_not_asked_again_for_each_large_answer(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=bytes(WRITE_BYTES)).encode()
    link, wire = await bench.connect()
    tries = []
    send_now = wire.send_now
    link.transport.send_now = lambda pieces: tries.append(len(pieces)) or send_now(pieces)
    wire.set_writable(0)
    wire.deliver(b"".join(ask(1, opaque) for opaque in range(5)))
    await wait_all_tasks_blocked()
    assert tries == [1]
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert [command.opaque for command in wire.commands()] == list(range(5))


async def test_views_behind_a_full_socket_are_copied_in_the_same_batch(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: [command.answer().encode(), memoryview(bytes(WRITE_BYTES))]
    link, wire = await bench.connect()
    wire.set_writable(0)
    kinds = []
    bench.hub._on_batch_end = lambda: kinds.extend(map(type, link.unsent))
    wire.deliver(b"".join(ask(1, opaque) for opaque in range(3)))
    await wait_all_tasks_blocked()
    assert set(kinds) == {bytes}


async def test_batches_behind_a_full_socket_do_not_touch_the_answers_before_them(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer().encode()
    link, wire = await bench.connect()
    wire.set_writable(0)
    opaque = 0
    for size in (1, 100, 50, 1):
        before = list(link.unsent)
        wire.deliver(b"".join(ask(1, opaque + number) for number in range(size)))
        opaque += size
        await wait_all_tasks_blocked()
        assert all(now is then for now, then in zip(link.unsent, before, strict=False))
    assert len(link.unsent) == 3  # one piece for each batch but the first, which a task tries to write
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert [command.opaque for command in wire.commands()] == list(range(opaque))


async def test_batch_end_is_called_once_per_receive_after_the_write(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    _, wire = await bench.connect()
    wire.deliver(ask(1) * 3)
    wire.deliver(ask(1) * 2)
    await wait_all_tasks_blocked()
    assert bench.batch_ends == [1, 2]


async def test_what_is_sent_at_batch_end_leaves_right_behind_the_answers(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    link, wire = await bench.connect()
    other, other_wire = await bench.connect()
    woken = Command.request(9).encode()
    bench.hub._on_batch_end = lambda: (link.send(woken), other.send(woken))
    wire.deliver(ask(1, 5))
    await wait_all_tasks_blocked()
    assert (len(wire.writes), len(other_wire.writes)) == (2, 1)
    assert [c.code for c in wire.commands()] == [0, 9]
    assert other_wire.writes == [woken]


async def test_frames_split_anywhere_are_put_together(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=command.body)
    _, wire = await bench.connect()
    for byte in ask(1, 7, body=b"hello") + ask(1, 8):
        wire.deliver(bytes([byte]))
    await wait_all_tasks_blocked()
    assert [(c.opaque, c.body) for c in wire.commands()] == [(7, b"hello"), (8, b"")]


async def test_commands_and_bytes_may_be_returned_and_none_is_no_answer(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    bench.handlers.plain[2] = lambda link, command: command.answer().encode()
    bench.handlers.plain[3] = lambda link, command: memoryview(command.answer().encode())
    bench.handlers.plain[4] = lambda link, command: None
    _, wire = await bench.connect()
    wire.deliver(ask(1, 1) + ask(2, 2) + ask(4, 4) + ask(3, 3))
    await wait_all_tasks_blocked()
    assert [c.opaque for c in wire.commands()] == [1, 2, 3]


async def test_views_sent_in_a_batch_reach_the_socket_uncopied(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: link.send(b"head") or link.send(memoryview(b"body"))
    _, wire = await bench.connect()
    wire.deliver(ask(1))
    await wait_all_tasks_blocked()
    assert wire.writes == [b"headbody"]
    assert wire.kinds == [bytes, memoryview]


async def test_one_way_requests_are_handled_and_not_answered(autojump_clock, bench, ask) -> None:
    seen = []

    def fail(link, command):
        seen.append(command.opaque)
        raise ValueError("no matter")

    bench.handlers.plain[1] = lambda link, command: seen.append(command.opaque) or command.answer()
    bench.handlers.plain[2] = fail
    _, wire = await bench.connect()
    wire.deliver(ask(1, 1, oneway=True) + ask(2, 2, oneway=True) + ask(77, 3, oneway=True))
    await wait_all_tasks_blocked()
    assert seen == [1, 2]
    assert wire.writes == []


async def test_unknown_code_is_answered_with_code_3(autojump_clock, bench, ask) -> None:
    _, wire = await bench.connect()
    wire.deliver(ask(9999, 4, serialize=1))
    await wait_all_tasks_blocked()
    (answer,) = wire.commands()
    assert (answer.code, answer.opaque, answer.remark) == (3, 4, " request type 9999 not supported")
    assert answer.serialize == 0


async def test_unknown_code_can_be_ignored(autojump_clock, bench, ask) -> None:
    bench.handlers.default = ignored
    _, wire = await bench.connect()
    wire.deliver(ask(9999))
    await wait_all_tasks_blocked()
    assert wire.writes == []


@pytest.mark.parametrize(
    ("error", "remark"),
    [
        (HeaderError("queueId", "is missing"), "header field 'queueId' is missing"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
async def test_exception_in_a_handler_is_an_answer(autojump_clock, bench, ask, caplog, error, remark) -> None:
    def fail(link, command):
        raise error

    bench.handlers.plain[1] = fail
    bench.handlers.plain[2] = lambda link, command: command.answer()
    link, wire = await bench.connect()
    with caplog.at_level(logging.INFO):
        wire.deliver(ask(1, 1) + ask(2, 2))
        await wait_all_tasks_blocked()
    first, second = wire.commands()
    assert (first.code, first.opaque, first.remark) == (1, 1, remark)
    assert (second.code, second.opaque) == (0, 2)
    assert not link.closed
    (record,) = caplog.records
    assert bool(record.exc_info) is isinstance(error, KeyError)


async def test_answer_that_cannot_be_encoded_is_an_answer_too(autojump_clock, bench, ask) -> None:
    class Broken(Command):
        def encode(self) -> bytes:
            raise LocalProtocolError("too large")

    bench.handlers.plain[1] = lambda link, command: Broken()
    _, wire = await bench.connect()
    wire.deliver(ask(1, 6))
    await wait_all_tasks_blocked()
    (answer,) = wire.commands()
    assert (answer.code, answer.opaque) == (1, 6)
    assert "too large" in answer.remark


async def test_failing_batch_end_closes_the_link_and_spares_the_others(autojump_clock, bench, ask, caplog) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    link, wire = await bench.connect()
    other, other_wire = await bench.connect()
    bench.hub._on_batch_end = lambda: 1 // 0
    wire.deliver(ask(1))
    await wait_all_tasks_blocked()
    assert link.closed
    bench.hub._on_batch_end = None
    other_wire.deliver(ask(1))
    await wait_all_tasks_blocked()
    assert not other.closed
    assert len(other_wire.commands()) == 1


async def test_good_frames_in_front_of_garbage_are_answered_before_the_link_closes(
    autojump_clock, bench, ask, caplog
) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    link, wire = await bench.connect()
    wire.deliver(ask(1, 5) + ask(1, 6) + b"\x7f\xff\xff\xff????")
    await wait_all_tasks_blocked()
    assert [c.opaque for c in wire.commands()] == [5, 6]
    assert link.closed
    assert wire.closed
    assert "closing 10.0.0.9:4000: frame of" in caplog.text
