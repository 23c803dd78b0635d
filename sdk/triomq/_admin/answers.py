"""Checks the codes and bodies of brokers' and name servers' answers to administrative requests."""

from __future__ import annotations

from typing import Final, TypeVar

import trio

from triomq.errors import AnswerTooLong, ProtocolViolation, error_for_code
from triomq_protocol.codes import ResponseCode
from triomq_protocol.errors import BodyError, BodyTooLongError, HeaderError
from triomq_protocol.wire.body import Body
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.header import Header

B = TypeVar("B", bound=Body)
H = TypeVar("H", bound=Header)

SHORT_BODY_BYTES: Final = 128 << 10
"""A longer body is read in a worker thread. Java's dialect takes a quarter of a second per MiB, which would block the
loop."""


def checked(answer: Command, what: str, address: str) -> Command:
    """Return an answer if it is a success.

    Args:
        answer: the answer.
        what: the name of what was asked for.
        address: the server that answered.

    Raises:
        MQError: it is not a success; the error is of the kind that its code names.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise error_for_code(answer.code, answer.remark, what=what, address=address)
    return answer


def header_of(kind: type[H], answer: Command, what: str, address: str) -> H:
    """The header of an answer.

    Raises:
        ProtocolViolation: its fields are not those of this kind.
    """
    try:
        return answer.header(kind)
    except HeaderError as error:
        raise ProtocolViolation(what, address=address, remark=str(error)) from error


async def body_of(kind: type[B], answer: Command, address: str, what: str = "the broker's answer") -> B:
    """The body of an answer. Other tasks continue while a long one is read; a cancel then waits for the reader's end.

    Args:
        kind: the body's class.
        answer: the answer.
        address: the server that answered.
        what: the name of the body in errors.

    Raises:
        AnswerTooLong: it is longer than the limit for its form.
        ProtocolViolation: it is not a body of this kind.
    """
    body = answer.body
    try:
        if len(body) <= SHORT_BODY_BYTES:
            await trio.lowlevel.checkpoint()
            return kind.decode(body)
        return await trio.to_thread.run_sync(kind.decode, body)
    except BodyTooLongError as error:
        sizes = f"{error.size_bytes:,} bytes, at most {error.limit_bytes:,} are read of this form"
        raise AnswerTooLong(what, address=address, remark=f"the answer has {sizes}") from error
    except BodyError as error:
        raise ProtocolViolation(what, address=address, remark=str(error)) from error
