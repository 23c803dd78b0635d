"""One message on its way to a broker: request, answer, and the loop over attempts.

The producer's fast path uses the pieces (:meth:`Sender.prepare`, :meth:`Sender.quick`,
:meth:`Sender.submit`) and comes to :meth:`Sender.deliver` only when something is missing or a first
attempt failed.  Upstream: ``DefaultMQProducerImpl``, ``MQClientAPIImpl``
(client.md §6.6-§6.12).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import tenacity
import trio

from triomq._compression import COMPRESS_FROM_BYTES, Compressor
from triomq._identity import Clock, UniqueKeys
from triomq._link import Link, TaskWaiter, Waiter
from triomq._links import Links
from triomq._message import MAX_BODY_BYTES, Message, MessageQueue
from triomq._outgoing import Outgoing, Target, TopicTargets, properties_text, result_of
from triomq._results import SendResult
from triomq._retry import FaultStrategy, RetryPolicy, choose_plain
from triomq._routes import Route, Routes
from triomq._send_template import SendTemplate
from triomq.errors import (
    Attempt,
    ConnectFailed,
    InvalidCall,
    LinkLost,
    MQError,
    NotReady,
    RequestTimeout,
    RouteNotFound,
)
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.send import encode_send_request_v2

log = logging.getLogger("triomq.producer")

THREAD_FROM_BYTES: Final = 128 * 1024
"""Bodies from this size on are compressed in a worker thread: the loop would stand still for milliseconds."""


@attrs.frozen(kw_only=True)
class SendSettings:
    """How a producer sends; Java's names in brackets.

    Args:
        timeout_s: one deadline for a send and all its attempts (``sendMsgTimeout``).
        max_body_bytes: larger bodies are refused (``maxMessageSize``).
        compress_from_bytes: bodies from this size on are compressed (``compressMsgBodyOverHowmuch``).
        compressor: how; None sends everything as it is.
        policy: what is tried again.
        faults: which brokers are avoided; None chooses round robin (``sendLatencyFaultEnable=false``).
    """

    timeout_s: float = 3.0
    max_body_bytes: int = MAX_BODY_BYTES
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    compressor: Compressor | None
    policy: RetryPolicy
    faults: FaultStrategy | None = None


class Sender:
    """Sends the messages of one producer group.

    Args:
        group: the producer group.
        routes: where topics live.
        links: how brokers are reached.
        unique_keys: makes message ids.
        clock: wall clock, for born timestamps.
        chance: starts of round robins, jitter.
        settings: see :class:`SendSettings`.
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
    ) -> None:
        self.group = group
        self.settings = settings
        self.topics: dict[str, TopicTargets] = {}
        self._routes = routes
        self._links = links
        self._unique_keys = unique_keys
        self._clock = clock
        self._chance = chance
        first = [
            settings.policy.attempt_timeout_s(settings.timeout_s, settings.policy.attempts, elsewhere=elsewhere)
            for elsewhere in (False, True)
        ]
        self.first_timeouts_s: tuple[float, float] = (first[0], first[1])
        routes.changed.append(self._take_route)
        routes.forgotten.append(self._forget_topic)

    def close(self) -> None:
        """Follow route changes no longer."""
        self._routes.changed.remove(self._take_route)
        self._routes.forgotten.remove(self._forget_topic)

    def prepare(self, message: Message, now: float) -> Outgoing:
        """Check a message and give it its id and property string.

        Raises:
            MessageIllegal: a limit of size is broken.
            InvalidCall: something else about the message is.
        """
        settings = self.settings
        try:
            known = message.topic in self.topics
        except AttributeError:
            raise InvalidCall(f"the message is {type(message).__name__}, not triomq.Message") from None
        if known:
            message.check_parts(settings.max_body_bytes)
        else:
            message.check(settings.max_body_bytes)
        born_ms = self._clock()
        unique_key = self._unique_keys.next(born_ms)
        out = Outgoing(
            message.topic,
            message.body,
            properties_text(message, unique_key),
            unique_key,
            born_ms,
            now + settings.timeout_s,
        )
        out.flag = message.flag
        return out

    def prepare_batch(
        self,
        topic: str,
        count: int,
        encode: Callable[[Sequence[str]], bytes],
        *,
        wait_store_ok: bool,
        now: float,
    ) -> Outgoing:
        """Give every message of a batch its id, and make one request of them."""
        born_ms = self._clock()
        unique_keys = [self._unique_keys.next(born_ms) for _ in range(count)]
        properties = "WAIT\x01true" if wait_store_ok else "WAIT\x01false"
        deadline = now + self.settings.timeout_s
        out = Outgoing(topic, encode(unique_keys), properties, ",".join(unique_keys), born_ms, deadline)
        out.batch = True
        return out

    async def compress(self, out: Outgoing) -> None:
        """Compress a large body, when that makes it smaller."""
        compressor = self.settings.compressor
        if compressor is None or len(out.body) < self.settings.compress_from_bytes or out.batch:
            return
        if len(out.body) < THREAD_FROM_BYTES:
            body = compressor.compress(out.body)
        else:
            body = await trio.to_thread.run_sync(compressor.compress, out.body)
        if len(body) < len(out.body):
            out.body = body
            out.sys_flag |= compressor.sys_flag

    def submit(self, out: Outgoing, target: Target, link: Link, waiter: Waiter) -> int:
        """Write one attempt's request; returns its opaque.

        Raises:
            LinkLost: the link is no longer open; the waiter hears nothing.
        """
        opaque = link.next_opaque()
        link.submit(self.frame(out, target, opaque), opaque, waiter)
        return opaque

    def frame(self, out: Outgoing, target: Target, opaque: int, *, oneway: bool = False) -> bytes:
        """The request of one attempt: queue and broker are this attempt's own (client.md §6.9)."""
        queue = target.queue
        if out.sys_flag or out.flag or out.batch or oneway or out.retry is not None:
            times, max_times = out.retry if out.retry is not None else (0, None)
            return encode_send_request_v2(
                opaque,
                producer_group=self.group,
                topic=out.topic,
                queue_id=queue.queue_id,
                sys_flag=out.sys_flag,
                born_timestamp=out.born_ms,
                flag=out.flag,
                properties=out.properties,
                body=out.body,
                broker_name=queue.broker_name,
                batch=out.batch,
                reconsume_times=times,
                max_reconsume_times=max_times,
                default_topic=self._routes.default_topic,
                default_topic_queue_nums=self._routes.default_topic_queues,
                code=RequestCode.SEND_BATCH_MESSAGE if out.batch else RequestCode.SEND_MESSAGE_V2,
                oneway=oneway,
            )
        template = target.template
        if template is None:
            template = target.template = SendTemplate(
                producer_group=self.group,
                topic=out.topic,
                queue_id=queue.queue_id,
                broker_name=queue.broker_name,
                default_topic=self._routes.default_topic,
                default_topic_queue_nums=self._routes.default_topic_queues,
            )
        return template.encode(opaque, out.born_ms, out.properties, out.body)

    async def targets(self, topic: str) -> TopicTargets:
        """The queues of a topic, looked up if need be.

        Raises:
            MQError: there are none, or nobody can be asked.
        """
        targets = self.topics.get(topic)
        if targets is None or not targets.queues:
            self._take_route(await self._routes.for_publishing(topic), wanted=True)
            targets = self.topics[topic]
        return targets

    def quick(self, out: Outgoing) -> tuple[Target, Link, float] | None:
        """A queue, its open link and the first attempt's timeout; None when something must be waited for first."""
        targets = self.topics.get(out.topic)
        if targets is None or not targets.queues:
            return None
        faults = self.settings.faults
        elsewhere = targets.several_brokers
        if out.pinned is not None:
            target, elsewhere = targets.of(out.pinned), False
        elif faults is None:
            target = targets.targets[targets.count() % len(targets.targets)]
        else:
            target = targets.of(faults.choose(targets.queues, None, targets.count, trio.current_time()))
        link = self._links.ready(target.address)
        if link is None or not link.has_room:
            return None
        return target, link, self.first_timeouts_s[elsewhere]

    async def ready(self, out: Outgoing) -> tuple[Target, Link]:
        """Choose a queue and open the link to its broker's master.

        Raises:
            MQError: no route, no master, or no connection; ``out.last_broker`` tells which broker failed.
        """
        if out.refresh_route:
            out.refresh_route = False
            await self._refresh(out.topic)
        targets = await self.targets(out.topic)
        target = targets.of(out.pinned if out.pinned is not None else self._choose(targets, out.last_broker))
        out.last_broker = target.queue.broker_name
        if not target.address:
            out.refresh_route = True
            raise RouteNotFound(f"broker {out.last_broker} has no master in the route of topic {out.topic}")
        link = await self._links.get(target.address)
        if not link.has_room:
            await link.wait_room()
        return target, link

    async def ready_in_time(self, out: Outgoing) -> tuple[Target, Link, float]:
        """What :meth:`quick` returns, waited for within the message's deadline.

        Raises:
            NotReady: no route, or no connection with room, in time; nothing was sent.
        """
        with trio.move_on_at(out.deadline):
            target, link = await self.ready(out)
            elsewhere = out.pinned is None and self.topics[out.topic].several_brokers
            return target, link, self.first_timeouts_s[elsewhere]
        raise NotReady(
            f"no route to topic {out.topic}, or no connection with room for another send to it, in time",
            address=self._awaited(out),
        )

    async def deliver(self, out: Outgoing) -> SendResult:
        """All attempts that are left.

        Raises:
            MQError: none succeeded; it lists them all.
        """
        policy = self.settings.policy
        attempts_left = 1 if out.pinned is not None else policy.attempts - len(out.attempts)
        retrying = tenacity.AsyncRetrying(
            sleep=trio.sleep,
            stop=tenacity.stop_after_attempt(max(attempts_left, 1)),
            wait=lambda _state: self._pause_s(out),
            retry=tenacity.retry_any(
                tenacity.retry_if_exception(lambda error: self.may_retry(out, error)),
                tenacity.retry_if_result(lambda result: self.may_retry_result(out, result)),
            ),
            retry_error_callback=_outcome,
        )
        try:
            return await retrying(self._attempt, out)
        except MQError as error:
            if out.result is not None:
                return out.result
            raise self.final_error(out, error) from error

    def may_retry(self, out: Outgoing, error: BaseException) -> bool:
        """Whether an attempt that failed is followed by another."""
        return (
            isinstance(error, MQError)
            and out.pinned is None
            and len(out.attempts) < self.settings.policy.attempts
            and self.settings.policy.retries(error)
            and trio.current_time() < out.deadline
        )

    def may_retry_result(self, out: Outgoing, result: SendResult) -> bool:
        """Whether a message that is stored less safely than asked is sent to another broker too."""
        return (
            self.settings.policy.retries_result(result)
            and out.pinned is None
            and len(out.attempts) + 1 < self.settings.policy.attempts
            and trio.current_time() < out.deadline
        )

    def note_failure(self, out: Outgoing, address: str, error: MQError, started: float) -> None:
        """Enter a failed attempt into the message's list and into the memory of faults."""
        now = trio.current_time()
        out.attempts.append(Attempt(address, error, now - started))
        out.refresh_route = out.refresh_route or error.refresh_route
        if self.settings.faults is not None and out.last_broker is not None:
            self.settings.faults.update(out.last_broker, now - started, now, isolate=True)

    def note_success(self, queue: MessageQueue, started: float) -> None:
        """Enter an answered attempt into the memory of faults."""
        if self.settings.faults is not None:
            now = trio.current_time()
            self.settings.faults.update(queue.broker_name, now - started, now, isolate=False)

    def final_error(self, out: Outgoing, error: MQError) -> MQError:
        """The error that ends a send: of the last attempt's kind, with the list of all.

        Except that after a failed connection it must not say that nothing was sent if an earlier attempt's outcome is
        unknown: then it is of that attempt's kind.
        """
        if isinstance(error, ConnectFailed):
            error = next((each.error for each in reversed(out.attempts) if _is_in_doubt(each.error)), error)
        return type(error)(
            f"send to topic {out.topic}, message {out.unique_key}, {len(out.attempts)} attempt(s)",
            address=error.address,
            code=error.code,
            remark=error.remark if error.code is not None else error.remark or error.what,
            attempts=out.attempts,
        )

    async def _attempt(self, out: Outgoing) -> SendResult:
        started = trio.current_time()
        address = ""
        try:
            with trio.move_on_after(self._attempt_timeout_s(out, started)) as scope:
                target, link = await self.ready(out)
                address = link.address
                # Before the route was known, there could have been another broker to keep time for.
                scope.deadline = max(scope.deadline, started + self._attempt_timeout_s(out, started))
                waiter = TaskWaiter(scope.deadline)
                opaque = self.submit(out, target, link, waiter)
                answer = await waiter.wait(link.pending, opaque)
                result = result_of(answer, target.queue, out.unique_key, address)
                self.note_success(target.queue, started)
                out.result = result
                return result
            if not address:
                raise NotReady("no route, or no connection with room, in time", address=self._awaited(out))
            raise RequestTimeout("no answer in time", address=address)
        except MQError as error:
            self.note_failure(out, error.address or address, error, started)
            raise

    def _awaited(self, out: Outgoing) -> str:
        """Whom a try that sent nothing was waiting for: a name server for the route, or the broker's master."""
        targets = self.topics.get(out.topic)
        if targets is None or not targets.queues:
            return self._routes.name_server
        return (targets.route.master(out.last_broker) if out.last_broker is not None else None) or ""

    def _attempt_timeout_s(self, out: Outgoing, now: float) -> float:
        left_s = out.deadline - now
        if left_s <= 0:
            raise RequestTimeout("no time left for another attempt")
        targets = self.topics.get(out.topic)
        elsewhere = out.pinned is None and (targets is None or targets.several_brokers)
        attempts_left = self.settings.policy.attempts - len(out.attempts)
        return self.settings.policy.attempt_timeout_s(left_s, attempts_left, elsewhere=elsewhere)

    def _choose(self, targets: TopicTargets, last_broker: str | None) -> MessageQueue:
        faults = self.settings.faults
        for _ in targets.queues:
            if faults is not None:
                queue = faults.choose(targets.queues, last_broker, targets.count, trio.current_time())
            else:
                queue = choose_plain(targets.queues, last_broker, targets.count)
            if not self._links.is_down(targets.route.master(queue.broker_name) or ""):
                break
        return queue

    def _pause_s(self, out: Outgoing) -> float:
        # Another broker may be asked at once; the same one needs a moment, and a dead address its pause.
        targets = self.topics.get(out.topic)
        if targets is not None and targets.several_brokers:
            return 0.0
        pause_s = self.settings.policy.pause_s(len(out.attempts), self._chance.random())
        if targets is not None and targets.targets:
            pause_s = max(pause_s, self._links.retry_in_s(targets.targets[0].address))
        return min(pause_s, max(0.0, out.deadline - trio.current_time()))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
        except MQError as error:
            log.info("the route of %s could not be refreshed: %s", topic, error.reason)

    def _forget_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)

    def _take_route(self, route: Route, *, wanted: bool = False) -> None:
        old = self.topics.get(route.topic)
        if wanted or old is not None:
            self.topics[route.topic] = TopicTargets(
                route, self._chance.randrange(2**31) if old is None else old.count()
            )


def _outcome(state: tenacity.RetryCallState) -> SendResult:
    assert state.outcome is not None
    result: SendResult = state.outcome.result()
    return result


def _is_in_doubt(error: MQError) -> bool:
    """Whether the message may have been stored in spite of this."""
    return isinstance(error, LinkLost | RequestTimeout) and not isinstance(error, NotReady)
