"""Handlers: the functions that answer request codes.

A handler that need not wait is a plain function, called in the middle of a receive batch: command in, answer out. A
handler that has to wait is a coroutine function and costs a task. A handler that may take long is a generator function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
import trio

from triomq_protocol.codes import ResponseCode
from triomq_protocol.wire.command import Command

if TYPE_CHECKING:
    from triomq_server.wire.link import Link

T = TypeVar("T")

Answer = bytes | bytearray | memoryview | list[bytes | memoryview] | Command | None
"""A whole encoded frame, its pieces, a command still to be encoded, or None: answered later (``Link.send``) or never.

Only a plain handler may answer with pieces, and only while its link is not ``draining``: views among them are given to
the socket at the end of the batch, and must stay valid until then.
"""

Slices = Generator[None, None, Answer]
"""Work that yields whenever it has taken a few milliseconds, and returns the answer."""

PlainHandler = Callable[["Link", Command], Answer | Slices]
"""Answers at once; for a large request it returns the work to be done in slices."""
WaitingHandler = Callable[["Link", Command], Awaitable[Answer]]
SlicedHandler = Callable[["Link", Command], Generator[None, None, Answer]]
"""Yields after every few milliseconds of work. The data it reads may have changed when it continues."""
BurstHandler = Callable[["Link", bytes], int]
"""Takes whole frames from the front of the bytes, adds their answers to `Link.unsent`, and returns the number of bytes
taken. The rest begins with a frame."""


class Burst(msgspec.Struct, frozen=True):
    """Handles many plain requests at once.

    Attributes:
        take: handles requests at the front of a link's received bytes, as far as it can.
        codes: the request codes it handles.
        checks_access: a broker with access control may use it.
    """

    take: BurstHandler
    codes: frozenset[int]
    checks_access: bool = False


def not_supported(_link: Link, command: Command) -> Command:
    """The answer to a code without a handler; always in JSON, as RocketMQ does (docs/protocol/remoting.md §3)."""
    return command.answer(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported", serialize=0
    )


def ignored(_link: Link, _command: Command) -> None:
    """No answer at all to a code without a handler, as name servers do."""


class Handlers(msgspec.Struct):
    """The handlers of one server or link.

    An exception in a handler becomes an answer with code 1 and the cause as its remark; it never ends the link.

    Attributes:
        plain: code -> function that must not wait.
        waiting: code -> coroutine function, run in a separate task.
        sliced: code -> generator function, for work that may be long. Up to its first yield it is part of the batch;
            then other links have their turns between its slices, and its own link is not read from until it ends.
        default: for any other code.
        bursts: handle many requests at once; the handlers by code get the rest.
    """

    plain: dict[int, PlainHandler] = msgspec.field(default_factory=dict)
    waiting: dict[int, WaitingHandler] = msgspec.field(default_factory=dict)
    default: PlainHandler = not_supported
    sliced: dict[int, SlicedHandler] = msgspec.field(default_factory=dict)
    bursts: list[Burst] = msgspec.field(default_factory=list)

    def knows(self, code: int) -> bool:
        """Whether a code has its own handler."""
        return code in self.plain or code in self.waiting or code in self.sliced


async def in_turns(slices: Generator[None, None, T]) -> T:
    """What sliced work returns, for handlers that wait as well; others have their turns between its slices."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return cast("T", end.value)
        await trio.lowlevel.checkpoint()


def to_the_end(slices: Generator[None, None, T]) -> T:
    """What sliced work returns, for callers that need not share their time."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return cast("T", end.value)
