"""A thread with a loop in which clusters run, for tests with or without a loop of any kind."""

from __future__ import annotations

import contextlib
import errno
import socket
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

import trio

import triomq
from triomq._companions import LoopThread
from triomq_server.cluster import open_cluster
from triomq_server.cluster.nodes import Machine
from triomq_server.cluster.plan import NodePlan
from triomq_server.config import BrokerConfig, ConfigError
from triomq_server.ports import ATTEMPTS
from triomq_testing.clusters.broker_settings import SETTINGS
from triomq_testing.control import Control
from triomq_testing.directories import remove_left_behind, temporary_directory
from triomq_testing.remote import Remote
from triomq_testing.rocketmq import RocketMQ
from triomq_testing.steered.clock import Clock, LocalHand, SteeredClock
from triomq_testing.steered.disk import SteeredDisk
from triomq_testing.steered.faults import Faults, Weaknesses
from triomq_testing.steered.network import SteeredNetwork


class Servers:
    """Runs any number of clusters in its own thread, one after another or concurrently."""

    def __init__(self) -> None:
        remove_left_behind()
        self._loop = LoopThread(_open_nursery, name="triomq-testing")

    def __enter__(self) -> Self:
        """Do nothing: the thread already runs."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self.close()

    def close(self) -> None:
        """Stop all clusters and end the thread."""
        self._loop.close()

    @contextlib.contextmanager
    def open(
        self,
        *,
        masters: int = 1,
        slaves: int = 0,
        topics: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        faults: bool = False,
    ) -> Iterator[RocketMQ]:
        """Run a cluster for as long as the block lasts; its files are in a temporary directory.

        Args:
            masters: the number of broker sets.
            slaves: the number of slaves of each master.
            topics: topics to create.
            settings: RocketMQ keys for every broker.
            faults: whether connections can be broken; they are a little slower then.

        Raises:
            OSError: there are no free ports, or the disk fails.
            ValueError: a count is out of range, or a broker must not start with these settings.
            TypeError: topics or settings are not names and texts.

        Warns:
            UserWarning: brokers ignore a setting, such as one with an unknown key.
        """
        if isinstance(topics, str):
            raise TypeError(f"topics is {topics!r}, not a list of names: [{topics!r}]")
        checked = _checked(settings or {})
        options = {"masters": masters, "slaves": slaves, "settings": SETTINGS | checked}
        with temporary_directory() as home:
            running = _Running(self._loop, faults=faults, options=options | {"directory": home})
            rocketmq: RocketMQ = self._loop.call(partial(self._loop.session.start, running.run))
            try:
                for topic in topics:
                    rocketmq.topic(topic)
                yield rocketmq
            finally:
                self._loop.call(running.stop)

    @contextlib.contextmanager
    def open_shared(self, listening: socket.socket, secret: str) -> Iterator[None]:
        """Run a cluster for as long as the block lasts, for `join` in other processes.

        Args:
            listening: the socket on which it is controlled.
            secret: the first part of paths there.
        """
        with temporary_directory() as home:
            options = {"masters": 1, "slaves": 0, "settings": SETTINGS, "directory": home}
            running = _Running(self._loop, faults=False, options=options, control=(listening, secret))
            self._loop.call(partial(self._loop.session.start, running.run))
            try:
                yield
            finally:
                self._loop.call(running.stop)

    @contextlib.contextmanager
    def join(self, url: str) -> Iterator[RocketMQ]:
        """Use the cluster of another process for as long as the block lasts.

        Args:
            url: the URL of its control, with its secret.

        Raises:
            ConnectionError: the cluster no longer runs.
            ValueError: it could not be started.
        """
        remote = Remote(url)
        namesrv_addr = remote.state()["namesrv_addr"]
        faults = Faults(None, {}, SteeredClock(), self._loop, possible=False)
        scope = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
            with scope:
                async with trio.open_nursery() as nursery:
                    task_status.started(nursery)
                    await trio.sleep_forever()

        async def stop() -> None:
            scope.cancel()

        nursery: trio.Nursery = self._loop.call(partial(self._loop.session.start, serve))
        try:
            yield RocketMQ(namesrv_addr, Clock(remote), faults, _SharedClient(namesrv_addr, nursery), self._loop)
        finally:
            self._loop.call(stop)


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    for key, value in settings.items():
        if not isinstance(value, str):
            raise TypeError(f"the setting {key} is {value!r}, not text as in a broker.conf: {str(value).lower()!r}")
    checked = dict(settings)
    with contextlib.suppress(ConfigError):  # raised when the broker starts
        for warning in BrokerConfig.from_properties(checked)[1]:
            warnings.warn(f"settings of the cluster: {warning}", stacklevel=4)
    return checked


@asynccontextmanager
async def _open_nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


class _SharedClient:
    """See `SharedClient`."""

    def __init__(self, namesrv_addr: str, nursery: trio.Nursery) -> None:
        self._namesrv_addr = namesrv_addr
        self._nursery = nursery
        self._opening = trio.Lock()
        self._open: tuple[triomq.Client, triomq.Producer] | None = None

    async def client(self) -> triomq.Client:
        return (await self._opened())[0]

    async def producer(self) -> triomq.Producer:
        return (await self._opened())[1]

    async def _opened(self) -> tuple[triomq.Client, triomq.Producer]:
        async with self._opening:
            if self._open is None:
                self._open = await self._nursery.start(self._keep_open)
            return self._open

    async def _keep_open(self, *, task_status: trio.TaskStatus[tuple[triomq.Client, triomq.Producer]]) -> None:
        async with triomq.open_client(self._namesrv_addr) as client:
            task_status.started((client, client.producer("triomq_testing")))
            await trio.sleep_forever()


class _Running:
    """One cluster that runs in the loop."""

    def __init__(
        self,
        loop: LoopThread[trio.Nursery],
        *,
        faults: bool,
        options: dict[str, object],
        control: tuple[socket.socket, str] | None = None,
    ) -> None:
        self._loop = loop
        self._faults = faults
        self._control = control
        self._options = options
        self._clock = SteeredClock()
        self._nodes: dict[str, Weaknesses] = {}
        self._started = False
        self._failure: Exception | None = None
        self._stopping = trio.Event()
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[RocketMQ]) -> None:
        """Run the cluster until `stop`.

        A failure before it has started is raised here, a later one by `stop`, so that other clusters continue.
        """
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._run_once(task_status)
                    break
                except Exception as error:  # noqa: BLE001 - raised, or kept for `stop`
                    failure = _only(error)
                    if self._started:
                        self._failure = failure
                        break
                    if attempt == ATTEMPTS or getattr(failure, "errno", None) != errno.EADDRINUSE:
                        raise failure from None
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the cluster, and raise the error with which it failed."""
        self._stopping.set()
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def _run_once(self, task_status: trio.TaskStatus[RocketMQ]) -> None:
        async with open_cluster(**self._options, machine=self._machine) as cluster, trio.open_nursery() as nursery:  # type: ignore[arg-type]
            sdk = _SharedClient(cluster.name_servers, nursery)
            self._started = True
            faults = Faults(cluster, self._nodes, self._clock, self._loop, possible=self._faults)
            if self._control is not None:
                listening, secret = self._control
                nursery.start_soon(Control(cluster.name_servers, self._clock, faults, secret).serve, listening.dup())
            task_status.started(
                RocketMQ(cluster.name_servers, Clock(LocalHand(self._clock, self._loop)), faults, sdk, self._loop)
            )
            await self._stopping.wait()
            await cluster.stop()  # first, so that the client need not unregister
            nursery.cancel_scope.cancel()

    def _machine(self, node: NodePlan) -> Machine:
        weak = self._nodes[node.name] = Weaknesses(SteeredDisk(self._clock), SteeredNetwork())
        machine = Machine(disk=weak.disk, clock=self._clock, clock_waits=self._clock.waits)
        if not self._faults:
            return machine
        return Machine(weak.disk, weak.network.dial, weak.network.listen, self._clock, self._clock.waits)


def _only(error: Exception) -> Exception:
    """The single exception inside groups of one, or the error unchanged."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
