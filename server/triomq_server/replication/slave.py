"""The slave's end of replication: follows one master's log, byte by byte, and reports how far it has come.

Bytes go straight into the log (`intake`), also when a frame is not complete yet, so no frame size is too large. What has
come is reported at once, and made readable afterwards. Connection loss, a master that moved and offsets that do not fit all end in a new connection after a short pause.
Before each connection the two logs are compared (`standing`), so that no other history is ever followed, and a slave with
an empty log learns where the master's begins: its first report then says so, and it gets everything.
It answers to `HAService.HAClient`; the bytes stand in the replication specification, sections 2 and 4.
"""

import logging
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from triomq_protocol.replication import encode_report
from triomq_server.replication.inlets import Inlet, open_inlet
from triomq_server.replication.intake import BUFFER_BYTES, Intake, ReplicationError
from triomq_server.replication.rules import HaSettings
from triomq_server.replication.standing import Comparison, MasterLog, NotComparableError, Standing, compare
from triomq_server.replication.streams import Dial, FollowingLog, dial_tcp, reason
from triomq_server.wire import LinkError

_log = logging.getLogger(__name__)

OpenMaster = Callable[[str], AbstractAsyncContextManager[MasterLog]]
"""From the address of a master's HA service to a view of its log."""

MOVE_AFTER_S = 25.0
"""How long name servers must have agreed on another master before an open link is given up."""

DISPATCH_BYTES = 256 * 1024
"""What is dispatched before others have their turn: a millisecond's work or two, the slave serves pulls meanwhile."""
LOOKING_S = 0.0005
"""When frames follow each other within this time, it is worth staying awake for the next one."""
STREAMING_BYTES = 65536
"""A master that sends so much at once is taken to send more."""
UNASKED_S = 45.0
"""How long an empty log begins with the first file or not at all when the master cannot be asked: brokers register every
30 s, and then name servers say whom to ask. A 4.9 master's newest file alone is better than nothing after that."""
STREAM_PAUSE_S = 0.002
"""When nothing has come from it for so long, it has sent everything, and there is time for what has come."""


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
      compared: what the last comparison with the master found.
    """

    master: str | None = None
    connected: bool = False
    links: int = 0
    received_bytes: int = 0
    last_received: float | None = None
    reports: int = 0
    last_error: str | None = None
    compared: Comparison = attrs.field(factory=lambda: Comparison(standing=Standing.UNKNOWN))


class HaSlave:
    """Follows a master's log.

    Args:
      log: the slave's own store.
      settings: the HA keys.
      dial: connects to ``host:port``.
      master: the master's HA address, where it is known from the start (``haMasterAddress``).
      open_master: lets the logs be compared before each connection; None follows whoever is there, as 4.9 does.
      on_loss: called when a link has ended, and now and then while there is none: somebody may know of another master.
      seed: of the pauses' random share; given in tests.
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
        seed: int | None = None,
    ) -> None:
        self._log = log
        self._settings = settings
        self._dial = dial
        self._open_master = open_master
        self._on_loss = on_loss
        self._told_loss = -float("inf")
        self._linked: str | None = None
        self._link_scope = trio.CancelScope()
        self._doubted_since = float("inf")
        self._heard_end = 0  # the master's log reaches here at least
        self._start = 0  # what an empty log reports: where the master's begins
        self._unasked_since = float("inf")
        self._begin: int | None = None  # where an empty log's first frame must begin, if that is known
        self._random = random.Random(seed)
        self._moved = trio.Event()
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._intake: Intake | None = None
        self._last_report = self._last_received = -float("inf")
        self._looks = 0  # how often to look for the next frame before falling asleep
        self._streaming = False
        self._undispatched = False  # more of the log could be dispatched
        self.status = SlaveStatus(master=master)

    @property
    def standing(self) -> Standing:
        """Where this log stands against the master's, as far as is known now."""
        compared = self.status.compared
        if not self.status.connected or not compared.standing.may_follow:
            return compared.standing
        heard_end = self._heard_end if self._intake is None else self._intake.heard_end
        return Standing.CLEAN if self._log.log_max_offset >= heard_end else Standing.BEHIND

    def follow(self, master: str | None) -> None:
        """Take another address as the master's HA service, for the next connect; None: stop connecting anew.

        An open link stays at first: a name server's answer says where to find the master, not that this one is wrong,
        and another name server may say otherwise. Only when all answers of a while agree is the link given up.
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
            _log.warning("leaving %s, all name servers say that the master is %s", self._linked, master)
            self._link_scope.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            master = self.status.master
            if master is None:
                self._moved = trio.Event()
                await self._moved.wait()
                continue
            self._moved = trio.Event()
            lived = await self._compared(master) and await self._one_link(master)
            await self._dispatch_all()
            self._tell_loss(lived=lived)
            # A link that lived is worth a quick return, but not by all slaves in the same instant.
            pause_s = (
                self._random.uniform(0.05, 0.1)
                if lived
                else self._random.uniform(0.8, 1.2) * self._settings.reconnect_s
            )
            if not self.status.compared.standing.may_follow:
                pause_s = self._settings.heartbeat_s
            with trio.move_on_after(pause_s):
                await self._moved.wait()

    def _tell_loss(self, *, lived: bool) -> None:
        """Without this a slave would hear of a new master only at its next registration, half a minute later."""
        now = trio.current_time()
        if self._on_loss is not None and (lived or now >= self._told_loss + self._settings.heartbeat_s):
            self._told_loss = now
            self._on_loss()

    async def _compared(self, master: str) -> bool:
        """Compare the logs; False if this master must not be followed, or could not be asked."""
        if self._open_master is None:
            return True
        try:
            with trio.fail_after(self._settings.compare_timeout_s):
                async with self._open_master(master) as remote:
                    found = await compare(self._log, remote)
                    if found.standing.may_follow and not self._log.log_max_offset:
                        await self._prepare_start(found, remote)
        except NotComparableError as error:
            found = Comparison(standing=Standing.UNKNOWN, own_end=self._log.log_max_offset)
            now = trio.current_time()
            if self._unasked_since > now:
                self._unasked_since = now
                _log.warning("master %s is followed without comparing the logs: %s", master, error)
            self._begin = self._start if now < self._unasked_since + UNASKED_S else None
        except (OSError, LinkError, trio.TooSlowError, trio.BrokenResourceError) as error:
            self._note_end(master, f"the logs could not be compared: {reason(error)}")
            return False
        else:
            self._unasked_since = float("inf")
        if not found.standing.may_follow:
            self._note_refusal(master, found)
        self.status.compared = found
        self._heard_end, self._intake = found.master_end, None
        return found.standing.may_follow

    async def _prepare_start(self, found: Comparison, remote: MasterLog) -> None:
        """Let an empty slave of whatever master get the whole log.

        A 4.9 master takes a first report of 0 as a wish for its newest file only, and any other as an offset to go on
        from. So where its log begins behind 0, that is reported; and where it begins at 0, the first record is fetched
        by itself, and its end reported. Also while there is but one file: a second one may be there before the report is.
        """
        self._start = self._begin = max(found.master_begin, 0)  # 4.9 says -1 while it has nothing at all
        if self._start or not found.master_end:
            return
        first = await remote.record(0)
        if first is None:
            self._begin = None
            return
        self._log.append_raw(first, 0)
        self._log.announce_end()
        await self._dispatch_all()

    def _note_refusal(self, master: str, found: Comparison) -> None:
        text = (
            f"{found.standing}: this log ends at {found.own_end}, the master's at {found.master_end}, "
            f"they are equal up to {found.common_end}"
        )
        if text != self.status.last_error:
            _log.error(
                "master %s is not followed, %s; nothing is dropped without an order: `triomq admin cut` drops what the "
                "master does not have, `triomq admin role` makes this broker the master",
                master, text,
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
                _log.info("following master %s from offset %d", master, self._log.log_max_offset)
                with self._link_scope:
                    await self._follow(stream)
        except (OSError, trio.TooSlowError, trio.BrokenResourceError, ReplicationError) as error:
            self._note_end(master, reason(error))
        else:
            moved = self._link_scope.cancelled_caught
            self._note_end(master, "the master has moved" if moved else "the master closed the connection")
        finally:
            self.status.connected = False
            self._linked = None
        return self.status.last_received != before

    def _note_end(self, master: str, reason: str) -> None:
        """Log a loss once, not every second."""
        if reason != self.status.last_error:
            _log.warning("master %s: %s", master, reason)
        self.status.last_error = reason

    async def _follow(self, stream: trio.abc.Stream) -> None:
        settings = self._settings
        with open_inlet(stream) as inlet:
            intake = self._intake = Intake(
                self._log, inlet, self._buffer, settings.file_bytes, self._heard_end, self._begin
            )
            began = self._last_received = trio.current_time()
            self._looks = 0
            await self._report(stream, inlet)
            while not intake.ended:
                if await self._take_turn(stream, inlet, intake):
                    continue
                if self._looks:
                    self._looks -= 1
                    await trio.lowlevel.checkpoint()
                    continue
                with trio.move_on_at(
                    min(self._last_report + settings.heartbeat_s, self._last_received + settings.housekeeping_s)
                ):
                    await inlet.wait()
                    continue
                now = trio.current_time()
                if now >= self._last_received + settings.housekeeping_s:
                    raise ReplicationError(f"silent for {settings.housekeeping_s:g} s")
                if self._start and not self._log.log_max_offset and now >= began + 2 * settings.heartbeat_s:
                    raise ReplicationError(f"nothing comes from offset {self._start}")  # expired since the comparison
                if now >= self._last_report + settings.heartbeat_s:
                    await self._report(stream, inlet)

    async def _take_turn(self, stream: trio.abc.Stream, inlet: Inlet, intake: Intake) -> bool:
        """Take what has come, report it, and let it be read; false if nothing has come and nothing is left to do.

        Senders wait for the report, readers for the dispatch, which takes much longer; and the more of an acknowledged
        log is here, the safer it is. So as long as bytes stream in they are taken first, up to a limit.
        """
        log = self._log
        taken = intake.taken_bytes
        came = intake.take_turn()
        if came:
            now = trio.current_time()
            # Who sends one message after the other waits for each report: with this task awake it is there in half the
            # time, and for less of the processor than falling asleep and waking up would take each time.
            awake = inlet.is_socket and now < self._last_received + LOOKING_S
            self._looks = self._settings.looks if awake else 0
            self._last_received = self.status.last_received = now
        if intake.taken_bytes > taken:
            self.status.received_bytes += intake.taken_bytes - taken
            log.announce_end()
            await self._report(stream, inlet)
        if came >= STREAMING_BYTES:
            self._streaming = True
        if self._streaming and log.log_max_offset - log.dispatched_offset <= self._settings.fall_behind_max_bytes:
            self._undispatched = True
            if intake.empty:
                # Who sends so much is not done only because the next bytes are not here yet.
                self._streaming = False
                with trio.move_on_after(STREAM_PAUSE_S):
                    await inlet.wait()
                    self._streaming = True
            else:
                await trio.lowlevel.checkpoint()
            return True
        if came or self._undispatched:
            self._undispatched = log.dispatch(DISPATCH_BYTES)
            if self._undispatched:
                await trio.lowlevel.checkpoint()
        return bool(came) or self._undispatched

    async def _report(self, stream: trio.abc.Stream, inlet: Inlet) -> None:
        """Send how far the log reaches; a master that takes nothing for the housekeeping time counts as lost."""
        left = inlet.send_now(encode_report(self._log.log_max_offset or self._start))
        if left:
            with trio.fail_after(self._settings.housekeeping_s):
                await stream.send_all(left)
        self.status.reports += 1
        self._last_report = trio.current_time()

    async def _dispatch_all(self) -> None:
        """Let everything be read that has come: the comparison of two logs looks for the last record."""
        try:
            while self._log.dispatch(DISPATCH_BYTES):
                await trio.lowlevel.checkpoint()
        except OSError as error:
            _log.error("what has come from the master cannot be read yet: %s", error)
