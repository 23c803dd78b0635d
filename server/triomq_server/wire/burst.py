"""Answers that were waited for and have become due together: written at once, one write per link.

Outside of a receive batch, what is sent to a link leaves in the next turn of the loop. That is right for what trickles in;
but a report of a slave releases all sends it covers in one go, and each of them has waited for long enough.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class BatchWriter(Protocol):
    """What a burst needs of a hub.

    Attributes:
        in_batch: somebody will write what is sent now, before any other task runs.
    """

    in_batch: bool

    def begin_batch(self) -> None:
        """Collect what is sent from now on."""

    def end_burst(self) -> None:
        """Write what has been collected."""


class Burst:
    """Use as a context manager around plain calls that send answers; nothing may wait inside."""

    def __init__(self) -> None:
        self._hubs: list[BatchWriter] = []
        self._begun: list[BatchWriter] = []

    def add(self, hub: BatchWriter) -> None:
        """Answers on this hub's links may be part of a burst."""
        self._hubs.append(hub)

    def remove(self, hub: BatchWriter) -> None:
        """The hub has ended."""
        self._hubs.remove(hub)

    def __enter__(self) -> None:
        self._begun = [hub for hub in self._hubs if not hub.in_batch]
        for hub in self._begun:
            hub.begin_batch()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        begun, self._begun = self._begun, []
        for hub in begun:
            hub.end_burst()
