"""Queries the state of one server, independent of routes: one request on a separate link.

`ask` and the functions built on it run in trio's loop, `ask_blocking` and similar ones in any thread. The options of
the former are those of the cluster's clients: TLS, and the account that signs.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Final

import trio

import triomq
from triomq_benchmarks.clusters.processes import ChildError
from triomq_protocol.acl import sign
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

ANSWER_LIMIT_S = 20.0
LOG_END_ATTEMPTS, LOG_END_PAUSE_S = 400, 0.05
QUEUES = 4
"""The number of queues of a topic that its first message creates."""


class NoAnswerError(ChildError):
    """A server did not answer; the text names it and the cause."""


_PLAIN: Final[triomq.ClientOptions] = {}


async def ask(address: str, command: Command, options: triomq.ClientOptions = _PLAIN) -> Command:
    """Send one request and return its answer.

    Raises:
        NoAnswerError: no answer within 20 s.
    """
    account, dial = options.get("credentials"), options.get("dial", _dial_tcp)
    if account is not None:
        command.extra = sign(
            command.fields or {},
            command.body,
            access_key=account.access_key,
            secret_key=account.secret_key,
            security_token=account.security_token,
        )
    decoder = FrameDecoder()
    try:
        with trio.fail_after(ANSWER_LIMIT_S):
            async with await dial(address) as stream:
                await stream.send_all(command.encode())
                while data := await stream.receive_some():
                    for answer in decoder.feed(bytes(data)):
                        return answer
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise NoAnswerError(f"{address} does not answer: {error!r}") from error
    raise NoAnswerError(f"{address} closed the link without an answer")


async def _dial_tcp(address: str, /) -> trio.abc.Stream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def max_offset(address: str, topic: str, queue_id: int) -> int:
    """The end of a queue on one broker; 0 if the broker does not have the topic."""
    fields = {"topic": topic, "queueId": str(queue_id)}
    answer = await ask(address, Command.request(RequestCode.GET_MAX_OFFSET, fields=fields))
    return int((answer.fields or {})["offset"]) if answer.code == ResponseCode.SUCCESS else 0


async def knows_topic(address: str, topic: str, options: triomq.ClientOptions = _PLAIN) -> bool:
    """Whether a broker has the topic's configuration, which it needs to serve pulls of it.

    Raises:
        NoAnswerError: it does not answer, or refuses.
    """
    answer = await ask(address, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG), options)
    if answer.code != ResponseCode.SUCCESS:
        raise NoAnswerError(f"{address} does not show its topics: code {answer.code}, {answer.remark}")
    return f'"{topic}":'.encode() in answer.body


async def log_bytes(address: str) -> int:
    """The size of a broker's commit log in bytes."""
    answer = await ask(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    if answer.code != ResponseCode.SUCCESS:
        raise NoAnswerError(f"{address} does not report how long its log is: code {answer.code}, {answer.remark}")
    table = KVTable.decode(answer.body).table
    return int(table["commitLogMaxOffset"]) - int(table["commitLogMinOffset"])


def ask_blocking(address: str, code: int, fields: Mapping[str, str] | None = None) -> Command:
    """Send one request and return its answer, blocking.

    Raises:
        OSError: nothing listens there, the link broke, or no answer came within `ANSWER_LIMIT_S`.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), ANSWER_LIMIT_S) as link:
        link.settimeout(ANSWER_LIMIT_S)
        link.sendall(Command.request(code, fields=dict(fields or {}), opaque=1).encode())
        decoder = FrameDecoder()
        while True:
            data = link.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"{address} closed the link without an answer")
            for answer in decoder.feed(data):
                return answer


def log_end(address: str) -> int:
    """The physical offset of the end of a broker's log.

    A Java broker sometimes refuses while its statistics are empty: the request is repeated for 20 s.

    Raises:
        OSError: it does not answer, or its answer lacks the offset.
    """
    for _ in range(LOG_END_ATTEMPTS):
        answer = ask_blocking(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code == ResponseCode.SUCCESS:
            return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
        time.sleep(LOG_END_PAUSE_S)
    raise OSError(f"{address} does not report where its log ends: code {answer.code}, {answer.remark}")


def queue_ends(address: str, topic: str) -> list[int]:
    """The number of messages in each of the topic's queues on a broker.

    Raises:
        OSError: it does not answer, or its answer lacks the offsets.
    """
    ends = []
    for queue_id in range(QUEUES):
        answer = ask_blocking(address, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"{address} does not report where queue {queue_id} ends: code {answer.code}, {answer.remark}")
        ends.append(int((answer.fields or {})["offset"]))
    return ends
