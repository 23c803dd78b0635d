"""Writes a master's bytes to the log's current file through a descriptor.

Own appends are small and go into the map of the file. A slave that catches up receives megabytes at a time: written
through a descriptor, they need no page fault per 4 KiB and no zeros written ahead, and can even be spliced from a socket
without passing through this process. File and map share their pages, so readers see no difference.
"""

from __future__ import annotations

import os

from triomq_server.store.files.segments import Segment


class RawFile:
    """Keeps the descriptor of one segment at a time."""

    __slots__ = ("_descriptor", "_segment")

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._descriptor = -1

    def of(self, segment: Segment) -> int:
        """A descriptor for writing to this segment, open until another is asked for; -1 if it cannot have one.
        OSError."""
        if segment is not self._segment:
            self.close()
            descriptor = segment.file.open_descriptor(writable=True)
            self._segment, self._descriptor = segment, -1 if descriptor is None else descriptor
        return self._descriptor

    def close(self) -> None:
        """Close it, if there is one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._segment, self._descriptor = None, -1
