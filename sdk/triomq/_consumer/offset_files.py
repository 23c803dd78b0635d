"""Offsets in a local file, as Java's broadcasting consumers keep them (docs/protocol/consumer.md §12.3).

Files may be exchanged with Java: written in its form, read in both.  Upstream: ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import trio

from triomq._message.message import MessageQueue
from triomq.errors import MQError
from triomq_protocol.errors import BodyError
from triomq_protocol.requests import LocalOffsetTable

DEFAULT_INSTANCE = "DEFAULT"
"""The instance name in the paths of broadcasting consumers that were not given one: stays the same over restarts."""


def offset_file(client_id: str, group: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Where a broadcasting consumer keeps its offsets, as Java does.

    Args:
        client_id: ``ip@instance``; the same after a restart, else the offsets are not found again.
        group: consumer group.
        folder: default ``~/.rocketmq_offsets``.
    """
    root = Path(folder) if folder is not None else Path.home() / ".rocketmq_offsets"
    return root / client_id / group / "offsets.json"


class FileOffsets:
    """Offsets in a local file, in the format of Java's broadcasting consumers.

    Written to ``.tmp``, which takes the old file's place; the old one stays as ``.bak``.  A file that is missing,
    empty or broken counts as lost, and ``.bak`` is read instead.

    Args:
        path: the file; its folder is made if need be.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._offsets: dict[MessageQueue, int] | None = None
        self._writing = trio.Lock()

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The offset in the file.

        Raises:
            MQError: neither the file nor its backup can be read.
        """
        await trio.lowlevel.checkpoint()
        return self._table().get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int], /) -> None:
        """Write the file anew.

        Raises:
            MQError: it cannot be written; the old one is still there.
        """
        async with self._writing:
            table = self._table()
            table.update(offsets)
            data = LocalOffsetTable(offset_table=table).encode_pretty()
            try:
                # Not to be abandoned halfway, and not to hold up the loop while the disk is busy.
                await trio.to_thread.run_sync(self._write, data)
            except OSError as error:
                what = f"the offset file {self._path} cannot be written"
                raise MQError(what, remark=f"{error}; check the folder's rights and the free space") from error

    def _table(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            self._offsets = self._load()
        return self._offsets

    def _load(self) -> dict[MessageQueue, int]:
        for path, last in ((self._path, False), (self._backup, True)):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise MQError(f"the offset file {path} cannot be read", remark=str(error)) from error
            if not data:
                continue
            try:
                return dict(LocalOffsetTable.decode(data).offset_table)
            except BodyError as error:
                if last:
                    # Starting without offsets would repeat or skip everything in silence.
                    what = f"the offset file {path} cannot be read; mend it, or delete it to start anew"
                    raise MQError(what, remark=str(error)) from error
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
        if self._path.exists():
            # A copy, so that there is a whole file under the name at every moment.
            shutil.copyfile(self._path, self._backup)
        os.replace(temporary, self._path)
