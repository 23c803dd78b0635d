"""The slave's end of replication: follows one master's log, byte by byte, and reports how far it has come.

Bytes go from one receive buffer straight to the store, also when a frame is not complete yet, so no frame size is too
large. Connection loss, a master that moved and offsets that do not fit all end in a new connection after a short pause.
It answers to `HAService.HAClient`; the bytes stand in the replication specification, sections 2 and 4.
"""

import logging
import random

import attrs
import trio

from triomq_protocol.replication import encode_report
from triomq_server.replication import rules
from triomq_server.replication.pieces import PieceDecoder
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.streams import Dial, FollowingLog, dial_tcp, reason, receive_into

_log = logging.getLogger(__name__)

_BUFFER_BYTES = 256 * 1024
"""Small enough that the records of one receive are dispatched in a few milliseconds: the slave serves pulls meanwhile."""


@attrs.define
class SlaveStatus:
    """Where a slave stands; for monitoring.

    Attributes:
      master: ``host:port`` of the master's HA service, None while unknown.
      connected: whether a link to it is open.
      links: how many links have been opened since the start.
      received_bytes: log bytes received since the start.
      last_received: trio's time of the last byte from the master, None before the first.
      reports: reports sent since the start.
      last_error: why the last link or attempt ended, None before the first end.
    """

    master: str | None = None
    connected: bool = False
    links: int = 0
    received_bytes: int = 0
    last_received: float | None = None
    reports: int = 0
    last_error: str | None = None


class ReplicationError(Exception):
    """The master's bytes cannot be taken over; the link is closed and opened again."""


class HaSlave:
    """Follows a master's log.

    Args:
      log: the slave's own store.
      settings: the HA keys.
      dial: connects to ``host:port``.
      master: the master's HA address, where it is known from the start (``haMasterAddress``).
      seed: of the pauses' random share; given in tests.
    """

    def __init__(
        self,
        log: FollowingLog,
        settings: HaSettings,
        *,
        dial: Dial = dial_tcp,
        master: str | None = None,
        seed: int | None = None,
    ) -> None:
        self._log = log
        self._settings = settings
        self._dial = dial
        self._random = random.Random(seed)
        self._moved = trio.Event()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.status = SlaveStatus(master=master)

    def follow(self, master: str | None) -> None:
        """Take another address as the master's HA service, for the next connect; None: stop connecting anew.

        An open link stays: a name server's answer says where to find the master, not that this one is wrong.
        """
        if master != self.status.master:
            self.status.master = master
            self._moved.set()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            master = self.status.master
            if master is None:
                self._moved = trio.Event()
                await self._moved.wait()
                continue
            self._moved = trio.Event()
            lived = await self._one_link(master)
            # A link that lived is worth a quick return, but not by all slaves in the same instant.
            pause_s = (
                self._random.uniform(0.05, 0.1)
                if lived
                else self._random.uniform(0.8, 1.2) * self._settings.reconnect_s
            )
            with trio.move_on_after(pause_s):
                await self._moved.wait()

    async def _one_link(self, master: str) -> bool:
        """Connect and follow until the link ends; True if the master sent anything."""
        before = self.status.last_received
        try:
            with trio.fail_after(self._settings.connect_timeout_s):
                stream = await self._dial(master)
            async with stream:
                self.status.connected = True
                self.status.links += 1
                _log.info("following master %s from offset %d", master, self._log.log_max_offset)
                await self._follow(stream)
        except (OSError, trio.TooSlowError, trio.BrokenResourceError, ReplicationError) as error:
            self._note_end(master, reason(error))
        else:
            self._note_end(master, "the master closed the connection")
        finally:
            self.status.connected = False
        return self.status.last_received != before

    def _note_end(self, master: str, reason: str) -> None:
        """Log a loss once, not every second."""
        if reason != self.status.last_error:
            _log.warning("master %s: %s", master, reason)
        self.status.last_error = reason

    async def _follow(self, stream: trio.abc.Stream) -> None:
        decoder = PieceDecoder()
        settings = self._settings
        reported = await self._report(stream)
        last_report = last_received = trio.current_time()
        while True:
            heartbeat_due = last_report + settings.heartbeat_s
            silence_due = last_received + settings.housekeeping_s
            with trio.move_on_at(min(heartbeat_due, silence_due)):
                received = await receive_into(stream, self._buffer)
                if not received:
                    return
                last_received = self.status.last_received = trio.current_time()
                self._take(decoder, self._buffer[:received])
            now = trio.current_time()
            if now >= last_received + settings.housekeeping_s:
                raise ReplicationError(f"silent for {settings.housekeeping_s:g} s")
            if self._log.log_max_offset > reported or now >= heartbeat_due:
                reported = await self._report(stream)
                last_report = now

    async def _report(self, stream: trio.abc.Stream) -> int:
        """Send how far the log reaches; a master that takes nothing for the housekeeping time counts as lost."""
        offset = self._log.log_max_offset
        with trio.fail_after(self._settings.housekeeping_s):
            await stream.send_all(encode_report(offset))
        self.status.reports += 1
        return offset

    def _take(self, decoder: PieceDecoder, data: memoryview) -> None:
        """Append all log bytes of one receive."""
        received_bytes = self.status.received_bytes
        try:
            for offset, frame_left, body in decoder.feed(data):
                self._check(offset, frame_left)
                if body:
                    self._log.append_raw(body, offset)
                    self.status.received_bytes += len(body)
        finally:
            if self.status.received_bytes > received_bytes:
                self._log.notify_arrivals()

    def _check(self, offset: int, frame_left: int) -> None:
        """Refuse what would not continue the log, before a byte of it is taken."""
        own, file_bytes = self._log.log_max_offset, self._settings.file_bytes
        if not rules.follows(own, offset, file_bytes):
            raise ReplicationError(f"frame at offset {offset}, own log ends at {own}")
        if not rules.stays_in_file(offset, frame_left, file_bytes):
            raise ReplicationError(
                f"frame of {frame_left} bytes at offset {offset} crosses a log file of {file_bytes} bytes: "
                "mappedFileSizeCommitLog differs between master and slave"
            )
