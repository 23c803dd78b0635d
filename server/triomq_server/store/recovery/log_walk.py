"""Walks along the log, for queues and index that are built again: the records between two log offsets."""

from __future__ import annotations

import logging
from collections.abc import Generator

from triomq_protocol.record.check import Finding, LogRecord, read_record
from triomq_server.store.files.segments import Segment, Segments
from triomq_server.store.recovery.steps import RECORDS_PER_STEP
from triomq_server.store.repair.damage import next_sound

_log = logging.getLogger(__name__)


class LogWalk:
    """Walks along one log; damage in it is reported once.

    With `compat_49` a walk ends at the first damage.
    """

    def __init__(self, segments: Segments, *, compat_49: bool) -> None:
        self._segments = segments
        self._compat_49 = compat_49
        self._passed_over: set[int] = set()
        """Log offsets of damage that has been reported."""

    def records_between(self, begin: int, end: int) -> Generator[LogRecord | None, None, None]:
        """The records of a range of the log, without damaged ones; now and then None. A range that begins inside a record is
        widened."""
        if begin >= end:
            return  # there is no record at the log's end, either
        seen = 0
        segment, at = self._begin_of_walk(begin)
        while segment is not None and segment.base + at < end:
            found = read_record(
                segment.buffer, at, min(segment.size, end - segment.base), segment.base + at, check_crc=False
            )
            if isinstance(found, LogRecord):
                yield found
                at += found.size
            elif found is Finding.BLANK:
                at = segment.size
            else:
                sound = yield from self._behind_damage(segment, at, end, found)
                if sound is None:
                    return
                segment, at = sound
            seen += 1
            if seen % RECORDS_PER_STEP == 0:
                yield None
            if at >= segment.size:
                segment, at = self._segments.following(segment), 0

    def _begin_of_walk(self, begin: int) -> tuple[Segment | None, int]:
        segment = self._segments.find(begin)
        if segment is None and self._segments.items:
            segment = self._segments.items[0] if begin < self._segments.min_offset else None
        at = 0 if segment is None else max(0, begin - segment.base)
        if segment is not None and at and self._is_no_record(segment, at):
            at = 0
        return segment, at

    def _behind_damage(
        self, segment: Segment, at: int, end: int, found: Finding
    ) -> Generator[None, None, tuple[Segment, int] | None]:
        """Where the log is sound again before `end`. A part of the log that this start has not checked may be damaged."""
        if self._compat_49:
            return None
        items = self._segments.items
        here = items[items.index(segment) :]
        sound = yield from next_sound(here, 0, at, 0)
        if sound is None:
            return None
        start, behind = segment.base + at, here[sound.index]
        if behind.base + sound.at >= end:
            return None
        if start not in self._passed_over:
            self._passed_over.add(start)
            _log.error(
                "the log holds %s at offset %d: queues and index that are built again get no entries for the %d bytes up to "
                "the next sound record", found.value, start, behind.base + sound.at - start,
            )  # fmt: skip
        return behind, sound.at

    @staticmethod
    def _is_no_record(segment: Segment, at: int) -> bool:
        found = read_record(segment.buffer, at, segment.size, segment.base + at, check_crc=False)
        return not isinstance(found, LogRecord) and found is not Finding.BLANK
