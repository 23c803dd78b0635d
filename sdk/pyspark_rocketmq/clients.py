"""Open clients of this process: one loop thread per set of settings, shared by consecutive calls.

Spark calls a data source from plain threads, in processes that it forks and reuses: in the driver, where every trigger
queries offsets, and in the tasks. So a client stays open between calls, for :data:`IDLE_S`; then its thread ends. A
forked child does not use its parent's clients.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import attrs
import trio
from pyspark import TaskContext

import triomq
from pyspark_rocketmq.options import ClientSettings
from triomq._companions import LoopThread, scan_with
from triomq_protocol.names import MASTER_ID

T = TypeVar("T")

IDLE_S: Final = 30.0
"""How long an unused client stays open."""

PLAN_LIMIT_S: Final = 60.0
"""Time limit for all queries of brokers together; the option `rocketmq.route_wait_s` is added to it."""


@attrs.frozen
class ClientKey:
    """The settings that distinguish clients.

    Args:
        settings: the settings they are opened with.
        group: the consumer group that pulls; None if nothing is pulled.
        preference: the brokers to pull from.
        scan: returns how many records a pull answer starts with, and where the last of them ends; None: the SDK
            finds that.
        files: the versions of the settings' files, so that no client of an older version is used; set by
            :func:`borrowed`.
    """

    settings: ClientSettings
    group: str | None
    preference: str | int = "suggested"
    scan: Callable[[bytes], tuple[int, int]] | None = None
    files: tuple[tuple[int, int, int] | None, ...] = ()


def only_brokers(preference: str | int) -> str | None:
    """The value of `readPreference` if it excludes brokers that may have messages the admitted ones lack; else None."""
    return None if preference in ("suggested", "master", "prefer_slave", MASTER_ID) else str(preference)


@attrs.frozen
class Session:
    """The objects that are open in a loop thread.

    Args:
        client: the client.
        nursery: for tasks that outlive a call; they must not raise.
        pulling: the consumer, which pulls as the query prefers; None if nothing is pulled.
        route_wait_s: the client's setting; None if it is not given.
        admits_masters: whether the query may pull from masters.
    """

    client: triomq.Client
    nursery: trio.Nursery
    pulling: triomq.PullConsumer | None
    route_wait_s: float | None = None
    admits_masters: bool = True

    @property
    def plan_limit_s(self) -> float:
        """Time limit for all queries of brokers together."""
        return PLAN_LIMIT_S + (self.route_wait_s or 0.0)

    @property
    def consumer(self) -> triomq.PullConsumer:
        """The consumer, which pulls as the query prefers."""
        assert self.pulling is not None
        return self.pulling


class PooledClient:
    """A client in its loop thread.

    Args:
        pool: the pool it belongs to.
        key: the settings it is opened with.
    """

    def __init__(self, pool: _Pool, key: ClientKey) -> None:
        self.key = key
        self.users = 0
        self._pool = pool
        self._thread = LoopThread(self._open, name="rocketmq-source")

    @property
    def session(self) -> Session:
        """The objects that are open in the thread; to be used only there."""
        return self._thread.session

    @property
    def is_over(self) -> bool:
        """Whether the client has been closed."""
        return self._thread.is_over

    def call(self, run: Callable[[Session], Awaitable[T]]) -> T:
        """Run an async function in the loop and wait for its end.

        Raises:
            triomq.errors.ClientClosed: the client was closed meanwhile.
        """
        return self._thread.call(lambda: run(self._thread.session))

    def call_soon(self, run: Callable[[], object]) -> None:
        """Run a plain function in the loop without waiting for it; does nothing if the client is closed."""
        self._thread.call_soon(run)

    def close(self) -> None:
        """Close the client, and cancel what still runs in its loop."""
        self._thread.close()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Session]:
        settings = self.key.settings
        async with triomq.open_client(settings.name_servers, **client_options(settings)) as client:
            group, consumer = self.key.group, None
            if group is not None:
                consumer = client.pull_consumer(group, read_preference=self.key.preference)
                if self.key.scan is not None:
                    # The answers' messages are not used, and finding where each starts is a tenth of a read.
                    scan_with(consumer, self.key.scan)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_when_idle)
                try:
                    wait_s = dict(settings.client).get("route_wait_s")
                    yield Session(client, nursery, consumer, wait_s, only_brokers(self.key.preference) is None)
                finally:
                    nursery.cancel_scope.cancel()

    async def _close_when_idle(self) -> None:
        while True:
            await trio.sleep(IDLE_S)
            if self._pool.discard_unused(self):
                self._thread.stop()
                return


def client_options(settings: ClientSettings) -> dict[str, Any]:
    """The arguments of `triomq.open_client`; files are read now.

    Raises:
        triomq.errors.InvalidCall: a file cannot be used.
    """
    options: dict[str, Any] = dict(settings.client)
    if settings.credentials is not None:
        options["credentials"] = settings.credentials
    elif settings.credentials_file is not None:
        options["credentials"] = triomq.Credentials.from_file(settings.credentials_file)
    if settings.tls is not None:
        options["dial"] = triomq.plugins.tls_dialer(**attrs.asdict(settings.tls))
    return options


def _versions(settings: ClientSettings) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes with the content of each file of the settings; None for one that cannot be found."""
    tls = settings.tls
    paths = (settings.credentials_file, *((tls.ca, tls.certificate, tls.key) if tls is not None else ()))
    found: list[tuple[int, int, int] | None] = []
    for path in filter(None, paths):
        try:
            state = os.stat(path)
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(found)


class _Pool:
    """The clients of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._has_frozen = False
        self._lock = threading.Lock()
        self._clients: dict[ClientKey, PooledClient] = {}

    def exempt_imports(self) -> None:
        """Once in a worker of Spark: exempt the objects of the imported modules from the search for garbage.

        Spark calls `gc.collect` after each task. With pandas and pyarrow imported this took a fifth of the processor
        time of a worker that reads.
        """
        if not self._has_frozen and TaskContext.get() is not None:
            self._has_frozen = True
            gc.freeze()

    def take(self, key: ClientKey) -> PooledClient:
        with self._lock:
            client = self._clients.get(key)
            if client is None or client.is_over:
                client = self._clients[key] = PooledClient(self, key)
            client.users += 1
            return client

    def give_back(self, client: PooledClient) -> None:
        with self._lock:
            client.users -= 1

    def discard_unused(self, client: PooledClient) -> bool:
        """Remove a client from the pool unless it is in use; returns whether it was removed."""
        with self._lock:
            if client.users:
                return False
            if self._clients.get(client.key) is client:
                del self._clients[client.key]
            return True

    def take_all(self) -> list[PooledClient]:
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
            return clients


_pool = _Pool()


def _own_pool() -> _Pool:
    """This process's pool: a forked child starts with an empty one, since threads and links stay with the parent."""
    global _pool
    if _pool.pid != os.getpid():
        _pool = _Pool()
    return _pool


@contextmanager
def borrowed(key: ClientKey) -> Iterator[PooledClient]:
    """A client for as long as the block lasts, opened now or left open by an earlier call with the same files.

    Raises:
        triomq.MQError: an address or the group's name is invalid.
    """
    pool = _own_pool()
    pool.exempt_imports()
    client = pool.take(attrs.evolve(key, files=_versions(key.settings)))
    try:
        yield client
    finally:
        pool.give_back(client)


def close_all() -> None:
    """Close every client of this process; later calls open new ones."""
    for client in _own_pool().take_all():
        client.close()
