"""The fast path of awaited sends that are alone on their link.

If a task waits for each of its sends, nothing is shared with other messages, and the processor has done something else
since the last one: each line of Python costs twice as much as in a loop (docs/explanation/hot-path.md).  Such a send has
no object except its attempt; if its first attempt fails, it becomes an ordinary send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from triomq._cluster.identity import Clock
from triomq._message.message import Message
from triomq._message.send_result import SendResult
from triomq._producer import compiled
from triomq._producer.attempts.attempt import Attempt
from triomq._producer.attempts.request import outcome_of
from triomq._producer.sender import Sender
from triomq.errors import MQError
from triomq_protocol.wire.command import Command

if TYPE_CHECKING or not compiled.USED:
    from triomq._producer import plain_sends
else:
    from triomq._producer.compiled import sends as plain_sends


class LoneSend(Attempt):
    """The first attempt of a send that is alone on its link.

    Args:
        message: the message.
        properties: its property string; None if it can be derived again from the message, which cannot change.
        unique_key: its id.
        born_ms: when it was created, in ms since 1970.
        started: when ``send`` was called, on trio's clock.
        sender: the sender of its producer.
    """

    __slots__ = ("_sender", "born_ms", "message", "properties", "unique_key")

    def __init__(
        self,
        message: Message,
        properties: str | None,
        unique_key: str,
        born_ms: int,
        started: float,
        sender: Sender,
    ) -> None:
        self._sender = sender
        self.message = message
        self.properties = properties
        self.unique_key = unique_key
        self.born_ms = born_ms
        self.started = started
        self.outcome = None
        self._task = None

    def answered(self, answer: Command) -> None:
        """Called by the link's reader."""
        self.outcome = outcome_of(answer, self.queue, self.unique_key, self.address)
        self.ended()

    async def result(self) -> SendResult:
        """Wait for the end of the send.

        Raises:
            MQError: no attempt succeeded; it lists them all.
        """
        outcome = await self.wait()
        message, sender = self.message, self._sender
        if isinstance(outcome, SendResult):
            sender.attempts.count_final(message.topic, len(message.body), self, outcome)
            return outcome
        out = self.out = sender.outgoing(
            message, self.unique_key, self.born_ms, self.started, properties=self.properties
        )
        out.last_broker = self.queue.broker_name
        out.is_written = True
        return await sender.attempts.deliver(out, made=self)


class LoneSends:
    """Starts the lone sends of one producer.

    Args:
        sender: one that :meth:`suits`.
    """

    def __init__(self, sender: Sender) -> None:
        settings = sender.settings
        self._sender = sender
        self._attempts = sender.attempts
        self._choose: Final = sender.targets.idle_nowait
        self._template: Final = sender.requests.template
        self._frame: Final = plain_sends.lone_frame
        self._clock: Clock = sender.clock
        self._next_key: Final = sender.unique_keys.next
        self._adds_properties = sender.adds_properties
        self._body_bytes_max = settings.max_body_bytes
        if settings.compressor is not None:
            self._body_bytes_max = min(settings.max_body_bytes, settings.compress_from_bytes - 1)

    @staticmethod
    def suits(sender: Sender) -> bool:
        """Whether lone sends can do everything that a producer's sends need."""
        return sender.attempts.results_are_final and not sender.settings.unit_mode

    def start(self, message: Message) -> LoneSend | None:
        """Write the request of a plain send, if there is a link on which nothing waits; None: send it another way.

        Raises:
            MessageIllegal: a limit of size is broken.
            InvalidCall: the message is illegal in another way.
        """
        if type(message) is not Message or message.flag:
            return None
        body = message.body
        if type(body) is not bytes or not 0 < len(body) <= self._body_bytes_max:
            return None
        ready = self._choose(message.topic)
        if ready is None:
            return None
        target, link, timeout_s, targets = ready
        template = target.template
        if template is None:
            template = self._template(message.topic, target)
        born_ms = self._clock()
        unique_key = self._next_key(born_ms)
        opaque = link.next_opaque()
        # The compiled function knows a message's own properties.
        frame = None if self._adds_properties else self._frame(template.parts, message, unique_key, born_ms, opaque)
        properties = None
        if frame is None:
            properties = self._sender.properties_of(message, unique_key)
            frame = template.encode(opaque, born_ms, properties, body)
        targets.count()
        if self._attempts.before_start is not None:
            self._attempts.before_start()
        started = trio.current_time()
        send = LoneSend(message, properties, unique_key, born_ms, started, self._sender)
        send.queue = target.queue
        send.link = link
        send.address = link.address
        send.opaque = opaque
        send.deadline = started + timeout_s
        try:
            link.submit(frame, opaque, send)
        except MQError as error:
            send.unsent(error)
        return send
