"""Settings of the message store and of replication (docs/protocol/broker-config.md §6-§10; RocketMQ's
``MessageStoreConfig``).

Names are the keys in snake case, and units are the keys' own: milliseconds unless a comment states another.
"""

from __future__ import annotations

import enum
import os
import re

import attrs

from triomq_server.config.memory import usable_memory_bytes
from triomq_server.config.network import in_home, unusable_address, unusable_networks
from triomq_server.config.settings import INT32_MOST, ConfigError, clamped, interval, setting, unusable_if_empty


class BrokerRole(enum.StrEnum):
    """A broker's role in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(enum.StrEnum):
    """Whether a send is answered before or after its bytes are on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


_DELAY_LEVEL = re.compile(r"([0-9]{1,12})([smhd])\Z")
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY_MOST_DAYS = 36_500_000_000
"""A queue entry keeps the time of a delivery in ms, as 63 bits."""
_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

LARGE_BATCH_BYTES = 262_144
"""The largest replication frame unless ``haTransferBatchSize`` is in the file: every slave accepts it, 4.9's up to 4
MiB, and it costs a fraction per byte."""


SEND_WAIT_MS = 1200
"""Maximum wait of a send for disk and slave, unless set in the file. A producer with the default deadline of 3 s and
another broker to try gives up after half of it, and must have the status by then."""

_disk_percent = clamped(10, 95)


def _whole_entries(size_bytes: int) -> int:
    """A size rounded up to whole entries of a consume queue, 20 bytes each."""
    return -(-size_bytes // 20) * 20


@attrs.define(kw_only=True)
class StoreConfig:
    """All keys of a message store and its replication."""

    # Paths. An empty commitlog path follows the root directory.
    store_path_root_dir: str = setting(factory=lambda: in_home("store"), fixed=True, check=unusable_if_empty)
    store_path_commit_log: str = setting("", fixed=True)
    read_only_commit_log_store_paths: str | None = setting(None, fixed=True)

    # Sizes in bytes.
    mapped_file_size_commit_log: int = setting(1_073_741_824, least=1, most=INT32_MOST, fixed=True)
    mapped_file_size_consume_queue: int = setting(
        6_000_000, least=20, most=INT32_MOST - 20, fixed=True, in_force=_whole_entries
    )
    """Rounded up to whole entries of 20 bytes; see ``consume_queue_file_bytes``."""
    max_message_size: int = setting(4_194_304, least=1, most=16_777_216)

    # Flushing: intervals in ms, pages of 4096 bytes.
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: int = interval(5000, least=1)
    flush_interval_commit_log: int = interval(500)
    flush_commit_log_timed: bool = True
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = interval(10_000, least=0)
    flush_interval_consume_queue: int = interval(1000)
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = interval(60_000, least=0)
    use_reentrant_lock_when_put_message: bool = True
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = 4096
    check_crc_on_recover: bool = setting(True, key="checkCRCOnRecover", at_start=True)
    duplication_enable: bool = False

    # Index and queries.
    message_index_enable: bool = setting(True, at_start=True)
    message_index_safe: bool = setting(False, at_start=True)
    max_hash_slot_num: int = setting(5_000_000, least=1, most=100_000_000, fixed=True)
    max_index_num: int = setting(20_000_000, least=2, most=100_000_000, fixed=True)
    put_msg_index_hight_water: int = 600_000
    max_msgs_num_batch: int = setting(64, least=1, most=10_000)
    default_query_max_num: int = setting(32, least=1, most=10_000)
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 50_331_648
    bit_map_length_consume_queue_ext: int = 64
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000

    # Expiry: intervals in ms, file_reserved_time in hours, ratio in per cent.
    file_reserved_time: int = setting(72, most=1_000_000)
    delete_when: str = "04"
    clean_resource_interval: int = interval(10_000)
    delete_commit_log_files_interval: int = interval(100, least=0, most=60_000)
    delete_consume_queue_files_interval: int = interval(100, least=0, most=60_000)
    destroy_maped_file_interval_forcibly: int = 120_000
    redelete_hanged_file_interval: int = 120_000
    disk_max_used_space_ratio: int = setting(75, most=100, in_force=_disk_percent)
    """As given; RocketMQ clamps it to 10..95 on use, see ``disk_ratio_limit``."""
    clean_file_forcibly_enable: bool = False
    """Whether unexpired files are deleted when the disk fills up, as RocketMQ does by default."""

    # Reading: bytes and counts per pull; ratio in per cent of the memory.
    max_transfer_bytes_on_message_in_memory: int = setting(262_144, least=1, most=16_777_216)
    max_transfer_count_on_message_in_memory: int = setting(32, least=1, most=100_000)
    max_transfer_bytes_on_message_in_disk: int = setting(65_536, least=1, most=16_777_216)
    max_transfer_count_on_message_in_disk: int = setting(8, least=1, most=100_000)
    access_message_in_memory_max_ratio: int = setting(40, most=100)
    offset_check_in_slave: bool = False
    disk_fall_recorded: bool = True
    os_page_cache_busy_time_out_mills: int = 1000
    debug_lock_enable: bool = False

    # Replication: intervals and timeouts in ms, sizes in bytes.
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_listen_port: int = setting(10_912, least=0, most=65535, fixed=True)
    """A value in a file is replaced by listenPort + 1 (docs/protocol/broker-config.md §1)."""
    ha_master_address: str | None = setting(None, check=unusable_address, at_start=True)
    ha_send_heartbeat_interval: int = interval(5000, at_start=True)
    ha_housekeeping_interval: int = interval(20_000, at_start=True)
    ha_transfer_batch_size: int = setting(32_768, least=1, most=INT32_MOST, at_start=True)
    ha_slave_fallbehind_max: int = setting(268_435_456)
    slave_timeout: int = interval(3000, least=1)
    enable_dleger_commit_log: bool = setting(False, key="enableDLegerCommitLog")
    d_leger_group: str | None = None
    d_leger_peers: str | None = None
    d_leger_self_id: str | None = None
    preferred_leader_id: str | None = None
    store_path_dledger_commit_log: str | None = setting(None, key="storePathDLedgerCommitLog")
    is_enable_batch_push: bool = False

    # Delay and transactions.
    message_delay_level: str = setting(_DELAY_LEVELS, at_start=True)
    """Read at startup; a later change takes effect at the next start."""
    delay_levels_ms: list[int] = attrs.field(init=False, factory=list, metadata={"triomq.skip": True})
    """The delays of `message_delay_level`; level n is entry n - 1."""
    flush_delay_offset_interval: int = interval(10_000)
    enable_schedule_message_stats: bool = True
    enable_schedule_async_deliver: bool = False
    schedule_async_deliver_max_pending_limit: int = 2000
    schedule_async_deliver_max_resend_num2_blocked: int = 3
    max_delay_time: int = 40

    # Java takes these two from system properties (rocketmq.broker.…); fractions of the disk, not per cent.
    disk_space_warning_level_ratio: float = setting(0.90, least=0, most=1, fixed=True)
    disk_space_clean_forcibly_ratio: float = setting(0.85, least=0, most=1, fixed=True)

    # Ours, unknown to RocketMQ.
    compat: str = setting("safe", one_of=("safe", "4.9"), fixed=True)
    """"safe", or "4.9" to copy the defects of RocketMQ 4.9 that this program otherwise avoids."""
    ha_master_main_address: str | None = setting(None, check=unusable_address)
    """The main address of the broker behind ``haMasterAddress``, used to compare the two logs and to fetch its
    tables; by default that of the set's master at the name servers."""
    follow_other_master: bool = setting(True, at_start=True)
    """Whether a master that finds another live master of its set at startup becomes its slave; with ``compat=4.9`` both
    serve."""
    ha_slave_addresses: str = setting("", check=unusable_networks, fixed=True)
    """IP addresses and networks from which slaves may connect to the HA port, separated by ``;``; if empty, slaves may
    connect from anywhere, as in RocketMQ."""
    memory_bytes: int = setting(0, least=0)
    """The memory for ``access_message_in_memory_max_ratio``; with 0, the system's limit for this process is used."""

    in_memory_limit_bytes: int = attrs.field(init=False, default=0, metadata={"triomq.skip": True})
    """Maximum distance of a reader from the log's end that is served from memory (docs/protocol/ha.md §8)."""

    def __attrs_post_init__(self) -> None:
        self.derive()

    def derive(self) -> None:
        """Derive values from other keys. Raises ConfigError for bad delay levels, and for contradictions."""
        if not self.store_path_commit_log:
            self.store_path_commit_log = self.default_log_path
        self.delay_levels_ms = self.check_relations()
        self.update_in_memory_limit()

    def check_relations(self) -> list[int]:
        """Check keys that depend on each other. Returns the delay levels in ms. Raises ConfigError."""
        index_file_bytes = 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num
        if index_file_bytes > INT32_MOST:
            raise ConfigError(
                f"maxHashSlotNum={self.max_hash_slot_num} and maxIndexNum={self.max_index_num} make index files of "
                f"{index_file_bytes} bytes; at most {INT32_MOST} are possible"
            )
        if self.ha_send_heartbeat_interval >= self.ha_housekeeping_interval:
            raise ConfigError(
                f"haSendHeartbeatInterval={self.ha_send_heartbeat_interval} must be less than "
                f"haHousekeepingInterval={self.ha_housekeeping_interval}, or each pause ends the replication connection"
            )
        return _parse_delay_levels(self.message_delay_level)

    @property
    def default_log_path(self) -> str:
        """The log's directory unless ``storePathCommitLog`` is set."""
        return os.path.join(self.store_path_root_dir, "commitlog")

    @property
    def compat_49(self) -> bool:
        """Whether the defects of RocketMQ 4.9 are copied (``compat=4.9``)."""
        return self.compat == "4.9"

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows a master."""
        return self.broker_role is BrokerRole.SLAVE

    @property
    def consume_queue_file_bytes(self) -> int:
        """Size of a consume queue file: the key's value rounded up to whole 20-byte entries."""
        return _whole_entries(self.mapped_file_size_consume_queue)

    @property
    def disk_ratio_limit(self) -> float:
        """Fraction of the disk above which expired files are deleted at any hour: the key's per cent, in 10..95."""
        return _disk_percent(self.disk_max_used_space_ratio) / 100

    def update_in_memory_limit(self) -> None:
        """Derive ``in_memory_limit_bytes`` from the memory and the share of it in accessMessageInMemoryMaxRatio."""
        total = self.memory_bytes or usable_memory_bytes()
        self.in_memory_limit_bytes = total * self.access_message_in_memory_max_ratio // 100


def _parse_delay_levels(text: str) -> list[int]:
    """Parse `messageDelayLevel` ("1s 5s 1m") into delays in ms. Raises ConfigError for other text."""
    levels = []
    for word in text.split() or [""]:
        match = _DELAY_LEVEL.match(word)
        if match is None:
            raise ConfigError(
                f"messageDelayLevel={text}: {word!r} is not a delay; write numbers followed by one of the units s, m, h, "
                "d, separated by blanks"
            )
        levels.append(int(match[1]) * _UNITS_MS[match[2]])
        if levels[-1] > _DELAY_MOST_DAYS * _UNITS_MS["d"]:
            raise ConfigError(f"messageDelayLevel={text}: {word} is too long; at most {_DELAY_MOST_DAYS}d are possible")
    return levels
