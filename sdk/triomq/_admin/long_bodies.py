"""Reads the bodies of answers to administrative requests, which may be long."""

from __future__ import annotations

from typing import Final, TypeVar

import trio

from triomq.errors import AnswerTooLong, ProtocolViolation
from triomq_protocol.errors import BodyError, BodyTooLongError
from triomq_protocol.wire.body import Body
from triomq_protocol.wire.command import Command

B = TypeVar("B", bound=Body)

SHORT_BODY_BYTES: Final = 128 << 10
"""A longer body is read in a worker thread. Java's dialect takes a quarter of a second per MiB, which would block the
loop."""


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
