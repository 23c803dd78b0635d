"""The message store: RocketMQ 4.9's commit log, consume queues, index and their life on disk (store.md)."""

from .disk import Disk, RealDisk, StoreLocked
from .message_store import MessageStore, open_store, wall_ms
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
    "StoreLocked",
    "TagMatcher",
    "open_store",
    "wall_ms",
]
