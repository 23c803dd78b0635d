"""Ends transactions, code 37, and resumes the check of one, code 323.

It answers to `EndTransactionProcessor` and `AdminBrokerProcessor.resumeCheckHalfMessage`; rules:
docs/protocol/broker-api.md §10, docs/protocol/store.md §20.3.
"""

from __future__ import annotations

import logging
from functools import partial

from triomq_protocol.codes import NOT_SET_REMARK, RequestCode, ResponseCode
from triomq_protocol.errors import BodyError, HeaderError
from triomq_protocol.message_id import decode_offset_message_id
from triomq_protocol.names import CHECK_MAX_TIME_TOPIC, CHECK_TIMES, HALF_TOPIC, PGROUP, TRAN_MSG
from triomq_protocol.record.layout import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.transaction import EndTransactionRequest, ResumeCheckHalfMessageRequest
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import RefusedError
from triomq_server.broker.requests.sending.checks import limits_text
from triomq_server.broker.requests.sending.rewriting import delay_level, store_properties
from triomq_server.broker.transactions.half_records import HALF_QUEUE, committed, copy_of, for_log, real_queue
from triomq_server.broker.transactions.open_transactions import OpenTransactions
from triomq_server.repeats import Repeats
from triomq_server.store import AppendStatus
from triomq_server.wire import Handlers, Link

_log = logging.getLogger(__name__)

UNKNOWN = 0
"""The producer does not know yet: nothing is done, and nothing answered."""
NOT_FOUND_REMARK = "Find prepared transaction message failed"


def register(handlers: Handlers, broker: Broker, transactions: OpenTransactions) -> None:
    """Serve codes 37 and 323."""
    handlers.plain[RequestCode.END_TRANSACTION] = Ending(broker, transactions).end
    handlers.plain[RequestCode.RESUME_CHECK_HALF_MESSAGE] = partial(resume_check, broker)


class Ending:
    """Ends transactions: stores the message for consumers, or only notes that its transaction is over."""

    def __init__(self, broker: Broker, transactions: OpenTransactions) -> None:
        self._broker = broker
        self._store = broker.store
        self._transactions = transactions
        self._refusals = Repeats()
        self._unknown = Repeats()

    def end(self, link: Link, command: Command) -> Command | None:
        """Code 37. Producers send it one-way, so a refusal is logged as well."""
        header = command.header(EndTransactionRequest)
        kind = header.commit_or_rollback
        if kind not in (UNKNOWN, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise HeaderError("commitOrRollback", "is neither 8 (commit) nor 12 (rollback) nor 0")
        if self._broker.is_slave:
            return command.answer(ResponseCode.SLAVE_NOT_AVAILABLE, NOT_SET_REMARK)
        if kind == UNKNOWN:
            if header.from_transaction_check and (due := self._unknown.add(for_log(header.producer_group))):
                _log.info(
                    "%d transactions are still open, by the answers of producer groups %s; they are checked again", *due
                )
            return None
        try:
            if kind == TRANSACTION_COMMIT:
                self._commit(header)
                return command.answer()
            self._roll_back(header)
        except RefusedError as refused:
            if due := self._refusals.add(for_log(header.producer_group)):
                _log.warning(
                    "%d ends of transactions are refused, of producer groups %s; the last one, of %s for %s: %s",
                    *due, link.peer, for_log(header.msg_id), refused.remark,
                    extra={"address": link.peer, "group": header.producer_group, "message_id": header.msg_id},
                )  # fmt: skip
            return command.answer(refused.code, refused.remark)
        return command.answer(ResponseCode.SUCCESS, NOT_SET_REMARK)

    def _commit(self, header: EndTransactionRequest) -> None:
        """Store the message for consumers, then the op message; raises RefusedError.

        Between the two the process may be killed: then the transaction is checked, and the message comes once more.
        """
        broker = self._broker
        half = self._half(header)
        properties = half.properties
        real = real_queue(properties)
        if real is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "The half message does not say which queue it is for")
        record = committed(half, properties, *real)
        if delay_level(properties, broker.config) > 0:
            properties.pop(TRAN_MSG)
            store_properties(record, properties, broker.config)
        result = self._store.append(record)
        if result.status is not AppendStatus.PUT_OK:
            broker.stats.put_failures += 1
            raise self._not_stored(result.status)
        broker.stats.count_put(record.topic, 1, result.size_bytes)
        if self._transactions.end(half.queue_offset) is not AppendStatus.PUT_OK:
            _log.error(
                "the transaction of the message at log offset %d is committed, but that could not be noted: it will be "
                "checked, and the message may be delivered again",
                result.physical_offset,
            )

    def _roll_back(self, header: EndTransactionRequest) -> None:
        """Store the op message only; raises RefusedError."""
        status = self._transactions.end(self._half(header).queue_offset)
        if status is not AppendStatus.PUT_OK:
            raise self._not_stored(status)

    def _half(self, header: EndTransactionRequest) -> RecordView:
        """The half message, after all checks in 4.9's order; raises RefusedError."""
        half = _record_of(self._broker, HALF_TOPIC, header.commit_log_offset)
        if half is None:
            raise _refused(NOT_FOUND_REMARK)
        if half.properties.get(PGROUP) != header.producer_group:
            raise _refused("The producer group wrong")
        offset = header.tran_state_table_offset
        if half.queue_offset != offset:
            raise _refused("The transaction state table offset wrong")
        if not self._broker.compat_49 and self._transactions.has_ended(offset):
            raise _refused("The transaction has ended before")
        return half

    def _not_stored(self, status: AppendStatus) -> RefusedError:
        if status is AppendStatus.SERVICE_NOT_AVAILABLE:
            return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now.")
        return RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            "The message is illegal, maybe msg body or properties length not matched. "
            + limits_text(self._broker.config.store),
        )


def resume_check(broker: Broker, _link: Link, command: Command) -> Command:
    """Code 323: resume the check of a half message that was checked too often."""
    header = command.header(ResumeCheckHalfMessageRequest)
    try:
        half = _record_of(broker, CHECK_MAX_TIME_TOPIC, decode_offset_message_id(header.msg_id or "").physical_offset)
    except BodyError:
        half = None
    if half is None:
        return command.answer(
            ResponseCode.SYSTEM_ERROR, f"Exception was thrown when putting message back to {HALF_TOPIC}."
        )
    properties = {**half.properties, CHECK_TIMES: "0"}
    if broker.store.append(copy_of(half, properties)).status is not AppendStatus.PUT_OK:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"Put message back to {HALF_TOPIC} failed.")
    return command.answer()


def _record_of(broker: Broker, topic: str, physical_offset: int) -> RecordView | None:
    """The message of one of the broker's own topics at this log offset; None if there is none.

    That the topic's queue points to it distinguishes it from bytes of a message that look like a record.
    """
    data = broker.store.record_at(physical_offset)
    try:
        record = None if data is None else RecordView(data)
    except BodyError:
        return None
    if record is None or record.topic != topic:
        return None
    return record if broker.store.record_offset_at(topic, HALF_QUEUE, record.queue_offset) == physical_offset else None


def _refused(remark: str) -> RefusedError:
    return RefusedError(ResponseCode.SYSTEM_ERROR, remark)
