"""Maps the status of a read to the answer's code and to the broker id to pull from next. Pure functions.

They answer to the status table of `PullMessageProcessor`; rules: docs/protocol/broker-api.md §5.3,
docs/protocol/ha.md §8.
"""

from __future__ import annotations

from typing import NamedTuple

from triomq_protocol.codes import ResponseCode
from triomq_protocol.names import MASTER_ID
from triomq_server.store import ReadStatus

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullOutcome(NamedTuple):
    """A pull's answer, apart from messages and offsets.

    Attributes:
        code: the response code.
        broker_id: `suggestWhichBrokerId`.
        offset_moved: the reader's offset does not exist and this broker decides on that, so an event is stored.
    """

    code: int
    broker_id: int
    offset_moved: bool


def answer_code(status: ReadStatus, requested_offset: int) -> int:
    """The code that a master answers a read status with; an empty queue is normal for a reader that starts at 0."""
    code = _CODES.get(status)
    if code is not None:
        return code
    return ResponseCode.PULL_NOT_FOUND if requested_offset == 0 else ResponseCode.PULL_OFFSET_MOVED


def pull_outcome(
    status: ReadStatus,
    requested_offset: int,
    *,
    lags: bool,
    slave_read: bool,
    home_id: int,
    slow_id: int,
    final: bool,
) -> PullOutcome:
    """Decide how a pull is answered.

    Args:
        status: result of the read.
        requested_offset: the requested queue offset.
        lags: the reader is so far behind the log's end that its messages are probably no longer in memory.
        slave_read: whether this broker sends readers to other brokers of its set at all (`slaveReadEnable`).
        home_id: the group's ordinary broker (`brokerId`).
        slow_id: the group's broker for slow readers (`whichBrokerWhenConsumeSlowly`).
        final: this broker decides on offsets: a master, or a slave with `offsetCheckInSlave`. Any other slave may
            simply be behind, so it sends a reader with an impossible offset home.
    """
    code = answer_code(status, requested_offset)
    if code == ResponseCode.PULL_OFFSET_MOVED and not final:
        return PullOutcome(ResponseCode.PULL_RETRY_IMMEDIATELY, home_id, offset_moved=False)
    broker_id = MASTER_ID
    if slave_read:
        broker_id = slow_id if lags else home_id
    return PullOutcome(code, broker_id, offset_moved=code == ResponseCode.PULL_OFFSET_MOVED)
