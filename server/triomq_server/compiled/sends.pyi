from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from triomq_protocol.requests.registration import TopicConfig
from triomq_server.acl import RequestAccess
from triomq_server.store import Arrival, MessageStore
from triomq_server.store.consume_queue import ConsumeQueue
from triomq_server.wire import Link

VERSION: Final[int]
LAYOUT: Final[dict[str, int]]

class SendBursts:
    active: bool
    waits: bool

    def __init__(
        self,
        store: MessageStore,
        topics: Mapping[str, TopicConfig],
        queues: Mapping[tuple[str, int], ConsumeQueue],
        is_plain_topic: Callable[[str, TopicConfig], bool],
        count: Callable[[str, int, int, int], None],
        requests: Counter[int],
        checksum: Callable[[bytes], int],
        arrival: Callable[[str, int, int, int, int], Arrival],
        batch_properties: Callable[[str], bytes | None],
        hold: Callable[[Link, bytes, list[tuple[int, int, str, int]]], bytes | None],
        access: RequestAccess | None,
    ) -> None: ...
    def configure(
        self,
        cluster: bytes,
        answer_middle: bytes,
        answer_end: bytes,
        store_host: bytes,
        *,
        body_most: int,
        frame_most: int,
    ) -> None: ...
    def take(self, link: Link, data: bytes) -> int: ...
