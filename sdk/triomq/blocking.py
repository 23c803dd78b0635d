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
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, Self, TypeVar, Unpack, overload

import trio

from triomq import _admin, _client, _group_admin, _producer, _pull
from triomq._blocking_calls import Core, Face, Loop, P, derived, derived_plain
from triomq._blocking_consumers import LitePullConsumer, PushConsumer
from triomq._client import ClientOptions
from triomq._client_statistics import ClientStatistics
from triomq._message import Message, MessageQueue
from triomq._name_servers import NameServers
from triomq._queues import QueueSelector
from triomq._results import SendCallback, SendResult
from triomq.errors import ClientClosed

F = TypeVar("F", bound=Face[Any])


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


class Producer(Face[_producer.Producer]):
    """Sends the messages of one group; see :class:`triomq.Producer`.

    Callbacks are called in the client's thread: they must be quick, and must not call this client.
    """

    send_oneway = derived(_producer.Producer.send_oneway)
    send_batch = derived(_producer.Producer.send_batch)
    queues = derived(_producer.Producer.queues)
    flush = derived(_producer.Producer.flush)
    close = derived(_producer.Producer.aclose)

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

        return self.hand_over(run)

    @property
    def in_flight(self) -> int:
        """Sends with a callback that has not ended."""

        async def run(core: _producer.Producer) -> int:
            await trio.lowlevel.checkpoint()
            return core.in_flight

        return self.hand_over(run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PullConsumer(Face[_pull.PullConsumer]):
    """Pulls messages for one group; see :class:`triomq.PullConsumer`."""

    fetch_queues = derived(_pull.PullConsumer.fetch_queues)
    pull = derived(_pull.PullConsumer.pull)
    position = derived(_pull.PullConsumer.position)
    positions = derived_plain(_pull.PullConsumer.positions)
    seek = derived_plain(_pull.PullConsumer.seek)
    committed = derived(_pull.PullConsumer.committed)
    commit = derived(_pull.PullConsumer.commit)
    min_offset = derived(_pull.PullConsumer.min_offset)
    max_offset = derived(_pull.PullConsumer.max_offset)
    offset_by_time = derived(_pull.PullConsumer.offset_by_time)
    earliest_stored_ms = derived(_pull.PullConsumer.earliest_stored_ms)
    close = derived(_pull.PullConsumer.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Admin(Face[_admin.Admin]):
    """Administrative calls; see :class:`triomq.Admin`."""

    create_topic = derived(_admin.Admin.create_topic)
    delete_topic = derived(_admin.Admin.delete_topic)
    topics = derived(_admin.Admin.topics)
    route = derived(_admin.Admin.route)
    cluster_info = derived(_admin.Admin.cluster_info)
    topic_stats = derived(_admin.Admin.topic_stats)


class GroupAdmin(Face[_group_admin.GroupAdmin]):
    """Administrative calls about consumer groups; see :class:`triomq.GroupAdmin`."""

    names = derived(_group_admin.GroupAdmin.names)
    members = derived(_group_admin.GroupAdmin.members)
    progress = derived(_group_admin.GroupAdmin.progress)
    running_info = derived(_group_admin.GroupAdmin.running_info)
    reset = derived(_group_admin.GroupAdmin.reset)
    set_offsets = derived(_group_admin.GroupAdmin.set_offsets)


class Client:
    """A synchronous client; made by :func:`open_client`, closed by :meth:`close` or the end of its ``with``."""

    def __init__(self, name_servers: NameServers | None, options: ClientOptions) -> None:
        self._name_servers = name_servers
        self._options = options
        self._lock = threading.Lock()
        self._closed = False
        self._loop: Loop | None = None
        self._finalizer: weakref.finalize[[], Client] | None = None
        self.running()
        self.admin = Admin(self, lambda client: client.admin)
        """Administrative calls."""
        self.groups = GroupAdmin(self, lambda client: client.groups)
        """Those about consumer groups."""
        _clients.add(self)

    @property
    def client_id(self) -> str:
        """By which brokers know this client; another one after a fork."""
        return self.running().client.client_id

    def statistics(self) -> ClientStatistics:
        """What the client holds now; see :meth:`triomq.Client.statistics`."""

        async def run() -> ClientStatistics:
            await trio.lowlevel.checkpoint()
            return loop.client.statistics()

        loop = self.running()
        return loop.call(run)

    producer = _handed_out(_client.Client.producer, Producer)
    pull_consumer = _handed_out(_client.Client.pull_consumer, PullConsumer)
    lite_pull_consumer = _handed_out(_client.Client.lite_pull_consumer, LitePullConsumer)
    push_consumer = _handed_out(_client.Client.push_consumer, PushConsumer)

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

    def running(self) -> Loop:
        """The loop of this process; a forked child gets its own."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            if self._loop is None:
                self._loop = Loop(self._name_servers, self._options)
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
