"""Pulling messages: code 11 (docs/protocol/broker-api.md §5)."""

from functools import lru_cache

from triomq_protocol.codes import VERSION, LanguageCode, SerializeType
from triomq_protocol.flags import RESPONSE
from triomq_protocol.wire.binary_header import encode_area, encode_binary_header
from triomq_protocol.wire.command import JSON_END, Command
from triomq_protocol.wire.fastjson import quote
from triomq_protocol.wire.header import Header, Int32, Int64
from triomq_protocol.wire.lengths import MAX_HEADER_BYTES, MAX_LENGTH, does_not_fit, frame_lengths, pack_lengths


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
        body_bytes: how many bytes the caller will send after this head.
        serialize: answers after a suspension are JSON in Java whatever the request was (docs/protocol/remoting.md §3).
    """
    if request.serialize if serialize is None else serialize:
        return _binary_pull_answer_head(
            request.opaque, code, remark, suggest_which_broker_id, next_begin_offset, min_offset, max_offset, body_bytes
        )
    header = (
        f'{{"code":{code},"extFields":{{"suggestWhichBrokerId":"{suggest_which_broker_id}"'
        f',"nextBeginOffset":"{next_begin_offset}","maxOffset":"{max_offset}","minOffset":"{min_offset}"}}'
        f',"flag":1,"language":"JAVA","opaque":{request.opaque},"remark":{_quoted_remark(remark)}'
        f"{JSON_END}"
    ).encode()
    size = len(header)
    length = 4 + size + body_bytes
    if size > MAX_HEADER_BYTES or length > MAX_LENGTH:
        raise does_not_fit(size, body_bytes)
    return pack_lengths(length, size) + header


_quoted_remark = lru_cache(64)(quote)  # the remarks of pulls are a handful of status names


def _binary_pull_answer_head(
    opaque: int, code: int, remark: str, suggested: int, following: int, smallest: int, largest: int, body_bytes: int
) -> bytes:
    fields = encode_area([
        ("suggestWhichBrokerId", str(suggested)),
        ("nextBeginOffset", str(following)),
        ("minOffset", str(smallest)),
        ("maxOffset", str(largest)),
    ])  # fmt: skip
    header = encode_binary_header(code, LanguageCode.JAVA, VERSION, opaque, RESPONSE, remark, fields)
    return frame_lengths(len(header), body_bytes, SerializeType.ROCKETMQ) + header


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
    middle, end = _request_parts(consumer_group, topic, subscription, sub_version, expression_type, broker_name)
    header = (
        f'{{"code":11,"extFields":{{"queueId":"{queue_id}","maxMsgNums":"{max_msg_nums}","sysFlag":"{sys_flag}","suspendTimeoutMillis"'
        f':"{suspend_timeout_millis}","commitOffset":"{commit_offset}"{middle}{queue_offset}{end}{opaque}{JSON_END}'
    ).encode()
    size = len(header)
    if size > MAX_HEADER_BYTES:
        raise does_not_fit(size, 0)
    return pack_lengths(4 + size, size) + header


def decode_pull_answer(answer: Command) -> PullMessageResponse:
    """`answer.header(PullMessageResponse)`."""
    return answer.header(PullMessageResponse)


@lru_cache(4096)
def _request_parts(
    consumer_group: str,
    topic: str,
    subscription: str | None,
    sub_version: int,
    expression_type: str | None,
    broker_name: str | None,
) -> tuple[str, str]:
    """What does not change from one pull of a queue to the next: the texts around the queue offset."""
    broker = "" if broker_name is None else f',"bname":{quote(broker_name)}'
    kind = "" if expression_type is None else f',"expressionType":{quote(expression_type)}'
    wanted = "" if subscription is None else f',"subscription":{quote(subscription)}'
    end = (
        f'"{kind}{wanted},"subVersion":"{sub_version}","consumerGroup":{quote(consumer_group)}}}'
        ',"flag":0,"language":"PYTHON","opaque":'
    )
    return f'{broker},"topic":{quote(topic)},"queueOffset":"', end
