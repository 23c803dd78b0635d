"""Offsets in a local file, as Java's broadcasting consumers keep them (docs/protocol/consumer.md §12.3).

Files may be exchanged with Java: they are written in its form, and read in both.  Only one member writes a file: it
holds a lock on the file ``offsets.json.lock`` next to it.  A client without a name has no file.  Upstream: ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import shutil
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from triomq._error_text import error_text
from triomq._message.message import MessageQueue
from triomq.errors import InvalidCall, MQError
from triomq_protocol.errors import BodyError
from triomq_protocol.requests import LocalOffsetTable

try:
    import fcntl
except ImportError:  # Windows: nothing prevents two members from using one file there
    fcntl = None  # type: ignore[assignment,unused-ignore]


def offset_file(client_id: str, group: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """The path of a broadcasting consumer's offsets, as in Java.

    Args:
        client_id: ``ip@instance``; must be the same after a restart, or the offsets are not found again.
        group: consumer group.
        folder: default ``~/.rocketmq_offsets``.

    Raises:
        InvalidCall: the user has no home, as a bare number of a user in a container may not.
    """
    try:
        root = Path(folder) if folder is not None else Path.home() / ".rocketmq_offsets"
    except RuntimeError:
        raise InvalidCall(
            f"the offsets of broadcasting group {group} cannot be in ~/.rocketmq_offsets, since this process has no home; "
            "set the environment variable HOME, or give offset_store=triomq.plugins.FileOffsets(path)"
        ) from None
    return root / client_id / group / "offsets.json"


def kept_elsewhere(file: Path) -> Path | None:
    """The newest file of the same instance and group under another address, if there is none under this one.

    Args:
        file: from :func:`offset_file`.

    A machine or container that restarts with another address has another client id.
    """
    instance = file.parent.parent.name.partition("@")[2]
    if not instance or file.exists() or file.with_name(file.name + ".bak").exists():
        return None
    pattern = f"*@{glob.escape(instance)}/{glob.escape(file.parent.name)}/{file.name}"
    found: list[tuple[float, Path]] = []
    with suppress(OSError):
        found = [(each.stat().st_mtime, each) for each in file.parents[2].glob(pattern)]
    return max(found)[1] if found else None


log = logging.getLogger("triomq.consumer")

NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK})
"""Errors by which file systems report that they have no locks."""


class InstanceOffsets:
    """Offsets of a client without a name: in memory, as they would not be found after a restart."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The offset, None if there is none yet."""
        await trio.lowlevel.checkpoint()
        return self._offsets.get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Keep these offsets."""
        await trio.lowlevel.checkpoint()
        self._offsets.update(offsets)


class FileOffsets:
    """Offsets in a local file, in the format of Java's broadcasting consumers.

    They are written to ``.tmp``, which replaces the old file; the old one stays as ``.bak``.  A file that is missing,
    empty or broken counts as lost, and ``.bak`` is read instead; a broken one without a ``.bak`` is an error.  The first :meth:`commit` claims the file, unless
    :meth:`claim` did: it is locked until :meth:`close` or the end of the process.

    Args:
        path: the file; its folder is created if needed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._offsets: dict[MessageQueue, int] | None = None
        self._only_backup = False
        """Whether the file is empty or broken, and its backup must not become a copy of it."""
        self._writing = trio.Lock()
        # Closes the lock's file when called, or together with this object.
        self._lock: weakref.finalize[[int], FileOffsets] | None = None

    async def claim(self) -> None:
        """Make sure that no other member, in this process or another one, writes this file.

        Raises:
            InvalidCall: another member does.
            MQError: the lock file cannot be written.
        """
        async with self._writing:
            await self._claim()

    def close(self) -> None:
        """Release the file."""
        if self._lock is not None:
            self._lock()
            self._lock = None

    async def _claim(self) -> None:
        if self._lock is None and fcntl is not None:
            try:
                await trio.to_thread.run_sync(self._open_lock)
            except OSError as error:
                raise self._cannot_write(error) from error

    def _open_lock(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.write(file, b"%d\n" % os.getpid())
        except BlockingIOError:
            owner = os.read(file, 32).decode("ascii", "replace").strip()
            os.close(file)
            whose = f"of process {owner}" if owner else "which has just opened it"
            raise InvalidCall(
                f"the offset file {self._path} is in use by another consumer, {whose}: its client "
                "has the same instance_name, or both were given this file; give one of them another one"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(file)
                raise
            log.warning(
                "%s is on a file system without locks: nothing prevents other consumers from writing it", self._path
            )
        self._lock = weakref.finalize(self, os.close, file)

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The offset in the file.

        Raises:
            MQError: neither the file nor its backup can be read.
        """
        await trio.lowlevel.checkpoint()
        return self._table().get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Write the whole file.

        Raises:
            InvalidCall: another consumer writes it.
            MQError: it cannot be written; the old one still exists.
        """
        async with self._writing:
            await self._claim()
            table = self._table()
            table.update(offsets)
            data = LocalOffsetTable(offset_table=table).encode_pretty()
            try:
                # It must not be abandoned halfway, nor block the loop while the disk is busy.
                await trio.to_thread.run_sync(self._write, data)
            except OSError as error:
                raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> MQError:
        what = f"the offset file {self._path} cannot be written"
        return MQError(what, remark=f"{error_text(error)}; check the folder's rights and the free space")

    def _table(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            self._offsets = self._load()
        return self._offsets

    def _load(self) -> dict[MessageQueue, int]:
        broken: MQError | None = None
        for path in (self._path, self._backup):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise MQError(f"the offset file {path} cannot be read", remark=error_text(error)) from error
            if not data:
                continue
            try:
                offsets = dict(LocalOffsetTable.decode(data).offset_table)
            except BodyError as error:
                what = f"the offset file {path} cannot be read; repair it, or delete it to start without offsets"
                broken = MQError(what, remark=error_text(error))
                broken.__cause__ = error
            else:
                self._only_backup = path == self._backup
                return offsets
        if broken is not None:
            # Starting without offsets would silently repeat or skip everything.
            raise broken
        return {}

    @property
    def _backup(self) -> Path:
        return self._path.with_name(self._path.name + ".bak")

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists() and not self._only_backup:
            # A copy, so that a complete file has this name at every moment.
            shutil.copyfile(self._path, self._backup)
        os.replace(temporary, self._path)
        self._only_backup = False
