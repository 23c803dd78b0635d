"""Problems of a cluster and their remedies: functions of a snapshot, without I/O and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, Literal

import attrs

from triomq._admin.topics import CONTESTED_KEY
from triomq._arguments.numbers import finite_number
from triomq._examination.snapshot import (
    COMPILED_KEY,
    BrokerView,
    ClusterSnapshot,
    GroupView,
    NameServerView,
)
from triomq_protocol.flags import READ_WRITE_PERM
from triomq_protocol.names import DLQ_PREFIX, MASTER_ID, RETRY_PREFIX, is_system_topic

Level = Literal["problem", "notice"]

EXAMPLES: Final = 5
"""The most topics, groups or members that one sentence names."""

DISK_NOTICE: Final = 0.75
DISK_PROBLEM: Final = 0.85
"""Used fractions of the disk: brokers delete expired files from the first one on, and refuse messages soon after the
second."""


SAME_EVERYWHERE: Final[Mapping[str, str]] = {
    "messageDelayLevel": "the same delay level lasts differently long",
    "aclEnable": "requests that one broker refuses, another one carries out",
    "maxMessageSize": "a message that one broker takes, another one refuses",
    "autoCreateTopicEnable": "a new topic is created on some of them only",
    "enablePropertyFilter": "SQL92 subscriptions work on some of them only",
    "fileReservedTime": "they keep messages differently long",
}
"""Settings that masters of one cluster should share -> what happens otherwise."""


@attrs.frozen
class FindingLimits:
    """The sizes from which something is a problem.

    Args:
        lag: messages that a group has not committed.
        behind_bytes: bytes of its master's log that a slave lacks.
        clock_ms: the difference of two brokers' clocks.
    """

    lag: int = 10_000
    behind_bytes: int = 64 << 20
    clock_ms: int = 5000


@attrs.frozen
class Finding:
    """A problem of a cluster, or a notice about it.

    Args:
        level: ``problem``: it needs an operator; ``notice``: it may be intended.
        kind: an identifier for programs, the same in every version.
        about: the server, set, group or cluster that it concerns.
        what: the finding, as a sentence.
        cure: what to do about it, as a sentence.
    """

    level: Level
    kind: str
    about: str
    what: str
    cure: str


def findings_of(snapshot: ClusterSnapshot, limits: FindingLimits | None = None) -> list[Finding]:
    """All findings, problems first."""
    bounds = limits if limits is not None else FindingLimits()
    found = [finding for look in _LOOKS for finding in look(snapshot, bounds)]
    return sorted(found, key=lambda finding: (finding.level != "problem",))


def _problem(kind: str, about: str, what: str, cure: str) -> Finding:
    return Finding("problem", kind, about, what, cure)


def _notice(kind: str, about: str, what: str, cure: str) -> Finding:
    return Finding("notice", kind, about, what, cure)


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    text = ", ".join(known[:EXAMPLES])
    return text if len(known) <= EXAMPLES else f"{text} and {len(known) - EXAMPLES} more"


# --- name servers ----------------------------------------------------------------------------------------------------


def name_servers(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Name servers that do not answer, and those that list different brokers."""
    for server in snapshot.name_servers:
        if server.error:
            yield _problem(
                "name_server_dead",
                server.address,
                f"Name server {server.address} does not answer: {server.error}.",
                "Start it, or take it out of the addresses of clients and brokers.",
            )
    alive = [server for server in snapshot.name_servers if not server.error]
    for one, other in combinations(alive, 2):
        missing = _differences(one, other)
        if missing:
            yield _problem(
                "name_servers_disagree",
                f"{one.address}, {other.address}",
                f"Name servers {one.address} and {other.address} disagree: {_some(missing)}.",
                "Check that every broker's namesrvAddr has all name servers, and that it reaches them; brokers register "
                "again every 30 s.",
            )


def unseen_name_servers(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Name servers that brokers name in their settings, and that were not among those asked: perhaps misspelt.

    Brokers may write a name where the caller writes an address: each name server that lists a broker, and that it does
    not name in the caller's words, may be one that it names in other words.
    """
    asked = {server.address for server in snapshot.name_servers}
    brokers: dict[str, list[str]] = {}
    for broker in snapshot.brokers:
        if broker.broker_id is None:
            continue  # another one with its id hides it
        named = {text.strip() for text in (broker.setting("namesrvAddr") or "").split(";")} - {""}
        listing = {
            server.address
            for server in snapshot.name_servers
            if broker.address in server.sets.get(broker.name, {}).values()
        }
        if len(named - asked) > len(listing - named):
            brokers.setdefault(_some(named - asked), []).append(broker.label)
    for addresses, labels in sorted(brokers.items()):
        yield _notice(
            "name_server_unseen",
            _some(labels),
            f"The setting namesrvAddr of {_some(labels)} names {addresses}, which the doctor was not given: it may be "
            "misspelt, and then one name server does not list the broker.",
            "Correct namesrvAddr in the broker's file and restart it; if it is right, look again with all name servers: "
            "-n 'HOST:PORT;HOST:PORT'.",
        )


def _differences(one: NameServerView, other: NameServerView) -> list[str]:
    mine, others = _places(one), _places(other)
    found = [f"only {one.address} lists {place} at {mine[place]}" for place in mine.keys() - others.keys()]
    found += [f"only {other.address} lists {place} at {others[place]}" for place in others.keys() - mine.keys()]
    found += [
        f"{place} is at {mine[place]} and at {others[place]}"
        for place in mine.keys() & others.keys()
        if mine[place] != others[place]
    ]
    return found


def _places(server: NameServerView) -> dict[str, str]:
    return {f"{name}:{number}": address for name, ids in server.sets.items() for number, address in ids.items()}


# --- brokers ---------------------------------------------------------------------------------------------------------


def masters(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Sets without a master, and clusters without any broker."""
    if not snapshot.brokers and any(not server.error for server in snapshot.name_servers):
        yield _problem(
            "no_brokers",
            "cluster",
            "No broker is registered.",
            "Start the brokers, and check their namesrvAddr; they register within seconds.",
        )
    for name, brokers in snapshot.sets().items():
        if not any(broker.is_master for broker in brokers):
            slaves = ", ".join(broker.label for broker in brokers)
            yield _problem(
                "no_master",
                name,
                f"Broker set {name} has no master; {slaves} cannot take messages.",
                _cure_without_master(name, brokers),
            )


def _cure_without_master(name: str, brokers: Sequence[BrokerView]) -> str:
    if any(broker.setting("enableDLegerCommitLog") == "true" for broker in brokers):
        return "The brokers elect one when more than half of their dLegerPeers run: start the others."
    if any(broker.setting("enableControllerMode") == "true" for broker in brokers):
        return (
            "The controller elects one of the brokers that have all messages: check that it runs at their controllerAddr, and "
            "start such a broker, the last master for one."
        )
    return (
        "Start the master, or make the slave with the longest log the master: with triomq's brokers "
        f"`triomq admin role {name}:ID master`."
    )


def cluster_names(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Sets whose brokers do not all belong to one cluster."""
    clusters: dict[str, list[str]] = {}
    for cluster, names in snapshot.clusters.items():
        for name in names:
            clusters.setdefault(name, []).append(cluster)
    for name, found in sorted(clusters.items()):
        if len(found) < 2:
            continue
        members = [broker for broker in snapshot.brokers if broker.name == name]
        texts = "; ".join(f"{broker.label}: {broker.setting('brokerClusterName') or '?'}" for broker in members)
        yield _problem(
            "cluster_names_differ",
            name,
            f"Broker set {name} is listed in clusters {_some(found)} ({texts}): a slave follows a master of another "
            "cluster, or two clusters use the same broker name at one name server.",
            "Give all brokers of the set the same brokerClusterName in their files and restart them; sets of different "
            "clusters need different brokerName.",
        )


def silent_brokers(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Brokers that are registered, and do not answer or refuse to."""
    for broker in snapshot.brokers:
        if broker.refused:
            yield _problem(
                "access_refused",
                broker.label,
                f"Broker {broker.label} refuses to be looked at: {broker.error}.",
                "It runs: give the account of an administrator, --credentials-file FILE or open_client(credentials=...).",
            )
        elif broker.error:
            yield _problem(
                "broker_silent",
                broker.label,
                f"Broker {broker.label} does not answer: {broker.error}.",
                "Look at its process and its log: start it, or restart it if it hangs. If it is well, others cannot reach "
                "the address that it registers: correct its brokerIP1 or listenPort, or the firewall. Name servers drop a "
                "dead broker after two minutes.",
            )


def contested_ids(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Two brokers with one id."""
    pairs: set[tuple[str, ...]] = set()
    for broker in snapshot.brokers:
        other = broker.runtime.get(CONTESTED_KEY)
        if other:
            pairs.add((broker.name, *sorted((broker.address, other))))
    places: dict[str, set[str]] = {}
    for server in snapshot.name_servers:
        for place, address in _places(server).items():
            places.setdefault(place, set()).add(address)
    answering = {broker.address for broker in snapshot.brokers if not broker.error}
    for place, addresses in places.items():
        pairs |= {(place.rpartition(":")[0], *pair) for pair in combinations(sorted(addresses & answering), 2)}
    for name, one, other in sorted(pairs):
        yield _problem(
            "id_contested",
            name,
            f"{one} and {other} have the same name {name} and the same broker id: name servers list only the one that "
            "registered last, and clients reach now the one, now the other.",
            "Stop one of them, or give it another brokerId; with triomq's brokers `triomq admin role HOST:PORT slave "
            "--id N`.",
        )


def roles(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Brokers whose role and id do not fit."""
    for broker in snapshot.brokers:
        role = broker.setting("brokerRole")
        if role is None or broker.broker_id is None or (role == "SLAVE") != broker.is_master:
            continue
        yield _problem(
            "role_and_id",
            broker.label,
            f"Broker {broker.label} has brokerRole={role} and is registered with id {broker.broker_id}; a master has id "
            "0 and a slave another one.",
            "Correct brokerRole or brokerId in its file and restart it.",
        )


def slaves(snapshot: ClusterSnapshot, limits: FindingLimits) -> Iterator[Finding]:
    """Slaves with another history, that do not follow, or that are far behind."""
    for brokers in snapshot.sets().values():
        master = next((broker for broker in brokers if broker.is_master), None)
        for slave in brokers:
            if not slave.is_master and not slave.error and slave.broker_id is not None:
                yield from _slave(slave, master if master is not None and not master.error else None, limits)


def _slave(slave: BrokerView, master: BrokerView | None, limits: FindingLimits) -> Iterator[Finding]:
    master_end, end = None if master is None else master.log_end, slave.log_end
    # A slave is asked a moment after its master: only a master that was asked again, and lacks it still, is behind.
    later = None if master is None else master.log_end_later
    ahead = later is not None and end is not None and later < end
    if slave.relation in ("AHEAD", "DIVERGED") or (not slave.relation and ahead):
        state = "has another history than" if slave.relation == "DIVERGED" else "has more than"
        yield _problem(
            "slave_diverged",
            slave.label,
            f"Slave {slave.label} {state} its master, and does not follow it: messages that were acknowledged may be on "
            "one of them only.",
            "Find out which of the two has what must be kept. Then `triomq admin cut` drops what the slave has alone; a "
            "slave of RocketMQ has to start with an empty store.",
        )
        return
    if master is None or master_end is None or end is None:
        return
    behind = max(0, master_end - end)
    stands = slave.log_end_later is not None and slave.log_end_later <= end
    if slave.connected is False or (behind and stands and slave.connected is None):
        yield _problem(
            "slave_not_following",
            slave.label,
            f"Slave {slave.label} does not follow its master {master.address}: its log lacks {behind} bytes and does not "
            "grow.",
            "Look at its log; check that it reaches the master's haListenPort at the address that the master registers "
            "(brokerIP2).",
        )
    elif behind >= limits.behind_bytes:
        yield _problem(
            "slave_behind",
            slave.label,
            f"Slave {slave.label} is {behind} bytes behind its master.",
            "Wait if it has just been started; else look at its disk and at the network between the two.",
        )


def disks(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Disks that are nearly full."""
    for broker in snapshot.brokers:
        ratios = {"commit log": "commitLogDiskRatio", "consume queues": "consumeQueueDiskRatio"}
        known = {
            what: used
            for what, key in ratios.items()
            if (used := finite_number(broker.runtime.get(key, ""))) is not None
        }
        if not known:
            continue
        what, used = max(known.items(), key=lambda pair: pair[1])
        if used < DISK_NOTICE:
            continue
        cure = "Free space on it, or shorten fileReservedTime; `triomq brokers clean BROKER log` deletes expired files now."
        text = f"The disk of broker {broker.label} with its {what} is {used:.0%} full"
        if used >= DISK_PROBLEM:
            yield _problem("disk_full", broker.label, f"{text}: it soon refuses messages, or does already.", cure)
        else:
            yield _notice("disk_filling", broker.label, f"{text}: it deletes expired files at any hour.", cure)


def clocks(snapshot: ClusterSnapshot, limits: FindingLimits) -> Iterator[Finding]:
    """Brokers whose clocks differ from each other, or all of them from this machine's."""
    known = [broker for broker in snapshot.brokers if broker.clock_ms is not None]
    if not known:
        return
    by_clock = sorted(known, key=lambda broker: broker.clock_ms or 0)
    first, last = by_clock[0], by_clock[-1]
    difference = (last.clock_ms or 0) - (first.clock_ms or 0) - first.clock_error_ms - last.clock_error_ms
    advice = "Let all machines of the cluster take their time from the same source (NTP)."
    if difference >= limits.clock_ms:
        yield _problem(
            "clocks_differ",
            f"{first.label}, {last.label}",
            f"The clock of broker {last.label} is {difference / 1000:.0f} s ahead of that of {first.label}: searches by "
            "time, delays and retention differ.",
            advice,
        )
    elif abs(first.clock_ms or 0) - first.clock_error_ms >= limits.clock_ms:
        yield _notice(
            "own_clock",
            "this machine",
            f"The brokers' clocks differ by {abs(first.clock_ms or 0) / 1000:.0f} s from this machine's.",
            advice,
        )


def versions(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Brokers with different versions."""
    found: dict[str, list[str]] = {}
    for broker in snapshot.brokers:
        version = broker.runtime.get("brokerVersionDesc")
        if version:
            found.setdefault(version, []).append(broker.label)
    if len(found) > 1:
        texts = "; ".join(f"{version}: {_some(labels)}" for version, labels in sorted(found.items()))
        yield _notice(
            "versions_mixed",
            "cluster",
            f"The brokers have different versions: {texts}.",
            "Finish the upgrade; until then, use only what the oldest version has.",
        )


def compiled_modules(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Brokers of triomq, and a client, that run without compiled modules."""
    cures = {
        "missing": "Install triomq again on a machine with a C compiler, or from a wheel that was built on one.",
        "unwanted": "Start it without TRIOMQ_PURE in its environment.",
        "stale": "They were compiled from an older source: install triomq again, in a source tree with `pip install -e .`.",
    }
    for broker in snapshot.brokers:
        cure = cures.get(broker.runtime.get(COMPILED_KEY, ""))
        if cure is not None:
            yield _notice(
                "not_compiled",
                broker.label,
                f"Broker {broker.label} runs without its compiled modules: a send costs it several times the CPU time.",
                cure,
            )
    cure = cures.get(snapshot.client_compiled)
    if cure is not None:
        yield _notice(
            "not_compiled",
            "this client",
            "This client runs without its compiled module: a send with a callback costs it twice the CPU time.",
            cure,
        )


# --- settings --------------------------------------------------------------------------------------------------------


def settings(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Settings that are unsafe, have no effect, or differ where they should not."""
    for name, brokers in snapshot.sets().items():
        master = next((broker for broker in brokers if broker.is_master and not broker.error), None)
        followers = [broker for broker in brokers if not broker.is_master]
        if master is not None:
            yield from _master_settings(name, master, followers)
    for cluster, names in snapshot.clusters.items():
        known = [broker for broker in snapshot.brokers if broker.is_master and broker.name in names]
        yield from _differing(cluster, known)


def _without_slave(name: str, master: BrokerView) -> Finding:
    """A synchronous master without a slave. One of RocketMQ 5 waits for as many copies as a setting of its says, by
    default for its own only."""
    acting = master.setting("enableSlaveActingMaster") == master.setting("enableAutoInSyncReplicas") == "true"
    fewer = acting or master.setting("enableControllerMode") == "true"
    key = "minInSyncReplicas" if fewer else "inSyncReplicas"
    copies = master.setting(key)
    if copies == "1":
        return _notice(
            "sync_without_slave",
            name,
            f"Master {master.label} is a SYNC_MASTER and has no slave: it acknowledges messages that only it has, since "
            f"{key}=1.",
            "Start its slave.",
        )
    result = (
        "every send is answered SLAVE_NOT_AVAILABLE" if copies is None else f"no send succeeds, since {key}={copies}"
    )
    return _problem(
        "sync_without_slave",
        name,
        f"Master {master.label} is a SYNC_MASTER and has no slave: {result}.",
        "Start its slave, or set brokerRole=ASYNC_MASTER.",
    )


def _master_settings(name: str, master: BrokerView, followers: Sequence[BrokerView]) -> Iterator[Finding]:
    role = master.setting("brokerRole")
    if role == "SYNC_MASTER" and not followers:
        yield _without_slave(name, master)
    if role == "ASYNC_MASTER" and master.setting("flushDiskType") == "ASYNC_FLUSH" and not followers:
        yield _notice(
            "one_copy",
            name,
            f"Master {master.label} acknowledges messages before they are on disk, and has no slave: a power failure "
            "loses some, a broken disk all.",
            "Add a slave, or set flushDiskType=SYNC_FLUSH.",
        )
    permission = master.setting("brokerPermission")
    if permission is not None and permission.isdecimal() and int(permission) & READ_WRITE_PERM != READ_WRITE_PERM:
        lacks = "messages" if not int(permission) & 2 else "pulls"
        yield _notice(
            "broker_permission",
            name,
            f"Master {master.label} refuses {lacks}: brokerPermission={permission}.",
            "Set brokerPermission=6 when its maintenance is over: `triomq brokers set`.",
        )
    ids = {MASTER_ID, *(follower.broker_id for follower in followers)}
    # Every group names slave 1 by default: without any slave that has no effect.
    lost = [group for group, number in master.slow_reads.items() if followers and number not in ids]
    if lost and master.setting("slaveReadEnable") == "true":
        yield _notice(
            "slow_readers",
            name,
            f"Groups {_some(lost)} send slow readers to a broker id that set {name} does not have: "
            "whichBrokerWhenConsumeSlowly has no effect.",
            "Set it to the id of a slave.",
        )


def _differing(cluster: str, known: Sequence[BrokerView]) -> Iterator[Finding]:
    for key, effect in SAME_EVERYWHERE.items():
        values: dict[str, list[str]] = {}
        for broker in known:
            value = broker.setting(key)
            if value is not None:
                values.setdefault(value, []).append(broker.name)
        if len(values) > 1:
            texts = "; ".join(f"{value!r} on {_some(names)}" for value, names in sorted(values.items()))
            yield _problem(
                "settings_differ",
                cluster,
                f"The masters of cluster {cluster} have different values of {key} ({texts}): {effect}.",
                "Give all of them the same value: `triomq brokers set`, or their files and a restart.",
            )


# --- topics ----------------------------------------------------------------------------------------------------------


def topics(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Topics that some masters of a cluster lack, or have fewer queues of."""
    for cluster, names in snapshot.clusters.items():
        known = [broker for broker in snapshot.brokers if broker.is_master and not broker.error and broker.topics]
        known = [broker for broker in known if broker.name in names]
        if len(known) < 2:
            continue
        of_servers = {cluster, *(broker.name for broker in snapshot.brokers)}
        every = {topic for broker in known for topic in broker.topics if not _is_internal(topic, of_servers)}
        for broker in known:
            lacking = every - broker.topics.keys()
            if lacking:
                yield _notice(
                    "topics_missing",
                    broker.name,
                    f"Master {broker.label} lacks {len(lacking)} topic{'s'[: len(lacking) != 1]} that others of cluster "
                    f"{cluster} have: {_some(lacking)}; it takes no share of their messages.",
                    "Create them on all masters: `triomq topics TOPIC --create --queues N`.",
                )
        uneven = {topic for topic in every if len({b.topics[topic] for b in known if topic in b.topics}) > 1}
        if uneven:
            yield _notice(
                "topics_uneven",
                cluster,
                f"{len(uneven)} topic{'s'[: len(uneven) != 1]} of cluster {cluster} "
                f"{'have' if len(uneven) > 1 else 'has'} different queues or permissions on its masters: {_some(uneven)}.",
                "`triomq topics TOPIC` shows them; `triomq topics TOPIC --create --queues N` makes them equal.",
            )


def _is_internal(topic: str, of_servers: set[str]) -> bool:
    # Retry and dead letter topics are created where they are needed.
    return is_system_topic(topic) or topic in of_servers or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


# --- groups ----------------------------------------------------------------------------------------------------------


def lags(snapshot: ClusterSnapshot, limits: FindingLimits) -> Iterator[Finding]:
    """Groups that are far behind."""
    for group in sorted(snapshot.groups, key=lambda group: (-group.lag, group.name)):
        if group.lag < limits.lag:
            break
        worst = max(group.lags, key=lambda topic: group.lags[topic])
        if group.members is not None and not group.members:
            state = "none of its members is online"
            cure = "Start them; or delete the group when it is no longer used."
        else:
            state = f"most of them in topic {worst}"
            cure = (
                f"`triomq groups {group.name}` shows the queues; add members, up to one per queue, or make its handlers "
                "faster."
            )
        yield _problem("lag", group.name, f"Group {group.name} lags by {group.lag} messages, {state}.", cure)


def offsets(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Groups that have committed offsets which their queues do not reach, as after the death of a master that a slave
    without its last messages has replaced."""
    for group in snapshot.groups:
        if not group.beyond:
            continue
        where, (committed, end) = min(group.beyond.items())
        more = len(group.beyond) - 1
        others = f", and of {more} more queue{'s'[: more > 1]}" if more else ""
        yield _problem(
            "offset_beyond_end",
            group.name,
            f"Group {group.name} has committed offset {committed} of {where}, which ends at {end}{others}: members go on "
            "at the end that a queue has when they start, and get nothing that comes before that.",
            f"Start its members; or, while none is online, `triomq offsets reset {group.name} TOPIC latest`.",
        )


def subscriptions(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Groups whose members have different subscriptions: each of them misses messages."""
    for group in snapshot.groups:
        wanted = _wanted(group)
        if len(wanted) > 1:
            texts = "; ".join(f"{_some(ids)}: {text or 'nothing'}" for text, ids in sorted(wanted.items()))
            yield _problem(
                "subscriptions_differ",
                group.name,
                f"The members of group {group.name} have different subscriptions ({texts}): each queue belongs to one "
                "member, and what that one does not want, no member gets.",
                "Let all members of the group subscribe to the same topics with the same tags, or use two groups.",
            )


def _wanted(group: GroupView) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in group.members or ():
        if member.subscriptions is not None:
            wanted = {topic: text for topic, text in member.subscriptions.items() if not topic.startswith(RETRY_PREFIX)}
            text = ", ".join(f"{topic} {expression}" for topic, expression in sorted(wanted.items()))
            found.setdefault(text, []).append(member.client_id)
    return found


def stuck_members(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Members that do not answer, or hold messages and consume nothing."""
    for group in snapshot.groups:
        for member in group.members or ():
            if member.error:
                yield _problem(
                    "member_silent",
                    group.name,
                    f"Member {member.client_id} of group {group.name} at {member.address} is connected, but does not "
                    f"answer: {member.error}.",
                    "Look at its process: it may be stopped (SIGSTOP), or out of memory. Its queues belong to it until "
                    "its connection ends: end the process if it cannot go on.",
                )
            elif member.stuck:
                held = sum(queue.held for queue in member.stuck)
                idle = max(queue.idle_s for queue in member.stuck)
                places = _some(f"{queue.topic} {queue.broker_name}:{queue.queue_id}" for queue in member.stuck)
                yield _problem(
                    "member_stuck",
                    group.name,
                    f"Member {member.client_id} of group {group.name} at {member.address} holds {held} messages of "
                    f"{places} and has finished none for {idle} s.",
                    "Its handlers hang: look at its threads (`mqadmin consumerStatus -s`), then restart it; others get "
                    "its messages.",
                )


def unknown(snapshot: ClusterSnapshot, _limits: FindingLimits) -> Iterator[Finding]:
    """Parts of the cluster that could not be examined."""
    for text in snapshot.unknown:
        yield _notice("not_looked_at", "cluster", text, "Ask again when the above is corrected, or give it more time.")


Look = Callable[[ClusterSnapshot, FindingLimits], Iterable[Finding]]

_LOOKS: Final[tuple[Look, ...]] = (
    name_servers, unseen_name_servers, masters, cluster_names, silent_brokers, contested_ids, roles, slaves, disks, clocks, settings, stuck_members,
    subscriptions, offsets, lags, topics, versions, compiled_modules, unknown,
)  # fmt: skip
