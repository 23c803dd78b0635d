"""The producer: the methods for sending (docs/protocol/client.md §6; upstream ``DefaultMQProducer``).

Awaited sends and sends with a callback make the same attempts: check, encode, append to the link's list, all plain
calls.  A message costs no task, no channel and no cancel scope unless something must be waited for first.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, overload

import trio

from triomq._arguments.kinds import check_text
from triomq._cluster.broker_requests import AskedProducer
from triomq._cluster.spawn import Spawn
from triomq._constructors import NoPublicConstructor
from triomq._error_text import shown
from triomq._message.hooks import SendContext, SendHook, call_after_send, call_before_send
from triomq._message.message import Message, MessageQueue, check_queue
from triomq._message.received import ReceivedMessage
from triomq._message.send_result import SendCallback, SendFunction, SendResult
from triomq._message.transaction import (
    HalfMessage,
    LocalTransaction,
    OnTransactionEnd,
    Transaction,
    TransactionCheck,
    TransactionListener,
    TransactionResult,
    TransactionState,
)
from triomq._producer.attempts.outgoing import Outgoing, use_properties
from triomq._producer.batches import check_batch, encode_batch, messages_of
from triomq._producer.callbacks import AwaitedSend, CallbackSend, InFlight, context_of
from triomq._producer.lone_sends import LoneSend, LoneSends
from triomq._producer.merging import Merging
from triomq._producer.request_reply import ReplyDesk, Requests, send_reply
from triomq._producer.sender import Sender
from triomq._producer.strategies.queue_selectors import QueueSelector, check_choice, choose_by_selector
from triomq._producer.transactions import Transactions, half_of
from triomq._tasks.own_callbacks import OwnCallbacks
from triomq.errors import InvalidCall, MessageIllegal, MQError

log = logging.getLogger("triomq.producer")

CHECKPOINT_EVERY = 32
"""Every this many sends with a callback, one passes through the scheduler; the others return at once."""


class Producer(metaclass=NoPublicConstructor):
    """Sends the messages of one producer group; created by ``client.producer(group)``.

    It can be used as an async context manager: at its end it waits until all sends with a callback have ended, or,
    when the block raises, fails them at once with :class:`~triomq.errors.ClientClosed`.  An awaited send whose request is
    on its way ends in the task that awaits it, also after that; one that would still have to write a request raises
    ``ClientClosed``.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        spawn: Spawn,
        leave: Callable[[], Awaitable[None]],
        asked: dict[str, AskedProducer],
        desk: ReplyDesk,
        max_in_flight: int = 4096,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        linger_s: float | None = 0.0,
        hooks: Sequence[SendHook] = (),
        transactions: TransactionListener | TransactionCheck | None = None,
        max_checks: int = 16,
        on_transaction_end: OnTransactionEnd | None = None,
    ) -> None:
        """Called only by the client.

        Args:
            sender: does the sending.
            spawn: starts tasks for retries and async callbacks.
            leave: called at the end, to unregister the group.
            max_in_flight: the most sends with a callback in flight.
            max_in_flight_bytes: the most bytes of their bodies together.
            linger_s: how long they wait for others to share a request with; None: each has its own.
            hooks: see :class:`triomq.plugins.SendHook`.
            asked: producer group -> the object that answers checks of its transactions; this producer adds its own.
            desk: receives the replies to the client.
            transactions: answers for the group's transactions.
            max_checks: the most checks that run at the same time.
            on_transaction_end: called with every end that is sent to a broker.
        """
        self._sender = sender
        self._targets = sender.targets
        self._attempts = sender.attempts
        self._leave = leave
        self._hooks = tuple(hooks)
        self._in_flight = InFlight(sender, spawn, self._hooks, max_count=max_in_flight, max_bytes=max_in_flight_bytes)
        self._merging: Merging | None = None
        if linger_s is not None:
            self._merging = Merging(sender, self._in_flight, spawn, linger_s=linger_s)
        # A hook sees each message, and may change it.
        self._join = self._merging.join if self._merging is not None and not self._hooks else None
        self._join_awaited = self._join if linger_s == 0 else None
        self._lone: LoneSends | None = None
        if self._join_awaited is not None and LoneSends.suits(sender):
            self._lone = LoneSends(sender)
        self._requests = Requests(sender, desk, deliver=self._deliver)
        self._transactions: Transactions | None = None
        if transactions is not None:
            self._transactions = Transactions(
                sender,
                transactions,
                deliver=self._deliver,
                spawn=spawn,
                checks_at_once=max_checks,
                on_end=on_transaction_end,
            )
            asked[sender.group] = self._transactions.checks
        self._asked = asked
        self._since_checkpoint = 0
        self._closed = False

    @property
    def group(self) -> str:
        """The producer group."""
        return self._sender.group

    @property
    def in_flight(self) -> int:
        """Number of sends whose callback has not returned yet, and of awaited sends that share a request."""
        return len(self._in_flight)

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
        """Send one message.

        Args:
            message: the message.
            callback: called once when the send has ended, a function of ``(result, error)`` or an object with
                ``on_success`` and ``on_exception``; without one, this call waits for the end itself.
            queue: the queue it must go to; such a message gets a single attempt, so that order is kept.
            selector: chooses the queue; a single attempt too.
            arg: passed to the selector; refused without one.

        Returns:
            The result; None as soon as the message is accepted, if there is a callback.

        Raises:
            MessageIllegal: the message breaks a limit; with or without callback, nothing was sent.
            InvalidCall: another argument is wrong.
            ClientClosed: the producer is closed.
            MQError: no attempt succeeded; all are listed. With a callback, the callback gets it instead.

        Cancelling an awaited send leaves open whether the message is stored.  A send with a callback that
        is cancelled was not accepted; once accepted, the callback is called exactly once.
        """
        self._in_flight.check_open()
        if arg is not None or selector is not None:
            check_choice(queue, selector, arg)
        if callback is None and selector is None and self._join_awaited is not None:
            begun = self._begin_awaited(message, queue)
            if begun is not None:
                return await begun.result()
        if callback is not None and selector is None and self._join is not None:
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._join(message, callback, queue):
                self._since_checkpoint += 1
                if self._since_checkpoint >= CHECKPOINT_EVERY:
                    await self._checkpoint()
                return None
        sender = self._sender
        now = trio.current_time()
        out = sender.prepare(message, now)
        if queue is not None or selector is not None:
            out.pinned = await self._pin(out, message, queue, selector, arg)
            # Both may take long: a send that joined a batch of a closed producer would never end.
            self._in_flight.check_open()
            now = trio.current_time()
        if len(out.body) >= sender.settings.compress_from_bytes:
            await sender.compress(out)
            self._in_flight.check_open()
            now = trio.current_time()
        if callback is not None:
            await self._send_with_callback(message, out, callback, now)
            return None
        return await self._send_awaited(message, out, now)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: object = None,
    ) -> None:
        """Send one message without an answer; returns when it is queued for writing.

        Raises:
            MQError: the message or another argument is illegal, or no broker could be reached.
        """
        self._in_flight.check_open()
        check_choice(queue, selector, arg)
        out = self._sender.prepare(message, trio.current_time())
        if queue is not None or selector is not None:
            out.pinned = await self._pin(out, message, queue, selector, arg)
        await self._sender.compress(out)
        context = self._begin(message, out, oneway=True) if self._hooks else None
        try:
            target, link = await self._targets.ready(out, out.deadline)
            self._in_flight.check_open()
            if self._merging is not None:
                self._merging.flush()
            link.write(self._sender.requests.encode(out, target, link.next_opaque(), oneway=True))
        except MQError as error:
            if context is not None:
                call_after_send(self._hooks, context, error)
            raise
        sends = self._attempts.sends_to(out.topic)
        sends.oneway += 1
        sends.body_bytes += len(out.body)
        if context is not None:
            call_after_send(self._hooks, context, None)
        await self._checkpoint_sometimes()

    async def send_batch(self, messages: Iterable[Message], *, queue: MessageQueue | None = None) -> SendResult:
        """Send several messages of one topic in one request; they are stored next to each other in one queue.

        Args:
            messages: a list, or a generator, of one topic, without delay; :func:`triomq.split_batch` cuts larger numbers.
            queue: the queue they must go to.

        Returns:
            One result; ``message_id`` and ``offset_message_id`` are comma-joined, ``queue_offset`` is the first's.

        Raises:
            MessageIllegal: the batch or one of its messages breaks a limit.
            InvalidCall: the messages do not make a batch.
            MQError: no attempt succeeded.
        """
        self._in_flight.check_open()
        settings = self._sender.settings
        batch = messages_of(messages)
        check_batch(batch, settings.max_body_bytes, self._sender.clock())
        now = trio.current_time()
        contexts: list[SendContext] = []

        def encode(unique_keys: Sequence[str]) -> bytes:
            plain = encode_batch(batch, unique_keys, settings.max_body_bytes)
            if not self._hooks:
                return plain
            born_ms = self._sender.clock()
            contexts.extend(
                SendContext(
                    self.group,
                    message,
                    unique_key,
                    batch_count=len(batch),
                    born_ms=born_ms,
                    body_bytes=len(message.body),
                    batch_number=number,
                )
                for number, (message, unique_key) in enumerate(zip(batch, unique_keys, strict=True))
            )
            sent = [call_before_send(self._hooks, context) for context in contexts]
            try:
                return encode_batch(sent, unique_keys, settings.max_body_bytes)
            except MessageIllegal as error:
                log.warning(
                    "a batch of %d messages is sent without the properties that hooks added: %s",
                    len(batch),
                    error.reason,
                )
                return plain

        out = self._sender.prepare_batch(
            batch[0].topic, len(batch), encode, wait_store_ok=batch[0].wait_store_ok, now=now
        )
        try:
            out.pinned = queue if queue is None else await self._pin(out, batch[0], queue, None, None)
            result = await self._attempts.deliver_batch(out, now)
        except MQError as error:
            for context in contexts:
                call_after_send(self._hooks, context, error)
            raise
        for context in contexts:
            call_after_send(self._hooks, context, result)
        return result

    async def send_in_transaction(self, message: Message, execute: LocalTransaction | None = None) -> TransactionResult:
        """Send a half message, carry out a local transaction, and let the broker deliver the message or drop it.

        Args:
            message: without a delay level; consumers get it when it is committed.
            execute: carries out the local transaction and returns its state; an async function is awaited, a
                plain one runs in a thread. By default the method of the producer's listener.

        Returns:
            The state that was sent to the broker. A half message that is stored less safely than configured, according
            to its ``status``, is rolled back without a call of ``execute``.

        Raises:
            InvalidCall: the producer has no ``transactions=``, or the message cannot be sent in a transaction.
            MQError: the half message could not be sent; nothing is delivered.

        An exception of ``execute`` is raised here; the broker gets ``UNKNOWN``, and checks with the listener later.
        After a cancel, it gets nothing, and checks too.
        """
        return await self._transactional().run(message, execute)

    @asynccontextmanager
    async def transaction(self, message: Message) -> AsyncIterator[Transaction]:
        """Send a half message; the end of the block commits it, an exception rolls it back.

        A block that is cancelled, or whose process dies, does neither: the broker checks with the producer's listener later.

        Args:
            message: without a delay level; consumers get it when it is committed.

        Raises:
            InvalidCall: the producer has no ``transactions=``, or the message cannot be sent in a transaction.
            TransactionRolledBack: the half message was stored less safely than configured; the block is not entered.
            MQError: the half message could not be sent; the block is not entered.
        """
        transactions = self._transactional()
        transaction = await transactions.begin_safely(message)
        try:
            yield transaction
        except Exception:
            await transactions.end(transaction, TransactionState.ROLLBACK)
            raise
        # Not for BaseException: a cancel or the program's end does not show how the local transaction ended.
        await transactions.end(transaction, TransactionState.COMMIT)

    async def send_half(self, message: Message) -> HalfMessage:
        """Send a half message whose transaction is ended later, perhaps by another process: :meth:`end_half`.

        Until then brokers check its transaction with producers of the group, as after a crash.

        Args:
            message: without a delay level; consumers get it when it is committed.

        Raises:
            InvalidCall: the producer has no ``transactions=``, or the message cannot be sent in a transaction.
            TransactionRolledBack: the half message was stored less safely than configured.
            MQError: the half message could not be sent; nothing is delivered.
        """
        return half_of(await self._transactional().begin_safely(message))

    async def end_half(self, half: HalfMessage, state: TransactionState) -> None:
        """Commit or roll back a half message, and wait until the broker has done it.

        While no master of the message's broker set can be reached, it waits: for ``send_timeout_s``, or for the client's
        ``route_wait_s``. The broker's answer then has 3 s.

        Args:
            half: from :meth:`send_half` of a producer of the same group.
            state: ``COMMIT`` or ``ROLLBACK``.

        Raises:
            InvalidCall: the producer has no ``transactions=``, or the state is ``UNKNOWN``.
            MQError: the broker refuses, as for a transaction that has ended before, or cannot be reached, or its answer is
                missing: then it may have been done. A Java broker that gets ``COMMIT`` twice delivers the message twice.
        """
        if not isinstance(half, HalfMessage):
            raise InvalidCall(f"the half message is {type(half).__name__}, not what send_half returns")
        if not isinstance(state, TransactionState):
            raise InvalidCall(f"the state is {shown(state)}, neither COMMIT nor ROLLBACK of triomq.TransactionState")
        if state is TransactionState.UNKNOWN:
            raise InvalidCall("a half message is ended by COMMIT or ROLLBACK; until then its state is UNKNOWN")
        await self._transactional().end_half(half, state)

    async def send_elements(
        self, topic: str, elements: bytes, message_ids: Sequence[str], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send a batch of messages that are already encoded; for data sources that encode many at once.

        Args:
            topic: their topic.
            elements: the messages, each encoded by ``triomq_protocol.record.batch.encode_batch_element`` or in the same
                form, with its UNIQ_KEY among its properties. They are sent as they are: no rule but the batch's size is
                checked, and no hook is called.
            message_ids: their UNIQ_KEYs, for results and errors.
            queue: the queue they must go to.

        Returns:
            As for :meth:`send_batch`.

        Raises:
            MessageIllegal: the batch is too large.
            InvalidCall: the topic cannot be sent to, or there is no message.
            MQError: no attempt succeeded.
        """
        self._in_flight.check_open()
        first = Message(topic, elements)
        first.check(self._sender.settings.max_body_bytes)
        now = trio.current_time()
        out = self._sender.prepare_elements(topic, elements, message_ids, now=now)
        if queue is not None:
            out.pinned = await self._pin(out, first, queue, None, None)
        return await self._attempts.deliver_batch(out, now)

    async def request(self, message: Message, timeout_s: float) -> ReceivedMessage:
        """Send a message, and wait until a consumer replies to it.

        Args:
            message: the request.
            timeout_s: seconds until the reply has arrived, sending included.

        Returns:
            The first reply; later ones, e.g. from another consumer group, are dropped.

        Raises:
            ReplyTimeout: it was sent, and no reply came; whether it was handled is unknown.
            Overloaded: this client has 10,000 requests waiting.
            ClientClosed: the producer was closed meanwhile.
            MQError: it could not be sent.

        When cancelled, the reply is dropped.
        """
        self._in_flight.check_open()
        return await self._requests.ask(message, timeout_s)

    async def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> bool:
        """Reply to a message that was sent by :meth:`request`, or by ``request`` of Java's producer.

        Args:
            request: the message, as a consumer got it.
            body: the body of the reply.
            properties: user properties of the reply.

        Returns:
            Whether the client that sent the request has received the reply; False if it is no longer connected, which
            is no error.

        Raises:
            InvalidCall: the message asks for no reply.
            MQError: the reply could not be sent.
        """
        self._in_flight.check_open()
        return await send_reply(self._sender, request, body, properties, deliver=self._deliver)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be sent to now, in the order in which selectors get them.

        Raises:
            MQError: no name server knows the topic, or none answers.
        """
        check_text("the topic", topic)
        out = self._sender.unwritten(topic, trio.current_time())
        return list((await self._targets.wait_for(lambda: self._targets.of(topic), out)).queues)

    async def flush(self) -> None:
        """Wait until every send accepted so far, and its callback, has ended.

        In a task that an async callback has started, this does not wait for that callback, which may wait for the task.

        Raises:
            InvalidCall: an async callback of this producer has called it, and would wait for itself.
        """
        self._in_flight.own_callbacks.refuse("flush()")
        if self._merging is not None:
            self._merging.flush()
        await self._in_flight.wait_empty()

    async def aclose(self) -> None:
        """Accept no more messages, wait for the sends with a callback, and unregister the group.

        An awaited send whose request is on its way ends in the task that awaits it, also after this; one that waits for
        a route or a connection, or would be repeated, raises :class:`~triomq.errors.ClientClosed`.  When cancelled, sends
        still in flight fail with ``ClientClosed``, and async callbacks get 5 s to end.  So does a callback that has started
        the task which calls this.  Checks of transactions get 5 s; when cancelled, none.

        Raises:
            InvalidCall: an async callback of this producer, or a check of a transaction, has called it, and would wait for
                itself.
        """
        self._refuse_callbacks("aclose()")
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._in_flight.closing = True
        self._requests.close()
        try:
            if not self._in_flight.aborted:
                await self.flush()
                if self._transactions is not None:
                    await self._transactions.checks.aclose()
        finally:
            self.abort()
            with trio.CancelScope(shield=True):
                await self._in_flight.end_callbacks()
                if not self._closed:
                    self._closed = True
                    self._asked.pop(self.group, None)
                    self._sender.close()
                    await self._leave()

    def _refuse_callbacks(self, what: str, task: trio.lowlevel.Task | None = None) -> None:
        """Raise :class:`InvalidCall` if an async callback, or a check of a transaction, would wait for its own end."""
        for callbacks in self._waited_for():
            callbacks.refuse(what, task)

    def _waited_for(self) -> list[OwnCallbacks]:
        """The callbacks that the end waits for."""
        checks = [self._transactions.checks.own_callbacks] if self._transactions is not None else []
        return [self._in_flight.own_callbacks, *checks]

    def abort(self) -> None:
        """Accept no more messages, and fail all sends with a callback now, each callback once."""
        if self._merging is not None:
            self._merging.close()
        self._in_flight.abort()
        self._targets.refuse()
        self._requests.close()
        if self._transactions is not None:
            self._transactions.checks.abort()

    async def __aenter__(self) -> Self:
        # Shielded: a task that is cancelled here never reaches the end of the block, and would not leave the group.
        await trio.lowlevel.cancel_shielded_checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        await self.aclose()

    # --- awaited sends -------------------------------------------------------------------------------------

    def _transactional(self) -> Transactions:
        self._in_flight.check_open()
        if self._transactions is None:
            raise InvalidCall(
                f"the producer of group {self.group} has no listener for transactions; make it with "
                "client.producer(group, transactions=listener)"
            )
        return self._transactions

    def _begin_awaited(self, message: Message, queue: MessageQueue | None) -> AwaitedSend | LoneSend | None:
        """Let a plain send join an open batch, or write its request if it is alone; None if it needs more."""
        awaited = AwaitedSend()
        if self._join_awaited is not None and self._join_awaited(message, awaited, queue):
            return awaited
        return self._lone.start(message) if queue is None and self._lone is not None else None

    async def _send_awaited(self, message: Message, out: Outgoing, now: float) -> SendResult:
        """Send a message that could not join an open batch: open a batch with it, or send it alone."""
        merging = self._merging
        if merging is None or self._join_awaited is None:
            return await self._deliver(message, out, now)
        ready = self._targets.ready_nowait(out) if now < out.deadline else None
        if ready is not None:
            target, link, timeout_s = ready
            if self._in_flight.window.has(len(out.body)) and not merging.goes_alone(out, link):
                awaited = AwaitedSend()
                send = CallbackSend(self._in_flight, out, awaited, now)
                self._in_flight.accept(message, send)
                deadline = min(now + timeout_s, out.deadline)
                merging.begin(send, target, link, deadline, wait_store_ok=message.wait_store_ok)
                return await awaited.result()
        return await self._attempts.deliver(out, now, ready)

    async def _deliver(self, message: Message, out: Outgoing, now: float) -> SendResult:
        if self._hooks:
            return await self._send_with_hooks(message, out, now)
        return await self._attempts.deliver(out, now)

    async def _send_with_hooks(self, message: Message, out: Outgoing, now: float) -> SendResult:
        context = self._begin(message, out)
        try:
            result = await self._attempts.deliver(out, now)
        except MQError as error:
            call_after_send(self._hooks, context, error)
            raise
        call_after_send(self._hooks, context, result)
        return result

    def _begin(self, message: Message, out: Outgoing, *, oneway: bool = False) -> SendContext:
        """Call the hooks before a send, and add their properties to the message."""
        context = context_of(self.group, message, out, oneway=oneway)
        sent = call_before_send(self._hooks, context)
        if sent is not message:
            use_properties(out, sent)
        return context

    # --- sends with a callback -----------------------------------------------------------------------------

    async def _send_with_callback(
        self, message: Message, out: Outgoing, callback: SendCallback | SendFunction, now: float
    ) -> None:
        in_flight, attempts, merging = self._in_flight, self._attempts, self._merging
        send = CallbackSend(in_flight, out, callback, now)
        await trio.lowlevel.checkpoint_if_cancelled()
        if not in_flight.window.has(send.size_bytes):
            self._since_checkpoint = 0
            if merging is not None:
                merging.flush()
            await in_flight.wait_capacity(send.size_bytes)
            # Its time begins only now: a request without time left would fail, and end a working connection.
            waited_s = trio.current_time() - now
            now = send.started = now + waited_s
            out.deadline += waited_s
            out.wait_until += waited_s
        batch = merging.open_for(out, wait_store_ok=message.wait_store_ok) if merging is not None else None
        if merging is not None and batch is not None:
            in_flight.accept(message, send)
            merging.add(batch, send)
            await self._checkpoint_sometimes()
            return
        ready = self._targets.ready_nowait(out) if now < out.deadline else None
        if ready is not None:
            target, link, timeout_s = ready
        else:
            # In the caller, not in a task, so that the messages of one caller keep their order.
            try:
                target, link = await self._targets.ready(out, out.deadline)
                now = trio.current_time()
                timeout_s = attempts.timeout_s(out, now)
            except MQError as error:
                in_flight.check_open()
                in_flight.accept(message, send)
                send.unsent(error)
                return
            in_flight.check_open()
        in_flight.accept(message, send)
        deadline = min(now + timeout_s, out.deadline)
        if merging is None:
            attempts.start(send, target, link, deadline)
        else:
            merging.begin(send, target, link, deadline, wait_store_ok=message.wait_store_ok)
        await self._checkpoint_sometimes()

    async def _checkpoint_sometimes(self) -> None:
        self._since_checkpoint += 1
        if self._since_checkpoint >= CHECKPOINT_EVERY:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        self._since_checkpoint = 0
        # Shielded: the message is accepted, and a cancel here would suggest that it was not.
        await trio.lowlevel.cancel_shielded_checkpoint()

    # --- choosing ------------------------------------------------------------------------------------------

    async def _pin(
        self, out: Outgoing, message: Message, queue: MessageQueue | None, selector: QueueSelector | None, arg: object
    ) -> MessageQueue:
        if queue is not None:
            check_queue(queue)
            if queue.topic != message.topic:
                raise InvalidCall(f"the queue is of topic {queue.topic}, the message of {message.topic}")
            return queue
        assert selector is not None
        return choose_by_selector(selector, await self._targets.queues_of(out), message, arg)
