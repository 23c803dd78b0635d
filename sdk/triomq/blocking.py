"""The synchronous face: the same client without ``await``, for scripts, notebooks and worker threads.

A client owns one thread in which a trio loop runs; every call is handed over to it and waits for its
end.  Calls may come from any number of threads.  The thread ends with the client; a forked child that
goes on using the client gets a loop, links and group memberships of its own.

::

    with triomq.blocking.open_client("127.0.0.1:9876") as client:
        producer = client.producer("orders-writers")
        print(producer.send(triomq.Message("orders", b"one")))

Every method is made from the async one of the same name, which describes it.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, Unpack, overload

import trio

from triomq import _admin, _client, _opening, _producer, _pull
from triomq._client import ClientOptions
from triomq._client_statistics import ClientStatistics
from triomq._message import Message, MessageQueue
from triomq._name_servers import NameServers
from triomq._queues import QueueSelector
from triomq._results import SendCallback, SendResult
from triomq.errors import ClientClosed, InvalidCall

P = ParamSpec("P")
R = TypeVar("R")
Core = TypeVar("Core")
F = TypeVar("F", bound="_Face[Any]")

_JOIN_TIMEOUT_S = 10.0


class _Call(Generic[R]):
    """One call on its way through the loop: its scope, and how it ended."""

    def __init__(self, run: Callable[[], Awaitable[R]]) -> None:
        self._run = run
        self._scope = trio.CancelScope()
        self._ended: queue.SimpleQueue[Callable[[], R]] = queue.SimpleQueue()

    async def serve(self) -> None:
        """Run in the loop's thread; whatever happens, the caller hears of it."""
        end: Callable[[], R] = _raise_closed
        try:
            with self._scope:
                result = await self._run()
                end = functools.partial(_return, result)
        except Exception as error:  # noqa: BLE001 - raised again where the caller waits
            end = functools.partial(_raise, error)
        finally:
            self._ended.put(end)

    def wait(self, token: trio.lowlevel.TrioToken) -> R:
        """Wait in the caller's thread; an interrupt there cancels the call here, and is raised when that is done."""
        try:
            token.run_sync_soon(trio.lowlevel.spawn_system_task, self.serve)
        except trio.RunFinishedError:
            raise ClientClosed("the client is closed") from None
        try:
            end = self._ended.get()
        except BaseException:
            token.run_sync_soon(self._scope.cancel)
            self._ended.get()
            raise
        return end()


def _return(result: R) -> R:
    return result


def _raise(error: Exception) -> NoReturn:
    raise error


def _raise_closed() -> NoReturn:
    raise ClientClosed("the client was closed during the call")


class _Loop:
    """A thread with a trio loop and an open client in it."""

    def __init__(self, name_servers: NameServers | None, options: ClientOptions) -> None:
        self.pid = os.getpid()
        self.client: _client.Client
        self.token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # A daemon, so that a client nobody closed cannot keep the process from ending.
        self._thread = threading.Thread(
            target=self._serve, args=(name_servers, options, started), name="triomq", daemon=True
        )
        self._thread.start()
        failure = started.get()
        if failure is not None:
            self._thread.join()
            raise failure

    def _serve(
        self,
        name_servers: NameServers | None,
        options: ClientOptions,
        started: queue.SimpleQueue[BaseException | None],
    ) -> None:
        async def main() -> None:
            async with _opening.open_client(name_servers, **options) as self.client:
                self.token = trio.lowlevel.current_trio_token()
                self._stop = trio.Event()
                started.put(None)
                await self._stop.wait()

        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that opens the client
            started.put(error)

    def call(self, run: Callable[[], Awaitable[R]]) -> R:
        """Run something in the loop and wait for its end."""
        if threading.current_thread() is self._thread:
            raise InvalidCall("a callback must not wait for its own client; use the async one, or another thread")
        return _Call(run).wait(self.token)

    def close(self) -> None:
        """Close the client and end the thread; nothing in a forked child, to which neither belongs."""
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        try:
            self.token.run_sync_soon(self._stop.set)
        except trio.RunFinishedError:
            pass
        self._thread.join(_JOIN_TIMEOUT_S)


class _Face(Generic[Core]):
    """What hands calls over to an object in the loop; the object is made anew after a fork."""

    def __init__(self, client: Client, make: Callable[[_client.Client], Core]) -> None:
        self._client = client
        self._make = make
        self._made_in: _Loop | None = None
        self._core: Core

    def _hand_over(self, run: Callable[[Core], Awaitable[R]]) -> R:
        loop = self._client._running()  # noqa: SLF001 - one room, two classes

        async def serve() -> R:
            if self._made_in is not loop:
                self._core = self._make(loop.client)
                self._made_in = loop
            return await run(self._core)

        return loop.call(serve)

    def join(self) -> None:
        """Make the object behind this face now, so that what is wrong with its arguments is raised now."""
        self._hand_over(_join)


async def _join(_core: object) -> None:
    await trio.lowlevel.checkpoint()


def _derived(method: Callable[Concatenate[Core, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """The synchronous method of an async one."""

    @functools.wraps(method)
    def call(self: _Face[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._hand_over(lambda core: method(core, *args, **kwargs))

    return call


def _derived_plain(method: Callable[Concatenate[Core, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The method of a plain one, run in the loop's thread, to which the object belongs."""

    @functools.wraps(method)
    def call(self: _Face[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def run(core: Core) -> R:
            await trio.lowlevel.checkpoint()
            return method(core, *args, **kwargs)

        return self._hand_over(run)

    return call


def _handed_out(
    method: Callable[Concatenate[_client.Client, P], Core],
    face: Callable[[Client, Callable[[_client.Client], Core]], F],
) -> Callable[Concatenate[Client, P], F]:
    """The method that hands out the synchronous face of what an async method hands out."""

    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> F:
        made = face(self, lambda client: method(client, *args, **kwargs))
        made.join()
        return made

    return call


class Producer(_Face[_producer.Producer]):
    """Sends the messages of one group; see :class:`triomq.Producer`.

    Callbacks are called in the client's thread: they must be quick, and must not call this client.
    """

    send_oneway = _derived(_producer.Producer.send_oneway)
    send_batch = _derived(_producer.Producer.send_batch)
    queues = _derived(_producer.Producer.queues)
    flush = _derived(_producer.Producer.flush)
    close = _derived(_producer.Producer.aclose)

    @overload
    def send(
        self,
        message: Message,
        callback: None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> SendResult: ...

    @overload
    def send(
        self,
        message: Message,
        callback: SendCallback,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> None: ...

    def send(
        self,
        message: Message,
        callback: SendCallback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> SendResult | None:
        """Send one message; see :meth:`triomq.Producer.send`."""

        async def run(core: _producer.Producer) -> SendResult | None:
            if callback is None:
                return await core.send(message, queue=queue, selector=selector, arg=arg)
            await core.send(message, callback, queue=queue, selector=selector, arg=arg)
            return None

        return self._hand_over(run)

    @property
    def in_flight(self) -> int:
        """Sends with a callback that has not ended."""

        async def run(core: _producer.Producer) -> int:
            await trio.lowlevel.checkpoint()
            return core.in_flight

        return self._hand_over(run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PullConsumer(_Face[_pull.PullConsumer]):
    """Pulls messages for one group; see :class:`triomq.PullConsumer`."""

    fetch_queues = _derived(_pull.PullConsumer.fetch_queues)
    pull = _derived(_pull.PullConsumer.pull)
    position = _derived(_pull.PullConsumer.position)
    positions = _derived_plain(_pull.PullConsumer.positions)
    seek = _derived_plain(_pull.PullConsumer.seek)
    committed = _derived(_pull.PullConsumer.committed)
    commit = _derived(_pull.PullConsumer.commit)
    min_offset = _derived(_pull.PullConsumer.min_offset)
    max_offset = _derived(_pull.PullConsumer.max_offset)
    offset_by_time = _derived(_pull.PullConsumer.offset_by_time)
    earliest_stored_ms = _derived(_pull.PullConsumer.earliest_stored_ms)
    close = _derived(_pull.PullConsumer.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Admin(_Face[_admin.Admin]):
    """Administrative calls; see :class:`triomq.Admin`."""

    create_topic = _derived(_admin.Admin.create_topic)
    delete_topic = _derived(_admin.Admin.delete_topic)
    topics = _derived(_admin.Admin.topics)
    route = _derived(_admin.Admin.route)
    cluster_info = _derived(_admin.Admin.cluster_info)
    topic_stats = _derived(_admin.Admin.topic_stats)


class Client:
    """A synchronous client; made by :func:`open_client`, closed by :meth:`close` or the end of its ``with``."""

    def __init__(self, name_servers: NameServers | None, options: ClientOptions) -> None:
        self._name_servers = name_servers
        self._options = options
        self._lock = threading.Lock()
        self._closed = False
        self._loop: _Loop | None = None
        self._finalizer: weakref.finalize[[], Client] | None = None
        self._running()
        self.admin = Admin(self, lambda client: client.admin)
        """Administrative calls."""
        _clients.add(self)

    @property
    def client_id(self) -> str:
        """By which brokers know this client; another one after a fork."""
        return self._running().client.client_id

    def statistics(self) -> ClientStatistics:
        """What the client holds now; see :meth:`triomq.Client.statistics`."""

        async def run() -> ClientStatistics:
            await trio.lowlevel.checkpoint()
            return loop.client.statistics()

        loop = self._running()
        return loop.call(run)

    producer = _handed_out(_client.Client.producer, Producer)
    pull_consumer = _handed_out(_client.Client.pull_consumer, PullConsumer)

    def close(self) -> None:
        """Flush producers, unregister groups, close links, end the thread."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
        if self._finalizer is not None:
            self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> _Loop:
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            if self._loop is None:
                self._loop = _Loop(self._name_servers, self._options)
                self._finalizer = weakref.finalize(self, self._loop.close)
            return self._loop

    def _forget_parents_loop(self) -> None:
        self._lock = threading.Lock()
        self._loop = None
        if self._finalizer is not None:
            self._finalizer.detach()


def open_client(name_servers: NameServers | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Open a client; use it in a ``with`` block, or call its ``close``.

    Arguments as for :func:`triomq.open_client`.

    Raises:
        InvalidCall: an address is not ``host:port``, or there is none.
    """
    return Client(name_servers, options)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_parents_loops() -> None:
    for client in list(_clients):
        client._forget_parents_loop()  # noqa: SLF001 - one room


os.register_at_fork(after_in_child=_forget_parents_loops)
