"""The store address in records."""

from __future__ import annotations

import math
import socket
import threading
from typing import Any

import pytest
import trio
import trio.testing

from triomq_server.broker import addresses
from triomq_server.broker.addresses import LOOK_UP_S, LOOK_UPS_AT_ONCE, ips_of, packed_address


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_address_or_a_name_is_packed(host: str) -> None:
    assert await packed_address(host, 10911) == b"\x7f\0\0\x01" + (10911).to_bytes(4, "big")


async def test_an_unknown_host_name_is_an_error_of_its_own() -> None:
    with pytest.raises(socket.gaierror):
        await packed_address("no host", 10911)


@pytest.mark.parametrize(
    ("address", "ips"),
    [
        ("10.0.0.7:10911", {"10.0.0.7"}),
        ("::1:10911", {"::1"}),
        ("[::1]:10911", {"::1"}),
        ("FE80:0:0:0:0:0:0:1%eth0:10911", {"fe80::1"}),
        ("one:10911", {"10.0.0.1", "fd00::1"}),
        ("unknown:10911", set()),
        ("..:10911", set()),
        ("", set()),
    ],
)
async def test_the_ips_of_a_registered_address(
    mock_clock: trio.testing.MockClock, address: str, ips: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock does not advance: one that jumps would not wait for the thread that asks."""
    real = socket.getaddrinfo

    def look_up(host: str, *others: Any, **options: Any) -> list[Any]:
        if host == "one":
            return [(0, 0, 0, "", ("10.0.0.1", 0)), (0, 0, 0, "", ("fd00::1", 0, 0, 0))]
        if host == "unknown":
            raise socket.gaierror
        return real(host, *others, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "LOOK_UP_S", math.inf)  # virtual time does not wait for a thread
    assert await ips_of(address) == ips


async def test_a_name_that_no_thread_can_look_up_has_no_ips(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", refused)
    assert await ips_of("broker:10911") == frozenset()


async def test_a_name_that_is_not_found_in_time_has_no_ips(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone can register brokers under such names: only some threads wait for them at one time."""
    ended, asked = threading.Event(), []

    def never(host: str, *_others: Any, **_options: Any) -> list[Any]:
        asked.append(host)
        ended.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ips_of, f"slow-{number}:10911")
        assert trio.current_time() == pytest.approx(LOOK_UP_S, abs=0.1)
        assert len(asked) <= LOOK_UPS_AT_ONCE
    finally:
        ended.set()


def test_look_ups_of_a_run_that_has_ended_hinder_no_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that outlives its run does not give back its place; clusters of tests are of many runs."""
    ended = threading.Event()

    def slow(host: str, *_others: Any, **_options: Any) -> list[Any]:
        if host == "slow":
            ended.wait()
        return [(0, 0, 0, "", ("10.0.0.1", 0))]

    async def stopped() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(LOOK_UPS_AT_ONCE):
                nursery.start_soon(ips_of, "slow:10911")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        trio.run(stopped)
    finally:
        ended.set()
    assert trio.run(ips_of, "quick:10911") == {"10.0.0.1"}
