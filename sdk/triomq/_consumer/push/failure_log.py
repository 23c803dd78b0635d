"""Logs exceptions of handlers: a handler that fails for every message must not fill the log with one traceback."""

from __future__ import annotations

import logging

import trio

from triomq._message.log_fields import message_fields
from triomq._message.received import ReceivedMessage
from triomq._message.repeated_failures import RepeatedFailures

log = logging.getLogger("triomq.consumer")


class FailureLog(RepeatedFailures):
    """Logs the failures of one consumer's handlers."""

    def __init__(self) -> None:
        super().__init__(log, trio.current_time)

    def write(self, what: str, message: ReceivedMessage, more: str, error: BaseException) -> None:
        """Log a failure.

        Args:
            what: the text before the message.
            message: the message.
            more: the text after it.
            error: the exception.
        """
        self.note(error, "%s %r%s", what, message, more, fields=message_fields(message))
