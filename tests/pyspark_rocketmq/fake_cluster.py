"""A cluster whose queues are lists, behind the parts of a client that the Spark source uses."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import trio
from pulled_records import PullsInRuns
from stored_records import encode_record

from pyspark_rocketmq.offsets import QueueId
from triomq import MessageQueue, PullResult, PullStatus, ReadPreference
from triomq.errors import ConnectFailed
from triomq_protocol.java_text import java_hash
from triomq_protocol.requests.route import BrokerData, ClusterInfo, QueueData, TopicRouteData

TAGS = (None, "a", "b", "Aa", "BB")
"""The hashes of the last two are equal, and brokers compare hashes."""
T0_MS = 1_700_000_000_000
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"

Row = dict[str, Any]


@attrs.define
class Part:
    """One queue: its rows by offset, the first one that is not deleted, and the end of its slave. Messages before
    `deleted` are deleted, too, though the queue still seems to hold them; those before `slave_deleted`, by the slave."""

    rows: list[Row]
    records: list[bytes]
    start: int = 0
    slave_end: int = 0
    deleted: int = 0
    slave_deleted: int = 0


def stored_ms(offset: int) -> int:
    """When the message of an offset was stored, in ms since 1970."""
    return T0_MS + offset // 3


class FakeCluster(PullsInRuns):
    """What the source uses of a client and of a pull consumer: queues of topic T, with a master and a slave each.

    Args:
        random_: chooses tags, the size of answers, and their order.
    """

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.scanned = random_.choice((8, 40, 500))
        self.page = random_.choice((4, 32))
        self.parts: dict[QueueId, Part] = {}
        self.dead: set[str] = set()
        self.is_noticed = False
        self.reads_slaves = False
        self.prefers_slaves = False

    def add_queue(self, queue: QueueId, count: int) -> None:
        """A queue with messages that its slave has, too."""
        self.parts[queue] = Part([], [])
        self.append(queue, count)

    def append(self, queue: QueueId, count: int) -> None:
        """Store messages, and replicate them."""
        part = self.parts[queue]
        rare = self.random.random() < 0.5
        for offset in range(len(part.rows), len(part.rows) + count):
            tag = self.random.choices(TAGS, (90, 3, 3, 2, 2) if rare else (1, 1, 1, 1, 1))[0]
            body = b"%d %d" % (queue.queue_id, offset)
            at_ms = stored_ms(offset)
            part.rows.append(
                {
                    "topic": "T", "broker_name": queue.broker_name, "queue_id": queue.queue_id, "queue_offset": offset,
                    "tags": tag, "body": body, "store_timestamp": datetime.fromtimestamp(at_ms / 1000, UTC),
                }
            )  # fmt: skip
            properties = b"" if tag is None else b"TAGS\x01" + tag.encode()
            part.records.append(
                encode_record(
                    b"T", queue.queue_id, body, properties, queue_offset=offset, store_timestamp=at_ms,
                    born_host=HOST, store_host=HOST,
                )
            )  # fmt: skip
        part.slave_end = len(part.rows)

    def sure_end(self, queue: QueueId) -> int:
        part = self.parts[queue]
        return part.slave_end if queue.broker_name in self.dead else len(part.rows)

    # --- as the source calls it ------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["T"]

    async def cluster_info(self) -> ClusterInfo:
        await trio.lowlevel.checkpoint()
        return ClusterInfo()

    async def route(self, _topic: str) -> TopicRouteData:
        await trio.lowlevel.checkpoint()
        brokers = sorted({queue.broker_name for queue in self.parts})
        gone = self.dead if self.is_noticed else set()
        return TopicRouteData(
            broker_datas=[
                BrokerData(broker_name=each, broker_addrs={1: "s:1"} if each in gone else {0: "m:1", 1: "s:1"})
                for each in brokers
            ],
            queue_datas=[
                QueueData(
                    broker_name=each,
                    read_queue_nums=sum(queue.broker_name == each for queue in self.parts),
                    perm=6,
                )
                for each in brokers
            ],
        )

    async def max_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        return (await self._bounds(queue, only_master=only_master))[1]

    async def min_offset(self, queue: MessageQueue, *, only_master: bool = False) -> int:
        return (await self._bounds(queue, only_master=only_master))[0]

    async def offset_by_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The nearest message, on either side, and any of those of one ms, as brokers answer."""
        await trio.lowlevel.checkpoint()
        part = self.parts[QueueId(queue.topic, queue.broker_name, queue.queue_id)]
        distances = {offset: abs(stored_ms(offset) - time_ms) for offset in range(part.start, len(part.rows))}
        nearest = min(distances.values(), default=0)
        return self.random.choice([offset for offset, each in distances.items() if each == nearest] or [part.start])

    async def _bounds(self, queue: MessageQueue, *, only_master: bool) -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        if only_master and queue.broker_name in self.dead:
            raise ConnectFailed("offsets", address="m:1")
        own = QueueId(queue.topic, queue.broker_name, queue.queue_id)
        return self.parts[own].start, self.sure_end(own)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str | None = None,
        sql: str | None = None,
        max_messages: int,
        read_preference: ReadPreference | None = None,
    ) -> PullResult:
        # Answers come in any order.
        for _ in range(self.random.randint(1, 4)):
            await trio.lowlevel.checkpoint()
        is_dead = queue.broker_name in self.dead
        if read_preference is ReadPreference.MASTER and is_dead:
            raise ConnectFailed("pull", address="m:1")
        part = self.parts[QueueId(queue.topic, queue.broker_name, queue.queue_id)]
        by_slave = read_preference is not ReadPreference.MASTER and (
            is_dead or self.reads_slaves or self.prefers_slaves or read_preference is ReadPreference.SLAVE
        )
        end = part.slave_end if by_slave else len(part.rows)
        deleted = max(part.deleted, part.slave_deleted) if by_slave else part.deleted

        def answer(status: PullStatus, following: int, body: bytes = b"") -> PullResult:
            return PullResult(
                status, queue, next_offset=following, min_offset=part.start, max_offset=end, suggested_broker_id=0,
                broker_address="s:1" if by_slave else "m:1", body=body,
            )  # fmt: skip

        if offset < part.start or offset > end:
            return answer(PullStatus.OFFSET_ILLEGAL, part.start if offset < part.start else end)
        if offset == end:
            return answer(PullStatus.NO_NEW_MESSAGE, offset)
        wanted = broker_filter(tags, sql)
        found: list[bytes] = []
        at = offset
        while at < min(end, offset + self.scanned) and len(found) < min(max_messages, self.page):
            if at >= deleted and wanted(part.rows[at]["tags"]):
                found.append(part.records[at])
            at += 1
        return answer(PullStatus.FOUND if found else PullStatus.NO_MATCHED_MESSAGE, at, b"".join(found))


def broker_filter(tags: str | None, sql: str | None) -> Callable[[str | None], bool]:
    """Which tags a broker sends: SQL exactly, tags by their hashes."""
    if sql is not None:
        exact = sql.removeprefix("TAGS = '").removesuffix("'")
        return lambda tag: tag == exact
    if tags is None:
        return lambda _tag: True
    hashes = {java_hash(each.strip()) for each in tags.split("||")}
    return lambda tag: tag is not None and java_hash(tag) in hashes
