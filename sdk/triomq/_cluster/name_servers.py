"""The name servers of a client, and the choice of one to query (docs/protocol/client.md §2).

A client keeps to one server while its link lives, since name servers are not synchronised with each other; after a dead
link or a timeout it uses the next one, round robin.  The source of the addresses is a plug point: a fixed list, a
function, an HTTP address server, or DNS.
Upstream: ``NettyRemotingClient``, ``TopAddressing``, ``NameServerAddressUtils``.
"""

from __future__ import annotations

import inspect
import logging
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import trio

from triomq._arguments.kinds import check_text
from triomq._arguments.numbers import check_seconds
from triomq._error_text import error_text
from triomq._tasks.exception_groups import open_plain_nursery
from triomq._transport.dialing import split_address
from triomq._transport.link import Link, tells_cause
from triomq._transport.links import Links
from triomq.errors import (
    ConnectFailed,
    InvalidCall,
    LinkLost,
    MQError,
    NoNameServer,
    NotANameServer,
    OtherProtocol,
    ProtocolViolation,
    RequestTimeout,
)
from triomq_protocol.codes import ResponseCode
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.name_servers")

API_TIMEOUT_S = 3.0
"""How long a name server or a broker may take to answer (``mqClientApiTimeout``)."""

POLL_EVERY_S = 120.0
"""How often a provider whose answer can change is asked again."""

PROVIDER_TIMEOUT_S: Final = 30.0
"""How long a provider may take: a client whose provider hangs would never open, or never refresh the list."""

SILENT_ENDS: Final = 2
"""After this many connections in a row that end after their first request unanswered, all are assumed to end so."""

NEXT_AFTER_S: Final = 0.5
"""A server whose connection is not open after this time, as of a machine that is off, is dialled along with the next
one: a dial takes up to 3 s, which is as long as a send takes by default."""

SILENT_S: Final = 1.0
"""A server is left if it has sent nothing for this long since a request, and the caller's own time limit has ended:
otherwise each caller with less time than :data:`API_TIMEOUT_S` would ask it again."""

CLOSES_SILENTLY: Final = (
    "it takes each connection and closes it after the first request without an answer: it may expect TLS (give "
    "open_client(tls=True), or --tls), or is not a name server"
)
NEVER_ANSWERS: Final = "it takes the connection and never answers: it may be no name server, or its process hangs"

KNOWS_NO_BROKERS: Final = (
    "it does not know a name server's requests: this looks like a broker's port, or like that of a RocketMQ 5 proxy, which "
    "takes only requests of producers and consumers"
)


class NameServerProvider(Protocol):
    """Provides the name servers' addresses; called at the start and then every ``poll_every_s`` seconds."""

    @property
    def poll_every_s(self) -> float:
        """Seconds between two look-ups; ``math.inf`` if the answer never changes."""

    async def addresses(self) -> Sequence[str]:
        """The addresses as ``host:port``; an empty list keeps the known ones.

        Raises:
            OSError: they are not available now; the client keeps the known ones, as after any other error.
        """


NameServers = str | Sequence[str] | NameServerProvider | Callable[[], Sequence[str] | Awaitable[Sequence[str]]]
"""The argument of ``open_client``: ``"a:9876;b:9876"``, a list, a provider, or a function that returns a list."""


class StaticNameServers:
    """A list of name servers that never changes."""

    poll_every_s: float = float("inf")

    def __init__(self, addresses: str | Sequence[str]) -> None:
        self._addresses = parse_addresses(addresses)

    async def addresses(self) -> Sequence[str]:
        """The list."""
        await trio.lowlevel.checkpoint()
        return self._addresses


class CallableNameServers:
    """The list that a function returns, plain or async; it is called again every ``poll_every_s`` seconds."""

    def __init__(
        self, call: Callable[[], Sequence[str] | Awaitable[Sequence[str]]], *, poll_every_s: float = POLL_EVERY_S
    ) -> None:
        self._call = call
        self.poll_every_s: float = poll_every_s

    async def addresses(self) -> Sequence[str]:
        """Call the function."""
        await trio.lowlevel.checkpoint()
        found = self._call()
        return parse_addresses(await found if inspect.isawaitable(found) else found)


class DnsNameServers:
    """All addresses that a DNS name resolves to."""

    def __init__(self, host: str, port: int = 9876, *, poll_every_s: float = POLL_EVERY_S) -> None:
        self._host = host
        self._port = port
        self.poll_every_s: float = poll_every_s

    async def addresses(self) -> Sequence[str]:
        """Resolve the name."""
        infos = await trio.socket.getaddrinfo(self._host, self._port, type=trio.socket.SOCK_STREAM)
        hosts = [str(info[4][0]) for info in infos]
        return parse_addresses([f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}" for host in hosts])


class HttpNameServers:
    """An address server: the first line of ``GET http://<domain>:8080/rocketmq/<subgroup>`` is the list.

    Args:
        domain: host, or ``host:port``; ``:8080`` is added if there is no port.
        subgroup: last part of the path.
        unit_name: adds ``-<unit_name>?nofix=1``.
        open_stream: from ``host:port`` to a stream; TCP by default.
        poll_every_s: seconds between two look-ups.

    Raises:
        InvalidCall: ``domain`` is neither, such as a URL, or the path would be invalid.
    """

    def __init__(
        self,
        domain: str = "jmenv.tbsite.net",
        *,
        subgroup: str = "nsaddr",
        unit_name: str = "",
        open_stream: Callable[[str], Awaitable[trio.abc.Stream]] | None = None,
        poll_every_s: float = POLL_EVERY_S,
    ) -> None:
        self._authority = domain if ":" in domain and not domain.endswith("]") else f"{domain}:8080"
        self._path = f"/rocketmq/{subgroup}" + (f"-{unit_name}?nofix=1" if unit_name else "")
        try:
            split_address(self._authority)
            good = all(33 <= ord(letter) < 127 for letter in self._authority + self._path) and "/" not in domain
        except ValueError:
            good = False
        if not good:
            raise InvalidCall(
                f"there is no address server {domain!r} with {self._path!r}: domain is a host or host:port, and subgroup and "
                "unit_name are a part of the path; for another URL give a function that asks it, see CallableNameServers"
            )
        self._open_stream = open_stream if open_stream is not None else _open_tcp
        self.poll_every_s: float = poll_every_s

    async def addresses(self) -> Sequence[str]:
        """Ask the address server; an answer may take up to 3 s and have up to 64 KiB.

        Raises:
            OSError: it cannot be reached, does not answer, or its answer is not a list.
            InvalidCall: its answer's first line is not a list of addresses.
        """
        with trio.move_on_after(API_TIMEOUT_S):
            stream = await self._open_stream(self._authority)
            try:
                answer = await self._ask(stream)
            except trio.BrokenResourceError as error:  # not an OSError, unlike a failed connection attempt
                raise OSError(f"the address server {self._authority} ended the connection: {error}") from error
            head, _, body = answer.partition(b"\r\n\r\n")
            status = head.split(b"\r\n", 1)[0].split()
            if len(status) < 2 or status[1] != b"200":
                raise OSError(f"the address server {self._authority} answered {status!r}")
            lines = body.decode("ascii", "replace").strip().splitlines()
            return parse_addresses(lines[0] if lines else "")
        raise OSError(f"the address server {self._authority} did not answer within {API_TIMEOUT_S:g} s")

    async def _ask(self, stream: trio.abc.Stream) -> bytes:
        async with stream:
            request = f"GET {self._path} HTTP/1.0\r\nHost: {self._authority}\r\nConnection: close\r\n\r\n"
            await stream.send_all(request.encode("ascii"))
            answer = b""
            while len(answer) < 65536 and (more := await stream.receive_some(65536)):
                answer += more
            return answer


async def _open_tcp(address: str) -> trio.abc.Stream:
    host, port = split_address(address)
    return await trio.open_tcp_stream(host, port)


def parse_addresses(addresses: str | Sequence[str]) -> list[str]:
    """Split ``"a:9876;b:9876"`` (or take a list), drop blanks, and keep the order.

    A text that starts with ``http://`` is reduced to the part after its last ``/``, as upstream does.

    Raises:
        InvalidCall: an item is not ``host:port``, or the argument is neither text nor a list of texts.
    """
    given: object = addresses
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InvalidCall(f"the name servers' addresses are a list of texts or one text, not {type(given).__name__}")
    if isinstance(addresses, str):
        addresses = addresses.rsplit("/", 1)[-1] if addresses.startswith("http://") else addresses
        addresses = addresses.split(";")
    addresses = list(addresses)
    for address in addresses:
        check_text("a name server's address", address)
    found = [address.strip() for address in addresses if address.strip()]
    for address in found:
        try:
            split_address(address)
        except ValueError as error:
            raise InvalidCall(f"name server address {error}") from None
    return list(dict.fromkeys(found))


def provider_for(name_servers: NameServers | None) -> NameServerProvider:
    """The provider for the caller's argument; None means the environment's ``NAMESRV_ADDR``.

    Raises:
        InvalidCall: there is no address at all, or the argument is not a provider.
    """
    if name_servers is None:
        name_servers = os.environ.get("NAMESRV_ADDR", "")
    if isinstance(name_servers, (str, Sequence)):
        provider = StaticNameServers(name_servers)
        if not parse_addresses(name_servers):
            raise InvalidCall("no name server is given, neither as an argument nor in NAMESRV_ADDR")
        return provider
    if callable(name_servers):
        return CallableNameServers(name_servers)
    if not hasattr(name_servers, "addresses"):
        raise InvalidCall(f"name servers cannot be taken from {type(name_servers).__name__}")
    # Otherwise the task that asks again would end the client with it, after the first look-up.
    check_seconds(
        f"poll_every_s of the name server provider {type(name_servers).__name__}",
        getattr(name_servers, "poll_every_s", None),
    )
    return name_servers


class NameServerChoice:
    """The list of name servers and the chosen one; pure, the caller dials.

    Args:
        chance: shuffles a changed list and gives the first index.
    """

    def __init__(self, chance: random.Random) -> None:
        self.addresses: list[str] = []
        self.chosen: str | None = None
        self._chance = chance
        self._index = chance.randrange(999)

    def update(self, addresses: Sequence[str]) -> bool:
        """Take a new list; returns whether it counts as changed: a different size, or a new member."""
        if not addresses or (len(addresses) == len(self.addresses) and set(addresses) <= set(self.addresses)):
            return False
        self.addresses = list(addresses)
        self._chance.shuffle(self.addresses)
        if self.chosen not in self.addresses:
            self.chosen = None
        return True

    def candidates(self) -> list[str]:
        """Every server once, in the order in which to try them now."""
        count = len(self.addresses)
        return [self.addresses[(self._index + step) % count] for step in range(1, count + 1)]

    def dialled(self, address: str) -> None:
        """Start the next rotation after this server, whatever comes of it: the caller may not wait for that."""
        if address in self.addresses:
            self._index = self.addresses.index(address)

    def choose(self, address: str) -> None:
        """Stay with this server; the next rotation starts after it."""
        self.chosen = address
        self.dialled(address)

    def leave(self, address: str) -> None:
        """Leave this server: it did not answer."""
        if self.chosen == address:
            self.chosen = None


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{address}: {why}" for address, why in reasons.items())


class NameServerGroup:
    """Asks the chosen name server, and moves to the next one if it is down.

    Args:
        provider: provides the addresses.
        links: the client's links.
        chance: see :class:`NameServerChoice`.
    """

    def __init__(self, provider: NameServerProvider, links: Links, chance: random.Random) -> None:
        self._provider = provider
        self._links = links
        self._choice = NameServerChoice(chance)
        self._lock = trio.Lock()
        self._silent_ends: dict[str, int] = {}
        self._last_link: Link | None = None
        self._asked_link: Link | None = None
        self._asked_s = 0.0
        """When the oldest request was sent on that link after which nothing has arrived, on trio's clock."""
        self._unavailable = ""
        self._unreached = ""
        """Why no name server could be reached, if the last attempt to reach one failed."""

    @property
    def addresses(self) -> list[str]:
        """All known name servers."""
        return list(self._choice.addresses)

    @property
    def chosen(self) -> str | None:
        """The name server that is currently asked."""
        return self._choice.chosen

    async def ask(self, command: Command, *, timeout_s: float = API_TIMEOUT_S) -> Command:
        """Ask the chosen server; a request that it may have carried out is not repeated at another one.

        Raises:
            NoNameServer: none can be reached, or the chosen one did not answer; the next request goes to another one.
            NotANameServer: none of the addresses answers as a name server.
        """
        others: dict[str, str] = {}
        while True:
            link = await self._link(others)
            try:
                answer = await self._request(link, command, timeout_s)
            except OtherProtocol as error:
                others[link.address] = error.remark or error.what
            except (RequestTimeout, LinkLost, ProtocolViolation) as error:
                self._choice.leave(link.address)
                silent = isinstance(error, LinkLost) and not link.has_received and not tells_cause(error.remark)
                if silent and self._note_silent_end(link.address) == 1:
                    continue  # only a second connection shows whether this is the rule
                what = f"the name server did not answer: {error.what}"
                raise NoNameServer(what, address=link.address, remark=self._remark(link, error)) from error
            else:
                self._silent_ends.pop(link.address, None)
                if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    return answer
                # Every name server knows the requests that are sent here.
                others[link.address] = KNOWS_NO_BROKERS
            self._choice.leave(link.address)
            if others.keys() >= set(self._choice.addresses):
                if len(others) == 1:
                    what = "the address does not answer as a name server"
                    raise NotANameServer(what, address=link.address, remark=others[link.address])
                raise NotANameServer("none of the addresses is a name server's", remark=_listed(others))

    async def _request(self, link: Link, command: Command, timeout_s: float) -> Command:
        """Ask over a link; leave a silent server also if the caller gives up earlier."""
        if self._asked_link is not link or self._has_sent(link):
            self._asked_link, self._asked_s = link, trio.current_time()
        try:
            return await link.request(command, timeout_s)
        except trio.Cancelled:
            if trio.current_time() - self._asked_s >= SILENT_S and not self._has_sent(link):
                self._choice.leave(link.address)
            raise

    def _has_sent(self, link: Link) -> bool:
        """Whether anything has arrived on a link since it was asked, or since another one was asked after it."""
        return self._asked_link is not link or (link.has_received and link.received_s >= self._asked_s)

    def _note_silent_end(self, address: str) -> int:
        """Count a connection that ended after a request without a single byte; returns how many did so in a row."""
        count = self._silent_ends[address] = self._silent_ends.get(address, 0) + 1
        if count == SILENT_ENDS:
            log.warning("name server %s: %s", address, CLOSES_SILENTLY)
        return count

    def _remark(self, link: Link, error: MQError) -> str | None:
        if tells_cause(error.remark):
            return error.remark
        if isinstance(error, LinkLost) and not link.has_received and self._silent_ends[link.address] >= SILENT_ENDS:
            return CLOSES_SILENTLY
        return self.silence or error.remark

    @property
    def trouble(self) -> str | None:
        """A note about name servers that cannot be reached, or about a chosen one that has never answered."""
        return self._unreached or self.silence

    @property
    def silence(self) -> str | None:
        """A note about a chosen server that has never answered; None if it has, or none is chosen."""
        link = self._last_link
        return None if link is None or link.has_received or not link.is_open else NEVER_ANSWERS

    async def ask_at(self, address: str, command: Command) -> Command:
        """Ask one particular server."""
        link = await self._links.get(address, patient=False)
        return await link.request(command, API_TIMEOUT_S)

    async def load(self, *, again: bool = False) -> None:
        """Ask the provider once; if it fails, the list stays as it is.

        Args:
            again: whether it is asked out of turn, as no address is known: then the same failure is not logged again.
        """
        known, self._unavailable = self._unavailable, ""
        try:
            # A user's provider's addresses are checked too, before they are used.
            changed = self._choice.update(parse_addresses(await self._provided()))
        except Exception as error:
            # The user's code must not end the client, which continues with the known addresses.
            self._unavailable = error_text(error)
            expected = isinstance(error, OSError | MQError)
            level = logging.WARNING if expected else logging.ERROR
            if again and self._unavailable == known:
                level = logging.DEBUG
            what = error if expected else f"{self._provider!r} failed"
            log.log(level, "the addresses of the name servers are not available: %s", what, exc_info=not expected)
            return
        if changed:
            log.info("name servers: %s", ";".join(self._choice.addresses))

    async def _provided(self) -> Sequence[str]:
        with trio.move_on_after(PROVIDER_TIMEOUT_S):
            return await self._provider.addresses()
        raise OSError(f"{type(self._provider).__name__} did not answer within {PROVIDER_TIMEOUT_S:g} s")

    @trio.lowlevel.enable_ki_protection
    async def poll(self) -> None:
        """Ask the provider again every ``poll_every_s``, until cancelled."""
        while True:
            await trio.sleep(self._provider.poll_every_s)
            await self.load()

    async def _link(self, others: Mapping[str, str]) -> Link:
        """The link to the chosen server, but to none of `others`, which are not name servers."""
        self._last_link = link = self._chosen_link(others) or await self._choose_next(others)
        return link

    async def _choose_next(self, others: Mapping[str, str]) -> Link:
        async with self._lock:
            link = self._chosen_link(others)
            if link is not None:
                return link
            if not self._choice.addresses:
                await self.load(again=True)
            return await self._open_next(others)

    def _chosen_link(self, others: Mapping[str, str]) -> Link | None:
        chosen = self._choice.chosen
        return self._links.ready(chosen) if chosen is not None and chosen not in others else None

    async def _open_next(self, others: Mapping[str, str]) -> Link:
        reasons = dict(others)
        opened: list[Link] = []
        refused: list[MQError] = []

        @trio.lowlevel.enable_ki_protection
        async def dial(address: str, failed: trio.Event) -> None:
            try:
                opened.append(await self._links.get(address, patient=False))
            except ConnectFailed as error:
                reasons[address] = error.remark or error.what
                failed.set()
                return
            except MQError as error:  # the client is closed
                refused.append(error)
            # The other dials continue in the client's tasks.
            nursery.cancel_scope.cancel()

        async with open_plain_nursery() as nursery:
            for address in self._choice.candidates():
                if address in others:
                    continue
                self._choice.dialled(address)
                failed = trio.Event()
                nursery.start_soon(dial, address, failed)
                with trio.move_on_after(NEXT_AFTER_S):
                    await failed.wait()
        if opened:
            self._unreached = ""
            self._choice.choose(opened[0].address)
            return opened[0]
        if refused:
            raise refused[0]
        unknown = f"no address is known: {self._unavailable}" if self._unavailable else "no address is known"
        self._unreached = _listed(reasons) or unknown
        raise NoNameServer("no name server can be reached", remark=self._unreached)
