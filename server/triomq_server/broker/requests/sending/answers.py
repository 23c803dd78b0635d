"""Answers to stored messages: sent at once, or when the disk and a slave have them too, and the name servers know the
topic that a message has made.

The answers of sends that were stored together are held together, in one small object with two callbacks and no task;
store and replication keep these objects in their own ordered structures. It answers to `CommitLog.handleDiskFlush` and
`handleHA`; rules: docs/protocol/store.md §5.2, docs/protocol/ha.md §6.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from functools import partial
from itertools import groupby
from operator import itemgetter

import trio

from triomq_protocol.codes import ResponseCode
from triomq_protocol.requests.send import SendAnswers, with_code
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.config import BrokerRole, FlushDiskType
from triomq_server.repeats import Repeats
from triomq_server.wire import Link

_log = logging.getLogger(__name__)

HeldSend = tuple[int, int, str, int]
"""Of one stored send: the log offset behind its messages, where its answer ends among those held with it, its topic, and
the code of the request. The answer of a one-way send is empty."""


def waits_for_store(wait: str | None) -> bool:
    """Whether a message with this WAIT property waits for disk and slave: yes, unless it is something other than
    `true`."""
    return wait is None or wait.lower() == "true"


class SendCompletion:
    """Answers stored messages: at once, or when disk and slave have them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._late_replicas = _LateSends("no slave acknowledged", "slaveTimeout; `triomq admin ha` shows the slaves")
        self._late_flushes = _LateSends("the disk did not confirm", "syncFlushTimeout")
        self.read_config()

    def read_config(self) -> None:
        """Take over settings that request 25 may have changed."""
        config = self._broker.config
        self.answers = SendAnswers(config.region_id, config.trace_on)
        self.encode = self.answers.encode
        """Writes the answer of a stored message."""
        self._flush = config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._replicate = config.store.broker_role is BrokerRole.SYNC_MASTER
        self.waits = self._broker.store.times.waits = self._flush or self._replicate
        """Whether senders wait for disk or slave on this broker."""

    def answer(self, command: Command, message_id: str, queue_id: int, queue_offset: int) -> bytes | None:
        """The answer of a stored message; None to a one-way request."""
        if command.flag & 2:
            return None
        return self.encode(command, message_id, queue_id, queue_offset)

    def when_known(self, link: Link, answer: bytes | None, change: int) -> bytes | None:
        """Hold the answer of a send that has made its topic until the name servers know the topic: a client that asks for
        its route without success may ask again only after half a minute.

        Args:
            link: the link to answer on.
            answer: the answer; None if there is none.
            change: the number of the change that made the topic (`Registration.changes`); 0 if it was there.

        Returns:
            The answer if it need not wait after all; the link gets it later otherwise.
        """
        if answer and change and self._broker.registration.when_known(partial(_send, link, answer), change):
            return None
        return answer

    def hold_one(
        self,
        link: Link,
        answer: bytes | None,
        end_offset: int,
        topic: str,
        request_code: int,
        *,
        change: int,
    ) -> bytes | None:
        """As `hold`, of one send."""
        return self.hold(link, answer or b"", [(end_offset, len(answer or b""), topic, request_code)], change=change)

    def hold(self, link: Link, answers: bytes, sends: list[HeldSend], *, change: int = 0) -> bytes | None:
        """Hold the answers of sends until disk and slave have their messages, as the configuration asks.

        Args:
            link: the link to answer on.
            answers: success frames, one after the other.
            sends: the sends, in the log's order.
            change: as for `when_known`.

        Returns:
            The answers of sends that need not wait after all; the link gets the others later.
        """
        if not self._replicate:
            return self._hold(link, answers, sends, change=change)
        # A slave that is near enough for a message is near enough for those before it.
        slave_ok = self._broker.replication.slave_ok
        near = len(sends)
        if not slave_ok(sends[-1][0]):
            near = bisect_left(sends, True, key=lambda send: not slave_ok(send[0]))
        if near == len(sends):
            return self._hold(link, answers, sends, replicate=True, change=change)
        cut = 0
        if near:
            cut = sends[near - 1][1]
            self._hold(link, answers[:cut], sends[:near], replicate=True, change=change)
            sends = [(end, answer_end - cut, topic, code) for end, answer_end, topic, code in sends[near:]]
        return self._hold(link, answers[cut:], sends, code=ResponseCode.SLAVE_NOT_AVAILABLE, change=change)

    def _hold(
        self,
        link: Link,
        answers: bytes,
        sends: list[HeldSend],
        *,
        replicate: bool = False,
        code: int = ResponseCode.SUCCESS,
        change: int,
    ) -> bytes | None:
        """As `hold`, of sends that wait for the same; `code` is the answer if nothing goes wrong."""
        broker = self._broker
        held = _HeldAnswers(self, broker, link, answers, sends, code, change)
        held.left = self._flush + replicate
        if not held.left:
            return held.answer()
        now = held.began
        end_offset = sends[-1][0]
        if self._flush:
            deadline = now + broker.config.store.sync_flush_timeout / 1000
            broker.store.flusher.when_flushed(end_offset, deadline, partial(self._flushed, held))
        if replicate:
            deadline = now + broker.config.store.slave_timeout / 1000
            broker.replication.when_replicated(end_offset, deadline, partial(self._replicated, held))
        return None

    def _flushed(self, held: _HeldAnswers, done: bool) -> None:
        if not done:
            held.flushed_to = self._broker.store.flusher.flushed_offset
            self._late_flushes.add(held.sends, held.flushed_to)
        held.finish_one()

    def _replicated(self, held: _HeldAnswers, done: bool) -> None:
        if not done:
            held.replicated_to = self._broker.replication.acknowledged_offset
            self._late_replicas.add(held.sends, held.replicated_to)
        held.finish_one()


class _LateSends:
    """Sends whose wait has timed out, logged at most every 10 s; those in between are counted in the next line.

    Args:
        what: what did not happen.
        setting: how long they wait, and where to look.
    """

    def __init__(self, what: str, setting: str) -> None:
        self._what = what
        self._setting = setting
        self._repeats = Repeats()

    def add(self, sends: list[HeldSend], reached_offset: float) -> None:
        """Count those whose messages end behind `reached_offset`."""
        for end_offset, _, topic, _ in sends:
            if end_offset > reached_offset and (due := self._repeats.add(topic)):
                _log.warning("%s %d sends in time, of topics %s (%s)", self._what, *due, self._setting)


class _HeldAnswers:
    """Answers that wait together for the last of their messages. A failure of replication outweighs one of flushing.

    Attributes:
        sends: as `SendCompletion.hold` got them.
        left: how many things they wait for.
        flushed_to, replicated_to: what disk and slave had when a wait for them timed out.
        began: trio's time.
    """

    __slots__ = (
        "_answers", "_broker", "_change", "_code", "_completion", "_link", "began", "flushed_to", "left",
        "replicated_to", "sends",
    )  # fmt: skip

    def __init__(
        self,
        completion: SendCompletion,
        broker: Broker,
        link: Link,
        answers: bytes,
        sends: list[HeldSend],
        code: int,
        change: int,
    ) -> None:
        self._completion = completion
        self._broker = broker
        self._link = link
        self._answers = answers
        self._code = code
        self._change = change
        self.sends = sends
        self.left = 0
        self.flushed_to = self.replicated_to = math.inf
        self.began = trio.current_time()

    def finish_one(self) -> None:
        """One of the things they wait for has come, or not in time."""
        self.left -= 1
        if self.left:
            return
        waited_s = trio.current_time() - self.began
        self._broker.store.times.waited(waited_s, len(self.sends))
        for topic, sends in groupby(self.sends, key=_topic_of):
            self._broker.stats.count_waits(topic, waited_s, sum(1 for _ in sends))
        if frames := self.answer():
            _send(self._link, frames)

    def answer(self) -> bytes | None:
        """The answers, unless they wait for the name servers too."""
        return self._completion.when_known(self._link, self._frames() or None, self._change)

    def _frames(self) -> bytes:
        """The answers, with the code of each."""
        if not self._code and self.flushed_to == self.replicated_to == math.inf:
            return self._answers
        begin = 0
        frames = []
        for end_offset, end, _, request_code in self.sends:
            code = self._code_of(end_offset)
            if code:
                self._broker.traffic.count_error(request_code, code)
            if end > begin:
                frames.append(with_code(self._answers[begin:end], code))
            begin = end
        return b"".join(frames)

    def _code_of(self, end_offset: int) -> int:
        if end_offset > self.replicated_to:
            return ResponseCode.FLUSH_SLAVE_TIMEOUT
        if not self._code and end_offset > self.flushed_to:
            return ResponseCode.FLUSH_DISK_TIMEOUT
        return self._code


def _send(link: Link, frames: bytes) -> None:
    if not link.closed:
        link.send(frames)


_topic_of = itemgetter(2)
