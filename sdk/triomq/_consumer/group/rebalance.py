"""Rebalancing: shares a group's queues among its members, and takes or gives up queues (docs/protocol/consumer.md §11).

Decisions are pure functions (``shares.py``); the loop fetches their input and asks its assignee, the consumer, to give
up queues, all together, and to take others, one by one at each broker.  If any input is missing, nothing changes.
Upstream: ``RebalanceService``, ``RebalanceImpl``.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Final, Protocol

import attrs
import trio

from triomq._cluster.route import Route
from triomq._cluster.routes import Routes
from triomq._consumer.group.allocate import AllocateStrategy, Average, in_namespace, sorted_members, sorted_queues
from triomq._consumer.group.by_broker import at_each_broker
from triomq._consumer.group.callbacks import ConsumerEvent, reporter
from triomq._consumer.group.members import Members
from triomq._consumer.group.shares import Moves, duplicate_ids, pause_after_round, plan_moves, work_out_share
from triomq._error_text import one_line
from triomq._message.message import MessageQueue
from triomq._transport.peer_log import PeerLog
from triomq.errors import BrokerNotFound, MQError, NoNameServer, TransientError
from triomq_protocol.names import RETRY_PREFIX

log = logging.getLogger("triomq.rebalance")

REBALANCE_EVERY_S: Final = 20.0
"""How often shares are computed again if no notification arrives (``rocketmq.client.rebalance.waitInterval``)."""

HAND_OVER_S: Final = 0.1
"""How long a member waits before it takes queues that others may have: these learn of the change at the same time, and
commit. Otherwise it would begin at the commit before that, several seconds back."""

ROUTE_SPREAD_S: Final = 60.0
"""How long after a topic's queues have changed other members may have those of its earlier route: they look at routes
every 30 s, and Java's members then rebalance every 20 s."""

LOOK_EVERY_S: Final = 5.0
"""How often changes of the members make this one look at the topics' routes: when hundreds start, each is a change."""

DUPLICATE_AFTER_S: Final = 150.0
"""How long an id must be listed twice to be reported. A member whose link broke without being closed is listed by the
new link and by the old one, until the broker ends that: after 120 s without a byte, which it looks for every 10 s."""


class Assignee(Protocol):
    """The consumer whose queues are moved.  None of its methods may raise for a broker's faults."""

    def expect(self, topic: str, queues: int, /) -> None:
        """Called before queues of a topic are taken: with those that are ours, as many should be."""

    async def assigned(self, queue: MessageQueue, /) -> bool:
        """Take a queue: lock it if needed, find its start, start pulling.  False: not now, ask again."""

    async def revoked(self, queues: Sequence[MessageQueue], /) -> Collection[MessageQueue]:
        """Give queues up: stop pulling, persist their offsets, forget them, unlock them.

        Returns:
            Those that were given up; the others cannot be now, ask again.
        """

    async def kept(self, queue: MessageQueue, /) -> bool:
        """A queue stays ours in this round.  False: it is not known yet whether it was ours all the time, ask again."""

    async def topic_changed(self, topic: str, /) -> None:
        """Called after a round that moved queues of a topic."""

    def left_to_others(self, queues: Collection[MessageQueue], /) -> None:
        """Called in each round, after queues were given up: these queues of a topic are other members'."""

    def is_stuck(self, queue: MessageQueue, /) -> bool:
        """Whether an owned queue is not pulled any more, so that it should be given up and taken again."""


@attrs.frozen
class _TopicShare:
    """This member's share of one topic in one round.

    Args:
        topic: the topic.
        queues: the queues that should be ours; None: leave everything as it is.
        members: the number of members, for the log.
        done: whether nothing is missing that must be asked for in a second.
        is_listed: whether the members are known, if they matter.
        others: the topic's other queues, which other members have.
        previous: those of the queues that others may have until they know the topic's new route -> the member.
    """

    topic: str
    queues: tuple[MessageQueue, ...] | None = ()
    members: int = 0
    done: bool = True
    is_listed: bool = True
    others: frozenset[MessageQueue] = frozenset()
    previous: Mapping[MessageQueue, str] = attrs.field(factory=dict)


@attrs.define
class _KnownQueues:
    """The queues of one topic, and for some time after a change what they were before.

    Attributes:
        now: by its newest route.
        before: by the one before, until :data:`ROUTE_SPREAD_S` after the change.
        changed_s: when it changed, on trio's clock.
    """

    now: frozenset[MessageQueue]
    before: frozenset[MessageQueue] = frozenset()
    changed_s: float = -math.inf

    def note(self, queues: Collection[MessageQueue]) -> None:
        """Take the queues of the newest route."""
        time_s = trio.current_time()
        if self.now != (now := frozenset(queues)):
            self.before, self.now, self.changed_s = self.now, now, time_s
        elif time_s - self.changed_s > ROUTE_SPREAD_S:
            self.before = frozenset()


class Rebalance:
    """The rebalance loop of one consumer: every 20 s, and when woken; a wake-up during a round causes one more.

    Args:
        group: the consumer group.
        client_id: this member's client id.
        assignee: the consumer.
        topics: returns the subscribed topics.
        routes: the topics' routes.
        members: the members of the group; None: every member has all queues (broadcast).
        strategy: assigns queues to members.
        beat: sends heartbeats now.
        report: called with events ``not_a_member`` and ``duplicate_client_id``.
        changed: called when a round has changed the queues of a topic.
        every_s: seconds between two rounds.
    """

    def __init__(
        self,
        group: str,
        client_id: str,
        assignee: Assignee,
        *,
        topics: Callable[[], Collection[str]],
        routes: Routes,
        members: Members | None,
        beat: Callable[[], Awaitable[None]],
        strategy: AllocateStrategy | None = None,
        report: Callable[[ConsumerEvent], None] | None = None,
        changed: Callable[[], None] | None = None,
        every_s: float = REBALANCE_EVERY_S,
    ) -> None:
        self.owned: set[MessageQueue] = set()
        """The queues that are ours; changed only by the loop and by :meth:`release`."""
        self.rounds = 0
        """The number of rounds that have begun."""
        self._group = group
        self._client_id = client_id
        self._assignee = assignee
        self._topics = topics
        self._routes = routes
        self._members = members
        self._beat = beat
        self._strategy = in_namespace(strategy if strategy is not None else Average(), routes.namespace)
        self._report = report if report is not None else reporter(None)
        self._changed = changed
        self._lines = PeerLog(log)
        self._every_s = every_s
        self._woken = trio.Event()
        self._looked_s = -math.inf
        self._suspended = False
        self._absent: set[str] = set()
        self._missing_since: dict[str, float] = {}
        """Since when a subscribed topic has been unknown, on trio's clock."""
        self._unanswered_round = 0
        """The last round in which no name server could be asked."""
        self._known: dict[str, _KnownQueues] = {}
        """Topic -> its queues, for those that the members share."""
        self._unlisted_since: dict[str, float] = {}
        """Since when no broker of a topic has listed the members, on trio's clock."""
        self._is_done = False
        """Whether the last round left nothing undone, except for topics that are missing or unlisted."""
        self._twice_since: dict[str, float] = {}
        """When an id was first seen twice, on trio's clock; infinity once that is reported."""
        self._round = trio.Lock()

    def wake(self) -> None:
        """Start a round as soon as possible."""
        self._woken.set()

    def members_changed(self) -> None:
        """Start a round, and look at the topics' routes: a member that has just joined knows the newest, and takes its
        queues by them."""
        now = trio.current_time()
        if self._members is not None and now >= self._looked_s + LOOK_EVERY_S:
            self._looked_s = now
            for topic in self._topics():
                self._routes.look_soon(topic)
        self.wake()

    def suspend(self) -> None:
        """Start no more rounds until :meth:`resume`; a running round is not stopped."""
        self._suspended = True

    def resume(self) -> None:
        """Start rounds again, the first one now."""
        self._suspended = False
        self.wake()

    def release(self, queue: MessageQueue) -> None:
        """Release a queue that the consumer has dropped by itself; the next round may take it again."""
        self.owned.discard(queue)

    async def run(self) -> None:
        """Rebalance until cancelled."""
        self._routes.changed.append(self._on_route)
        following = self._members.following(self._topics) if self._members is not None else nullcontext()
        try:
            with following:
                await self._keep_rebalancing()
        finally:
            self._routes.changed.remove(self._on_route)

    async def _keep_rebalancing(self) -> None:
        pause_s = 0.0
        while True:
            with trio.move_on_after(pause_s):
                await self._woken.wait()
            self._woken = trio.Event()
            if not self._suspended:
                await self.rebalance()
            pause_s = pause_after_round(
                self._every_s,
                done=self._suspended or self._is_done,
                now=trio.current_time(),
                missing_since=self._missing_since.values(),
                unlisted_since=self._unlisted_since.values(),
            )

    async def rebalance(self) -> bool:
        """Make one round over all topics.

        Returns:
            Whether everything was done.
        """
        async with self._round:
            self.rounds += 1
            if self._members is not None:
                self._members.begin_round()
            topics = sorted(self._topics())
            self._missing_since = {topic: at for topic, at in self._missing_since.items() if topic in topics}
            self._known = {topic: known for topic, known in self._known.items() if topic in topics}
            # At once: what follows may wait for brokers.
            done = await self._apply(
                [_TopicShare(topic) for topic in sorted({queue.topic for queue in self.owned} - set(topics))]
            )
            shares = [await self._work_out(topic) for topic in topics]
            done &= all(share.done for share in shares)
            now, unlisted = trio.current_time(), [share.topic for share in shares if not share.is_listed]
            self._unlisted_since = {topic: self._unlisted_since.get(topic, now) for topic in unlisted}
            done &= await self._apply([share for share in shares if share.queues is not None])
            self._is_done = done
        return done and not unlisted

    async def _work_out(self, topic: str) -> _TopicShare:
        queues = await self._queues(topic)
        if queues is None:
            return _TopicShare(topic, None, done=False)
        if queues or topic.startswith(RETRY_PREFIX):  # which is created at the first failure
            self._missing_since.pop(topic, None)
        else:
            self._missing_since.setdefault(topic, trio.current_time())
        if self._members is None:
            return _TopicShare(topic, queues or None)
        members = await self._members_of(self._members, topic, queues) if queues else None
        share = work_out_share(self._client_id, queues, members, self._strategy, was_absent=topic in self._absent)
        if share.failure is not None:
            self._log_failure(topic, share.failure)
        if members:
            self._note_duplicates(members)
        count, others = len(set(members or ())), frozenset(queues).difference(share.queues or ())
        if not share.is_member:
            given_up = share.queues is not None
            self._absent.add(topic)
            what = "its queues are given up" if given_up else "its queues stay, and a heartbeat is sent"
            text = f"the broker does not list {self._client_id} in group {self._group}; of topic {topic}, {what}"
            if given_up or any(queue.topic == topic for queue in self.owned):
                self._report(ConsumerEvent("not_a_member", text))
            else:
                log.debug("%s", text)  # it has just joined, and its heartbeat has not reached this broker yet
            await self._beat()
            return _TopicShare(topic, share.queues, count, done=False, others=others)
        self._absent.discard(topic)
        if members and self._members.expects_more:
            # Members that have just joined do not expect them, and may take the same queues.
            kept = tuple(self.owned.intersection(share.queues)) if share.queues is not None else None
            return _TopicShare(topic, kept, count, done=False, others=others)
        previous = await self._previous_owners(topic, share.queues or (), members) if members else {}
        done, is_listed = share.queues is not None or not members, bool(members) or not queues
        return _TopicShare(topic, share.queues, count, done=done, is_listed=is_listed, others=others, previous=previous)

    def _log_failure(self, topic: str, failure: Exception) -> None:
        # The round is repeated every second.
        name = getattr(self._strategy, "__qualname__", type(self._strategy).__name__)
        text = "the allocation strategy %s failed; the queues stay as they are"
        self._lines.write(logging.ERROR, f"group {self._group}, topic {topic}:", text, name, failure=failure)

    async def _members_of(self, members: Members, topic: str, queues: Collection[MessageQueue]) -> list[str] | None:
        known = self._known.setdefault(topic, _KnownQueues(frozenset(queues)))
        known.note(queues)
        return await (members.of_all_brokers(topic) if known.before else members.of(topic))

    async def _previous_owners(
        self, topic: str, mine: Collection[MessageQueue], members: Collection[str]
    ) -> dict[MessageQueue, str]:
        """Who may have this member's queues by the route before a change, of which it may not know yet."""
        before = self._known[topic].before
        moved = set(before.intersection(mine).difference(self.owned))
        found: dict[MessageQueue, str] = {}
        if not moved:
            return found
        # Sorted once, and not for each member: that would take longer than most strategies.
        queues, group = sorted_queues(before), sorted_members(set(members))
        for member in sorted(group, key=lambda each: each != self._client_id):
            if not moved:
                break
            await trio.lowlevel.checkpoint()  # some strategies take milliseconds
            try:
                theirs = moved.intersection(self._strategy(member, [*queues], [*group]))
            except Exception:
                # A user's own may know this member only. Nobody is asked then.
                log.debug("who had queues of %s before is not known", topic, exc_info=True)
                break
            moved -= theirs
            if member != self._client_id:
                found |= dict.fromkeys(theirs, member)
        return found

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """A topic's queues, empty for an unknown topic; None if name servers or brokers cannot be reached."""
        if self._unanswered_round == self.rounds and self._routes.known(topic) is None:
            return () if topic.startswith(RETRY_PREFIX) else None  # they would be dialled for each topic
        try:
            return (await self._routes.for_subscribing(topic)).subscribe_queues
        except (NoNameServer, BrokerNotFound, TransientError) as error:
            if isinstance(error, NoNameServer):
                self._unanswered_round = self.rounds
            # The end of an outage must be noticed soon, however long it lasts: the topics may have changed.
            log.debug("no queues of %s: %s", topic, error.reason)
            # A retry topic need not exist. Its group has other topics: it alone is no reason to ask each second.
            return () if topic.startswith(RETRY_PREFIX) else None
        except MQError as error:
            # Common for a retry topic that has no message yet.
            log.debug("no queues of %s: %s", topic, error.reason)
            return ()

    async def _apply(self, shares: Sequence[_TopicShare]) -> bool:
        stuck = {queue for queue in self.owned if self._assignee.is_stuck(queue)}
        before: defaultdict[str, set[MessageQueue]] = defaultdict(set)
        for queue in self.owned:
            before[queue.topic].add(queue)
        planned: list[tuple[_TopicShare, set[MessageQueue], Moves]] = []
        for share in shares:
            owned = before[share.topic]
            planned.append((share, owned, plan_moves(owned, share.queues or (), stuck & owned)))
        revoke = [queue for _, _, moves in planned for queue in moves.revoke]
        done = True
        if revoke:
            # Their offsets are persisted in there: their next owners read them from the brokers. All together: a broker
            # that is silent would be waited for at each of its queues, while they have no owner.
            given_up = await self._assignee.revoked(revoke)
            self.owned.difference_update(given_up)
            done = len(given_up) == len(revoke)
        kept = [queue for _, owned, moves in planned for queue in owned.difference(moves.revoke)]
        done &= await self._keep(kept)
        if any(moves.assign and share.members > 1 for share, _, moves in planned):
            await trio.sleep(HAND_OVER_S)
        held = await self._held_by_others(planned)
        for share, owned, moves in planned:
            self._assignee.left_to_others(share.others)
            still_ours = len(owned.difference(moves.revoke))
            self._assignee.expect(share.topic, still_ours + len(set(moves.assign).difference(held)))
        # All together, as above.
        done &= await self._take([queue for _, _, moves in planned for queue in moves.assign if queue not in held])
        for share, owned, moves in planned:
            await self._note_changes(share, owned, moves)
        return done and not held

    async def _held_by_others(
        self, planned: Sequence[tuple[_TopicShare, set[MessageQueue], Moves]]
    ) -> set[MessageQueue]:
        """Queues to be taken that other members have still, as they do not know a topic's new route yet."""
        owners = {
            queue: share.previous[queue]
            for share, _, moves in planned
            for queue in moves.assign
            if queue in share.previous
        }
        if not owners or self._members is None:
            return set()
        held = await self._members.still_have(owners)
        if held:
            log.debug("other members have %d queues still, by a topic's earlier route", len(held))
        return held

    async def _keep(self, queues: Collection[MessageQueue]) -> bool:
        """Returns whether all stay ours for certain."""
        done = True

        @trio.lowlevel.enable_ki_protection
        async def keep_at_one_broker(theirs: Collection[MessageQueue]) -> None:
            nonlocal done
            for queue in theirs:
                is_kept = await self._assignee.kept(queue)
                done = done and is_kept  # read after the wait: the task of another broker may have changed it

        await at_each_broker(sorted_queues(queues), keep_at_one_broker)
        return done

    async def _take(self, queues: Collection[MessageQueue]) -> bool:
        """Returns whether all are ours now."""
        done = True

        @trio.lowlevel.enable_ki_protection
        async def take_at_one_broker(theirs: Collection[MessageQueue]) -> None:
            nonlocal done
            for queue in theirs:
                # One that had to be taken again may not have been given up; or the caller has unsubscribed meanwhile,
                # and woken the next round.
                if queue in self.owned or queue.topic not in self._topics():
                    continue
                if await self._assignee.assigned(queue):
                    self.owned.add(queue)
                else:
                    done = False

        await at_each_broker(queues, take_at_one_broker)
        return done

    async def _note_changes(self, share: _TopicShare, before: set[MessageQueue], moves: Moves) -> None:
        topic = share.topic
        now = {queue for queue in (*before, *moves.assign) if queue in self.owned}
        if now != before or any(queue in now for queue in moves.revoke):
            if self._changed is not None:
                self._changed()
            await self._assignee.topic_changed(topic)
            log.info(
                "group %s: this member has %d queues of %s, shared among %d members",
                self._group,
                len(now),
                topic,
                share.members,
                extra={"group": self._group, "topic": topic},
            )

    def _note_duplicates(self, members: Collection[str]) -> None:
        twice, now = duplicate_ids(members), trio.current_time()
        for gone in self._twice_since.keys() - set(twice):
            del self._twice_since[gone]
        for each in twice:
            if now - self._twice_since.setdefault(each, now) >= DUPLICATE_AFTER_S:
                self._twice_since[each] = math.inf
                text = (
                    f"two members of group {self._group} have the client id {one_line(each)}: queues are handled twice "
                    "or not at all; give one of them another instance_name"
                )
                self._report(ConsumerEvent("duplicate_client_id", text))

    def _on_route(self, route: Route) -> None:
        # A topic that appears, grows or loses a broker is rebalanced now and not in 20 s.
        if route.topic in self._topics():
            self.wake()
