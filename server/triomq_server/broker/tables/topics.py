"""The broker's topics: their queues and permissions, and the creation of a topic by a send.

`TopicTable` keeps `topics.json` and the table's DataVersion, by which name servers and slaves notice
changes. It answers to `TopicConfigManager` and `TopicValidator`; rules: docs/protocol/broker-api.md §4.4,
docs/protocol/messages.md §9, docs/protocol/store.md §21-22.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

import msgspec

from triomq_protocol.flags import PERM_INHERIT, READ_WRITE_PERM
from triomq_protocol.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    LMQ_PREFIX,
    MAX_GROUP_CHARACTERS,
    MAX_TOPIC_BYTES,
    OFFSET_MOVED_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)
from triomq_protocol.requests.registration import TopicConfig, TopicConfigTable
from triomq_server.broker.tables.versioned_table import VersionedTable
from triomq_server.config import BrokerConfig
from triomq_server.disk.config_files import ConfigFile
from triomq_server.repeats import Repeats

SCHEDULE_QUEUES = 18

QUEUES_LIMIT = 65536
"""More queues than any topic needs; 4.9 has no limit here, but a mistyped number would make it walk them forever."""

_log = logging.getLogger(__name__)

_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def group_name_remark(group: str) -> str | None:
    """Why this cannot be the name of a new group; None if it can. RocketMQ's clients have the same rule."""
    if _LEGAL_NAME.fullmatch(group) is None:
        return "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > MAX_GROUP_CHARACTERS:
        return f"The specified group is longer than group max length {MAX_GROUP_CHARACTERS}."
    return None


def topic_name_remark(topic: str | None) -> str | None:
    """The remark of the answer if this cannot be a topic's name; None if it can (`TopicValidator`)."""
    if topic is None or not topic.strip():
        return "The specified topic is blank."
    if _LEGAL_NAME.fullmatch(topic) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > MAX_TOPIC_BYTES:
        return "The specified topic is longer than topic max length."
    return None


class TopicTable(VersionedTable[TopicConfig]):
    """All topics of one broker, in memory and in `topics.json`.

    Every change bumps `version`, has the file written, and then calls `on_change`, in that order, before the method
    returns; within `saved_once` the file is written at the end. A topic whose change has not come to the file when the
    process is killed is found again by its queues (`recover`).

    Args:
        config: names and defaults of the broker.
        file: `config/topics.json`; None keeps the table in memory only.
        clock: wall clock in ms, for the DataVersion.
    """

    def __init__(self, config: BrokerConfig, file: ConfigFile | None, clock: Callable[[], int]) -> None:
        super().__init__(file, clock, follows=config.store.is_slave)
        self._config = config
        self._not_made = Repeats()
        self._has_removed = False  # since the last `count_removals`
        self.on_change: Callable[[TopicConfig | None], None] = _ignore
        """Called after each change made by this broker: with the one topic, or with None for several or a removal."""
        self.system_topics = frozenset(SYSTEM_TOPICS) | {
            config.broker_cluster_name,
            config.broker_name,
            self.reply_topic,
            config.msg_trace_topic_name,
        }
        for topic in self._built_in():
            self.table[_name(topic)] = topic

    @property
    def reply_topic(self) -> str:
        """The topic of the cluster's request-reply answers."""
        return f"{self._config.broker_cluster_name}{REPLY_TOPIC_SUFFIX}"

    def is_system(self, topic: str) -> bool:
        """Whether the topic belongs to the system, so that users may neither make nor delete it."""
        return topic in self.system_topics or topic.startswith(SYSTEM_TOPIC_PREFIX)

    def snapshot(self) -> TopicConfigTable:
        """Table and version as they are sent to name servers and slaves (codes 103 and 21)."""
        return TopicConfigTable(data_version=self.version, topic_config_table=dict(self.table))

    # -- changes

    def put(self, topic: TopicConfig) -> None:
        """Create or replace one topic (code 17)."""
        self.table[_name(topic)] = topic
        self._changed(topic)

    def remove(self, topic: str) -> bool:
        """Forget one topic (code 215); false if it was not there. Its queues are the store's to destroy."""
        if self.table.pop(topic, None) is None:
            return False
        self._has_removed = True
        self._changed(None)
        return True

    def count_removals(self) -> None:
        """Count one more change if a topic was removed since the last call, so that name servers take the whole table.

        A topic may be made again between its removal here and on a name server. Those of RocketMQ would never take it
        from registrations with the version in which it was made.
        """
        if self._has_removed:
            self._has_removed = False
            self._changed(None)

    def bump(self) -> None:
        """Count a change that is not in the table itself, such as another brokerPermission (code 25)."""
        self._changed(None)

    def ensure(self, topic: str, queues: int, perm: int = READ_WRITE_PERM, sys_flag: int = 0) -> TopicConfig:
        """The topic's configuration; made with these values if it is new.

        Retry topics (heartbeats, send-back), dead letter topics and the half topic come into being by this
        (upstream: createTopicInSendMessageBackMethod).
        """
        known = self.table.get(topic)
        if known is not None:
            return known
        made = TopicConfig(
            topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=sys_flag
        )
        self.put(made)
        return made

    def ensure_retry(self, group: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """The retry topic of a group with this many queues in its settings; files and Java masters may have any number."""
        return self.ensure(RETRY_PREFIX + group, max(0, min(queues, QUEUES_LIMIT)), READ_WRITE_PERM, sys_flag)

    def create_for_send(
        self, topic: str, default_topic: str, wished_queues: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Make an unknown topic that a producer sends to, after the pattern of its default topic.

        Args:
            topic: the new topic.
            default_topic: the request's template topic, normally TBW102.
            wished_queues: the request's wish, bounded by the template's write queues.
            sys_flag: the new topic's topicSysFlag.

        Returns:
            The new configuration; None if there is no such template or it may not be inherited from.
        """
        template = self.table.get(default_topic)
        if template is None:
            return None
        if default_topic == DEFAULT_TOPIC and not self._config.auto_create_topic_enable:
            template = msgspec.structs.replace(template, perm=READ_WRITE_PERM)
            self.table[default_topic] = template
            self._forget_encoded()
        if not template.perm & PERM_INHERIT:
            return None
        queues = max(0, min(wished_queues, template.write_queue_nums))
        made = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~PERM_INHERIT,
            topic_sys_flag=sys_flag,
            topic_filter_type=template.topic_filter_type,
        )
        self.put(made)
        return made

    def full_remark(self, topic: str) -> str | None:
        """Why a send may not make the topic, if that is because there are too many; else None."""
        if len(self.table) < self._config.max_auto_created_topics:
            return None
        if (due := self._not_made.add(topic)) is not None:
            _log.warning(
                "%d unknown topics were not created, among them %s: there are %d topics (maxAutoCreatedTopics)",
                *due, len(self.table),
            )  # fmt: skip
        return (
            f"topic[{topic}] not exist and is not made: the broker has {len(self.table)} topics "
            f"(maxAutoCreatedTopics); an administrator can make it"
        )

    def recover(self, queues: Iterable[tuple[str, int]]) -> list[str]:
        """Add each topic that has messages in these queues but is missing here, because its file was lost or is old.

        Returns:
            The topics added. They are readable and writable, and have the queues that are known, at least the default
            number for a topic of users.
        """
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic in self.table or topic.startswith(LMQ_PREFIX):
                continue
            if topic_name_remark(topic) is None and not self.is_system(topic):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        with self.saved_once():
            for topic, count in counts.items():
                internal = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
                self.ensure(topic, count if internal else max(count, self._config.default_topic_queue_nums))
        return list(counts)

    def set_order_topics(self, ordered: Iterable[str]) -> None:
        """Mark these topics as ordered and all others as not, as reported by a name server.

        Counts and persists one change if any topic changed; `on_change` is not called, since name servers know it.
        """
        wanted = set(ordered)
        changed = False
        for name, topic in list(self.table.items()):
            if topic.order != (name in wanted):
                self.table[name] = msgspec.structs.replace(topic, order=name in wanted)
                changed = True
        if changed:
            self._forget_encoded()
            self.version = self._next_version()
            self._save()

    def replace_all(self, received: TopicConfigTable) -> bool:
        """Become a copy of the master's table (slaves, docs/protocol/ha.md §7.2); false if the versions were equal
        already."""
        return self._adopt(received.data_version, received.topic_config_table)

    # -- file

    def load(self) -> None:
        """Read `topics.json` over the built-in topics; a missing file is not an error.

        Raises:
            OSError: the file cannot be read.
            ConfigFileDamaged: neither the file nor its backup can be understood, or it holds something else.
        """
        loaded = self._read_file(TopicConfigTable)
        if loaded is None:
            return
        self.table.update(loaded.topic_config_table)
        self.version = loaded.data_version

    def _changed(self, topic: TopicConfig | None) -> None:
        self._count_change()
        self.on_change(topic)

    def _built_in(self) -> list[TopicConfig]:
        """The topics that every start creates in memory, before the file is read (docs/protocol/store.md §22)."""
        config = self._config

        def topic(name: str, queues: int, perm: int = READ_WRITE_PERM) -> TopicConfig:
            return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

        every = READ_WRITE_PERM | PERM_INHERIT
        topics = [topic(SELF_TEST_TOPIC, 1)]
        if config.auto_create_topic_enable:
            topics.append(topic(DEFAULT_TOPIC, config.default_topic_queue_nums, every))
        topics += [
            topic(BENCHMARK_TOPIC, 1024),
            topic(config.broker_cluster_name, 16, every if config.cluster_topic_enable else PERM_INHERIT),
            topic(config.broker_name, 1, every if config.broker_topic_enable else PERM_INHERIT),
            topic(OFFSET_MOVED_TOPIC, 1),
            topic(SCHEDULE_TOPIC, SCHEDULE_QUEUES),
            topic(HALF_TOPIC, 1),
        ]
        if config.trace_topic_enable:
            topics.append(topic(config.msg_trace_topic_name, 1))
        topics.append(topic(self.reply_topic, 1))
        return topics


def _ignore(topic: TopicConfig | None) -> None:
    """Do nothing: the default of `TopicTable.on_change`."""


def _name(topic: TopicConfig) -> str:
    """The topic's name; a topic without one has no place in a table."""
    if not topic.topic_name:
        raise ValueError("a topic configuration without topicName")
    return topic.topic_name
