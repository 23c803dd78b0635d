"""Transactions as users see them: a half message, the state of the local transaction, and the listener for checks.

Upstream: ``TransactionListener``, ``LocalTransactionState``, ``TransactionSendResult`` (docs/protocol/client.md §6.13).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import msgspec

from triomq._constructors import NoPublicConstructor
from triomq._message.message import Message, MessageQueue
from triomq._message.received import ReceivedMessage
from triomq._message.send_result import SendResult


class TransactionState(enum.IntEnum):
    """The state of a local transaction."""

    UNKNOWN = 0
    """Not known yet: the broker checks again, up to ``transactionCheckMax`` times."""

    COMMIT = 8
    """Consumers get the message."""

    ROLLBACK = 12
    """No consumer ever gets it."""


class Transaction(metaclass=NoPublicConstructor):
    """A half message that a broker has stored, while the local transaction is carried out.

    Args:
        message: the message that consumers get if it is committed.
        result: the result of sending it; ``queue_offset`` and ``offset_message_id`` are the half message's.
        commit_log_offset: the half message's offset in the broker's commit log.
    """

    __slots__ = ("_rolled_back", "commit_log_offset", "message", "result")

    def __init__(self, message: Message, result: SendResult, commit_log_offset: int) -> None:
        self.message: Message = message
        self.result: SendResult = result
        self.commit_log_offset: int = commit_log_offset
        self._rolled_back = False

    @property
    def transaction_id(self) -> str:
        """The message's id, named by a later check; store it together with the data of the local transaction."""
        return self.result.message_id

    @property
    def rolled_back(self) -> bool:
        """Whether :meth:`rollback` was called."""
        return self._rolled_back

    def rollback(self) -> None:
        """Roll back at the end of the block even if nothing is raised; this cannot be undone."""
        self._rolled_back = True

    def __repr__(self) -> str:
        return f"<Transaction {self.transaction_id} of topic {self.message.topic}>"


class TransactionResult(msgspec.Struct, frozen=True):
    """The outcome of :meth:`triomq.Producer.send_in_transaction`.

    Args:
        result: the result of sending the half message.
        state: the state that was reported to the broker.
    """

    result: SendResult
    state: TransactionState


@attrs.frozen
class HalfMessage:
    """A half message whose transaction another process may end: plain values, to be stored or sent there.

    Args:
        queue: the queue in which consumers get the message.
        message_id: the message's id, the same after the commit.
        half_offset: its place in the broker's queue of half messages.
        commit_log_offset: its offset in the broker's commit log.
    """

    queue: MessageQueue
    message_id: str
    half_offset: int
    commit_log_offset: int


LocalTransaction = Callable[[Transaction], TransactionState | Awaitable[TransactionState]]
"""Carries out a local transaction; an async one is awaited, a plain one runs in a thread."""

TransactionCheck = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""Returns the state of the local transaction of a message; an async one is awaited, a plain one runs in a thread."""


class TransactionListener(Protocol):
    """Carries out local transactions, and answers brokers' checks; an object with these two methods is enough.

    Either method may be async, and is awaited, or plain, and runs in a thread.
    """

    def execute(self, transaction: Transaction, /) -> TransactionState | Awaitable[TransactionState]:
        """Carry out the local transaction; called when the half message is stored."""

    def check(self, message: ReceivedMessage, /) -> TransactionState | Awaitable[TransactionState]:
        """Return the state of the local transaction with the id ``message.transaction_id``; called when a broker checks it.

        A broker may ask any client with a producer of the group, even one that was started later.  An exception is
        logged and counts as ``UNKNOWN``.
        """


@attrs.frozen(kw_only=True)
class TransactionEnd:
    """The end of a transaction as it is sent to a broker, for message traces.

    Args:
        group: producer group.
        topic: the message's topic.
        message_id: the message's id.
        transaction_id: the transaction's id.
        tags: the message's tag.
        keys: its keys, joined by blanks.
        region: the broker's region.
        broker_address: the broker it is sent to.
        state: the transaction's state.
        from_check: whether it answers a broker's check.
    """

    group: str
    topic: str
    message_id: str
    transaction_id: str
    tags: str | None
    keys: str | None
    region: str | None
    broker_address: str
    state: TransactionState
    from_check: bool


OnTransactionEnd = Callable[[TransactionEnd], None]
"""Called with every end that is sent to a broker; plain and quick."""
