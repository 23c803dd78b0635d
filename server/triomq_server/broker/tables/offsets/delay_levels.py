"""The delivery progress of each delay level: `delayOffset.json`, and the table that slaves copy.

Two rules keep deliveries from being lost: the log is flushed before the table is written (`persist_in_background`), and
no slave counts a delivery before it has the copy. A triomq slave gets the offset that its log must reach (`log_end`). A
RocketMQ slave applies the table at once, so it gets only the progress that all slaves have (`for_rocketmq_slaves`). It
answers to
`ScheduleMessageService`'s offset table; docs/protocol/store.md §19.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import trio

from triomq_protocol.requests.offset import DelayOffsetTable
from triomq_protocol.wire import fastjson
from triomq_server.disk.config_files import ConfigFile, damaged

_UNCOPIED_MOST = 10_000
"""Deliveries remembered until all slaves have them; beyond this number the oldest are forgotten, which only lowers the
progress in the answer to a slave."""


class DelayOffsets:
    """Delay level to the next queue offset of the schedule topic.

    Args:
        file: `config/delayOffset.json`; None keeps the table in memory only.
        careful: False gives slaves the table as it is, as RocketMQ 4.9 does.
        log_end: the log's end when the file is read: the copies that the file counts are before it.
    """

    def __init__(self, file: ConfigFile | None, *, careful: bool = True, log_end: int = 0) -> None:
        self._file = file
        self._careful = careful
        self.table: dict[int, int] = {}
        """Delay level to the queue offset of the first message not yet delivered."""
        self.changed = False
        """Whether there is something to write down."""
        self.lost = False
        """Whether `load` has found neither the file nor its backup."""
        self.log_end = log_end
        """The log offset that all copies which the table counts are in front of."""
        self._taken: tuple[int, dict[int, int]] = (log_end, {})
        """`log_end` and table as they were read or received, before any delivery."""
        self._copied: dict[int, int] | None = {}
        """The progress that all slaves have; None until they have the progress taken from them."""
        self._uncopied: deque[tuple[int, int, int]] = deque(maxlen=_UNCOPIED_MOST)

    def advance(self, level: int, next_offset: int, log_end: int) -> None:
        """Everything of a level before `next_offset` is delivered; the last copy ends at log offset `log_end`."""
        self.table[level] = next_offset
        self.log_end = max(self.log_end, log_end)
        self._uncopied.append((log_end, level, next_offset))
        self.changed = True

    # -- file and wire

    def encode(self) -> bytes:
        """The compact text of the whole table: for a slave that waits for `log_end`."""
        return fastjson.dumps({"offsetTable": self.table})

    def for_rocketmq_slaves(self, acknowledged_offset: int) -> bytes | None:
        """The compact text for slaves that apply the fetched table (code 45) at once; None: they should keep theirs.

        A slave that becomes the master continues from here. It must not skip a message whose delivered copy it has not
        received, so only deliveries before `acknowledged_offset`, up to which every slave has the log, are counted.
        """
        if not self._careful:
            return self.encode()
        if self._copied is None:
            log_end, table = self._taken
            if acknowledged_offset < log_end:
                return None
            self._copied = dict(table)
        while self._uncopied and self._uncopied[0][0] <= acknowledged_offset:
            _, level, next_offset = self._uncopied.popleft()
            self._copied[level] = next_offset
        return fastjson.dumps({"offsetTable": self._copied})

    def load(self) -> None:
        """Read `delayOffset.json`; a missing file is not an error. Raises OSError or ConfigFileDamaged."""
        data = self._file.load() if self._file is not None else None
        self.lost = data is None
        table = data.get("offsetTable") if isinstance(data, Mapping) else None
        if self._file is not None and isinstance(table, Mapping):
            try:
                self._take({int(level): int(offset) for level, offset in table.items()}, self.log_end)
            except (TypeError, ValueError, OverflowError) as error:
                raise damaged(self._file.path, f"does not hold what it should: {error}") from error

    async def save_received(self, body: bytes, log_end: int) -> None:
        """Keep the master's table exactly as it came. Raises BodyError for something else than a table, OSError.

        Args:
            body: the master's answer.
            log_end: all copies that it counts are in front of this log offset.
        """
        self._take(dict(DelayOffsetTable.decode(body).offset_table), log_end)
        if self._file is not None:
            await self._file.save_in_background(body)

    def take_later(self, body: bytes, end_of: Callable[[int], int], log_end: int = 0) -> None:
        """Take over the levels that are further in a slave's table than here.

        Args:
            body: the slave's answer.
            end_of: delay level to the number of messages that it has had here: the progress is limited to that.
            log_end: the log's end here.

        Raises:
            BodyError: the body is not a table.
        """
        received = DelayOffsetTable.decode(body).offset_table
        bounded = {level: min(offset, end_of(level)) for level, offset in received.items()}
        self._take({**self.table, **{n: max(offset, self.table.get(n, 0)) for n, offset in bounded.items()}}, log_end)
        self.changed = True

    def _take(self, table: dict[int, int], log_end: int) -> None:
        self.table, self.log_end = table, log_end
        self._taken = log_end, dict(table)
        self._copied = None if table else {}
        self._uncopied.clear()
        self.changed = False

    def persist(self) -> None:
        """Write the table now if it has changed, when the log is on disk and no other call runs; if the disk fails, it
        logs an error and the next call tries again."""
        if self._file is None or not self.changed:
            return
        try:
            self._file.save(self._text())
        except OSError as error:
            self._file.log_failure(error)
        else:
            self.changed = False

    def write_first(self) -> None:
        """Write the empty table of a store that has had no delayed message."""
        self.changed = True
        self.persist()

    async def persist_in_background(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Write the table without holding up the event loop, if it has changed.

        Args:
            flush: waits until the log is on disk. It comes first: after a power failure the file must not count a
                delivery whose copy is lost. On OSError the table is written later.
        """
        if self._file is None or not self.changed:
            await trio.lowlevel.checkpoint()
            return
        self.changed = False
        text = self._text()
        written = False
        try:
            await flush()
            await self._file.save_in_background(text)
            written = True
        except OSError as error:
            self._file.log_failure(error)
        finally:
            if not written:
                self.changed = True

    def _text(self) -> bytes:
        return fastjson.dumps_pretty({"offsetTable": self.table})
