"""A table with a DataVersion and a file: the common part of the topic table and the group table.

A change increments the version. The file is written by a task and a worker thread, once for all changes made in the
meantime: neither a slow disk nor a large table may hold up the loop. An operator's request waits for it (`saved`). Before
the task runs, and after it, a change is written at once. A disk error is logged, and the write tried again. It answers to
`ConfigManager`; rules: docs/protocol/store.md §21.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, NoReturn, TypeVar

import msgspec
import trio

from triomq_protocol.codes import ResponseCode
from triomq_protocol.errors import BodyError
from triomq_protocol.requests.registration import DataVersion
from triomq_protocol.wire.body import Body, JsonCodec
from triomq_protocol.wire.command import Command
from triomq_server.disk.config_files import ConfigFile, damaged

SMALL_TABLE = 256
"""The largest table, in entries, for which an operator's change is on the disk before its request is answered."""

_DELAY_S = 0.02
"""Before a write of more than SMALL_TABLE entries that no request waits for: meanwhile the name servers learn of the
change. A worker thread that encodes a table takes turns of 5 ms from the loop."""
_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_PAUSE_PER_WRITING = 9
"""Pause between writes that no request waits for, as a multiple of the last write's duration: encoding a large table
again and again takes no more than a tenth of a processor."""

V = TypeVar("V")
S = TypeVar("S", bound=Body)

MEMBERS_OF_5 = frozenset({"forbiddenTable"})
"""Of the files of RocketMQ 5, and without effect here, as on 4.9. Any other unknown member may be a damaged name."""


class VersionedTable(ABC, Generic[V]):
    """Names to configurations, in memory and in a file.

    Args:
        file: its file; None keeps it in memory only.
        clock: wall clock in ms, for the DataVersion.
        follows: whether the version is the master's (a slave's table).
    """

    def __init__(self, file: ConfigFile | None, clock: Callable[[], int], *, follows: bool) -> None:
        self._file = file
        self._clock = clock
        # A slave has its master's version, also after changes of its own; before the first copy it has that of no
        # master.
        self.follows = follows
        self.table: dict[str, V] = {}
        """Name to configuration. The hot path reads it; only its class changes it."""
        self.version = DataVersion(counter=0, timestamp=0 if follows else clock())
        self.unsaved = False
        self._revision = 0  # of the table's content; a slave's version stays when it changes the table itself
        self._encoded: tuple[int, bytes] | None = None
        self._encoding = -1  # the revision that a generator is encoding
        self._collecting = False
        self._change = 0
        self._tried = 0  # the last change that the task has written, or tried to
        self._writing = False
        self._wanted = trio.Event()
        self._urgent = trio.Event()
        self._ended = trio.Event()  # a writing has ended, whatever came of it
        self._failure: OSError | None = None  # of the last writing

    def get(self, name: str) -> V | None:
        """The configuration of that name, or None; creates nothing."""
        return self.table.get(name)

    @abstractmethod
    def snapshot(self) -> JsonCodec:
        """The table as it is now, in the form of its file."""

    def encoded_in_slices(self) -> Generator[None, None, bytes]:
        """`snapshot().encode()`, made in slices and once for all who ask until the table changes."""
        while True:
            revision = self._revision
            if self._encoded is not None and self._encoded[0] == revision:
                return self._encoded[1]
            if self._encoding != revision:
                break
            yield  # another request makes it
        self._encoding = revision
        try:
            encoded = yield from self.snapshot().encode_in_slices()
            if revision == self._revision:
                self._encoded = revision, encoded
            return encoded
        finally:
            if self._encoding == revision:
                self._encoding = -1

    def pretty(self) -> bytes:
        """The file's text."""
        return self.snapshot().encode_pretty()

    def persist(self) -> None:
        """Write the file; if the disk fails, it logs an error and `persist_if_unsaved` tries again."""
        if self._file is None:
            return
        try:
            self._file.save(self.pretty())
        except OSError as error:
            self.unsaved = True
            self._failure = error
            self._file.log_failure(error)
        else:
            self.unsaved = False
            self._failure = None

    def persist_if_unsaved(self) -> None:
        """Write the file if it lacks a change: the last attempt failed, or the task has not come to it."""
        if self.unsaved:
            self.persist()

    def retry_if_unsaved(self) -> None:
        """As `persist_if_unsaved`, but left to the task while it runs."""
        if self.unsaved:
            self._save()

    async def saved(self) -> str | None:
        """Wait until all changes so far are on the disk; returns the text of an error if the disk has refused them.

        There is no wait for a large table: its changes are written the next time, and the result is that of the last write.
        """
        change = self._change
        while self._writing and self._tried < change and len(self.table) <= SMALL_TABLE:
            self._urgent.set()
            await self._ended.wait()
        if self._failure is None or self._file is None:
            return None
        return (
            f"the change is in force until the broker stops, but {self._file.path} cannot be written: {self._failure}"
        )

    async def answer_when_saved(self, command: Command) -> Command:
        """The answer to an operator's change: success, or that the change is lost when the broker stops."""
        unsaved = await self.saved()
        return command.answer() if unsaved is None else command.answer(ResponseCode.SYSTEM_ERROR, unsaved)

    async def write_changes(self) -> NoReturn:
        """Task: write the file after each change, or once for several."""
        self._writing = True
        try:
            while True:
                await self._wanted.wait()
                if len(self.table) > SMALL_TABLE:
                    with trio.move_on_after(_DELAY_S):
                        await self._urgent.wait()
                self._wanted, self._urgent = trio.Event(), trio.Event()
                began = trio.current_time()
                await self._persist_in_background()
                took = trio.current_time() - began
                with trio.move_on_after(min(max(_PAUSE_S, _PAUSE_PER_WRITING * took), _LONGEST_PAUSE_S)):
                    await self._urgent.wait()
        finally:
            self._writing = False
            self._end_writing()

    async def _persist_in_background(self) -> None:
        if self._file is None:
            return
        file, snapshot, change = self._file, self.snapshot(), self._change
        try:
            await file.in_background(lambda: file.save(snapshot.encode_pretty()))
        except OSError as error:
            self._failure = error
            file.log_failure(error)
        else:
            self._failure = None
            self.unsaved = self._change != change
        finally:
            self._tried = change
            self._end_writing()

    def _end_writing(self) -> None:
        self._ended.set()
        self._ended = trio.Event()

    def _save(self) -> None:
        """Let the task write the file; without one, write it now."""
        self._change += 1
        if self._writing and self._file is not None:
            self.unsaved = True
            self._wanted.set()
        else:
            self.persist()
            self._tried = self._change

    @contextmanager
    def saved_once(self) -> Iterator[None]:
        """Write the file once for all changes made within: one heartbeat may bring thousands of groups."""
        self._collecting = True
        try:
            yield
        finally:
            self._collecting = False
            self.retry_if_unsaved()

    def _adopt(self, version: DataVersion, table: Mapping[str, V]) -> bool:
        """Become a copy of the master's table (docs/protocol/ha.md §7.2); false if the versions were equal already."""
        if version == self.version:
            return False
        self.version = version
        self.table.clear()
        self.table.update(table)
        self._forget_encoded()
        self._save()
        return True

    def _read_file(self, shape: type[S]) -> S | None:
        """The file's content; None if there is none, and nothing to do. Raises OSError or ConfigFileDamaged."""
        content = self._file.load() if self._file is not None else None
        if self._file is None or content is None:
            return None
        try:
            return msgspec.convert(content, shape, strict=False)
        except msgspec.ValidationError as error:
            known = {field.encode_name for field in msgspec.structs.fields(shape)} | MEMBERS_OF_5
            if not isinstance(content, dict) or content.keys() - known:
                raise damaged(self._file.path, f"does not hold what it should: {error}") from error
        try:
            return shape.from_json(content)  # takes what RocketMQ 5 has added to versions, topics and groups
        except BodyError as error:
            raise damaged(self._file.path, f"does not hold what it should: {error}") from error

    def _count_change(self) -> None:
        """Increment the version and have the file written, or at the end of `saved_once`."""
        self._forget_encoded()
        if not self.follows:
            self.version = self._next_version()
        if self._collecting:
            self.unsaved = True
        else:
            self._save()

    def _forget_encoded(self) -> None:
        self._revision += 1
        self._encoded = None

    def _next_version(self) -> DataVersion:
        return DataVersion(counter=self.version.counter + 1, timestamp=self._clock())
