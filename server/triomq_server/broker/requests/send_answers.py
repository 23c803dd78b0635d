"""Answers to stored messages: at once, or when the disk and a slave have them too.

A held answer is one small object with two callbacks and no task: store and replication keep them in their own ordered
structures. It answers to `CommitLog.handleDiskFlush` and `handleHA`; rules: docs/protocol/store.md §5.2,
docs/protocol/ha.md §6.
"""

from __future__ import annotations

import logging
from functools import partial

import trio

from triomq_protocol.codes import ResponseCode
from triomq_protocol.requests.send import SendAnswers
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.config import BrokerRole, FlushDiskType
from triomq_server.repeats import Repeats
from triomq_server.store import AppendResult
from triomq_server.wire import Link

_log = logging.getLogger(__name__)


def waits_for_store(wait: str | None) -> bool:
    """Whether a message with this WAIT property waits for disk and slave: it does unless it says something else than
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
        self.waits = self._flush or self._replicate
        """Whether senders wait for disk or slave on this broker."""

    def answer(
        self, command: Command, message_id: str, queue_id: int, queue_offset: int, code: int = 0
    ) -> bytes | None:
        """The answer of a stored message; None to a one-way request."""
        if command.flag & 2:
            return None
        return self.encode(command, message_id, queue_id, queue_offset, code)

    def note_end(self, command: Command, topic: str, code: int, waited_s: float) -> None:
        """A held answer is sent."""
        self._broker.stats.count_wait(topic, waited_s)
        if code:
            self._broker.traffic.count_error(command, code)

    def note_late(self, topic: str, *, replica: bool) -> None:
        """A send has waited in vain: for a slave, or for the disk."""
        (self._late_replicas if replica else self._late_flushes).add(topic)

    def hold(
        self, link: Link, command: Command, topic: str, message_id: str, queue_id: int, result: AppendResult
    ) -> bytes | None:
        """Hold the answer until disk and slave have the message, as the configuration asks.

        Returns:
            The answer, if there is nothing to wait for after all; else None, and the link gets it later.
        """
        broker, store_config = self._broker, self._broker.config.store
        held = _HeldAnswer(self, link, command, topic, message_id, queue_id, result.queue_offset)
        replication = broker.replication
        replicate = self._replicate and replication.slave_ok(result.end_offset)
        if self._replicate and not replicate:
            held.code = ResponseCode.SLAVE_NOT_AVAILABLE
        held.left = self._flush + replicate
        if not held.left:
            if held.code:
                broker.traffic.count_error(command, held.code)
            return self.answer(command, message_id, queue_id, result.queue_offset, held.code)
        held.began = now = trio.current_time()
        if self._flush:
            deadline = now + store_config.sync_flush_timeout / 1000
            broker.store.flusher.when_flushed(result.end_offset, deadline, held.flushed)
        if replicate:
            deadline = now + store_config.slave_timeout / 1000
            replication.when_replicated(result.end_offset, deadline, held.replicated)
        return None


class _LateSends:
    """Sends that waited in vain, logged at most every 10 s; those in between are counted in the next line.

    Args:
        what: what did not happen.
        setting: how long they wait, and where to look.
    """

    def __init__(self, what: str, setting: str) -> None:
        self._what = what
        self._setting = setting
        self._repeats = Repeats()

    def add(self, topic: str) -> None:
        """Count one send."""
        if due := self._repeats.add(topic):
            _log.warning("%s %d sends in time, of topics %s (%s)", self._what, *due, self._setting)


class _HeldAnswer:
    """One held answer. A failure of replication outweighs one of flushing."""

    __slots__ = ("began", "code", "command", "completion", "left", "link", "send", "topic")

    def __init__(
        self,
        completion: SendCompletion,
        link: Link,
        command: Command,
        topic: str,
        message_id: str,
        queue_id: int,
        queue_offset: int,
    ) -> None:
        self.link = link
        self.completion = completion
        self.topic = topic
        self.send = partial(completion.answer, command, message_id, queue_id, queue_offset)
        self.command = command
        self.began = 0.0
        self.code: int = 0
        self.left = 0

    def flushed(self, done: bool) -> None:
        if not done and self.code == ResponseCode.SUCCESS:
            self.code = ResponseCode.FLUSH_DISK_TIMEOUT
        if not done:
            self.completion.note_late(self.topic, replica=False)
        self._finish_one()

    def replicated(self, done: bool) -> None:
        if not done:
            self.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
            self.completion.note_late(self.topic, replica=True)
        self._finish_one()

    def _finish_one(self) -> None:
        self.left -= 1
        if self.left:
            return
        self.completion.note_end(self.command, self.topic, self.code, trio.current_time() - self.began)
        answer = self.send(self.code)
        if answer is not None and not self.link.closed:
            self.link.send(answer)
