"""Transactions and messages sent back: codes 36, 37, 39 and 323."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BOTH, HEADER_RULES, HeaderCase, exchanged, received

from triomq_protocol.requests import (
    CheckTransactionStateRequest,
    ConsumerSendMsgBackRequest,
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from triomq_protocol.wire.command import Command

HEADERS = [
    HeaderCase(
        ConsumerSendMsgBackRequest,
        "offset*:int64 group* delayLevel*:int32 originMsgId originTopic unitMode:bool=False maxReconsumeTimes:int32 bname",
    ),
    HeaderCase(
        EndTransactionRequest,
        "producerGroup* tranStateTableOffset*:int64 commitLogOffset*:int64 commitOrRollback*:int32 fromTransactionCheck:bool=False msgId* transactionId bname",
    ),
    HeaderCase(
        CheckTransactionStateRequest,
        "tranStateTableOffset*:int64 commitLogOffset*:int64 msgId transactionId offsetMsgId bname",
    ),
    HeaderCase(ResumeCheckHalfMessageRequest, "msgId"),
]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BOTH
@pytest.mark.parametrize("decision", [0, 8, 12, -1, 9])
def test_a_decision_is_a_number_whose_meaning_the_broker_checks(decision: int, serialize: int) -> None:
    header = EndTransactionRequest(
        producer_group="g",
        tran_state_table_offset=7,
        commit_log_offset=1 << 40,
        commit_or_rollback=decision,
        msg_id="M",
    )
    command = exchanged(Command.request(37, header, oneway=True, remark="it failed", serialize=serialize))
    assert command.header(EndTransactionRequest) == header
    assert (command.is_oneway, command.remark) == (True, "it failed")


@BOTH
@pytest.mark.parametrize("level", [-1, 0, 18])
def test_a_message_is_sent_back_with_any_delay_level(level: int, serialize: int) -> None:
    fields: dict[str, str | None] = {"offset": "5", "group": "g", "delayLevel": str(level), "unitMode": "yes"}
    header = received(fields, serialize).header(ConsumerSendMsgBackRequest)
    assert header == ConsumerSendMsgBackRequest(offset=5, group="g", delay_level=level)
