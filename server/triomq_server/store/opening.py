"""`open_store`: from a directory to an open store and back (store.md §14.1, §14.4, §14.8)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from triomq_server.config import StoreConfig

from .disk import Disk, RealDisk
from .index import IndexFile
from .message_store import MessageStore
from .parts import StoreParts
from .recovery import Recovery


def wall_ms() -> int:
    """Milliseconds since the epoch: the default clock of the store's time stamps."""
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_store(
    config: StoreConfig, *, disk: Disk | None = None, clock: Callable[[], int] = wall_ms, is_slave: bool | None = None
) -> AsyncIterator[MessageStore]:
    """Lock, load, recover and serve a store directory; flush and close it in order on exit.

    Args:
        config: where the store is and how it behaves.
        disk: the files; the operating system's unless given.
        clock: ms since the epoch, for store time stamps and expiry.
        is_slave: whether a master feeds the log; follows the configured role unless given.

    Raises StoreLocked if the directory is open elsewhere, StoreDamaged if a file has a wrong length or name; neither
    has changed anything then.
    """
    disk = disk if disk is not None else RealDisk()
    release = disk.lock(f"{config.store_path_root_dir}/lock")
    try:
        parts = StoreParts.build(config, disk, clock)
        await _load(parts)
        store = MessageStore(parts, is_slave=config.is_slave if is_slave is None else is_slave)
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(parts.flusher.flush_log_forever)
                nursery.start_soon(parts.flusher.watch_deadlines)
                nursery.start_soon(parts.flusher.prepare_room_forever)
                nursery.start_soon(parts.flusher.flush_queues_forever)
                nursery.start_soon(parts.cleaner.clean_forever)
                nursery.start_soon(parts.cleaner.watch_space_forever)
                try:
                    yield store
                except BaseException as e:  # noqa: BLE001 - raised again below, outside of the nursery's group
                    failure = e
                nursery.cancel_scope.cancel()
        finally:
            store.close()
            with trio.CancelScope(shield=True):
                await _unload(parts)
        if failure is not None:
            raise failure
    finally:
        release()


async def _load(parts: StoreParts) -> None:
    config, disk, root = parts.config, parts.disk, parts.config.store_path_root_dir
    clean = not disk.exists(f"{root}/abort")
    same_boot = config.compat != "4.9" and _same_boot(disk, _boot_file(root))
    parts.commitlog.segments.load()
    parts.queues.load()
    parts.checkpoint.load()
    reindex_from = None
    if parts.index is not None:
        newest = parts.checkpoint.index_timestamp

        def keep(file: IndexFile) -> bool:
            # A killed process loses nothing it had written; a machine that went down may have lost any page of a file
            # that was not known to be on disk.
            # Only full files are ever forced to the disk, so the time alone, Java's test, is not enough.
            known = file.end_timestamp <= newest and (file.full or config.compat == "4.9")
            return clean or same_boot or known

        reindex_from = parts.index.load(keep)
    disk.write(f"{root}/abort", b"")
    recovery = Recovery(
        config,
        parts.commitlog,
        parts.queues,
        parts.index,
        parts.checkpoint,
        parts.dispatcher,
        clean=clean,
        reindex_from=reindex_from,
    )
    for _ in recovery.steps():
        await trio.lowlevel.checkpoint()
    parts.recovery_report = recovery.report
    parts.dispatcher.start_at_end()
    parts.flusher.flushed_offset = parts.commitlog.max_offset if clean else parts.commitlog.min_offset
    disk.make_directory(config.store_path_commit_log)
    disk.write(_boot_file(root), disk.boot_id().encode())


async def _unload(parts: StoreParts) -> None:
    """Flush and close everything; the abort marker goes only if all of it is on disk."""
    safe = await parts.flusher.flush_everything()
    parts.commitlog.close()
    parts.queues.close()
    if parts.index is not None:
        parts.index.close()
    if safe and not parts.dispatcher.index_is_behind:
        parts.disk.remove(f"{parts.config.store_path_root_dir}/abort")


def _boot_file(root: str) -> str:
    return f"{root}/triomq/boot_id"


def _same_boot(disk: Disk, path: str) -> bool:
    """Whether the machine has run through since the store was last open."""
    try:
        return disk.read(path) == disk.boot_id().encode() != b""
    except FileNotFoundError:
        return False
