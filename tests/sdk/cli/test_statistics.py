"""Commands about settings of name servers, progress, traffic and queue entries: what they send and print."""

from __future__ import annotations

import io
import json
import sys

import pytest
import trio

from triomq import MessageQueue
from triomq._admin.topics import ADMIN_TIMEOUT_S
from triomq._cli.groups import GROUPS_AT_ONCE
from triomq._cli.topics import TOPICS_AT_ONCE
from triomq.admin import Admin, GroupAdmin, TopicTraffic
from triomq.errors import BrokerFault, RouteNotFound
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    BrokerStatsData,
    BrokerStatsItem,
    ClientConnection,
    ConsumeQueueEntry,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    KVTable,
    OffsetWrapper,
    ProcessQueueInfo,
    QueryConsumeQueueBody,
    QueryConsumeQueueRequest,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)

CONFIG = RequestCode.GET_NAMESRV_CONFIG
SET = RequestCode.UPDATE_NAMESRV_CONFIG
QUEUE = MessageQueue("T", "broker-a", 0)


def answering(body):
    return lambda command: command.answer(0, body=body)


def progress(committed, end):
    offsets = OffsetWrapper(broker_offset=end, consumer_offset=committed, last_timestamp=5)
    return ConsumeStats(consume_tps=0.0, offset_table={QUEUE: offsets})


@pytest.mark.parametrize("only", [[], ["--only", "ns:9876"]])
def test_settings_of_name_servers(command_line, only):
    server = command_line.cluster.name_server
    server.script(CONFIG, answering(b"listenPort=9876\nclusterTest=false\n"))
    code, out, err = command_line("name-servers", "config", "clusterTest", *only)
    assert (code, out, err) == (0, "ns:9876: clusterTest=false\n", "")


def test_a_name_server_is_set(command_line):
    server = command_line.cluster.name_server
    server.script(CONFIG, answering(b"clusterTest=false\n"), answering(b"clusterTest=true\n"))
    server.script(SET, lambda command: command.answer(0))
    code, out, _ = command_line("name-servers", "set", "clusterTest=true", "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"name_server": "ns:9876", "key": "clusterTest", "value": "true"})
    assert [each.body for each in server.requests(SET)] == [b"clusterTest=true\n"]


@pytest.mark.parametrize(
    ("wanted", "after", "text"),
    [
        ("nothing=1", b"clusterTest=false\n", "has no setting nothing"),
        ("clusterTest=true", b"clusterTest=false\n", "not take"),
    ],
)
def test_settings_that_are_not_taken_are_an_error(command_line, wanted, after, text):
    server = command_line.cluster.name_server
    server.script(CONFIG, answering(b"clusterTest=false\n"), answering(after))
    server.script(SET, lambda command: command.answer(0))
    code, out, err = command_line("name-servers", "set", wanted, "--yes")
    assert code in (1, 2)
    assert out == ""
    assert text in err


def test_a_name_server_is_not_set_without_a_question(command_line, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, _, err = command_line("name-servers", "set", "clusterTest=true")
    assert (code, "give --yes" in err) == (2, True)
    assert not command_line.cluster.name_server.requests(SET)


def test_progress_of_a_whole_broker(command_line):
    body = ConsumeStatsList(consume_stats_list=[{"G": [progress(3, 7)]}, {"H": []}], total_diff=4).encode()
    command_line.cluster.broker.script(RequestCode.GET_BROKER_CONSUME_STATS, *[answering(body)] * 3)
    code, out, _ = command_line("brokers", "consume-stats", "broker-a", "--json")
    assert code == 0
    assert json.loads(out) == {
        "group": "G", "topic": "T", "broker": "broker-a", "queue": 0, "committed": 3, "end": 7, "lag": 4, "consumed_ms": 5,
    }  # fmt: skip
    assert command_line("brokers", "consume-stats", "broker-a", "--lag", "5", "--json")[1] == ""
    assert command_line("brokers", "consume-stats", "broker-a")[1].endswith("lag in all: 4\n")


def test_entries_of_a_queue(command_line):
    entry = ConsumeQueueEntry(physic_offset=100, physic_size=50, tags_code=65)
    command_line.cluster.broker.script(
        RequestCode.QUERY_CONSUME_QUEUE,
        answering(QueryConsumeQueueBody(queue_data=[entry, entry]).encode()),
        lambda command: command.answer(0, "Index 9 of 0@T is not exist!"),
        lambda command: command.answer(ResponseCode.SYSTEM_ERROR, "0@T is not exist!"),
    )
    code, out, _ = command_line("message", "entries", "T", "broker-a:0", "7", "-m", "2", "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["offset"], row["physical_offset"], row["size_bytes"], row["tags_code"]) for row in rows] == [
        (7, 100, 50, 65),
        (8, 100, 50, 65),
    ]
    header = command_line.cluster.broker.requests(RequestCode.QUERY_CONSUME_QUEUE)[0].header(QueryConsumeQueueRequest)
    assert (header.topic, header.queue_id, header.index, header.count) == ("T", 0, 7, 2)
    for _ in range(2):
        code, out, err = command_line("message", "entries", "T", "broker-a:0", "9")
        assert (code, "is not exist" in err) == (1, True)


@pytest.mark.parametrize("running", [True, False])
def test_owners_of_queues(command_line, running):
    broker = command_line.cluster.broker
    broker.script(RequestCode.GET_CONSUME_STATS, answering(progress(3, 7).encode()))
    member = ConsumerConnection(connection_set=[ClientConnection(client_id="one")], subscription_table={})
    table = {QUEUE: ProcessQueueInfo(), MessageQueue("T", "broker-a", 1): ProcessQueueInfo(droped=True)}
    broker.script(RequestCode.GET_CONSUMER_CONNECTION_LIST, answering(member.encode()))
    if running:
        broker.script(RequestCode.GET_CONSUMER_RUNNING_INFO, answering(ConsumerRunningInfo(mq_table=table).encode()))
    else:
        broker.script(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda command: command.answer(1, "gone"))
    code, out, _ = command_line("offsets", "show", "G", "--owners", "--json")
    assert (code, json.loads(out)["owner"]) == (0, "one" if running else None)


def test_traffic(command_line):
    broker = command_line.cluster.broker
    came = BrokerStatsData(stats_minute=BrokerStatsItem(sum=60, tps=1.0), stats_day=BrokerStatsItem(sum=900))
    taken = BrokerStatsData(stats_minute=BrokerStatsItem(sum=30, tps=0.5), stats_day=BrokerStatsItem(sum=0))
    broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answering(GroupList(group_list=["G"]).encode()))
    broker.script(RequestCode.VIEW_BROKER_STATS_DATA, answering(came.encode()), answering(taken.encode()))
    broker.script(RequestCode.GET_CONSUME_STATS, answering(progress(3, 7).encode()))
    code, out, _ = command_line("traffic", "T", "--json")
    assert code == 0
    assert json.loads(out) == {
        "topic": "T", "group": "G", "lag": 4, "in_per_s": 1.0, "out_per_s": 0.5, "in_day": 900, "out_day": 30,
    }  # fmt: skip


@pytest.mark.parametrize("active", [True, False])
def test_traffic_of_an_unused_topic(command_line, active):
    broker = command_line.cluster.broker
    broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answering(GroupList(group_list=[]).encode()))
    broker.script(RequestCode.VIEW_BROKER_STATS_DATA, lambda command: command.answer(1, "The stats do not exist"))
    code, out, _ = command_line("traffic", "T", "--json", *["--active"] * active)
    assert code == 0
    assert (out == "") is active


@pytest.mark.parametrize("fails", [False, True])
def test_traffic_of_all_topics_is_asked_for_side_by_side(command_line, monkeypatch, fails):
    names = [f"T{n:03}" for n in range(3 * TOPICS_AT_ONCE + 1)]
    now = most = 0

    async def all_topics(_self):
        await trio.lowlevel.checkpoint()
        return [*names[:5], "%RETRY%G", "%DLQ%G", *names[5:]]

    async def traffic(_self, topic, *, silent):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.sleep(1)
        now -= 1
        if topic == names[1]:
            raise RouteNotFound(f"no route to topic {topic}")
        if fails and topic == names[7]:
            raise BrokerFault("the counter")
        return [TopicTraffic(topic=topic)]

    monkeypatch.setattr(Admin, "topics", all_topics)
    monkeypatch.setattr(GroupAdmin, "traffic", traffic)
    code, out, err = command_line("traffic", "--json")
    there = [name for name in names if name != names[1]]
    printed = [json.loads(line)["topic"] for line in out.splitlines()]
    if fails:
        assert (code, printed) == (1, [name for name in there[: TOPICS_AT_ONCE - 1] if name != names[7]])
        assert "the counter" in err
    else:
        assert (code, printed) == (0, there)
        assert command_line.passed_s == pytest.approx(4, abs=0.5)
    assert most == TOPICS_AT_ONCE


@pytest.mark.parametrize("arguments", [[], ["T"]])
def test_traffic_without_the_masters_of_a_set_is_incomplete(command_line, arguments):
    cluster = command_line.cluster
    cluster.add_master("broker-b")
    cluster.name_server.brokers["broker-b"].broker_addrs = {1: "broker-b-1:10911"}
    cluster.broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answering(GroupList(group_list=[]).encode()))
    came = BrokerStatsData(stats_minute=BrokerStatsItem(sum=60, tps=1.0), stats_day=BrokerStatsItem(sum=900))
    cluster.broker.script(RequestCode.VIEW_BROKER_STATS_DATA, answering(came.encode()))
    cluster.broker.script(RequestCode.GET_BROKER_RUNTIME_INFO, answering(KVTable(table={}).encode()))
    code, out, err = command_line("traffic", *arguments, "--json")
    assert (code, json.loads(out)["in_day"]) == (1, 900)
    assert "broker broker-b: no master is registered; its messages are not counted" in err


@pytest.mark.parametrize(
    ("remark", "said"),
    [
        ("java.lang.NullPointerException", "broker broker-b: the master"),
        (
            "org.apache.rocketmq.acl.common.AclException: Need admin permission",
            "broker broker-b: broker-b-0:10911 refuses",
        ),
    ],
)
def test_traffic_names_the_broker_that_does_not_tell_the_lag(command_line, remark, said):
    cluster = command_line.cluster
    other = cluster.add_master("broker-b")
    for broker, groups in (cluster.broker, ["G"]), (other, []):
        broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answering(GroupList(group_list=groups).encode()))
        broker.script(RequestCode.VIEW_BROKER_STATS_DATA, *[lambda command: command.answer(1, "do not exist")] * 2)
    cluster.broker.script(RequestCode.GET_CONSUME_STATS, answering(progress(3, 7).encode()))
    other.script(RequestCode.GET_CONSUME_STATS, lambda command: command.answer(ResponseCode.SYSTEM_ERROR, remark))
    code, out, err = command_line("traffic", "T", "--json")
    assert (code, json.loads(out)["lag"]) == (1, None)
    assert said in err
    assert remark in err


def topics_at_two_masters(cluster):
    """The names of more topics than are asked for at once, the second master, and the answers of the first."""
    other = cluster.add_master("broker-b")
    names = sorted(["T", *(f"T{n}" for n in range(3 * TOPICS_AT_ONCE))])
    for name in names:
        cluster.name_server.add_route(name, cluster.broker, other)
    answers = {
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: answering(GroupList(group_list=["G"]).encode()),
        RequestCode.VIEW_BROKER_STATS_DATA: lambda command: command.answer(1, "do not exist"),
        RequestCode.GET_CONSUME_STATS: answering(progress(3, 7).encode()),
        RequestCode.GET_BROKER_RUNTIME_INFO: answering(KVTable(table={}).encode()),
    }
    cluster.broker.answer_to = lambda command: answers[command.code](command)
    return names, other, answers


def test_the_traffic_of_many_topics_waits_once_for_a_master_that_hangs(command_line):
    names, hangs, _ = topics_at_two_masters(command_line.cluster)
    hangs.answer_to = lambda command: None
    code, out, err = command_line("traffic", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, [(row["topic"], row["lag"]) for row in rows]) == (1, [(name, None) for name in names])
    assert "broker broker-b: the master broker-b-0:10911 does not answer: no answer in time; its messages" in err
    assert command_line.passed_s == pytest.approx(ADMIN_TIMEOUT_S, abs=0.5)


def test_the_list_of_many_groups_waits_once_for_brokers_that_hang(command_line):
    cluster = command_line.cluster
    hangs = cluster.add_master("broker-b")
    hangs.answer_to = lambda command: None
    names = [f"G{n:03}" for n in range(3 * GROUPS_AT_ONCE)]
    table = SubscriptionGroupTable(subscription_group_table={name: SubscriptionGroupConfig() for name in names})
    answers = {
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: answering(table.encode()),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda command: command.answer(206, "not online"),
        RequestCode.GET_CONSUME_STATS: answering(progress(3, 7).encode()),
        RequestCode.GET_BROKER_RUNTIME_INFO: answering(KVTable(table={}).encode()),
    }
    cluster.broker.answer_to = lambda command: answers[command.code](command)
    code, out, err = command_line("groups", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, [(row["group"], row["lag"], row["members"]) for row in rows]) == (
        1,
        [(each, None, None) for each in names],
    )
    assert "broker broker-b: the master broker-b-0:10911 does not answer" in err
    assert command_line.passed_s == pytest.approx(ADMIN_TIMEOUT_S, abs=0.5)


def list_groups(command_line, count, stats):
    """The code, the rows and the errors of the list of groups, one of whose two masters answers to `stats` so."""
    cluster = command_line.cluster
    names = [f"G{n:03}" for n in range(count)]
    table = SubscriptionGroupTable(subscription_group_table={name: SubscriptionGroupConfig() for name in names})
    for broker in (cluster.broker, cluster.add_master("broker-b")):
        answers = {
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: answering(table.encode()),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda command: command.answer(206, "not online"),
            RequestCode.GET_CONSUME_STATS: stats
            if broker is not cluster.broker
            else answering(progress(3, 7).encode()),
            RequestCode.GET_BROKER_RUNTIME_INFO: answering(KVTable(table={}).encode()),
        }
        broker.answer_to = lambda command, answers=answers: answers[command.code](command)
    code, out, err = command_line("groups", "--json")
    return code, [json.loads(line) for line in out.splitlines()], err


def test_a_master_that_goes_while_groups_are_listed_is_named(command_line):
    """Their lag is unknown, and the list so incomplete."""
    code, rows, err = list_groups(command_line, 2, lambda command: command.answer(1, "out of memory"))
    assert (code, [row["lag"] for row in rows]) == (1, [None, None])
    assert "broker broker-b: the master broker-b-0:10911 answers with a fault: out of memory" in err


def test_a_connection_that_is_lost_once_leaves_no_later_group_unknown(command_line):
    """The broker was restarted, or its answer about one group cannot be read."""
    asked = []

    def stats(command):
        asked.append(command)
        whole = answering(progress(3, 7).encode())(command)
        return command_line.cluster.network.nodes["broker-b-0:10911"].cut() if len(asked) == 1 else whole

    code, rows, err = list_groups(command_line, 3 * GROUPS_AT_ONCE, stats)
    lags = [row["lag"] for row in rows]
    assert (None in lags[:GROUPS_AT_ONCE], None in lags[GROUPS_AT_ONCE:]) == (True, False)
    assert (code, "broker broker-b: the master broker-b-0:10911 does not answer" in err) == (1, True)


def test_a_connection_that_is_lost_once_leaves_no_later_topic_without_traffic(command_line):
    names, other, answers = topics_at_two_masters(command_line.cluster)
    other.answer_to = lambda command: other.cut() if len(other.seen) == 1 else answers[command.code](command)
    code, out, _ = command_line("traffic", "--json")
    lags = [json.loads(line)["lag"] for line in out.splitlines()]
    assert (code, len(lags)) == (1, len(names))
    assert (None in lags[:TOPICS_AT_ONCE], None in lags[TOPICS_AT_ONCE:]) == (True, False)


def test_a_master_that_goes_while_its_traffic_is_asked_for_is_named(command_line):
    cluster = command_line.cluster
    other = cluster.add_master("broker-b")
    came = BrokerStatsData(stats_minute=BrokerStatsItem(sum=60, tps=1.0), stats_day=BrokerStatsItem(sum=900))
    for broker in (cluster.broker, other):
        broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answering(GroupList(group_list=["G"]).encode()))
        broker.script(RequestCode.VIEW_BROKER_STATS_DATA, answering(came.encode()))
    cluster.broker.script(RequestCode.VIEW_BROKER_STATS_DATA, answering(came.encode()))

    async def end(command):
        await other.stop()

    other.script(RequestCode.VIEW_BROKER_STATS_DATA, end)
    cluster.broker.script(RequestCode.GET_CONSUME_STATS, answering(progress(3, 7).encode()))
    code, out, err = command_line("traffic", "T", "--json")
    row = json.loads(out)
    assert (code, row["lag"], row["in_day"], row["out_day"]) == (1, None, 1800, 900)
    assert "broker broker-b: the master broker-b-0:10911 does not answer" in err


@pytest.mark.parametrize("command", [["traffic"], ["dlq", "list"]])
@pytest.mark.parametrize(
    ("brokers", "said"),
    [({}, "no broker is registered"), ({1: "broker-a-1:10911"}, "broker broker-a: no master is registered")],
)
def test_an_outage_does_not_look_like_an_empty_cluster(command_line, command, brokers, said):
    name_server = command_line.cluster.name_server
    if brokers:
        name_server.brokers["broker-a"].broker_addrs = brokers
    else:
        name_server.brokers.clear()
        name_server.routes.clear()
    code, out, err = command_line(*command, "--json")
    assert (code, out) == (1, "")
    assert said in err
    assert "no group has dead letters" not in err


def test_texts_of_others_do_not_control_the_terminal(command_line):
    """RocketMQ's brokers keep groups of any name, and their remarks repeat what clients have sent."""
    broker = command_line.cluster.broker
    broker.store("T", 0, b"one", b"UNIQ_KEY\x01id\x02")
    broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answering(GroupList(group_list=["G\x1b[2J"]).encode()))
    code, out, _ = command_line("message", "at", "T", "broker-a:0", "0")
    assert code == 0
    assert "G\\x1b[2J UNKNOWN" in out
    broker.script(RequestCode.GET_BROKER_RUNTIME_INFO, lambda command: command.answer(1, "a\x1b]0;x\x07b\nc"))
    code, _, err = command_line("brokers", "status", "broker-a")
    assert code == 1
    assert "a\\x1b]0;x\\x07b\nc" in err
    assert "\x1b" not in out + err
