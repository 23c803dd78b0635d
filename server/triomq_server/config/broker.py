"""Settings of the broker (docs/protocol/broker-config.md §3-§5; RocketMQ's ``BrokerConfig`` with both network sides).

Names are the keys in snake case, and units are the keys' own: milliseconds unless a comment states another. Store and
replication keys are in the same file and are found under ``store``.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import attrs

from triomq_protocol.names import TRACE_TOPIC
from triomq_server.config import findings
from triomq_server.config.memory import share_of_memory
from triomq_server.config.network import (
    ServerNetworkConfig,
    first_address,
    host_name,
    unusable_address,
    unusable_host,
    unusable_name,
    unusable_region,
)
from triomq_server.config.settings import (
    INT32_MOST,
    ConfigError,
    Unusable,
    apply,
    clamped,
    interval,
    kept_for_the_start,
    keys_of,
    refuse_change,
    refuse_out_of_range,
    respell,
    setting,
    to_text,
)
from triomq_server.config.store import LARGE_BATCH_BYTES, SEND_WAIT_MS, StoreConfig
from triomq_server.config.tls import TlsConfig
from triomq_server.config.without_effect import without_effect_lines

register_period_ms = clamped(10_000, 60_000)
"""The interval between a broker's registrations in ms, from registerNameServerPeriod."""

ROLE_KEYS = ("brokerRole", "brokerId")
"""The settings in the file of a broker's role alone."""


def _cpus() -> int:
    return os.cpu_count() or 1


@attrs.define(kw_only=True)
class BrokerConfig(ServerNetworkConfig):
    """All keys of a broker; ``store`` has those of its message store.

    Raises:
        ConfigError: built for a slave whose ``broker_id`` is not positive.
    """

    # Identity and network.
    broker_cluster_name: str = setting("DefaultCluster", fixed=True, check=unusable_name)
    broker_name: str = setting(factory=host_name, fixed=True, check=unusable_name)
    broker_id: int = setting(0, fixed=True)
    broker_ip1: str = setting(factory=first_address, key="brokerIP1", fixed=True, check=unusable_host)
    """Address for clients, and the STOREHOST of every message."""
    broker_ip2: str = setting(factory=first_address, key="brokerIP2", fixed=True, check=unusable_host)
    """Address for slaves; ``brokerIP1`` if only that one is given, except with ``compat=4.9``."""
    listen_port: int = setting(10_911, least=0, most=65535, fixed=True)
    namesrv_addr: str | None = setting(factory=lambda: os.environ.get("NAMESRV_ADDR"), check=unusable_address)
    """``host:port`` of every name server, separated by semicolons; see ``name_servers``."""
    fetch_namesrv_addr_by_address_server: bool = False
    rmq_address_server_domain: str | None = None
    rmq_address_server_sub_group: str | None = None
    broker_permission: int = setting(6, most=7)
    register_name_server_period: int = interval(30_000, least=0, in_force=register_period_ms)
    """Used within 10000..60000, see ``register_period_ms``."""
    register_broker_timeout_mills: int = interval(6000, least=100, most=60_000)
    force_register: bool = True
    compressed_register: bool = False
    region_id: str = setting("DefaultRegion", check=unusable_region)
    trace_on: bool = True
    use_tls: bool = setting(False, key="useTLS", fixed=True)
    """Whether links to name servers and other brokers use TLS; if unset in a file, ``tls.enable`` decides."""
    high_speed_mode: bool = False
    isolate_log_enable: bool = False
    message_store_plug_in: str = ""

    # Topics, groups, clients.
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = setting(8, least=1, most=1024, at_start=True)
    cluster_topic_enable: bool = setting(True, at_start=True)
    broker_topic_enable: bool = setting(True, at_start=True)
    auto_create_subscription_group: bool = True
    max_auto_created_topics: int = setting(20_000, least=0, most=INT32_MOST)
    """Number of topics (with retry topics) beyond which sends no longer create unknown topics; unknown to RocketMQ."""
    max_auto_created_groups: int = setting(10_000, least=0, most=INT32_MOST)
    """Number of groups beyond which the first use of an unknown group does not create it; unknown to RocketMQ."""
    consumer_offsets_limit_bytes: int = setting(
        factory=lambda: share_of_memory(16, least=64 << 20), least=1 << 20, fixed=True
    )
    """Memory for committed offsets; beyond it, offsets of further queues are refused; unknown to RocketMQ."""
    trace_topic_enable: bool = setting(False, at_start=True)
    msg_trace_topic_name: str = setting(TRACE_TOPIC, check=unusable_name, at_start=True)
    flush_consumer_offset_interval: int = interval(5000)
    flush_consumer_offset_history_interval: int = 60_000
    notify_consumer_ids_changed_enable: bool = True
    channel_not_active_interval: int = 60_000
    rebalance_lock_max_live_time: int = interval(60_000, least=1, at_start=True)
    """Lifetime of an ordered consumer's queue lock without a renewal; members rely on theirs for 30000. Java uses the
    system property ``rocketmq.broker.rebalance.lockMaxLiveTime`` for it."""
    long_polling_enable: bool = True
    short_polling_time_mills: int = interval(1000)
    transfer_msg_by_heap: bool = True
    slave_read_enable: bool = True
    """Whether lagging readers are sent to a slave. Off by default in RocketMQ, and with ``compat=4.9`` unless set in
    the file."""
    enable_property_filter: bool = False
    filter_support_retry: bool = False
    filter_server_nums: int = 0
    enable_calc_filter_bit_map: bool = False
    expect_consumer_num_use_filter: int = 32
    max_error_rate_of_bloom_filter: int = 20
    filter_data_clean_time_span: int = 86_400_000
    disable_consume_if_consumer_read_slowly: bool = False
    consumer_fallbehind_threshold: int = 17_179_869_184
    """Bytes."""
    store_reply_message_enable: bool = True
    acl_enable: bool = setting(False, fixed=True)
    """Whether every request is checked, see `triomq_server.acl`."""
    acl_credentials_file: str | None = setting(None, fixed=True)
    """Our own key, unknown to RocketMQ: a file like its ``tools.yml``, with the account that signs this broker's own
    requests to other brokers of its set; if unset, they are not signed."""
    start_accept_send_request_time_stamp: int = setting(0, most=253_370_764_800_000)
    """Milliseconds since 1970, until 9999-01-01: sends before this time are refused, with the time in the answer."""
    enable_detail_stat: bool = True
    auto_delete_unused_stats: bool = False
    commercial_enable: bool = True
    commercial_timer_count: int = 1
    commercial_trans_count: int = 1
    commercial_big_count: int = 1
    commercial_base_count: int = 1

    # Flow control. Thread counts are accepted without effect.
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: int = 200
    wait_time_mills_in_pull_queue: int = 5000
    wait_time_mills_in_heartbeat_queue: int = 31_000
    wait_time_mills_in_transaction_queue: int = 3000
    send_message_thread_pool_nums: int = setting(factory=lambda: min(_cpus(), 4))
    put_message_future_thread_pool_nums: int = setting(factory=lambda: min(_cpus(), 4))
    pull_message_thread_pool_nums: int = setting(factory=lambda: 16 + 2 * _cpus())
    process_reply_message_thread_pool_nums: int = setting(factory=lambda: 16 + 2 * _cpus())
    query_message_thread_pool_nums: int = setting(factory=lambda: 8 + _cpus())
    admin_broker_thread_pool_nums: int = 16
    client_manage_thread_pool_nums: int = 32
    consumer_manage_thread_pool_nums: int = 32
    heartbeat_thread_pool_nums: int = setting(factory=lambda: min(32, _cpus()))
    end_transaction_thread_pool_nums: int = setting(factory=lambda: max(8 + 2 * _cpus(), 4 * min(_cpus(), 4)))
    send_thread_pool_queue_capacity: int = 10_000
    put_thread_pool_queue_capacity: int = 10_000
    reply_thread_pool_queue_capacity: int = 10_000
    pull_thread_pool_queue_capacity: int = setting(100_000, most=INT32_MOST, at_start=True)
    end_transaction_pool_queue_capacity: int = 100_000
    query_thread_pool_queue_capacity: int = 20_000
    heartbeat_thread_pool_queue_capacity: int = 50_000
    client_manager_thread_pool_queue_capacity: int = 1_000_000
    consumer_manager_thread_pool_queue_capacity: int = 1_000_000

    # Transactions.
    reject_transaction_message: bool = False
    transaction_time_out: int = 6000
    """Milliseconds after which a producer is asked about a half message."""
    transaction_check_max: int = 15
    transaction_check_interval: int = interval(60_000)
    """Milliseconds from the end of one check of open transactions to the start of the next."""

    # The client side (NettyClientConfig).
    client_worker_threads: int = 4
    client_callback_executor_threads: int = setting(factory=_cpus)
    client_oneway_semaphore_value: int = 65_535
    client_async_semaphore_value: int = 65_535
    connect_timeout_millis: int = 3000
    client_channel_max_idle_time_seconds: int = setting(120, least=1)
    client_socket_snd_buf_size: int = 0
    client_socket_rcv_buf_size: int = 0
    client_pooled_byte_buf_allocator_enable: bool = False
    client_close_socket_if_timeout: bool = True

    store: StoreConfig = attrs.field(factory=StoreConfig, metadata={"triomq.skip": True})
    extra: dict[str, str] = attrs.field(factory=dict, metadata={"triomq.skip": True})
    """Unknown keys of the startup file; still shown to tools."""

    def __attrs_post_init__(self) -> None:
        self.derive()

    @classmethod
    def from_properties(
        cls, values: Mapping[str, str], *, strict: bool = False, **preset: Any
    ) -> tuple[BrokerConfig, list[str]]:
        """Build a configuration from the defaults and the given keys.

        Args:
            values: the contents of a file, as returned by ``load_properties``.
            strict: whether all warnings are errors.
            preset: attributes of this class that replace defaults before the file is read.

        Returns:
            The configuration, and the warnings about unusable values.

        Raises:
            ConfigError: a slave has no positive ``brokerId``, or a problem of the values affects safety, see
                ``findings``.
        """
        config = cls(**preset)
        spelled, renamed = respell(values)
        known, unusable, misread = _apply(config, spelled)
        if "storePathRootDir" in spelled and "storePathCommitLog" not in spelled:
            config.store.store_path_commit_log = ""
        if "useTLS" not in spelled:
            config.use_tls = config.tls.dials_tls(None)
        if "slaveReadEnable" not in spelled:
            config.slave_read_enable = not config.store.compat_49
        if "cleanFileForciblyEnable" not in spelled:
            config.store.clean_file_forcibly_enable = config.store.compat_49
        only_ip1 = bool(spelled.get("brokerIP1")) and "brokerIP2" not in spelled
        if only_ip1 and not config.store.compat_49:
            # A broker that listens only on a loopback address would send its slaves to a wrong address.
            config.broker_ip2 = config.broker_ip1
        if "haTransferBatchSize" not in spelled and not config.store.compat_49:
            config.store.ha_transfer_batch_size = LARGE_BATCH_BYTES
        if not config.store.compat_49:
            # RocketMQ's own, 3 s and 5 s, are not shorter than a producer's deadline: it would never see the status.
            if "slaveTimeout" not in spelled:
                config.store.slave_timeout = SEND_WAIT_MS
            if "syncFlushTimeout" not in spelled:
                config.store.sync_flush_timeout = SEND_WAIT_MS
        config.extra = {key: value for key, value in spelled.items() if key not in known}
        found = [
            *findings.respelled(renamed),
            *findings.unusable(unusable),
            *findings.misread(misread),
            *findings.without_effect(_without_effect(config)),
            *findings.slaves_sent_elsewhere(config.broker_ip1, config.broker_ip2, only_ip1=only_ip1),
            *findings.address_of_no_host("brokerIP1", config.broker_ip1),
            *(
                []
                if config.broker_ip2 == config.broker_ip1
                else findings.address_of_no_host("brokerIP2", config.broker_ip2)
            ),
            *([] if config.store.is_slave else findings.id_of_master(config.broker_id, config.store.broker_role)),
            *findings.main_address_alone(
                config.store.ha_master_main_address, config.store.ha_master_address, is_slave=config.store.is_slave
            ),
            *findings.hours(config.store.delete_when),
            *findings.name_with_separators(config.broker_name),
            *findings.small_log_files(config.store.mapped_file_size_commit_log, config.store.max_message_size),
            *findings.several_log_directories(spelled.get("storePathCommitLog")),
            *findings.former_paths(config.extra, config.store.store_path_root_dir),
            *findings.unknown(
                (key for key in config.extra if key not in findings.FORMER_PATHS),
                [*keys_of(cls), *keys_of(StoreConfig), *keys_of(TlsConfig)],
            ),
        ]
        warnings = findings.warnings_of(found, strict=strict)
        config.derive()
        config.check_access()
        return config, warnings

    def derive(self) -> None:
        """Derive the values that RocketMQ derives at startup: a master's id is 0, the HA port is listenPort + 1. Raises
        ConfigError for a slave without id."""
        self.store.derive()
        if 0 < self.listen_port < 3 or self.listen_port == 65535:
            raise ConfigError(
                f"listenPort={self.listen_port}: the ports listenPort - 2 and listenPort + 1 are needed too; it must lie "
                "between 3 and 65534"
            )
        if not self.store.is_slave:
            self.broker_id = 0
        elif self.broker_id <= 0:
            raise ConfigError(
                f"brokerRole=SLAVE needs a brokerId greater than 0, and it is {self.broker_id}; "
                "id 0 belongs to the master of the set"
            )
        # With an ephemeral port the next one cannot be predicted, so the HA listener uses a separate one.
        self.store.ha_listen_port = self.listen_port + 1 if self.listen_port else 0

    def update(self, values: Mapping[str, str]) -> list[str]:
        """Change the running configuration (code 25); unknown keys change nothing.

        Returns warnings: among them are the keys that are read once, at the start.

        Raises:
            ConfigError: a value cannot be used, contradicts another, takes effect only at startup, or would prevent a
                start; nothing has changed.
        """
        spelled, renamed = respell(values)
        changed = copy.copy(self)
        changed.store = copy.copy(self.store)
        changed.tls = copy.copy(self.tls)
        known, unusable, misread = _apply(changed, spelled, running=True)
        refuse_change(unusable)
        changed.store.check_relations()
        before = _without_effect(self)
        found = [
            *findings.respelled(renamed),
            *findings.misread(misread),
            *findings.without_effect(pair for pair in _without_effect(changed) if pair not in before),
            *findings.kept_for_the_start(kept_for_the_start(self, changed)),
            *findings.kept_for_the_start(kept_for_the_start(self.store, changed.store)),
            *findings.changed_hours(self.store.delete_when, changed.store.delete_when),
            *findings.unknown_at_run_time(spelled.keys() - known - self.extra.keys()),
        ]
        warnings = findings.warnings_of(found, running=True)
        _apply(self, spelled)
        return warnings

    def check(self) -> None:
        """Raise ConfigError for values that a program has set and no file could have, and for contradictions."""
        refuse_out_of_range(self, self.store, self.tls)
        self.derive()
        self.check_access()

    def check_access(self) -> None:
        """Raise ConfigError if access control is switched on but would leave something unprotected."""
        if not self.acl_enable:
            return
        if not self.rocketmq_home:
            raise ConfigError(
                "aclEnable=true needs rocketmqHome, or ROCKETMQ_HOME in the environment: accounts are in its "
                "conf/plain_acl.yml and conf/acl"
            )
        if not self.store.ha_slave_addresses and not self.store.compat_49:
            raise ConfigError(
                "aclEnable=true needs haSlaveAddresses: the HA port carries no signatures, and would give the log to "
                "anyone; name the slaves, or 127.0.0.1 if there are none"
            )

    def to_properties(self) -> dict[str, str]:
        """All keys as text: broker, network, store, the TLS keys that are set, and unknown keys of the startup file."""
        return {**to_text(self), **to_text(self.store), **self.tls.changed(), **self.extra}

    def to_file(self) -> dict[str, str]:
        """The same for a file that the next start reads, without ``storePathCommitLog`` where it follows the root.

        RocketMQ leaves it out, too. Otherwise a store that is moved, with its ``storePathRootDir``, would begin an empty
        log at its old place, and remove its queues.
        """
        values = self.to_properties()
        if self.store.store_path_commit_log == self.store.default_log_path:
            del values["storePathCommitLog"]
        return values

    @property
    def name_servers(self) -> list[str]:
        """The name servers' ``host:port``, in the given order."""
        return [address.strip() for address in (self.namesrv_addr or "").split(";") if address.strip()]

    @property
    def address(self) -> str:
        """``host:port`` under which this broker registers; with port 0 it is known only once the listener is open."""
        return f"{self.broker_ip1}:{self.listen_port}"


def _apply(
    config: BrokerConfig, values: Mapping[str, str], *, running: bool = False
) -> tuple[set[str], list[Unusable], list[Unusable]]:
    """`apply` to the keys of the broker, its store and TLS."""
    known: set[str] = set()
    unusable: list[Unusable] = []
    misread: list[Unusable] = []
    for part in (config, config.store, config.tls):
        of_part = apply(part, values, running=running)
        known |= of_part[0]
        unusable += of_part[1]
        misread += of_part[2]
    config.store.update_in_memory_limit()
    return known, unusable, misread


def _without_effect(config: BrokerConfig) -> list[tuple[str, str]]:
    return [*without_effect_lines(config), *without_effect_lines(config.store)]
