"""The parts of the client that other packages of this wheel use in addition to its public names.

They are the only ones: import contracts in pyproject.toml forbid those packages every other private module. All packages
of a wheel have the same version, so these names may change in any release. Other programs must not use them.
"""

# ruff: noqa: SLF001 - here the private methods get names for other packages
from __future__ import annotations

from collections.abc import Awaitable, Callable

from triomq._admin.topics import Admin
from triomq._arguments.numbers import check_count, check_seconds
from triomq._blocking.loop_thread import LoopThread
from triomq._cluster.identity import UniqueKeys, local_ip, wall_ms
from triomq._cluster.name_servers import provider_for
from triomq._consumer.pull_consumer import PullConsumer
from triomq._consumer.puller import RecordScan
from triomq._message.message import OFFSET_MAX, MessageQueue, check_group
from triomq._message.pull_result import PullResult

__all__ = [
    "OFFSET_MAX",
    "LoopThread",
    "UniqueKeys",
    "check_count",
    "check_group",
    "check_seconds",
    "is_on_broker",
    "local_ip",
    "provider_for",
    "pull_run",
    "scan_with",
    "wall_ms",
]


async def is_on_broker(admin: Admin, address: str, topic: str) -> bool:
    """Whether the broker at an address has a topic, whatever the name servers know.

    Raises:
        MQError: the broker could not be asked, or refused.
    """
    return await admin._queues_on_broker(address, topic) is not None


def pull_run(
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int,
    go_on: Callable[[PullResult], int],
    *,
    tags: str | None = None,
    sql: str | None = None,
    max_messages: int,
) -> Awaitable[PullResult]:
    """Pull, and repeat as long as `go_on` wants more, without a switch of tasks in between.

    Args:
        consumer: pulls.
        queue: the queue.
        offset: where to start.
        go_on: a plain, quick function; takes a result with messages, and returns how many to pull next, 0 for none.
        tags: as for :meth:`PullConsumer.pull`.
        sql: as for :meth:`PullConsumer.pull`.
        max_messages: the most messages of the first pull.

    Raises:
        MQError: no broker of the queue could answer; earlier results, passed to `go_on`, are valid.
    """
    return consumer._pull_run(queue, offset, go_on, tags=tags, sql=sql, max_messages=max_messages)


def scan_with(consumer: PullConsumer, scan: RecordScan) -> None:
    """Find the records of answers with another function, for readers that use only the answers' bytes.

    Args:
        consumer: the consumer that pulls.
        scan: returns how many records an answer starts with, and where the last of them ends.
    """
    consumer._scan_with(scan)
