"""The open transactions of one broker: the state of their half messages, and ending a transaction.

The data on disk is as in RocketMQ: half messages and op messages in their queues, the progress of the check as consumer
offsets. The state in memory is read from there when the broker becomes a master. It answers to
`TransactionalMessageServiceImpl` and `TransactionalMessageBridge`; rules: docs/protocol/store.md §20.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import trio

from triomq_protocol.errors import BodyError
from triomq_protocol.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, UNIQ_KEY
from triomq_protocol.record.view import RecordView
from triomq_server.broker.broker import Broker
from triomq_server.broker.transactions.decisions import is_later_copy
from triomq_server.broker.transactions.ended_halves import EndedHalves
from triomq_server.broker.transactions.half_records import HALF_QUEUE, op_half_offsets, op_record
from triomq_server.store import AppendStatus

_log = logging.getLogger(__name__)

OPS_AT_ONCE = 200
"""Op messages read before other tasks run."""
ENDS_LIKE_AN_OP = 10
"""So many ends in one op message, as RocketMQ 5 writes them, cost as much as an op message."""
HALVES_AT_ONCE = 100
HALVES_AT_ONCE_BYTES = 1 << 20
"""Half messages whose copies are looked for before other tasks run: their number, or their bytes, which may have to be
read from the disk."""
COPIES_AT_ONCE = 2000
"""Half messages whose newest copy is remembered before other tasks run."""
LOOKED_BACK = 10_000
"""Half messages and op messages before the progress that are read, too: an end may be repeated after a restart. And of two
transactions with the same key, one may be just before the progress, and its copy behind it seem to be that of the other."""
COPIES_REMEMBERED = 200_000
"""The most half messages whose newest copy is remembered; beyond it, the end of an older copy is followed by a check."""


class OpenTransactions:
    """The state of half messages while the broker is a master.

    Args:
        broker: the broker that stores them.

    Attributes:
        ended: the half messages that have ended.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._copies: OrderedDict[int, int] = OrderedDict()
        self.ended = EndedHalves(self.position(), self._noted(OP_HALF_TOPIC))
        if not broker.is_slave:
            self.reset()

    # -- progress

    def position(self) -> int:
        """The queue offset of the half message at which the next round of the check begins."""
        return self._noted(HALF_TOPIC)

    def _noted(self, topic: str) -> int:
        """The offset that the check has noted, corrected if the queue begins later or ends earlier."""
        low, high = self._store.queue_bounds(topic, HALF_QUEUE)
        return min(max(self._broker.offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE), low), high)

    def _look_back(self, topic: str) -> int:
        """Where to begin to read: some messages before the noted offset are of use, too."""
        return max(self._noted(topic) - LOOKED_BACK, self._store.queue_bounds(topic, HALF_QUEUE)[0])

    def reset(self) -> None:
        """Discard the state, and begin at the noted progress: the broker has become a master.

        Progress beyond the end of its queue, whose last messages were lost, is corrected at once: messages stored there
        from now on have not been checked. This is not a reset: brokers that still have those messages would check all of
        them again, and deliver again what was committed.
        """
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):
            end = self._store.queue_bounds(topic, HALF_QUEUE)[1]
            if self._broker.offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE) > end:
                self._broker.offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE, end, always=True, as_reset=False)
        self._copies.clear()
        self.ended = EndedHalves(self._look_back(HALF_TOPIC), self._look_back(OP_HALF_TOPIC))

    async def load(self) -> None:
        """Read which half messages have ended, from a little before the noted progress on, and which were stored again."""
        while self._read_ops(OPS_AT_ONCE):
            await trio.lowlevel.checkpoint()
        if not self._broker.compat_49:
            await self._find_copies()

    async def _find_copies(self) -> None:
        """A broker that takes a master's place may have old progress: then several copies of a half message follow it.
        Only the newest is to be checked, or each would be committed.

        A transaction whose half message counted as an older copy of another one's would be lost. So all half messages of a
        key are checked unless each can only be a copy of the one before.
        """
        newest: OrderedDict[tuple[str, int, bytes, int], int] = OrderedDict()
        """Offsets by key; -1 if the half messages of the key may be of several transactions."""
        older: dict[int, list[int]] = {}
        """By the offset of the newest copy."""
        read_bytes = 0
        for offset in range(self._look_back(HALF_TOPIC), self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[1]):
            if not (offset + 1) % HALVES_AT_ONCE or read_bytes >= HALVES_AT_ONCE_BYTES:
                read_bytes = 0
                await trio.lowlevel.checkpoint()
            half = self.record(HALF_TOPIC, offset)
            if half is None or (unique_key := half.properties.get(UNIQ_KEY)) is None:
                continue
            read_bytes += half.size_bytes
            key = (unique_key, half.born_timestamp, half.born_host_bytes, half.body_crc)
            known = newest.get(key)
            if known is None:
                if len(newest) >= COPIES_REMEMBERED:
                    newest.popitem(last=False)
                newest[key] = offset
                continue
            replaced = older.pop(known, [])
            before = self.record(HALF_TOPIC, known) if known >= 0 else None
            if before is not None and is_later_copy(half.properties, before.properties, known):
                replaced.append(known)
                newest[key], older[offset] = offset, replaced
            else:
                newest[key] = -1
        found = ((offset, copy) for copy, offsets in older.items() for offset in offsets)
        for number, (offset, copy) in enumerate(found):
            if not (number + 1) % COPIES_AT_ONCE:
                await trio.lowlevel.checkpoint()
            self.copied(offset, copy)

    def _read_ops(self, most: int) -> bool:
        """Read op messages that are not known yet; returns whether there may be more."""
        ended, end = self.ended, self._store.queue_bounds(OP_HALF_TOPIC, HALF_QUEUE)[1]
        halves_end = self._store.queue_bounds(HALF_TOPIC, HALF_QUEUE)[1]
        read = 0
        while ended.next_op < end and read < most:
            op = self.record(OP_HALF_TOPIC, ended.next_op)
            half_offsets = [] if op is None else [offset for offset in op_half_offsets(op) if offset < halves_end]
            ended.read_op(half_offsets)
            read += 1 + len(half_offsets) // ENDS_LIKE_AN_OP
        return ended.next_op < end

    def save_position(self, half_offset: int) -> None:
        """Note how far the check has come; the op messages of the half messages before it are passed as well."""
        # Never back: op messages from before the noted offset are read as well.
        op_offset = max(self.ended.pass_to(half_offset), self._noted(OP_HALF_TOPIC))
        for topic, offset in ((HALF_TOPIC, half_offset), (OP_HALF_TOPIC, op_offset)):
            if self._noted(topic) != offset:
                self._broker.offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE, offset, always=True)

    def record(self, topic: str, offset: int) -> RecordView | None:
        """The record at an offset of queue 0 of one of the broker's own topics; None if it cannot be read."""
        entry = self._store.queue_entry(topic, HALF_QUEUE, offset)
        data = None if entry is None else self._store.record_at(entry[0], entry[1])
        try:
            return None if data is None else RecordView(data)
        except BodyError as error:
            _log.error("the record at offset %d of %s cannot be read: %s", offset, topic, error)
            return None

    # -- ends

    def has_ended(self, half_offset: int) -> bool:
        """Whether the transaction of a half message, or of its newest copy, is known to have ended."""
        return half_offset in self.ended or self.newest(half_offset) in self.ended

    def is_replaced(self, half_offset: int) -> bool:
        """Whether a half message has been stored again, and its copy is checked in its place."""
        return half_offset in self._copies

    def newest(self, half_offset: int) -> int:
        """The newest remembered copy of a half message; the message itself if there is none."""
        while (following := self._copies.get(half_offset)) is not None:
            half_offset = following
        return half_offset

    def copied(self, half_offset: int, copy_offset: int) -> None:
        """The check has stored a half message again: from now on the copy replaces it."""
        self._copies[half_offset] = copy_offset
        if len(self._copies) > COPIES_REMEMBERED:
            self._copies.popitem(last=False)

    def end(self, half_offset: int) -> AppendStatus:
        """Write the op message of a half message; if the check has stored it again, of its newest copy as well.

        The newest copy comes first: it is the one that the check will reach.
        """
        newest = self.newest(half_offset)
        status = self._write_op(newest)
        if newest != half_offset and status is AppendStatus.PUT_OK:
            self._write_op(half_offset)
        return status

    def _write_op(self, half_offset: int) -> AppendStatus:
        broker = self._broker
        result = self._store.append(op_record(half_offset, broker.clock(), broker.store_host))
        if result.status is AppendStatus.PUT_OK:
            self.ended.mark(half_offset)
            if result.queue_offset == self.ended.next_op:
                self.ended.read_op([half_offset])
        return result.status
