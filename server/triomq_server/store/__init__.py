"""The message store: RocketMQ 4.9's commit log, consume queues, index and their life on disk (store.md)."""

from .disk import Disk, RealDisk, StoreLocked
from .message_store import MessageStore
from .messages import (
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
from .opening import open_store, wall_ms
from .recovery import RecoveryReport
from .segments import StoreDamaged

__all__ = [
    "AppendResult",
    "AppendStatus",
    "Arrival",
    "Disk",
    "MessageStore",
    "NewBatch",
    "NewRecord",
    "QueryResult",
    "ReadResult",
    "ReadStatus",
    "RealDisk",
    "RecoveryReport",
    "StoreDamaged",
    "StoreLocked",
    "TagMatcher",
    "open_store",
    "wall_ms",
]
