"""Putting consumers together: what the client has, and what each kind needs of it.

Only wiring; what the parts do is in their own rooms.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import attrs
import trio

from triomq._allocate import AllocateStrategy
from triomq._client_requests import ClientRequests
from triomq._consumer_events import ConsumerEvent, OnEvent, report_to
from triomq._filter_checks import FilterChecks
from triomq._heartbeats import Heartbeats
from triomq._hooks import ConsumeHook, PullHook
from triomq._identity import Clock, UniqueKeys
from triomq._links import Links
from triomq._lite_parts import LiteParts
from triomq._lite_pull import LitePullConsumer
from triomq._message import check_group
from triomq._node_cache import ReadPreference
from triomq._offset_files import FileOffsets, offset_file
from triomq._offsets import BrokerOffsets, OffsetStore
from triomq._positions import Hear, IllegalOffset, Positions, StartFrom, consume_from_where
from triomq._process_queue import FlowLimits
from triomq._pull_call import Puller
from triomq._pull_engine import PullSettings
from triomq._push import PushConsumer
from triomq._push_parts import ConsumerParts, PushSettings
from triomq._queue_bounds import QueueBounds
from triomq._queue_locks import QueueLocks
from triomq._rebalance import Assignee, Members, Rebalance
from triomq._retry import Retries
from triomq._routes import Routes
from triomq._send_back import SendBack
from triomq._sending import Sender, SendSettings
from triomq._subscription import Subscription
from triomq.errors import InvalidCall, MQError
from triomq_protocol.requests import ConsumerData
from triomq_protocol.requests.heartbeat import BROADCASTING, CLUSTERING, CONSUME_ACTIVELY, CONSUME_PASSIVELY

LEAVE_TIMEOUT_S: Final = 3.0
"""How long unregistering may hold up a closing consumer."""

INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""The producer group of what consumers send back themselves (``MixAll.CLIENT_INNER_PRODUCER_GROUP``)."""

LITE_SUSPEND_S: Final = 20.0
"""How long brokers may hold a lite consumer's pull (``brokerSuspendMaxTimeMillis``)."""

MODELS: Final = {"clustering": CLUSTERING, "broadcasting": BROADCASTING}
"""What users call a message model -> what heartbeats call it."""


def read_preference_of(value: ReadPreference | str) -> ReadPreference:
    """The preference of a name.

    Raises:
        InvalidCall: there is none of this name.
    """
    try:
        return ReadPreference(value)
    except ValueError:
        known = ", ".join(each.value for each in ReadPreference)
        raise InvalidCall(f"no read_preference {value!r}; there are {known}") from None


@attrs.frozen(kw_only=True)
class ClientCore:
    """What a client lends to its consumers.

    Args:
        client_id: by which brokers know it.
        file_id: by which local offset files know it; the same after a restart.
        routes: where topics live.
        links: how brokers are reached.
        heartbeats: what brokers are told.
        requests: what brokers ask.
        nursery: where consumers run.
        unique_keys: makes message ids.
        clock: wall clock.
        chance: source of random choices.
    """

    client_id: str
    file_id: str
    routes: Routes
    links: Links
    heartbeats: Heartbeats
    requests: ClientRequests
    nursery: trio.Nursery
    unique_keys: UniqueKeys
    clock: Clock
    chance: random.Random


@attrs.frozen(kw_only=True)
class SharedOptions:
    """What push and lite pull consumers have in common; see ``client.push_consumer``."""

    model: str
    start_from: StartFrom
    allocate: AllocateStrategy | None
    limits: FlowLimits
    offset_store: OffsetStore | None
    illegal_offset: IllegalOffset | str
    read_preference: ReadPreference | str
    hooks: Sequence[PullHook]
    on_assigned: Hear | None
    on_revoked: Hear | None
    on_event: OnEvent | None


class Joining:
    """One consumer's group membership and the parts both kinds stand on.

    Args:
        core: the client's.
        group: consumer group; joined when everything has been checked.
        options: the caller's.
        lite: whether the consumer polls.

    Raises:
        InvalidCall: an option or the group's name cannot be used, or the client is in the group already.
    """

    def __init__(self, core: ClientCore, group: str, options: SharedOptions, *, lite: bool) -> None:
        check_group(group)
        if options.model not in MODELS:
            raise InvalidCall(f"no message model {options.model!r}; there are {', '.join(MODELS)}")
        self.core = core
        self.group = group
        self.broadcasts = options.model == "broadcasting"
        self.report: Callable[[ConsumerEvent], None] = report_to(options.on_event)
        self._options = options
        self._lite = lite
        preference = read_preference_of(options.read_preference)
        self.puller = Puller(
            group,
            core.routes,
            core.links,
            preference=preference,
            hooks=options.hooks,
            chance=core.chance,
            beat=core.heartbeats.beat,
        )
        self.bounds = QueueBounds(self.puller.brokers)
        self.filters = FilterChecks(core.client_id, core.routes, core.links, core.heartbeats, core.chance)
        try:
            self.positions = Positions(
                self._store(),
                self.bounds,
                start_from=options.start_from,
                illegal_offset=options.illegal_offset,
                memory_first=lite,
                report=self.report,
            )
            core.heartbeats.add_consumer(group, self.data([]))
        except InvalidCall:
            self.puller.close()
            raise

    def _store(self) -> OffsetStore:
        if self._options.offset_store is not None:
            return self._options.offset_store
        if self.broadcasts:
            return FileOffsets(offset_file(self.core.file_id, self.group))
        return BrokerOffsets(self.group, self.puller.brokers)

    def data(self, subscriptions: Collection[Subscription]) -> ConsumerData:
        """What heartbeats say of the consumer."""
        return ConsumerData(
            consume_from_where=consume_from_where(self._options.start_from),
            consume_type=CONSUME_ACTIVELY if self._lite else CONSUME_PASSIVELY,
            group_name=self.group,
            message_model=MODELS[self._options.model],
            subscription_data_set=[each.data() for each in subscriptions],
            unit_mode=False,
        )

    async def tell(self, subscriptions: Collection[Subscription]) -> None:
        """Heartbeats say these subscriptions from now on; all brokers of their topics hear one before this returns."""
        self.core.heartbeats.update_consumer(self.group, self.data(subscriptions))
        for subscription in subscriptions:
            try:
                await self.core.routes.for_subscribing(subscription.topic)
            except MQError:
                # Nobody serves it yet; whoever does later gets a heartbeat then.
                continue
        await self.core.heartbeats.beat()

    async def check_filter(self, subscription: Subscription) -> None:
        """Ask the topic's brokers whether they understand a filter; tags need no question.

        Raises:
            MQError: they do not, or cannot be asked.
        """
        if not subscription.filters_by_tag:
            await self.filters.check(self.group, subscription)

    async def leave(self) -> None:
        """Unregister."""
        self.core.requests.consumers.pop(self.group, None)
        with trio.move_on_after(LEAVE_TIMEOUT_S):
            await self.core.heartbeats.remove_consumer(self.group)

    def rebalance(self, assignee: Assignee, topics: Callable[[], Collection[str]]) -> Rebalance:
        """The loop that shares out the queues of the topics."""
        core = self.core
        return Rebalance(
            self.group,
            core.client_id,
            assignee,
            topics=topics,
            routes=core.routes,
            members=None if self.broadcasts else Members(self.group, core.routes, core.links, core.chance),
            beat=core.heartbeats.beat,
            strategy=self._options.allocate,
            report=self.report,
        )


def make_push_consumer(
    core: ClientCore,
    settings: PushSettings,
    options: SharedOptions,
    *,
    hooks: Sequence[ConsumeHook],
    left: Callable[[PushConsumer], None],
) -> PushConsumer:
    """A push consumer of a client.

    Args:
        core: what the client lends.
        settings: how it consumes.
        options: the caller's.
        hooks: see :class:`ConsumeHook`.
        left: called when it has left the group.

    Raises:
        InvalidCall: an option cannot be used.
    """
    group = settings.group
    joining = Joining(core, group, options, lite=False)
    sender = Sender(
        INNER_PRODUCER,
        core.routes,
        core.links,
        unique_keys=core.unique_keys,
        clock=core.clock,
        chance=core.chance,
        settings=SendSettings(policy=Retries(), compressor=None),
    )
    brokers = joining.puller.brokers

    async def leave() -> None:
        left(consumer)
        sender.close()
        await joining.leave()

    def rebalance(assignee: Assignee) -> Rebalance:
        assert isinstance(assignee, PushConsumer)
        return joining.rebalance(assignee, assignee.subscriptions.keys)

    consumer = PushConsumer(
        settings,
        ConsumerParts(
            client_id=core.client_id,
            clock=core.clock,
            routes=core.routes,
            heartbeats=core.heartbeats,
            puller=joining.puller,
            positions=joining.positions,
            filters=joining.filters,
            send_back=None if settings.broadcast else SendBack(group, brokers, sender, max_times=settings.max_times),
            locks=QueueLocks(group, core.client_id, brokers) if settings.ordered and not settings.broadcast else None,
            rebalance=rebalance,
            report=joining.report,
            leave=leave,
            on_assigned=options.on_assigned,
            on_revoked=options.on_revoked,
            hooks=hooks,
        ),
    )
    core.requests.consumers[group] = consumer
    return consumer


def make_lite_pull_consumer(
    core: ClientCore,
    group: str,
    options: SharedOptions,
    *,
    auto_commit: bool,
    batch_max: int,
    held_max: int,
    left: Callable[[LitePullConsumer], None],
) -> LitePullConsumer:
    """A lite pull consumer of a client.

    Args:
        core: what the client lends.
        group: its group.
        options: the caller's.
        auto_commit: whether what was polled is committed without being asked.
        batch_max: messages per pull.
        held_max: messages fetched ahead over all queues.
        left: called when it has left the group.

    Raises:
        InvalidCall: an option cannot be used.
    """
    for name, value in (("batch_max", batch_max), ("held_max", held_max)):
        if value < 1:
            raise InvalidCall(f"{name} is {value}, not at least 1")
    joining = Joining(core, group, options, lite=True)

    async def leave() -> None:
        left(consumer)
        await joining.leave()

    async def start_task(run: Callable[..., Awaitable[None]]) -> object:
        return await core.nursery.start(run)

    consumer = LitePullConsumer(
        group,
        LiteParts(
            puller=joining.puller,
            positions=joining.positions,
            bounds=joining.bounds,
            settings=PullSettings(max_messages=batch_max, suspend_s=LITE_SUSPEND_S, lite=True, limits=options.limits),
            auto_commit=auto_commit,
            held_max=held_max,
            clock=core.clock,
            start_task=start_task,
            check_filter=joining.check_filter,
            tell=joining.tell,
            beat=core.heartbeats.beat,
            leave=leave,
            make_rebalance=joining.rebalance,
            on_assigned=options.on_assigned,
            on_revoked=options.on_revoked,
        ),
    )
    core.requests.consumers[group] = consumer
    return consumer
