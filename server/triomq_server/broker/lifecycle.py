"""Starts a broker's store, tables, listeners, replication and registration in order, and stops them in reverse order.

It answers to `BrokerController` and `BrokerStartup`. A cancelled `serve_broker` still unregisters at the name servers,
writes offsets to disk and closes the store before it returns.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import random
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import trio

from triomq_protocol.names import SCHEDULE_TOPIC
from triomq_protocol.wire.command import Command
from triomq_server.acl import AclFiles, guarded, refusal
from triomq_server.acl.signing import ToolAccount, read_tool_account, signing
from triomq_server.broker.addresses import (
    BrokerAddresses,
    bind_host,
    joined,
    packed_address,
    with_port,
)
from triomq_server.broker.admin.runtime import sample_stats
from triomq_server.broker.broker import Broker
from triomq_server.broker.handlers import fast_handlers, main_handlers
from triomq_server.broker.metrics import write_metrics
from triomq_server.broker.registration import Identity, Registration, members_of_set, other_master
from triomq_server.broker.requests.clients import link_closed, watch_clients
from triomq_server.broker.requests.offsets import count_unexpected
from triomq_server.broker.roles.lost_messages import (
    end_in,
    lower_offsets,
    may_have_lost,
    note_power_failure,
    note_slave,
)
from triomq_server.broker.roles.returning import fetch_lost_delay_offsets, merge_offsets_of_slaves
from triomq_server.broker.roles.roles import Roles
from triomq_server.broker.schedule import Schedule, persist_delay_offsets
from triomq_server.broker.set_members import SetMembers
from triomq_server.broker.tables.clients import ClientTable
from triomq_server.broker.tables.consumer_filters import ConsumerFilters
from triomq_server.broker.tables.groups import GroupTable
from triomq_server.broker.tables.held_pulls import SCAN_S, HeldPulls
from triomq_server.broker.tables.offsets.committed import MOST_UNEXPECTED, OffsetTable
from triomq_server.broker.tables.offsets.delay_levels import DelayOffsets
from triomq_server.broker.tables.offsets.resets import UNLIMITED_BYTES, Resets
from triomq_server.broker.tables.stats import BrokerStats
from triomq_server.broker.tables.topics import TopicTable
from triomq_server.broker.tables.undelivered import Undelivered
from triomq_server.broker.transactions.check_back import CheckBack
from triomq_server.broker.transactions.open_transactions import OpenTransactions
from triomq_server.clock_waits import ClockWaits
from triomq_server.config import BrokerConfig
from triomq_server.disk import Disk, RealDisk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.metrics.port import MetricsPort
from triomq_server.ports import FAST_PORT_DISTANCE
from triomq_server.replication.master import HaMaster
from triomq_server.replication.rules import HaSettings
from triomq_server.restarting import restarted
from triomq_server.store import MessageStore, open_store, wall_ms
from triomq_server.wire import (
    Certificates,
    Dial,
    Limits,
    Link,
    Listen,
    OpenLink,
    WaitingBytes,
    WriteBatch,
    accept_tls,
    counted_host,
    dial_tcp,
    in_turns,
    incomplete_budget,
    listen_tcp,
    open_link,
    serve,
    tls_dial,
    to_the_end,
    unsent_budget,
)

FILTERS_PERSIST_S = 10.0
"""How often property filters are written to disk."""

_log = logging.getLogger(__name__)


async def serve_broker(
    config: BrokerConfig,
    *,
    disk: Disk | None = None,
    dial: Dial = dial_tcp,
    listen: Listen = listen_tcp,
    clock: Callable[[], int] = wall_ms,
    chance: random.Random | None = None,
    config_path: str | None = None,
    role_path: str | None = None,
    clock_waits: ClockWaits | None = None,
    not_written: Callable[[str], None] = lambda _: None,
    task_status: trio.TaskStatus[BrokerAddresses] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Run a broker until cancelled, then stop it in order.

    Args:
        config: its settings. With port 0 it takes a free one, such that the port below the one below and the one
            above are free too.
        disk: where its files are; real ones by default.
        dial, listen: its network; TCP by default.
        clock: wall clock in ms.
        chance: random choices, such as of a queue.
        config_path: the configuration file, rewritten when request 25 changes settings, or an operator the role.
        role_path: a file for the keys of the role alone; the caller reads them at the next start.
        clock_waits: wakes what waits for times of the clock when that is set.
        not_written: called at the end of a stop in order with each thing that the disk has not taken: why, and a path.
        task_status: receives the addresses once it listens and each name server has been tried.

    Raises:
        StoreLocked: another process uses the store directory.
        ConfigError: a setting has a value that no file could have given it, or the files of access control or TLS
            cannot be used.
        ConfigFileDamaged: a table cannot be read and has no usable backup.
        OSError: a port is taken, or the disk fails.
    """
    stop = trio.Event()
    one_run = _Run(
        with_port(config),
        disk or RealDisk(),
        dial,
        listen,
        clock,
        chance or random.Random(),
        config_path,
        role_path,
        clock_waits or ClockWaits(),
        not_written,
        stop,
    )
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(one_run.run)
        task_status.started(addresses)
        try:
            await trio.sleep_forever()
        finally:
            stop.set()


class _Run:
    """One run of a broker. Once it serves, `run` is shielded from cancellation: setting `stop` ends it in order."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        dial: Dial,
        listen: Listen,
        clock: Callable[[], int],
        chance: random.Random,
        config_path: str | None,
        role_path: str | None,
        clock_waits: ClockWaits,
        not_written: Callable[[str], None],
        stop: trio.Event,
    ) -> None:
        self._config = config
        self._ha_settings = HaSettings.from_config(config.store, compat_49=config.store.compat_49)
        self._disk = disk
        self._dial = self._ha_dial = dial
        self._listen = listen
        self._clock = clock
        self._chance = chance
        self._config_path = config_path
        self._role_path = role_path
        self._clock_waits = clock_waits
        self._not_written = not_written
        self._stop = stop
        self._files: list[ConfigFile] = []
        self._acl: AclFiles | None = None
        self._certificates = Certificates(config.tls)
        self._account: ToolAccount | None = None

    async def run(self, *, task_status: trio.TaskStatus[BrokerAddresses]) -> None:
        config = self._config
        config.check()
        if config.acl_enable:
            assert config.rocketmq_home is not None
            self._acl = AclFiles(config.rocketmq_home, self._clock, self._disk.run)
            self._acl.load()
        self._load_certificates()
        if config.acl_credentials_file is not None:
            self._account = read_tool_account(config.acl_credentials_file)
        note_power_failure(self._disk, config)
        with trio.CancelScope() as scope:
            store_host = await packed_address(config.broker_ip1, config.listen_port)
            async with (
                open_store(
                    config.store,
                    disk=self._disk,
                    clock=self._clock,
                    is_slave=config.store.is_slave,
                    clock_waits=self._clock_waits,
                ) as store,
                contextlib.AsyncExitStack() as end,
                trio.open_nursery() as background,
            ):
                broker = self._broker(store, store_host, background)
                end.push_async_callback(_write_tables, broker)
                try:
                    await self._start(broker, background)
                    task_status.started(BrokerAddresses(broker.address, broker.ha_address))
                    # If the start is cancelled in the meantime, no caller would set `stop`.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    scope.shield = True
                    _log.info("broker %s serves at %s", config.broker_name, broker.address)
                    await self._stop.wait()
                    await broker.registration.unregister()
                finally:
                    background.cancel_scope.cancel()
            self._report_not_written(store)

    def _report_not_written(self, store: MessageStore) -> None:
        for file in self._files:
            if file.failure is not None:
                self._not_written(f"{file.path}: {file.failure}")
        if store.not_written is not None:
            self._not_written(f"the store in {self._config.store.store_path_root_dir}: {store.not_written}")

    def _load_certificates(self) -> None:
        """Read the certificates, and let the broker's own links use TLS if configured."""
        config, certificates = self._config, self._certificates
        tls = certificates.config
        # The file `tls.config.file` may require TLS even if the broker's own settings do not.
        if not config.use_tls and tls.dials_tls(None) and not config.tls.dials_tls(None):
            config.use_tls = True
        certificates.load(dials=config.use_tls or tls.ha_use_tls)
        secured = tls_dial(self._dial, certificates.client, tls.handshake_timeout_ms / 1000)
        self._ha_dial = secured if tls.ha_use_tls else self._dial
        self._dial = secured if config.use_tls else self._dial

    def _set_opener(self) -> OpenLink:
        """Opens links to the other brokers of the set, which may check who asks."""
        opener: OpenLink = partial(open_link, dial=self._dial)
        return opener if self._account is None else signing(opener, self._account)

    # -- starting

    def _broker(self, store: MessageStore, store_host: bytes, background: trio.Nursery) -> Broker:
        """The broker's tables, read from its files, in one object."""
        config, clock = self._config, self._clock
        topics = TopicTable(config, self._file("topics.json"), clock)
        groups = GroupTable(config, self._file("subscriptionGroup.json"), clock)
        resets, limit_bytes = None, UNLIMITED_BYTES
        if not config.store.compat_49:
            limit_bytes = config.consumer_offsets_limit_bytes
            resets = Resets(self._own_file("offsetResets.json"), clock, limit_bytes=limit_bytes)
        offsets = OffsetTable(self._file("consumerOffset.json"), resets=resets, limit_bytes=limit_bytes)
        delay_offsets = DelayOffsets(
            self._file("delayOffset.json"), careful=not config.store.compat_49, log_end=store.log_max_offset
        )
        undelivered = Undelivered(self._own_file("undeliveredDelays.json"))
        filters = ConsumerFilters(self._file("consumerFilter.json"), clock)
        for table in (topics, groups, offsets, delay_offsets, undelivered, filters):
            table.load()
        if not config.store.compat_49 and (found := topics.recover(store.readable_queues())):
            # Also after a kill shortly after topics were created.
            _log.warning(
                "topics.json did not know %d topics that have messages; recovered from their queues: %s",
                len(found), ", ".join(found[:10]),
            )  # fmt: skip
        address = joined(config.broker_ip1, config.listen_port)
        ha_address = joined(config.broker_ip2, config.store.ha_listen_port)
        identity = Identity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=address,
            ha_address=ha_address,
        )
        opener = partial(open_link, dial=self._dial)
        registration = Registration(config, identity, topics.snapshot, opener, chance=self._chance)
        topics.on_change = lambda _topic: registration.register_soon()
        if not config.store.compat_49:
            registration.on_period = topics.count_removals
        path = self._config_path
        broker = Broker(
            config=config,
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            delay_offsets=delay_offsets,
            undelivered=undelivered,
            clients=ClientTable(),
            filters=filters,
            stats=BrokerStats(config.broker_cluster_name, clock()),
            held_pulls=_held_pulls(config, store),
            registration=registration,
            nursery=background,
            clock=clock,
            chance=self._chance,
            address=address,
            ha_address=ha_address,
            store_host=store_host,
            set_members=SetMembers(address, self._own_file("setMembers.json")),
            replication=HaMaster(store, self._ha_settings),
            incomplete_frames=incomplete_budget(config.incomplete_frames_limit_bytes),
            unsent=unsent_budget(config.output_limit_bytes),
            config_file=None if path is None else ConfigFile(path, self._disk),
            role_file=None if self._role_path is None else ConfigFile(self._role_path, self._disk),
            acl=self._acl,
            clock_waits=self._clock_waits,
        )
        broker.set_members.load()
        to_the_end(count_unexpected(broker))
        broker.on_config_change.append(registration.read_config)
        if broker.acl is not None:
            # Held pulls were allowed by the accounts of before: their readers ask again, and are checked again.
            broker.acl.on_change.append(broker.held_pulls.wake_all)
        return broker

    def _file(self, name: str) -> ConfigFile:
        return self._below_root("config", name)

    def _own_file(self, name: str) -> ConfigFile:
        return self._below_root("triomq", name)

    def _below_root(self, *names: str) -> ConfigFile:
        file = ConfigFile(posixpath.join(self._config.store.store_path_root_dir, *names), self._disk)
        self._files.append(file)
        return file

    async def _start(self, broker: Broker, background: trio.Nursery) -> None:
        """Start listeners first, so that every registered address is served; then the background tasks."""
        config, store = broker.config, broker.store
        opener = self._set_opener()
        other = None
        if not config.store.is_slave and not config.store.compat_49:
            other = await self._return_to_set(broker, opener)
        host = bind_host(config.broker_ip1)
        replication = broker.replication
        certificates = self._certificates
        secure = partial(accept_tls, tls=certificates.settings) if certificates.config.ha_use_tls else None
        await background.start(
            partial(replication.serve, host, config.store.ha_listen_port, listen=self._listen, secure=secure)
        )
        write_batch = WriteBatch()
        replication.releasing = lambda: write_batch
        replication.members = broker.set_members.hosts
        roles = Roles(broker, self._ha_settings, background, dial=self._ha_dial, open_link=opener)
        if other is not None:
            await roles.step_down(other)
        elif config.store.is_slave and not config.store.compat_49:
            await note_slave(broker)
            await roles.check_id()  # before the registration takes the id from another broker
        limits = Limits(
            output_bytes=config.link_output_limit_bytes,
            connections=config.max_connections,
            waiting_requests=config.max_waiting_requests,
            waiting=WaitingBytes(config.waiting_requests_limit_bytes),
            incomplete=broker.incomplete_frames,
            unsent=broker.unsent,
            traffic=broker.traffic,
        )
        transactions = OpenTransactions(broker)
        handlers = main_handlers(broker, roles, transactions)
        if broker.acl is not None:
            handlers = guarded(handlers, partial(_refusal, broker.acl, config.store.compat_49))
            background.start_soon(restarted, broker.acl.watch)
        for port, table in (
            (config.listen_port, handlers),
            (config.listen_port - FAST_PORT_DISTANCE, fast_handlers(handlers)),
        ):
            await background.start(
                partial(
                    serve,
                    table,
                    host=host,
                    port=port,
                    listen=self._listen,
                    on_closed=partial(_closed, broker),
                    on_batch_end=store.notify_batch,
                    idle_s=config.server_channel_max_idle_time_seconds,
                    limits=limits,
                    tls=certificates.settings,
                    write_batch=write_batch,
                )
            )
        await self._open_metrics(broker, background)
        if certificates.watched:
            background.start_soon(restarted, partial(certificates.watch, self._disk.run))
        background.start_soon(restarted, broker.held_pulls.run)
        background.start_soon(restarted, broker.notifications.run)
        background.start_soon(restarted, broker.topics.write_changes)
        background.start_soon(restarted, broker.groups.write_changes)
        background.start_soon(restarted, partial(_persist_offsets, broker))
        background.start_soon(restarted, Schedule(broker).run)
        background.start_soon(restarted, partial(persist_delay_offsets, broker))
        background.start_soon(restarted, CheckBack(broker, transactions).run)
        background.start_soon(restarted, partial(_persist_filters, broker))
        background.start_soon(restarted, partial(watch_clients, broker))
        background.start_soon(restarted, partial(sample_stats, broker))
        roles.start()
        broker.registration.on_answer = roles.handle_registration
        await background.start(broker.registration.run)

    async def _return_to_set(self, broker: Broker, opener: OpenLink) -> str | None:
        """Before a master takes messages: the address of another master of its set, which it is to follow. Without one,
        take what only its slaves know, and put consumer offsets right."""
        config, store = broker.config, broker.store
        members = await members_of_set(config, opener)
        if config.store.follow_other_master:
            other = await other_master(members, broker.address, opener)
            if other is not None:
                return other
        await merge_offsets_of_slaves(
            config, broker.offsets, store, broker.replication.is_known, broker.address, opener,
            end_of=partial(end_in, store, broker.topics), members=members,
        )  # fmt: skip
        if may_have_lost(broker):
            await lower_offsets(broker)
        if broker.delay_offsets.lost:
            if SCHEDULE_TOPIC in {topic for topic, _ in store.readable_queues()}:
                await fetch_lost_delay_offsets(
                    broker.delay_offsets, store, broker.replication.is_known, broker.address, opener, members
                )
            else:  # before the first delayed message: a start after a kill would take a missing file for a loss
                broker.delay_offsets.write_first()
        return None

    async def _open_metrics(self, broker: Broker, background: trio.Nursery) -> None:
        config = self._config
        if config.metrics_port:
            serve_port = MetricsPort(partial(write_metrics, broker)).serve
            await background.start(
                partial(serve_port, config.metrics_bind_address, config.metrics_port, listen=self._listen)
            )


async def _write_tables(broker: Broker) -> None:
    """Write the tables' remaining changes after their tasks have ended, since these would write older content. Cannot be
    cancelled."""
    broker.undelivered.persist()  # before the progress, which counts these messages as delivered
    with trio.CancelScope(shield=True):
        try:
            await broker.store.flush()
        except OSError as error:
            # Delayed messages then come again; consumer offsets are put right by the start that finds the log cut off.
            _log.error("the progress with delayed messages is not written, since the log is not on the disk: %s", error)
        else:
            broker.delay_offsets.persist()
    broker.offsets.persist()
    broker.filters.persist()
    for table in (broker.topics, broker.groups):
        table.persist_if_unsaved()


def _refusal(acl: AclFiles, compat_49: bool, host: str, command: Command) -> str | None:
    """Why a request is refused by the rules in force now; None if it is allowed."""
    return refusal(acl.rules, host, command, compat_49=compat_49)


def _held_pulls(config: BrokerConfig, store: MessageStore) -> HeldPulls:
    """Held pulls with exact deadlines; with ``compat=4.9`` they are scanned periodically as in RocketMQ."""
    limit = config.pull_thread_pool_queue_capacity
    record_of = partial(_record_of, store)
    if not config.store.compat_49:
        return HeldPulls(limit=limit, record_of=record_of, host_of=_host)
    scan_s = SCAN_S if config.long_polling_enable else config.short_polling_time_mills / 1000
    return HeldPulls(
        limit=limit,
        scan_s=scan_s,
        queue_end=lambda topic, queue: store.queue_bounds(topic, queue)[1],
        record_of=record_of,
        host_of=_host,
    )


def _host(link: Link) -> bytes:
    """The peer's address without its port, or its network."""
    return counted_host(link.peer_host)


def _record_of(store: MessageStore, topic: str, queue_id: int, offset: int) -> memoryview | None:
    """The record at an offset of a queue."""
    entry = store.queue_entry(topic, queue_id, offset)
    return None if entry is None else store.record_at(entry[0], entry[1])


def _closed(broker: Broker, link: Link) -> None:
    """Release what belongs to a client's link that has closed."""
    broker.held_pulls.drop_link(link)
    link_closed(broker, link)


async def _persist_offsets(broker: Broker) -> NoReturn:
    """Write consumer offsets to disk every flushConsumerOffsetInterval if they have changed."""
    while True:
        await trio.sleep(broker.config.flush_consumer_offset_interval / 1000)
        # A slave's offsets may be beyond its log in any case.
        await broker.offsets.persist_in_background(None if broker.is_slave else broker.store.flush)
        if broker.offsets.unexpected > MOST_UNEXPECTED // 2:
            # An operator may have removed some, or made their groups and topics known.
            await in_turns(count_unexpected(broker))
        broker.topics.retry_if_unsaved()
        broker.groups.retry_if_unsaved()


async def _persist_filters(broker: Broker) -> NoReturn:
    """Write property filters to disk every ten seconds if they have changed."""
    while True:
        await trio.sleep(FILTERS_PERSIST_S)
        broker.filters.expire(broker.clients.subscription, broker.config.filter_data_clean_time_span)
        await broker.filters.persist_in_background()
