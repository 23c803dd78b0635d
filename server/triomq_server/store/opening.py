"""Opens and closes a store directory: `open_store` (docs/protocol/store.md §14.1, §14.4, §14.8)."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial

import trio

from triomq_command.garbage import without_collections
from triomq_server.clock_waits import ClockWaits
from triomq_server.config import StoreConfig
from triomq_server.disk.access import Disk, lock_store
from triomq_server.disk.real_disk import RealDisk
from triomq_server.restarting import restarted
from triomq_server.store.files.segments import StoreDamaged
from triomq_server.store.flush.unconfirmed import forget_refusal, noted_refusal
from triomq_server.store.index import Index, IndexFile
from triomq_server.store.message_store import LOG_EMPTIED, MessageStore
from triomq_server.store.notes.index_rebuild import forget_rebuild, note_rebuild, noted_rebuild
from triomq_server.store.notes.last_run import last_run, note_run
from triomq_server.store.notes.noted_offset import forget_offset, noted_offset
from triomq_server.store.notes.repaired import forget_repaired
from triomq_server.store.recovery.log_check import first_after_clean_stop
from triomq_server.store.recovery.recovery import Recovery
from triomq_server.store.retention import LocalTime

_log = logging.getLogger(__name__)

_CLEAN = b"clean"


def wall_ms() -> int:
    """Milliseconds since the epoch: the default clock of the store's time stamps."""
    return time.time_ns() // 1_000_000


def wall_calendar(time_ms: int) -> time.struct_time:
    """The calendar in this machine's time zone: the default of the store's `local_time`."""
    return time.localtime(time_ms // 1000)


@asynccontextmanager
async def open_store(
    config: StoreConfig,
    *,
    disk: Disk | None = None,
    clock: Callable[[], int] = wall_ms,
    local_time: LocalTime = wall_calendar,
    is_slave: bool | None = None,
    clock_waits: ClockWaits | None = None,
) -> AsyncIterator[MessageStore]:
    """Lock, load, recover and serve a store directory; flush and close it in order on exit.

    Args:
        config: location and behaviour of the store.
        disk: access to the files; default: the operating system's.
        clock: ms since the epoch, for store timestamps and expiry.
        local_time: converts such a time to local time, for the hour of expiry and the names of index files.
        is_slave: whether a master feeds the log; default: by the configured role.
        clock_waits: wakes the expiry when the clock is set.

    Raises StoreLocked if the store's or the log's directory is open elsewhere, StoreDamaged if a file has a wrong length
    or name, or the log of the queues is missing; neither changes anything.
    """
    disk = disk if disk is not None else RealDisk()
    release = lock_store(disk, config.store_path_root_dir, config.store_path_commit_log, new_log=True)
    try:
        slave = config.is_slave if is_slave is None else is_slave
        store = MessageStore(config, disk, clock, local_time, is_slave=slave, clock_waits=clock_waits)
        await _load(store, config)
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(restarted, store.flusher.flush_log_forever)
                nursery.start_soon(restarted, store.flusher.expire_waiters_forever)
                nursery.start_soon(restarted, store.flusher.prepare_space_forever)
                nursery.start_soon(restarted, store.flusher.flush_queues_forever)
                nursery.start_soon(restarted, store.cleaner.clean_forever)
                nursery.start_soon(restarted, store.cleaner.watch_space_forever)
                nursery.start_soon(restarted, store.entry_repair.repair_forever)
                nursery.start_soon(restarted, store.dispatcher.index_forever)
                try:
                    yield store
                except BaseException as e:  # noqa: BLE001 - raised again below, outside of the nursery's group
                    failure = e
                nursery.cancel_scope.cancel()
        finally:
            store.close()
            with trio.CancelScope(shield=True):
                await _unload(store, config)
        if failure is not None:
            raise failure
    finally:
        release()


def note_repair(disk: Disk, root: str) -> None:
    """From now on every start reads the whole log, and builds again what queues and index lack, until one has closed the
    store in order. Called before anything is changed, and again after a kill."""
    path = _repair_file(root)
    if not disk.exists(path):
        disk.make_directory(f"{root}/triomq")
        disk.write(path, b"" if disk.exists(f"{root}/abort") else _CLEAN)


def is_repair_unfinished(disk: Disk, root: str) -> bool:
    """Whether a start would read the whole log, since a repair has not come to its end."""
    return disk.exists(_repair_file(root))


async def recover_whole(config: StoreConfig, disk: Disk) -> None:
    """Recover a locked store after `note_repair`, and close it in order; nothing expires meanwhile.

    Raises:
        StoreDamaged: a log file has a wrong length or name, or there is none.
        OSError: a file cannot be read or written, or is not known to be on the disk.
    """
    store = MessageStore(config, disk, wall_ms, wall_calendar, is_slave=True)
    await _load(store, config)
    store.close()
    await _unload(store, config)
    if is_repair_unfinished(disk, config.store_path_root_dir):
        raise OSError(f"the repair of {config.store_path_root_dir} is not on the disk: do it again")


async def _load(store: MessageStore, config: StoreConfig) -> None:
    with without_collections():
        await _load_and_recover(store, config)


async def _load_and_recover(store: MessageStore, config: StoreConfig) -> None:
    disk, root = store.disk, config.store_path_root_dir
    clean = not disk.exists(f"{root}/abort")
    last = last_run(disk, root)
    same_boot = not config.compat_49 and last.same_boot
    refused_from = noted_refusal(disk, root)
    # A killed process leaves its own append complete or absent. A copy from a master may end anywhere.
    may_be_torn = not clean and not (same_boot and last.was_master)
    repair = _repair_file(root)
    is_repair = disk.exists(repair)
    if is_repair:
        # Everything on the disk is read and compared, and nothing was being written: sound parts are kept.
        clean, same_boot = disk.read(repair) == _CLEAN, True
        may_be_torn = not clean
    store.commitlog.segments.load("mappedFileSizeCommitLog")
    if not config.compat_49 and noted_offset(disk, root, LOG_EMPTIED) is None:
        _check_log_is_there(store, root)
    store.queue_rebuild.load()
    with closing(store.consume_queues.load()) as steps:  # has a thread, which a cancel ends, too
        for _ in steps:
            await trio.lowlevel.checkpoint()
    store.checkpoint.load()
    reindex_from = None
    if store.index is not None:
        # A disk that has refused a write may lack bytes that memory has; only writing them again gets them there.
        reindex_from = _load_index(
            store.index, store.checkpoint.index_timestamp, disk, config,
            clean=clean, is_repair=is_repair, in_memory=same_boot and refused_from is None,
        )  # fmt: skip
    if clean and (segments := store.commitlog.segments.items):
        store.queue_rebuild.note_start(segments[first_after_clean_stop(segments)].base)
    disk.write(f"{root}/abort", b"")
    recovery = Recovery(
        config,
        store.commitlog,
        store.consume_queues,
        store.index,
        store.checkpoint,
        store.dispatcher,
        disk,
        clean=clean,
        same_boot=same_boot,
        may_be_torn=may_be_torn,
        reindex_from=reindex_from,
        queue_rebuild=store.queue_rebuild,
        whole=is_repair,
    )
    for _ in recovery.steps():
        await trio.lowlevel.checkpoint()
    store.recovery_report = recovery.report
    store.dispatcher.start_at_end()
    if store.index is not None and reindex_from is not None and not store.dispatcher.index_is_behind:
        await _finish_rebuild(store.index, disk, root, reindex_from)
    _bound_checkpoint(store)
    await store.flusher.lower_checkpoint()  # before anything replaces the bytes that were cut off
    store.flusher.flushed_offset = store.commitlog.max_offset if clean else store.commitlog.min_offset
    note_run(disk, root, is_slave=store.is_slave)
    forget_offset(disk, root, LOG_EMPTIED)
    await _finish_recovery(store, root, refused_from if last.same_boot else None)


def _load_index(
    index: Index,
    forced_until: int,
    disk: Disk,
    config: StoreConfig,
    *,
    clean: bool,
    is_repair: bool,
    in_memory: bool,
) -> int | None:
    """Load the index files that can be kept; returns the log offset from which records have to be indexed again, or None.

    Args:
        index: an empty index.
        forced_until: the checkpoint's time up to which index files are on the disk.
        disk: where the files are.
        config: of the store.
        clean: whether the store had been closed cleanly.
        is_repair: whether a repair reads the whole store.
        in_memory: whether all that the last run wrote is in memory, if not on the disk.
    """
    latest = 0
    unforced: list[IndexFile] = []

    def keep(file: IndexFile) -> bool:
        nonlocal latest
        # A killed process loses nothing it had written; a machine that went down may have lost any page of a file
        # that was not known to be on disk.
        # Only full files are ever forced to the disk, so the time alone, Java's test, is not enough.
        # It is not enough either if times go back from one file to the next: the known file may be the earlier one.
        known = file.end_timestamp <= forced_until and (
            config.compat_49 or (file.full and file.end_timestamp >= latest)
        )
        latest = max(latest, file.end_timestamp)
        if file.full and not (clean or known):
            unforced.append(file)
        return clean or known or in_memory

    root, rebuild = config.store_path_root_dir, not config.compat_49
    reindex_from = index.load(
        keep,
        exact=clean and not is_repair,
        rebuild=rebuild,
        noted=noted_rebuild(disk, root) if rebuild else None,
        note=partial(note_rebuild, disk, root) if rebuild else lambda _: True,
    )
    # Bytes that a killed process wrote may still be in memory only.
    index.filled += [file for file in unforced if file in index.files]
    return reindex_from


async def _finish_recovery(store: MessageStore, root: str, refused_from: int | None) -> None:
    """After recovery: put on the disk what it has built again, and what the disk has refused an earlier run."""
    if not store.is_slave:
        store.put_last_skipped()
    if refused_from is not None:
        await store.flusher.doubt_log(refused_from)
    else:
        forget_refusal(store.disk, root)
    if store.queue_rebuild.log_offset is None or await store.flusher.flush_queues_once():
        store.queue_rebuild.forget()


def _check_log_is_there(store: MessageStore, root: str) -> None:
    """Without its log a store would remove all queues, and number new messages from 0: readers would find nothing, and
    slaves that have the log could not follow. To be called before queues are loaded, which removes damaged files."""
    log = store.commitlog.segments
    if not log.items and store.consume_queues.are_on_disk():
        raise StoreDamaged(
            f"{log.directory} has no log files, but {root}/consumequeue has entries of their messages: mount the disk of the "
            f"log, or correct storePathCommitLog. If the log is lost, and another broker of the set has it, make that one the "
            f"master. To start without messages, move {root}/consumequeue and {root}/index away"
        )


def _bound_checkpoint(store: MessageStore) -> None:
    """After recovery: the checkpoint covers no more than there is, and all of that counts as dispatched."""
    checkpoint, log = store.checkpoint, store.commitlog
    if log.store_timestamp < min(checkpoint.physic_timestamp, checkpoint.queues_timestamp):
        checkpoint.went_back(log.store_timestamp)
    checkpoint.log_cut(log.max_offset)
    if not store.dispatcher.index_is_behind:
        checkpoint.logics_offset = log.max_offset


async def _finish_rebuild(index: Index, disk: Disk, root: str, reindex_from: int) -> None:
    """The index has been built again from a log offset on: have it on the disk, and forget that it was to be."""
    try:
        await disk.run(partial(index.sync_behind, reindex_from))
        forget_rebuild(disk, root)
    except OSError as error:
        _log.error("the index cannot be forced to the disk: %s; the next start builds it again", error)


async def _unload(store: MessageStore, config: StoreConfig) -> None:
    """Flush and close everything; the abort marker goes only if all of it is on disk."""
    whole = await store.drop_unfinished()
    store.checkpoint.queue_entries = store.consume_queues.entries()
    refused = await store.flusher.flush_everything()
    safe = refused is None and whole
    store.commitlog.close()
    store.consume_queues.close()
    if store.index is not None:
        store.index.close()
    if safe:
        forget_repaired(store.disk, config.store_path_root_dir)
    if not safe or store.dispatcher.index_is_behind:
        store.not_written = (
            refused or "the disk has no space for the queues' and the index's entries of its last messages"
        )
    else:
        store.disk.remove(_repair_file(config.store_path_root_dir))
        store.disk.remove(f"{config.store_path_root_dir}/abort")


def _repair_file(root: str) -> str:
    """Says that a repair has begun, and whether the store had been closed cleanly before."""
    return f"{root}/triomq/repairing"
