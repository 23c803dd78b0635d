"""Transactions of one producer group: half messages, and the requests that end them.

The end is sent one way, as by Java's client: if it is lost, the broker checks (``transaction_checks.py``).  Upstream:
``DefaultMQProducerImpl.sendMessageInTransaction`` (docs/protocol/client.md §6.13).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, cast

import trio

from triomq._arguments.kinds import check_callback
from triomq._cluster.spawn import Spawn
from triomq._constructors import construct
from triomq._message.message import Message, MessageQueue
from triomq._message.send_result import SendResult, SendStatus
from triomq._message.transaction import (
    HalfMessage,
    LocalTransaction,
    OnTransactionEnd,
    Transaction,
    TransactionCheck,
    TransactionEnd,
    TransactionListener,
    TransactionResult,
    TransactionState,
)
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.sender import Sender
from triomq._producer.transaction_checks import TransactionChecks, call_user, checked_state, remark_of
from triomq._transport.answers import checked
from triomq._transport.link import Link
from triomq.errors import InvalidCall, MQError, ProtocolViolation, TransactionRolledBack
from triomq_protocol.codes import RequestCode
from triomq_protocol.errors import BodyError
from triomq_protocol.message_id import decode_offset_message_id
from triomq_protocol.names import PGROUP, TRAN_MSG
from triomq_protocol.properties import has_timer
from triomq_protocol.record.layout import TRANSACTION_PREPARED
from triomq_protocol.requests import EndTransactionRequest
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.producer")

END_TIMEOUT_S: Final = 3.0
"""Seconds a broker may take to answer an end. Sending an end without an answer may take as long, as the connection may
have to be reopened; nothing cancels that."""

_INNER_GROUPS: Final = ("DEFAULT_PRODUCER", "CLIENT_INNER_PRODUCER")
_MADE_UP: Final = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")

Deliver = Callable[[Message, Outgoing, float], Awaitable[SendResult]]
"""Sends a message that was prepared, and calls the hooks; the third argument is the time on trio's clock."""


def check_listener(group: str, listener: TransactionListener | TransactionCheck) -> None:
    """Raise :class:`InvalidCall` unless a listener can answer for the group's transactions, also after a restart."""
    if isinstance(listener, type):
        raise InvalidCall(f"transactions is the class {listener.__qualname__}; give an object of it")
    if not callable(getattr(listener, "check", listener)):
        raise InvalidCall(
            f"transactions is {type(listener).__name__}, neither an object with the methods execute(transaction) and "
            "check(message) nor a function check(message)"
        )
    if group in _INNER_GROUPS or _MADE_UP.search(group):
        raise InvalidCall(
            f"the group {group} cannot have transactions: brokers ask producers of the group that sent a message about "
            "its transaction, also after a restart; choose a name that stays the same"
        )


def half_of(transaction: Transaction) -> HalfMessage:
    """The data that another process needs to end a transaction."""
    result = transaction.result
    return HalfMessage(result.queue, result.message_id, result.queue_offset, transaction.commit_log_offset)


class Transactions:
    """The transactions of one producer.

    Args:
        sender: prepares messages.
        listener: answers for them; a :class:`TransactionListener`, or its method ``check`` alone.
        deliver: sends half messages.
        spawn: starts tasks for checks.
        checks_at_once: the most checks that run at the same time.
        on_end: called with every end that is sent to a broker.
    """

    def __init__(
        self,
        sender: Sender,
        listener: TransactionListener | TransactionCheck,
        *,
        deliver: Deliver,
        spawn: Spawn,
        checks_at_once: int,
        on_end: OnTransactionEnd | None = None,
    ) -> None:
        of_object: TransactionCheck | None = getattr(listener, "check", None)
        check = of_object if of_object is not None else cast("TransactionCheck", listener)
        self._sender = sender
        self._deliver = deliver
        self._execute: LocalTransaction | None = getattr(listener, "execute", None)
        self._on_end = on_end
        self.checks: TransactionChecks = TransactionChecks(
            sender.group, check, spawn, at_once=checks_at_once, on_end=on_end
        )

    async def begin(self, message: Message) -> Transaction:
        """Send a half message.

        Raises:
            InvalidCall: the message cannot be sent in a transaction.
            MQError: no attempt succeeded.
        """
        if not isinstance(message, Message):
            raise InvalidCall(
                f"a transaction has one triomq.Message, not {type(message).__name__}; brokers take no batch in a "
                "transaction, so send each message in its own"
            )
        if message.delay_level:
            raise InvalidCall(
                f"delay_level is {message.delay_level}, but brokers deliver the message of a transaction as soon as it is "
                "committed"
            )
        now = trio.current_time()
        sender = self._sender
        out = sender.prepare(message, now, {TRAN_MSG: "true", PGROUP: sender.group})
        if has_timer(message.properties or {}):
            raise InvalidCall(
                "the message has a time of delivery, and brokers of RocketMQ 5 deliver no message of a transaction that has one"
            )
        await sender.compress(out)
        out.sys_flag |= TRANSACTION_PREPARED
        result = await self._deliver(message, out, trio.current_time())
        try:
            offset = decode_offset_message_id(result.offset_message_id).physical_offset
        except BodyError as error:
            what = f"an answer to the half message {result.message_id}"
            raise ProtocolViolation(what, remark=str(error)) from error
        return construct(Transaction, message, result, offset)

    async def begin_safely(self, message: Message) -> Transaction:
        """:meth:`begin`; a half message that is not stored as safely as configured is rolled back.

        Raises:
            TransactionRolledBack: it was rolled back.
        """
        transaction = await self.begin(message)
        status = transaction.result.status
        if status is not SendStatus.SEND_OK:
            await self.end(transaction, TransactionState.ROLLBACK)
            raise TransactionRolledBack(
                f"the transaction of message {transaction.transaction_id}, topic {message.topic}", code=status
            )
        return transaction

    async def run(self, message: Message, execute: LocalTransaction | None) -> TransactionResult:
        """Send a half message, carry out the local transaction, send its end; see ``send_in_transaction``."""
        check_callback("execute", execute)
        execute = execute if execute is not None else self._execute
        if not callable(execute):
            raise InvalidCall(
                "give send_in_transaction execute=, or the producer a listener that has the method execute"
            )
        transaction = await self.begin(message)
        result = transaction.result
        if result.status is not SendStatus.SEND_OK:
            await self.end(transaction, TransactionState.ROLLBACK)
            return TransactionResult(result, TransactionState.ROLLBACK)
        try:
            answer = await call_user(execute, transaction)
        except Exception as error:
            remark = remark_of("executeLocalTransactionBranch", error)
            await self.end(transaction, TransactionState.UNKNOWN, remark)
            raise
        state = checked_state(answer, "execute")
        return TransactionResult(result, await self.end(transaction, state))

    async def end(
        self, transaction: Transaction, state: TransactionState, remark: str | None = None
    ) -> TransactionState:
        """Send the end to the broker, one way; if that fails, it is logged, and the broker checks later.

        While the broker's set has no master that can be reached, it waits for one, as a send to a given queue does.
        Not cancellable, and limited to :data:`END_TIMEOUT_S`: the local transaction has already ended.

        Returns:
            The state that is sent: ``COMMIT`` becomes ``ROLLBACK`` after :meth:`Transaction.rollback`.
        """
        if state is TransactionState.COMMIT and transaction.rolled_back:
            state = TransactionState.ROLLBACK
        result = transaction.result
        header = self._ending(half_of(transaction), state, result.transaction_id)
        why: object = f"no connection within {END_TIMEOUT_S:g} s"
        out = self._waiting_for(result.queue)
        # A cancelled task has one attempt. Checked outside of the scope, which hides the cancel.
        out.wait_until = min(out.wait_until, trio.current_effective_deadline())

        async def connect() -> Link:
            nonlocal why
            try:
                return await self._sender.targets.master(result.queue)
            except MQError as error:
                why = error
                raise

        with trio.move_on_after(END_TIMEOUT_S, shield=True):
            try:
                link = await self._sender.targets.wait_for(connect, out)
                link.notify(Command.request(RequestCode.END_TRANSACTION, header, oneway=True, remark=remark))
            except MQError as error:
                why = error
            else:
                if self._on_end is not None:
                    self._on_end(self._end_of(transaction, state, link.address))
                return state
        log.warning(
            "could not send %s of transaction %s to broker %s, which will check it: %s",
            state.name,
            result.message_id,
            result.queue.broker_name,
            why,
        )
        return state

    async def end_half(self, half: HalfMessage, state: TransactionState) -> None:
        """Have the broker end a transaction, and wait for its answer.

        While the broker's set has no master that can be reached, it waits for one, as a send to a given queue does.

        Raises:
            MQError: the broker refuses, cannot be reached or does not answer: then it may have been carried out.
        """
        queue, targets = half.queue, self._sender.targets
        out = self._waiting_for(queue)

        async def connect() -> Link:
            await targets.of(queue.topic)  # another process may have sent it
            return await targets.master(queue)

        link = await targets.wait_for(connect, out)
        command = Command.request(RequestCode.END_TRANSACTION, self._ending(half, state, half.message_id))
        answer = await link.request(command, END_TIMEOUT_S)
        what = f"the end of the transaction of message {half.message_id}, topic {half.queue.topic}"
        checked(answer, what, link.address)

    def _waiting_for(self, queue: MessageQueue) -> Outgoing:
        out = self._sender.unwritten(queue.topic, trio.current_time())
        out.pinned = queue
        return out

    def _ending(self, half: HalfMessage, state: TransactionState, transaction_id: str | None) -> EndTransactionRequest:
        return EndTransactionRequest(
            producer_group=self._sender.group,
            tran_state_table_offset=half.half_offset,
            commit_log_offset=half.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=False,
            msg_id=half.message_id,
            transaction_id=transaction_id,
            bname=half.queue.broker_name,
        )

    def _end_of(self, transaction: Transaction, state: TransactionState, address: str) -> TransactionEnd:
        message, result = transaction.message, transaction.result
        keys = message.keys
        return TransactionEnd(
            group=self._sender.group,
            topic=message.topic,
            message_id=result.message_id,
            transaction_id=transaction.transaction_id,
            tags=message.tags,
            keys=keys if keys is None or isinstance(keys, str) else " ".join(keys),
            region=result.region_id,
            broker_address=address,
            state=state,
            from_check=False,
        )
