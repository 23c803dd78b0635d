"""Problems found in a snapshot: one table of cases, with the sentence for each."""

from __future__ import annotations

import attrs
import pytest

from triomq._admin.topics import CONTESTED_KEY
from triomq._examination.doctor import stuck_queues
from triomq._examination.findings import FindingLimits, disks, findings_of
from triomq._examination.snapshot import (
    BrokerView,
    ClusterSnapshot,
    GroupView,
    MemberView,
    NameServerView,
    StuckQueue,
    TopicView,
)
from triomq_protocol.requests import MessageQueue
from triomq_protocol.requests.group_admin import ConsumerRunningInfo, ProcessQueueInfo

MASTER_SETTINGS = {"brokerRole": "ASYNC_MASTER", "flushDiskType": "SYNC_FLUSH", "brokerPermission": "6"}


def runtime(end=1000, **more):
    return {"commitLogMaxOffset": str(end), "commitLogDiskRatio": "0.10", "brokerVersionDesc": "V4_9_7", **more}


MASTER = BrokerView(
    "a", 0, "h:1", runtime=runtime(), config=MASTER_SETTINGS, clock_ms=3, topics={"T": TopicView(4, 4, 6)}
)
SLAVE = BrokerView("a", 1, "h:2", runtime=runtime(), config={"brokerRole": "SLAVE"}, clock_ms=-3, relation="CLEAN",
                   connected=True)  # fmt: skip
OTHER = attrs.evolve(MASTER, name="b", address="h:3")
CLUSTERS = {"c": frozenset({"a", "b"})}
SETS = {"a": {0: "h:1", 1: "h:2"}, "b": {0: "h:3"}}
NAME_SERVER = NameServerView("n:1", "", SETS, CLUSTERS)
HEALTHY = ClusterSnapshot((NAME_SERVER,), (MASTER, SLAVE, OTHER))


def brokers(*changed):
    return attrs.evolve(HEALTHY, brokers=changed)


def groups(*views):
    return attrs.evolve(HEALTHY, groups=views)


def change(broker, **settings):
    return attrs.evolve(broker, config={**broker.config, **settings})


def members(*wanted):
    return tuple(MemberView(f"m{n}", f"p:{n}", subscriptions=each) for n, each in enumerate(wanted))


CASES = [
    (
        attrs.evolve(HEALTHY, name_servers=(NAME_SERVER, NameServerView("n:2", "refused"))),
        "name_server_dead", "problem", "Name server n:2 does not answer: refused.",
    ),
    (
        attrs.evolve(HEALTHY, name_servers=(NAME_SERVER, NameServerView("n:2", "", {"a": SETS["a"]}, CLUSTERS))),
        "name_servers_disagree", "problem", "Name servers n:1 and n:2 disagree: only n:1 lists b:0 at h:3.",
    ),
    (
        brokers(change(MASTER, namesrvAddr="n:1;n:l"), SLAVE, OTHER),
        "name_server_unseen", "notice", "The setting namesrvAddr of a:0 (h:1) names n:l, which the doctor was not given",
    ),
    (
        brokers(change(MASTER, namesrvAddr="one:1;two:1"), SLAVE, OTHER),
        "name_server_unseen", "notice", "The setting namesrvAddr of a:0 (h:1) names one:1, two:1, which",
    ),
    (
        attrs.evolve(
            brokers(change(MASTER, brokerClusterName="c"), change(SLAVE, brokerClusterName="d"), OTHER),
            name_servers=(attrs.evolve(NAME_SERVER, clusters=CLUSTERS | {"d": frozenset({"a"})}),),
        ),
        "cluster_names_differ", "problem", "Broker set a is listed in clusters c, d (a:0 (h:1): c; a:1 (h:2): d): a slave",
    ),
    (attrs.evolve(HEALTHY, brokers=()), "no_brokers", "problem", "No broker is registered."),
    (
        brokers(SLAVE, OTHER),
        "no_master", "problem", "Broker set a has no master; a:1 (h:2) cannot take messages.",
    ),
    (
        brokers(MASTER, SLAVE, attrs.evolve(OTHER, error="refused", runtime={}, config=None)),
        "broker_silent", "problem", "Broker b:0 (h:3) does not answer: refused.",
    ),
    (
        brokers(MASTER, SLAVE, attrs.evolve(OTHER, error="no account", refused=True, runtime={}, config=None)),
        "access_refused", "problem", "Broker b:0 (h:3) refuses to be looked at: no account.",
    ),
    (
        brokers(attrs.evolve(MASTER, runtime=runtime(**{CONTESTED_KEY: "h:9"})), SLAVE, OTHER),
        "id_contested", "problem", "h:1 and h:9 have the same name a and the same broker id",
    ),
    (
        attrs.evolve(
            HEALTHY,
            name_servers=(NAME_SERVER, attrs.evolve(NAME_SERVER, address="n:2", sets=SETS | {"b": {0: "h:9"}})),
            brokers=(MASTER, SLAVE, OTHER, attrs.evolve(OTHER, address="h:9")),
        ),
        "id_contested", "problem", "h:3 and h:9 have the same name b and the same broker id",
    ),
    (
        brokers(MASTER, change(SLAVE, brokerRole="ASYNC_MASTER"), OTHER),
        "role_and_id", "problem", "Broker a:1 (h:2) has brokerRole=ASYNC_MASTER and is registered with id 1",
    ),
    (
        brokers(MASTER, attrs.evolve(SLAVE, relation="DIVERGED"), OTHER),
        "slave_diverged", "problem", "Slave a:1 (h:2) has another history than its master",
    ),
    (
        brokers(
            attrs.evolve(MASTER, log_end_later=1000),
            attrs.evolve(SLAVE, relation="", connected=None, runtime=runtime(2000), log_end_later=2000),
            OTHER,
        ),
        "slave_diverged", "problem", "Slave a:1 (h:2) has more than its master",
    ),
    (
        brokers(MASTER, attrs.evolve(SLAVE, relation="", connected=None, runtime=runtime(400), log_end_later=400), OTHER),
        "slave_not_following", "problem", "Slave a:1 (h:2) does not follow its master h:1: its log lacks 600 bytes",
    ),
    (
        brokers(attrs.evolve(MASTER, runtime=runtime(10**9)), SLAVE, OTHER),
        "slave_behind", "problem", "Slave a:1 (h:2) is 999999000 bytes behind its master.",
    ),
    (
        brokers(attrs.evolve(MASTER, runtime=runtime(commitLogDiskRatio="0.86")), SLAVE, OTHER),
        "disk_full", "problem", "The disk of broker a:0 (h:1) with its commit log is 86% full",
    ),
    (
        brokers(attrs.evolve(MASTER, runtime=runtime(consumeQueueDiskRatio="0.80")), SLAVE, OTHER),
        "disk_filling", "notice", "The disk of broker a:0 (h:1) with its consume queues is 80% full",
    ),
    (
        brokers(MASTER, attrs.evolve(SLAVE, clock_ms=62_000), OTHER),
        "clocks_differ", "problem", "The clock of broker a:1 (h:2) is 62 s ahead of that of",
    ),
    (
        brokers(*(attrs.evolve(each, clock_ms=-60_000) for each in (MASTER, SLAVE, OTHER))),
        "own_clock", "notice", "The brokers' clocks differ by 60 s from this machine's.",
    ),
    (
        brokers(change(OTHER, brokerRole="SYNC_MASTER"), MASTER, SLAVE),
        "sync_without_slave", "problem", "Master b:0 (h:3) is a SYNC_MASTER and has no slave",
    ),
    (
        brokers(change(OTHER, brokerRole="SYNC_MASTER", inSyncReplicas="1", minInSyncReplicas="2"), MASTER, SLAVE),
        "sync_without_slave", "notice", "it acknowledges messages that only it has, since inSyncReplicas=1.",
    ),
    (
        brokers(change(OTHER, brokerRole="SYNC_MASTER", inSyncReplicas="2", minInSyncReplicas="1"), MASTER, SLAVE),
        "sync_without_slave", "problem", "and has no slave: no send succeeds, since inSyncReplicas=2.",
    ),
    (
        brokers(
            change(
                OTHER, brokerRole="SYNC_MASTER", enableControllerMode="true", inSyncReplicas="2", minInSyncReplicas="1"
            ),
            MASTER,
            SLAVE,
        ),
        "sync_without_slave", "notice", "it acknowledges messages that only it has, since minInSyncReplicas=1.",
    ),
    (
        brokers(
            change(
                OTHER, brokerRole="SYNC_MASTER", enableSlaveActingMaster="true", enableAutoInSyncReplicas="true",
                inSyncReplicas="2", minInSyncReplicas="1",
            ),
            MASTER,
            SLAVE,
        ),
        "sync_without_slave", "notice", "it acknowledges messages that only it has, since minInSyncReplicas=1.",
    ),
    (
        brokers(change(OTHER, flushDiskType="ASYNC_FLUSH"), MASTER, SLAVE),
        "one_copy", "notice", "Master b:0 (h:3) acknowledges messages before they are on disk, and has no slave",
    ),
    (
        brokers(change(MASTER, brokerPermission="4"), SLAVE, OTHER),
        "broker_permission", "notice", "Master a:0 (h:1) refuses messages: brokerPermission=4.",
    ),
    (
        brokers(attrs.evolve(change(MASTER, slaveReadEnable="true"), slow_reads={"G": 7, "H": 1}), SLAVE, OTHER),
        "slow_readers", "notice", "Groups G send slow readers to a broker id that set a does not have",
    ),
    (
        brokers(change(MASTER, aclEnable="true"), SLAVE, change(OTHER, aclEnable="false")),
        "settings_differ", "problem",
        "The masters of cluster c have different values of aclEnable ('false' on b; 'true' on a)",
    ),
    (
        brokers(MASTER, SLAVE, attrs.evolve(OTHER, topics=OTHER.topics | {f"U{n:04}": TopicView(1, 1, 6) for n in range(9000)})),
        "topics_missing", "notice",
        "Master a:0 (h:1) lacks 9000 topics that others of cluster c have: U0000, U0001, U0002, U0003, U0004 and 8995 more",
    ),
    (
        brokers(MASTER, SLAVE, attrs.evolve(OTHER, topics={"T": TopicView(8, 8, 6)})),
        "topics_uneven", "notice", "1 topic of cluster c has different queues or permissions on its masters: T.",
    ),
    (
        brokers(MASTER, SLAVE, attrs.evolve(OTHER, runtime=runtime(brokerVersionDesc="V5_1_0"))),
        "versions_mixed", "notice", "V4_9_7: a:0 (h:1), a:1 (h:2); V5_1_0: b:0 (h:3)",
    ),
    (
        brokers(MASTER, SLAVE, attrs.evolve(OTHER, runtime=runtime(triomqCompiled="missing"))),
        "not_compiled", "notice", "Broker b:0 (h:3) runs without its compiled modules",
    ),
    (
        brokers(MASTER, SLAVE, attrs.evolve(OTHER, runtime=runtime(triomqCompiled="unwanted"))),
        "not_compiled", "notice", "Broker b:0 (h:3) runs without its compiled modules",
    ),
    (
        attrs.evolve(HEALTHY, client_compiled="stale"),
        "not_compiled", "notice", "This client runs without its compiled module",
    ),
    (
        attrs.evolve(HEALTHY, client_compiled="missing"),
        "not_compiled", "notice", "This client runs without its compiled module",
    ),
    (
        groups(GroupView("G", {"T": 9000, "U": 2000}, members=members({"T": "*"}))),
        "lag", "problem", "Group G lags by 11000 messages, most of them in topic T.",
    ),
    (
        groups(GroupView("G", {"T": 10_000}, members=())),
        "lag", "problem", "Group G lags by 10000 messages, none of its members is online.",
    ),
    (
        groups(GroupView("G", {"T": 0}, {"queue 1 of T on a": (9, 7), "queue 2 of T on a": (3, 1)})),
        "offset_beyond_end", "problem",
        "Group G has committed offset 9 of queue 1 of T on a, which ends at 7, and of 1 more queue: ",
    ),
    (
        groups(GroupView("G", {}, members=members({"T": "a", "%RETRY%G": "*"}, {"T": "b"}))),
        "subscriptions_differ", "problem", "The members of group G have different subscriptions (m0: T a; m1: T b)",
    ),
    (
        groups(GroupView("G", {}, members=(MemberView("m", "p:1", error="not within 5 s"),))),
        "member_silent", "problem", "Member m of group G at p:1 is connected, but does not answer: not within 5 s.",
    ),
    (
        groups(GroupView("G", {}, members=(MemberView("m", "p:1", stuck=(StuckQueue("T", "a", 2, 30, 90),)),))),
        "member_stuck", "problem", "Member m of group G at p:1 holds 30 messages of T a:2 and has finished none for 90 s.",
    ),
    (attrs.evolve(HEALTHY, unknown=("X.",)), "not_looked_at", "notice", "X."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "kind", "level", "sentence"), CASES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_each_case_is_described(snapshot, kind, level, sentence):
    found = [finding for finding in findings_of(snapshot) if finding.kind == kind]
    assert [finding.level for finding in found] == [level]
    assert sentence in found[0].what
    assert found[0].cure.endswith((".", ")"))


HARMLESS = [
    HEALTHY,
    # Asked a moment after its master, a slave has more: the master has grown meanwhile, too.
    brokers(
        attrs.evolve(MASTER, log_end_later=1500),
        attrs.evolve(SLAVE, relation="", connected=None, runtime=runtime(1200), log_end_later=1500),
        OTHER,
    ),
    # A slave of RocketMQ that follows.
    brokers(MASTER, attrs.evolve(SLAVE, relation="", connected=None, runtime=runtime(900), log_end_later=950), OTHER),
    brokers(MASTER, attrs.evolve(SLAVE, clock_ms=5100, clock_error_ms=2000), OTHER),
    groups(GroupView("G", {"T": 9999}, members=members({"T": "a"}, {"T": "a", "%RETRY%G": "*"}))),
    brokers(attrs.evolve(MASTER, runtime=runtime(triomqCompiled="used")), SLAVE, OTHER),
    brokers(attrs.evolve(MASTER, slow_reads={"G": 1}), SLAVE, attrs.evolve(OTHER, slow_reads={"G": 1})),
    # One that another broker with its id hides is listed nowhere.
    brokers(MASTER, SLAVE, OTHER, attrs.evolve(change(MASTER, namesrvAddr="one:1"), broker_id=None, address="h:9")),
    # The broker's words for the name server are others, but it is listed there.
    brokers(change(MASTER, namesrvAddr="names.example:1"), SLAVE, change(OTHER, namesrvAddr="n:1; ")),
    brokers(attrs.evolve(MASTER, topics=MASTER.topics | {"%RETRY%G": TopicView(1, 1, 6)}), SLAVE, OTHER),
]


@pytest.mark.parametrize("snapshot", HARMLESS)
def test_harmless_cases_give_no_finding(snapshot):
    assert findings_of(snapshot) == []


def test_problems_come_first():
    snapshot = brokers(change(MASTER, brokerPermission="4"), SLAVE, attrs.evolve(OTHER, error="gone"))
    levels = [finding.level for finding in findings_of(snapshot)]
    assert levels == sorted(levels, reverse=True)
    assert set(levels) == {"problem", "notice"}


def test_limits_are_the_callers():
    snapshot = groups(GroupView("G", {"T": 10}, members=()))
    assert findings_of(snapshot) == []
    assert [finding.kind for finding in findings_of(snapshot, FindingLimits(lag=10))] == ["lag"]


def test_a_queue_is_stuck_when_held_messages_are_not_finished():
    def state(held, last, **more):
        return ProcessQueueInfo(cached_msg_count=held, last_consume_timestamp=last, **more)

    now = 1_000_000
    table = {
        MessageQueue("T", "a", 0): state(5, now - 60_000),
        MessageQueue("T", "a", 1): state(5, now - 59_000),
        MessageQueue("T", "a", 2): state(0, now - 90_000),
        MessageQueue("T", "a", 3): state(5, 0),  # has never finished one: not known since when
        MessageQueue("T", "a", 4): state(5, now - 90_000, droped=True),
    }
    assert stuck_queues(ConsumerRunningInfo(mq_table=table), now) == (StuckQueue("T", "a", 0, 5, 60),)


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        ({}, "`triomq admin role a:ID master`"),
        ({"enableDLegerCommitLog": "false", "enableControllerMode": "false"}, "`triomq admin role a:ID master`"),
        ({"enableDLegerCommitLog": "true"}, "more than half of their dLegerPeers"),
        ({"enableControllerMode": "true"}, "controllerAddr"),
    ],
)
def test_brokers_that_elect_their_master_are_not_given_one(settings, cure):
    (finding,) = [each for each in findings_of(brokers(change(SLAVE, **settings), OTHER)) if each.kind == "no_master"]
    assert cure in finding.cure


@pytest.mark.parametrize("end", ["", "-1", "²", "1" * 5000])
def test_an_end_of_the_log_that_is_no_number_is_not_known(end):
    assert attrs.evolve(MASTER, runtime=runtime(end)).log_end is None


@pytest.mark.parametrize("ratio", ["nan", "inf", "much"])
def test_a_use_of_the_disk_that_is_no_number_is_not_known(ratio):
    broker = attrs.evolve(MASTER, runtime={**runtime(), "commitLogDiskRatio": ratio})
    assert not list(disks(brokers(broker), FindingLimits()))
