"""Reads and writes the configuration files of brokers and name servers safely (docs/protocol/store.md §21).

They are JSON tables below `config/`, and the properties files that requests change. Files are written whole and replaced
in one step, and a copy is kept as `.bak`. It has the same state; RocketMQ's copy has the previous one. Their owners
interpret the contents.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import trio

from triomq_protocol.errors import BodyError
from triomq_protocol.wire import fastjson
from triomq_server.disk.access import Disk

_FILE_BYTES = 1 << 30
"""Tables are read at startup, and have numbers as keys: no length that fits into memory is too long."""

_log = logging.getLogger(__name__)


class ConfigFileDamaged(Exception):  # noqa: N818 - named after the state
    """Neither the file nor its `.bak` can be parsed: repair or remove them, then start again."""


def damaged(path: str, what: str) -> ConfigFileDamaged:
    """The error for an unusable file: the problem, and the remedy."""
    return ConfigFileDamaged(f"{path} {what}; repair the file or move it away, then start again")


class ConfigFile:
    """One file, for example `config/topics.json`; only JSON is parsed here."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._guard = threading.Lock()
        self._changing = trio.Lock()
        self._backup = f"{path}.bak"
        self._failures: dict[str, str] = {}
        """The reasons why this file or its `.bak` could not be written last time."""

    def load(self) -> object | None:
        """Parse the file, or its `.bak` if the file is missing, empty or broken; None if neither exists.

        Integer keys without quotes are accepted. Raises ConfigFileDamaged if there are only broken files: continuing
        without them would lose their contents, and soon overwrite them.
        """
        backup = self._backup
        broken: BodyError | None = None
        empty = False
        try:
            text = self._read(self.path)
            if text:
                return fastjson.loads(text, tolerant_bytes=_FILE_BYTES)
            empty = text is not None
        except BodyError as e:
            broken = e
        text = self._read(backup)
        if not text and broken is None:
            if empty:
                _log.error("%s is empty, and there is no %s: what it held is lost", self.path, backup)
            return None
        try:
            content = fastjson.loads(text, tolerant_bytes=_FILE_BYTES) if text else None
        except BodyError as e:
            raise damaged(self.path, f"is missing or broken, and {backup} cannot be parsed: {e}") from e
        if content is None:
            raise damaged(self.path, f"cannot be parsed, and there is no {backup}: {broken}")
        if broken is not None:
            _log.error("%s cannot be parsed (%s); taking %s", self.path, broken, backup)
        else:
            _log.error("%s is %s; taking %s", self.path, "empty" if empty else "missing", backup)
        return content

    def _read(self, path: str) -> bytes | None:
        """The file's text without surrounding blanks; None if there is no file."""
        try:
            return self._disk.read(path).strip()
        except FileNotFoundError:
            return None

    def save(self, data: bytes) -> None:
        """Replace the file's text; returns when it is on disk. OSError leaves the old file in place.

        The `.bak` gets the same text, so that nothing is missing if it is needed. Both get the permissions of the
        replaced file: a configuration may contain passwords.
        """
        with self._guard:
            temporary = self.path + ".tmp"
            self._disk.take_permissions(temporary, self.path)
            self._disk.write(temporary, data)
            self._disk.replace(temporary, self.path)
            # Only now, so that one of the two is whole at any moment.
            try:
                self._disk.take_permissions(self._backup, self.path)
                self._disk.write(self._backup, data, sync=False)
            except OSError as error:
                self._log_once(logging.WARNING, self._backup, error)
            else:
                self._failures.pop(self._backup, None)
        if self._failures.pop(self.path, None):
            _log.warning("%s is written again", self.path)

    @property
    def failure(self) -> str | None:
        """The reason why it could not be written last time; None if it was."""
        return self._failures.get(self.path)

    def log_failure(self, error: OSError) -> None:
        """Log that the file could not be written, once per reason: tables on a timer are tried every few seconds."""
        self._log_once(logging.ERROR, self.path, error)

    def _log_once(self, level: int, path: str, error: OSError, cure: str = "") -> None:
        if self._failures.get(path) != str(error):
            self._failures[path] = str(error)
            _log.log(level, "%s cannot be written: %s%s", path, error, cure and f"; {cure}")

    async def save_in_background(self, data: bytes) -> None:
        """`save` without blocking the event loop, for tables that are written on a timer."""
        await self.in_background(lambda: self.save(data))

    async def save_change(self, content: Callable[[], bytes], cure: str) -> None:
        """:meth:`save_in_background` for a change that no timer writes again.

        Changes are written one after another, so that the last one to write has seen all of them.

        Args:
            content: returns the file's new content; called when earlier changes have been written.
            cure: what is lost and what to do if it cannot be written; logged with the reason, once per reason.

        Raises:
            OSError: it cannot be written.
        """
        try:
            async with self._changing:
                await self.save_in_background(content())
        except OSError as error:
            self._log_once(logging.ERROR, self.path, error, cure)
            raise

    async def in_background(self, chore: Callable[[], None]) -> None:
        """Run a long chore, such as encoding a large table and saving it, without blocking the event loop."""
        await self._disk.run(chore)
