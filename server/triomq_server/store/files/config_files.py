"""The files of brokers and name servers that RocketMQ counts as configuration: JSON tables below `config/`, and the
properties files that requests change. They are written whole and replaced in one step, and the previous one is kept as
`.bak` (docs/protocol/store.md §21).

What the tables mean is their owners' business; here is only how one is read and written safely.
"""

from __future__ import annotations

import logging
import threading

from triomq_protocol.errors import BodyError
from triomq_protocol.wire import fastjson
from triomq_server.store.files.disk import Disk

_FILE_BYTES = 1 << 30
"""Tables are read at the start, and have numbers as keys: no size that fits the memory is too long."""

_log = logging.getLogger(__name__)


class ConfigFileDamaged(Exception):  # noqa: N818 - named after the state one is in
    """Neither the file nor its `.bak` can be parsed: repair or remove them, then start again."""


def damaged(path: str, what: str) -> ConfigFileDamaged:
    """The error for a file that is of no use: what is wrong with it, and what to do."""
    return ConfigFileDamaged(f"{path} {what}; repair the file or move it away, then start again")


class ConfigFile:
    """One file, for example `config/topics.json`; only JSON is parsed here."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._guard = threading.Lock()

    def load(self) -> object | None:
        """The parsed file, or its `.bak` if the file is missing, empty or broken; None if there is neither.

        Integer keys without quotes are accepted. Raises ConfigFileDamaged when nothing but broken files is there: to go
        on without them would forget what they hold, and soon overwrite it.
        """
        backup = self.path + ".bak"
        broken: BodyError | None = None
        try:
            text = self._read(self.path)
            if text:
                return fastjson.loads(text, tolerant_bytes=_FILE_BYTES)
        except BodyError as e:
            broken = e
        text = self._read(backup)
        if not text and broken is None:
            return None
        try:
            content = fastjson.loads(text, tolerant_bytes=_FILE_BYTES) if text else None
        except BodyError as e:
            raise damaged(self.path, f"is missing or broken, and {backup} cannot be parsed: {e}") from e
        if content is None:
            raise damaged(self.path, f"cannot be parsed, and there is no {backup}: {broken}")
        if broken is not None:
            _log.warning("%s cannot be parsed (%s); taking %s", self.path, broken, backup)
        return content

    def _read(self, path: str) -> bytes:
        try:
            return self._disk.read(path).strip()
        except FileNotFoundError:
            return b""

    def save(self, data: bytes) -> None:
        """Replace the file by this text; returns when it is on disk. OSError leaves the old file in place."""
        with self._guard:
            temporary = self.path + ".tmp"
            self._disk.write(temporary, data)
            if self._disk.exists(self.path):
                # Copied rather than renamed: at every moment there is a whole file under the real name.
                self._disk.write(self.path + ".bak", self._disk.read(self.path), sync=False)
            self._disk.replace(temporary, self.path)

    async def save_in_background(self, data: bytes) -> None:
        """`save` without holding up the event loop, for tables that are written on a timer."""
        await self._disk.run(lambda: self.save(data))
