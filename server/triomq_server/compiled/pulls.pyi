import mmap
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from triomq_protocol.requests.registration import TopicConfig
from triomq_server.acl import RequestAccess
from triomq_server.broker.tables.clients import ClientTable
from triomq_server.broker.tables.groups import GroupTable
from triomq_server.config import StoreConfig
from triomq_server.metrics.store_times import StoreTimes
from triomq_server.store import MessageStore
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.wire import Link

VERSION: Final[int]
LAYOUT: Final[dict[str, int]]

def find_records(
    entries: mmap.mmap,
    at: int,
    count: int,
    log: mmap.mmap,
    base: int,
    low: int,
    high: int,
    queue_id: int,
    number: int,
    bytes_most: int,
) -> tuple[list[memoryview], int] | None: ...

class PullBursts:
    active: bool

    def __init__(
        self,
        *,
        store: MessageStore,
        config: StoreConfig,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        topics: Mapping[str, TopicConfig],
        groups: GroupTable,
        clients: ClientTable,
        commit: Callable[[str, str, int, int], object],
        count: Callable[[str, int, str, int, int, int, int], None],
        clock: Callable[[], int],
        times: StoreTimes,
        slow_s: float,
        requests: Counter[int],
        retry_prefix: str,
        broadcasting: str,
        access: RequestAccess | None,
    ) -> None: ...
    def configure(self, answer_end: bytes, *, slave_read: bool, unsent_most: int) -> None: ...
    def take(self, link: Link, data: bytes) -> int: ...
