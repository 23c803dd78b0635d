"""The connected clients: the table of producers and consumers, kept by group and by link.

`ClientTable` is pure: every method takes the time and the links as arguments and returns what has changed. Notifying
clients and closing links is left to `requests.clients`. Rules: docs/protocol/broker-api.md §8 (upstream:
ConsumerManager, ConsumerGroupInfo, ProducerManager).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from sys import getsizeof
from typing import TypeVar

import msgspec

from triomq_protocol.requests import ConsumerData, SubscriptionData
from triomq_protocol.requests.heartbeat import CONSUME_FROM_LAST_OFFSET
from triomq_server.wire import Link, counted_host

GROUPS_PER_SLICE = 4096
"""Groups examined before other tasks get their turn."""

CHANNELS_PER_SLICE = 2048
"""Members whose age is checked before other tasks get their turn."""

MOST_ENTRIES = 20_000
"""Groups with members online, and their subscriptions: the garbage collector visits all of them at once."""
MOST_MEMBERSHIPS = 50_000
"""Members of all groups: when very many connections end together, all of theirs end in one turn of the loop. No more
client ids are known than there are members."""
MOST_BYTES = 64 << 20
"""Of all subscriptions, see `kept_bytes`."""
_FREED_SHARE = 8
"""When there are too many, an eighth goes, so that the next heartbeat does not exceed the limit again at once."""

_BYTES_PER_PLACE = 32
"""Of a tag or code in its list, and in the set of all codes."""

EXPIRY_S = 120.0
"""A client that has not sent a heartbeat for this long is forgotten (upstream: channelExpiredTimeout)."""


V = TypeVar("V")


def kept_bytes(subscription: SubscriptionData) -> int:
    """The memory that a subscription takes while its group is online: clients choose its texts and numbers."""
    tags, codes = subscription.tags_set, subscription.code_set
    kept = getsizeof(subscription.topic) + getsizeof(subscription.sub_string) + getsizeof(subscription.expression_type)
    kept += getsizeof(subscription.sub_version) + _BYTES_PER_PLACE * (len(tags) + 2 * len(codes))
    return kept + sum(map(getsizeof, tags)) + sum(map(getsizeof, codes))


def _wanted(subscription: SubscriptionData) -> object:
    """What a subscription selects, without its version: clients renew that when the queues of their topic change."""
    selected = subscription.expression_type, subscription.sub_string, subscription.code_set
    return selected, subscription.class_filter_mode


class ClientChannel(msgspec.Struct, eq=False):
    """One client on one link, as its last heartbeat described it."""

    link: Link
    client_id: str
    language: str
    """Name of the language, for example `JAVA`; what connection lists show."""
    version: int
    last_update_ms: int
    """Wall clock of the last heartbeat, in ms since 1970, for operators."""
    last_update_s: float
    """The event loop's clock at that time: a wall clock that is set must not expire anyone."""


class ConsumerGroup(msgspec.Struct, eq=False):
    """One consumer group that has members online.

    Kind, model and start are those of the latest heartbeat of any member; the subscriptions are shared by the whole
    group, so members that subscribe differently overwrite each other, as in 4.9 (ConsumerGroupInfo).
    """

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    channels: dict[Link, ClientChannel] = msgspec.field(default_factory=dict)
    """The members. All groups in which a client is the only member share one table, so that the garbage collector visits
    one table per client, not one per group."""
    subscriptions: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    tag_codes: dict[str, frozenset[int]] = msgspec.field(default_factory=dict)
    """The codes of each subscription; all pulls share them."""
    bytes_of: dict[str, int] = msgspec.field(default_factory=dict)
    """The `kept_bytes` of each subscription when it came: a text grows when it is first written somewhere."""
    kept_bytes: int = 0
    """Of all subscriptions."""
    replaced: int = 0
    """How often a newer subscription of a topic, which wants other messages, has taken the place of another one."""

    def client_ids(self) -> list[str]:
        """The ids of all members, in the order in which they came."""
        return [channel.client_id for channel in self.channels.values()]

    def channel_of(self, client_id: str) -> ClientChannel | None:
        """The member with this id, or None."""
        for channel in self.channels.values():
            if channel.client_id == client_id:
                return channel
        return None

    def update(self, data: ConsumerData) -> None:
        """Take over kind, model and start of the latest heartbeat."""
        self.consume_type = data.consume_type or self.consume_type
        self.message_model = data.message_model or self.message_model
        self.consume_from_where = data.consume_from_where or self.consume_from_where

    def update_channel(self, channel: ClientChannel, alone: dict[Link, ClientChannel]) -> bool:
        """Keep the member's newest description; true if its link is new to the group.

        Args:
            channel: the member.
            alone: what `channels` is if there is no other.
        """
        is_new = channel.link not in self.channels
        if len(self.channels) == (0 if is_new else 1):
            self.channels = alone
            return is_new
        if len(self.channels) == 1:
            self.channels = dict(self.channels)  # other groups share it
        self.channels[channel.link] = channel
        return is_new

    def remove_channel(self, link: Link) -> bool:
        """Forget a member; true if it was one."""
        if link not in self.channels:
            return False
        if len(self.channels) == 1:
            self.channels = {}  # other groups may share the table
        else:
            del self.channels[link]
        return True

    def update_subscriptions(self, offered: Iterable[SubscriptionData]) -> bool:
        """Merge one heartbeat's subscriptions; true if a topic came or went.

        An entry is replaced only by one with a greater subVersion; a topic missing in this heartbeat is removed for
        the whole group.
        """
        changed = False
        topics: set[str] = set()
        for data in offered:
            topic = data.topic or ""
            topics.add(topic)
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
            elif data.sub_version <= known.sub_version:
                continue
            elif _wanted(data) != _wanted(known):
                self.replaced += 1
            self.subscriptions[topic] = data
            self.tag_codes[topic] = frozenset(data.code_set)
            kept = kept_bytes(data)
            self.kept_bytes += kept - self.bytes_of.get(topic, 0)
            self.bytes_of[topic] = kept
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            changed = True
            del self.subscriptions[topic], self.tag_codes[topic]
            self.kept_bytes -= self.bytes_of.pop(topic)
        return changed


class ClientTable:
    """All producers and consumers with a live link to this broker.

    Attributes:
        memberships: members of all groups; a member of two groups counts twice.
        subscriptions: number of subscriptions of all consumer groups.
        kept_bytes: size of these subscriptions.
    """

    def __init__(self) -> None:
        self.memberships = self.subscriptions = self.kept_bytes = 0
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Link, ClientChannel]] = {}
        self._producer_of_client: dict[str, ClientChannel] = {}
        # In how many groups of a link a client id is: a link may have groups of several clients, and each of its heartbeats
        # may bring another id.
        self._producer_ids: dict[Link, dict[str, int]] = {}
        # The table of the latest client, for groups in which it is the only member.
        self._alone: dict[Link, ClientChannel] = {}
        # Which groups a link is in, so that a mass of closing links need not search all groups.
        # With the bytes of the subscriptions that its last heartbeat offered for the group.
        self._consumer_groups: dict[Link, dict[str, int]] = {}
        self._producer_groups: dict[Link, dict[str, None]] = {}

    # -- consumers

    def register_consumer(self, data: ConsumerData, channel: ClientChannel) -> bool:
        """Take in one group of a heartbeat; true if the group's members should rebalance."""
        name = data.group_name or ""
        group = self.consumers.get(name)
        if group is None:
            group = self.consumers[name] = ConsumerGroup(name)
        offered = sum(map(kept_bytes, data.subscription_data_set))
        self._consumer_groups.setdefault(channel.link, {})[name] = offered
        group.update(data)
        if self._alone.get(channel.link) is not channel:
            self._alone = {channel.link: channel}
        new_channel = group.update_channel(channel, self._alone)
        self.memberships += new_channel
        self.subscriptions -= len(group.subscriptions)
        self.kept_bytes -= group.kept_bytes
        new_topic = group.update_subscriptions(data.subscription_data_set)
        self.subscriptions += len(group.subscriptions)
        self.kept_bytes += group.kept_bytes
        return new_topic or new_channel

    def unregister_consumer(self, group_name: str, link: Link) -> bool:
        """Remove the link from the group; true if it was a member. An empty group is forgotten."""
        group = self.consumers.get(group_name)
        if group is None or not group.remove_channel(link):
            return False
        _drop(self._consumer_groups, link, group_name)
        self.memberships -= 1
        if not group.channels:
            del self.consumers[group_name]
            self.subscriptions -= len(group.subscriptions)
            self.kept_bytes -= group.kept_bytes
        return True

    def subscription(self, group_name: str, topic: str) -> SubscriptionData | None:
        """What the online group subscribes of the topic; None if it is offline or does not subscribe it."""
        group = self.consumers.get(group_name)
        return None if group is None else group.subscriptions.get(topic)

    def consumer_channel(self, group_name: str, client_id: str) -> ClientChannel | None:
        """The member of the group with this client id, or None."""
        group = self.consumers.get(group_name)
        return None if group is None else group.channel_of(client_id)

    def groups_subscribing(self, topic: str) -> Generator[None, None, list[str]]:
        """The online groups that subscribe the topic; in slices."""
        found = []
        for number, name in enumerate(tuple(self.consumers), 1):
            if self.subscription(name, topic) is not None:
                found.append(name)
            if not number % GROUPS_PER_SLICE:
                yield
        return found

    # -- producers

    def register_producer(self, group_name: str, channel: ClientChannel) -> None:
        """Take in one producer group of a heartbeat."""
        channels = self.producers.setdefault(group_name, {})
        link, client_id = channel.link, channel.client_id
        before = channels.get(link)
        channels[link] = channel
        self._producer_groups.setdefault(link, {})[group_name] = None
        self._producer_of_client[client_id] = channel
        if before is not None and before.client_id == client_id:
            return
        ids = self._producer_ids.setdefault(link, {})
        ids[client_id] = ids.get(client_id, 0) + 1
        if before is None:
            self.memberships += 1
        else:
            self._release_id(before)

    def unregister_producer(self, group_name: str, link: Link) -> None:
        """Remove the link from the group; an empty group is forgotten."""
        channels = self.producers.get(group_name)
        channel = None if channels is None else channels.pop(link, None)
        if channels is None or channel is None:
            return
        self.memberships -= 1
        if not channels:
            del self.producers[group_name]
        _drop(self._producer_groups, link, group_name)
        self._release_id(channel)

    def _release_id(self, channel: ClientChannel) -> None:
        """A producer group of a link no longer has this client: without another one, no reply goes there."""
        link, client_id = channel.link, channel.client_id
        ids = self._producer_ids[link]
        ids[client_id] -= 1
        if ids[client_id]:
            return
        _drop(self._producer_ids, link, client_id)
        current = self._producer_of_client.get(client_id)
        if current is not None and current.link is link:
            del self._producer_of_client[client_id]

    def producer_channel(self, client_id: str) -> ClientChannel | None:
        """The producer client with this id: where replies are pushed to."""
        return self._producer_of_client.get(client_id)

    def producer_channels(self, group_name: str) -> Mapping[Link, ClientChannel]:
        """The members of a producer group; empty if there are none."""
        return self.producers.get(group_name, {})

    # -- both

    def groups_with(self, link: Link, consumers: set[str], producers: set[str]) -> int:
        """How many groups a link would be in if it joined these."""
        return len(consumers.union(self._consumer_groups.get(link, ()))) + len(
            producers.union(self._producer_groups.get(link, ()))
        )

    def bytes_with(self, link: Link, offered: Mapping[str, int]) -> int:
        """The bytes of all subscriptions that a link would have offered, with these of some groups."""
        earlier = self._consumer_groups.get(link, {})
        return sum(offered.values()) + sum(kept for name, kept in earlier.items() if name not in offered)

    def drop_link(self, link: Link) -> list[str]:
        """Forget a link that has closed.

        Returns:
            The consumer groups that lost a member by it and still have others, who should rebalance.
        """
        for name in list(self._producer_groups.get(link, ())):
            self.unregister_producer(name, link)
        left = list(self._consumer_groups.get(link, ()))
        for name in left:
            self.unregister_consumer(name, link)
        return [name for name in left if name in self.consumers]

    def crowding(self) -> list[Link]:
        """The links to close when there are more groups, subscriptions, members or bytes than there may be; else none.

        They are those with most of them, of the host that has most, until an eighth is free: others are not affected.
        """
        entries = len(self.consumers) + len(self.producers) + self.subscriptions
        weigh = self._bytes_of if self.kept_bytes > MOST_BYTES else self._entries_of
        if entries <= MOST_ENTRIES and self.memberships <= MOST_MEMBERSHIPS and self.kept_bytes <= MOST_BYTES:
            return []
        hosts: dict[bytes, list[tuple[int, Link]]] = {}
        for link in {**self._consumer_groups, **self._producer_groups}:
            hosts.setdefault(counted_host(link.peer_host), []).append((weigh(link), link))
        totals = {host: sum(held for held, _ in links) for host, links in hosts.items()}
        for links in hosts.values():
            links.sort(key=lambda pair: pair[0])
        found: list[Link] = []
        excess = sum(totals.values()) // _FREED_SHARE
        while excess > 0 and totals:
            host = max(totals, key=totals.__getitem__)
            held, link = hosts[host].pop()
            found.append(link)
            totals[host] -= held
            excess -= held
            if not hosts[host]:
                del totals[host]
        return found

    def _entries_of(self, link: Link) -> int:
        """A link's groups, with the subscriptions of those in which it is the only member."""
        held = len(self._producer_groups.get(link, ()))
        for name in self._consumer_groups.get(link, ()):
            group = self.consumers[name]
            held += 1 + (len(group.subscriptions) if len(group.channels) == 1 else 0)
        return held

    def _bytes_of(self, link: Link) -> int:
        """A link's share of the bytes of its groups: they are kept as long as a group has any member."""
        groups = (self.consumers[name] for name in self._consumer_groups.get(link, ()))
        return sum(group.kept_bytes // len(group.channels) for group in groups)

    def expire(self, now_s: float, limit_s: float = EXPIRY_S) -> Generator[None, None, list[Link]]:
        """Forget every client silent for longer than `limit_s` by the event loop's clock, without notifying its groups;
        in slices.

        Returns:
            The links of those clients, each once, which the caller closes.
        """
        stale: dict[Link, None] = {}
        looked_at = 0
        # The garbage collector skips tuples of texts; with pairs there would be one object per group.
        for name in tuple(self.producers):
            channels = self.producers.get(name, {})
            for channel in list(channels.values()):
                if now_s - channel.last_update_s > limit_s and channels.get(channel.link) is channel:
                    self.unregister_producer(name, channel.link)
                    stale[channel.link] = None
                looked_at += 1
                if not looked_at % CHANNELS_PER_SLICE:
                    yield
        for name in tuple(self.consumers):
            group = self.consumers.get(name)
            if group is None:
                continue
            for channel in list(group.channels.values()):
                if now_s - channel.last_update_s > limit_s and group.channels.get(channel.link) is channel:
                    self.unregister_consumer(name, channel.link)
                    stale[channel.link] = None
                looked_at += 1
                if not looked_at % CHANNELS_PER_SLICE:
                    yield
        return list(stale)


def _drop(of_link: dict[Link, dict[str, V]], link: Link, name: str) -> None:
    """Remove one group or client id from a link's entry, and the entry if it was the last one."""
    names = of_link.get(link)
    if names is not None:
        names.pop(name, None)
        if not names:
            del of_link[link]
