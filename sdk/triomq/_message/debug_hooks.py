"""DEBUG log lines for each message: its send, its result, each call of a handler.

They are hooks of producers and consumers that are made while their logger is set to DEBUG, so that others have no cost.
"""

from __future__ import annotations

import logging

from triomq._message.hooks import ConsumeContext, SendContext
from triomq._message.log_fields import message_fields, queue_fields
from triomq._message.send_result import SendResult
from triomq.errors import MQError

producer_log = logging.getLogger("triomq.producer")
consumer_log = logging.getLogger("triomq.consumer")


class LoggedSends:
    """Logs each message that is about to be sent, and the end of its send."""

    def before_send(self, context: SendContext, /) -> None:
        """Log its id, its topic and its group."""
        producer_log.debug("message %s is being sent", context.message_id, extra=_fields(context))

    def after_send(self, context: SendContext, outcome: SendResult | MQError | None, /) -> None:
        """Log where it is stored, or why it is not."""
        fields = _fields(context)
        if isinstance(outcome, SendResult):
            fields |= queue_fields(outcome.queue) | {"offset": outcome.queue_offset}
            text = "message %s is stored in %s: %s"
            producer_log.debug(text, context.message_id, outcome.queue, outcome.status.name, extra=fields)
        elif outcome is None:
            producer_log.debug("message %s is written, and nobody waits", context.message_id, extra=fields)
        else:
            producer_log.debug("message %s is not sent: %s", context.message_id, outcome.reason, extra=fields)


class LoggedCalls:
    """Logs messages that are given to a handler, and the outcome."""

    def before_consume(self, context: ConsumeContext, /) -> None:
        """Log each message."""
        for message in context.messages:
            fields = message_fields(message, context.group)
            text = "%r is given out, after %d deliveries"
            consumer_log.debug(text, message, message.reconsume_times, extra=fields)

    def after_consume(self, context: ConsumeContext, error: Exception | None, /) -> None:
        """Log each message."""
        for message in context.messages:
            fields = message_fields(message, context.group)
            if error is None:
                consumer_log.debug("%r is consumed", message, extra=fields)
            else:
                consumer_log.debug("%r is not consumed: %r", message, error, extra=fields)


def _fields(context: SendContext) -> dict[str, object]:
    return {"topic": context.message.topic, "group": context.group, "message_id": context.message_id}
