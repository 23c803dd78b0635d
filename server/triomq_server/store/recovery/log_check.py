"""Finds the end of the log: which of its files are checked, what is sound in them, and what is cut off behind them."""

from __future__ import annotations

import logging
from collections.abc import Generator

from triomq_protocol.checksum import raw_crc32
from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_protocol.record.layout import FIXED_BYTES, MARK, MESSAGE_MAGIC
from triomq_server.compiled import USED as COMPILED
from triomq_server.config import StoreConfig
from triomq_server.disk import Disk
from triomq_server.store.commitlog import CommitLog, enters_queue
from triomq_server.store.files.checkpoint import Checkpoint
from triomq_server.store.files.segments import Segment
from triomq_server.store.recovery.steps import BYTES_PER_STEP, RECORDS_PER_STEP
from triomq_server.store.repair.damage import Sound, bridge, copy_aside, damaged_folder, next_sound, written_bytes

if COMPILED:
    from triomq_server.compiled import recovery as compiled_recovery

_log = logging.getLogger(__name__)

_FILES_CHECKED_AFTER_CLEAN_STOP = 3
_OTHER_BYTES = 1 << 16


def first_after_clean_stop(segments: list[Segment]) -> int:
    """The number in the list of the first log file that a start after a clean stop checks."""
    return max(0, len(segments) - _FILES_CHECKED_AFTER_CLEAN_STOP)


class LogCheck:
    """The check of one log. First `check`, then `cut` at the end that it has found.

    Attributes:
        records: number of good records found.
        last_records: of the last record read for each topic and queue: queue offset, log offset, size.
        damaged: start and end log offsets of parts that are damaged or missing, with sound records behind them.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        checkpoint: Checkpoint,
        disk: Disk,
        *,
        clean: bool,
        same_boot: bool,
        may_be_torn: bool,
        whole: bool,
    ) -> None:
        self._config = config
        self._commitlog = log
        self._checkpoint = checkpoint
        self._disk = disk
        self._clean = clean
        self._same_boot = same_boot
        self._may_be_torn = may_be_torn
        """Whether the log's last record may lack its last bytes."""
        self._whole = whole
        self.records = 0
        self.last_records: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.damaged: list[tuple[int, int]] = []

    def first_to_check(self, segments: list[Segment]) -> int:
        """After a clean stop the third-last file; else the last one whose beginning the checkpoint covers.

        The times alone do not decide where they go back in the log: a file that the disk has by chance may begin before the
        checkpoint's time, although what precedes it was not known to be in the queues.
        """
        if self._whole:
            return 0
        if self._clean:
            return first_after_clean_stop(segments)
        safe = self._checkpoint.min_timestamp
        if self._config.message_index_enable and self._config.message_index_safe:
            safe = self._checkpoint.min_timestamp_index
        last = len(segments) - 1
        covered = min(self._checkpoint.log_offset, self._checkpoint.queues_offset)
        if covered and not self._config.compat_49:
            while last > 0 and segments[last].base > covered:
                last -= 1
        for n in range(last, -1, -1):
            record = read_record(segments[n].buffer, 0, segments[n].size, segments[n].base, check_crc=False)
            if isinstance(record, LogRecord) and 0 < record.store_timestamp <= safe:
                return n
        return 0

    def check(self, segments: list[Segment]) -> Generator[None, None, tuple[int, Finding]]:
        """Walk record by record; returns the end of the good records and the finding there."""
        n = at = 0
        while n < len(segments):
            segment = segments[n]
            at, found = yield from self._check_run(segment, at)
            if found is Finding.BLANK:
                # The filler belongs to the log, also when no file follows: slaves own its bytes already.
                n, at = n + 1, 0
                continue
            sound = yield from self._get_across(segments, n, at, found)
            if sound is None:
                return segment.base + at, found
            n, at = sound.index, sound.at
        return segments[-1].end, Finding.NOTHING

    def _check_run(self, segment: Segment, at: int) -> Generator[None, None, tuple[int, Finding]]:
        """Walk through one file; returns the first position without a good record, and the finding there."""
        check_crc = self._config.check_crc_on_recover
        buffer, last_records = segment.buffer, self.last_records
        while True:
            if COMPILED:
                at, passed, store_timestamp = compiled_recovery.pass_records(
                    buffer, at, segment.size, segment.base, BYTES_PER_STEP, raw_crc32 if check_crc else None,
                    self._may_be_torn, last_records,
                )  # fmt: skip
                if passed:
                    self.records += passed
                    self._commitlog.store_timestamp = store_timestamp
                    yield
            found = read_record(buffer, at, segment.size, segment.base + at, check_crc=check_crc)
            if not isinstance(found, LogRecord):
                return at, found
            if self._may_be_torn and looks_torn(buffer, at + found.size, segment.size, found.properties):
                return at, Finding.TORN
            at += found.size
            self.records += 1
            if enters_queue(found.sys_flag):
                last_records[found.topic, found.queue_id] = found.queue_offset, found.offset, found.size
            self._commitlog.store_timestamp = found.store_timestamp
            if self.records % RECORDS_PER_STEP == 0:
                yield

    def _get_across(
        self, segments: list[Segment], n: int, at: int, found: Finding
    ) -> Generator[None, None, Sound | None]:
        """Move damage in the middle of the log aside; None if no sound records follow, or none that are to be kept."""
        if self._config.compat_49:
            return None
        sound = yield from next_sound(segments, n, at, self._commitlog.store_timestamp, self._checkpoint.log_offset)
        if sound is None:
            return None
        folder = damaged_folder(self._config.store_path_root_dir)
        start, stop = segments[n].base + at, segments[sound.index].base + sound.at
        if self._checkpoint.log_offset:
            flushed = stop <= self._checkpoint.log_offset
        else:
            flushed = sound.store_timestamp is not None and sound.store_timestamp < self._checkpoint.physic_timestamp
        keep = (self._clean or self._same_boot or flushed) and not self._is_unfinished_batch(segments, n, found, sound)
        last = len(segments) - 1
        copy_aside(
            self._disk, folder, segments, n, at, (sound.index, sound.at) if keep else (last, segments[last].size)
        )
        if not keep or not bridge(segments, n, at, sound, self._commitlog.store_timestamp):
            _log.error(
                "the log holds %s at offset %d, and what lies behind was not written or not flushed to its end before "
                "the process or the machine went down: it is cut off and copied to %s", found.value, start, folder,
            )  # fmt: skip
            return None
        self.damaged.append((start, stop))
        _log.error(
            "the log holds %s at offset %d: %d bytes up to the next sound record are lost to readers and copied to %s; "
            "`triomq admin repair-store` fetches them from another broker of the set",
            found.value, start, stop - start, folder,
        )  # fmt: skip
        return sound

    def _is_unfinished_batch(self, segments: list[Segment], n: int, found: Finding, sound: Sound) -> bool:
        """Whether the bytes after this position are a batch whose first eight bytes were still missing when the process was
        killed: it was never acknowledged, and a batch is stored as a whole or not at all.

        Such a batch was the last write, and its records have one queue and one store time.
        """
        if self._clean or found is not Finding.NOTHING or sound.index != n:
            return False
        segment, end = segments[n], sound.at
        batch: tuple[str, int, int] | None = None
        while isinstance(
            record := read_record(segment.buffer, end, segment.size, segment.base + end, check_crc=False), LogRecord
        ):
            this = (record.topic, record.queue_id, record.store_timestamp)
            if this != (batch or this):
                return False
            batch = this
            end += record.size
        return record is Finding.NOTHING

    def unfinished_end(self, end: int) -> int:
        """Up to where the log's bytes behind `end` may be the beginning of a record, and no more: a slave has its master's
        bytes forced to the disk as they come."""
        segment = self._commitlog.segments.find(end)
        if segment is None or not self._may_be_torn:
            return end
        size, space = 0, segment.end - end
        if space >= MARK.size:
            size, magic = MARK.unpack_from(segment.buffer, end - segment.base)
            size = size if magic == MESSAGE_MAGIC and size <= space else 0
        return end + max(size, FIXED_BYTES) - 1

    def cut(self, checked_from: int, end: int, finding: Finding) -> tuple[int, tuple[str, ...]]:
        """Cut the log at `end`; returns how many written bytes were behind it, and the whole files that were deleted.

        Args:
            checked_from: where `check` began: after a kill, files from there on count as not flushed.
            end: the end of the good records.
            finding: what is there.
        """
        log = self._commitlog
        segment = log.segments.find(end)
        dropped = 0
        if segment is not None:
            at, reach = end - segment.base, segment.size
            if finding is Finding.NOTHING:
                # Mostly true zeros; a record whose first bytes were lost would end within this reach.
                reach = min(reach, at + self._config.max_message_size + _OTHER_BYTES)
            rest = memoryview(segment.buffer)[at : segment.file.content_end(at, reach)]
            dropped = written_bytes(rest)
            rest.release()
        deleted = []
        for behind in log.segments.items:
            if behind.base > end and any(behind.buffer[: MARK.size]):  # files prepared ahead are empty, and no loss
                deleted.append(behind.path)
                dropped += behind.size
        log.truncate(end)
        if not self._clean:
            # Bytes that a killed process wrote may still be in memory only.
            for kept in log.segments.items:
                kept.flushed = 0 if kept.base >= checked_from else kept.flushed
        log.reset_to_segments()
        return dropped, tuple(deleted)


def looks_torn(buffer: object, end: int, size: int, properties: bytes) -> bool:
    """Whether a record that passes every other test lost its last bytes.

    The checksum does not cover the properties. After a power failure their page may be missing, and a copy of
    replicated bytes may have been interrupted in them: then zeros end the record, and nothing is behind it.
    """
    if not properties or properties[-1]:
        return False
    zeros = len(properties) - len(properties.rstrip(b"\0"))
    if zeros < min(4, len(properties)) and zeros < end % 4096:
        return False
    view = memoryview(buffer)  # type: ignore[arg-type]
    behind = bytes(view[end : min(end + MARK.size, size)])
    view.release()
    return not any(behind)
