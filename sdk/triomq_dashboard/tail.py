"""The live tail of a topic: new messages as server-sent events, pulled from the ends of its queues.

It changes nothing in the cluster: it joins no group and commits no offset. The browser's page receives values, never
HTML.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Final

import trio

from triomq import Client, MessageQueue, MQError, ReceivedMessage
from triomq_dashboard.looking import between
from triomq_dashboard.presentation import body_text, moment, text

LOOK_EVERY_S: Final = 1.0
TAIL_S: Final = 1800.0
"""How long one tail lasts, in seconds; the browser then starts a new one."""

QUEUES_MAX: Final = 64
"""The most queues that one tail follows."""

ROUND_MAX: Final = 100
"""The most messages per query; further ones are left out, and counted."""

BODY_MAX: Final = 500


def event(name: str, value: object) -> bytes:
    """Encode one server-sent event; its JSON contains no line ends."""
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


def row_of(message: ReceivedMessage) -> dict[str, object]:
    """A message for the page."""
    try:
        body = body_text(message.body, BODY_MAX).text
    except MQError as error:
        body = f"({error.reason})"
    return {
        "stored": moment(message.stored_ms),
        "broker": text(message.queue.broker_name),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "tags": text(message.tags or ""),
        "keys": text(" ".join(message.keys)),
        "body": body,
    }


async def tail(client: Client, topic: str) -> AsyncGenerator[bytes, None]:
    """The events of one tail: ``message``, ``skipped``, ``trouble``, and ``idle`` so that a lost browser is noticed."""
    ends: dict[MessageQueue, int] = {}
    deadline = trio.current_time() + TAIL_S
    while trio.current_time() < deadline:
        try:
            found, skipped = await _look(client, topic, ends)
        except MQError as error:
            yield event("trouble", text(error.reason))
        else:
            for message in found:
                yield event("message", row_of(message))
            yield event("skipped" if skipped else "idle", skipped)
        await trio.sleep(LOOK_EVERY_S)


async def _look(client: Client, topic: str, ends: dict[MessageQueue, int]) -> tuple[list[ReceivedMessage], int]:
    """The messages since the last query, and how many were left out; the first query only records the queues' ends."""
    stats = await client.admin.topic_stats(topic)
    found: list[ReceivedMessage] = []
    skipped = 0
    seen: dict[MessageQueue, int] = {}
    for queue, bounds in sorted(stats.offset_table.items())[:QUEUES_MAX]:
        before = ends.get(queue, bounds.max_offset)
        seen[queue] = bounds.max_offset
        coming = max(0, bounds.max_offset - before)
        wanted = min(coming, max(0, ROUND_MAX - len(found)))
        skipped += coming - wanted
        found += await between(client, queue, bounds.max_offset - wanted, bounds.max_offset)
    ends.update(seen)  # only now: if a queue cannot be read, the next query has the messages of all
    return sorted(found, key=lambda message: message.stored_ms), skipped
