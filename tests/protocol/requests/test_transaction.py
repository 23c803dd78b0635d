"""Transactions: codes 37, 39 and 323."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from request_rules import BOTH, HEADER_RULES, HeaderCase, exchanged

from triomq_protocol.requests import (
    CheckTransactionStateRequest,
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from triomq_protocol.wire.command import Command

HEADERS = [
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
