"""The repair of a stopped broker's log and tables from another broker of its set."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

import attrs
import trio

from triomq_protocol.codes import RequestCode
from triomq_server.broker.tables.table_files import (
    MEMBERS,
    UnusableTableError,
    flaw_of_file,
    received_table,
    refused_files,
)
from triomq_server.disk import RealDisk
from triomq_server.disk.access import lock_store
from triomq_server.disk.config_files import ConfigFile
from triomq_server.replication.divergence import NotComparableError, RemoteLog
from triomq_server.replication.log_copy import LogCopy, NotThereError, fetch_table
from triomq_server.store.files.segments import Segment
from triomq_server.store.stopped.checking import log_end_by_queues, log_files, missing_end_text
from triomq_server.store.stopped.log_repair import (
    Place,
    Survey,
    damaged_places,
    flaw_of_copy,
    is_same,
    last_records,
    missing_files,
    queue_end_on_disk,
    size_of_next,
    tail_as_written,
    with_new_files,
    write_place,
)
from triomq_server.wire import Asking, LinkError, OpenLink, error_text, failure_reason
from triomq_server.wire import open_link as open_tcp_link

CONNECT_TIMEOUT_S = 10.0
_LARGEST_RECORD_BYTES = 1 << 24
"""Bytes to read to find out a record's size: RocketMQ's brokers return only whole records."""

_REQUESTS = {
    "config/topics.json": RequestCode.GET_ALL_TOPIC_CONFIG,
    "config/subscriptionGroup.json": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "config/consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "config/delayOffset.json": RequestCode.GET_ALL_DELAY_OFFSET,
}
"""The request for each table."""


@attrs.frozen
class Outcome:
    """The result for one damaged place or table.

    Attributes:
        what: the damage.
        found: the replacement from the other broker; empty if it has none that fits.
        source: the other broker.
        repaired: whether the replacement has been written.
        reasons: why other brokers, or all, are of no use.
    """

    what: str
    found: str = ""
    source: str = ""
    repaired: bool = False
    reasons: tuple[str, ...] = ()


class UnusableCopyError(Exception):
    """The other broker's copy does not fit."""


class _NothingToCompareError(Exception):
    """The two logs have no common record by which to recognise the other broker's log."""


@attrs.frozen
class _Run:
    """The arguments and state of one repair.

    Attributes:
        root, sources, write, trust, open_link: as the arguments of `repair`.
        log: the log's directory.
        survey: the findings of the walk through the log.
        proofs: by source, the reason why its log is not a copy of this one or cannot be compared, or an empty text; and
            whether its tables may be taken.
    """

    root: Path
    log: Path
    sources: Sequence[str]
    write: bool
    trust: bool
    open_link: OpenLink
    survey: Survey
    proofs: dict[str, tuple[str, bool]] = attrs.field(factory=dict)

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last message of a queue; 0 if it is empty. Raises OSError."""
        end = self.survey.queue_ends.get((topic, queue_id))
        return queue_end_on_disk(self.root, topic, queue_id) if end is None else end


async def repair(
    root: Path,
    sources: Sequence[str],
    log: Path | None,
    write: bool,
    open_link: OpenLink | None = None,
    *,
    trust: bool = False,
) -> list[Outcome]:
    """Repair everything possible; every damaged place and table has an outcome.

    Args:
        root: the store's directory.
        sources: main ports of other brokers of the set.
        log: the log's directory, if it is not `commitlog` below `root`.
        write: whether to write; otherwise only determine what would be written.
        open_link: opens links to the other brokers.
        trust: whether to take tables, and a log without any sound record, from brokers whose logs cannot be compared
            with this one.

    Raises:
        StoreLocked: the broker of this store, or another one with this log, runs.
        StoreDamaged: there is no log, or its files have different lengths.
        OSError: a file cannot be read or written.
    """
    disk = RealDisk()
    release = lock_store(disk, str(root), str(log or root / "commitlog"))
    try:
        segments = list(log_files(log or root / "commitlog"))
        survey = Survey()
        places = await disk.run(lambda: list(damaged_places(segments, root / "triomq" / "damaged", survey)))
        tables = await disk.run(lambda: _damaged_tables(root))
        end_by_queues = await disk.run(lambda: log_end_by_queues(root))
        lost = [_lost_end(survey.end, end_by_queues)] if end_by_queues > max(survey.end, _end_of(places)) else []
        if not places and not tables:
            return lost
        run = _Run(root, log or root / "commitlog", sources, write, trust, open_link or open_tcp_link, survey)
        outcomes = [await _repair_place(run, segments, place) for place in places]
        outcomes += [await _repair_table(run, segments, name, what) for name, what in tables]
        return [one for one in outcomes if one is not None] + lost
    finally:
        release()


def _end_of(places: list[Place]) -> int:
    return max((place.stop for place in places), default=0)


def _lost_end(end: int, end_by_queues: int) -> Outcome:
    """Report that the log lacks its end, which is not copied: another broker that has it is the better master."""
    return Outcome(
        f"log offset {end}: {missing_end_text(end_by_queues)}",
        reasons=(
            "put the missing files there again from a copy, or make a broker of the set that has them the master",
        ),
    )


def _damaged_tables(root: Path) -> list[tuple[str, str]]:
    """The missing tables, and the files that a start would refuse, each with its problem."""
    found = [(name, flaw) for name in MEMBERS if (flaw := flaw_of_file(root, name))]
    return found + [(name, why) for name, why in refused_files(root) if name not in MEMBERS]


# -- the log


async def _repair_place(run: _Run, segments: list[Segment], place: Place) -> Outcome | None:
    """Repair one place; None if the copy has the same bytes.

    Then the log's own mark at a file's end was taken for damage."""
    place = tail_as_written(segments, place)
    what = f"log offset {place.start}, {place.stop - place.start} bytes: {place.what}"
    reasons = []
    for source in run.sources:
        with tempfile.TemporaryFile(dir=run.root) as spool:  # a place may be as large as the log
            try:
                async with _opened(source, run.open_link) as link:
                    records, place = await _fetch(run, link, segments, place, spool)
            except UnusableCopyError as error:
                reasons.append(f"{source}: {error_text(error)}")
                continue
            with _mapped(spool) as data:
                missing = missing_files(segments, place)
                if not missing and is_same(segments, place, data):
                    return None
                if run.write:
                    disk = RealDisk()
                    write_place(disk, run.root, with_new_files(disk, run.log, segments, missing), place, data)
        found = f"{records} record{'s'[: records != 1]}"
        if missing:
            found += f", in {len(missing)} new file{'s'[: len(missing) > 1]}"
        return Outcome(what, found, source, run.write, tuple(reasons))
    if not place.after:
        reasons.append("this is the log's end: without a repair the next start cuts it off")
    return Outcome(what, reasons=tuple(reasons))


async def _fetch(run: _Run, link: Asking, segments: list[Segment], place: Place, spool: IO[bytes]) -> tuple[int, Place]:
    """Copy a place's bytes from another broker to a file, and check them.

    Returns:
        The number of records, and the place; at the log's end, it reaches to the end of its last record.
    """
    if not place.before and not place.after and not run.trust:
        raise UnusableCopyError(
            "this log has no sound record to be compared with, so that nothing shows whether it is a copy "
            "(--trust-peer takes it for one)"
        )
    copy = LogCopy(link)
    for nearest in (place.before[::-1], place.after):
        for offset, size in nearest:
            if await _read(copy, offset, size) == _own_bytes(segments, offset, size):
                break
        else:
            if nearest:
                raise UnusableCopyError(
                    f"the records around log offset {place.start} are others: it is not a copy of this log"
                )
    at = place.start
    while at < place.stop:
        if place.after:
            data = await _some(copy, at, place.stop - at)
        else:
            size = size_of_next(await _some(copy, at, _LARGEST_RECORD_BYTES), at, segments[0].size)
            data = await _read(copy, at, size)
        spool.write(data)
        at += len(data)
    spool.flush()
    place = attrs.evolve(place, stop=at)
    with _mapped(spool) as view:
        copied = Survey()
        records, flaw = flaw_of_copy(view, place, segments[0].size, copied)
    if flaw:
        raise UnusableCopyError(flaw)
    run.survey.take_queue_ends(copied)
    return records, place


async def _read(copy: LogCopy, offset: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await _some(copy, offset + len(data), size - len(data))
    return data


async def _some(copy: LogCopy, offset: int, size: int) -> bytes:
    try:
        return await copy.read(offset, size)
    except (NotThereError, LinkError, OSError) as error:
        raise UnusableCopyError(failure_reason(error)) from error


def _own_bytes(segments: list[Segment], offset: int, size: int) -> bytes:
    segment = next(segment for segment in segments if segment.base <= offset < segment.end)
    return bytes(segment.buffer[offset - segment.base : offset - segment.base + size])


@contextmanager
def _mapped(spool: IO[bytes]) -> Iterator[mmap.mmap]:
    with mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


@asynccontextmanager
async def _opened(address: str, open_link: OpenLink) -> AsyncIterator[Asking]:
    """Open a link to a broker. Raises UnusableCopyError if it fails."""
    with trio.CancelScope() as scope:
        scope.deadline = trio.current_time() + CONNECT_TIMEOUT_S
        try:
            async with open_link(address) as link:
                scope.deadline = float("inf")
                yield link
        except (OSError, LinkError, ValueError) as error:
            raise UnusableCopyError(f"cannot be asked: {failure_reason(error)}") from error
    if scope.cancelled_caught:
        raise UnusableCopyError(f"does not answer within {CONNECT_TIMEOUT_S:.0f} s")


# -- the tables


async def _repair_table(run: _Run, segments: list[Segment], name: str, what: str) -> Outcome | None:
    """Repair one table; None if it is missing, and empty on the other broker too."""
    if name not in MEMBERS:
        return Outcome(what, reasons=("no other broker has this file: repair it or move it away",))
    reasons, empty = [], False
    for source in run.sources:
        try:
            async with _opened(source, run.open_link) as link:
                unproven = await _prove_once(run, link, segments, source)
                body = await fetch_table(link, _REQUESTS[name])
                table = await trio.to_thread.run_sync(received_table, name, body, run.queue_end)
        except (UnusableCopyError, UnusableTableError, NotThereError, LinkError) as error:
            reasons.append(f"{source}: {error_text(error)}")
            continue
        if not table.entries:
            empty = True
            continue
        if unproven:
            reasons.append(f"{source}: {unproven}")
        if run.write:
            _keep_aside(run.root, name)
            ConfigFile(f"{run.root}/{name}", RealDisk()).save(table.text)
        found = f"{table.entries} entries"
        if table.lowered:
            found += f"; {table.lowered} offsets were behind the messages that this log holds, and are lowered to them"
        return Outcome(what, found, source, run.write, tuple(reasons))
    if empty and not reasons and "missing" in what:  # it has never been written
        return None
    return Outcome(what, reasons=(*reasons, *(["the other broker has an empty table"] if empty else [])))


async def _prove_once(run: _Run, link: Asking, segments: list[Segment], source: str) -> str:
    """Ask a broker once for the records that prove its log to be a copy of this one.

    Returns:
        An empty text if they do; the reason why nothing can be compared if it is trusted nevertheless.

    Raises:
        UnusableCopyError: it has another log, or nothing can be compared.
    """
    if source not in run.proofs:
        try:
            await _prove(run, link, segments)
        except UnusableCopyError as error:
            run.proofs[source] = error_text(error), False
        except _NothingToCompareError as error:
            run.proofs[source] = error_text(error), run.trust
        else:
            run.proofs[source] = "", True
    why, is_usable = run.proofs[source]
    if not is_usable:
        raise UnusableCopyError(why)
    return why


async def _prove(run: _Run, link: Asking, segments: list[Segment]) -> None:
    """Compare the last records that both logs have, and others from all parts of the log.

    Some may differ, in damage that is still unknown on either side: one of the last must be the same, and half of all.
    """
    try:
        begin, end = await RemoteLog(link).bounds()
    except (NotComparableError, LinkError, OSError) as error:
        raise UnusableCopyError(failure_reason(error)) from error
    survey = run.survey
    last = await trio.to_thread.run_sync(last_records, segments, min(end, survey.end))
    copy = LogCopy(link)
    same, refused = {}, ""
    for offset, size in (*last[::-1], *survey.spread):
        if begin <= offset and offset + size <= end and (offset, size) not in same:
            try:
                same[offset, size] = await _read(copy, offset, size) == _own_bytes(segments, offset, size)
            except UnusableCopyError as error:
                same[offset, size], refused = False, error_text(error)
    if not same:
        raise _NothingToCompareError(
            f"its log reaches from log offset {begin} to {end}, and has no record in common with this one, so that "
            "nothing shows whether it is a copy (--trust-peer takes it for one)"
        )
    if not any(same.get(one) for one in last) or 2 * sum(same.values()) < len(same):
        reason = f": {refused}" if refused else ""
        raise UnusableCopyError(
            f"of {len(same)} records that both logs should have, {sum(same.values())} are the same: it is not a copy of "
            f"this log{reason}"
        )


def _keep_aside(root: Path, name: str) -> None:
    """Copy an unreadable table to `triomq/damaged`."""
    folder = root / "triomq" / "damaged"
    for file in (root / name, root / f"{name}.bak"):
        if file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(file.read_bytes())
