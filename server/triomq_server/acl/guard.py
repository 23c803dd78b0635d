"""The access check before every handler of a listener. A broker without access control has no guard, and no extra cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from triomq_protocol.acl import REFUSAL
from triomq_protocol.codes import ResponseCode
from triomq_protocol.wire.command import Command
from triomq_server.acl.addresses import host_of
from triomq_server.repeats import PeerLog
from triomq_server.wire import Answer, Handlers, Link, Slices
from triomq_server.wire.handlers import PlainHandler, SlicedHandler, WaitingHandler

_log = logging.getLogger(__name__)

Check = Callable[[str, Command], str | None]
"""The reason why a host's request is refused; None if it is allowed."""


def guarded(handlers: Handlers, check: Check) -> Handlers:
    """The same handlers, each behind the check, that for unknown codes too; of the bursts those that check by themselves."""
    guard = _Guard(check)
    return Handlers(
        plain={code: guard.plain(handler) for code, handler in handlers.plain.items()},
        waiting={code: guard.waiting(handler) for code, handler in handlers.waiting.items()},
        sliced={code: guard.sliced(handler) for code, handler in handlers.sliced.items()},
        default=guard.plain(handlers.default),
        bursts=[burst for burst in handlers.bursts if burst.checks_access],
    )


class _Guard:
    """Answers refused requests, and passes on all others."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._peer_log = PeerLog(_log)

    def plain(self, handler: PlainHandler) -> PlainHandler:
        def checked(link: Link, command: Command) -> Answer | Slices:
            refused = self._refusal(link, command)
            return handler(link, command) if refused is None else refused

        return checked

    def waiting(self, handler: WaitingHandler) -> WaitingHandler:
        async def checked(link: Link, command: Command) -> Answer:
            refused = self._refusal(link, command)
            return await handler(link, command) if refused is None else refused

        return checked

    def sliced(self, handler: SlicedHandler) -> SlicedHandler:
        def checked(link: Link, command: Command) -> Generator[None, None, Answer]:
            refused = self._refusal(link, command)
            return (yield from handler(link, command)) if refused is None else refused

        return checked

    def _refusal(self, link: Link, command: Command) -> Command | None:
        why = self._check(host_of(link.peer), command)
        if why is None:
            return None
        message = "request code %d of %s is refused: %s"
        self._peer_log.write(logging.WARNING, link.peer, message, command.code, link.peer, why)
        return command.answer(ResponseCode.SYSTEM_ERROR, f"{REFUSAL}: {why}", serialize=0)
