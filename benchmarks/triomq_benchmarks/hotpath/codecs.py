"""The pure part of the hot path, measured in this process: frames and records, both ways.

Each function does a few hundred operations on prepared material and returns their number;
`drivers.prepared_frames.per_second` repeats it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import attrs

from triomq_benchmarks.drivers.prepared_frames import send_frames
from triomq_protocol.codes import RequestCode
from triomq_protocol.hosts import pack_host
from triomq_protocol.record.encode import encode_topic, write_record
from triomq_protocol.record.layout import FIXED_BYTES, HEAD_V4, TOPIC_LENGTH_BYTES
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.requests.send import SendMessageRequestV2, encode_send_answer, encode_send_request_v2
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

FRAMES = 256
PULLED = 32
HOST = pack_host("127.0.0.1", 10911)
PROPERTIES = b"UNIQ_KEY\x01" + b"7F" * 16 + b"\x02WAIT\x01true\x02TAGS\x01bench"
MESSAGE_ID = "7F00000100002A9F0000000000000000"


@attrs.frozen
class Material:
    """Input data for one body size."""

    body: bytes
    sends: bytes
    send: Command
    pulls: bytes
    answers: bytes
    pulled: bytes
    log: mmap.mmap


def material(body_bytes: int) -> Material:
    """Prepare the input data."""
    sends = b"".join(send_frames("bench", body_bytes, FRAMES))
    send = FrameDecoder().feed(sends)[0]
    header = PullMessageRequest(
        consumer_group="bench_consumer",
        topic="bench",
        queue_id=1,
        queue_offset=7,
        max_msg_nums=PULLED,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    body = b"x" * body_bytes
    pulled = _record(body) * PULLED
    return Material(
        body=body,
        sends=sends,
        send=send,
        pulls=Command.request(RequestCode.PULL_MESSAGE, header).encode() * FRAMES,
        answers=encode_send_answer(send, MESSAGE_ID, 1, 12345) * FRAMES,
        pulled=pulled,
        log=mmap.mmap(-1, len(pulled) // PULLED * FRAMES),
    )


@attrs.define
class _Stored:
    """A message in the form that the broker passes to the encoder."""

    body: bytes | memoryview
    queue_id: int = 1
    properties: bytes = PROPERTIES
    flag: int = 0
    born_timestamp: int = 1_700_000_000_000
    born_host: bytes = HOST
    store_host: bytes = HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def _record(body: bytes) -> bytes:
    topic = encode_topic("bench")
    buffer = bytearray(FIXED_BYTES - TOPIC_LENGTH_BYTES + len(topic) + len(body) + len(PROPERTIES))
    write_record(buffer, 0, len(buffer), HEAD_V4, 0, topic, 0, 0, 1_700_000_000_000, _Stored(body))
    return bytes(buffer)


def _sends_parsed(on: Material) -> int:
    for command in FrameDecoder().feed(on.sends):
        command.header(SendMessageRequestV2)
    return FRAMES


def _pulls_parsed(on: Material) -> int:
    for command in FrameDecoder().feed(on.pulls):
        command.header(PullMessageRequest)
    return FRAMES


def _answers_encoded(on: Material) -> int:
    for offset in range(FRAMES):
        encode_send_answer(on.send, MESSAGE_ID, 1, offset)
    return FRAMES


def _answers_parsed(on: Material) -> int:
    return len(FrameDecoder().feed(on.answers))


def _sends_encoded(on: Material) -> int:
    properties = PROPERTIES.decode()
    for opaque in range(FRAMES):
        encode_send_request_v2(
            opaque,
            producer_group="bench_producer",
            topic="bench",
            queue_id=1,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            flag=0,
            properties=properties,
            body=on.body,
            broker_name="broker-a",
        )
    return FRAMES


def _records_encoded(on: Material) -> int:
    """Do the work of `CommitLog.append` for each record, in a file's map."""
    topic, fields = encode_topic("bench"), _Stored(on.body)
    size = len(on.pulled) // PULLED
    for offset in range(0, FRAMES * size, size):
        write_record(on.log, offset, offset + size, HEAD_V4, 0, topic, 7, offset, 1_700_000_000_000, fields)
    return FRAMES


def _records_read(on: Material) -> int:
    return sum(1 for view in iter_records(on.pulled) if view.body)


WORKS: dict[str, Callable[[Material], int]] = {
    "send requests parsed": _sends_parsed,
    "pull requests parsed": _pulls_parsed,
    "send answers encoded": _answers_encoded,
    "send answers parsed": _answers_parsed,
    "send requests encoded": _sends_encoded,
    "records encoded": _records_encoded,
    "pulled records read": _records_read,
}
