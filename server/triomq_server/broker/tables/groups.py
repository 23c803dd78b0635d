"""The broker's subscription groups: permission to consume, number of retries, the broker for slow readers.

`GroupTable` keeps `subscriptionGroup.json`. It answers to `SubscriptionGroupManager`; rules:
docs/protocol/broker-api.md §13, docs/protocol/store.md §21-22.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from triomq_protocol.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from triomq_protocol.requests.admin import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq_server.broker.tables.topics import group_name_remark
from triomq_server.broker.tables.versioned_table import VersionedTable
from triomq_server.config import BrokerConfig
from triomq_server.disk.config_files import ConfigFile
from triomq_server.repeats import Repeats

_log = logging.getLogger(__name__)


class GroupTable(VersionedTable[SubscriptionGroupConfig]):
    """All subscription groups of one broker, in memory and in `subscriptionGroup.json`.

    Args:
        config: whether unknown groups are made on first use.
        file: `config/subscriptionGroup.json`; None keeps the table in memory only.
        clock: wall clock in ms, for the DataVersion.
    """

    def __init__(self, config: BrokerConfig, file: ConfigFile | None, clock: Callable[[], int]) -> None:
        super().__init__(file, clock, follows=config.store.is_slave)
        self._config = config
        self._not_made = Repeats()
        self.table.update({name: SubscriptionGroupConfig(group_name=name) for name in SYSTEM_GROUPS})

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration; an unknown one is made if the broker may (upstream: findSubscriptionGroupConfig).

        Returns:
            None if the group is unknown, autoCreateSubscriptionGroup is off and it is not a system group; none is made
            with a name that no client may use, nor when there are maxAutoCreatedGroups already.
        """
        known = self.table.get(group)
        if known is not None:
            return known
        if group_name_remark(group) is not None:
            return None
        if not self._config.auto_create_subscription_group and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if self._full:
            if (due := self._not_made.add(group)) is not None:
                _log.warning(
                    "%d unknown groups were not created, among them %s: there are %d groups (maxAutoCreatedGroups)",
                    *due, len(self.table),
                )  # fmt: skip
            return None
        made = self.table[group] = SubscriptionGroupConfig(group_name=group)
        self._count_change()
        return made

    def full_remark(self, group: str) -> str | None:
        """Why a group could not be made by its first use, if that is because there are too many; else None."""
        if not (self._config.auto_create_subscription_group and self._full):
            return None
        return (
            f"subscription group [{group}] does not exist and is not made: the broker has {len(self.table)} groups "
            f"(maxAutoCreatedGroups); an administrator can make it"
        )

    @property
    def _full(self) -> bool:
        return len(self.table) >= self._config.max_auto_created_groups

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace one group (code 200)."""
        if not group.group_name:
            raise ValueError("a group configuration without groupName")
        self.table[group.group_name] = group
        self._count_change()

    def remove(self, group: str) -> bool:
        """Forget one group (code 207); false if it was not there. Its offsets are kept."""
        if self.table.pop(group, None) is None:
            return False
        self._count_change()
        return True

    def snapshot(self) -> SubscriptionGroupTable:
        """Table and version as they are sent to slaves and tools (code 201)."""
        return SubscriptionGroupTable(data_version=self.version, subscription_group_table=dict(self.table))

    def replace_all(self, received: SubscriptionGroupTable) -> bool:
        """Become a copy of the master's table (slaves, docs/protocol/ha.md §7.2); false if the versions were equal
        already."""
        return self._adopt(received.data_version, received.subscription_group_table)

    def load(self) -> None:
        """Read `subscriptionGroup.json` over the built-in groups; a missing file is not an error.

        Raises:
            OSError: the file cannot be read.
            ConfigFileDamaged: neither the file nor its backup can be understood, or it holds something else.
        """
        loaded = self._read_file(SubscriptionGroupTable)
        if loaded is None:
            return
        self.table.update(loaded.subscription_group_table)
        self.version = loaded.data_version
