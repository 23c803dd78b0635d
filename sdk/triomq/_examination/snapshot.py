"""A snapshot of a cluster at one moment: plain values, from which findings are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from triomq._arguments.numbers import whole_number
from triomq_protocol.names import MASTER_ID

COMPILED_KEY: Final = "triomqCompiled"
"""The key for whether the broker uses its compiled modules: used, missing, unwanted, stale. Only triomq's have it."""

Sets = Mapping[str, Mapping[int, str]]
"""Broker name -> broker id -> address."""


@attrs.frozen
class NameServerView:
    """One name server.

    Args:
        address: the address at which it was asked.
        error: why it did not answer; empty if it did.
        sets: the brokers that it lists.
        clusters: cluster -> its broker names.
    """

    address: str
    error: str = ""
    sets: Sets = attrs.field(factory=dict)
    clusters: Mapping[str, frozenset[str]] = attrs.field(factory=dict)


@attrs.frozen
class TopicView:
    """A topic's settings on one master."""

    read_queues: int
    write_queues: int
    perm: int


@attrs.frozen
class BrokerView:
    """One broker.

    Args:
        name: its set.
        broker_id: its registered id; None for one that another broker reported.
        address: the address at which it was asked.
        error: why it could not be examined; empty if it could.
        refused: whether it answered that this account has no access.
        runtime: its runtime information.
        config: its settings; None if it does not show them.
        log_end_later: the end of its log some seconds after `runtime`; None if it was not asked again.
        clock_ms: how far its clock is ahead of this machine's; None if unknown.
        clock_error_ms: the possible error of that.
        relation: of a slave of triomq, its log to its master's: CLEAN, BEHIND, AHEAD, DIVERGED, UNKNOWN; else empty.
        connected: of a slave of triomq, whether it is connected to a master; else None.
        topics: of a master, its topics.
        slow_reads: of a master, group -> the broker id that its slow readers are sent to.
    """

    name: str
    broker_id: int | None
    address: str
    error: str = ""
    refused: bool = attrs.field(default=False, kw_only=True)
    runtime: Mapping[str, str] = attrs.field(factory=dict)
    config: Mapping[str, str] | None = None
    log_end_later: int | None = None
    clock_ms: int | None = None
    clock_error_ms: int = 0
    relation: str = ""
    connected: bool | None = None
    topics: Mapping[str, TopicView] = attrs.field(factory=dict)
    slow_reads: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def is_master(self) -> bool:
        """Whether it is registered as a master."""
        return self.broker_id == MASTER_ID

    @property
    def label(self) -> str:
        """Its name for people: ``broker-a:0 (10.0.0.1:10911)``."""
        return f"{self.name}:{'?' if self.broker_id is None else self.broker_id} ({self.address})"

    @property
    def log_end(self) -> int | None:
        """The end of its log in bytes; None when it is not known."""
        return whole_number(self.runtime.get("commitLogMaxOffset", ""))

    def setting(self, key: str) -> str | None:
        """The value of a setting; None when it is not known."""
        return None if self.config is None else self.config.get(key)


@attrs.frozen
class StuckQueue:
    """A queue that a member holds messages of, and has consumed nothing of for a while."""

    topic: str
    broker_name: str
    queue_id: int
    held: int
    idle_s: int


@attrs.frozen
class MemberView:
    """One member of a group that is online.

    Args:
        client_id: by which brokers know it.
        address: where from it is connected.
        error: why it did not answer when it was asked for its state; empty if it did, or was not asked.
        subscriptions: topic -> expression, as the member says; None when it was not asked, or does not say.
        stuck: its queues that do not go on.
    """

    client_id: str
    address: str
    error: str = ""
    subscriptions: Mapping[str, str] | None = None
    stuck: tuple[StuckQueue, ...] = ()


@attrs.frozen
class GroupView:
    """One consumer group.

    Args:
        name: its name.
        lags: topic -> how many messages it has not committed.
        beyond: queues of which it has committed an offset that they do not reach, as text, with that offset and the
          queue's end.
        members: those online; None when it was not asked.
    """

    name: str
    lags: Mapping[str, int] = attrs.field(factory=dict)
    beyond: Mapping[str, tuple[int, int]] = attrs.field(factory=dict)
    members: tuple[MemberView, ...] | None = None

    @property
    def lag(self) -> int:
        """Over all topics."""
        return sum(self.lags.values())


@attrs.frozen
class ClusterSnapshot:
    """A cluster at one moment.

    Args:
        name_servers: all that were given.
        brokers: all that any of them lists, and brokers with the same id that those reported.
        groups: all consumer groups but the system's.
        unknown: what could not be looked at, in sentences.
        client_compiled: whether this client uses its compiled module, in a broker's words: used, missing,
          unwanted, stale.
    """

    name_servers: tuple[NameServerView, ...]
    brokers: tuple[BrokerView, ...] = ()
    groups: tuple[GroupView, ...] = ()
    unknown: tuple[str, ...] = ()
    client_compiled: str = "used"

    @property
    def clusters(self) -> dict[str, frozenset[str]]:
        """Cluster -> its broker names, as all name servers together list them."""
        found: dict[str, frozenset[str]] = {}
        for server in self.name_servers:
            for cluster, names in server.clusters.items():
                found[cluster] = found.get(cluster, frozenset()) | names
        return found

    def sets(self) -> dict[str, list[BrokerView]]:
        """The brokers of each set, masters first."""
        found: dict[str, list[BrokerView]] = {}
        for broker in sorted(self.brokers, key=lambda each: (each.name, each.broker_id or 0, each.address)):
            found.setdefault(broker.name, []).append(broker)
        return found
