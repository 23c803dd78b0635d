"""Handles answers that start after the requested offset, because the broker has deleted earlier messages. Pure.

Brokers delete a file of their log first, and the entries of its messages in the queues up to seconds later. In between,
a queue seems to contain messages that no longer exist.
"""

from __future__ import annotations

from typing import Final

from triomq import PullResult, PullStatus
from triomq_protocol.record.layout import FIXED_BYTES, INT64, QUEUE_OFFSET_AT

_offset_of: Final = INT64.unpack_from


def first_offset(result: PullResult) -> int:
    """The queue offset of the first message of an answer; without a message, the offset to continue at."""
    body = result.body
    return int(_offset_of(body, QUEUE_OFFSET_AT)[0]) if len(body) > FIXED_BYTES else result.next_offset


def resumes_after_hole(result: PullResult, at: int) -> int | None:
    """The offset at which an answer without filter starts, if that is after the requested one; else None."""
    if result.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE):
        return None
    first = first_offset(result)
    return first if first > at else None


def goes_on_at(result: PullResult, at: int) -> int | None:
    """The next offset that a broker has, by its answer without filter, if it no longer has those at `at`; else None."""
    return result.min_offset if result.min_offset > at else resumes_after_hole(result, at)
