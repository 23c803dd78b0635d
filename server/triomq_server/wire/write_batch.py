"""Writes answers that become due together, outside of any receive, at once, with one write per link.

Outside of a receive batch, frames are written in the next turn of the event loop. That suits single answers; but a
slave's report releases all sends that it covers together, and each of them has waited long enough.
"""

from __future__ import annotations

from types import TracebackType

from triomq_server.wire.link import LinkWriter


class WriteBatch:
    """Use as a context manager around plain calls that send answers; nothing may wait inside."""

    def __init__(self) -> None:
        self._writers: list[LinkWriter] = []
        self._begun: list[LinkWriter] = []

    def add(self, writer: LinkWriter) -> None:
        """Answers on this writer's links may be part of a batch."""
        self._writers.append(writer)

    def remove(self, writer: LinkWriter) -> None:
        """The writer's server has ended."""
        self._writers.remove(writer)

    def __enter__(self) -> None:
        self._begun = [writer for writer in self._writers if not writer.in_batch]
        for writer in self._begun:
            writer.in_batch = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begun, self._begun = self._begun, []
        for writer in begun:
            writer.end_batch()
