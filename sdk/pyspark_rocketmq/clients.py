"""Open clients of this process: one thread with a trio loop for each set of settings, shared by those who come one after the other.

Spark calls a data source from plain threads, in processes that it forks and uses again: for the driver's part, where every
trigger asks for offsets, and for the tasks. So a client stays open between calls, for :data:`IDLE_S`; then its thread
ends by itself. A forked child has none of its parent's.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, TypeVar

import attrs
import trio

import triomq
from pyspark_rocketmq.options import ClientSettings

T = TypeVar("T")

IDLE_S: Final = 30.0
"""How long a client that nobody uses stays open."""

_JOIN_S: Final = 10.0


@attrs.frozen
class ClientKey:
    """What tells clients apart.

    Args:
        settings: what they are opened with.
        group: the consumer group that pulls; None if nothing is pulled.
        preference: from whom to pull.
    """

    settings: ClientSettings
    group: str | None
    preference: str = "suggested"


@attrs.frozen
class Session:
    """What runs in a loop.

    Args:
        client: the client.
        nursery: for what goes on between calls; it must let no exception out.
        consumers: the one that pulls as the query prefers, and one that pulls from masters.
    """

    client: triomq.Client
    nursery: trio.Nursery
    consumers: tuple[triomq.PullConsumer, triomq.PullConsumer] | None

    @property
    def consumer(self) -> triomq.PullConsumer:
        """Pulls as the query prefers."""
        assert self.consumers is not None
        return self.consumers[0]

    @property
    def at_master(self) -> triomq.PullConsumer:
        """Pulls from masters, if the other one would not when it is told to."""
        assert self.consumers is not None
        return self.consumers[1]


class ClientLoop:
    """A thread in which a session lives."""

    def __init__(self, key: ClientKey) -> None:
        self.key = key
        self.users = 0
        self.is_over = False
        self.token: trio.lowlevel.TrioToken
        self.session: Session
        self._stop: trio.Event
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # A daemon, so that a client in use cannot keep Spark's worker from ending.
        self._thread = threading.Thread(target=self._serve, args=(started,), name="rocketmq-source", daemon=True)
        self._thread.start()
        failure = started.get()
        if failure is not None:
            self._thread.join()
            raise failure

    def call(self, serve: Callable[[Session], Awaitable[T]]) -> T:
        """Run something in the loop and wait for its end."""
        result: T = trio.from_thread.run(serve, self.session, trio_token=self.token)
        return result

    def soon(self, act: Callable[[], object]) -> None:
        """Have something done in the loop, and do not wait; nothing happens when the loop is over."""
        try:
            self.token.run_sync_soon(act)
        except trio.RunFinishedError:
            pass

    def close(self) -> None:
        """End the thread, and with it what still runs there."""
        try:
            self.token.run_sync_soon(self._stop.set)
        except trio.RunFinishedError:
            pass
        self._thread.join(_JOIN_S)

    def _serve(self, started: queue.SimpleQueue[BaseException | None]) -> None:
        try:
            trio.run(self._live, started)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that opens the client
            started.put(error)
        finally:
            self.is_over = True

    async def _live(self, started: queue.SimpleQueue[BaseException | None]) -> None:
        async with AsyncExitStack() as stack:
            key = self.key
            client = await _open(stack, key)
            consumers = None
            if key.group is not None:
                consumer = client.pull_consumer(key.group, read_preference=key.preference)
                at_master = consumer
                if key.preference != "master":
                    # A group has one consumer per client.
                    at_master = (await _open(stack, key)).pull_consumer(key.group, read_preference="master")
                consumers = consumer, at_master
            async with trio.open_nursery() as nursery:
                self.session = Session(client, nursery, consumers)
                self.token = trio.lowlevel.current_trio_token()
                self._stop = trio.Event()
                started.put(None)
                await self._until_idle()
                nursery.cancel_scope.cancel()

    async def _until_idle(self) -> None:
        while not self._stop.is_set():
            with trio.move_on_after(IDLE_S):
                await self._stop.wait()
                return
            with _pool.lock:
                if not self.users:
                    _pool.forget(self)
                    return


async def _open(stack: AsyncExitStack, key: ClientKey) -> triomq.Client:
    options: Any = dict(key.settings.client)
    return await stack.enter_async_context(triomq.open_client(key.settings.name_servers, **options))


class _Pool:
    """The loops of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.loops: dict[ClientKey, ClientLoop] = {}

    def take(self, key: ClientKey) -> ClientLoop:
        with self.lock:
            loop = self.loops.get(key)
            if loop is None or loop.is_over:
                loop = self.loops[key] = ClientLoop(key)
            loop.users += 1
            return loop

    def give_back(self, loop: ClientLoop) -> None:
        with self.lock:
            loop.users -= 1

    def forget(self, loop: ClientLoop) -> None:
        """The lock is held."""
        if self.loops.get(loop.key) is loop:
            del self.loops[loop.key]


_pool = _Pool()


def _own_pool() -> _Pool:
    """This process's pool: a forked child starts with an empty one, since threads and links stay with the parent."""
    global _pool
    if _pool.pid != os.getpid():
        _pool = _Pool()
    return _pool


@contextmanager
def borrowed(key: ClientKey) -> Iterator[ClientLoop]:
    """A client for as long as the block lasts, opened now or left open by those before.

    Raises:
        triomq.MQError: an address cannot be used, or the group's name.
    """
    pool = _own_pool()
    loop = pool.take(key)
    try:
        yield loop
    finally:
        pool.give_back(loop)


def close_all() -> None:
    """Close every client of this process; those who come later open new ones."""
    pool = _own_pool()
    with pool.lock:
        loops = list(pool.loops.values())
        pool.loops.clear()
    for loop in loops:
        loop.close()
