"""Transactions: codes 37, 39 and 323 (docs/protocol/broker-api.md §10)."""

from triomq_protocol.wire.header import Header, Int32, Int64


class EndTransactionRequest(Header, kw_only=True):
    """Header of END_TRANSACTION (37); `commit_or_rollback` is 8, 12 or 0."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    bname: str | None = None


class CheckTransactionStateRequest(Header, kw_only=True):
    """Header of CHECK_TRANSACTION_STATE (39), broker to client, one-way."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class ResumeCheckHalfMessageRequest(Header, kw_only=True):
    """Header of RESUME_CHECK_HALF_MESSAGE (323)."""

    msg_id: str | None = None
