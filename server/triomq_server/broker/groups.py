"""The broker's subscription groups: who may consume, how often a message is tried again, which broker serves slow readers.

`GroupTable` keeps `subscriptionGroup.json`. It answers to `SubscriptionGroupManager`; rules: broker-api.md §13, store.md §21-22.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from triomq_protocol.requests.admin import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq_protocol.requests.registration import DataVersion
from triomq_server.config import BrokerConfig
from triomq_server.store.config_files import ConfigFile

_log = logging.getLogger(__name__)

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

BUILT_IN_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker knows from its start."""


class GroupTable:
    """All subscription groups of one broker, in memory and in `subscriptionGroup.json`.

    Args:
        config: whether unknown groups are made on first use.
        file: `config/subscriptionGroup.json`; None keeps the table in memory only.
        clock: wall clock in ms, for the DataVersion.
    """

    def __init__(self, config: BrokerConfig, file: ConfigFile | None, clock: Callable[[], int]) -> None:
        self._config = config
        self._file = file
        self._clock = clock
        self.table: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(group_name=name) for name in BUILT_IN_GROUPS
        }
        """Group name to its configuration. The hot path reads it; only this class changes it."""
        # A slave's version is its master's, whatever it makes itself in the meantime; before the first copy it is nobody's.
        self._follows = config.store.is_slave
        self.version = DataVersion(counter=0, timestamp=0 if self._follows else clock())
        self.unsaved = False

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration, or None; makes nothing."""
        return self.table.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration; an unknown one is made if the broker may (upstream: findSubscriptionGroupConfig).

        Returns:
            None if the group is unknown, autoCreateSubscriptionGroup is off and it is no system group.
        """
        known = self.table.get(group)
        if known is not None:
            return known
        if not self._config.auto_create_subscription_group and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        made = SubscriptionGroupConfig(group_name=group)
        self.put(made)
        return made

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace one group (code 200)."""
        if not group.group_name:
            raise ValueError("a group configuration without groupName")
        self.table[group.group_name] = group
        self._changed()

    def remove(self, group: str) -> bool:
        """Forget one group (code 207); false if it was not there. Its offsets are kept."""
        if self.table.pop(group, None) is None:
            return False
        self._changed()
        return True

    def snapshot(self) -> SubscriptionGroupTable:
        """Table and version as they are sent to slaves and tools (code 201)."""
        return SubscriptionGroupTable(data_version=self.version, subscription_group_table=dict(self.table))

    def replace_all(self, received: SubscriptionGroupTable) -> bool:
        """Become a copy of the master's table (slaves, ha.md §7.2); false if the versions were equal already."""
        if received.data_version == self.version:
            return False
        self.version = received.data_version
        self.table.clear()
        self.table.update(received.subscription_group_table)
        self.persist()
        return True

    def load(self) -> None:
        """Read `subscriptionGroup.json` over the built-in groups; a missing file is no error.

        Raises:
            OSError: the file cannot be read.
            ConfigFileDamaged: neither the file nor its backup can be understood.
        """
        data = self._file.load() if self._file is not None else None
        if data is None:
            return
        loaded = msgspec.convert(data, SubscriptionGroupTable, strict=False)
        self.table.update(loaded.subscription_group_table)
        self.version = loaded.data_version

    def persist(self) -> None:
        """Write `subscriptionGroup.json`; a disk that says no is a log line, and `persist_if_unsaved` tries again."""
        if self._file is None:
            return
        try:
            self._file.save(self.pretty())
        except OSError as error:
            self.unsaved = True
            _log.error("%s cannot be written: %s", self._file.path, error)
        else:
            self.unsaved = False

    def persist_if_unsaved(self) -> None:
        """Write the file if the last attempt failed."""
        if self.unsaved:
            self.persist()

    def pretty(self) -> bytes:
        """The file's text."""
        return self.snapshot().encode_pretty()

    def _changed(self) -> None:
        if not self._follows:
            self.version = DataVersion(counter=self.version.counter + 1, timestamp=self._clock())
        self.persist()
