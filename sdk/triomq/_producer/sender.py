"""Sending for one group: checks and prepares messages.

Attempts are made in ``attempt.py``, queues chosen in ``targets.py``, requests encoded in ``request.py``.
Producers use it, and consumers whose failed messages go to a retry topic.  Upstream: ``DefaultMQProducerImpl``
(docs/protocol/client.md §6.6-§6.12).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from triomq._arguments.numbers import counts
from triomq._cluster.counters import Counters
from triomq._cluster.identity import Clock, UniqueKeys
from triomq._cluster.routes import Routes
from triomq._message.compression import COMPRESS_FROM_BYTES, Compressor, compress
from triomq._message.message import MAX_BODY_BYTES, Message
from triomq._message.send_result import SendResult
from triomq._producer.attempts.attempt import Attempts
from triomq._producer.attempts.outgoing import Outgoing, properties_text
from triomq._producer.attempts.request import SendRequests
from triomq._producer.attempts.targets import Targets
from triomq._producer.strategies.faults import FaultStrategy
from triomq._producer.strategies.retry import RetryPolicy
from triomq._transport.links import Links
from triomq.errors import InvalidCall
from triomq_protocol import names
from triomq_protocol.codes import RequestCode

THREAD_FROM_BYTES: Final = 128 * 1024
"""Bodies from this size on are compressed in a worker thread: it takes milliseconds, and would block all tasks."""


@attrs.frozen(kw_only=True)
class SendSettings:
    """Settings of a producer's sends; Java's names in brackets.

    Args:
        timeout_s: one deadline for a send and all its attempts (``sendMsgTimeout``).
        max_body_bytes: larger bodies are refused (``maxMessageSize``).
        compress_from_bytes: bodies from this size on are compressed (``compressMsgBodyOverHowmuch``).
        compressor: compresses them; None sends everything as it is.
        policy: decides which attempts are repeated.
        route_wait_s: how long a send may wait for a route and a master; None: until its deadline.
        unit_mode: whether the producer belongs to a unit (``unitMode``).
        faults: decides which brokers are avoided; None chooses round robin (``sendLatencyFaultEnable=false``).

    Raises:
        InvalidCall: a number is out of range.
    """

    timeout_s: float = 3.0
    max_body_bytes: int = attrs.field(default=MAX_BODY_BYTES, validator=counts(1))
    compress_from_bytes: int = attrs.field(default=COMPRESS_FROM_BYTES, validator=counts(0))
    compressor: Compressor | None
    policy: RetryPolicy
    route_wait_s: float | None = None
    unit_mode: bool = False
    faults: FaultStrategy | None = None


class Sender:
    """Sends the messages of one group.

    Args:
        group: the producer group; for retries of a consumer, its group.
        routes: where topics live.
        links: the links to brokers.
        unique_keys: creates message ids.
        clock: wall clock, for born timestamps.
        chance: source of the starts of round robins and of jitter.
        settings: see :class:`SendSettings`.
        counters: the client's counters.

    Attributes:
        targets: queues and links of the topics sent to.
        requests: encodes requests.
        attempts: makes attempts.
        clock, unique_keys: as given.
    """

    def __init__(
        self,
        group: str,
        routes: Routes,
        links: Links,
        *,
        unique_keys: UniqueKeys,
        clock: Clock,
        chance: random.Random,
        settings: SendSettings,
        counters: Counters,
    ) -> None:
        self.group = group
        self.settings = settings
        policy, faults = settings.policy, settings.faults
        self.targets: Targets = Targets(
            routes,
            links,
            faults=faults,
            chance=chance,
            first_timeouts_s=(
                policy.attempt_timeout_s(settings.timeout_s, policy.attempts, elsewhere=False),
                policy.attempt_timeout_s(settings.timeout_s, policy.attempts, elsewhere=True),
            ),
        )
        namespace = routes.namespace
        self._instance_id = namespace.name or None
        self.requests: SendRequests = SendRequests(
            group,
            routes.default_topic,
            routes.default_topic_queues,
            namespace=namespace,
            unit_mode=settings.unit_mode,
        )
        self.attempts: Attempts = Attempts(
            self.targets,
            self.requests,
            policy=policy,
            faults=faults,
            chance=chance,
            group=group,
            counters=counters,
        )
        self.unique_keys = unique_keys
        self.clock = clock

    def close(self) -> None:
        """Stop following route changes."""
        self.targets.close()

    def prepare(self, message: Message, now: float, own: Mapping[str, str] | None = None) -> Outgoing:
        """Check a message, and give it its id and property string.

        Args:
            message: the user's message.
            now: on trio's clock.
            own: properties that the client adds.

        Raises:
            MessageIllegal: a limit of size is broken.
            InvalidCall: the message is illegal in another way.
        """
        settings = self.settings
        try:
            topic, check_parts = message.topic, message.check_parts
        except AttributeError:
            raise InvalidCall(f"the message is {type(message).__name__}, not triomq.Message") from None
        latest = self.targets.latest
        is_latest = latest is not None and latest.topic == topic
        # A topic that is no text cannot be looked up, and is refused by the check of the name.
        if is_latest or (type(topic) is str and self.targets.known(topic) is not None):
            check_parts(settings.max_body_bytes)
        else:
            message.check(settings.max_body_bytes)
        born_ms = self.clock()
        return self.outgoing(message, self.unique_keys.next(born_ms), born_ms, now, own)

    def outgoing(
        self,
        message: Message,
        unique_key: str,
        born_ms: int,
        now: float,
        own: Mapping[str, str] | None = None,
        properties: str | None = None,
    ) -> Outgoing:
        """A checked message with its id.

        Args:
            message: the user's message.
            unique_key: its id.
            born_ms: when it was created, in ms since 1970.
            now: on trio's clock.
            own: properties that the client adds.
            properties: the property string that was sent before, if there is one: a user may have changed the table of
                properties or the list of keys since.

        Raises:
            MessageIllegal: its properties are too long.
        """
        if self._instance_id is not None:
            own = {**(own or {}), names.INSTANCE_ID: self._instance_id}
        out = Outgoing(
            message.topic,
            message.body,
            properties_text(message, unique_key, own) if properties is None else properties,
            unique_key,
            born_ms,
            now + self.settings.timeout_s,
        )
        out.flag = message.flag
        out.own_properties = own
        self._let_wait(out, now)
        return out

    @property
    def adds_properties(self) -> bool:
        """Whether messages get properties in addition to their own and their id."""
        return self._instance_id is not None

    def properties_of(self, message: Message, unique_key: str) -> str:
        """Check a message for a known topic; returns its property string with this id.

        Raises:
            MessageIllegal: a limit of size is broken.
            InvalidCall: the message is illegal in another way.
        """
        message.check_parts(self.settings.max_body_bytes)
        own = None if self._instance_id is None else {names.INSTANCE_ID: self._instance_id}
        return properties_text(message, unique_key, own)

    def reserve_keys(self, count: int) -> tuple[str, int]:
        """Reserve a number of ids of the current time; see :meth:`UniqueKeys.reserve`."""
        return self.unique_keys.reserve(count, self.clock())

    def prepare_batch(
        self,
        topic: str,
        count: int,
        encode: Callable[[Sequence[str]], bytes],
        *,
        wait_store_ok: bool,
        now: float,
    ) -> Outgoing:
        """Give every message of a batch its id, and combine them into one request."""
        born_ms = self.clock()
        unique_keys = [self.unique_keys.next(born_ms) for _ in range(count)]
        return self._batch(topic, encode(unique_keys), unique_keys, born_ms, wait_store_ok=wait_store_ok, now=now)

    def prepare_elements(self, topic: str, elements: bytes, unique_keys: Sequence[str], *, now: float) -> Outgoing:
        """Combine messages that are already encoded into one request."""
        return self._batch(topic, elements, unique_keys, self.clock(), wait_store_ok=True, now=now)

    def _batch(
        self, topic: str, body: bytes, unique_keys: Sequence[str], born_ms: int, *, wait_store_ok: bool, now: float
    ) -> Outgoing:
        properties = f"{names.WAIT}\x01{'true' if wait_store_ok else 'false'}"
        if self._instance_id is not None:
            properties = f"{properties}\x02{names.INSTANCE_ID}\x01{self._instance_id}"
        deadline = now + self.settings.timeout_s
        out = Outgoing(topic, body, properties, ",".join(unique_keys), born_ms, deadline)
        out.code = RequestCode.SEND_BATCH_MESSAGE
        self._let_wait(out, now)
        return out

    def merged(self, first: Outgoing, elements: bytes, *, wait_store_ok: bool) -> Outgoing:
        """Combine messages that are already prepared into one request; each has an element with all its properties.

        Args:
            first: the message that has waited longest. Brokers give all elements its born timestamp.
            elements: the elements of all messages.
            wait_store_ok: the same for all messages.
        """
        properties = f"{names.WAIT}\x01{'true' if wait_store_ok else 'false'}"
        out = Outgoing(first.topic, elements, properties, first.unique_key, first.born_ms, first.deadline)
        out.code = RequestCode.SEND_BATCH_MESSAGE
        return out

    def unwritten(self, topic: str, now: float) -> Outgoing:
        """A message that is never sent: it carries the deadlines of calls that send none."""
        out = Outgoing(topic, b"", "", "", 0, now + self.settings.timeout_s)
        self._let_wait(out, now)
        return out

    def _let_wait(self, out: Outgoing, now: float) -> None:
        wait_s = self.settings.route_wait_s
        if wait_s is not None:
            out.wait_until = now + wait_s

    async def compress(self, out: Outgoing) -> None:
        """Compress a large body if that makes it smaller.

        Raises:
            InvalidCall: the user's compressor has failed.
        """
        compressor = self.settings.compressor
        if (
            compressor is None
            or len(out.body) < self.settings.compress_from_bytes
            or out.code is RequestCode.SEND_BATCH_MESSAGE
        ):
            return
        if len(out.body) < THREAD_FROM_BYTES:
            body = compress(compressor, out.body)
        else:
            body = await trio.to_thread.run_sync(compress, compressor, out.body)
        if len(body) < len(out.body):
            out.body = body
            out.sys_flag |= compressor.sys_flag

    def deliver(self, out: Outgoing) -> Coroutine[Any, Any, SendResult]:
        """Make all attempts of a message; see :meth:`Attempts.deliver`."""
        return self.attempts.deliver(out)
