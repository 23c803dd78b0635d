"""What a consumer tells about itself: things its owner may want to know and need not act upon."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from triomq._message import MessageQueue

log = logging.getLogger("triomq.consumer")


@attrs.frozen
class ConsumerEvent:
    """Something that happened to a consumer; see ``on_event`` of ``client.push_consumer``.

    Args:
        kind: ``offset_illegal``, ``offset_refused``, ``expired``, ``lock_lost``, ``duplicate_client_id``, ``not_a_member``,
            ``send_back_failed``, ``reset``.
        text: one line that names cause and consequence.
        queue: which queue, if it is about one.
    """

    kind: str
    text: str
    queue: MessageQueue | None = None


OnEvent = Callable[[ConsumerEvent], object]
"""Hears events; plain and quick. What it raises is logged."""


def report_to(on_event: OnEvent | None) -> Callable[[ConsumerEvent], None]:
    """A function that logs an event and tells it to its hearer, whose failures change nothing."""

    def report(event: ConsumerEvent) -> None:
        log.warning("%s: %s", event.kind, event.text)
        if on_event is not None:
            try:
                on_event(event)
            except Exception:
                log.exception("the event handler %r failed", on_event)

    return report
