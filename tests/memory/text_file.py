"""A configuration file without a disk."""

from __future__ import annotations

import errno

from memory_disk import MemoryDisk

from triomq_protocol.wire import fastjson
from triomq_server.disk.config_files import ConfigFile


class TextFile(ConfigFile):
    """A configuration file that is only its text.

    Attributes:
        text: its content.
        saves: how often it was written.
        full: no text is taken.
    """

    def __init__(self, text: bytes = b"") -> None:
        super().__init__("table.json", MemoryDisk())
        self.text = text
        self.saves = 0
        self.full = False

    def load(self) -> object | None:
        """The parsed text."""
        return fastjson.loads(self.text) if self.text else None

    def save(self, data: bytes) -> None:
        """Take another text."""
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.text = data
        self.saves += 1
