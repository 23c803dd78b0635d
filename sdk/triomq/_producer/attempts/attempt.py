"""One attempt at sending a message, and the loop over attempts, for awaited sends and sends with a callback alike.

An attempt is a request on a link whose outcome is a result or an error, never an exception.  After each one
:meth:`Attempts.pause_after` records it and lets ``tenacity`` decide from the first attempt on, by the pure decisions of
``retry.py``, whether and when the next one follows.  Upstream: ``DefaultMQProducerImpl.sendDefaultImpl``
(docs/protocol/client.md §6.9).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from triomq._cluster.counters import TIMED_EVERY, Counters, TopicSends
from triomq._cluster.route_wait import PAUSES
from triomq._message.message import MessageQueue
from triomq._message.send_result import SendResult, SendStatus
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.attempts.request import SendRequests, outcome_of
from triomq._producer.attempts.targets import Target, Targets
from triomq._producer.strategies.faults import FaultStrategy
from triomq._producer.strategies.retry import (
    Retries,
    RetryPolicy,
    advice_of,
    attempts_text,
    error_to_raise,
    is_last_attempt,
    pause_before_retry_s,
    wants_retry,
)
from triomq._transport.link import Link, Waiter
from triomq.errors import (
    MAY_BE_STORED,
    BrokerUnavailable,
    ClientClosed,
    MQError,
    NotReady,
    RequestRejected,
    RequestTimeout,
)
from triomq.errors import Attempt as FailedAttempt
from triomq_protocol.wire.command import Command

if TYPE_CHECKING:
    import tenacity

_TIMED_MASK = TIMED_EVERY - 1
_REFUSALS = (BrokerUnavailable, RequestRejected)
"""Of brokers that stop, or have become slaves: of 4.9 with code 14, of RocketMQ 5 with code 2."""
log = logging.getLogger("triomq.producer")


class Attempt(Waiter):
    """One request for one message, waiting for its outcome on behalf of a task.

    Args:
        out: the message.
        started: on trio's clock.
    """

    __slots__ = ("_task", "address", "link", "opaque", "out", "outcome", "queue", "started")

    # Set when its request is written.
    queue: MessageQueue
    link: Link
    opaque: int

    def __init__(self, out: Outgoing, started: float) -> None:
        self.out: Outgoing = out
        self.started: float = started
        self.address: str = ""
        self.outcome: SendResult | MQError | None = None
        self._task: trio.lowlevel.Task | None = None

    def answered(self, answer: Command) -> None:
        """Called by the link's reader."""
        self.outcome = outcome_of(answer, self.queue, self.out.unique_key, self.address)
        self.ended()

    def failed(self, error: MQError) -> None:
        """Called by the link's tasks: the request is, or was, on its way."""
        if isinstance(error, ClientClosed):
            error.advice = MAY_BE_STORED
        self.unsent(error)

    def unsent(self, error: MQError) -> None:
        """Record that there is no link to send on."""
        self.outcome = error
        self.ended()

    def ended(self) -> None:
        """The outcome is known: wake the task that waits for it."""
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    async def wait(self) -> SendResult | MQError:
        """Wait for the outcome; a cancel forgets the request, and its late answer is dropped."""
        if self.outcome is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        assert self.outcome is not None
        return self.outcome

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.link.forget(self.opaque)
        return trio.lowlevel.Abort.SUCCEEDED


class Attempts:
    """Makes the attempts of one producer group's messages.

    Args:
        targets: chooses queues and links.
        requests: encodes requests.
        policy: decides which attempts are repeated.
        faults: remembers slow and broken brokers.
        chance: source of the jitter.
        group: the producer group, under which sends are counted.
        counters: the client's counters.
    """

    def __init__(
        self,
        targets: Targets,
        requests: SendRequests,
        *,
        policy: RetryPolicy,
        faults: FaultStrategy | None,
        chance: random.Random,
        group: str,
        counters: Counters,
    ) -> None:
        self._targets = targets
        self._encode = requests.encode
        self._policy = policy
        self._faults = faults
        self._chance = chance
        self._group = group
        self._counters = counters
        self._sends = TopicSends("")
        """The counters of the topic of the last send, as for :attr:`Targets.latest`."""
        # Most producers do not compare results: then any result ends the send.
        self.results_are_final = faults is None and type(policy) is Retries and not policy.retry_not_stored_ok
        # Imported by the first producer: it takes a tenth of the time of importing triomq, since it imports asyncio where
        # tornado is installed.
        import tenacity

        # One machine for all sends: it is stepped, never called, and the state of one send is in the send's own
        # RetryCallState. tenacity's own stops by time would read the real clock; this one reads trio's.
        self._retrying = tenacity.Retrying(retry=self._wants_retry, stop=self._is_last, wait=self._pause_s)
        self._retrying.begin()
        self.before_start: Callable[[], None] | None = None
        """Called before a request is written: messages that were accepted earlier are written first."""

    def start(self, attempt: Attempt, target: Target, link: Link, deadline: float) -> None:
        """Write an attempt's request; its answer must arrive before the deadline."""
        if self.before_start is not None:
            self.before_start()
        self.write(attempt, target, link, deadline)

    def write(self, attempt: Attempt, target: Target, link: Link, deadline: float) -> None:
        """:meth:`start` for a request that is next in any case."""
        opaque = link.next_opaque()
        self.aim(attempt, target, link, opaque, deadline)
        try:
            link.submit(self._encode(attempt.out, target, opaque), opaque, attempt)
        except MQError as error:
            attempt.unsent(error)

    @staticmethod
    def aim(attempt: Attempt, target: Target, link: Link, opaque: int, deadline: float) -> None:
        """Record where an attempt's request goes."""
        attempt.queue = queue = target.queue
        attempt.link = link
        attempt.address = link.address
        attempt.deadline = deadline
        attempt.opaque = opaque
        out = attempt.out
        out.last_broker = queue.broker_name
        out.is_written = True

    async def deliver_batch(self, out: Outgoing, started: float) -> SendResult:
        """:meth:`deliver` for several messages in one request."""
        result = await self.deliver(out, started)
        self.sends_to(out.topic).stored_in_batches += out.unique_key.count(",")
        return result

    async def deliver(
        self,
        out: Outgoing,
        started: float | None = None,
        ready: tuple[Target, Link, float] | None = None,
        made: Attempt | None = None,
    ) -> SendResult:
        """Make all remaining attempts.

        Args:
            out: the message.
            started: when the send began, on trio's clock; default now.
            ready: queue, link and timeout in seconds of the first attempt, if they are already chosen.
            made: the first attempt, if it has already been made.

        Raises:
            MQError: no attempt succeeded; it lists them all.
        """
        while True:
            if made is not None:
                attempt, made = made, None
            else:
                attempt = Attempt(out, trio.current_time() if started is None else started)
                started = None
                # A further attempt avoids the broker of the previous one, which may need a fresh route or a new link.
                if ready is None and out.last_broker is None and out.unready_queue is None:
                    ready = self._targets.ready_nowait(out)
                if ready is not None and attempt.started < out.deadline:
                    (target, link, timeout_s), ready = ready, None
                    self.start(attempt, target, link, min(attempt.started + timeout_s, out.deadline))
                else:
                    await self._start_when_ready(attempt)
            outcome = await attempt.wait()
            pause = self.pause_after(attempt)
            if pause is not None:
                await self._targets.pause(pause)
                continue
            if isinstance(outcome, SendResult):
                return outcome
            if out.result is not None:
                # An earlier attempt has stored the message, however weakly: it is sent.
                return out.result
            raise self.final_error(out, outcome)

    def pause_after(self, attempt: Attempt) -> float | None:
        """Record how an attempt ended; returns the seconds before the next one, None if there is none."""
        outcome = attempt.outcome
        assert outcome is not None
        if not (self.results_are_final and isinstance(outcome, SendResult)):
            return self._pause_after(attempt, outcome)
        out = attempt.out
        self.count_final(out.topic, len(out.body), attempt, outcome)
        return None

    def count_final(self, topic: str, body_bytes: int, attempt: Attempt, result: SendResult) -> None:
        """Record a send that has ended with a final result.

        Args:
            topic: the topic.
            body_bytes: size of the body as sent.
            attempt: the attempt that stored the message.
            result: its result.
        """
        # What is counted here may cost a hundredth of a send's work, so it makes no further call.
        sends = self._sends
        if sends.topic != topic:
            sends = self._sends = self.sends_to(topic)
        sends.stored = stored = sends.stored + 1
        sends.body_bytes += body_bytes
        if stored & _TIMED_MASK == 1:
            # The time of the receive that brought the answer: saves reading the clock.
            sends.took(attempt.link.received_s - attempt.started)
        if result.status:
            sends.weakly_stored(result.status.name)

    def _pause_after(self, attempt: Attempt, outcome: SendResult | MQError) -> float | None:
        out = attempt.out
        self._record(attempt, outcome)
        state = out.retry_state
        if state is None and isinstance(outcome, SendResult) and not self._policy.retries_result(outcome):
            # No decision is needed: tenacity's state and its steps would cost as much as the send itself.
            self._count_stored(attempt, outcome)
            return None
        import tenacity

        if state is None:
            state = out.retry_state = tenacity.RetryCallState(self._retrying, None, (out,), {})
        # Errors are outcomes too: nothing must be raised inside the machine.
        state.set_result(outcome)
        try:
            step = self._retrying.iter(state)
        except tenacity.RetryError:
            step = None
        if not isinstance(step, tenacity.DoSleep):
            # The state refers to the message: no cycle is left behind.
            out.retry_state = None
            if isinstance(outcome, SendResult):
                self._count_stored(attempt, outcome)
            elif out.result is not None:
                self._count_stored(attempt, out.result)
            else:
                errors, kind = self.sends_to(out.topic).errors, type(outcome).__name__
                errors[kind] = errors.get(kind, 0) + 1
            return None
        self.sends_to(out.topic).retries += 1
        if log.isEnabledFor(logging.DEBUG):
            fields = {"topic": out.topic, "group": self._group, "message_id": out.unique_key, "broker": out.last_broker}
            log.debug("message %s is sent again in %g s: %s", out.unique_key, step, outcome, extra=fields)
        state.prepare_for_next_attempt()
        return float(step)

    def count_stored(
        self, topic: str, status: SendStatus, started: Sequence[float], received_s: float, body_bytes: int
    ) -> None:
        """Record many sends that have ended with a final result, as :meth:`pause_after` does for each.

        Args:
            topic: the topic of all.
            status: the status of all.
            started: when each began, on trio's clock.
            received_s: when they ended, on trio's clock.
            body_bytes: the sizes of their bodies.
        """
        sends = self.sends_to(topic)
        # The same sends are timed as if they had ended one by one.
        for each in started[-sends.stored & _TIMED_MASK :: TIMED_EVERY]:
            sends.took(received_s - each)
        sends.stored += len(started)
        sends.body_bytes += body_bytes
        if status:
            sends.weakly_stored(status.name, len(started))

    def sends_to(self, topic: str) -> TopicSends:
        """The counters of a topic."""
        return self._counters.of_sends(self._group, topic)

    def _count_stored(self, attempt: Attempt, result: SendResult) -> None:
        out = attempt.out
        sends = self.sends_to(out.topic)
        sends.stored += 1
        sends.body_bytes += len(out.body)
        sends.took(attempt.link.received_s - attempt.started)
        if result.status:
            sends.weakly_stored(result.status.name)

    def final_error(self, out: Outgoing, outcome: MQError) -> MQError:
        """The error for the caller when the last attempt failed: of the kind that fits best, with all attempts."""
        error = error_to_raise(outcome, out.attempts)
        # Of a batch the first id is an example: all of them would hide the reason.
        first, *others = out.unique_key.split(",")
        message = f"{first} and {len(others)} more" if others else first
        final = type(error)(
            f"send to topic {out.topic}, message {message}, {attempts_text(out.attempts)}",
            address=error.address,
            code=error.code,
            remark=error.remark if error.code is not None else error.remark or error.what,
            attempts=out.attempts,
        )
        final.advice = advice_of(error, out.attempts)
        final.__cause__ = outcome
        return final

    async def _start_when_ready(self, attempt: Attempt) -> None:
        out, started = attempt.out, attempt.started
        try:
            until = started + self.timeout_s(out, started)
            target, link = await self._targets.ready(out, until)
            # Before the route was known, there could have been another broker to keep time for; and if the send had to
            # wait for its broker, the attempt begins only now.
            attempt.started = now = trio.current_time()
            until = max(until, started + self.timeout_s(out, started), now + self.timeout_s(out, now))
        except MQError as error:
            attempt.unsent(error)
        else:
            self.start(attempt, target, link, until)

    def timeout_s(self, out: Outgoing, now: float) -> float:
        """The seconds that an attempt that begins now may take.

        Raises:
            NotReady: no time is left.
        """
        left_s = out.deadline - now
        if left_s <= 0:
            raise NotReady("no time left for another attempt")
        attempts_left = self._policy.attempts - len(out.attempts)
        # There may be one, as long as the route is unknown.
        elsewhere = out.pinned is None and self._targets.several_brokers(out.topic) is not False
        return self._policy.attempt_timeout_s(left_s, attempts_left, elsewhere=elsewhere)

    def _record(self, attempt: Attempt, outcome: SendResult | MQError) -> None:
        """Add an attempt to the message's list and to the record of faults."""
        out, faults = attempt.out, self._faults
        if isinstance(outcome, SendResult):
            out.result = outcome
            if faults is not None and out.last_broker is not None:
                now = trio.current_time()
                faults.update(out.last_broker, now - attempt.started, now, isolate=False)
            return
        now = trio.current_time()
        out.attempts.append(FailedAttempt(outcome.address or attempt.address, outcome, now - attempt.started))
        out.refresh_route = out.refresh_route or outcome.refresh_route
        if isinstance(outcome, RequestTimeout) and not isinstance(outcome, NotReady):
            # For the sends that follow: the attempts of this one may have taken all of its time.
            self._targets.doubt(out.topic, attempt.address, "no answer in time")
        elif isinstance(outcome, _REFUSALS):
            # A send to a given queue has no further attempt that would ask for the route.
            self._targets.doubt(out.topic, attempt.address, "it takes no messages")
        if faults is not None and out.last_broker is not None:
            faults.update(out.last_broker, now - attempt.started, now, isolate=True)

    # --- called by tenacity ----------------------------------------------------------------------------------

    def _wants_retry(self, state: tenacity.RetryCallState) -> bool:
        out: Outgoing = state.args[0]
        assert state.outcome is not None
        if out.pinned is not None or out.waited_in_vain:
            return False
        elsewhere = self._targets.several_brokers(out.topic) is True
        return wants_retry(self._policy, state.outcome.result(), elsewhere=elsewhere)

    def _is_last(self, state: tenacity.RetryCallState) -> bool:
        out: Outgoing = state.args[0]
        left_s = out.deadline - trio.current_time()
        if not is_last_attempt(state.attempt_number, self._policy.attempts, left_s):
            return False
        return self._further_pause_s(state) is None

    def _further_pause_s(self, state: tenacity.RetryCallState) -> float | None:
        """The pause before an attempt beyond the policy's limit, None if there is none.

        A broker that stops, or has become a slave, refuses at once: the attempts would be used up long before there is
        another master. So the send waits for it, as it does while no broker can be reached.
        """
        out: Outgoing = state.args[0]
        assert state.outcome is not None
        beyond = state.attempt_number - self._policy.attempts + 1
        if beyond < 1 or self._policy.attempts < 2 or out.result is not None:
            return None
        if not isinstance(state.outcome.result(), _REFUSALS):
            return None
        pause_s = PAUSES.pause_s(beyond, self._chance.random())
        left_s = min(out.deadline, out.wait_until) - trio.current_time()
        return pause_s if PAUSES.pause_s(beyond, 0.0) < left_s else None

    def _pause_s(self, state: tenacity.RetryCallState) -> float:
        out: Outgoing = state.args[0]
        further_s = self._further_pause_s(state)
        if further_s is not None:
            return further_s
        return pause_before_retry_s(
            self._policy,
            state.attempt_number,
            self._chance.random(),
            elsewhere=self._targets.several_brokers(out.topic) is True,
            redial_in_s=self._targets.redial_in_s(out),
            left_s=out.deadline - trio.current_time(),
        )
