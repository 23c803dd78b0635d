"""Budgets: limits on the bytes that all links of a server hold for one purpose; the largest holder is closed first.

The limits of single links add up: 10,000 links with 15 MiB of an incomplete frame each are 150 GB.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

import msgspec

from triomq_server.repeats import Repeats

_log = logging.getLogger(__name__)

_FREED_SHARE: Final = 8
"""A budget that is exceeded is brought down by an eighth, so that the next bytes do not exceed it again at once."""

_PORT_BYTES: Final = 4
_NETWORK_BYTES: Final = 8

UNLIMITED_BYTES: Final = 1 << 62


SMALL_REQUEST_BYTES: Final = 4096
"""A request of this length may always wait: how many do is limited."""


class WaitingBytes(msgspec.Struct):
    """Bytes of requests that wait in handlers or are worked on in slices, over all links of a server.

    Closing links would not free them, since handlers keep what they were called with; so a request that would exceed
    the limit is refused.

    Attributes:
        limit_bytes: how much is allowed (``waitingRequestsLimitBytes``).
        held_bytes: how much is held now.
    """

    limit_bytes: int = UNLIMITED_BYTES
    held_bytes: int = 0

    def admits(self, size_bytes: int) -> bool:
        """Whether a request of this length may wait."""
        return size_bytes <= SMALL_REQUEST_BYTES or self.held_bytes + size_bytes <= self.limit_bytes


class Holder(Protocol):
    """A link, as a budget knows it."""

    peer: str
    peer_host: bytes

    def close(self) -> None:
        """Close it; it holds nothing then."""


def counted_host(peer_host: bytes) -> bytes:
    """What one host has of a packed address: of IPv6 its network of 64 bits, all of whose addresses a host may use."""
    address = peer_host[:-_PORT_BYTES]
    return address[:_NETWORK_BYTES] if len(address) > _NETWORK_BYTES else address


class Budget:
    """Bytes held for one purpose, over all links of a server.

    When they exceed the limit, links are closed until an eighth of it is free: always the largest link of the host that
    holds most in total. Other hosts are not affected.

    Args:
        what: the kind of bytes, for the log.
        setting: the key of the limit, for the log.
        limit_bytes: the number of bytes allowed.

    Attributes:
        held_bytes: the number of bytes held now.
        limit_bytes: see above.
        closed: the number of links closed to keep to the limit.
    """

    def __init__(self, what: str = "", setting: str = "", limit_bytes: int = UNLIMITED_BYTES) -> None:
        self.held_bytes = 0
        self.limit_bytes = limit_bytes
        self.closed = 0
        self._what = what
        self._setting = setting
        self._held: dict[Holder, int] = {}
        self._repeats = Repeats()
        self._freeing = False

    def count(self, link: Holder, size_bytes: int) -> None:
        """Note how many bytes a link holds now; may close links, including this one."""
        before = self._held.get(link, 0)
        if size_bytes:
            self._held[link] = size_bytes
        elif before:
            del self._held[link]
        self.held_bytes += size_bytes - before
        if self.held_bytes > self.limit_bytes and not self._freeing:
            self._freeing = True
            try:
                self._free()
            finally:
                self._freeing = False

    def _free(self) -> None:
        hosts: dict[bytes, list[tuple[int, Holder]]] = {}
        for link, size in self._held.items():
            hosts.setdefault(counted_host(link.peer_host), []).append((size, link))
        totals = {host: sum(size for size, _ in links) for host, links in hosts.items()}
        for links in hosts.values():
            links.sort(key=lambda pair: pair[0])
        enough = self.limit_bytes - self.limit_bytes // _FREED_SHARE
        while self.held_bytes > enough and totals:
            host = max(totals, key=totals.__getitem__)
            if not hosts[host]:
                del totals[host]
                continue
            size, link = hosts[host].pop()
            totals[host] -= size
            self.closed += 1
            if due := self._repeats.add(link.peer.rpartition(":")[0]):
                _log.warning(
                    "closing %d connections of %s: %s of all connections take more than %d bytes (%s)",
                    *due, self._what, self.limit_bytes, self._setting,
                )  # fmt: skip
            link.close()
            self.count(link, 0)
