"""Prepared frames over one link, in pure Python and without Java: enough to keep one broker core busy.

Used for figures per core of the broker (messages divided by its CPU seconds, so the speed of this client does not
matter). Only the length and the code of an answer are read.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from struct import Struct

import attrs

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.requests.pull import decode_pull_answer, encode_pull_request
from triomq_protocol.requests.send import encode_send_request_v2
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

LINK_LIMIT_S = 30.0
RECEIVE_BYTES = 1 << 20
PULL_MAX_NUMS = 32
QUEUES = 4
"""Queues of a topic that is made by sending to it."""
SUBSCRIBED_INLINE = 4  # pull sysFlag: the expression is in the request, no heartbeat is needed
_length_at = Struct(">I").unpack_from
_SUCCESS = b'"code":0,'


@attrs.frozen
class Moved:
    """The traffic of a link.

    messages: number of messages sent and stored, or pulled.
        requests: number of frames sent.
        requests: frames sent.
        seconds: from the first request to the last answer.
    """

    messages: int
    requests: int
    seconds: float


class AnswerError(Exception):
    """The broker's answer was not success."""


def _properties(number: int) -> str:
    return f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01bench"


def send_frames(topic: str, body_bytes: int, count: int, *, queues: int = QUEUES, batch: int = 1) -> list[bytes]:
    """`count` whole send frames as the Java client would write them, spread over the queues."""
    body = bytes(ord("a") + at % 26 for at in range(body_bytes))
    frames = []
    for opaque in range(count):
        properties, content = _properties(opaque), body
        if batch > 1:
            elements = [encode_batch_element(body, _properties(opaque * batch + at).encode()) for at in range(batch)]
            properties, content = "WAIT\x01true", b"".join(elements)
        frames.append(
            encode_send_request_v2(
                opaque,
                producer_group="bench_producer",
                topic=topic,
                queue_id=opaque % queues,
                sys_flag=0,
                born_timestamp=1_700_000_000_000,
                flag=0,
                properties=properties,
                body=content,
                broker_name="broker-a",
                batch=batch > 1,
                code=RequestCode.SEND_BATCH_MESSAGE if batch > 1 else RequestCode.SEND_MESSAGE_V2,
            )
        )
    return frames


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)), LINK_LIMIT_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def send_all(address: str, frames: list[bytes], in_flight: int, batch: int = 1) -> Moved:
    """Send `frames` with at most `in_flight` unanswered, and count the answers.

    Raises:
        AnswerError: an answer was not a success.
        OSError: the link broke or nothing arrived for half a minute.
    """
    begin = time.perf_counter()
    with _connect(address) as link:
        asked = answered = 0
        rest = b""
        while answered < len(frames):
            free = min(len(frames) - asked, in_flight - (asked - answered))
            if free:
                link.sendall(b"".join(frames[asked : asked + free]))
                asked += free
            data = link.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError(f"{address} closed the link with {asked - answered} requests unanswered")
            whole, rest = _count_frames(rest + data)
            answered += whole
    return Moved(answered * batch, answered, time.perf_counter() - begin)


def _count_frames(data: bytes) -> tuple[int, bytes]:
    at = count = 0
    while len(data) - at >= 4:
        end = at + 4 + _length_at(data, at)[0]
        if end > len(data):
            break
        if data.find(_SUCCESS, at, end) < 0:
            raise AnswerError(f"not a success: {data[at + 8 : min(end, at + 400)]!r}")
        count += 1
        at = end
    return count, data[at:]


def pull_all(address: str, topic: str) -> Moved:
    """Pull every queue of `topic` from its beginning, one request in flight per queue, all on one link."""
    begin = time.perf_counter()
    messages = requests = 0
    offsets = dict.fromkeys(range(QUEUES), 0)
    decoder = FrameDecoder()
    with _connect(address) as link:
        link.sendall(b"".join(_pull(topic, queue_id, 0) for queue_id in offsets))
        while offsets:
            data = link.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError(f"{address} closed the link")
            again = []
            for answer in decoder.feed(data):
                requests += 1
                messages += _take(answer, offsets)
                if answer.opaque in offsets:
                    again.append(_pull(topic, answer.opaque, offsets[answer.opaque]))
            if again:
                link.sendall(b"".join(again))
    return Moved(messages, requests, time.perf_counter() - begin)


def _pull(topic: str, queue_id: int, queue_offset: int) -> bytes:
    return encode_pull_request(
        queue_id,
        consumer_group="bench_consumer",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=PULL_MAX_NUMS,
        sys_flag=SUBSCRIBED_INLINE,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
    )


def _take(answer: Command, offsets: dict[int, int]) -> int:
    """Move the answered queue's offset, or drop the queue at its end; return how many messages were received."""
    if answer.code == ResponseCode.PULL_NOT_FOUND:
        del offsets[answer.opaque]
        return 0
    if answer.code != ResponseCode.SUCCESS:
        raise AnswerError(f"pull answered with code {answer.code}: {answer.remark}")
    header = decode_pull_answer(answer)
    if header.next_begin_offset is None:
        raise AnswerError("a pull's answer without nextBeginOffset")
    offsets[answer.opaque] = header.next_begin_offset
    at = found = 0
    body = answer.body
    while at < len(body):
        at += _length_at(body, at)[0]
        found += 1
    return found


def per_second(work: Callable[[], int], seconds: float = 0.5) -> float:
    """Operations per CPU second of `work`, best of three; `work` returns how many operations a call did."""
    best = 0.0
    for _ in range(3):
        done = 0
        begin = time.process_time()
        while (taken := time.process_time() - begin) < seconds / 3:
            done += work()
        best = max(best, done / taken)
    return best
