"""The master's end of replication: accepts slaves, streams the log to each, and knows what they hold.

Every slave has a task that reads its reports and one that writes frames; no slave waits for another. A store that grows
wakes the writers at once. Which offset a stream starts at and which reports count is decided in `rules`.
It answers to `HAService`, `HAConnection` and `GroupTransferService`; the bytes stand in the replication specification, section 2.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from triomq_protocol.errors import RemoteProtocolError
from triomq_protocol.replication import ReportDecoder, encode_transfer_head
from triomq_server.replication import rules
from triomq_server.replication.files import FileSender
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.streams import (
    Listen,
    SourceLog,
    let_writes_fill,
    listen_tcp,
    peer_name,
    reason,
    send_views,
)
from triomq_server.replication.waiters import OffsetWaiters

_log = logging.getLogger(__name__)

_REPORTS_BYTES = 65536
"""How much is read of a slave's reports at once; only the last one of a read counts."""

REFUSED_REMEMBERED = 20


@attrs.define(eq=False)
class SlaveLink:
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
    """

    peer: str
    last_report: float
    last_write: float
    next_offset: int | None = None
    acknowledged_offset: int | None = None
    sent_bytes: int = 0
    lost_position: bool = False
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    wake: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen
class RefusedSlave:
    """A slave that claimed to have more than there is.

    Attributes:
      peer: ``ip:port`` of its socket.
      offset: what it reported.
      log_end: where this log ended then.
      at: trio's time of the report.
    """

    peer: str
    offset: int
    log_end: int
    at: float


class HaMaster:
    """Serves the log of one store to any number of slaves, and tells waiting sends what slaves hold.

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
        self._deadline_set = trio.Event()
        self.refused: deque[RefusedSlave] = deque(maxlen=REFUSED_REMEMBERED)
        """The last slaves that were turned away, for operators."""
        self.acknowledged_offset = 0
        """The highest offset that some slave holds (`push2SlaveMaxOffset`)."""

    @property
    def links(self) -> tuple[SlaveLink, ...]:
        """The slaves connected now."""
        return tuple(self._links)

    def slave_ok(self, end_offset: int) -> bool:
        """Whether a send that ends at `end_offset` may expect a slave's acknowledgement; if not, it is SLAVE_NOT_AVAILABLE."""
        links = self._links
        if not self._settings.compat_49:
            links = [link for link in links if link.acknowledged_offset is not None]
        return rules.slave_is_near(
            end_offset,
            acknowledged_offset=self.acknowledged_offset,
            links=len(links),
            fall_behind_max_bytes=self._settings.fall_behind_max_bytes,
        )

    def park_until_replicated(self, end_offset: int, deadline: float, done: Callable[[bool], None]) -> None:
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
        earliest = self._waiters.next_deadline()
        self._waiters.park(end_offset, deadline, done)
        if earliest is None or deadline < earliest:
            self._deadline_set.set()

    def close_links(self) -> None:
        """Let every slave connect anew: the log may not be what it was."""
        for link in self._links:
            link.scope.cancel()

    async def serve(
        self,
        host: str,
        port: int,
        *,
        listen: Listen = listen_tcp,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept slaves until cancelled.

        Args:
          host: address to bind.
          port: port to bind; 0 takes a free one.
          listen: opens the listeners; tests hand in one of their own.
          task_status: receives the port that slaves find this master on (0 where listeners have no ports).

        Raises:
          OSError: the port cannot be bound.
        """
        listeners = await listen(host, port)
        self._log.append_listeners.append(self._on_append)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expire_waiters)
                nursery.start_soon(trio.serve_listeners, self.serve_slave, list(listeners))
                task_status.started(_port_of(listeners))
        finally:
            self._log.append_listeners.remove(self._on_append)
            self._waiters.fail_all()

    async def serve_slave(self, stream: trio.abc.Stream) -> None:
        """Serve one slave until either end closes; a broken link is a log line, not an error."""
        now = trio.current_time()
        link = SlaveLink(peer_name(stream), last_report=now, last_write=now)
        _log.info("slave %s connected", link.peer)
        with self._connected(link), link.scope:
            async with stream:
                let_writes_fill(stream)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read_reports, stream, link)
                    nursery.start_soon(self._write_frames, stream, link)
        _log.info("slave %s disconnected, it had %s", link.peer, link.acknowledged_offset)

    @contextmanager
    def _connected(self, link: SlaveLink) -> Iterator[None]:
        self._links.append(link)
        try:
            yield
        finally:
            self._links.remove(link)
            self._settle()

    def _on_append(self, _end_offset: int) -> None:
        """The store has grown: wake the writers that had nothing to send. Called for every append, so it does little."""
        for link in self._links:
            link.wake.set()

    def _settle(self) -> None:
        """Work out anew what is acknowledged, and release the sends that waited for it."""
        self.acknowledged_offset = rules.acknowledged(
            (link.acknowledged_offset for link in self._links),
            self.acknowledged_offset,
            compat_49=self._settings.compat_49,
        )
        self._waiters.release(self.acknowledged_offset)

    async def _expire_waiters(self) -> None:
        while True:
            self._waiters.expire(trio.current_time())
            self._deadline_set = trio.Event()
            with trio.move_on_at(self._waiters.next_deadline() or float("inf")):
                await self._deadline_set.wait()

    async def _read_reports(self, stream: trio.abc.Stream, link: SlaveLink) -> None:
        decoder = ReportDecoder()
        try:
            while True:
                with trio.move_on_at(link.last_report + self._settings.housekeeping_s) as silence:
                    data = await stream.receive_some(_REPORTS_BYTES)
                if silence.cancelled_caught:
                    _log.warning("slave %s said nothing for %g s, closing", link.peer, self._settings.housekeeping_s)
                    break
                if not data:
                    break
                link.last_report = trio.current_time()
                offsets = decoder.feed(bytes(data))
                if offsets and not self._take_report(link, offsets[-1]):
                    break
        except (trio.BrokenResourceError, RemoteProtocolError) as error:
            _log.info("slave %s: %s", link.peer, reason(error))
        finally:
            link.scope.cancel()

    def _take_report(self, link: SlaveLink, offset: int) -> bool:
        """Note what a slave says it holds; False if the link must be closed."""
        log_max = self._log.log_max_offset
        first = link.acknowledged_offset is None
        verdict = rules.judge_report(offset, log_max=log_max, first=first, compat_49=self._settings.compat_49)
        if verdict is not rules.Report.ACCEPT:
            self.refused.append(RefusedSlave(link.peer, offset, log_max, trio.current_time()))
            _log.error(
                "slave %s reports offset %d, this log ends at %d (%s): closing; "
                "if its history differs from this master's, it must be emptied before it can follow",
                link.peer, offset, log_max, verdict.name,
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
            _log.info("slave %s has %d, sending from %d", link.peer, offset, link.next_offset)
            link.wake.set()
        self._settle()
        return True

    async def _write_frames(self, stream: trio.abc.Stream, link: SlaveLink) -> None:
        try:
            with FileSender(self._log, self._settings.file_bytes) as files:
                while True:
                    # A fresh event before the look at the log: growth after the look sets it.
                    link.wake = trio.Event()
                    if await self._send_next(stream, link, files):
                        link.last_write = trio.current_time()
                        continue
                    with trio.move_on_at(self._heartbeat_due(link)) as silence:
                        await link.wake.wait()
                    if silence.cancelled_caught and link.next_offset is not None:
                        await send_views(stream, [encode_transfer_head(link.next_offset, 0)])
                        link.last_write = trio.current_time()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.info("slave %s: %s", link.peer, reason(error))
        finally:
            link.scope.cancel()

    def _heartbeat_due(self, link: SlaveLink) -> float:
        if link.next_offset is None:
            return float("inf")
        return link.last_write + self._settings.heartbeat_s

    async def _send_next(self, stream: trio.abc.Stream, link: SlaveLink, files: FileSender) -> bool:
        """Send what comes next, up to the settings' `send_bytes`; false when the slave has been sent everything."""
        if link.next_offset is None:
            return False
        offset, batch_bytes = link.next_offset, self._settings.batch_bytes
        data = self._log.log_slice(offset, self._settings.send_bytes)
        if not data:
            self._note_position(link)
            return False
        link.next_offset += len(data)
        link.sent_bytes += len(data)
        if files.can_send(stream, offset, len(data)):
            await files.send(stream, offset, len(data), batch_bytes)
            return True
        views: list[bytes | memoryview] = []
        for begin in range(0, len(data), batch_bytes):
            body = data[begin : begin + batch_bytes]
            views += (encode_transfer_head(offset + begin, len(body)), body)
        await send_views(stream, views)
        return True

    def _note_position(self, link: SlaveLink) -> None:
        """Say once that a slave waits for bytes that have expired here: only emptying it helps."""
        if link.next_offset is None or link.lost_position or link.next_offset >= self._log.log_min_offset:
            return
        link.lost_position = True
        _log.error(
            "slave %s wants offset %d, this log begins at %d: it can never catch up and must be emptied",
            link.peer, link.next_offset, self._log.log_min_offset,
        )  # fmt: skip


def _port_of(listeners: object) -> int:
    """The bound port, where the listeners are sockets."""
    for listener in listeners if isinstance(listeners, list | tuple) else ():
        if isinstance(listener, trio.SocketListener):
            return int(listener.socket.getsockname()[1])
    return 0
