"""Request-reply: request messages, their replies, which go through no queue, and the calls that wait for a reply.

The request is an ordinary message; the reply is sent to a broker, which pushes it to the requesting client
(docs/protocol/client.md §6.14).  Upstream: ``DefaultMQProducerImpl.request``, ``RequestFutureHolder``, ``MessageUtil``.
"""

from __future__ import annotations

import logging
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs
import trio

from triomq._arguments.kinds import check_kind
from triomq._arguments.numbers import check_seconds
from triomq._cluster.broker_requests import ReplyTaker
from triomq._cluster.heartbeats import Heartbeats
from triomq._cluster.identity import Clock
from triomq._cluster.routes import Routes
from triomq._message.message import Message
from triomq._message.received import ReceivedMessage, received_reply
from triomq._message.send_result import SendResult
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.sender import Sender
from triomq.errors import (
    MAY_BE_STORED,
    AskerGone,
    ClientClosed,
    InvalidCall,
    MQError,
    NotReady,
    Overloaded,
    ReplyTimeout,
    RequestTimeout,
)
from triomq_protocol.codes import RequestCode
from triomq_protocol.names import CLUSTER, CORRELATION_ID, MSG_TYPE, REPLY_TO_CLIENT, REPLY_TOPIC_SUFFIX, TTL
from triomq_protocol.requests.send import ReplyMessageRequest

log = logging.getLogger("triomq.producer")

REQUESTS_MAX: Final = 10_000
"""The most requests of one client that wait for their replies."""

KNOWN_WITHIN_S: Final = 3.0
"""The longest wait of a request until the brokers that may push its reply are known, and have the heartbeat that lets them
find the requesting client."""

Deliver = Callable[[Message, Outgoing, float], Awaitable[SendResult]]
"""Sends a message that was prepared, and calls the hooks; the third argument is the time on trio's clock."""


@attrs.frozen(kw_only=True)
class ReplyDesk:
    """Receives the replies to one client.

    Args:
        client_id: the id under which brokers find it.
        waiting: correlation id -> the request that waits for the reply.
        heartbeats: make the client known to brokers.
        routes: where topics live.
        clock: wall clock.
        chance: the source of correlation ids.
    """

    client_id: str
    waiting: dict[str, ReplyTaker]
    heartbeats: Heartbeats
    routes: Routes
    clock: Clock
    chance: random.Random


class _Waiting:
    """One request that waits for its reply."""

    def __init__(self, out: Outgoing, clock: Clock) -> None:
        self.out = out
        self.sending = trio.CancelScope()
        self.done = trio.Event()
        self.reply: ReceivedMessage | None = None
        self.error: MQError | None = None
        self._clock = clock

    def take(self, header: ReplyMessageRequest, body: bytes) -> None:
        """Take the reply, pushed by a broker; only the first one counts."""
        if not self.done.is_set():
            self.reply = received_reply(header, body, self._clock())
            self._end()

    def fail(self, error: MQError) -> None:
        """Fail the request: there will be no reply."""
        if not self.done.is_set():
            self.error = error
            self._end()

    def _end(self) -> None:
        self.done.set()
        self.sending.cancel()  # a reply may overtake the broker's answer to the request


class Requests:
    """The requests of one producer.

    Args:
        sender: prepares messages.
        desk: receives the replies.
        deliver: sends requests.
    """

    def __init__(self, sender: Sender, desk: ReplyDesk, *, deliver: Deliver) -> None:
        self._sender = sender
        self._desk = desk
        self._deliver = deliver
        self._own: set[_Waiting] = set()
        self._tried: set[str] = set()
        self._reply_topics: set[str] = set()

    async def ask(self, message: Message, timeout_s: float) -> ReceivedMessage:
        """Send a request and wait for its reply; see :meth:`triomq.Producer.request`."""
        check_seconds("timeout_s", timeout_s)
        if math.isinf(timeout_s):
            raise InvalidCall(
                "timeout_s is inf, but a request carries its timeout as a number of ms; give a finite one"
            )
        sender, desk = self._sender, self._desk
        if len(desk.waiting) >= REQUESTS_MAX:
            raise Overloaded(f"{len(desk.waiting)} requests of this client wait for their replies")
        now = trio.current_time()
        until = now + timeout_s
        correlation_id = str(uuid.UUID(int=desk.chance.getrandbits(128), version=4))
        own = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: desk.client_id,
            TTL: str(max(1, math.floor(timeout_s * 1000))),
        }
        out = sender.prepare(message, now, own)
        out.deadline, out.wait_until = min(out.deadline, until), min(out.wait_until, until)
        waiting, sent = _Waiting(out, desk.clock), False
        waiting.sending.deadline = until
        desk.waiting[correlation_id] = waiting.take
        self._own.add(waiting)
        try:
            await sender.compress(out)
            with waiting.sending:
                await self._make_known(out)
                await self._send(message, out, waiting)
                sent = True
            with trio.move_on_at(until):
                await waiting.done.wait()
        finally:
            del desk.waiting[correlation_id]
            self._own.discard(waiting)
        if waiting.error is not None:
            raise waiting.error
        if waiting.reply is not None:
            return waiting.reply
        what = f"message {out.unique_key} of topic {out.topic} within {timeout_s:g} s"
        if sent:
            raise ReplyTimeout(f"no reply to {what}")
        if not out.is_written:
            raise self._not_ready(out, f"nothing could be sent of {what}")
        unconfirmed = RequestTimeout(f"no broker has confirmed {what}")
        unconfirmed.advice = MAY_BE_STORED
        raise unconfirmed

    def _not_ready(self, out: Outgoing, what: str) -> NotReady:
        targets, routes = self._sender.targets.known(out.topic), self._desk.routes
        if targets is None or not targets.queues:
            return NotReady(what, address=routes.name_server, remark=routes.name_server_trouble)
        return NotReady(what, address=";".join(targets.masters))

    def close(self) -> None:
        """Fail all requests that wait for a reply: no broker finds the client any more."""
        for waiting in list(self._own):
            error = ClientClosed(f"the producer of group {self._sender.group} was closed before the reply came")
            if waiting.out.is_written:
                error.advice = MAY_BE_STORED
            waiting.fail(error)

    async def _send(self, message: Message, out: Outgoing, waiting: _Waiting) -> None:
        try:
            await self._deliver(message, out, trio.current_time())
        except MQError:
            # An attempt whose answer was lost may have been replied to.
            if waiting.reply is None:
                raise

    async def _make_known(self, out: Outgoing) -> None:
        """Wait until the brokers that may push the reply know this client: the topic's, and those for replies."""
        sender, desk = self._sender, self._desk
        targets = await sender.targets.wait_for(lambda: sender.targets.of(out.topic), out)
        masters = set(targets.masters)
        limit_s = min(KNOWN_WITHIN_S, max(0.0, out.deadline - trio.current_time()) / 2)
        with trio.move_on_after(limit_s):
            with trio.move_on_after(limit_s / 2):  # name servers may be silent
                for broker in targets.route.data.broker_datas or []:
                    masters |= await self._reply_masters(f"{broker.cluster}{REPLY_TOPIC_SUFFIX}") - self._tried
            if not desk.heartbeats.reached(masters):
                await desk.heartbeats.reach(masters)
        # An unreachable broker delays the first request only.
        self._tried |= masters

    async def _reply_masters(self, topic: str) -> set[str]:
        routes = self._desk.routes
        if topic not in self._reply_topics:
            try:
                found = await routes.refresh(topic)  # requests that begin together share this look-up
            except MQError as error:
                log.info("the route of %s is not known now: %s", topic, error.reason)
            else:
                self._reply_topics.add(topic)
                if found is not None:
                    routes.watch(topic)
        route = routes.known(topic)
        masters = (route.master(name) for name in route.addresses) if route is not None else ()
        return {address for address in masters if address is not None}


async def send_reply(
    sender: Sender,
    request: ReceivedMessage,
    body: bytes,
    properties: Mapping[str, str] | None,
    *,
    deliver: Deliver | None = None,
) -> bool:
    """Reply to a message that asks for it; see :meth:`triomq.Producer.reply`."""
    check_kind("request", request, ReceivedMessage)
    asked = request.properties
    correlation_id, client_id, cluster = asked.get(CORRELATION_ID), asked.get(REPLY_TO_CLIENT), asked.get(CLUSTER)
    if correlation_id is None or client_id is None:
        raise InvalidCall(f"{request!r} asks for no reply; only messages sent by producer.request(...) do")
    if cluster is None:
        raise InvalidCall(f"{request!r} has no property CLUSTER, which names the cluster that takes the reply")
    own = {MSG_TYPE: "reply", CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id}
    if TTL in asked:
        own[TTL] = asked[TTL]
    message = Message(f"{cluster}{REPLY_TOPIC_SUFFIX}", body, properties=properties)
    out = sender.prepare(message, trio.current_time(), own)
    await sender.compress(out)
    out.code = RequestCode.SEND_REPLY_MESSAGE_V2
    try:
        await (deliver(message, out, trio.current_time()) if deliver is not None else sender.deliver(out))
    except AskerGone as error:
        log.info("nobody waits for the reply to %r: %s", request, error.reason)
        return False
    return True
