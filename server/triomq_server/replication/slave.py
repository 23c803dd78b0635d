"""The slave's end of replication: follows one master's log, byte by byte, and reports its progress.

Bytes go straight into the log (`transfer_reader`), even before a frame is complete, so frames may have any size.
Received bytes are reported at once, and made readable afterwards. Connection loss, a master that moved and offsets that
do not fit all lead to a new connection after a short pause. Before each connection the two logs are compared
(`divergence`), so that the slave never follows another history. A slave with an empty log also learns in this way where
the master's log begins; it reports this offset first, and gets everything. Answers to `HAService.HAClient`; the bytes are
described in docs/protocol/ha.md §2 and §4.
"""

import logging
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
import trio

from triomq_protocol.replication import encode_report
from triomq_server.repeats import PeerLog
from triomq_server.replication.divergence import Comparison, LogRelation, MasterLog, NotComparableError, OwnLog, compare
from triomq_server.replication.receivers import Receiver, open_receiver
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.transfer_reader import BUFFER_BYTES, ExtendedLog, ReplicationError, TransferReader
from triomq_server.wire import Dial, LinkError, dial_tcp
from triomq_server.wire.transport import failure_reason

_log = logging.getLogger(__name__)

OpenMaster = Callable[[str], AbstractAsyncContextManager[MasterLog]]
"""From the address of a master's HA service to a view of its log."""

MOVE_AFTER_S = 25.0
"""How long name servers must have agreed on another master before an open link is given up."""

DISPATCH_BYTES = 256 * 1024
"""Bytes dispatched before other tasks run: one or two milliseconds of work, since the slave also serves pulls."""
POLLING_S = 0.0005
"""When frames follow each other within this time, it pays to stay awake for the next one."""
STREAMING_BYTES = 65536
"""A master that sends so much at once is taken to send more."""
UNASKED_S = 45.0
"""How long an empty log begins with the first file or not at all when the master cannot be asked: brokers register
every 30 s, and then name servers know the master's address. A 4.9 master's newest file alone is better than nothing
after that."""
STREAM_PAUSE_S = 0.002
"""After this long without bytes the master has sent everything, and there is time to dispatch the received bytes."""


class FollowingLog(OwnLog, ExtendedLog, Protocol):
    """The part of a message store that a slave extends; its content is read to compare it with the master's."""

    def announce_end(self) -> None:
        """Call the append listeners, among them a master that serves further slaves, with the log's new end."""

    @property
    def dispatched_offset(self) -> int:
        """Up to here the log can be read as messages."""

    def dispatch(self, most_bytes: int) -> bool:
        """Make about this many received bytes readable; returns whether there may be more to do."""

    async def cut(self, offset: int) -> int:
        """Drop everything from this log offset on; returns the number of bytes dropped."""


class SlaveStatus(msgspec.Struct):
    """The state of a slave's replication; for monitoring.

    Attributes:
        master: ``host:port`` of the master's HA service, None while unknown.
        connected: whether a link to it is open.
        links: how many links have been opened since the start.
        received_bytes: log bytes received since the start.
        last_received: trio's time of the last byte from the master, None before the first.
        reports: reports sent since the start.
        last_error: why the last link or attempt ended, None before the first end.
        compared: what the last comparison with the master found.
    """

    master: str | None = None
    connected: bool = False
    links: int = 0
    received_bytes: int = 0
    last_received: float | None = None
    reports: int = 0
    last_error: str | None = None
    compared: Comparison = msgspec.field(default_factory=lambda: Comparison(relation=LogRelation.UNKNOWN))


class HaSlave:
    """Follows a master's log.

    Args:
        log: the slave's own store.
        settings: the HA keys.
        dial: connects to ``host:port``.
        master: the master's HA address, if it is known from the start (``haMasterAddress``).
        open_master: used to compare the logs before each connection; None follows any master, as 4.9 does.
        on_loss: called when a link has ended, and now and then while there is none: name servers may know another
            master.
        on_cut: called when a torn record has been dropped, or the log begins elsewhere: further slaves follow it here.
        seed: seed of the random part of pauses; given in tests.
    """

    def __init__(
        self,
        log: FollowingLog,
        settings: HaSettings,
        *,
        dial: Dial = dial_tcp,
        master: str | None = None,
        open_master: OpenMaster | None = None,
        on_loss: Callable[[], None] | None = None,
        on_cut: Callable[[], None] = lambda: None,
        seed: int | None = None,
    ) -> None:
        self._log = log
        self._settings = settings
        self._dial = dial
        self._open_master = open_master
        self._on_loss = on_loss
        self._on_cut = on_cut
        self._loss_reported_at = -float("inf")
        self._linked: str | None = None
        self._link_scope = trio.CancelScope()
        self._doubted_since = float("inf")
        self._master_end = 0  # the master's log reaches here at least
        self._start = 0  # the report of an empty log: the start of the master's
        self._start_of: str | None = None  # this master's
        self._unasked_since = float("inf")
        self._begin: int | None = None  # where an empty log's first frame must begin, if that is known
        self._random = random.Random(seed)
        self._moved = trio.Event()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._reader: TransferReader | None = None
        self._last_report = self._last_received = -float("inf")
        self._polls_left = 0  # how often to check for the next frame before falling asleep
        self._streaming = False
        self._undispatched = False  # more of the log could be dispatched
        self._link_log = PeerLog(_log)  # for lines of each link: while the disk is full, one ends after the other
        self._end_logged = False  # since the last line about a link
        self.status = SlaveStatus(master=master)

    @property
    def relation(self) -> LogRelation:
        """This log in relation to the master's, as last compared."""
        compared = self.status.compared
        if not self.status.connected or not compared.relation.may_follow:
            return compared.relation
        master_end = self._master_end if self._reader is None else self._reader.master_end
        return LogRelation.CLEAN if self._log.log_max_offset >= master_end else LogRelation.BEHIND

    @property
    def linked(self) -> str | None:
        """The HA address of the master to which a link is open."""
        return self._linked

    def follow(self, master: str | None) -> None:
        """Take another address as the master's HA service, for the next connect; None: stop reconnecting.

        An open link is kept at first: a name server's answer names a master, but does not prove this one wrong, and
        another name server may disagree. The link is given up only when all answers agree for a while.
        """
        if master != self.status.master:
            self.status.master = master
            self._moved.set()
        if master is None or self._linked is None or self._open_master is None:
            return
        if master == self._linked:
            self._doubted_since = float("inf")
            return
        now = trio.current_time()
        self._doubted_since = min(self._doubted_since, now)
        if now >= self._doubted_since + MOVE_AFTER_S:
            _log.warning(
                "leaving %s, all name servers say that the master is %s",
                self._linked,
                master,
                extra={"address": self._linked},
            )
            self._link_scope.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        if self._log.dispatched_offset < self._log.log_max_offset:
            await self._dispatch_all()  # a run that was cancelled may have left bytes that cannot be read yet
        while True:
            master = self.status.master
            if master is None:
                self._moved = trio.Event()
                await self._moved.wait()
                continue
            self._moved = trio.Event()
            had_data = await self._compared(master) and await self._one_link(master)
            await self._dispatch_all()
            self._report_loss(had_data=had_data)
            # After a link that carried data a slave comes back soon, but not all slaves in the same instant.
            pause_s = (
                self._random.uniform(0.05, 0.1)
                if had_data
                else self._random.uniform(0.8, 1.2) * self._settings.reconnect_s
            )
            if not self.status.compared.relation.may_follow:
                pause_s = self._settings.heartbeat_s
            with trio.move_on_after(pause_s):
                await self._moved.wait()

    def _report_loss(self, *, had_data: bool) -> None:
        """Call `on_loss`; without it a slave would find a new master only at its next registration, half a minute
        later."""
        now = trio.current_time()
        if self._on_loss is not None and (had_data or now >= self._loss_reported_at + self._settings.heartbeat_s):
            self._loss_reported_at = now
            self._on_loss()

    async def _compared(self, master: str) -> bool:
        """Compare the logs; False if this master must not be followed, or could not be asked."""
        if self._open_master is None:
            return True
        try:
            with trio.fail_after(self._settings.compare_timeout_s):
                async with self._open_master(master) as remote:
                    found = await compare(self._log, remote)
                    if found.torn_at is not None:
                        _log.warning(
                            "dropping the last record, at log offset %d: this broker was killed before its last bytes "
                            "had come, and master %s has all of it",
                            found.torn_at, master, extra={"address": master},
                        )  # fmt: skip
                        found = await self._cut_and_compare(found.torn_at, remote)
                    if found.relation.may_follow and self._log.log_min_offset == found.own_end < found.master_begin:
                        # An empty log that begins with a file that has expired at the master: nothing would follow.
                        found = await self._cut_and_compare(0, remote)
                    if found.relation.may_follow and not self._log.log_max_offset:
                        self._start_of = master
                        await self._prepare_start(found, remote)
        except NotComparableError as error:
            found = self._not_compared(master, error)
        except (OSError, LinkError, trio.TooSlowError, trio.BrokenResourceError) as error:
            self._note_end(master, f"the logs could not be compared: {failure_reason(error)}")
            return False
        else:
            self._unasked_since = float("inf")
        if not found.relation.may_follow:
            self._note_refusal(master, found)
        self.status.compared = found
        self._master_end, self._reader = found.master_end, None
        return found.relation.may_follow

    async def _cut_and_compare(self, offset: int, remote: MasterLog) -> Comparison:
        await self._log.cut(offset)
        self._on_cut()
        return await compare(self._log, remote)

    def _not_compared(self, master: str, error: NotComparableError) -> Comparison:
        now = trio.current_time()
        if self._unasked_since > now:
            self._unasked_since = now
            _log.warning(
                "master %s is followed without comparing the logs: %s", master, error, extra={"address": master}
            )
        if master != self._start_of:
            self._start = 0  # that of another one, which would send nothing from before it
        self._begin = self._start if now < self._unasked_since + UNASKED_S else None
        return Comparison(relation=LogRelation.UNKNOWN, own_end=self._log.log_max_offset)

    async def _prepare_start(self, found: Comparison, remote: MasterLog) -> None:
        """Let an empty slave get the whole log, whichever version its master has.

        A 4.9 master takes a first report of 0 as a request for its newest file only, and any other as an offset to
        continue from. So if its log begins after 0, the slave reports that offset; if it begins at 0, the slave fetches
        the first record separately, and reports its end. This is done even while there is only one file, since a second
        one may be made before the report arrives.
        """
        self._start = self._begin = max(found.master_begin, 0)  # 4.9 reports -1 while its log is empty
        if self._start or not found.master_end:
            return
        first = await remote.record(0)
        if first is None:
            self._begin = None
            return
        if len(first) > self._settings.file_bytes:
            return  # the link fails with the reason
        self._log.append_raw(first, 0)
        self._log.announce_end()
        await self._dispatch_all()

    def _note_refusal(self, master: str, found: Comparison) -> None:
        text = (
            f"{found.relation}: this log ends at {found.own_end}, the master's at {found.master_end}, "
            f"they are equal up to {found.common_end}"
        )
        if text != self.status.last_error:
            _log.error(
                "master %s is not followed, %s; nothing is dropped without an order: `triomq admin cut` drops what the "
                "master does not have, `triomq admin role` makes this broker the master",
                master, text, extra={"address": master},
            )  # fmt: skip
        self.status.last_error = text

    async def _one_link(self, master: str) -> bool:
        """Connect and follow until the link ends; True if the master sent anything."""
        before = self.status.last_received
        try:
            with trio.fail_after(self._settings.connect_timeout_s):
                stream = await self._dial(master)
            self._link_scope = trio.CancelScope()
            self._linked, self._doubted_since = master, float("inf")
            async with stream:
                self.status.connected = True
                self.status.links += 1
                self._note_link(master)
                with self._link_scope:
                    await self._follow(stream)
        except (OSError, trio.TooSlowError, trio.BrokenResourceError, ReplicationError) as error:
            self._note_end(master, failure_reason(error))
        else:
            moved = self._link_scope.cancelled_caught
            closed = "the master closed the connection"
            if self.status.last_received == before:
                closed += " without a byte; its HA port may expect TLS (haUseTLS)"
            self._note_end(master, "the master has moved" if moved else closed)
        finally:
            self.status.connected = False
            self._linked = None
        return self.status.last_received != before

    def _note_link(self, master: str) -> None:
        """Log a link; if it comes after an end that was logged, at once, or that line would seem to hold still."""
        message = "following master %s from offset %d"
        if self._end_logged:
            _log.info(message, master, self._log.log_max_offset, extra={"address": master})
        else:
            self._link_log.write(logging.INFO, master, message, master, self._log.log_max_offset)
        self._end_logged = False

    def _note_end(self, master: str, reason: str) -> None:
        """Log a loss once, not every second."""
        if reason != self.status.last_error:
            self._end_logged = True
            _log.warning("master %s: %s", master, reason, extra={"address": master})
        self.status.last_error = reason

    async def _follow(self, stream: trio.abc.Stream) -> None:
        settings = self._settings
        with open_receiver(stream) as receiver:
            reader = self._reader = TransferReader(
                self._log, receiver, self._buffer, settings.file_bytes, self._master_end, self._begin
            )
            began = self._last_received = trio.current_time()
            self._polls_left = 0
            await self._report(stream, receiver)
            while not reader.ended:
                if await self._take_turn(stream, receiver, reader):
                    continue
                if self._polls_left:
                    self._polls_left -= 1
                    await trio.lowlevel.checkpoint()
                    continue
                with trio.move_on_at(
                    min(self._last_report + settings.heartbeat_s, self._last_received + settings.housekeeping_s)
                ):
                    await receiver.wait_readable()
                    continue
                now = trio.current_time()
                if now >= self._last_received + settings.housekeeping_s:
                    raise ReplicationError(f"silent for {settings.housekeeping_s:g} s")
                if self._start and not self._log.log_max_offset and now >= began + 2 * settings.heartbeat_s:
                    raise ReplicationError(f"nothing comes from offset {self._start}")  # expired since the comparison
                if now >= self._last_report + settings.heartbeat_s:
                    await self._report(stream, receiver)

    async def _take_turn(self, stream: trio.abc.Stream, receiver: Receiver, reader: TransferReader) -> bool:
        """Take received bytes, report them, and make them readable; false if there are none and nothing is left to do.

        Senders wait for the report, readers for the dispatch, which takes much longer; and the more of the master's
        log is copied, the safer it is. So as long as bytes stream in they are taken first, up to a limit.
        """
        log = self._log
        taken = reader.taken_bytes
        came = reader.take_turn()
        if came:
            now = trio.current_time()
            # A producer that sends one message after the other waits for each report: while this task stays awake, the
            # report takes half the time, and less of the processor than falling asleep and waking up each time.
            awake = receiver.is_socket and now < self._last_received + POLLING_S
            self._polls_left = self._settings.polls if awake else 0
            self._last_received = self.status.last_received = now
        if reader.taken_bytes > taken:
            self.status.received_bytes += reader.taken_bytes - taken
            log.announce_end()
            await self._report(stream, receiver)
        if came >= STREAMING_BYTES:
            self._streaming = True
        if self._streaming and log.log_max_offset - log.dispatched_offset <= self._settings.fall_behind_max_bytes:
            self._undispatched = True
            if reader.empty:
                # A master that sends so much is not done only because the next bytes are not here yet.
                self._streaming = False
                with trio.move_on_after(STREAM_PAUSE_S):
                    await receiver.wait_readable()
                    self._streaming = True
            else:
                await trio.lowlevel.checkpoint()
            return True
        if came or self._undispatched:
            self._undispatched = log.dispatch(DISPATCH_BYTES)
            if self._undispatched:
                await trio.lowlevel.checkpoint()
        return bool(came) or self._undispatched

    async def _report(self, stream: trio.abc.Stream, receiver: Receiver) -> None:
        """Send how far the log reaches; a master that takes nothing for the housekeeping time counts as lost."""
        left = receiver.send_now([encode_report(self._log.log_max_offset or self._start)])
        if left:
            with trio.fail_after(self._settings.housekeeping_s):
                await stream.send_all(b"".join(left))
        self.status.reports += 1
        self._last_report = trio.current_time()

    async def _dispatch_all(self) -> None:
        """Make everything readable that has come: the comparison of two logs needs the last record."""
        try:
            while self._log.dispatch(DISPATCH_BYTES):
                await trio.lowlevel.checkpoint()
        except OSError as error:
            message = "what has come from the master cannot be read yet: %s"
            self._link_log.write(logging.ERROR, self.status.master or "", message, error)
