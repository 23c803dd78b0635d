"""What brokers and name servers answer to administrative requests: their codes and bodies are checked here."""

from __future__ import annotations

from typing import TypeVar

from triomq.errors import ProtocolViolation, error_for_code
from triomq_protocol.codes import ResponseCode
from triomq_protocol.errors import BodyError
from triomq_protocol.wire.body import Body
from triomq_protocol.wire.command import Command

B = TypeVar("B", bound=Body)


def checked(answer: Command, what: str, address: str) -> Command:
    """An answer that is a success.

    Args:
        answer: it.
        what: what was asked for.
        address: who answered.

    Raises:
        MQError: it is none; of the kind that its code names.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise error_for_code(answer.code, answer.remark, what=what, address=address)
    return answer


def body_of(kind: type[B], answer: Command, address: str, what: str = "the broker's answer") -> B:
    """The body of an answer.

    Args:
        kind: the body's.
        answer: whose.
        address: who answered.
        what: what an error names.

    Raises:
        ProtocolViolation: it is no such body.
    """
    try:
        return kind.decode(answer.body)
    except BodyError as error:
        raise ProtocolViolation(what, address=address, remark=str(error)) from error
