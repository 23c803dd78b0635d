"""Limits: unsent bytes, idle time, frame size, rubbish."""

from __future__ import annotations

import itertools
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq_server.config import BrokerConfig
from triomq_server.wire import Limits, Link


async def test_nothing_is_read_from_a_link_with_too_much_unsent(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=b"x" * 1000)
    link, wire = await bench.connect(Limits(output_bytes=5000))
    wire.writable_bytes = 0
    for _ in range(20):
        wire.deliver(ask(1))
    await wait_all_tasks_blocked()
    assert 5000 < link.unsent_bytes < 7000
    reads = wire.reads
    await trio.sleep(50)
    assert wire.reads == reads
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert len(wire.commands()) == 20


async def test_a_reader_that_takes_nothing_gets_little_work(autojump_clock, bench, ask) -> None:
    """By default few answers of the length of a pull's wait for it: hundreds of such readers must not keep the broker from
    its senders, or fill its memory."""
    body = b"x" * 262_144
    bench.handlers.plain[1] = lambda link, command: command.answer(body=body)
    link, wire = await bench.connect(Limits(output_bytes=BrokerConfig().link_output_limit_bytes))
    wire.writable_bytes = 0
    wire.deliver(ask(1) * 100)
    await wait_all_tasks_blocked()
    assert link.unsent_bytes < 6 * len(body)
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert len(wire.commands()) == 100


async def test_the_limit_holds_within_one_receive(autojump_clock, bench, ask) -> None:
    calls = []

    def large(link, command):
        calls.append(command.opaque)
        return command.answer(body=b"x" * 1000).encode()

    bench.handlers.plain[1] = large
    _, wire = await bench.connect(Limits(output_bytes=5000))
    wire.writable_bytes = 0
    wire.deliver(b"".join(ask(1, n) for n in range(100)))
    await wait_all_tasks_blocked()
    assert len(calls) < 8
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert calls == list(range(100))
    assert [c.opaque for c in wire.commands()] == list(range(100))


async def test_other_links_go_on_beside_one_that_does_not_read(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=b"x" * 1000)
    _, stuck = await bench.connect(Limits(output_bytes=5000))
    _, well = await bench.connect()
    stuck.writable_bytes = 0
    stuck.deliver(ask(1) * 100)
    well.deliver(ask(1) * 100)
    await wait_all_tasks_blocked()
    assert len(well.commands()) == 100
    assert len(stuck.commands()) == 0


async def test_idle_links_are_closed_on_time(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    link, wire = await bench.connect(Limits(idle_s=120))
    await trio.sleep(100)
    wire.deliver(ask(1))
    await trio.sleep(119)
    assert not link.closed
    await trio.sleep(3)
    assert link.closed
    assert bench.closed == [link]


class _ClosedByTurn(trio.abc.Instrument):
    """How many links had been closed at the end of each turn of the loop."""

    def __init__(self, closed: list[Link]) -> None:
        self._closed = closed
        self.counts = [0]

    def before_io_wait(self, timeout: float) -> None:
        self.counts.append(len(self._closed))


async def test_idle_links_are_closed_in_several_turns(autojump_clock, bench) -> None:
    links = [(await bench.connect(Limits(idle_s=120)))[0] for _ in range(1000)]
    turns = _ClosedByTurn(bench.closed)
    trio.lowlevel.add_instrument(turns)
    await trio.sleep(122)
    trio.lowlevel.remove_instrument(turns)
    assert all(link.closed for link in links)
    assert max(after - before for before, after in itertools.pairwise(turns.counts)) <= 100


async def test_writing_keeps_a_link_open(autojump_clock, bench) -> None:
    link, wire = await bench.connect(Limits(idle_s=120))
    wire.writable_bytes = 0
    link.send(b"x" * 10)
    for _ in range(5):
        await trio.sleep(100)
        wire.set_writable(1)
    assert not link.closed
    await trio.sleep(130)
    assert link.closed


async def test_a_peer_that_never_takes_its_answers_is_closed(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=b"x" * 1000)
    link, wire = await bench.connect(Limits(idle_s=120, output_bytes=100))
    wire.writable_bytes = 0
    wire.deliver(ask(1) * 10)
    await trio.sleep(130)
    assert link.closed
    assert wire.closed


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x01\x00\x00\x00",  # 16 MiB and more
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x03\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x09aaaa",
        b"\x00\x00\x00\x08\x02\x00\x00\x04aaaa",
        b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
        b"\x00\x00\x00\x08\x01\x00\x00\x04\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_frames_close_the_link_and_only_it(autojump_clock, bench, ask, caplog, rubbish) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    bad, wire = await bench.connect()
    good, good_wire = await bench.connect()
    wire.deliver(rubbish)
    good_wire.deliver(ask(1))
    await wait_all_tasks_blocked()
    assert bad.closed
    assert wire.closed
    assert wire.writes == []
    assert len(good_wire.commands()) == 1
    assert not good.closed
    assert [r.levelname for r in caplog.records] == ["WARNING"]


async def test_frames_before_invalid_bytes_do_not_keep_the_link_open(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    link, wire = await bench.connect()
    wire.deliver(ask(1))
    wire.deliver(b"\xff" * 100)
    await wait_all_tasks_blocked()
    assert len(wire.commands()) == 1
    assert link.closed


async def test_half_a_frame_and_then_the_end(autojump_clock, bench, ask) -> None:
    link, wire = await bench.connect()
    wire.deliver(ask(1)[:20])
    await wait_all_tasks_blocked()
    assert not link.closed
    wire.end()
    await wait_all_tasks_blocked()
    assert link.closed


@pytest.mark.parametrize("seed", range(30))
async def test_random_damage_never_reaches_other_links(autojump_clock, bench, ask, seed) -> None:
    chance = random.Random(seed)
    bench.handlers.plain[1] = lambda link, command: command.answer(body=command.body)
    good, good_wire = await bench.connect()
    for _ in range(20):
        _, wire = await bench.connect()
        data = bytearray(ask(1, body=chance.randbytes(40)) * 3)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cut = chance.randrange(len(data))
        wire.deliver(bytes(data[:cut]))
        wire.deliver(bytes(data[cut:]) if chance.random() < 0.7 else chance.randbytes(50))
        wire.end()
    good_wire.deliver(ask(1, 3, body=b"still here"))
    await wait_all_tasks_blocked()
    assert [c.body for c in good_wire.commands()] == [b"still here"]
    assert bench.hub.links == {good}


async def test_a_long_header_closes_the_link(autojump_clock, bench, ask, caplog) -> None:
    """Each field of a header costs more than its bytes; no request needs so many."""
    bench.handlers.plain[1] = lambda link, command: command.answer()
    link, wire = await bench.connect()
    wire.deliver(ask(1, fields={"a": "b" * 200_000}))
    await wait_all_tasks_blocked()
    assert len(wire.commands()) == 1
    wire.deliver(ask(1, fields={"a": "b" * 300_000})[:1000])
    await wait_all_tasks_blocked()
    assert link.closed
    assert "header" in caplog.text
