"""Budgets: what all links hold together is bounded, and the one that holds most pays for it."""

from __future__ import annotations

import struct

import trio
from trio.testing import wait_all_tasks_blocked

from triomq_protocol.hosts import pack_host
from triomq_server.repeats import LOG_EVERY_S
from triomq_server.wire import Budget, Limits, counted_host, incomplete_budget, unsent_budget
from triomq_server.wire.limits.places import Places
from triomq_server.wire.transport import network_of


def set_host(link, host: int) -> None:
    link.peer = f"10.0.0.{host}:4000"
    link.peer_host = bytes([10, 0, 0, host, 0, 0, 15, 160])


def part_of_a_frame(size: int) -> bytes:
    return struct.pack(">iI", 1_000_000, 100) + bytes(size - 8)


async def test_incomplete_frames_of_all_links_are_counted_together(autojump_clock, bench, ask, caplog) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=command.body)
    budget = incomplete_budget(100_000)
    limits = Limits(incomplete=budget)
    honest, wire = await bench.connect(limits)
    set_host(honest, 1)
    request = ask(1, body=b"x" * 50_000)
    wire.deliver(request[:40_000])
    peers = []
    for _ in range(12):
        link, other = await bench.connect()
        set_host(link, 2)
        peers.append(link)
        other.deliver(part_of_a_frame(8000))
        await wait_all_tasks_blocked()
        assert budget.held_bytes <= budget.limit_bytes
        assert budget.held_bytes == 40_000 + 8000 * sum(not link.closed for link in peers)
    assert budget.closed == sum(link.closed for link in peers) > 3
    assert not honest.closed
    wire.deliver(request[40_000:])
    await wait_all_tasks_blocked()
    assert wire.commands()[0].body == b"x" * 50_000
    for link in peers:
        link.close()
    await wait_all_tasks_blocked()
    assert budget.held_bytes == 0
    assert len(caplog.messages) == 1
    assert "incompleteFramesLimitBytes" in caplog.text
    assert "10.0.0.2" in caplog.text


async def test_a_frame_that_ends_is_counted_no_more(autojump_clock, bench, ask) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer()
    budget = incomplete_budget(1000)
    _, wire = await bench.connect(Limits(incomplete=budget))
    request = ask(1, body=b"x" * 900)
    for _ in range(10):
        wire.deliver(request[:500])
        await wait_all_tasks_blocked()
        assert budget.held_bytes == 500
        wire.deliver(request[500:])
        await wait_all_tasks_blocked()
        assert budget.held_bytes == 0
    assert len(wire.commands()) == 10


async def test_a_link_that_exceeds_the_budget_by_itself_is_closed_at_once(autojump_clock, bench) -> None:
    budget = incomplete_budget(10_000)
    link, wire = await bench.connect(Limits(incomplete=budget))
    wire.deliver(part_of_a_frame(10_001))
    await wait_all_tasks_blocked()
    assert link.closed
    assert budget.held_bytes == 0


async def test_answers_that_peers_do_not_take_are_counted_together(autojump_clock, bench, ask, caplog) -> None:
    bench.handlers.plain[1] = lambda link, command: command.answer(body=b"x" * 1000)
    budget = unsent_budget(100_000)
    limits = Limits(output_bytes=20_000, unsent=budget)
    slow, wire = await bench.connect(limits)
    set_host(slow, 1)
    wire.writable_bytes = 0
    wire.deliver(ask(1) * 15)
    await wait_all_tasks_blocked()
    assert 15_000 < budget.held_bytes < 20_000
    mute = []
    for _ in range(10):
        link, other = await bench.connect()
        set_host(link, 2)
        other.writable_bytes = 0
        mute.append(link)
        other.deliver(ask(1) * 15)
        await wait_all_tasks_blocked()
        assert budget.held_bytes <= budget.limit_bytes
        assert budget.held_bytes == slow.unsent_bytes + sum(link.unsent_bytes for link in mute if not link.closed)
    assert budget.closed == sum(link.closed for link in mute) > 3
    assert len(caplog.messages) == 1
    assert "outputLimitBytes" in caplog.text
    wire.set_writable(10_000)
    await wait_all_tasks_blocked()
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert len(wire.commands()) == 15
    for link in mute:
        link.close()
    await wait_all_tasks_blocked()
    assert budget.held_bytes == 0


async def test_a_peer_that_takes_all_but_the_end_keeps_no_more_than_twice_what_is_counted(
    autojump_clock, bench, monkeypatch
) -> None:
    budget = unsent_budget(10_000_000)
    link, wire = await bench.connect(Limits(unsent=budget))
    wire.writable_bytes = 0
    kept = []
    send_some = wire.send_some

    async def noting(data: memoryview) -> int:
        kept.append((len(data.obj), budget.held_bytes))
        return await send_some(data)

    monkeypatch.setattr(wire, "send_some", noting)
    body = bytes(range(256)) * 4000
    link.send(body)
    await wait_all_tasks_blocked()
    while len(kept) < 1024:
        wire.set_writable(1000)
        await wait_all_tasks_blocked()
    assert all(size <= 2 * counted for size, counted in kept)
    assert b"".join(wire.writes) == body[:-1000]
    wire.set_writable(None)
    await wait_all_tasks_blocked()
    assert b"".join(wire.writes) == body


async def test_what_is_sent_to_a_link_that_takes_nothing_is_counted(autojump_clock, bench) -> None:
    budget = unsent_budget(5000)
    link, wire = await bench.connect(Limits(unsent=budget))
    wire.writable_bytes = 0
    sent = 0
    while not link.closed:
        link.send(b"x" * 1000)
        sent += 1000
        await wait_all_tasks_blocked()
        assert budget.held_bytes == (0 if link.closed else sent)
    assert sent == 6000


async def test_closings_are_logged_now_and_then(autojump_clock, bench, caplog) -> None:
    budget = Budget("bytes", "someSetting", 10)
    for _ in range(100):
        link, _ = await bench.connect()
        budget.count(link, 11)
        assert link.closed
    assert len(caplog.messages) == 1
    await trio.sleep(LOG_EVERY_S)
    link, _ = await bench.connect()
    budget.count(link, 11)
    assert caplog.messages[1].startswith("closing 100 connections of 10.0.0.9: bytes of all connections take")


ONE_NETWORK = [f"2001:db8:0:7:{number:x}::1" for number in range(10)]
OTHERS = ["2001:db8:0:8::1", "fe80::1", "::1", "10.0.0.1", "10.0.0.2"]


def test_all_addresses_of_an_ipv6_network_are_one_host() -> None:
    assert len({counted_host(pack_host(host, 1000 + number)) for number, host in enumerate(ONE_NETWORK)}) == 1
    assert len({counted_host(pack_host(host, 1000)) for host in (ONE_NETWORK[0], *OTHERS)}) == 6
    assert {network_of(host) for host in ONE_NETWORK} == {"2001:db8:0:7::/64"}
    assert [network_of(host) for host in OTHERS[1:]] == ["fe80::/64", "::/64", "10.0.0.1", "10.0.0.2"]
    assert [network_of(host) for host in ("::ffff:10.0.0.1", "fe80::1%eth0", "", "a closed connection")] == [
        "10.0.0.1", "fe80::/64", "", "a closed connection",
    ]  # fmt: skip


async def test_an_ipv6_network_cannot_take_all_places() -> None:
    places = Places(10)
    taken = [places.take(network_of(host), lambda: None) for host in ONE_NETWORK]
    assert None not in taken
    assert places.take(network_of("2001:db8:0:8::1"), lambda: None) is not None
    assert places.take(network_of("2001:db8:0:7:ffff::1"), lambda: None) is None


async def test_a_budget_closes_links_of_the_ipv6_network_that_has_most() -> None:
    class Holder:
        closed = False

        def __init__(self, host: str) -> None:
            self.peer, self.peer_host = f"[{host}]:1000", pack_host(host, 1000)

        def close(self) -> None:
            self.closed = True

    budget, honest, greedy = Budget("", "", 1000), Holder(OTHERS[0]), [Holder(host) for host in ONE_NETWORK]
    budget.count(honest, 300)
    for holder in greedy:
        budget.count(holder, 100)
    assert not honest.closed
    assert sum(holder.closed for holder in greedy) == budget.closed > 0
