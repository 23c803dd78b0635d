"""Poller: one task that reads the sockets of many links, on systems with epoll.

A turn of the loop, a wait and a task switch for each small request would cost more than the request. So the sockets are
registered once with a separate epoll object, the loop waits for that, and all readable links are served in one batch:
read, handle, write, and then the work at the end of the batch. The task of a link sleeps during this; it is woken only
for rare events: the link's end, a fault, answers that the peer does not take.
"""

from __future__ import annotations

import logging
import select
from collections import Counter
from collections.abc import Callable

import trio

from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.wire.hub import Hub
from triomq_server.wire.limits.budget import counted_host
from triomq_server.wire.link import Link
from triomq_server.wire.sockets import BULK_BYTES
from triomq_server.wire.transport import SocketTransport

_log = logging.getLogger(__name__)

LINKS_PER_BATCH = 64
"""How many links are served before their answers are written."""
_LINKS_IN_TURNS = 512
"""How many are looked at where a turn was too short for all, so that their hosts can take turns; that takes half a
millisecond."""
_TURN_S = 0.001
"""How long batches may follow each other before other tasks run; a turn of the loop costs as much as a few small
requests."""

HAS_EPOLL = hasattr(select, "epoll")


class PolledLink:
    """A link whose socket the poller reads.

    Attributes:
        link, decoder: the link, and its incomplete frame.
        host: the host of its peer.
        early: bytes received before the poller reads.
        commands, taken: the decoded commands, and how many of them have been handled; the rest waits for the peer to
            take its answers.
        ended: the peer sends nothing any more.
        error: the reason for which the link must end.
        needs_task: set when the link's own task must continue: the link ends, or its peer does not take its answers.
    """

    __slots__ = (
        "commands",
        "decoder",
        "early",
        "ended",
        "error",
        "fileno",
        "host",
        "link",
        "needs_task",
        "receive_now",
        "taken",
    )

    def __init__(self, link: Link, transport: SocketTransport, decoder: FrameDecoder) -> None:
        self.link = link
        self.host = counted_host(link.peer_host)
        self.decoder = decoder
        self.receive_now = transport.receive_now
        self.early = transport.early
        self.fileno = transport.fileno()
        self.commands: list[Command] = []
        self.taken = 0
        self.ended = False
        self.error: Exception | None = None
        self.needs_task = trio.Event()


def in_turn(ready: list[int], first: list[int]) -> list[int]:
    """Ready sockets, those first that the turn before has not come to: epoll names all of them in the same order again.

    Args:
        ready: the sockets that have something to read.
        first: the sockets that come first, in their order; they need not be ready any more.
    """
    among = set(ready)
    front = [fileno for fileno in first if fileno in among]
    among.difference_update(front)
    return front + [fileno for fileno in ready if fileno in among]


def by_hosts_in_turn(ready: list[int], host_of: Callable[[int], bytes]) -> list[int]:
    """Ready sockets, those of different hosts in turns: hundreds of links of one host must not keep another host's only
    one waiting for all of them.

    Args:
        ready: the sockets; those of one host keep their order.
        host_of: the host of a socket.
    """
    counts: Counter[bytes] = Counter()
    rounds = {}
    for fileno in ready:
        host = host_of(fileno)
        rounds[fileno] = counts[host]
        counts[host] += 1
    return sorted(ready, key=rounds.__getitem__)


class Poller:
    """The sockets of one hub.

    Args:
        hub: calls the handlers, and writes their answers.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._output_bytes = hub.limits.output_bytes  # a link with more unsent bytes is not read from
        self._epoll = select.epoll()
        self._links: dict[int, PolledLink] = {}
        self._bulk = False
        self._next: list[int] = []

    def resume(self, polled: PolledLink) -> None:
        """Read this link from now on."""
        if self._epoll.closed:
            return  # the hub is being taken down
        self._links[polled.fileno] = polled
        self._epoll.register(polled.fileno, select.EPOLLIN)

    def pause(self, polled: PolledLink) -> None:
        """Read this link no more; fine if it was not."""
        if self._links.get(polled.fileno) is polled:
            del self._links[polled.fileno]
            if not self._epoll.closed:
                self._epoll.unregister(polled.fileno)

    async def run(self) -> None:
        """Task: serve all links that have something to read, until cancelled."""
        poll, writer = self._epoll.poll, self._hub.writer
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                until = trio.current_time() + _TURN_S
                while True:
                    if self._hub.stopping:
                        await trio.sleep_forever()
                    ready = poll(0, _LINKS_IN_TURNS if self._next else LINKS_PER_BATCH)
                    if not ready:
                        break
                    self._bulk = writer.wrote_bulk = False
                    self._serve(ready)
                    if len(ready) == 1 and not (self._bulk or writer.wrote_bulk):
                        break  # a small request and answer took so little time that a second look mostly finds nothing
                    if trio.current_time() >= until:
                        break
        finally:
            self._epoll.close()

    def _serve(self, ready: list[tuple[int, int]]) -> None:
        """One batch."""
        hub, links = self._hub, self._links
        now = trio.current_time()
        served: list[Link] = []
        hub.begin_batch()
        try:
            filenos = [fileno for fileno, _ in ready]
            if self._next:
                filenos = by_hosts_in_turn(in_turn(filenos, self._next), self._host_of)
            for number, fileno in enumerate(filenos, 1):
                polled = links.get(fileno)
                if polled is None:
                    continue
                link = polled.link
                if link.closed:
                    self.pause(polled)
                    continue
                link.active_at = now
                served.append(link)
                try:
                    goes_on = self._receive(polled)
                except Exception as error:  # noqa: BLE001 (ends this link, and is logged by its task)
                    polled.error = error
                    goes_on = False
                if not goes_on:
                    self.pause(polled)
                    polled.needs_task.set()
                if number < len(filenos) and (number >= LINKS_PER_BATCH or hub.turn_is_over()):
                    self._next = filenos[number:]
                    break  # the others are still ready when the poller has its next turn
            else:
                self._next = []
        finally:
            try:
                hub.end_batch(served)
            except Exception as error:  # noqa: BLE001 (the fault of one batch must not end the reading of all links)
                peer = served[0].peer if served else ""
                message = "closing %d links after a fault of our own"
                hub.peer_log.write(logging.ERROR, peer, message, len(served), kind=type(error), exc_info=error)
                for link in served:
                    link.close()

    def _host_of(self, fileno: int) -> bytes:
        polled = self._links.get(fileno)
        return b"" if polled is None else polled.host

    def _receive(self, polled: PolledLink) -> bool:
        """Read and handle received bytes; false when the link's task has to continue."""
        data = polled.receive_now()
        if data is None:
            return True
        if not data:
            polled.ended = True
            return False
        if len(data) >= BULK_BYTES:
            self._bulk = True
        decoder, link = polled.decoder, polled.link
        commands = self._hub.receive(link, decoder, data)
        if commands or decoder.more:
            taken = self._hub.dispatch(link, commands, 0)
            if (
                taken < len(commands)
                or decoder.more
                or link.unsent_bytes > self._output_bytes
                or link.slices is not None
            ):
                polled.commands, polled.taken = commands, taken
                return False
        return decoder.fault is None
