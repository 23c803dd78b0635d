"""Compares a slave's log with its master's, before the slave takes a byte from the master.

It uses only requests that RocketMQ's own brokers answer: the log's bounds are in the answer to
GET_BROKER_RUNTIME_INFO, and VIEW_MESSAGE_BY_ID gives the record at an offset. A record holds its offset, its store
time and its queue offset, so two logs with the same last common record have the same history up to there.
"""

import enum
from typing import Protocol

import msgspec

from triomq_protocol.acl import REFUSAL
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.java_text import parse_integer
from triomq_protocol.record.check import claimed_size
from triomq_protocol.record.layout import BLANK_MAGIC, MARK
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.query import ViewMessageRequest
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command
from triomq_server.store import ReadResult, ReadStatus
from triomq_server.wire import Asking, error_text

TIMEOUT_S = 3.0
_STEPS_MAX = 200
"""Bound of the search for where two histories diverge; each step halves the distance or goes back by one record."""


class LogRelation(enum.StrEnum):
    """A slave's log in relation to its master's."""

    UNKNOWN = "UNKNOWN"
    """Not compared, or not comparable."""
    CLEAN = "CLEAN"
    """The same log."""
    BEHIND = "BEHIND"
    """The beginning of the master's log: the rest will follow."""
    AHEAD = "AHEAD"
    """The master's log and more: the master has lost what this slave still has. Not followed without an order."""
    DIVERGED = "DIVERGED"
    """Another history: both have what the other has not. Not followed without an order."""

    @property
    def may_follow(self) -> bool:
        """Whether following loses nothing."""
        return self not in (LogRelation.AHEAD, LogRelation.DIVERGED)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a comparison.

    Attributes:
        relation: the result.
        own_end: the end of the slave's log.
        master_begin, master_end: first byte the master keeps, first byte it does not have yet.
        common_end: both logs are known to be equal up to here, 0 if that is so for no record; None if nothing could be
            compared.
        torn_at: start of the slave's last record if its last bytes are missing (zeros) and the master has all of it.
    """

    relation: LogRelation
    own_end: int = 0
    master_begin: int = 0
    master_end: int = 0
    common_end: int | None = None
    torn_at: int | None = None


class NotComparableError(Exception):
    """The master answers, but its answers do not suffice for a comparison."""


class OwnLog(Protocol):
    """The slave's side."""

    @property
    def log_min_offset(self) -> int:
        """First byte there is."""

    @property
    def log_max_offset(self) -> int:
        """First byte not there yet."""

    def last_record_by(self, end: int) -> tuple[int, int] | None:
        """Log offset and size of the last whole record that ends at or before `end`."""

    def log_slice(self, offset: int, max_bytes: int) -> memoryview | None:
        """Log bytes."""


class QueueEntries(Protocol):
    """The consume queues of a slave."""

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max) queue offset; (0, 0) for an unknown queue."""

    def queue_entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """Log offset, size and tags code of one entry; None if there is none."""


class MasterLog(Protocol):
    """The master's side, asked over the network."""

    async def bounds(self) -> tuple[int, int]:
        """First byte kept, first byte not there yet."""

    async def record(self, offset: int) -> bytes | None:
        """The record that starts at this offset; None if none does."""


class RemoteLog:
    """A master's log, seen through the requests that every 4.9 broker answers."""

    def __init__(self, link: Asking) -> None:
        self._link = link

    async def bounds(self) -> tuple[int, int]:
        """The master's answer to code 28: `commitLogMinOffset` and `commitLogMaxOffset`.

        Raises:
            NotComparableError: this broker never reports them.
            ConnectionError: it does not report them now.
        """
        answer = await self._link.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT_S)
        if answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY):
            # A 4.9 master fails in its first second, before its statistics have a sample. If it is followed then and
            # its disk is empty, it counts this slave's first report as a replica of messages that it has not yet
            # stored.
            raise ConnectionError(f"its runtime info is refused for now, with code {answer.code}: {answer.remark}")
        if answer.code != ResponseCode.SUCCESS:
            raise NotComparableError(f"its runtime info is refused with code {answer.code}: {answer.remark}")
        try:
            table = KVTable.decode(answer.body).table
            return parse_integer(table["commitLogMinOffset"], 64), parse_integer(table["commitLogMaxOffset"], 64)
        except (ProtocolError, KeyError, ValueError) as error:
            raise NotComparableError(
                f"its runtime info does not say where its log begins and ends: {error_text(error)}"
            ) from error

    async def record(self, offset: int) -> bytes | None:
        """The master's answer to code 33: the record's bytes.

        Raises:
            ConnectionError: the master neither returns a record nor reports that there is none.
        """
        command = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset))
        answer = await self._link.request(command, TIMEOUT_S)
        refused = (answer.remark or "").startswith(REFUSAL)
        if refused or answer.code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR):
            # Only SYSTEM_ERROR means that there is no such record. If a busy master's refusals meant that too, its log
            # would seem to differ from the first record on, and a cut would drop everything here.
            raise ConnectionError(
                f"the record at {offset} is refused for now, with code {answer.code}: {answer.remark}"
            )
        body = bytes(answer.body)
        return body if answer.code == ResponseCode.SUCCESS and is_record(body, offset) else None


def is_record(data: bytes, offset: int) -> bool:
    """Whether these bytes are one record that belongs at this log offset."""
    return claimed_size(data, offset) == len(data) > 0


async def compare(own: OwnLog, master: MasterLog) -> Comparison:
    """Compare a slave's log with its master's.

    Raises:
        NotComparableError: the master's answers do not suffice.
        OSError, LinkError: as raised by the link.
    """
    begin, end = await master.bounds()
    own_end = own.log_max_offset

    def found(relation: LogRelation, common_end: int | None = None) -> Comparison:
        return Comparison(relation=relation, own_end=own_end, master_begin=begin, master_end=end, common_end=common_end)

    by_length = LogRelation.CLEAN if own_end == end else LogRelation.BEHIND if own_end < end else LogRelation.AHEAD
    if own_end == own.log_min_offset:
        return found(
            by_length
        )  # empty, but not always at 0: this end must not be reported to a master that ends before it
    tail = own.last_record_by(min(own_end, end))
    first = max(begin, own.log_min_offset)
    if tail is None or tail[0] < begin:
        # No whole record in common: only a piece of the first one of both can be compared, else the lengths decide.
        if first < own_end <= end and not await _same_fragment(own, master, first):
            return found(LogRelation.DIVERGED, 0)
        return found(by_length)
    tail_end = sum(tail)
    have, whole = bytes(own.log_slice(*tail) or b""), await master.record(tail[0])
    if have != whole:
        common_end = await _common_end(own, master, first, tail[0])
        before = own.last_record_by(tail[0])
        is_last = tail_end == own_end and (before is None or sum(before) <= common_end)
        if is_last and _is_torn(have, whole):
            return msgspec.structs.replace(found(LogRelation.DIVERGED, common_end), torn_at=tail[0])
        if common_end == first:
            # What has expired here or there may differ, too, and its queue offsets would not fit the rest.
            common_end = 0
        return found(LogRelation.DIVERGED, common_end)
    if own_end <= end and not await _same_fragment(own, master, tail_end):
        return found(LogRelation.DIVERGED, tail_end)
    return found(by_length, tail_end)


async def _same_record(own: OwnLog, master: MasterLog, offset: int, size: int) -> bool:
    return own.log_slice(offset, size) == await master.record(offset)


def _is_torn(have: bytes, whole: bytes | None) -> bool:
    """Whether a record is the master's with zeros for its last bytes: the copying process was killed in its properties,
    which the checksum does not cover."""
    return whole is not None and len(whole) == len(have) and whole.startswith(have.rstrip(b"\0"))


async def _same_fragment(own: OwnLog, master: MasterLog, begin: int) -> bool:
    """Whether the bytes behind the slave's last whole record are the beginning of the master's next one, or of a filler
    that the master has there, too."""
    fragment = own.log_slice(begin, own.log_max_offset - begin)
    if not fragment:
        return True
    record = await master.record(begin)
    if record is None:
        if len(fragment) < MARK.size:
            return True
        size, magic = MARK.unpack_from(fragment)
        # The filler ends with its file; there may be a piece of the next file's first record behind it.
        return magic == BLANK_MAGIC and await _same_fragment(own, master, begin + max(size, len(fragment)))
    return fragment == record[: len(fragment)]


async def _common_end(own: OwnLog, master: MasterLog, begin: int, differs_at: int) -> int:
    """The end of the last record that both have, between `begin` and a record that differs."""
    common = begin
    for _ in range(_STEPS_MAX):
        # The middle first; where no record ends between, the last one before the difference.
        record = own.last_record_by((common + differs_at) // 2)
        if record is None or sum(record) <= common:
            record = own.last_record_by(differs_at)
        if record is None or sum(record) <= common:
            break
        if await _same_record(own, master, *record):
            common = sum(record)
        else:
            differs_at = record[0]
    return common


def cut_offset(own: OwnLog, compared: Comparison) -> int:
    """Where a cut lets a slave follow its master again: at the start of a record, at the log's end, or at 0, for all."""
    if compared.common_end is not None:
        return compared.common_end
    # The master's log may end within a record of this one, which is another one's.
    last = own.last_record_by(compared.master_end)
    if last is None or last[0] < compared.master_begin:
        return 0  # no record of both histories, as where all differ
    return sum(last)


def first_own_offset(queues: QueueEntries, compared: Comparison, topic: str, queue_id: int) -> int | None:
    """The queue offset from which a slave that is ahead of its master, or has diverged, has messages of its own.

    At those offsets the master has other messages, or will have: a reader must not see both. None for any other slave.
    """
    if compared.relation.may_follow or compared.common_end is None:
        return None
    return offset_after(queues, compared.common_end, topic, queue_id)


def offset_after(queues: QueueEntries, log_offset: int, topic: str, queue_id: int) -> int:
    """The queue offset of the first message that does not end by a log offset."""
    low, high = queues.queue_bounds(topic, queue_id)
    while low < high:
        middle = (low + high) // 2
        entry = queues.queue_entry(topic, queue_id, middle)
        if entry is None or entry[0] + entry[1] <= log_offset:
            low = middle + 1
        else:
            high = middle
    return low


def drop_own_messages(read: ReadResult, first_own: int) -> None:
    """Drop the messages that a pull found at or after queue offset `first_own`."""
    records = [record for data in read.slices for record in iter_records(data) if record.queue_offset < first_own]
    read.slices = [memoryview(record.data) for record in records]
    read.message_count = len(records)
    read.bytes_total = sum(record.size_bytes for record in records)
    read.next_offset = first_own
    if not records:
        read.status = ReadStatus.NO_MATCHED_MESSAGE
