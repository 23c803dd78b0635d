"""Sending messages: codes 10, 310, 320 and their answer; replies 324, 325 and the push 326
(docs/protocol/broker-api.md §4)."""

from functools import lru_cache
from typing import Final

from triomq_protocol.codes import VERSION, LanguageCode, SerializeType
from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.flags import RESPONSE
from triomq_protocol.names import DEFAULT_TOPIC
from triomq_protocol.wire.binary_header import encode_area, encode_binary_header
from triomq_protocol.wire.command import JSON_END, Command
from triomq_protocol.wire.fastjson import quote
from triomq_protocol.wire.header import Header, Int32, Int64
from triomq_protocol.wire.lengths import MAX_HEADER_BYTES, MAX_LENGTH, does_not_fit, frame_lengths, pack_lengths

_SERIALIZE_AT, _HEADER_AT = 4, 8
_JSON_SUCCESS = b'{"code":0'


class SendMessageRequest(Header, kw_only=True):
    """Header of SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324), long names; upstream `SendMessageRequestHeader`.

    `topic` absent reads as blank, which the broker refuses with its own remark.
    """

    producer_group: str
    topic: str = ""
    properties: str | None = None  # before default_topic: they share a bucket of Java's map
    default_topic: str = ""
    default_topic_queue_nums: Int32 | None = None
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
    default_topic_queue_nums: Int32 | None = None
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
    "TRACE_ON": "true"}).encode()`, several times faster. `msg_id` must be plain ASCII (offset ids are).
    """
    answer = send_answers(region, trace_on).encode(request, msg_id, queue_id, queue_offset)
    return with_code(answer, code) if code else answer


class SendAnswers:
    """Writes the answers of one broker to sends; see `encode_send_answer`.

    Args:
        region: the broker's region id. Raises LocalProtocolError if it is not ASCII.
        trace_on: its message trace switch.
    """

    def __init__(self, region: str, trace_on: bool) -> None:
        self._json_part, self._binary_part = _answer_tail(region, trace_on)
        self.json_middle: bytes = f'"{self._json_part},"msgId":"'.encode()
        """Between the queue id and the message id of a JSON answer."""
        self.json_end: bytes = JSON_END.encode()
        """Behind the opaque of a JSON answer."""

    def encode(self, request: Command, msg_id: str, queue_id: int, queue_offset: int) -> bytes:
        """The whole frame, with code 0; `with_code` gives it another one."""
        if request.serialize:
            numbers = str(queue_id), str(queue_offset)
            return _binary_send_answer(request.opaque, msg_id, *numbers, self._binary_part)
        header = (
            f'{{"code":0,"extFields":{{"queueId":"{queue_id}"{self._json_part},"msgId":"{msg_id}",'
            f'"queueOffset":"{queue_offset}"}},"flag":1,"language":"JAVA","opaque":{request.opaque}{JSON_END}'
        )
        size = len(header)
        if size > MAX_HEADER_BYTES:
            raise does_not_fit(size, 0)
        return pack_lengths(4 + size, size) + header.encode()


def with_code(answer: bytes, code: int) -> bytes:
    """A frame of `SendAnswers.encode` with another code; `answer` has code 0."""
    if answer[_SERIALIZE_AT]:
        return answer[:_HEADER_AT] + code.to_bytes(2, "big") + answer[_HEADER_AT + 2 :]
    header = b'{"code":%d%b' % (code, answer[_HEADER_AT + len(_JSON_SUCCESS) :])
    return pack_lengths(4 + len(header), len(header)) + header


send_answers: Final = lru_cache(16)(SendAnswers)
"""The same object for the same settings."""


def _answer_tail(region: str, trace_on: bool) -> tuple[str, bytes]:
    trace = "true" if trace_on else "false"
    if not region.isascii():  # the frame's length is counted in characters
        raise LocalProtocolError(f"region id {region!r} is not ASCII")
    return f',"TRACE_ON":"{trace}","MSG_REGION":{quote(region)}', encode_area(
        [("TRACE_ON", trace), ("MSG_REGION", region)]
    )


def _binary_send_answer(opaque: int, msg_id: str, queue_id: str, queue_offset: str, tail: bytes) -> bytes:
    fields = encode_area([("msgId", msg_id), ("queueId", queue_id), ("queueOffset", queue_offset)]) + tail
    header = encode_binary_header(0, LanguageCode.JAVA, VERSION, opaque, RESPONSE, None, fields)
    return frame_lengths(len(header), 0, SerializeType.ROCKETMQ) + header


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
    default_topic: str = DEFAULT_TOPIC,
    default_topic_queue_nums: int = 4,
    code: int = 310,
    oneway: bool = False,
    unit_mode: bool = False,
) -> bytes:
    """The whole frame of a V2 send with a JSON header; the same bytes as Command.encode, faster.

    For ACL-signed or binary requests build a Command instead.
    """
    before, after = _request_parts(
        code, producer_group, topic, default_topic, default_topic_queue_nums, broker_name, batch, oneway
    )
    limit = "" if max_reconsume_times is None else f',"l":"{max_reconsume_times}"'
    header = (
        f'{before}{queue_id}","f":"{sys_flag}","g":"{born_timestamp}","h":"{flag}","i":{quote(properties)}'
        f',"j":"{reconsume_times}","k":"{"true" if unit_mode else "false"}"{limit}{after}{opaque}'
        f"{JSON_END}"
    ).encode()
    size = len(header)
    length = 4 + size + len(body)
    if size > MAX_HEADER_BYTES or length > MAX_LENGTH:
        raise does_not_fit(size, len(body))
    return b"".join((pack_lengths(length, size), header, body))


@lru_cache(4096)
def _request_parts(
    code: int,
    producer_group: str,
    topic: str,
    default_topic: str,
    default_topic_queue_nums: int,
    broker_name: str | None,
    batch: bool,
    oneway: bool,
) -> tuple[str, str]:
    """What does not change from one message to the next: the text before the queue id and that before the opaque."""
    broker = "" if broker_name is None else f',"n":{quote(broker_name)}'
    before = (
        f'{{"code":{code},"extFields":{{"a":{quote(producer_group)},"b":{quote(topic)},"c":{quote(default_topic)}'
        f',"d":"{default_topic_queue_nums}","e":"'
    )
    return (
        before,
        f',"m":"{"true" if batch else "false"}"{broker}}},"flag":{2 if oneway else 0},"language":"PYTHON","opaque":',
    )
