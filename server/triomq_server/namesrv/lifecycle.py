"""Runs a name server: builds its tables, listens, and drops silent brokers (`NamesrvController`, `NamesrvStartup`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import trio

from triomq_server.config import NamesrvConfig
from triomq_server.disk import Disk, RealDisk
from triomq_server.disk.config_files import ConfigFile
from triomq_server.metrics.port import MetricsPort
from triomq_server.namesrv.handlers import NameServer
from triomq_server.namesrv.kv_config import KvConfig
from triomq_server.namesrv.metrics import write_metrics
from triomq_server.namesrv.routes import RouteTable
from triomq_server.restarting import restarted
from triomq_server.wire import (
    Certificates,
    Limits,
    Listen,
    WaitingBytes,
    incomplete_budget,
    listen_tcp,
    serve,
    unsent_budget,
)

_log = logging.getLogger(__name__)

_FIRST_SCAN_S = 5
_SCAN_S = 10


def _monotonic_ms() -> int:
    """Trio's clock in ms: if the wall clock were set, all brokers would look silent at once, or dead ones alive for
    hours."""
    return int(trio.current_time() * 1000)


async def serve_namesrv(
    config: NamesrvConfig,
    *,
    listen: Listen = listen_tcp,
    disk: Disk | None = None,
    clock: Callable[[], int] = _monotonic_ms,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Run a name server until cancelled.

    Args:
        config: changed in place by UPDATE_NAMESRV_CONFIG.
        listen: opens the listeners; TCP by default.
        disk: access to the key-value configuration's file; real files by default.
        clock: milliseconds from any fixed time, for the expiry of brokers.
        task_status: receives the address, ``ip:port``, once it listens.

    Raises:
        ConfigError: a setting has a value that no file could have given it, or a certificate cannot be used.
        OSError: listening on the address failed, or the key-value file cannot be read.
        ConfigFileDamaged: the key-value file and its backup are broken.
    """
    config.check()
    files = disk or RealDisk()
    certificates = Certificates(config.tls)
    certificates.load(dials=False)
    server = NameServer(
        config=config,
        routes=RouteTable(compat_49=config.compat_49),
        kv=KvConfig(ConfigFile(config.kv_config_path, files)),
        config_file=ConfigFile(config.config_store_path, files),
        clock=clock,
    )
    limits = Limits(
        output_bytes=config.link_output_limit_bytes,
        connections=config.max_connections,
        waiting_requests=config.max_waiting_requests,
        waiting=WaitingBytes(config.waiting_requests_limit_bytes),
        incomplete=incomplete_budget(config.incomplete_frames_limit_bytes),
        unsent=unsent_budget(config.output_limit_bytes),
    )

    async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(
            server.handlers(),
            host=config.bind_address,
            port=config.listen_port,
            listen=listen,
            on_closed=server.link_closed,
            idle_s=config.server_channel_max_idle_time_seconds,
            limits=limits,
            tls=certificates.settings,
            task_status=task_status,
        )

    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(run)
        _log.info("name server listens on %s", ", ".join(addresses))
        if config.metrics_port:
            metrics = MetricsPort(partial(write_metrics, server.routes, limits))
            await nursery.start(partial(metrics.serve, config.metrics_bind_address, config.metrics_port, listen=listen))
        task_status.started(addresses[0])
        nursery.start_soon(restarted, server.remove_gone)
        if certificates.watched:
            nursery.start_soon(restarted, partial(certificates.watch, files.run))
        await restarted(partial(_expire_forever, server))


async def _expire_forever(server: NameServer) -> NoReturn:
    """Drop brokers that have been silent too long, every ten seconds."""
    await trio.sleep(_FIRST_SCAN_S)
    while True:
        await server.expire()
        await trio.sleep(_SCAN_S)
