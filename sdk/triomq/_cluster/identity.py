"""A client's identity at brokers: client id, local address, unique message ids (docs/protocol/client.md §1.2 and §6.4).

The process's pid, clock and interfaces are read only here.  Upstream: ``ClientConfig``,
``RemotingUtil.getLocalAddress``, ``MessageClientIDSetter``.
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import time
from collections.abc import Callable
from datetime import datetime

from triomq_protocol.message_id import UniqueIdGenerator

Clock = Callable[[], int]
"""Wall clock: milliseconds since 1970."""


def wall_ms() -> int:
    """The system's wall clock."""
    return time.time_ns() // 1_000_000


def local_ip() -> str:
    """An address under which others may reach this machine; loopback if there is none.

    It asks the kernel which address an outgoing packet would carry; nothing is sent.
    """
    for family, outside in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((outside, 9))
                ip = str(probe.getsockname()[0])
        except OSError:
            continue
        if not ipaddress.ip_address(ip).is_unspecified:
            return ip
    return "127.0.0.1"


def client_id(ip: str, instance_name: str, unit_name: str = "") -> str:
    """``ip@instance[@unit]``; it must be unique among live processes, since brokers know a client by it."""
    host = f"[{ip}]" if ":" in ip else ip
    return "@".join([host, instance_name] + ([unit_name] if unit_name else []))


def default_instance_name() -> str:
    """``pid#nanoseconds``, as upstream names an instance without a name."""
    return f"{os.getpid()}#{time.monotonic_ns()}"


class UniqueKeys:
    """Creates UNIQ_KEY values: one per logical message, kept over all its attempts.

    Args:
        ip: local address.
        clock: wall clock.
    """

    def __init__(self, ip: str, clock: Clock = wall_ms) -> None:
        self._clock = clock
        now_ms = clock()
        start, end = month_bounds_ms(now_ms)
        self._ids = UniqueIdGenerator(
            ipaddress.ip_address(ip).packed,
            os.getpid(),
            # Makes two clients of one process differ, as Java's class loader does.
            random.SystemRandom().getrandbits(31),
            month_start_ms=start,
            next_month_ms=end,
        )
        self._stamped_ms = -1
        self._stamp = ""
        self._counter = -1

    def next(self, now_ms: int) -> str:
        """A new id."""
        if now_ms != self._stamped_ms:
            self._stamp_at(now_ms)
        self._counter = counter = (self._counter + 1) & 0xFFFF
        return f"{self._stamp}{counter:04X}"

    def reserve(self, count: int, now_ms: int) -> tuple[str, int]:
        """Reserve new ids, which the caller writes: returns their common beginning, and the number of the first.

        A number is written with four hexadecimal digits; the one after 0xFFFF is 0.
        """
        if now_ms != self._stamped_ms:
            self._stamp_at(now_ms)
        first = (self._counter + 1) & 0xFFFF
        self._counter = (self._counter + count) & 0xFFFF
        return self._stamp, first

    def _stamp_at(self, now_ms: int) -> None:
        # Everything but the counter stays the same for a millisecond.
        self._stamp = self._stamp_of(now_ms)
        self._stamped_ms = now_ms

    def _stamp_of(self, now_ms: int) -> str:
        if self._ids.needs_month(now_ms):
            self._ids.start_month(*month_bounds_ms(now_ms))
        return self._ids.next_id(now_ms)[:-4]


def month_bounds_ms(now_ms: int) -> tuple[int, int]:
    """The first day 00:00 of this and of the next month, local time, as milliseconds since 1970."""
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    first = datetime(now.year, now.month, 1).astimezone()
    following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1).astimezone()
    return int(first.timestamp() * 1000), int(following.timestamp() * 1000)
