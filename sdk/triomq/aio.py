"""The client for asyncio: trio runs inside the user's loop, and every call is awaited there.

::

    async with triomq.aio.open_client("127.0.0.1:9876") as client:
        producer = client.producer("orders-writers")
        print(await producer.send(triomq.Message("orders", b"one")))

Every method is made from trio's of the same name, which describes it.  Cancelling a task, or a timeout, cancels the call it
waits in; a call that ends at that moment returns its result, and the task is cancelled at its next wait.  A client belongs
to the loop that opened it; it is closed with its block, by ``aclose``, or when ``asyncio.run`` ends.  Plug points
(:mod:`triomq.plugins`) run in trio. Functions that are called with messages, transactions or queues run in asyncio if they
are async.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar, Unpack, overload

import attrs

from triomq._admin import accounts as _accounts
from triomq._admin import dead_letters as _dead_letters
from triomq._admin import groups as _group_admin
from triomq._admin import messages as _message_admin
from triomq._admin import servers as _servers
from triomq._admin import topics as _admin
from triomq._aio.calls import ClientSession, ClosingProxy, Proxy, async_method, in_asyncio, plain_method
from triomq._aio.consumers import Delivery, LitePullConsumer, PushConsumer, SharedPulls
from triomq._aio.guest_run import GuestRun, waiting_task
from triomq._client import client as _client
from triomq._client import opening as _opening
from triomq._client.options import ClientOptions
from triomq._cluster.client_statistics import ClientStatistics
from triomq._cluster.name_servers import NameServers
from triomq._constructors import NoPublicConstructor, construct
from triomq._consumer import pull_consumer as _pull
from triomq._consumer.group.allocate import AllocateStrategy
from triomq._consumer.group.callbacks import ConsumerCallbacks
from triomq._examination import doctor as _doctor
from triomq._made_methods import MadeMethod, made_from
from triomq._message.message import Message, MessageQueue
from triomq._message.send_result import SendCallback, SendFunction, SendResult
from triomq._message.transaction import LocalTransaction, Transaction, TransactionResult, TransactionState
from triomq._producer import producer as _producer
from triomq._producer.callbacks import with_methods
from triomq._producer.strategies.queue_selectors import QueueSelector
from triomq.errors import ClientClosed, InvalidCall

__all__ = [
    "AccountAdmin",
    "Admin",
    "Client",
    "DeadLetterAdmin",
    "Delivery",
    "Doctor",
    "GroupAdmin",
    "LitePullConsumer",
    "MessageAdmin",
    "Opening",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ServerAdmin",
    "SharedPulls",
    "open_client",
]

P = ParamSpec("P")
Core = TypeVar("Core")
Made = TypeVar("Made", bound=Proxy[Any])


def _factory(
    method: Callable[Concatenate[_client.Client, P], Core], proxy: Callable[[ClientSession, Core], Made]
) -> MadeMethod[P, Made]:
    """Return a method that wraps the result of a client's method in a proxy."""

    @made_from(method)
    def make(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Made:
        self._session.check()
        if "callbacks" in kwargs:
            kwargs["callbacks"] = _with_async_callbacks(self._session, kwargs["callbacks"])
        if "transactions" in kwargs:
            kwargs["transactions"] = in_asyncio(self._session, kwargs["transactions"], "check")
        return construct(proxy, self._session, method(self._session.value, *args, **kwargs))

    return make


def _with_async_callbacks(session: ClientSession, callbacks: Any) -> Any:
    if not isinstance(callbacks, ConsumerCallbacks):
        return callbacks
    return attrs.evolve(
        callbacks,
        on_assigned=in_asyncio(session, callbacks.on_assigned),
        on_revoked=in_asyncio(session, callbacks.on_revoked),
    )


class Producer(ClosingProxy[_producer.Producer]):
    """Sends the messages of one group; see :class:`triomq.Producer`.

    Callbacks are called in the loop's thread, and may use the loop; what they return to be awaited, as async ones do, is
    awaited in the loop.
    """

    send_oneway: Final = async_method(_producer.Producer.send_oneway)
    send_batch: Final = async_method(_producer.Producer.send_batch)
    request: Final = async_method(_producer.Producer.request)
    reply: Final = async_method(_producer.Producer.reply)
    send_half: Final = async_method(_producer.Producer.send_half)
    end_half: Final = async_method(_producer.Producer.end_half)
    send_elements: Final = async_method(_producer.Producer.send_elements)
    queues: Final = async_method(_producer.Producer.queues)
    flush: Final = async_method(_producer.Producer.flush)

    @overload
    async def send(
        self,
        message: Message,
        callback: None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> SendResult: ...

    @overload
    async def send(
        self,
        message: Message,
        callback: SendCallback | SendFunction,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> None: ...

    async def send(
        self,
        message: Message,
        callback: SendCallback | SendFunction | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> SendResult | None:
        """Send one message; see :meth:`triomq.Producer.send`.

        Args:
            message: the message.
            callback: called once, in this loop, when the send has ended: a function of ``(result, error)``, or an object
                with ``on_success`` and ``on_exception``; without one, this call waits for the end itself.
            queue: the queue it must go to; such a message gets a single attempt.
            selector: chooses the queue; a single attempt too.
            arg: passed to the selector; refused without one.

        Returns:
            The result; None as soon as the message is accepted, if there is a callback.
        """
        send: Callable[..., Awaitable[SendResult | None]] = self._core.send
        if callback is not None:
            with_methods(callback)  # refused here if it is wrong, since the wrapper accepts any arguments
            callback = in_asyncio(self._session, callback, "on_success")
        return await self._session.call(
            functools.partial(send, message, callback, queue=queue, selector=selector, arg=arg)
        )

    async def send_in_transaction(self, message: Message, execute: LocalTransaction | None = None) -> TransactionResult:
        """Send a message in a transaction; see :meth:`triomq.Producer.send_in_transaction`."""
        return await self._call(lambda core: core.send_in_transaction(message, in_asyncio(self._session, execute)))

    @asynccontextmanager
    async def transaction(self, message: Message) -> AsyncIterator[Transaction]:
        """Send a half message; the end of the block commits it, an exception rolls it back.

        A cancelled block does neither; see :meth:`triomq.Producer.transaction`.
        """
        transactions = self._core._transactional()  # noqa: SLF001
        transaction = await self._session.call(lambda: transactions.begin_safely(message))
        state = TransactionState.COMMIT
        try:
            yield transaction
        except Exception:
            state = TransactionState.ROLLBACK
            raise
        except BaseException:
            state = TransactionState.UNKNOWN
            raise
        finally:
            if state is not TransactionState.UNKNOWN:
                await self._session.call(lambda: transactions.end(transaction, state))

    @property
    def in_flight(self) -> int:
        """The number of sends with a callback that have not ended."""
        return self._core.in_flight


class PullConsumer(ClosingProxy[_pull.PullConsumer]):
    """Pulls messages for one group; see :class:`triomq.PullConsumer`."""

    fetch_queues: Final = async_method(_pull.PullConsumer.fetch_queues)
    pull: Final = async_method(_pull.PullConsumer.pull)
    position: Final = async_method(_pull.PullConsumer.position)
    positions: Final = plain_method(_pull.PullConsumer.positions)
    seek: Final = plain_method(_pull.PullConsumer.seek)
    committed: Final = async_method(_pull.PullConsumer.committed)
    commit: Final = async_method(_pull.PullConsumer.commit)
    min_offset: Final = async_method(_pull.PullConsumer.min_offset)
    max_offset: Final = async_method(_pull.PullConsumer.max_offset)
    offset_by_time: Final = async_method(_pull.PullConsumer.offset_by_time)
    earliest_stored_ms: Final = async_method(_pull.PullConsumer.earliest_stored_ms)

    def share(
        self,
        *topics: str,
        tags: str | None = None,
        sql: str | None = None,
        max_messages: int = 32,
        interval_s: float = 0.2,
        callbacks: ConsumerCallbacks | None = None,
        allocate: AllocateStrategy | None = None,
    ) -> SharedPulls:
        """Share the topics' queues with the group's other members, and pull this member's in turn.

        See :meth:`triomq.PullConsumer.share`.
        """
        self._session.check()
        core = self._core.share(
            *topics,
            tags=tags,
            sql=sql,
            max_messages=max_messages,
            interval_s=interval_s,
            callbacks=_with_async_callbacks(self._session, callbacks),
            allocate=allocate,
        )
        return construct(SharedPulls, self._session, core)


class Admin(Proxy[_admin.Admin]):
    """Administrative calls; see :class:`triomq.admin.Admin`."""

    create_topic: Final = async_method(_admin.Admin.create_topic)
    ensure_topic: Final = async_method(_admin.Admin.ensure_topic)
    delete_topic: Final = async_method(_admin.Admin.delete_topic)
    topics: Final = async_method(_admin.Admin.topics)
    route: Final = async_method(_admin.Admin.route)
    topic_settings: Final = async_method(_admin.Admin.topic_settings)
    cluster_info: Final = async_method(_admin.Admin.cluster_info)
    topic_stats: Final = async_method(_admin.Admin.topic_stats)
    without_master: Final = async_method(_admin.Admin.without_master)
    contested_ids: Final = async_method(_admin.Admin.contested_ids)
    broker_sets: Final = async_method(_admin.Admin.broker_sets)


class GroupAdmin(Proxy[_group_admin.GroupAdmin]):
    """Administrative calls about consumer groups; see :class:`triomq.admin.GroupAdmin`."""

    END: Final = _group_admin.GroupAdmin.END
    is_system_group: Final = staticmethod(_group_admin.GroupAdmin.is_system_group)
    names: Final = async_method(_group_admin.GroupAdmin.names)
    members: Final = async_method(_group_admin.GroupAdmin.members)
    progress: Final = async_method(_group_admin.GroupAdmin.progress)
    running_info: Final = async_method(_group_admin.GroupAdmin.running_info)
    owners: Final = async_method(_group_admin.GroupAdmin.owners)
    traffic: Final = async_method(_group_admin.GroupAdmin.traffic)
    reset: Final = async_method(_group_admin.GroupAdmin.reset)
    set_offsets: Final = async_method(_group_admin.GroupAdmin.set_offsets)
    check_offline: Final = async_method(_group_admin.GroupAdmin.check_offline)
    settings: Final = async_method(_group_admin.GroupAdmin.settings)
    create: Final = async_method(_group_admin.GroupAdmin.create)
    delete: Final = async_method(_group_admin.GroupAdmin.delete)
    clone_offsets: Final = async_method(_group_admin.GroupAdmin.clone_offsets)
    offsets_to_clone: Final = async_method(_group_admin.GroupAdmin.offsets_to_clone)


class MessageAdmin(Proxy[_message_admin.MessageAdmin]):
    """Queries stored messages; see :class:`triomq.admin.MessageAdmin`."""

    by_id: Final = async_method(_message_admin.MessageAdmin.by_id)
    by_unique_key: Final = async_method(_message_admin.MessageAdmin.by_unique_key)
    by_key: Final = async_method(_message_admin.MessageAdmin.by_key)
    trace: Final = async_method(_message_admin.MessageAdmin.trace)
    at: Final = async_method(_message_admin.MessageAdmin.at)
    entries: Final = async_method(_message_admin.MessageAdmin.entries)
    by_time: Final = async_method(_message_admin.MessageAdmin.by_time)
    page: Final = async_method(_message_admin.MessageAdmin.page)
    tracks: Final = async_method(_message_admin.MessageAdmin.tracks)
    consume_directly: Final = async_method(_message_admin.MessageAdmin.consume_directly)
    resend: Final = async_method(_message_admin.MessageAdmin.resend)
    send_copy: Final = async_method(_message_admin.MessageAdmin.send_copy)


class DeadLetterAdmin(Proxy[_dead_letters.DeadLetterAdmin]):
    """Reads dead letters and sends them again; see :class:`triomq.admin.DeadLetterAdmin`."""

    queues: Final = async_method(_dead_letters.DeadLetterAdmin.queues)
    count: Final = async_method(_dead_letters.DeadLetterAdmin.count)
    read: Final = async_method(_dead_letters.DeadLetterAdmin.read)
    at: Final = async_method(_dead_letters.DeadLetterAdmin.at)
    redrive: Final = async_method(_dead_letters.DeadLetterAdmin.redrive)


class Doctor(Proxy[_doctor.Doctor]):
    """Examines a whole cluster; see :class:`triomq.admin.Doctor`."""

    findings: Final = async_method(_doctor.Doctor.findings)
    look: Final = async_method(_doctor.Doctor.look)


class ServerAdmin(Proxy[_servers.ServerAdmin]):
    """Administrative calls about brokers and name servers; see :class:`triomq.admin.ServerAdmin`."""

    address_of: Final = async_method(_servers.ServerAdmin.address_of)
    status: Final = async_method(_servers.ServerAdmin.status)
    config: Final = async_method(_servers.ServerAdmin.config)
    set_config: Final = async_method(_servers.ServerAdmin.set_config)
    clean: Final = async_method(_servers.ServerAdmin.clean)
    producers: Final = async_method(_servers.ServerAdmin.producers)
    consume_stats: Final = async_method(_servers.ServerAdmin.consume_stats)
    name_server_config: Final = async_method(_servers.ServerAdmin.name_server_config)
    set_name_server_config: Final = async_method(_servers.ServerAdmin.set_name_server_config)
    set_write_permission: Final = async_method(_servers.ServerAdmin.set_write_permission)
    kv_list: Final = async_method(_servers.ServerAdmin.kv_list)
    kv_get: Final = async_method(_servers.ServerAdmin.kv_get)
    kv_put: Final = async_method(_servers.ServerAdmin.kv_put)
    kv_delete: Final = async_method(_servers.ServerAdmin.kv_delete)


class AccountAdmin(Proxy[_accounts.AccountAdmin]):
    """Accounts of brokers with access control; see :class:`triomq.admin.AccountAdmin`."""

    list: Final = async_method(_accounts.AccountAdmin.list)
    put: Final = async_method(_accounts.AccountAdmin.put)
    delete: Final = async_method(_accounts.AccountAdmin.delete)
    set_white_list: Final = async_method(_accounts.AccountAdmin.set_white_list)
    versions: Final = async_method(_accounts.AccountAdmin.versions)


class Client(metaclass=NoPublicConstructor):
    """A client of an asyncio loop; opened by :func:`open_client`, closed with its block or by :meth:`aclose`."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        client = session.value
        self.admin: Admin = construct(Admin, session, client.admin)
        """Administrative calls."""
        self.groups: GroupAdmin = construct(GroupAdmin, session, client.groups)
        """Administrative calls about consumer groups."""
        self.messages: MessageAdmin = construct(MessageAdmin, session, client.messages)
        """Stored messages."""
        self.dead_letters: DeadLetterAdmin = construct(DeadLetterAdmin, session, client.dead_letters)
        """Dead letters: messages that groups gave up on."""
        self.servers: ServerAdmin = construct(ServerAdmin, session, client.servers)
        """Administrative calls about brokers and name servers."""
        self.accounts: AccountAdmin = construct(AccountAdmin, session, client.accounts)
        """Accounts of brokers with access control."""
        self.doctor: Doctor = construct(Doctor, session, client.doctor)
        """Examination of the whole cluster."""

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._session.value.client_id

    @property
    def name_servers(self) -> list[str]:
        """The name servers known now."""
        return self._session.value.name_servers

    def statistics(self) -> ClientStatistics:
        """The client's state and counters; see :meth:`triomq.Client.statistics`."""
        return self._session.value.statistics()

    producer: Final = _factory(_client.Client.producer, Producer)
    pull_consumer: Final = _factory(_client.Client.pull_consumer, PullConsumer)
    lite_pull_consumer: Final = _factory(_client.Client.lite_pull_consumer, LitePullConsumer)
    push_consumer: Final = _factory(_client.Client.push_consumer, PushConsumer)

    async def aclose(self) -> None:
        """Flush producers, unregister groups, close links; a second call does nothing.

        In a task that a callback or a handler has started, this does not wait for its end once the client is closed.

        Raises:
            InvalidCall: a callback, a handler or a check has called it, and would wait for itself.
        """
        await self._close()

    async def _close(self, *, at_once: bool = False) -> None:
        caller = waiting_task()
        if caller is not None:
            self._session.value._members.refuse_callbacks("aclose() of the client", caller)  # noqa: SLF001
        callback = self._session.value._members.callback_that_started_this()  # noqa: SLF001
        if callback is not None:
            # The session ends only after the callback, which may wait for this; the client's own end knows that.
            self._session.leave()
            with suppress(ClientClosed):
                close = functools.partial(self._session.value.aclose, at_once=at_once)
                await self._session.call(close, waits_if_cancelled=False)
            if not callback.is_over:
                return
        await self._session.close(at_once=at_once)


_ADVICE = (
    "triomq.aio.open_client is entered by `async with triomq.aio.open_client(...) as client:`, or awaited: `client = await "
    "triomq.aio.open_client(...)`"
)


class Opening(metaclass=NoPublicConstructor):
    """A client that is about to be opened: enter it with ``async with``, or await it and call ``aclose`` later."""

    def __init__(self, name_servers: NameServers | None, options: ClientOptions) -> None:
        self._opens = functools.partial(_opening.open_client, name_servers, **options)
        self._client: Client

    async def _open(self) -> Client:
        self._client = construct(Client, await GuestRun.open(self._opens))
        return self._client

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client._close(at_once=error is not None)  # noqa: SLF001

    if not TYPE_CHECKING:  # type checkers refuse these uses by themselves

        def __enter__(self) -> NoReturn:
            raise InvalidCall(f"{_ADVICE}; without a loop use triomq.blocking.open_client")

        def __exit__(self, *_: object) -> None:
            """Exists only so that ``with`` calls ``__enter__``."""

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"no attribute {name!r}: {_ADVICE}", name=name, obj=self)


def open_client(name_servers: NameServers | None = None, **options: Unpack[ClientOptions]) -> Opening:
    """Open a client; use it in an ``async with`` block, or await it and call its ``aclose``.

    Arguments as for :func:`triomq.open_client`.

    Raises:
        InvalidCall: an address is not ``host:port``, or there is none; or no asyncio loop runs here.
    """
    return construct(Opening, name_servers, options)
