"""The master's end of replication: accepts slaves, streams the log to each, and tracks their progress.

Every slave has a task that reads its reports and one that writes frames; no slave waits for another. A log that grows
wakes the writing tasks at once. `rules` decides where a stream starts and which reports count. Answers to
`HAService`, `HAConnection` and `GroupTransferService`; the bytes are described in docs/protocol/ha.md §2.
"""

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import msgspec
import trio

from triomq_protocol.errors import RemoteProtocolError
from triomq_protocol.replication import ReportDecoder, encode_transfer_head
from triomq_server.repeats import PeerLog
from triomq_server.replication import rules
from triomq_server.replication.receivers import Receiver, open_receiver
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.transfer_writer import LogFiles, TransferWriter, Views, open_transfer_writer
from triomq_server.restarting import restarted
from triomq_server.store.flush.offset_waiters import OffsetWaiters
from triomq_server.wire.transport import Listen, accept_some, failure_reason, listen_tcp, peer_name

_log = logging.getLogger(__name__)

MOST_SLAVES = 64
MOST_OF_HOST = 16
"""Connections to the HA port at one time, and those from one host: each costs a descriptor and two tasks. When all are
in use, one goes for another host, see `rules.slave_to_close`: some hosts do not lock slaves out."""

_REPORTS_BYTES = 4096
"""How much is read of a slave's reports at once; only the last one of a read counts."""
_PUSH_BYTES = 65536
"""So much is sent to a slave from the very append that made it; more is the business of the slave's own task."""

_TLS_HANDSHAKE = 0x1603
"""With these two bytes TLS begins; as an offset they would be more than an exabyte."""

_ACCEPT_PAUSE_S = 0.1
"""After a failed accept."""

Secure = Callable[[trio.abc.Stream], Awaitable[trio.abc.Stream]]
"""Wraps a connection in TLS; raises OSError with the reason if that fails."""

REFUSED_REMEMBERED = 20
_STRANGERS_LINE_S = 60.0


class SourceLog(LogFiles, Protocol):
    """The part of a message store that a master reads."""

    @property
    def log_min_offset(self) -> int:
        """First byte there is."""

    @property
    def log_max_offset(self) -> int:
        """First byte not there yet."""

    append_listeners: list[Callable[[int], None]]

    def log_slice(self, offset: int, max_bytes: int) -> memoryview | None:
        """Log bytes from `offset` on, never across a file's end; None if there are none."""


class SlaveLink(msgspec.Struct, eq=False):
    """One connected slave, as the master sees it; for monitoring, not to be changed from outside.

    Attributes:
        peer: ``ip:port`` of the slave's socket.
        next_offset: the byte that is sent next; None before the first report.
        acknowledged_offset: the slave's last accepted report; None before the first.
        last_report: trio's time of the last report, or of the connect.
        last_write: trio's time of the last frame.
        sent_bytes: log bytes sent.
        lost_position: it waits for bytes that have expired here.
        scope: ends the link.
        idle: its writer has nothing to send, and waits for `wake`.
        writer: where its frames go.
    """

    peer: str
    last_report: float
    last_write: float
    next_offset: int | None = None
    acknowledged_offset: int | None = None
    sent_bytes: int = 0
    lost_position: bool = False
    scope: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)
    wake: trio.Event = msgspec.field(default_factory=trio.Event)
    reports: ReportDecoder = msgspec.field(default_factory=ReportDecoder)
    idle: bool = False
    writer: TransferWriter | None = None


class RefusedSlave(msgspec.Struct, frozen=True):
    """A slave that reported an offset beyond the log's end.

    Attributes:
        peer: ``ip:port`` of its socket.
        offset: the reported offset.
        log_end: the end of this log at that time.
        at: trio's time of the report.
    """

    peer: str
    offset: int
    log_end: int
    at: float


class HaMaster:
    """Serves the log of one store to any number of slaves, and answers waiting sends once a slave holds them.

    Every broker runs one, a slave too: a further slave may follow it.

    Args:
        log: the store.
        settings: the HA keys.
    """

    def __init__(self, log: SourceLog, settings: HaSettings) -> None:
        self._log = log
        self._settings = settings
        self._links: list[SlaveLink] = []
        self._waiters = OffsetWaiters()
        self.releasing: Callable[[], AbstractContextManager[object]] = nullcontext
        """Opened around the release of waiting sends, so that their answers can leave together."""
        self.members: Callable[[], Container[str]] = tuple
        """The hosts of the brokers of the set: when all places are taken, they keep theirs."""
        self.refused: deque[RefusedSlave] = deque(maxlen=REFUSED_REMEMBERED)
        """The last slaves that were refused, for operators."""
        self._peer_log = PeerLog(_log)
        self._strangers = 0
        self._next_stranger_line = -math.inf
        self.acknowledged_offset = 0
        """The highest offset that some slave holds (`push2SlaveMaxOffset`)."""

    @property
    def links(self) -> tuple[SlaveLink, ...]:
        """The slaves connected now."""
        return tuple(self._links)

    def slave_ok(self, end_offset: int) -> bool:
        """Whether a send that ends at `end_offset` may expect a slave's acknowledgement; if not, it is
        SLAVE_NOT_AVAILABLE."""
        links = self._links
        if not self._settings.compat_49:
            links = [link for link in links if link.acknowledged_offset is not None]
        return rules.slave_is_near(
            end_offset,
            acknowledged_offset=self.acknowledged_offset,
            links=len(links),
            fall_behind_max_bytes=self._settings.fall_behind_max_bytes,
        )

    def when_replicated(self, end_offset: int, deadline: float, done: Callable[[bool], None]) -> None:
        """Call ``done(True)`` as soon as a slave holds everything before `end_offset`, ``done(False)`` at `deadline`.

        Args:
            end_offset: first byte after the message.
            deadline: on trio's clock.
            done: called exactly once, perhaps before this returns; must not wait. Also called, with False, when the
                service ends.
        """
        if end_offset <= self.acknowledged_offset:
            done(True)
            return
        self._waiters.add(end_offset, deadline, done)

    def is_known(self, peer: str) -> bool:
        """Whether a peer, ``ip:port``, may have the log: haSlaveAddresses names it, or is empty."""
        return rules.is_known_slave(peer, self._settings.slave_networks)

    def close_links(self) -> None:
        """Make every slave reconnect: the log may have changed, and the slaves' copies may no longer match it."""
        for link in self._links:
            link.acknowledged_offset = None
            link.scope.cancel()
        self.acknowledged_offset = 0

    async def serve(
        self,
        host: str,
        port: int,
        *,
        listen: Listen = listen_tcp,
        secure: Secure | None = None,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept slaves until cancelled.

        Args:
            host: address to bind.
            port: port to bind; 0 takes a free one.
            listen: opens the listeners; tests hand in one of their own.
            secure: makes TLS of each connection, before anything else is read from it; None: plain TCP.
            task_status: receives the port that slaves find this master on (0 where listeners have no ports).

        Raises:
            OSError: the port cannot be bound.
        """
        listeners = await listen(host, port)
        self._log.append_listeners.append(self._on_append)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(restarted, self._waiters.expire_forever)
                for listener in listeners:
                    nursery.start_soon(self._accept, listener, secure, nursery)
                task_status.started(_port_of(listeners))
        finally:
            self._log.append_listeners.remove(self._on_append)
            self._waiters.fail_all()

    async def _accept(
        self, listener: trio.abc.Listener[trio.abc.Stream], secure: Secure | None, nursery: trio.Nursery
    ) -> None:
        """Task: accept all connections that wait, so that a slave does not wait a turn for each connection before it."""
        async with listener:
            while True:
                try:
                    streams = await accept_some(listener)
                except OSError as error:  # mostly no descriptor is left, and one of those in use will be closed
                    message = "cannot accept slaves for the time being: %s"
                    self._peer_log.write(logging.WARNING, "", message, error)
                    await trio.sleep(_ACCEPT_PAUSE_S)
                    continue
                for stream in streams:
                    nursery.start_soon(self._serve_accepted, stream, secure)

    async def _serve_accepted(self, stream: trio.abc.Stream, secure: Secure | None) -> None:
        peer = peer_name(stream)
        try:
            if secure is None or not self.is_known(peer):
                await self.serve_slave(stream)
            else:
                await self.serve_slave(await secure(stream))
        except OSError as error:
            message = "refusing slave %s: %s (haUseTLS)"
            self._peer_log.write(logging.WARNING, peer, message, peer, error)
        finally:
            await trio.aclose_forcefully(stream)

    async def serve_slave(self, stream: trio.abc.Stream) -> None:
        """Serve one slave until either end closes; a broken link is a log line, not an error."""
        peer = peer_name(stream)
        if not self.is_known(peer):
            self._refuse_stranger(peer)
            async with stream:
                return
        if not self._make_room(peer.rpartition(":")[0]):
            await trio.aclose_forcefully(stream)
            return
        now = trio.current_time()
        link = SlaveLink(peer, last_report=now, last_write=now)
        self._peer_log.write(logging.INFO, link.peer, "slave %s connected", link.peer)
        with self._connected(link), link.scope:
            async with stream:
                with (
                    open_receiver(stream) as receiver,
                    open_transfer_writer(stream, self._log, self._settings.file_bytes) as writer,
                ):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._read_reports, receiver, link)
                        nursery.start_soon(self._write_frames, writer, link)
        self._peer_log.write(
            logging.INFO, link.peer, "slave %s disconnected, it had %s", link.peer, link.acknowledged_offset
        )

    def _make_room(self, host: str) -> bool:
        """Whether a slave from this host may connect; may close another one for it."""
        links = [link for link in self._links if not link.scope.cancel_called]
        hosts = [link.peer.rpartition(":")[0] for link in links]
        of_host = hosts.count(host)
        leaving, members = None, self.members()
        if len(links) >= MOST_SLAVES:
            reported = [link.acknowledged_offset for link in links]
            leaving = rules.slave_to_close(host, hosts, reported, members)
        if of_host >= MOST_OF_HOST or (len(links) >= MOST_SLAVES and leaving is None):
            message = "refusing %s: %d slaves are connected, %d of them from there"
            self._peer_log.write(logging.WARNING, f"{host}:0", message, host, len(links), of_host)
            return False
        if leaving is not None:
            link = links[leaving]
            why = "one of most from its host"
            if link.acknowledged_offset is None:
                why = "which has reported nothing"
            elif host in members and hosts[leaving] not in members:
                why = "which is no broker of the set"
            message = "closing %s, %s, for %s: %d slaves are connected (see haSlaveAddresses)"
            self._peer_log.write(logging.WARNING, link.peer, message, link.peer, why, host, len(links))
            link.scope.cancel()
        return True

    def _refuse_stranger(self, peer: str) -> None:
        """Log it once a minute: unknown peers may connect often."""
        self._strangers += 1
        now = trio.current_time()
        if now >= self._next_stranger_line:
            self._next_stranger_line = now + _STRANGERS_LINE_S
            _log.warning(
                "%s is not among haSlaveAddresses and gets nothing; refused so far: %d",
                peer,
                self._strangers,
                extra={"address": peer},
            )

    @contextmanager
    def _connected(self, link: SlaveLink) -> Iterator[None]:
        self._links.append(link)
        try:
            yield
        finally:
            self._links.remove(link)
            self._update_acknowledged()

    def _on_append(self, end_offset: int) -> None:
        """The store has grown: send it to slaves that have everything else, and wake the writing tasks of the others.

        A sender may be waiting for a slave's report, and to wake a task first would cost a turn of the loop.
        """
        for link in self._links:
            if link.idle and not self._push(link, end_offset):
                link.wake.set()

    def _push(self, link: SlaveLink, end_offset: int) -> bool:
        """Send new bytes to a slave without waiting; false if its writer has to do something."""
        writer, offset = link.writer, link.next_offset
        if writer is None or offset is None or not writer.is_socket or writer.left:
            return False
        if end_offset - offset > _PUSH_BYTES:
            return False
        while (data := self._log.log_slice(offset, _PUSH_BYTES)) is not None:
            try:
                writer.send_now(self._frames(offset, data))
            except trio.BrokenResourceError:
                return False  # the writing task finds out, too
            offset = link.next_offset = offset + len(data)
            link.sent_bytes += len(data)
            if writer.left:
                return False
        link.last_write = trio.current_time()
        return True

    def _update_acknowledged(self) -> None:
        """Determine the acknowledged offset, and release the sends that waited for it."""
        self.acknowledged_offset = rules.acknowledged(
            (link.acknowledged_offset for link in self._links),
            self.acknowledged_offset,
            compat_49=self._settings.compat_49,
        )
        with self.releasing():
            self._waiters.release(self.acknowledged_offset)

    async def _read_reports(self, receiver: Receiver, link: SlaveLink) -> None:
        housekeeping_s = self._settings.housekeeping_s
        try:
            while True:
                # Reports do not move the scope's deadline, which would cost more than they do: when it is over, it is
                # checked again.
                with trio.CancelScope(deadline=link.last_report + housekeeping_s) as silence:
                    await self._take_reports(receiver, link)
                if not silence.cancelled_caught:
                    break
                if trio.current_time() >= link.last_report + housekeeping_s:
                    self._peer_log.write(
                        logging.WARNING, link.peer, "slave %s said nothing for %g s, closing", link.peer, housekeeping_s
                    )
                    break
        except (trio.BrokenResourceError, RemoteProtocolError) as error:
            self._peer_log.write(logging.INFO, link.peer, "slave %s: %s", link.peer, failure_reason(error))
        finally:
            link.scope.cancel()

    async def _take_reports(self, receiver: Receiver, link: SlaveLink) -> None:
        """Until the slave closes, or must be closed."""
        decoder = link.reports
        buffer = memoryview(bytearray(_REPORTS_BYTES))
        while True:
            await receiver.wait_readable()
            size = receiver.receive_into_now(buffer)
            if size is None:
                continue
            if not size:
                return
            link.last_report = trio.current_time()
            offsets = decoder.feed(bytes(buffer[:size]))
            if offsets and not self._take_report(link, offsets[-1]):
                return

    def _take_report(self, link: SlaveLink, offset: int) -> bool:
        """Record the offset that a slave reports; False if the link must be closed."""
        log_max = self._log.log_max_offset
        first = link.acknowledged_offset is None
        if first and offset >> 48 == _TLS_HANDSHAKE:
            message = "closing %s: it speaks TLS, and this HA port does not (haUseTLS)"
            self._peer_log.write(logging.WARNING, link.peer, message, link.peer)
            return False
        decision = rules.check_report(offset, log_max=log_max, first=first, compat_49=self._settings.compat_49)
        if decision is not rules.Report.ACCEPT:
            self.refused.append(RefusedSlave(link.peer, offset, log_max, trio.current_time()))
            self._peer_log.write(
                logging.ERROR,
                link.peer,
                "slave %s reports offset %d, this log ends at %d (%s): closing; "
                "if its history differs from this master's, it must be emptied before it can follow",
                link.peer, offset, log_max, decision.name,
            )  # fmt: skip
            return False
        link.acknowledged_offset = offset
        if first:
            link.next_offset = rules.start_offset(
                offset,
                log_min=self._log.log_min_offset,
                log_max=log_max,
                file_bytes=self._settings.file_bytes,
                compat_49=self._settings.compat_49,
            )
            self._peer_log.write(
                logging.INFO, link.peer, "slave %s has %d, sending from %d", link.peer, offset, link.next_offset
            )
            link.wake.set()
        self._update_acknowledged()
        return True

    async def _write_frames(self, writer: TransferWriter, link: SlaveLink) -> None:
        link.writer = writer
        try:
            while True:
                if writer.left:
                    await writer.finish()
                # A fresh event before the log is read: growth after that sets it.
                link.wake = trio.Event()
                if await self._send_next(writer, link):
                    link.last_write = trio.current_time()
                    continue
                link.idle = True
                with trio.move_on_at(self._heartbeat_due(link)):
                    await link.wake.wait()
                link.idle = False
                if link.wake.is_set() or trio.current_time() < self._heartbeat_due(link):
                    continue
                if link.next_offset is not None:
                    await writer.send([encode_transfer_head(link.next_offset, 0)])
                    link.last_write = trio.current_time()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            self._peer_log.write(logging.INFO, link.peer, "slave %s: %s", link.peer, failure_reason(error))
        finally:
            link.idle = False
            link.scope.cancel()

    def _heartbeat_due(self, link: SlaveLink) -> float:
        if link.next_offset is None:
            return float("inf")
        return link.last_write + self._settings.heartbeat_s

    async def _send_next(self, writer: TransferWriter, link: SlaveLink) -> bool:
        """Send the next bytes, up to the settings' `send_bytes`; false when everything has been sent to the slave."""
        if link.next_offset is None:
            return False
        offset, batch_bytes = link.next_offset, self._settings.batch_bytes
        data = self._log.log_slice(offset, self._settings.send_bytes)
        if not data:
            self._note_position(link)
            return False
        link.next_offset += len(data)
        link.sent_bytes += len(data)
        if writer.can_send_file(offset, len(data)):
            await writer.send_file(offset, len(data), batch_bytes)
        else:
            await writer.send(self._frames(offset, data))
        return True

    def _frames(self, offset: int, data: memoryview) -> Views:
        """Heads and bodies of log bytes, no body larger than a batch."""
        batch_bytes = self._settings.batch_bytes
        views: Views = []
        for begin in range(0, len(data), batch_bytes):
            body = data[begin : begin + batch_bytes]
            views += (encode_transfer_head(offset + begin, len(body)), body)
        return views

    def _note_position(self, link: SlaveLink) -> None:
        """Say once that a slave waits for bytes that have expired here: only emptying it helps."""
        if link.next_offset is None or link.lost_position or link.next_offset >= self._log.log_min_offset:
            return
        if not link.next_offset:
            # It was empty, as this log was, which begins with a later file by now: another comparison shows where.
            link.scope.cancel()
            return
        link.lost_position = True
        self._peer_log.write(
            logging.ERROR,
            link.peer,
            "slave %s wants offset %d, this log begins at %d: it can never catch up and must be emptied",
            link.peer, link.next_offset, self._log.log_min_offset,
        )  # fmt: skip


def _port_of(listeners: object) -> int:
    """The bound port, if the listeners are sockets."""
    for listener in listeners if isinstance(listeners, list | tuple) else ():
        if isinstance(listener, trio.SocketListener):
            return int(listener.socket.getsockname()[1])
    return 0
