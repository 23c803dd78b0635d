"""The client without ``await``, for scripts, notebooks and worker threads.

A client owns one thread in which a trio loop runs; each call runs there, and its caller waits for its end.
Calls may be made from any number of threads.  The thread ends with the client; a forked child that continues
to use the client gets its own loop, links and group memberships.

::

    with triomq.blocking.open_client("127.0.0.1:9876") as client:
        producer = client.producer("orders-writers")
        print(producer.send(triomq.Message("orders", b"one")))

Every method is made from the async one of the same name, which describes it.  The same call of ``client.producer`` or
``client.pull_consumer`` returns the same object again as long as it is open and in no ``with`` block, so that a
notebook's cell can be run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, Final, Self, TypeVar, Unpack, cast, overload

import trio

from triomq._admin import accounts as _accounts
from triomq._admin import dead_letters as _dead_letters
from triomq._admin import groups as _group_admin
from triomq._admin import messages as _message_admin
from triomq._admin import servers as _servers
from triomq._admin import topics as _admin
from triomq._blocking.calls import ClientLoop, ClosingProxy, Core, KeptProxy, P, Proxy, blocking_method, plain_method
from triomq._blocking.consumers import Delivery, LitePullConsumer, PushConsumer, SharedPulls, pull_again
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
from triomq._message.transaction import Transaction, TransactionState
from triomq._producer import producer as _producer
from triomq._producer.strategies.queue_selectors import QueueSelector
from triomq._producer.transactions import Transactions
from triomq.errors import InvalidCall

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
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ServerAdmin",
    "SharedPulls",
    "open_client",
]

Kept = TypeVar("Kept", bound=KeptProxy[Any])


def _kept_factory(
    method: Callable[Concatenate[_client.Client, P], Core],
    proxy: Callable[[ClientLoop, Callable[[_client.Client], Core]], Kept],
) -> MadeMethod[P, Kept]:
    """Return a method that wraps the result of an asynchronous client's method in a proxy.

    The same call returns the same proxy, from any thread, until the proxy is closed or entered, so that a notebook's
    cell can be run twice. In a ``with`` block the proxy belongs to the block.
    """

    @made_from(method)
    def make(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Kept:
        group = args[0] if args else kwargs.get("group")
        asked = args[1:], {**kwargs, "group": group}
        # Others are refused, and may be unhashable.
        key = method.__name__, group if isinstance(group, str) else None

        def look() -> Kept | None:
            before = self._kept.get(key)
            if before is None or not before[1]._kept:  # noqa: SLF001
                return None
            if before[0] == asked:
                return cast("Kept", before[1])
            raise InvalidCall(
                f"this client has a {method.__name__} of group {group} already, made with other arguments; close() that "
                "one first, or open another client"
            )

        found = look()
        if found is not None:
            return found
        self._loop.thread().check_caller()
        with self._loop.making:
            new = construct(proxy, self._loop, lambda client: method(client, *args, **kwargs))
            found = look()
            if found is not None:
                return found  # by another thread, since the first check
            # A signal handler may make the one whose making it has interrupted: the client makes one object for both.
            begun = self._in_making.setdefault(key, (asked, new))
            made = cast("Kept", begun[1]) if begun[0] == asked else new
            try:
                # The object behind it is created now, so that wrong arguments raise now.
                made._call_plain(lambda _: None)  # noqa: SLF001
            finally:
                # Also if this thread is interrupted once it is created: the same call then returns it.
                if made._made_in is not None:  # noqa: SLF001
                    self._kept[key] = asked, made
                self._in_making.pop(key, None)
            return made

    return make


class Producer(ClosingProxy[_producer.Producer]):
    """Sends the messages of one group; see :class:`triomq.Producer`.

    Callbacks are called in the client's thread: they must be quick, and must not call this client.  Plain functions that
    carry out or check transactions are called in worker threads, and may call it.
    """

    send_oneway: Final = blocking_method(_producer.Producer.send_oneway)
    send_batch: Final = blocking_method(_producer.Producer.send_batch)
    request: Final = blocking_method(_producer.Producer.request)
    reply: Final = blocking_method(_producer.Producer.reply)
    send_in_transaction: Final = blocking_method(_producer.Producer.send_in_transaction)
    send_half: Final = blocking_method(_producer.Producer.send_half)
    end_half: Final = blocking_method(_producer.Producer.end_half)
    send_elements: Final = blocking_method(_producer.Producer.send_elements)
    queues: Final = blocking_method(_producer.Producer.queues)
    flush: Final = blocking_method(_producer.Producer.flush)

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
        callback: SendCallback | SendFunction,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> None: ...

    def send(
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
            callback: called once, in the client's thread, when the send has ended: a function of ``(result, error)``, or
                an object with ``on_success`` and ``on_exception``; without one, this call waits for the end itself.
            queue: the queue it must go to; such a message gets a single attempt.
            selector: chooses the queue; a single attempt too.
            arg: passed to the selector; refused without one.

        Returns:
            The result; None as soon as the message is accepted, if there is a callback.
        """

        async def run(core: _producer.Producer) -> SendResult | None:
            if callback is None:
                return await core.send(message, queue=queue, selector=selector, arg=arg)
            await core.send(message, callback, queue=queue, selector=selector, arg=arg)
            return None

        return self._call(run)

    @contextmanager
    def transaction(self, message: Message) -> Iterator[Transaction]:
        """Send a half message; the end of the block commits it, an exception rolls it back.

        An exception that ends the program, such as ``KeyboardInterrupt``, does neither; see
        :meth:`triomq.Producer.transaction`.
        """

        async def begin(core: _producer.Producer) -> tuple[Transactions, Transaction]:
            transactions = core._transactional()  # noqa: SLF001
            return transactions, await transactions.begin_safely(message)

        transactions, transaction = self._call(begin)
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
                self._call(lambda _: transactions.end(transaction, state))

    @property
    def in_flight(self) -> int:
        """The number of sends with a callback that have not ended."""

        return self._call_plain(lambda core: core.in_flight)


class PullConsumer(ClosingProxy[_pull.PullConsumer]):
    """Pulls messages for one group; see :class:`triomq.PullConsumer`."""

    fetch_queues: Final = blocking_method(_pull.PullConsumer.fetch_queues)
    pull: Final = blocking_method(_pull.PullConsumer.pull, pull_again)
    position: Final = blocking_method(_pull.PullConsumer.position)
    positions: Final = plain_method(_pull.PullConsumer.positions)
    seek: Final = plain_method(_pull.PullConsumer.seek)
    committed: Final = blocking_method(_pull.PullConsumer.committed)
    commit: Final = blocking_method(_pull.PullConsumer.commit)
    min_offset: Final = blocking_method(_pull.PullConsumer.min_offset)
    max_offset: Final = blocking_method(_pull.PullConsumer.max_offset)
    offset_by_time: Final = blocking_method(_pull.PullConsumer.offset_by_time)
    earliest_stored_ms: Final = blocking_method(_pull.PullConsumer.earliest_stored_ms)

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

        ::

            with consumer.share("orders") as pulls:
                for result in pulls:
                    ...
                    consumer.commit(result.queue)

        See :meth:`triomq.PullConsumer.share`; callbacks are called in the loop's thread, and must not call this client.
        """
        core = self._call_plain(
            lambda consumer: consumer.share(
                *topics,
                tags=tags,
                sql=sql,
                max_messages=max_messages,
                interval_s=interval_s,
                callbacks=callbacks,
                allocate=allocate,
            )
        )
        return construct(SharedPulls, self._call, core)


class Admin(Proxy[_admin.Admin]):
    """Administrative calls; see :class:`triomq.admin.Admin`."""

    create_topic: Final = blocking_method(_admin.Admin.create_topic)
    ensure_topic: Final = blocking_method(_admin.Admin.ensure_topic)
    delete_topic: Final = blocking_method(_admin.Admin.delete_topic)
    topics: Final = blocking_method(_admin.Admin.topics)
    route: Final = blocking_method(_admin.Admin.route)
    topic_settings: Final = blocking_method(_admin.Admin.topic_settings)
    cluster_info: Final = blocking_method(_admin.Admin.cluster_info)
    topic_stats: Final = blocking_method(_admin.Admin.topic_stats)
    without_master: Final = blocking_method(_admin.Admin.without_master)
    contested_ids: Final = blocking_method(_admin.Admin.contested_ids)
    broker_sets: Final = blocking_method(_admin.Admin.broker_sets)


class GroupAdmin(Proxy[_group_admin.GroupAdmin]):
    """Administrative calls about consumer groups; see :class:`triomq.admin.GroupAdmin`."""

    END: Final = _group_admin.GroupAdmin.END
    is_system_group: Final = staticmethod(_group_admin.GroupAdmin.is_system_group)
    names: Final = blocking_method(_group_admin.GroupAdmin.names)
    members: Final = blocking_method(_group_admin.GroupAdmin.members)
    progress: Final = blocking_method(_group_admin.GroupAdmin.progress)
    running_info: Final = blocking_method(_group_admin.GroupAdmin.running_info)
    owners: Final = blocking_method(_group_admin.GroupAdmin.owners)
    traffic: Final = blocking_method(_group_admin.GroupAdmin.traffic)
    reset: Final = blocking_method(_group_admin.GroupAdmin.reset)
    set_offsets: Final = blocking_method(_group_admin.GroupAdmin.set_offsets)
    check_offline: Final = blocking_method(_group_admin.GroupAdmin.check_offline)
    settings: Final = blocking_method(_group_admin.GroupAdmin.settings)
    create: Final = blocking_method(_group_admin.GroupAdmin.create)
    delete: Final = blocking_method(_group_admin.GroupAdmin.delete)
    clone_offsets: Final = blocking_method(_group_admin.GroupAdmin.clone_offsets)
    offsets_to_clone: Final = blocking_method(_group_admin.GroupAdmin.offsets_to_clone)


class MessageAdmin(Proxy[_message_admin.MessageAdmin]):
    """Queries stored messages; see :class:`triomq.admin.MessageAdmin`."""

    by_id: Final = blocking_method(_message_admin.MessageAdmin.by_id)
    by_unique_key: Final = blocking_method(_message_admin.MessageAdmin.by_unique_key)
    by_key: Final = blocking_method(_message_admin.MessageAdmin.by_key)
    trace: Final = blocking_method(_message_admin.MessageAdmin.trace)
    at: Final = blocking_method(_message_admin.MessageAdmin.at)
    entries: Final = blocking_method(_message_admin.MessageAdmin.entries)
    by_time: Final = blocking_method(_message_admin.MessageAdmin.by_time)
    page: Final = blocking_method(_message_admin.MessageAdmin.page)
    tracks: Final = blocking_method(_message_admin.MessageAdmin.tracks)
    consume_directly: Final = blocking_method(_message_admin.MessageAdmin.consume_directly)
    resend: Final = blocking_method(_message_admin.MessageAdmin.resend)
    send_copy: Final = blocking_method(_message_admin.MessageAdmin.send_copy)


class DeadLetterAdmin(Proxy[_dead_letters.DeadLetterAdmin]):
    """Reads dead letters and sends them again; see :class:`triomq.admin.DeadLetterAdmin`."""

    queues: Final = blocking_method(_dead_letters.DeadLetterAdmin.queues)
    count: Final = blocking_method(_dead_letters.DeadLetterAdmin.count)
    read: Final = blocking_method(_dead_letters.DeadLetterAdmin.read)
    at: Final = blocking_method(_dead_letters.DeadLetterAdmin.at)
    redrive: Final = blocking_method(_dead_letters.DeadLetterAdmin.redrive)


class Doctor(Proxy[_doctor.Doctor]):
    """Examines a whole cluster; see :class:`triomq.admin.Doctor`."""

    findings: Final = blocking_method(_doctor.Doctor.findings)
    look: Final = blocking_method(_doctor.Doctor.look)


class ServerAdmin(Proxy[_servers.ServerAdmin]):
    """Administrative calls about brokers and name servers; see :class:`triomq.admin.ServerAdmin`."""

    address_of: Final = blocking_method(_servers.ServerAdmin.address_of)
    status: Final = blocking_method(_servers.ServerAdmin.status)
    config: Final = blocking_method(_servers.ServerAdmin.config)
    set_config: Final = blocking_method(_servers.ServerAdmin.set_config)
    clean: Final = blocking_method(_servers.ServerAdmin.clean)
    producers: Final = blocking_method(_servers.ServerAdmin.producers)
    consume_stats: Final = blocking_method(_servers.ServerAdmin.consume_stats)
    name_server_config: Final = blocking_method(_servers.ServerAdmin.name_server_config)
    set_name_server_config: Final = blocking_method(_servers.ServerAdmin.set_name_server_config)
    set_write_permission: Final = blocking_method(_servers.ServerAdmin.set_write_permission)
    kv_list: Final = blocking_method(_servers.ServerAdmin.kv_list)
    kv_get: Final = blocking_method(_servers.ServerAdmin.kv_get)
    kv_put: Final = blocking_method(_servers.ServerAdmin.kv_put)
    kv_delete: Final = blocking_method(_servers.ServerAdmin.kv_delete)


class AccountAdmin(Proxy[_accounts.AccountAdmin]):
    """Accounts of brokers with access control; see :class:`triomq.admin.AccountAdmin`."""

    list: Final = blocking_method(_accounts.AccountAdmin.list)
    put: Final = blocking_method(_accounts.AccountAdmin.put)
    delete: Final = blocking_method(_accounts.AccountAdmin.delete)
    set_white_list: Final = blocking_method(_accounts.AccountAdmin.set_white_list)
    versions: Final = blocking_method(_accounts.AccountAdmin.versions)


class Client(metaclass=NoPublicConstructor):
    """A client without ``await``; opened by :func:`open_client`, closed by :meth:`close` or the end of its ``with``."""

    def __init__(self, name_servers: NameServers | None, options: ClientOptions) -> None:
        self._loop = ClientLoop(lambda: _opening.open_client(name_servers, **options))
        self._loop.thread()
        self._kept: dict[tuple[str, object], tuple[object, KeptProxy[Any]]] = {}
        self._in_making: dict[tuple[str, object], tuple[object, KeptProxy[Any]]] = {}
        self.admin: Admin = construct(Admin, self._loop, lambda client: client.admin)
        """Administrative calls."""
        self.groups: GroupAdmin = construct(GroupAdmin, self._loop, lambda client: client.groups)
        """Administrative calls about consumer groups."""
        self.messages: MessageAdmin = construct(MessageAdmin, self._loop, lambda client: client.messages)
        """Stored messages."""
        self.dead_letters: DeadLetterAdmin = construct(DeadLetterAdmin, self._loop, lambda client: client.dead_letters)
        """Dead letters: messages that groups gave up."""
        self.servers: ServerAdmin = construct(ServerAdmin, self._loop, lambda client: client.servers)
        """Administrative calls about brokers and name servers."""
        self.accounts: AccountAdmin = construct(AccountAdmin, self._loop, lambda client: client.accounts)
        """Accounts of brokers with access control."""
        self.doctor: Doctor = construct(Doctor, self._loop, lambda client: client.doctor)
        """Examination of the whole cluster."""

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client; it changes after a fork."""
        return self._loop.thread().session.client_id

    @property
    def name_servers(self) -> list[str]:
        """The name servers known now."""
        return self._loop.thread().session.name_servers

    def statistics(self) -> ClientStatistics:
        """The client's state and counters; see :meth:`triomq.Client.statistics`."""

        async def run() -> ClientStatistics:
            await trio.lowlevel.checkpoint()
            return thread.session.statistics()

        thread = self._loop.thread()
        return thread.call(run)

    producer: Final = _kept_factory(_client.Client.producer, Producer)
    pull_consumer: Final = _kept_factory(_client.Client.pull_consumer, PullConsumer)
    lite_pull_consumer: Final = _kept_factory(_client.Client.lite_pull_consumer, LitePullConsumer)
    push_consumer: Final = _kept_factory(_client.Client.push_consumer, PushConsumer)

    def close(self) -> None:
        """Flush producers, unregister groups, close links, end the thread; while another thread does that, wait for it.

        Raises:
            InvalidCall: a handler, a check or a local transaction has called it, and would wait for itself.
        """
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_client(name_servers: NameServers | None = None, **options: Unpack[ClientOptions]) -> Client:
    """Open a client; use it in a ``with`` block, or call its ``close``.

    Arguments as for :func:`triomq.open_client`.

    Raises:
        InvalidCall: an address is not ``host:port``, or there is none.
    """
    return construct(Client, name_servers, options)
