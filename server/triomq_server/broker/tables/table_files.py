"""Checks the table files that a broker's start reads, and makes such files from another broker's tables.

The tables' own `load` decides. A table from another broker must pass more checks: a start accepts anything valid in its
own file, but another process's answer must not bring names that cannot be directories, numbers of queues that no broker
has, or offsets after the messages that the queues hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from triomq_protocol.errors import ProtocolError
from triomq_protocol.names import SCHEDULE_TOPIC, SYSTEM_GROUPS
from triomq_protocol.requests.admin import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq_protocol.requests.registration import DataVersion, TopicConfig, TopicConfigTable
from triomq_protocol.wire import fastjson
from triomq_server.broker.tables.consumer_filters import ConsumerFilters
from triomq_server.broker.tables.groups import GroupTable
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.broker.tables.offsets.delay_levels import DelayOffsets
from triomq_server.broker.tables.offsets.resets import Resets
from triomq_server.broker.tables.topics import TopicTable
from triomq_server.broker.tables.undelivered import Undelivered
from triomq_server.config import BrokerConfig
from triomq_server.disk import RealDisk
from triomq_server.disk.config_files import ConfigFile, ConfigFileDamaged
from triomq_server.store.removed_queues import RemovedQueues

TOPICS, GROUPS = "config/topics.json", "config/subscriptionGroup.json"
CONSUMER_OFFSETS, DELAY_OFFSETS = "config/consumerOffset.json", "config/delayOffset.json"

MEMBERS = {
    TOPICS: "topicConfigTable",
    GROUPS: "subscriptionGroupTable",
    CONSUMER_OFFSETS: "offsetTable",
    DELAY_OFFSETS: "offsetTable",
}
"""The tables that brokers of a set have in common, by their files, and the member that holds each."""

_NAME_BYTES = 255
_QUEUES_MOST = fastjson.SMALL_KEY_MOST + 1
_PERM_MOST = 15
_INT32_MOST = (1 << 31) - 1
_INT64_MOST = (1 << 63) - 1

QueueEnd = Callable[[str, int], int]
"""Topic and queue id to the queue offset behind the last message; 0 for a queue without messages."""


class _Table(Protocol):
    def load(self) -> None: ...


def _no_clock() -> int:
    return 0


_READERS: dict[str, Callable[[ConfigFile], _Table]] = {
    TOPICS: lambda file: TopicTable(BrokerConfig(), file, _no_clock),
    GROUPS: lambda file: GroupTable(BrokerConfig(), file, _no_clock),
    CONSUMER_OFFSETS: OffsetTable,
    DELAY_OFFSETS: DelayOffsets,
    "config/consumerFilter.json": lambda file: ConsumerFilters(file, _no_clock),
    "triomq/undeliveredDelays.json": Undelivered,
    "triomq/offsetResets.json": lambda file: Resets(file, _no_clock),
    "triomq/removedQueues.json": RemovedQueues,
}


def refused_files(root: Path) -> Iterator[tuple[str, str]]:
    """The files below a store's directory that would make a start fail, and why. Raises OSError."""
    for name in _READERS:
        if why := _refusal(name, ConfigFile(f"{root}/{name}", RealDisk())):
            yield name, why


def outdated_files(root: Path) -> Iterator[tuple[str, str]]:
    """The files that are missing or damaged but have a readable backup, which a start takes; and what is wrong."""
    for name in _READERS:
        file, backup = root / name, root / f"{name}.bak"
        if _is_json(backup) and not _is_json(file):
            yield name, "it cannot be parsed, its backup can" if file.exists() else "it is missing, its backup is there"


def _is_json(path: Path) -> bool:
    try:
        text = path.read_bytes()
        fastjson.loads(text, tolerant_bytes=len(text))
    except (OSError, ProtocolError):
        return False
    return bool(text.strip())


def topics_of(root: Path) -> set[str] | None:
    """The topics of a store, including those that every broker has; None if the table is missing or cannot be read."""
    file = ConfigFile(f"{root}/{TOPICS}", RealDisk())
    table = TopicTable(BrokerConfig(), file, _no_clock)
    try:
        if file.load() is None:
            return None
        table.load()
    except (ConfigFileDamaged, ProtocolError):
        return None
    return set(table.table)


def _refusal(name: str, file: ConfigFile) -> str:
    try:
        _READERS[name](file).load()
    except (ConfigFileDamaged, ProtocolError) as error:
        return str(error)
    return ""


def flaw_of_file(root: Path, name: str) -> str:
    """What is wrong with one of the tables in MEMBERS, in words; empty if a start takes it, or its backup. OSError."""
    file = ConfigFile(f"{root}/{name}", RealDisk())
    try:
        content = file.load()
    except ConfigFileDamaged:
        return f"{name} cannot be read, nor its backup"
    if content is None:
        return f"{name} is missing or empty, and so is its backup"
    if not isinstance(content, Mapping) or not isinstance(content.get(MEMBERS[name]), Mapping):
        return f"{name} does not hold its table"
    return _refusal(name, file)


class UnusableTableError(Exception):
    """Another broker's answer is not a table that can stand in for this broker's."""


class ReceivedTable(msgspec.Struct, frozen=True):
    """Another broker's table, in the form to be written here.

    Attributes:
        text: the file's content.
        entries: number of entries, without the groups that every broker has.
        lowered: number of offsets that were larger than the ends of their queues here.
    """

    text: bytes
    entries: int
    lowered: int = 0


def received_table(name: str, body: bytes, end_of: QueueEnd) -> ReceivedTable:
    """Check another broker's table. Raises UnusableTableError, OSError.

    Args:
        name: its file, one of MEMBERS.
        body: its answer.
        end_of: where this log's queues end.
    """
    try:
        content = fastjson.loads(body, tolerant_bytes=len(body))
    except ProtocolError as error:
        raise UnusableTableError(str(error)) from error
    entries = content.get(MEMBERS[name]) if isinstance(content, Mapping) else None
    if not isinstance(entries, Mapping):
        raise UnusableTableError("it answers with something else than the table")
    with tempfile.TemporaryDirectory() as folder:
        file = ConfigFile(f"{folder}/table.json", RealDisk())
        file.save(body)
        table = _READERS[name](file)
        try:
            table.load()
        except (ConfigFileDamaged, ProtocolError) as error:
            why = str(error).replace(f"{folder}/table.json", "its table").partition(";")[0]
            raise UnusableTableError(f"a start would refuse it: {why}") from error
    if isinstance(table, TopicTable):
        topics = {name: table.table[name] for name in map(str, entries)}
        _check(_flaw_of_version(table.version), *map(_flaw_of_topic, topics, topics.values()))
        written = TopicConfigTable(data_version=table.version, topic_config_table=topics)
        return ReceivedTable(written.encode_pretty(), len(topics))
    if isinstance(table, GroupTable):
        groups = {name: table.table[name] for name in map(str, entries)}
        _check(_flaw_of_version(table.version), *map(_flaw_of_group, groups, groups.values()))
        made = SubscriptionGroupTable(data_version=table.version, subscription_group_table=groups)
        return ReceivedTable(made.encode_pretty(), len(groups.keys() - set(SYSTEM_GROUPS)))
    if name == CONSUMER_OFFSETS:
        return _received_offsets(entries, end_of)
    _check(_flaw_of_numbers(entries))
    return _received_progress(entries, end_of)


def _check(*flaws: str) -> None:
    for flaw in flaws:
        if flaw:
            raise UnusableTableError(flaw)


def _received_offsets(entries: Mapping[object, object], end_of: QueueEnd) -> ReceivedTable:
    """Offsets of negative numbers and of queues that cannot be are left out: a broker keeps what clients commit."""
    found: dict[str, dict[int, int]] = {}
    lowered = 0
    for key, queues in entries.items():
        topic, _, group = str(key).partition("@")
        if not _is_name(topic) or not _is_name(group) or not isinstance(queues, Mapping):
            raise UnusableTableError(f"{str(key)[:200]!r} is not a topic and a group with the offsets of queues")
        _check(_flaw_of_numbers(queues))
        for queue, offset in queues.items():
            queue_id = int(queue)
            if 0 <= queue_id < _QUEUES_MOST and offset >= 0:
                end = end_of(topic, queue_id)
                lowered += offset > end
                found.setdefault(str(key), {})[queue_id] = min(offset, end)
    return ReceivedTable(fastjson.dumps_pretty({"offsetTable": found}), len(found), lowered)


def _received_progress(levels: Mapping[object, object], end_of: QueueEnd) -> ReceivedTable:
    found: dict[int, int] = {}
    lowered = 0
    for key, offset in levels.items():
        level = int(str(key))
        if 1 <= level <= _QUEUES_MOST and isinstance(offset, int) and offset >= 0:
            end = end_of(SCHEDULE_TOPIC, level - 1)
            lowered += offset > end
            found[level] = min(offset, end)
    return ReceivedTable(fastjson.dumps_pretty({"offsetTable": found}), len(found), lowered)


def _flaw_of_numbers(numbers: Mapping[object, object]) -> str:
    for value in numbers.values():
        if type(value) is not int or not -_INT64_MOST <= value <= _INT64_MOST:
            return f"{str(value)[:200]!r} is not an offset"
    return ""


def _flaw_of_version(version: DataVersion) -> str:
    if 0 <= version.counter < _INT64_MOST and 0 <= version.timestamp < _INT64_MOST:
        return ""
    return f"{version} is not the version of a table"


def _flaw_of_topic(name: str, topic: TopicConfig) -> str:
    in_range = (
        0 <= topic.read_queue_nums <= _QUEUES_MOST
        and 0 <= topic.write_queue_nums <= _QUEUES_MOST
        and 0 <= topic.perm <= _PERM_MOST
        and 0 <= topic.topic_sys_flag <= _INT32_MOST
        and _is_name(topic.topic_filter_type)
    )
    return "" if in_range and name == topic.topic_name and _is_name(name) else f"{topic} cannot be topic {name!r}"


def _flaw_of_group(name: str, group: SubscriptionGroupConfig) -> str:
    in_range = (
        0 <= group.retry_queue_nums <= _QUEUES_MOST
        and -1 <= group.retry_max_times <= _INT32_MOST
        and 0 <= group.broker_id <= _INT64_MOST
        and 0 <= group.which_broker_when_consume_slowly <= _INT64_MOST
    )
    return "" if in_range and name == group.group_name and _is_name(name) else f"{group} cannot be group {name!r}"


def _is_name(name: str) -> bool:
    """Whether this can be a directory and a word of a compressed registration; older brokers allowed more than clients."""
    if name in ("", ".", "..") or not name.isprintable() or "/" in name or " " in name:
        return False
    return len(name.encode("utf-8", "replace")) <= _NAME_BYTES
