"""The load generator: one `trio.run`, or one task of it, that does one share of a workload.  All engines run this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from .engines import Share
from .intervals import IntervalRow
from .run_result import WorkerResult

Emit = Callable[[IntervalRow], None]
"""Takes an increment.  A plain function, called within the loop about once a second: it must not block."""

AgreeStart = Callable[[float], Awaitable[float]]
"""Given the earliest wall-clock instant (seconds since the epoch) at which this worker can begin to send, returns the
one at which all begin, on this worker's own wall clock.  Called once, when clients are open and topics found."""


class RunLedger(Protocol):
    """Hears of every acknowledged and every consumed message of a share (`run_ledger.py`); called on the hot path.

    A message's `number` is unique in the run and grows with its intended order per worker:
    `worker << 40 | sequence`.
    """

    def acknowledged(self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int) -> None:
        """A broker has taken a message; `crc` is CRC-32 of its whole body."""

    def consumed(
        self, number: int, topic: str, broker: str, queue_id: int, queue_offset: int, crc: int, group: str
    ) -> None:
        """A consumer got a message; `number` is -1 where its head cannot be read."""


async def run_share(
    share: Share, emit: Emit, ledger: RunLedger | None = None, *, agree_start: AgreeStart | None = None
) -> WorkerResult:
    """Do one share: open clients, agree on a start, warm up, send and consume, drain.

    Args:
        share: what to do.
        emit: gets increments while it runs.
        ledger: hears of every message; None: nobody does.
        agree_start: how to find the common start; default: this worker's own.

    Raises:
        triomq.MQError: the clients could not be opened or a topic is missing; nothing was sent.
    """
    raise RuntimeError
