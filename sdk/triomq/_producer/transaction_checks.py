"""Checks of transactions: brokers ask for their state, a user's function returns it, and the broker gets the answer.

A bounded number of checks runs, and a bounded number waits; any others are dropped, and repeated by the broker.  Upstream:
``ClientRemotingProcessor.checkTransactionState``, ``DefaultMQProducerImpl`` (docs/protocol/client.md §6.13).
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import trio

from triomq._arguments.async_functions import is_async
from triomq._cluster.spawn import Spawn
from triomq._error_text import named_error, one_line
from triomq._message.received import ReceivedMessage
from triomq._message.transaction import OnTransactionEnd, TransactionCheck, TransactionEnd, TransactionState
from triomq._tasks.own_callbacks import OwnCallbacks, run_in_thread
from triomq._transport.link import Link
from triomq._transport.peer_log import PeerLog
from triomq.errors import MessageIllegal, MQError
from triomq_protocol.codes import RequestCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.requests import CheckTransactionStateRequest, EndTransactionRequest
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.producer")

T = TypeVar("T")

WAITING_MAX: Final = 2000
"""The most checks that wait for a place (``checkRequestHoldMax`` of Java's producer)."""

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most bytes of the messages of those checks together."""

GRACE_S: Final = 5.0
"""How long checks may continue when their producer closes; those in threads until they return, since no thread
outlives its owner."""

REMARK_CHARS_MAX: Final = 1000


async def call_user(function: Callable[[T], Any], argument: T, limiter: trio.CapacityLimiter | None = None) -> Any:
    """Call a function of the user: an async one is awaited, a plain one runs in a thread."""
    if is_async(function):
        return await function(argument)
    answer = await run_in_thread(function, argument, limiter=limiter)
    return await answer if inspect.isawaitable(answer) else answer


def checked_state(answer: object, whose: str) -> TransactionState:
    """The state that a user's function returned; anything else counts as ``UNKNOWN``, so that no mistake commits."""
    if isinstance(answer, TransactionState):
        return answer
    log.warning("%s answered %.100r, which is no triomq.TransactionState: it counts as UNKNOWN", whose, answer)
    return TransactionState.UNKNOWN


def remark_of(when: str, error: Exception) -> str:
    """The remark for a broker's log about a user's function that has failed."""
    return f"{when} Exception: {named_error(error)}"[:REMARK_CHARS_MAX]


class _Check:
    """One transaction that a broker asks about; it may ask again meanwhile, and the latest request is answered."""

    __slots__ = ("header", "key", "link", "message", "size_bytes")

    def __init__(
        self, key: str, link: Link, header: CheckTransactionStateRequest, message: ReceivedMessage, size_bytes: int
    ) -> None:
        self.key = key
        self.link = link
        self.header = header
        self.message = message
        self.size_bytes = size_bytes


class TransactionChecks:
    """Answers the checks of one producer group.

    Args:
        group: the producer group.
        check: the user's function.
        spawn: starts tasks.
        at_once: the most checks that run at the same time.
        on_end: called with every end that is sent to a broker.

    Attributes:
        own_callbacks: the tasks in which checks run.
    """

    def __init__(
        self,
        group: str,
        check: TransactionCheck,
        spawn: Spawn,
        *,
        at_once: int,
        on_end: OnTransactionEnd | None = None,
    ) -> None:
        self._group = group
        self._check = check
        self._spawn = spawn
        self._at_once = at_once
        self._on_end = on_end
        self._limiter = trio.CapacityLimiter(at_once)
        self._checks: dict[str, _Check] = {}
        self._waiting: deque[_Check] = deque()
        self._waiting_bytes = 0
        self._dropping = False
        self._closed = False
        self.own_callbacks = OwnCallbacks()
        self._running: set[trio.CancelScope] = set()
        self._enders = trio.lowlevel.ParkingLot()
        """Tasks that wait for the checks that run."""
        self._lines = PeerLog(log)

    def __len__(self) -> int:
        """The number of checks that wait or run."""
        return len(self._checks)

    def asked(self, link: Link, header: CheckTransactionStateRequest, message: ReceivedMessage) -> None:
        """Take a broker's question about a transaction; called by the link's reader."""
        if self._closed:
            return
        key = message.message_id
        known = self._checks.get(key)
        if known is not None:
            known.link, known.header = link, header
            return
        size_bytes = message.record.size_bytes
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            if not self._dropping:
                self._dropping = True
                log.warning(
                    "group %s cannot answer all checks of transactions: %d wait, further ones are dropped, and brokers "
                    "ask again",
                    self._group,
                    len(self._waiting),
                )
            return
        check = self._checks[key] = _Check(key, link, header, message, size_bytes)
        self._waiting.append(check)
        self._waiting_bytes += size_bytes
        if len(self._running) < self._at_once:
            scope = trio.CancelScope()
            self._running.add(scope)
            self._spawn(self._work, scope)

    async def aclose(self) -> None:
        """Accept no more checks, drop those that wait, and wait for those that run, for at most :data:`GRACE_S`."""
        self._close()
        with trio.move_on_after(GRACE_S):
            while self._running:
                await self._enders.park()
        self.abort()

    def abort(self) -> None:
        """Accept no more checks, and cancel those that run; brokers get no answer to them."""
        self._close()
        for scope in self._running:
            scope.cancel()

    def _close(self) -> None:
        self._closed = True
        self._waiting.clear()

    async def _work(self, scope: trio.CancelScope) -> None:
        try:
            with self.own_callbacks.running(), scope:
                while self._waiting:
                    check = self._waiting.popleft()
                    self._waiting_bytes -= check.size_bytes
                    try:
                        await self._answer(check)
                    finally:
                        del self._checks[check.key]
                self._dropping = False
        finally:
            self._running.discard(scope)
            self._enders.unpark_all()

    async def _answer(self, check: _Check) -> None:
        message, remark = check.message, None
        shown_id = one_line(message.message_id)  # any client can send half messages of the group
        try:
            answer = await call_user(self._check, message, self._limiter)
            state = checked_state(answer, f"the check of group {self._group}")
        except MessageIllegal as error:
            # The broker's data, not the user's code, is at fault.
            text = "asks about transaction %s of group %s, whose message cannot be read: %s"
            self._lines.write(logging.WARNING, check.link.address, text, message.message_id, self._group, error)
            state, remark = TransactionState.UNKNOWN, remark_of("checkLocalTransactionState", error)
        except Exception as error:
            log.exception("the check of transaction %s of group %s failed", shown_id, self._group)
            state, remark = TransactionState.UNKNOWN, remark_of("checkLocalTransactionState", error)
        header = check.header
        end = EndTransactionRequest(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=header.transaction_id,
            bname=header.bname,
        )
        try:
            check.link.notify(Command.request(RequestCode.END_TRANSACTION, end, oneway=True, remark=remark))
        except MQError as error:
            log.info("could not send the end of transaction %s to %s: %s", shown_id, check.link.address, error)
        else:
            if self._on_end is not None:
                with suppress(MQError, ProtocolError):  # what the broker sent may not be readable
                    self._on_end(self._end_of(check, state))

    def _end_of(self, check: _Check, state: TransactionState) -> TransactionEnd:
        message = check.message
        return TransactionEnd(
            group=self._group,
            topic=message.topic,
            message_id=message.message_id,
            transaction_id=check.header.transaction_id or message.message_id,
            tags=message.tags,
            keys=message.record.keys,
            region=message.properties.get("MSG_REGION"),
            broker_address=check.link.address,
            state=state,
            from_check=True,
        )
