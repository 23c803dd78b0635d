"""The message store: commit log, consume queues and key index in RocketMQ 4.9's disk format (docs/protocol/store.md)."""

from triomq_server.store.commitlog import CLOCK_STEP_BACK_MS
from triomq_server.store.files.segments import StoreDamaged
from triomq_server.store.message_store import HALF_CUT, MessageStore
from triomq_server.store.opening import open_store, wall_ms
from triomq_server.store.recovery.recovery import RecoveryReport
from triomq_server.store.values import (
    AppendResult,
    AppendStatus,
    Arrival,
    NewBatch,
    NewRecord,
    QueryResult,
    ReadResult,
    ReadStatus,
    TagMatcher,
)

__all__ = [
    "CLOCK_STEP_BACK_MS",
    "HALF_CUT",
    "AppendResult",
    "AppendStatus",
    "Arrival",
    "MessageStore",
    "NewBatch",
    "NewRecord",
    "QueryResult",
    "ReadResult",
    "ReadStatus",
    "RecoveryReport",
    "StoreDamaged",
    "TagMatcher",
    "open_store",
    "wall_ms",
]
