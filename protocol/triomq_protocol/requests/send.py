"""Sending messages: codes 10, 310, 320 and their answer; replies 324, 325 and the push 326 (broker-api.md section 4)."""

from triomq_protocol.command import Command
from triomq_protocol.header import Header, Int32, Int64


class SendMessageRequest(Header, kw_only=True):
    """Header of SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324), long names; upstream `SendMessageRequestHeader`.

    `topic` absent reads as blank, which the broker refuses with its own remark.
    """

    producer_group: str
    topic: str = ""
    properties: str | None = None  # before default_topic: they share a bucket of Java's map
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 0
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None
    bname: str | None = None


V2_NAMES = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "bname": "n",
}
"""The one-letter ext fields of the V2 header."""


class SendMessageRequestV2(Header, rename=V2_NAMES, kw_only=True):
    """Header of 310, 320 and 325: the same fields as SendMessageRequest with one-letter names on the wire."""

    fixed_order = True

    producer_group: str
    topic: str = ""
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 0
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    bname: str | None = None


class SendMessageResponse(Header, kw_only=True):
    """Header of a send's answer; absent fields (errors) read as None. Upstream `SendMessageResponseHeader`."""

    fixed_order = True

    msg_id: str | None = None
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    transaction_id: str | None = None


class ReplyMessageRequest(Header, kw_only=True):
    """Header of PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client; upstream `ReplyMessageRequestHeader`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


def encode_send_answer(
    request: Command,
    msg_id: str,
    queue_id: int,
    queue_offset: int,
    *,
    code: int = 0,
    region: str = "DefaultRegion",
    trace_on: bool = True,
) -> bytes:
    """The whole frame that answers a stored message (codes 0, 10, 11, 12), in the request's serialization.

    The same bytes as `request.answer(code, header=SendMessageResponse(...), fields={"MSG_REGION": region,
    "TRACE_ON": "true"}).encode()`, several times faster.
    """
    raise LookupError


def encode_send_request_v2(
    opaque: int,
    *,
    producer_group: str,
    topic: str,
    queue_id: int,
    sys_flag: int,
    born_timestamp: int,
    flag: int,
    properties: str,
    body: bytes,
    broker_name: str | None = None,
    batch: bool = False,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
    default_topic: str = "TBW102",
    default_topic_queue_nums: int = 4,
    code: int = 310,
    oneway: bool = False,
    unit_mode: bool = False,
) -> bytes:
    """The whole frame of a V2 send with a JSON header; the same bytes as Command.encode, faster.

    For ACL-signed or binary requests build a Command instead.
    """
    raise LookupError


def decode_send_answer(answer: Command) -> SendMessageResponse:
    """`answer.header(SendMessageResponse)` for a successful send."""
    return answer.header(SendMessageResponse)
