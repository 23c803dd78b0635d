"""Checks the codes, headers and bodies of servers' answers, whose errors name what was asked for and the server."""

from __future__ import annotations

from typing import TypeVar

from triomq.errors import ProtocolViolation, error_for_code
from triomq_protocol.codes import ResponseCode
from triomq_protocol.errors import BodyError, HeaderError
from triomq_protocol.wire.body import Body
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.header import Header

B = TypeVar("B", bound=Body)
H = TypeVar("H", bound=Header)


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


def short_body_of(kind: type[B], answer: Command, what: str, address: str) -> B:
    """The body of an answer that is read at once, since it is short.

    Raises:
        ProtocolViolation: it is not a body of this kind.
    """
    try:
        return kind.decode(answer.body)
    except BodyError as error:
        raise ProtocolViolation(what, address=address, remark=str(error)) from error
