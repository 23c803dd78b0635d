"""A consumer's membership in its group: the common part of push and lite pull consumers.

A membership joins the group, announces subscriptions by heartbeats, owns the consumer's tasks, and leaves at the end.
Taking and giving up queues differs, and is in ``push/membership.py`` and ``lite/membership.py``.  Brokers and the client
call memberships; users hold the consumers.  After a lost connection its queues are in doubt until it has rejoined
(``group/rejoining.py``).  Upstream: ``DefaultMQPushConsumerImpl``, ``DefaultLitePullConsumerImpl``.

All members own their tasks alike: one task in the client's nursery, which opens the member's own nursery.  A failure
in it ends only this consumer: it is logged, the member leaves the group, and tasks that wait for messages get the error.
"""

from __future__ import annotations

import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import attrs
import trio

from triomq._arguments.numbers import seconds_between
from triomq._cluster.broker_links import BrokerLinks
from triomq._cluster.broker_offsets import BrokerOffsets
from triomq._cluster.broker_requests import BrokerRequests
from triomq._cluster.counters import Counters
from triomq._cluster.heartbeats import Heartbeats
from triomq._cluster.identity import Clock, UniqueKeys
from triomq._cluster.queue_bounds import QueueBounds
from triomq._cluster.replica_choice import ReadPreference, read_preference_of
from triomq._cluster.route_wait import RouteWait
from triomq._cluster.routes import Routes
from triomq._constructors import construct
from triomq._consumer.filter_checks import FilterChecks
from triomq._consumer.group.allocate import AllocateStrategy, check_strategy, sorted_queues
from triomq._consumer.group.by_broker import at_each_broker
from triomq._consumer.group.callbacks import ConsumerCallbacks, OnQueues, call_at_end, call_with_queues, reporter
from triomq._consumer.group.members import Members
from triomq._consumer.group.positions import (
    COMMIT_BOUNDS_S,
    END_TIMEOUT_S,
    IllegalOffset,
    Positions,
    StartFrom,
    consume_from_where,
)
from triomq._consumer.group.process_queue import FlowLimits
from triomq._consumer.group.pull_loop import PulledQueue, PullEngine, PullSettings, PullSink
from triomq._consumer.group.rebalance import Rebalance
from triomq._consumer.group.rejoining import Rejoining
from triomq._consumer.offset_files import FileOffsets, InstanceOffsets, kept_elsewhere, offset_file
from triomq._consumer.offset_store import CheckedStore, OffsetStore
from triomq._consumer.puller import Puller
from triomq._error_text import shown
from triomq._message.hooks import FilterHook, PullHook
from triomq._message.log_fields import queue_fields
from triomq._message.message import MessageQueue, check_group
from triomq._message.subscription import Subscription, next_version_ms, retry_topic
from triomq._tasks.exception_groups import without_groups
from triomq._tasks.own_callbacks import OwnCallbacks
from triomq._transport.links import NO_ANSWER, Links
from triomq.errors import ClientClosed, InvalidCall, MQError
from triomq_protocol.requests import ConsumeMessageDirectlyResult, ConsumerData, ConsumerRunningInfo
from triomq_protocol.requests.heartbeat import BROADCASTING, CLUSTERING, CONSUME_ACTIVELY, CONSUME_PASSIVELY

log = logging.getLogger("triomq.consumer")

MessageModel = Literal["clustering", "broadcasting"]
"""Whether the members of a group share its queues, or each has all of them."""

MODELS: Final[dict[MessageModel, str]] = {"clustering": CLUSTERING, "broadcasting": BROADCASTING}
"""The users' name of a message model -> its name in heartbeats."""


LAST_READ_S: Final = 1.0
"""How long a broker may take to say how far the group is in a queue in doubt that is given up: it has to be waited for
besides, and at the end of a consumer twice, if that gives queues up just then."""

UNLOCK_S: Final = 0.2
"""How much of the time for giving queues up is left for unlocking, if commits are not answered: a broker that only
pauses would keep the locks for a minute, and gets this when it goes on."""


def time_to_commit() -> trio.CancelScope:
    """The time for the last commits of queues that are unlocked afterwards, within that of the caller for both."""
    return trio.CancelScope(deadline=trio.current_effective_deadline() - UNLOCK_S)


@attrs.frozen(kw_only=True)
class ClientResources:
    """The resources of a client that its consumers use.

    Args:
        client_id: the id under which brokers know it.
        file_id: the id of its local offset files, the same after a restart; None for a client without a name.
        instance_offsets: group -> the offsets of its broadcasting consumers, for a client without a name.
        routes: where topics live.
        links: the links to brokers.
        heartbeats: report the groups of this client.
        requests: answers brokers' requests.
        nursery: runs the consumers.
        unique_keys: creates message ids.
        clock: wall clock in ms.
        chance: source of random choices.
        route_wait: makes users' calls wait for a broker.
        unit_mode: whether the client's groups belong to a unit.
        counters: the client's counters.
    """

    client_id: str
    file_id: str | None
    instance_offsets: dict[str, InstanceOffsets] = attrs.Factory(dict)
    routes: Routes
    links: Links
    heartbeats: Heartbeats
    requests: BrokerRequests
    nursery: trio.Nursery
    unique_keys: UniqueKeys
    clock: Clock
    chance: random.Random
    route_wait: RouteWait
    unit_mode: bool = False
    counters: Counters


@attrs.frozen(kw_only=True)
class GroupOptions:
    """The options of both push and lite pull consumers; see ``client.push_consumer``."""

    group: str
    model: MessageModel
    start_from: StartFrom
    allocate: AllocateStrategy | None
    limits: FlowLimits
    offset_store: OffsetStore | None
    illegal_offset: IllegalOffset | str
    commit_every_s: float = attrs.field(validator=seconds_between(*COMMIT_BOUNDS_S))
    read_preference: ReadPreference | str | int
    pull_hooks: Sequence[PullHook]
    filter_hooks: Sequence[FilterHook]
    callbacks: ConsumerCallbacks


class Membership(ABC):
    """One consumer's membership; heartbeats report it from its creation on.

    Args:
        client: the client's resources.
        options: the caller's.
        left: called when it has left the group.
        lite: whether the consumer polls.

    Raises:
        InvalidCall: an option or the group's name cannot be used, or the client is in the group already.

    Attributes:
        subscriptions: topic -> its subscription, including the retry topic's.
        engine: pulls the assigned queues; created by the subclass.
        rejoining: follows lost connections.
        started: whether its tasks were started.
        failure: the error that ended it, if a task failed.
    """

    engine: PullEngine

    def __init__(
        self, client: ClientResources, options: GroupOptions, *, left: Callable[[], object], lite: bool
    ) -> None:
        check_group(options.group)
        check_strategy(options.allocate)
        if options.model not in list(MODELS):  # it may be unhashable
            raise InvalidCall(f"no message model {shown(options.model)}; there are {', '.join(MODELS)}")
        self.group = options.group
        self.callbacks = options.callbacks
        self.subscriptions: dict[str, Subscription] = {}
        self.announced: dict[str, Subscription] = {}
        """Topic -> its subscription in heartbeats; changed only by :meth:`announce` and :meth:`withdraw`."""
        self._newest_version_ms = 0
        self.report = reporter(options.callbacks.on_event)
        self.started = False
        self.closed = False
        self.failure: Exception | None = None
        self._client = client
        self._model = options.model
        self._lite = lite
        self._left = left
        self._filter_hooks = tuple(options.filter_hooks)
        self._nursery: trio.Nursery | None = None
        self._starts_tasks = False
        self._starting = trio.Lock()
        self._tasks = trio.CancelScope()
        self._tasks_ended = trio.Event()
        self._rebalancing = trio.CancelScope()
        self._rebalancing_ended = trio.Event()
        self.own_callbacks = OwnCallbacks("" if lite else "call drain(), which does not wait, or ")
        self.calling_assigned = trio.Lock()
        """Held while ``on_assigned`` is called: once at a time, although queues of several brokers are taken together."""
        self._is_leaving = False
        self._silent: dict[str, int] = {}
        """Broker -> the last round of the rebalance in which it did not answer."""
        self.puller = Puller(
            self.group,
            client.routes,
            client.links,
            counters=client.counters,
            preference=read_preference_of(options.read_preference),
            hooks=options.pull_hooks,
            chance=client.chance,
            beat=client.heartbeats.beat,
            introduction=client.heartbeats.first_beat,
        )
        self.bounds = construct(QueueBounds, self.puller.brokers)
        self._offset_file: FileOffsets | None = None
        self._ends_with_client = False
        self._filters = FilterChecks(client.client_id, client.routes, client.links, client.heartbeats, client.chance)
        try:
            self.positions = Positions(
                self._offset_store(options.offset_store, self.puller.brokers),
                self.bounds,
                start_from=options.start_from,
                illegal_offset=options.illegal_offset,
                commit_every_s=options.commit_every_s,
                report=self.report,
            )
            client.heartbeats.add_consumer(self.group, self._heartbeat_data({}))
        except InvalidCall:
            self.puller.close()
            raise
        self.rebalance = Rebalance(
            self.group,
            client.client_id,
            self,
            topics=self.shared_topics,
            routes=client.routes,
            members=None if self.broadcasts else Members(self.group, client.routes, client.links, client.chance),
            beat=client.heartbeats.beat,
            strategy=options.allocate,
            report=self.report,
            changed=partial(client.counters.rebalanced, self.group),
        )
        client.requests.consumers[self.group] = self
        self.rejoining = Rejoining(
            client.routes, client.links, self.rebalance, doubt=self._doubt, report=self._report_again
        )

    @property
    def broadcasts(self) -> bool:
        """Whether every member of the group has all queues."""
        return self._model == "broadcasting"

    def check_open(self) -> None:
        """Raise the error that ended the consumer, or :class:`ClientClosed` if it was closed."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed")

    def _offset_store(self, given: OffsetStore | None, brokers: BrokerLinks) -> OffsetStore:
        if given is not None:
            return CheckedStore(given)
        if self.broadcasts and self._client.file_id is not None:
            self._offset_file = FileOffsets(offset_file(self._client.file_id, self.group))
            return self._offset_file
        if self.broadcasts:
            self._ends_with_client = True
            return self._client.instance_offsets.setdefault(self.group, InstanceOffsets())
        return BrokerOffsets(
            self.group,
            brokers,
            lambda queue, _offset: self.positions.to_write(queue),
            lambda queue, offset: self.positions.note_persisted(queue, offset),
        )

    def _make_engine(
        self, sink: PullSink, settings: PullSettings, held_back: Callable[[PulledQueue], bool] | None
    ) -> PullEngine:
        return PullEngine(
            puller=self.puller,
            counters=self._client.counters,
            positions=self.positions,
            subscription=self.subscriptions.get,
            announced=self.announced.get,
            sink=sink,
            settings=settings,
            beat=self._client.heartbeats.beat,
            report=self.report,
            held_back=held_back,
            filter_hooks=self._filter_hooks,
        )

    # --- subscriptions ---------------------------------------------------------------------------------------

    @abstractmethod
    def shared_topics(self) -> Collection[str]:
        """The topics whose queues the group shares."""

    def numbered(self, subscription: Subscription) -> Subscription:
        """A copy with a version newer than all others: brokers keep only the subscription with the highest version.

        Call it just before :meth:`announce`, since another task may have announced the topic meanwhile.
        """
        self._newest_version_ms = next_version_ms(self._client.clock(), self._newest_version_ms)
        return attrs.evolve(subscription, version_ms=self._newest_version_ms)

    async def announce(self, *changed: Subscription, look_up: bool = False) -> None:
        """Send heartbeats with these subscriptions in addition to those already announced, now and from now on.

        Several tasks may announce at the same time; heartbeats carry the newest version of every subscription.

        Args:
            changed: new subscriptions, and new versions.
            look_up: first find the topics' brokers, in case they are not known yet.
        """
        for subscription in changed:
            self.announced[subscription.topic] = subscription
        await self._announce_all(look_up=look_up)

    async def withdraw(self, topic: str, *, look_up: bool = False) -> None:
        """Send heartbeats without a topic, now and from now on.

        Args:
            topic: the topic; it may be unknown.
            look_up: as for :meth:`announce`.
        """
        self.announced.pop(topic, None)
        self.positions.forget_left_topic(topic)
        await self._announce_all(look_up=look_up)

    async def _announce_all(self, *, look_up: bool) -> None:
        self._client.heartbeats.update_consumer(self.group, self._heartbeat_data(self.announced))
        if look_up:
            for topic in list(self.announced):
                try:
                    await self._client.routes.for_subscribing(topic)
                except MQError:
                    # No broker serves it yet; one that serves it later gets a heartbeat then.
                    continue
        await self._client.heartbeats.beat()

    async def check_filter(self, subscription: Subscription) -> None:
        """Ask the topic's brokers whether they support a filter; tags need no check.

        Raises:
            MQError: they do not support it, or cannot be asked.
        """
        if not subscription.filters_by_tag:
            await self._filters.check(self.group, subscription)

    def _heartbeat_data(self, subscriptions: Mapping[str, Subscription]) -> ConsumerData:
        return ConsumerData(
            consume_from_where=consume_from_where(self.positions.start_from),
            consume_type=CONSUME_ACTIVELY if self._lite else CONSUME_PASSIVELY,
            group_name=self.group,
            message_model=MODELS[self._model],
            subscription_data_set=[each.data(self._client.routes.namespace) for each in subscriptions.values()],
            unit_mode=self._client.unit_mode,
        )

    # --- tasks -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the tasks, unless they are already running."""
        async with self._starting:
            self.check_open()
            if not self.started:
                if self._offset_file is not None:
                    await self._offset_file.claim()
                    await self._warn_of_offsets_elsewhere()
                elif self._ends_with_client:
                    log.warning(
                        "the offsets of broadcasting group %s end with this client, since it has no instance_name: after "
                        "a restart the group starts at %r again; open_client(..., instance_name=...) keeps them in a file",
                        self.group,
                        self.positions.start_from,
                    )
                # Shielded: it waits for no other process, and a member whose start was interrupted cannot start again.
                with trio.CancelScope(shield=True):
                    await self._client.nursery.start(self._run)

    @abstractmethod
    def _start_tasks(self, nursery: trio.Nursery) -> None:
        """Start the tasks of this kind of consumer in addition to pulling and rebalancing."""

    @abstractmethod
    def _raise_to_waiters(self, error: Exception) -> None:
        """Raise this error to all who wait for messages: the consumer cannot continue."""

    def spawn(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Start a task in the member's nursery; does nothing if that has been cancelled or has ended."""
        if self._nursery is not None and self._starts_tasks:
            self._nursery.start_soon(function, *args)

    @trio.lowlevel.enable_ki_protection
    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self._tasks:
                async with trio.open_nursery() as nursery:
                    self._nursery, self._starts_tasks = nursery, True
                    await nursery.start(self.engine.run)
                    nursery.start_soon(self._keep_rebalancing)
                    if not self.broadcasts:
                        nursery.start_soon(self.rejoining.run)
                    self._start_tasks(nursery)
                    self.started = True
                    task_status.started()
                    try:
                        await trio.sleep_forever()
                    finally:
                        self._starts_tasks = False  # a handler may ask for one yet, when the nursery has closed
        except Exception as error:
            if not self.started:
                raise _plain(error) from None
            # The outermost handler of the consumer's tasks.
            self._nursery = None
            self.failure = cause = _plain(error)
            log.exception("a task of the consumer of group %s failed; the consumer ends", self.group, exc_info=cause)
            self._raise_to_waiters(cause)
            await self._leave()
        finally:
            self._nursery = None
            self._close_offset_file()
            self._rebalancing_ended.set()
            self._tasks_ended.set()

    @trio.lowlevel.enable_ki_protection
    async def _keep_rebalancing(self) -> None:
        try:
            with self._rebalancing:
                await self.rebalance.run()
        finally:
            self._rebalancing_ended.set()

    def assignment(self) -> list[MessageQueue]:
        """The assigned queues, sorted, without the retry topic's."""
        return sorted_queues([queue for queue in self.engine.queues if queue.topic != retry_topic(self.group)])

    def go_to(self, queue: MessageQueue, offset: int) -> None:
        """Continue elsewhere in a queue; its pulled messages are given up.

        Raises:
            InvalidCall: the queue is no longer assigned, or another member has its lock.
        """
        if queue not in self.engine.queues:
            raise InvalidCall(f"{queue} was given up meanwhile; seek again when it is assigned")
        if self.positions.get(queue) is None:
            # What is written there now would overwrite that member's offset.
            raise InvalidCall(f"{queue} is locked by another member; seek again when this member has the lock")
        self.positions.move(queue, offset)
        self.engine.seek(queue, offset)

    def go_on_at(self, queue: MessageQueue, offset: int) -> None:
        """Continue where an operator has moved the group in an assigned queue; the caller persists it."""
        if self.positions.get(queue) is None:
            return  # another member has its lock, and follows the operator; its offset must not be overwritten
        # No checkpoint in between: the queue could be given up, or its consumed offset be recorded.
        self.positions.reset(queue, offset)
        self.engine.seek(queue, offset)

    def owned_queues(self) -> list[MessageQueue]:
        """The assigned queues, with their positions up to date."""
        self.engine.note_positions()
        return list(self.engine.queues)

    # --- lost connections ------------------------------------------------------------------------------------

    @property
    def shares_queues(self) -> bool:
        """Whether other members may take over this one's queues."""
        return not self.broadcasts

    def _doubt(self) -> bool:
        # Also without a position: as long as brokers do not list it, it is not given the queues of members that end.
        if not self.shares_queues or self._nursery is None:
            return False
        self.positions.doubt()
        self.engine.withhold_offsets()
        return True

    async def _report_again(self) -> None:
        await self._client.heartbeats.beat()
        await self._take_part_again()

    @abstractmethod
    async def _take_part_again(self) -> None:
        """Do what this kind of consumer needs in addition to heartbeats after a lost connection."""

    async def kept(self, queue: MessageQueue, /) -> bool:
        """A queue stays ours: after a lost connection, continue at the group's current offset."""
        if not self.positions.in_doubt(queue):
            await trio.lowlevel.checkpoint()
            return True
        if self.is_silent(queue) or not self.rejoining.is_certain:
            await trio.lowlevel.checkpoint()
            return False
        try:
            committed = await self.positions.committed(queue)
        except MQError as error:
            self.note_silent(queue, error)
            log.info(
                "how far the group is in %s is not known now: %s",
                queue,
                error.reason,
                extra=queue_fields(queue, self.group),
            )
            return False
        return self._confirm(queue, committed)

    def is_silent(self, queue: MessageQueue) -> bool:
        """Whether a queue's broker has not answered in this round: others would wait for it at each of its queues."""
        return self._silent.get(queue.broker_name) == self.rebalance.rounds

    def note_silent(self, queue: MessageQueue, error: MQError) -> None:
        """Ask a queue's broker no more in this round, if this error means that it does not answer."""
        if isinstance(error, NO_ANSWER):
            self._silent[queue.broker_name] = self.rebalance.rounds

    def _confirm(self, queue: MessageQueue, committed: int | None) -> bool:
        source = self.engine.queues.get(queue)
        if source is None or not self.rejoining.is_certain:
            return False
        self.engine.note_position(source)
        offset = self.positions.confirm(queue, committed)
        if offset is not None:
            self.engine.seek(queue, offset)
        return True

    # --- the end ---------------------------------------------------------------------------------------------

    async def call_with_queues(self, callback: OnQueues | None, queues: Sequence[MessageQueue]) -> None:
        """Call ``on_assigned`` or ``on_revoked``, and wait for it."""
        with self.own_callbacks.running():
            await call_with_queues(callback, queues)

    def stop(self) -> None:
        """Stop taking queues and stop pulling."""
        self._rebalancing.cancel()
        self.engine.stop_pulling()

    async def close(self, patience_s: float) -> None:
        """Give the queues up, leave the group, and end the tasks.

        Args:
            patience_s: how long ``on_revoked`` may take.
        """
        with trio.CancelScope(shield=True):
            async with self._starting:
                pass  # a running start is completed; no further one begins
        try:
            if not self._is_leaving:
                await call_at_end(self._give_up_queues, patience_s)
        finally:
            with trio.CancelScope(shield=True):
                await self._leave()
            self._tasks.cancel()
            await self._wait_for_tasks()

    async def _wait_for_tasks(self) -> None:
        if self.started:
            # Not without a limit: a user's callback may wait for this.
            with trio.move_on_after(END_TIMEOUT_S, shield=True) as scope:
                await self._tasks_ended.wait()
            if scope.cancelled_caught:
                log.warning("a callback of consumer group %s still runs, after the consumer has ended", self.group)
                return  # the tasks close the file at their end
        self._close_offset_file()

    async def _give_up_queues(self) -> None:
        if self.started:
            # A round under way gives its queue up to the end.
            await self._rebalancing_ended.wait()
        await self._revoke_all()

    async def _leave(self) -> None:
        if self._is_leaving:
            return
        self._is_leaving = True
        try:
            with trio.move_on_after(END_TIMEOUT_S, shield=True):
                if self.started:
                    await self._rebalancing_ended.wait()
                queues = self._to_release()
                if self.positions.at_brokers:
                    await at_each_broker(queues, self._release_at)
                else:
                    with time_to_commit():
                        await at_each_broker(queues, self._confirm_last)
                        await self.positions.persist_at_once(self._to_commit(queues))
                    await at_each_broker(queues, self._unlock)
        finally:
            # Also after an error of a user's offset store: the client's end waits for this.
            self._close_connections()
            self._client.requests.consumers.pop(self.group, None)
            self._left()
            with trio.CancelScope(shield=True):
                await self._client.heartbeats.remove_consumer(self.group)

    def _to_release(self) -> Collection[MessageQueue]:
        """The queues that are released at the end."""
        return self.owned_queues()

    @trio.lowlevel.enable_ki_protection
    async def _release_at(self, queues: Collection[MessageQueue]) -> None:
        """Release queues of one broker, which keeps their offsets."""
        with time_to_commit():
            await self._confirm_last(queues)
            await self.positions.persist(self._to_commit(queues))
        await self._unlock(queues)

    @trio.lowlevel.enable_ki_protection
    async def _confirm_last(self, queues: Collection[MessageQueue]) -> None:
        """Commit a broker's queues without rejoining, for which there is no time, where the group has got no further."""
        await self._read_doubted(queues, self.positions.confirm)

    async def end_doubt(self, queues: Collection[MessageQueue]) -> None:
        """Let queues of one broker that are given up in doubt be committed, where no other member has got further."""
        await self._read_doubted(queues, self.positions.confirm_progress)

    @trio.lowlevel.enable_ki_protection
    async def _read_doubted(
        self, queues: Collection[MessageQueue], use: Callable[[MessageQueue, int | None], object]
    ) -> None:
        # A store of another kind may need a second or more.
        limit_s = LAST_READ_S if self.positions.at_brokers else math.inf
        for queue in filter(self.positions.in_doubt, queues):
            try:
                with trio.fail_after(limit_s):
                    use(queue, await self.positions.committed(queue))
            except (MQError, trio.TooSlowError) as error:
                log.info(
                    "the last offset of %s is not committed: %s",
                    queue,
                    error.reason if isinstance(error, MQError) else f"no answer within {limit_s:g} s",
                    extra=queue_fields(queue, self.group),
                )
                if isinstance(error, (*NO_ANSWER, trio.TooSlowError)):
                    return  # it would be waited for at each queue

    def _close_connections(self) -> None:
        self.puller.close()
        self.rejoining.close()

    async def _warn_of_offsets_elsewhere(self) -> None:
        assert self._client.file_id is not None
        file = offset_file(self._client.file_id, self.group)
        other = await trio.to_thread.run_sync(kept_elsewhere, file)
        if other is not None:
            log.warning(
                "broadcasting group %s has no offsets in %s and starts at %r, but this instance has some of another address "
                "in %s; open_client(..., client_ip=...) keeps the address, or copy that file",
                self.group,
                file,
                self.positions.start_from,
                other,
            )

    def _close_offset_file(self) -> None:
        # Only when no task that may commit is left.
        if self._offset_file is not None:
            self._offset_file.close()

    @abstractmethod
    async def _revoke_all(self) -> None:
        """Call ``on_revoked`` for the queues that are still owned."""

    @abstractmethod
    def _to_commit(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Those of the queues that are released whose last offsets are committed."""

    @abstractmethod
    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        """Release whatever other members wait for in queues of one broker."""

    # --- called by the rebalance -----------------------------------------------------------------------------

    def expect(self, topic: str, queues: int, /) -> None:
        """Queues of a topic are about to be taken: with those that are ours, as many should be."""
        self.engine.expect(topic, queues)

    @abstractmethod
    async def assigned(self, queue: MessageQueue, /) -> bool:
        """Take a queue: find its start, start pulling.  False: not now, ask again."""

    @abstractmethod
    async def revoked(self, queues: Sequence[MessageQueue], /) -> Collection[MessageQueue]:
        """Give queues up: stop pulling, persist their offsets.  Those that are not returned cannot be now."""

    def let_go(self, queue: MessageQueue) -> None:
        """Drop the position in a queue that was given up, unless it may come back to this member."""
        if queue.topic in self.shared_topics():
            self.positions.leave(queue)
        else:
            self.positions.forget(queue)

    def left_to_others(self, queues: Collection[MessageQueue], /) -> None:
        """These queues are other members': where this one was in them no longer counts."""
        self.positions.forget_left(queues)

    @abstractmethod
    async def topic_changed(self, topic: str, /) -> None:
        """Queues of a topic have moved."""

    def is_stuck(self, queue: MessageQueue, /) -> bool:
        """Whether an owned queue is no longer pulled; tasks never end by themselves, so only if it has none."""
        return queue not in self.engine.queues

    # --- called for brokers and operators ----------------------------------------------------------------------

    def wake(self) -> None:
        """The group's members have changed."""
        self.rebalance.members_changed()

    @abstractmethod
    def positions_of(self, topic: str, /) -> Mapping[MessageQueue, int]:
        """The offsets of a topic's queues."""

    @abstractmethod
    def running_info(self) -> ConsumerRunningInfo:
        """This member's state as operators see it."""

    @abstractmethod
    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int], /) -> None:
        """Make owned queues continue at the offsets that an operator has set."""

    @abstractmethod
    async def consume_directly(self, message: bytes, broker_name: str, /) -> ConsumeMessageDirectlyResult:
        """Handle one message that an operator picked."""


def _plain(error: Exception) -> Exception:
    inner = without_groups(error)
    assert isinstance(inner, Exception), "a group that is an Exception holds nothing else"
    return inner
