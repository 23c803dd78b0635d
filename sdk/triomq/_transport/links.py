"""The links of one client: one per address, opened when needed, shared by all (docs/protocol/client.md §3.1).

After a failed dial an address is not dialled for a while, which grows with each failure and is jittered, so that a dead
broker costs each caller an error and not a connect timeout.
"""

from __future__ import annotations

import logging
import random
import ssl
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Final

import attrs
import trio
from cachetools import LRUCache

from triomq._arguments.kinds import check_text
from triomq._arguments.numbers import seconds, share
from triomq._error_text import error_text, named_error, shown
from triomq._transport.credentials import Credentials
from triomq._transport.dialing import Dialer
from triomq._transport.link import HEADER_BYTES_MAX, Handler, Link, connect_failed
from triomq._transport.own_loop import OwnLoop
from triomq._transport.peer_log import PeerLog
from triomq._transport.signing import SignedLink
from triomq.errors import ClientClosed, ConnectFailed, InvalidCall, LinkLost, MQError, RequestTimeout

log = logging.getLogger("triomq.links")

_STREAM: Final = ("send_all", "receive_some", "aclose")
"""The methods of a stream that links call."""

CONNECT_TIMEOUT_S = 3.0
"""How long one dial may take (docs/protocol/client.md §3.1)."""

_GROWTHS_MAX: Final = 30

NO_ANSWER: Final = (ConnectFailed, LinkLost, RequestTimeout)
"""Errors of a server that does not answer."""

DEAD_MAX: Final = 1_000
"""The most unreachable addresses that are remembered; beyond that, the least recently used one may be dialled again."""


def _at_least_one(_options: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int | float) or not value >= 1:
        raise InvalidCall(f"{attribute.name} is {shown(value)}, not a number of at least 1")


@attrs.frozen
class Backoff:
    """The pauses between dials of an unreachable address.

    Args:
        first_s: the pause after the first failure.
        factor: its growth per further failure.
        max_s: the longest pause.
        jitter: share of the pause that chance may remove, 0-1.

    Raises:
        InvalidCall: an argument is out of its range.
    """

    first_s: float = attrs.field(default=0.1, validator=seconds())
    factor: float = attrs.field(default=2.0, validator=_at_least_one)
    max_s: float = attrs.field(default=5.0, validator=seconds())
    jitter: float = attrs.field(default=0.5, validator=share)

    def pause_s(self, failures: int, chance: float) -> float:
        """The pause after a number of failures in a row; ``chance`` is a number in [0, 1)."""
        return growing_pause_s(failures, self.first_s, self.factor, self.max_s) * (1 - self.jitter * chance)


def growing_pause_s(failures: int, first_s: float, factor: float, max_s: float) -> float:
    """The pause after a number of failures in a row; the first one, and the longest, may be 0."""
    try:
        return min(first_s * factor ** min(failures - 1, _GROWTHS_MAX), max_s)
    except OverflowError:  # of a large factor; raised in the task that dials, it would end the client
        return max_s


class _Opening:
    """A dial that several callers wait for."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.link: Link | None = None
        self.why = ""


class _Dead:
    """An address whose last dial failed."""

    __slots__ = ("failures", "retry_at", "why")

    def __init__(self) -> None:
        self.failures = 0
        self.retry_at = 0.0
        self.why = ""


class Links:
    """The links of one client, by address.

    Args:
        nursery: runs the links' tasks.
        dial: opens streams.
        handlers: answer requests of the peers; shared by all links, so later entries count too.
        chance: source of jitter.
        backoff: pauses between dials of an unreachable address.
        max_pending: see :class:`Link`.
        max_unsent_bytes: see :class:`Link`.
        max_header_bytes: see :class:`Link`.
        credentials: the account that signs all requests; None: they are not signed.
        on_code: called with the code of every answer other than success.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        dial: Dialer,
        *,
        handlers: Mapping[int, Handler] | None = None,
        chance: random.Random | None = None,
        backoff: Backoff | None = None,
        max_pending: int = 65535,
        max_unsent_bytes: int = 64 * 1024 * 1024,
        max_header_bytes: int = HEADER_BYTES_MAX,
        credentials: Credentials | None = None,
        on_code: Callable[[int], None] | None = None,
    ) -> None:
        self.opened: list[Callable[[Link], None]] = []
        """Called with every link that has just been opened."""
        self.lost: list[Callable[[Link], None]] = []
        """Called with every link that can no longer be used, before the waiters of its requests."""
        self.closes_soon = False
        """Whether the client is closing its members, and the links after them: errors name it as the cause."""
        self.is_shared: Callable[[str], bool] = lambda _address: False
        """Whether the brokers of several sets are behind an address, as far as the client knows."""
        self._nursery = nursery
        self._own_loop = OwnLoop()
        self._dial = dial
        self._handlers = handlers if handlers is not None else {}
        self._chance = chance if chance is not None else random.Random()
        self._backoff = backoff if backoff is not None else Backoff()
        self._limits = {
            "max_pending": max_pending,
            "max_unsent_bytes": max_unsent_bytes,
            "max_header_bytes": max_header_bytes,
        }
        self._peer_log = PeerLog(log)
        self._credentials = credentials
        self._on_code = on_code
        self._links: dict[str, Link] = {}
        self._openings: dict[str, _Opening] = {}
        self._dead: LRUCache[str, _Dead] = LRUCache(DEAD_MAX)
        self._closed = False

    def ready(self, address: str) -> Link | None:
        """The open link to an address, if there is one."""
        return self._links.get(address)

    def open_links(self) -> list[Link]:
        """All links that are open now."""
        return list(self._links.values())

    def is_down(self, address: str) -> bool:
        """Whether the last dial failed and the pause after it still lasts."""
        return self.retry_in_s(address) > 0

    def retry_in_s(self, address: str) -> float:
        """Seconds until an address may be dialled again; 0 if it may be now."""
        dead = self._dead.get(address)
        return max(0.0, dead.retry_at - trio.current_time()) if dead is not None else 0.0

    async def get(self, address: str, *, patient: bool = True) -> Link:
        """The link to an address, opened if needed; callers share one dial.

        Args:
            address: ``host:port``.
            patient: whether to respect the pause of an unreachable address; False dials in any case.

        Raises:
            ConnectFailed: the address cannot be dialled, or could not a moment ago.
            ClientClosed: the client is closing.
            InvalidCall: called from another event loop than the client's own.
        """
        if get_ident() != self._own_loop.thread:
            self._own_loop.refuse()
        link = self._links.get(address)
        if link is not None:
            await trio.lowlevel.checkpoint_if_cancelled()
            return link
        opening = self._openings.get(address)
        if opening is None:
            if self._closed:
                raise ClientClosed("the client is closed", address=address)
            # Any other error would end the task that dials, and the client with it.
            check_text("the address", address)
            if patient and self.is_down(address):
                dead = self._dead[address]
                raise connect_failed(address, f"{dead.why}; next try in {self.retry_in_s(address):.2f} s")
            opening = self._openings[address] = _Opening()
            self._nursery.start_soon(self._serve, address, opening)
        await opening.done.wait()
        if opening.link is None:
            if self._closed:
                raise ClientClosed("the client was closed", address=address)
            raise connect_failed(address, opening.why)
        return opening.link

    def close(self, error: MQError | None = None) -> None:
        """Close every link and open no more; waiters fail with ``error``."""
        self._closed = True
        for link in self.open_links():
            link.close(error)

    @trio.lowlevel.enable_ki_protection
    async def _serve(self, address: str, opening: _Opening) -> None:
        try:
            stream = await self._open_stream(address, opening)
            if stream is not None and self._closed:
                await trio.aclose_forcefully(stream)
            elif stream is not None:
                opening.link = self._link(address, stream)
                self._links[address] = opening.link
        finally:
            del self._openings[address]
            opening.done.set()
        if opening.link is not None:
            await self._keep(opening.link)

    async def _keep(self, link: Link) -> None:
        for opened in self.opened:
            opened(link)
        await link.run()

    def _link(self, address: str, stream: trio.abc.Stream) -> Link:
        shared: dict[str, Any] = {
            "handlers": self._handlers,
            "on_lost": self._drop,
            "peer_log": self._peer_log,
            "on_code": self._on_code,
            "is_shared": self._shares,
            **self._limits,
        }
        if self._credentials is None:
            return Link(address, stream, **shared)
        return SignedLink(address, stream, credentials=self._credentials, **shared)

    def _shares(self, address: str) -> bool:
        return self.is_shared(address)

    def _drop(self, link: Link) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]
            for lost in self.lost:
                lost(link)

    @property
    def _dialer_name(self) -> str:
        return getattr(self._dial, "__qualname__", type(self._dial).__name__)

    async def _open_stream(self, address: str, opening: _Opening) -> trio.abc.Stream | None:
        why = f"no connection within {CONNECT_TIMEOUT_S:g} s"
        mistake: Exception | None = None
        try:
            with trio.move_on_after(CONNECT_TIMEOUT_S):
                stream = await self._dial(address)
                if all(callable(getattr(stream, name, None)) for name in _STREAM):
                    self._dead.pop(address, None)
                    return stream
                mistake = TypeError(f"it returned {type(stream).__name__}, not a trio.abc.Stream")
        except (OSError, ValueError, ssl.SSLError, trio.BrokenResourceError) as error:
            why = error_text(error)
        except Exception as error:  # noqa: BLE001 - written below
            # The user's code must not end the client; errors of libraries for proxies are often no OSError. Around the
            # deadline: what a nursery raises at it is an Exception only without the Cancelled.
            mistake = error
        dead = self._dead.get(address)
        if dead is None:
            dead = self._dead[address] = _Dead()
        if mistake is not None:
            why = f"the dialer {self._dialer_name} failed: {named_error(mistake)}"
            if why != dead.why:
                log.error("no connection to %s: %s", address, why, exc_info=mistake, extra={"address": address})
        dead.failures += 1
        dead.retry_at = trio.current_time() + self._backoff.pause_s(dead.failures, self._chance.random())
        opening.why = dead.why = why
        log.info("no connection to %s: %s", address, why, extra={"address": address})
        return None
