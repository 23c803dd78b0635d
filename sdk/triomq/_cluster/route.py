"""A topic's route at one moment: the queues and brokers that a client reads from a name server's response.

All of it is computed from the response alone (docs/protocol/client.md §4). Upstream: ``TopicPublishInfo``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from triomq._message.message import MessageQueue
from triomq.errors import ProtocolViolation
from triomq_protocol.flags import PERM_READ, PERM_WRITE
from triomq_protocol.names import MASTER_ID
from triomq_protocol.requests import BrokerData, QueueData, TopicRouteData

QUEUES_MOST = 131_072
"""The most queues of a route, for reading and writing together."""


@attrs.frozen(eq=False)
class Route:
    """A topic's queues and brokers, at one moment.

    Args:
        topic: its name.
        data: the route as the name server sent it.
        publish_queues: queues to send to, in Java's order: brokers by name, then queue ids.
        subscribe_queues: queues to pull from.
        addresses: broker name -> broker id -> ``host:port``.
        borrowed: whether the topic is unknown, and these are the default topic's queues.
    """

    topic: str
    data: TopicRouteData
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    borrowed: bool = False

    def master(self, broker_name: str) -> str | None:
        """The address of a broker's master."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def has(self, address: str) -> bool:
        """Whether a broker with this address is in it."""
        return any(address in broker.values() for broker in self.addresses.values())

    def one_of_each_broker(self, is_down: Callable[[str], bool] = lambda _address: False) -> list[str]:
        """One address per broker name: its master, or its first slave if there is no master or it is down.

        Args:
            is_down: whether an address could not be reached a moment ago; if none could be, the first is taken.
        """
        return [
            next(
                (address for _, address in sorted(addresses.items()) if not is_down(address)), min(addresses.items())[1]
            )
            for addresses in self.addresses.values()
        ]


def make_route(topic: str, data: TopicRouteData, *, borrowed: bool = False) -> Route:
    """Compute the queues of a route (docs/protocol/client.md §4.3)."""
    addresses = {
        broker.broker_name: dict(sorted(broker.broker_addrs.items()))
        for broker in data.broker_datas or []
        if broker.broker_name and broker.broker_addrs
    }
    check_queues(topic, data)
    queue_datas = sorted(data.queue_datas or [], key=lambda queues: queues.broker_name or "")
    return Route(
        topic=topic,
        data=data,
        publish_queues=tuple(_publish_queues(topic, data, queue_datas, addresses)),
        # Each once, also of a broker that is listed twice, as upstream's set: two members would get the same queue.
        subscribe_queues=tuple(
            dict.fromkeys(
                MessageQueue(topic, queues.broker_name or "", queue_id)
                for queues in queue_datas
                if queues.perm & PERM_READ
                for queue_id in range(queues.read_queue_nums)
            )
        ),
        addresses=addresses,
        borrowed=borrowed,
    )


def check_queues(topic: str, data: TopicRouteData) -> None:
    """Raise ProtocolViolation for more queues than a topic can have: a broken broker may register one."""
    counts = [
        number for queues in data.queue_datas or [] for number in (queues.read_queue_nums, queues.write_queue_nums)
    ]
    for name, count in _order_parts(data):
        if not (count.isascii() and count.isdecimal() and len(count) < 10):
            raise ProtocolViolation(
                f"the route of topic {topic}", remark=f"{f'{name}:{count}'[:100]!r} is not a number of queues"
            )
        counts.append(int(count))
    if sum(counts) > QUEUES_MOST or min(counts, default=0) < 0:
        raise ProtocolViolation(
            f"the route of topic {topic}", remark=f"it has {sum(counts)} queues; at most {QUEUES_MOST} are possible"
        )


def _order_parts(data: TopicRouteData) -> list[tuple[str, str]]:
    """The parts ``broker:count`` of a topic's order configuration; text after a second colon is ignored."""
    parts = (data.order_topic_conf or "").split(";")
    return [(name, count) for name, count, *_ in (part.split(":") for part in parts if ":" in part)]


def _publish_queues(
    topic: str, data: TopicRouteData, queue_datas: list[QueueData], addresses: Mapping[str, Mapping[int, str]]
) -> list[MessageQueue]:
    if data.order_topic_conf:
        # Upstream requires neither write permission nor a master here.
        return [
            MessageQueue(topic, name, queue_id) for name, count in _order_parts(data) for queue_id in range(int(count))
        ]
    return [
        MessageQueue(topic, queues.broker_name or "", queue_id)
        for queues in queue_datas
        if queues.perm & PERM_WRITE and MASTER_ID in addresses.get(queues.broker_name or "", {})
        for queue_id in range(queues.write_queue_nums)
    ]


def writable_without_master(route: Route) -> list[str]:
    """The brokers whose queues could be written to if their masters were registered, by name."""
    return sorted(
        queues.broker_name
        for queues in route.data.queue_datas or []
        if queues.broker_name and queues.perm & PERM_WRITE and route.master(queues.broker_name) is None
    )


def perhaps_acting(route: Route) -> list[str]:
    """The broker sets of RocketMQ 5 whose slave may act as the master, by name: then the name server lists it as 0, and
    its queues without permission to write."""
    enabled = {broker.broker_name for broker in route.data.broker_datas or [] if broker.enable_acting_master}
    return sorted(
        queues.broker_name
        for queues in route.data.queue_datas or []
        if queues.broker_name in enabled and queues.broker_name and not queues.perm & PERM_WRITE
    )


def borrow(data: TopicRouteData, max_queues: int) -> TopicRouteData:
    """The default topic's route, with its queues bounded as the broker will bound them when it creates the topic."""
    return TopicRouteData(
        broker_datas=data.broker_datas,
        queue_datas=[
            QueueData(
                broker_name=queues.broker_name,
                perm=queues.perm,
                read_queue_nums=min(max_queues, queues.read_queue_nums),
                topic_sys_flag=queues.topic_sys_flag,
                write_queue_nums=min(max_queues, queues.read_queue_nums),
            )
            for queues in data.queue_datas or []
        ],
    )


def route_differs(old: TopicRouteData, new: TopicRouteData) -> bool:
    """Whether two routes differ, apart from the order of brokers."""

    def picture(data: TopicRouteData) -> object:
        brokers: list[BrokerData] = sorted(data.broker_datas or [], key=lambda broker: broker.broker_name or "")
        queues = sorted(data.queue_datas or [], key=lambda each: each.broker_name or "")
        return data.order_topic_conf or None, brokers, queues, data.filter_server_table or None

    return picture(old) != picture(new)


def lost_masters(lost: frozenset[str], old: Route | None, new: Route) -> frozenset[str]:
    """The broker sets of a topic that had a master and have none now.

    Args:
        lost: the previous ones.
        old: the previous route.
        new: the route now.
    """
    if old is None or old.borrowed or new.borrowed:
        return frozenset()  # the topic's own brokers may differ from those it borrowed
    had = lost | {name for name in old.addresses if old.master(name) is not None}
    return frozenset(name for name in had if new.master(name) is None)
