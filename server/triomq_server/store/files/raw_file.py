"""Writing to the log's current file through a descriptor, which is how a master's bytes come in.

Own appends are small and go into the map of the file. Bytes of a slave that catches up come by the megabyte: through a
descriptor they cost neither a page fault per 4 KiB nor zeros written ahead, and can even come out of a socket without
passing through this process. File and map share their pages, so readers see no difference.
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
