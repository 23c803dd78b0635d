"""Pulling messages: code 11 (broker-api.md section 5)."""

from triomq_protocol.command import Command
from triomq_protocol.header import Header, Int32, Int64


class PullMessageRequest(Header, kw_only=True):
    """Header of PULL_MESSAGE; upstream `PullMessageRequestHeader`."""

    fixed_order = True

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    bname: str | None = None


class PullMessageResponse(Header, kw_only=True):
    """Header of a pull's answer; absent fields (refusals) read as None. Upstream `PullMessageResponseHeader`."""

    fixed_order = True

    suggest_which_broker_id: Int64 | None = None
    next_begin_offset: Int64 | None = None
    min_offset: Int64 | None = None
    max_offset: Int64 | None = None


def encode_pull_answer_head(
    request: Command,
    code: int,
    remark: str,
    *,
    suggest_which_broker_id: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_bytes: int,
    serialize: int | None = None,
) -> bytes:
    """Everything of a pull's answer before its body: lengths and header; join it with the record slices.

    Args:
        request: the pull; its opaque and, unless `serialize` is given, its serialization are used.
        body_bytes: how many bytes the caller will send behind this head.
        serialize: answers after a suspension are JSON in Java whatever the request was (remoting.md section 3).
    """
    raise LookupError


def encode_pull_request(
    opaque: int,
    *,
    consumer_group: str,
    topic: str,
    queue_id: int,
    queue_offset: int,
    max_msg_nums: int,
    sys_flag: int,
    commit_offset: int,
    suspend_timeout_millis: int,
    subscription: str | None = None,
    sub_version: int = 0,
    expression_type: str | None = "TAG",
    broker_name: str | None = None,
) -> bytes:
    """The whole frame of a pull with a JSON header; the same bytes as Command.encode, faster."""
    raise LookupError


def decode_pull_answer(answer: Command) -> PullMessageResponse:
    """`answer.header(PullMessageResponse)`."""
    return answer.header(PullMessageResponse)
