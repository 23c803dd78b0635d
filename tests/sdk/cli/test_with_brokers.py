"""Commands against brokers on memory streams, on a virtual clock: what they print, and how long they wait."""

from __future__ import annotations

import json
import os

import pytest
import trio

from triomq import MessageQueue
from triomq._cli import consume, messages, options
from triomq._cli.dead_letters import GROUPS_AT_ONCE
from triomq._cli.topics import order_warning
from triomq.admin import OffsetWrapper
from triomq_command import running
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.names import MASTER_ID
from triomq_protocol.requests import (
    ConsumerIdList,
    ConsumeStats,
    CreateTopicRequest,
    GetMaxOffsetRequest,
    GroupList,
    KVTable,
    ResetOffsetBody,
    SubscriptionGroupTable,
)
from triomq_protocol.requests.admin import SubscriptionGroupConfig
from triomq_protocol.requests.group_admin import (
    ClientConnection,
    ConsumerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from triomq_protocol.requests.pull import PullMessageRequest, PullMessageResponse
from triomq_protocol.requests.registration import TopicConfig
from triomq_protocol.trace import encode_consuming

VIRTUAL_S = 1.0
"""A command that does not wait for anything takes less of the virtual clock."""


@pytest.mark.parametrize("change", [["--create"], ["--delete", "--yes"]])
def test_a_change_without_a_master_is_refused_at_once(command_line, change):
    name_server = command_line.cluster.name_server
    name_server.brokers["broker-a"].broker_addrs = {1: "broker-a-1:10911"}
    assert MASTER_ID not in name_server.routes["T"].broker_datas[0].broker_addrs
    code, out, err = command_line("topics", "T", *change)
    assert (code, out) == (1, "")
    assert "no master of broker-a is registered" in err
    assert command_line.passed_s < VIRTUAL_S


@pytest.mark.parametrize("change", [["--create"], ["--delete", "--yes"]])
def test_a_change_whose_master_is_dead_is_refused_at_once(command_line, change):
    command_line.cluster.broker.up = False
    code, out, err = command_line("topics", "T", *change)
    assert (code, out) == (1, "")
    assert "broker-a-0:10911" in err
    assert command_line.passed_s < VIRTUAL_S


@pytest.mark.parametrize(
    ("arguments", "known", "said"),
    [
        (["groups", "NEW", "--delete", "--yes"], False, "whether it knows group NEW is unknown"),
        (["offsets", "show", "NEW", "T"], False, "whether it knows group NEW is unknown"),
        (["offsets", "show", "G", "T"], True, "its lag is unknown"),
        (["offsets", "show", "G", "T", "--owners"], True, "its lag is unknown"),
        (["offsets", "reset", "G", "T", "latest", "--yes"], False, "Done at broker-a; not at broker-b."),
        (["groups"], True, "its lag is unknown"),
    ],
)
def test_a_master_that_hangs_is_waited_for_once(command_line, arguments, known, said):
    broker, hangs = command_line.cluster.broker, command_line.cluster.add_master("broker-b")
    command_line.cluster.name_server.add_route("T", broker, hangs)
    hangs.answer_to = lambda command: None
    table = {MessageQueue("T", "broker-a", 0): OffsetWrapper(broker_offset=7, consumer_offset=0)}
    names = {"G": SubscriptionGroupConfig(group_name="G")}
    answers = {
        RequestCode.GET_CONSUME_STATS: ConsumeStats(offset_table=table),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupTable(subscription_group_table=names),
        RequestCode.GET_BROKER_RUNTIME_INFO: KVTable(table={}),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerConnection(),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetBody(offset_table={MessageQueue("T", "broker-a", 0): 7}),
    }
    serve = broker.answer_to
    broker.answer_to = lambda command: (
        command.answer(0, body=answers[command.code].encode()) if command.code in answers else serve(command)
    )
    code, out, err = command_line(*arguments)
    assert code == 1
    assert "the master broker-b-0:10911 does not answer: no answer in time" in err
    assert said in err
    assert bool(out) is known
    assert command_line.passed_s < 5 + VIRTUAL_S


def test_a_topic_of_too_many_queues_is_not_made(command_line):
    command_line.cluster.add_master("broker-b")
    code, out, err = command_line("topics", "NEW", "--create", "--queues", "32769")
    assert (code, out) == (2, "")
    assert "65538 queues for reading and writing on each of 2 masters: clients use a topic of at most 131072" in err


def test_a_topic_of_too_many_queues_can_be_deleted(command_line):
    cluster = command_line.cluster
    other = cluster.add_master("broker-b")
    cluster.name_server.add_route("BIG", cluster.broker, other, queues=65_536)
    deleted = []
    for each in (cluster.broker, other, cluster.name_server):
        for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV):
            each.script(code, lambda command: deleted.append(command.code) or command.answer(0))
    config = TopicConfig(topic_name="BIG", read_queue_nums=65_536, write_queue_nums=65_536, perm=6).encode()
    for each in (cluster.broker, other):
        each.script(RequestCode.GET_TOPIC_CONFIG, lambda command: command.answer(0, body=config))
    assert command_line("topics", "BIG", "--delete", "--yes") == (0, "deleted BIG\n", "")
    assert deleted == [RequestCode.DELETE_TOPIC_IN_BROKER] * 2 + [RequestCode.DELETE_TOPIC_IN_NAMESRV]


def test_a_topic_of_too_many_queues_can_be_given_fewer(command_line):
    """As the error of other commands advises."""
    cluster = command_line.cluster
    cluster.name_server.add_route("BIG", cluster.broker, queues=65_537)
    code, out, err = command_line("pull", "BIG")
    assert (code, out) == (1, "")
    assert "it has 131074 queues; at most 131072 are possible (`triomq topics TOPIC --create --queues N` gives" in err
    created = []
    config = TopicConfig(topic_name="BIG", read_queue_nums=65_537, write_queue_nums=65_537, perm=6).encode()
    cluster.broker.script(RequestCode.GET_TOPIC_CONFIG, *[lambda command: command.answer(0, body=config)] * 2)

    def create(command):
        created.append(command.header(CreateTopicRequest).read_queue_nums)
        cluster.name_server.add_route("BIG", cluster.broker, queues=4)
        return command.answer(0)

    cluster.broker.script(RequestCode.UPDATE_AND_CREATE_TOPIC, create)
    command_line("topics", "BIG", "--create", "--queues", "4", "--yes")
    assert created == [4]


@pytest.mark.parametrize("queues", [["--queues", "4"], []])
def test_masters_that_hang_do_not_delay_a_creation_one_by_one(command_line, queues):
    masters = [command_line.cluster.add_master(f"broker-{letter}") for letter in "bcd"]
    asked = []
    masters[0].script(RequestCode.UPDATE_AND_CREATE_TOPIC, lambda command: asked.append(command) or command.answer(0))
    for hangs in masters[1:]:
        hangs.answer_to = lambda command: None
    code, out, err = command_line("topics", "NEW", "--create", *queues)
    assert (code, out, len(asked)) == (1, "", 1)
    assert "asked broker-c-0:10911" in err or "the master broker-c-0:10911 does not answer" in err
    assert "broker-d-0:10911" in err
    assert command_line.passed_s < 5 + VIRTUAL_S
    if queues:
        assert "topic NEW is on broker-a, broker-b now, and not on the others; create it again then (" in err


def test_the_progress_of_a_group_is_shown_while_its_members_are_unknown(command_line):
    broker, dead = command_line.cluster.broker, command_line.cluster.add_master("broker-b")
    dead.up = False
    table = {MessageQueue("T", "broker-a", 0): OffsetWrapper(broker_offset=7, consumer_offset=3)}
    body = ConsumeStats(consume_tps=0.0, offset_table=table).encode()
    broker.script(RequestCode.GET_CONSUME_STATS, lambda command: command.answer(0, body=body))
    broker.script(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda command: command.answer(206, "not online"))
    code, out, err = command_line("groups", "G")
    assert code == 1
    assert [line.split() for line in out.splitlines()[::2]] == [
        ["members:", "unknown"],
        ["T", "broker-a", "0", "3", "7", "4"],
    ]
    assert "broker broker-b: the master broker-b-0:10911 does not answer" in err


def test_versions_of_clients_have_the_names_that_rocketmq_gives_them(command_line):
    broker = command_line.cluster.broker
    member = ClientConnection(client_id="c", client_addr="h:1", language="JAVA", version=403)
    body = ConsumerConnection(connection_set=[member]).encode()
    broker.script(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda command: command.answer(0, body=body))
    stats = ConsumeStats().encode()
    broker.script(RequestCode.GET_CONSUME_STATS, lambda command: command.answer(0, body=stats))
    producer = ProducerInfo(client_id="p", remote_ip="h:2", language="JAVA", version=399)
    body_of_producers = ProducerTableInfo(data={"PG": [producer]}).encode()
    broker.script(RequestCode.GET_ALL_PRODUCER_INFO, lambda command: command.answer(0, body=body_of_producers))
    assert json.loads(command_line("groups", "G", "--json")[1].splitlines()[0])["version"] == "V4_9_5"
    assert json.loads(command_line("brokers", "producers", "broker-a", "--json")[1])["version"] == "V4_9_3"


def test_a_name_is_one_line_of_a_list(command_line):
    """Any client may register any name."""
    name_server = command_line.cluster.name_server
    name_server.brokers["x\nbroker-b\x1b[2J"] = name_server.brokers["broker-a"]
    _, out, _ = command_line("cluster-status")
    assert [line.split()[1] for line in out.splitlines()] == ["broker-a", "x\\x0abroker-b\\x1b[2J"]


INFO = RequestCode.GET_BROKER_RUNTIME_INFO


def alive(command):
    return command.answer(0, body=b'{"table":{}}')


def test_groups_with_dead_letters_are_listed_although_those_of_one_are_unknown(command_line):
    broker, dead = command_line.cluster.broker, command_line.cluster.add_master("broker-b")
    command_line.cluster.name_server.add_route("%DLQ%A", dead, queues=1)
    command_line.cluster.name_server.add_route("%DLQ%Z", broker, queues=1)
    broker.store("%DLQ%Z", 0, b"dead")
    broker.script(INFO, alive)
    dead.up = False
    code, out, err = command_line("dlq", "list", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["group"], row["dead"], row["not_redriven"]) for row in rows] == [("A", None, None), ("Z", 1, 1)]
    assert (code, "broker broker-b: the master broker-b-0:10911 does not answer" in err) == (1, True)


@pytest.fixture
def letters_at_two(command_line):
    """Group A has dead letters at a broker that is down, the first of the two, and at another one."""
    broker, dead = command_line.cluster.broker, command_line.cluster.add_master("a-broker")
    command_line.cluster.name_server.add_route("%DLQ%A", dead, broker, queues=1)
    broker.store("%DLQ%A", 0, b"dead", b"RETRY_TOPIC\x01T\x02UNIQ_KEY\x01id\x02")
    dead.up = False
    return command_line


def test_the_dead_letters_of_many_groups_wait_once_for_a_broker_that_hangs(command_line):
    cluster = command_line.cluster
    hangs = cluster.add_master("a-broker")
    groups = [f"G{number:03}" for number in range(3 * GROUPS_AT_ONCE)]
    for group in groups:
        cluster.name_server.add_route(f"%DLQ%{group}", hangs, cluster.broker, queues=1)
    hangs.answer_to = lambda command: None
    code, out, err = command_line("dlq", "list", "--json")
    assert (code, [row["group"] for row in map(json.loads, out.splitlines()) if row["dead"] is None]) == (1, groups)
    assert "broker a-broker: the master a-broker-0:10911 does not answer" in err
    assert command_line.passed_s < 15


@pytest.mark.parametrize("arguments", [["list", "A"], ["list", "A", "--new"]])
def test_the_dead_letters_at_the_other_brokers_are_listed(letters_at_two, arguments):
    code, out, err = letters_at_two("dlq", *arguments, "--json")
    assert (code, json.loads(out)["broker"]) == (1, "broker-a")
    assert "broker a-broker: ConnectFailed" in err
    assert "its dead letters are missing above" in err
    letters_at_two.cluster.broker.queues["%DLQ%A", 0].clear()
    code, out, err = letters_at_two("dlq", *arguments, "--json")
    assert (code, out) == (1, "")
    assert "dead letters of group A are unknown: broker a-broker: ConnectFailed" in err


def test_the_dead_letters_at_the_other_brokers_are_redriven(letters_at_two):
    code, out, err = letters_at_two("dlq", "redrive", "A", "--yes", "--json")
    assert (code, json.loads(out)["topic"]) == (1, "T")
    assert "a-broker" in err
    assert letters_at_two.cluster.broker.bodies("T") == [b"dead"]


def test_the_plan_of_a_redrive_leaves_out_a_broker_that_is_down(letters_at_two):
    code, out, err = letters_at_two("dlq", "redrive", "A", "--dry-run")
    assert (code, out) == (1, "1 would go to T\n")
    assert "broker a-broker: ConnectFailed" in err
    assert "its dead letters are not counted" in err


def test_a_redrive_beside_a_broker_that_is_down_asks_for_the_others(letters_at_two, monkeypatch):
    asked = []
    monkeypatch.setattr(options, "has_terminal", lambda: True)
    monkeypatch.setattr(options.click, "confirm", lambda question: asked.append(question) or True)
    code, out, err = letters_at_two("dlq", "redrive", "A", "--json")
    assert (code, json.loads(out)["topic"]) == (1, "T")
    assert asked == ["Send 1 dead letters of group A to the topics they come from?"]
    assert "; its dead letters are not counted\n" in err
    code, out, err = letters_at_two("dlq", "redrive", "A", "--json")
    assert (code, out, len(asked)) == (1, "", 1)
    assert "broker a-broker: ConnectFailed" in err


def test_a_redrive_ends_where_a_letter_cannot_be_sent(letters_at_two):
    """It would fail for each of them."""
    broker, dead = letters_at_two.cluster.broker, letters_at_two.cluster.network.nodes["a-broker-0:10911"]
    broker.store("%DLQ%A", 0, b"dead too", b"RETRY_TOPIC\x01T\x02UNIQ_KEY\x01id\x02")
    broker.script(RequestCode.SEND_MESSAGE_V2, *[None] * 9)
    letters_at_two.cluster.name_server.add_route("%DLQ%A", broker, dead, queues=1)
    code, out, _ = letters_at_two("dlq", "redrive", "A", "--yes", "--json")
    assert (code, out) == (1, "")
    assert len({command.body for command in broker.requests(RequestCode.SEND_MESSAGE_V2)}) == 1


def test_a_broker_that_does_not_count_dead_letters_ends_no_list(command_line):
    """It answers other requests."""
    broker = command_line.cluster.broker
    command_line.cluster.name_server.add_route("%DLQ%A", broker, queues=1)
    broker.script(RequestCode.GET_MIN_OFFSET, lambda command: command.answer(1, "the disk is gone"))
    broker.script(INFO, alive)
    code, out, err = command_line("dlq", "list")
    assert (code, out.splitlines()[-1].split()) == (1, ["A", "unknown", "unknown"])
    assert "the disk is gone" in err


def test_the_traffic_of_the_other_topics_and_brokers_is_shown(command_line):
    broker, dead = command_line.cluster.broker, command_line.cluster.add_master("broker-b")
    command_line.cluster.name_server.add_route("A", dead)
    command_line.cluster.name_server.add_route("T", broker, dead)
    body = GroupList(group_list=[]).encode()
    groups = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    broker.script(groups, *[lambda command: command.answer(0, body=body)] * 2)
    broker.script(RequestCode.VIEW_BROKER_STATS_DATA, *[lambda command: command.answer(1, "no such counter")] * 2)
    broker.script(INFO, alive)
    dead.up = False
    for topic in ([], ["T"]):
        code, out, err = command_line("traffic", *topic, "--json")
        assert (code, json.loads(out)["topic"]) == (1, "T")
        assert "broker broker-b: the master broker-b-0:10911 does not answer" in err


def test_dead_letters_of_a_group_that_a_silent_set_may_know_are_unknown(command_line):
    silent = command_line.cluster.add_master("broker-b")
    body = SubscriptionGroupTable(subscription_group_table={}).encode()
    groups = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    command_line.cluster.broker.script(groups, lambda command: command.answer(0, body=body))
    silent.script(groups, None)
    silent.script(RequestCode.GET_BROKER_RUNTIME_INFO, None)
    code, out, err = command_line("dlq", "list", "G")
    assert (code, out) == (1, "")
    assert "broker broker-b: the master broker-b-0:10911 does not answer" in err
    assert "no broker knows" not in err


def test_a_list_whose_routes_a_name_server_refuses_ends_with_one_error(command_line):
    name_server = command_line.cluster.name_server
    name_server.add_route("U", command_line.cluster.broker)
    refused = [lambda command: command.answer(ResponseCode.SYSTEM_ERROR, "out of memory")] * 2
    name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *refused)
    code, out, err = command_line("topics")
    assert (code, out) == (1, "")
    assert "out of memory" in err


@pytest.mark.parametrize(
    ("dead", "said"), [("name_server", "no name server can be reached"), ("broker", "broker-a-0:10911")]
)
@pytest.mark.parametrize("group", [[], ["-g", "G"]])
def test_an_outage_is_not_taken_for_the_end(command_line, group, dead, said):
    getattr(command_line.cluster, dead).up = False
    code, out, err = command_line("consume", "T", "--until-end", *group)
    assert (code, out) == (1, "")
    assert said in err


def test_a_group_logs_that_it_waits_for_a_name_server(command_line):
    command_line.cluster.name_server.up = False
    code, _, err = command_line("consume", "T", "-g", "G")
    assert code == 1
    assert "no name server can be reached" in err


def test_a_group_that_waits_for_its_topic_logs_it(command_line, monkeypatch):
    async def nothing(*_arguments, **_options):
        return 0

    monkeypatch.setattr(consume, "_print_all", nothing)
    code, _, err = command_line("consume", "NEW", "-g", "G")
    assert code == 0
    assert "waiting for topic NEW: RouteNotFound: " in err


@pytest.mark.parametrize("group", [[], ["-g", "G"]])
def test_until_the_end_is_from_the_beginning(command_line, group):
    for number in range(3):
        command_line.cluster.broker.store("T", 0, b"m%d" % number)
    code, out, err = command_line("consume", "T", "--until-end", *group)
    assert (code, out.split(), err) == (0, ["m0", "m1", "m2"], "")
    # The group has its offsets now.
    code, out, err = command_line("consume", "T", "--until-end", *group)
    assert (code, out.split()) == (0, [] if group else ["m0", "m1", "m2"])
    assert err == (
        "no message of topic T came within 2 s, for group G, which starts at earliest where it has no offset\n"
        if group
        else ""
    )


def test_pulls_that_are_refused_are_not_taken_for_the_end(command_line):
    """The account may look at the topic's ends, and not pull."""
    broker = command_line.cluster.broker
    broker.store("T", 1, b"m")
    remark = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T, SUB is missing"
    broker.script(RequestCode.PULL_MESSAGE, *[lambda command: command.answer(1, remark)] * 99)
    code, out, err = command_line("consume", "T", "--until-end")
    assert (code, out) == (1, "")
    assert "not all was read: nothing came for 2 s from queues that have more: broker-a:1; see" in err


@pytest.fixture(params=["down", "hangs"])
def one_away(request, command_line):
    """The first of the two brokers of topic T does not answer; the other one has a message."""
    away = command_line.cluster.add_master("a-broker")
    command_line.cluster.name_server.add_route("T", away, command_line.cluster.broker)
    command_line.cluster.broker.store("T", 1, b"m")
    away.up = request.param != "down"
    away.answer_to = lambda command: None
    return command_line


@pytest.mark.parametrize("group", [[], ["-g", "G"]])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_broker_that_begins_to_hang_does_not_end_the_others(command_line, group, repeated):
    """The first broker hangs from its first pull on; with `repeated` the second one refuses its first pull."""
    hangs = command_line.cluster.add_master("a-broker")
    command_line.cluster.name_server.add_route("T", hangs, command_line.cluster.broker)
    hangs.store("T", 0, b"unread")
    command_line.cluster.broker.store("T", 1, b"m")
    if repeated:
        command_line.cluster.broker.script(RequestCode.PULL_MESSAGE, lambda command: command.answer(1, "busy"))
    silent = []

    def answer(command):
        silent.extend([command] if command.code == RequestCode.PULL_MESSAGE else [])
        return None if silent else hangs.serve(command)

    hangs.answer_to = answer
    code, out, err = command_line("consume", "T", "--until-end", *group)
    assert (code, out) == (1, "m\n")
    assert "broker a-broker: RequestTimeout: no answer in time; asked a-broker-0:10911; its messages are missing" in err
    assert "restart what hangs" in err
    assert command_line.passed_s < 30


@pytest.mark.parametrize(("queues", "answers_after_s"), [(100, 0.03), (4, 1.0)])
def test_queues_that_are_still_taken_are_read_to_their_end(command_line, queues, answers_after_s):
    """A broker far away, or busy: it takes longer to take all queues than nothing may come."""
    broker = command_line.cluster.broker
    command_line.cluster.name_server.add_route("T", broker, queues=queues)
    broker.store("T", queues - 1, b"m")
    serve = broker.answer_to

    async def later(command):
        await trio.sleep(answers_after_s)
        return serve(command)

    broker.answer_to = lambda command: serve(command) if command.code == RequestCode.PULL_MESSAGE else later(command)
    code, out, err = command_line("consume", "T", "--until-end", "-g", "G")
    assert (code, out, err) == (0, "m\n", "")


@pytest.mark.parametrize(
    "arguments", [["consume", "T", "--until-end"], ["pull", "T", "--from", "latest"], ["pull", "T", "-m", "1"]]
)
def test_many_queues_are_asked_about_side_by_side(command_line, arguments):
    """The way to the broker and back takes 0.1 s."""
    broker = command_line.cluster.broker
    command_line.cluster.name_server.add_route("T", broker, queues=320)
    broker.store("T", 0, b"m")
    serve, bounds = broker.answer_to, {RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET}

    async def later(command):
        await trio.sleep(0.1)
        return serve(command)

    broker.answer_to = lambda command: later(command) if command.code in bounds else serve(command)
    code, out, err = command_line(*arguments)
    assert (code, out, err) == (0, "" if "latest" in arguments else "m\n", "")
    assert command_line.passed_s < 10


def test_a_member_that_joins_while_the_end_is_looked_for_does_not_stop_the_command(command_line):
    """It takes one of the queues while the broker is slow to say where the other one ends."""
    broker = command_line.cluster.broker
    broker.store("T", 0, b"m")
    asked = []

    def two_members(command):
        (first,) = broker.consumers.members["G"]
        return command.answer(0, body=ConsumerIdList(consumer_id_list=[first, "~"]).encode())

    async def end(command):
        asked.append(command)
        if len(asked) == 3:  # the first two are asked at the start
            broker.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, *[two_members] * 99)
            broker.consumers.notify("G")
            await trio.sleep(3)
        return broker.serve(command)

    broker.script(RequestCode.GET_MAX_OFFSET, *[end] * 99)
    code, out, err = command_line("consume", "T", "--until-end", "-g", "G")
    assert (code, out, err) == (0, "m\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["pull", "T"],
        ["pull", "T", "--from", "committed"],
        ["pull", "T", "--offset", "0", "--commit"],
        ["pull", "T", "--follow"],
        ["consume", "T", "--until-end"],
        ["consume", "T", "--until-end", "-g", "G"],
        ["consume", "T", "--from", "earliest", "-m", "1"],
    ],
)
def test_the_queues_of_the_other_brokers_are_read(one_away, arguments):
    code, out, err = one_away(*arguments)
    assert (code, out) == (1, "m\n")
    assert "broker a-broker: " in err
    assert "; its messages are missing above (" in err
    assert one_away.passed_s < 20, "each of its queues would take as long"
    if "-g" in arguments:
        assert one_away.cluster.broker.offsets["G", "T", 1] == 1
    if "--commit" in arguments:
        assert one_away.cluster.broker.offsets["triomq-cli-pull", "T", 1] == 1


@pytest.mark.parametrize("command", ["pull", "consume"])
def test_a_queue_whose_broker_is_away_is_not_read(one_away, command):
    code, out, err = one_away(command, "T", "--queue", "a-broker:0")
    assert (code, out, err.count("broker a-broker: ")) == (1, "", 1)


def test_a_message_that_comes_late_is_printed_before_the_end(command_line):
    broker = command_line.cluster.broker
    for queue_id in (0, 1):
        broker.store("T", queue_id, b"m")

    async def late(command):
        await trio.sleep(2.5)
        return broker.serve(command)

    broker.script(RequestCode.PULL_MESSAGE, late, late)
    code, out, err = command_line("consume", "T", "--until-end")
    assert (code, out.split(), err) == (0, ["m", "m"], "")


def test_a_filter_may_let_a_queue_pass_for_long(command_line):
    """Each answer says where the next pull begins, and has no message."""
    broker = command_line.cluster.broker
    for number in range(30):
        broker.store("T", 0, b"%d" % number)

    async def skip(command):
        await trio.sleep(0.5)
        following = command.header(PullMessageRequest).queue_offset + 1
        bounds = PullMessageResponse(next_begin_offset=following, min_offset=0, max_offset=30)
        return command.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, header=bounds)

    broker.script(RequestCode.PULL_MESSAGE, *[skip] * 29)
    code, out, err = command_line("consume", "T", "--until-end", "--queue", "broker-a:0")
    assert (code, out.split(), err) == (0, ["29"], "")


@pytest.mark.parametrize("start", [["--from", "0"], ["-g", "G"]])
def test_a_queue_whose_position_was_deleted_is_read_from_its_first_message(command_line, start):
    """The consumer pauses for longer than the time after which nothing more is expected."""
    broker = command_line.cluster.broker
    for number in range(5):
        broker.store("T", 0, b"m%d" % number)
    broker.offsets["G", "T", 0] = 1

    def pull(command):
        header = command.header(PullMessageRequest)
        if header.queue_id or header.queue_offset >= 3:
            return broker.serve(command)
        bounds = PullMessageResponse(next_begin_offset=3, min_offset=3, max_offset=5)
        return command.answer(ResponseCode.PULL_OFFSET_MOVED, header=bounds)

    def first(command):
        return command.answer(0, fields={"offset": "0" if command.header(GetMaxOffsetRequest).queue_id else "3"})

    broker.script(RequestCode.PULL_MESSAGE, *[pull] * 99)
    broker.script(RequestCode.GET_MIN_OFFSET, *[first] * 9)
    code, out, err = command_line("consume", "T", "--until-end", *start)
    assert (code, out.split(), err) == (0, ["m3", "m4"], "")


def test_a_member_without_queues_has_not_read_to_the_end(command_line):
    command_line.cluster.broker.store("T", 0, b"m")
    command_line.cluster.broker.script(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, *[lambda command: command.answer(1, "refused")] * 99
    )
    code, out, err = command_line("consume", "T", "--until-end", "-g", "G")
    assert (code, out) == (1, "")
    assert "this member of group G was given no queue of topic T" in err


def test_a_tail_without_messages_names_its_start(command_line):
    command_line.cluster.broker.store("T", 0, b"m")
    code, out, err = command_line("consume", "T", "--until-end", "--from", "latest")
    assert (code, out, err) == (0, "", "no message of topic T came within 2 s, from latest on\n")
    assert command_line("consume", "T", "--until-end", "--tags", "a")[2].endswith("from earliest on\n")


@pytest.mark.parametrize("change", [[], ["--create"], ["--delete", "--yes"]])
def test_without_any_broker_a_topic_is_not_called_unknown(command_line, change):
    name_server = command_line.cluster.name_server
    name_server.brokers.clear()
    name_server.routes.clear()
    code, out, err = command_line("topics", "T", *change)
    assert (code, out) == (1, "")
    assert "--create" not in err
    assert "`triomq cluster-status` lists the brokers that are registered" in err
    assert command_line.passed_s < VIRTUAL_S


ON, OFF = {"orderMessageEnable": "true"}, {"orderMessageEnable": "false"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"a:1": ON}, None),
        ({"a:1": {"orderMessageEnable": "TRUE"}}, None),
        ({"a:1": OFF}, "a:1"),
        ({"a:1": ON, "b:1": OFF, "c:1": {}}, "b:1, c:1"),
    ],
)
def test_where_the_order_of_a_topic_has_no_effect(settings, named):
    warning = order_warning(settings, "CURE")
    if named is None:
        assert warning is None
    else:
        assert f"at name server {named}: producers" in warning
        assert "(`CURE`)" in warning


@pytest.mark.parametrize("more", [[], ["--json"], ["-n", "a:1;b:1"]])
@pytest.mark.parametrize("value", ["true", "false", None])
def test_an_ordered_topic_without_effect_is_warned_about(command_line, value, more):
    name_server = command_line.cluster.name_server
    name_server.script(RequestCode.PUT_KV_CONFIG, lambda command: command.answer(0))
    if value is not None:
        body = f"listenPort=9876\norderMessageEnable={value}\n".encode()
        name_server.script(RequestCode.GET_NAMESRV_CONFIG, lambda command: command.answer(0, body=body))
    _, _, err = command_line("topics", "T", "--create", "--order", *more)
    assert len(name_server.requests(RequestCode.PUT_KV_CONFIG)) == 1
    if value == "true":
        assert "Warning" not in err
    elif value == "false":
        options = " -n 'a:1;b:1'" if "-n" in more else ""
        assert "Warning: --order has no effect as long as orderMessageEnable is not true at name server ns:9876" in err
        assert f"(`triomq name-servers set orderMessageEnable=true --yes{options}`)" in err
    else:
        assert "Warning: whether name servers have orderMessageEnable=true" in err


def test_an_ordered_topic_whose_route_is_not_there_yet_is_warned_about(command_line):
    _, _, err = command_line("topics", "U", "--create", "--order")
    assert "Warning: no name server knows topic U yet: give --order once more in a moment" in err
    assert not command_line.cluster.name_server.requests(RequestCode.PUT_KV_CONFIG)


class ClosedPipe:
    """A standard output whose reader closes it after some lines."""

    def __init__(self, lines):
        self.lines = lines
        self.taken = []

    def __call__(self, message, **_):
        if len(self.taken) == self.lines:
            raise BrokenPipeError
        self.taken.append(message.body)


@pytest.mark.parametrize(
    ("module", "command"),
    [(consume, ["consume", "T", "--from", "earliest"]), (messages, ["pull", "T", "--commit", "--follow"])],
)
def test_messages_of_a_leaving_reader_are_committed(command_line, monkeypatch, module, command):
    broker = command_line.cluster.broker
    for number in range(10):
        broker.store("T", 0, b"m%d" % number)
    pipe = ClosedPipe(3)
    monkeypatch.setattr(module, "print_received", pipe)
    monkeypatch.setattr(running.os, "dup2", lambda *_: None)
    with open(os.devnull, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(running.sys, "stdout", stdout)
        assert command_line(*command, "-g", "G")[0] == 1
    assert pipe.taken == [b"m0", b"m1", b"m2"]
    assert broker.offsets["G", "T", 0] == 3


def found_records(broker):
    return lambda command: command.answer(0, body=b"".join(broker.queues["T", 0]))


@pytest.mark.parametrize("how", ["key", "unique-key"])
def test_a_search_in_an_outage_is_incomplete(command_line, how):
    broker = command_line.cluster.broker
    command_line.cluster.add_master("broker-b").up = False
    for body in (b"one", b"two"):
        broker.store("T", 0, body, b"UNIQ_KEY\x01k\x02KEYS\x01k\x02")
    broker.script(RequestCode.QUERY_MESSAGE, found_records(broker))
    code, out, err = command_line("message", how, "T", "k", "--json")
    assert (code, out.count('"body"')) == (1, 2)
    assert "broker broker-b: the master broker-b-0:10911 does not answer" in err
    assert "what it has of them is missing above" in err


def test_a_trace_in_an_outage_is_incomplete(command_line):
    broker = command_line.cluster.broker
    command_line.cluster.add_master("broker-b").up = False
    trace = encode_consuming(
        time_ms=1, region=None, group="G", request_id="1", message_id="id", retry_times=0, keys=None
    )
    broker.store("T", 0, trace.encode(), b"KEYS\x01id\x02")
    broker.script(RequestCode.QUERY_MESSAGE, found_records(broker))
    code, out, err = command_line("message", "trace", "id", "--trace-topic", "T", "--json")
    assert (code, json.loads(out)["message_id"]) == (1, "id")
    assert "what it has of them is missing above" in err


def test_a_message_is_shown_although_its_groups_are_unknown(command_line):
    broker = command_line.cluster.broker
    broker.store("T", 0, b"one", b"")
    broker.script(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, lambda command: command.answer(1, "AclException: no"))
    code, out, err = command_line("message", "at", "T", "broker-a:0", "0", "--json")
    assert (code, json.loads(out)["body"]) == (1, "one")
    assert "AclException: no" in err


@pytest.mark.parametrize("start", ["earliest", "committed"])
def test_a_pull_commits_only_queues_that_it_has_read(command_line, start):
    broker = command_line.cluster.broker
    for queue in (0, 1):
        broker.store("T", queue, b"m")
    broker.offsets["G", "T", 1] = 1
    assert command_line("pull", "T", "-g", "G", "--from", start, "--commit", "-m", "1") == (0, "m\n", "")
    assert (broker.offsets["G", "T", 0], broker.offsets["G", "T", 1]) == (1, 1)


def test_a_format_leaves_out_what_a_message_lacks_and_escapes_what_it_has(command_line):
    broker = command_line.cluster.broker
    broker.store("T", 0, b"one", b"n\x01\x1b[5mv\x02TAGS\x01a\x1bb\x02")
    broker.store("T", 0, b"two", b"")
    code, out, err = command_line("consume", "T", "--until-end", "--format", "{body} {tags}|{properties[n]}")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["one a\\x1bb|\\x1b[5mv", "two |"]


def test_a_format_escapes_ids_and_keys_of_any_sender(command_line):
    broker = command_line.cluster.broker
    broker.store("T", 0, b"one", b"UNIQ_KEY\x01\x1b]0;i\x07\x02KEYS\x01\x1bk \xc2\x9bl\x02")
    code, out, err = command_line("consume", "T", "--until-end", "--format", "{message_id} {keys}")
    assert (code, err) == (0, "")
    assert out == "\\x1b]0;i\\x07 ['\\x1bk', '\\x9bl']\n"


@pytest.mark.parametrize("timeout", ["2", "30"])
def test_the_doctor_reports_a_name_server_that_hangs_with_its_own_status(command_line, timeout):
    command_line.cluster.name_server.script(RequestCode.GET_BROKER_CLUSTER_INFO, None)
    code, out, err = command_line("doctor", "--timeout", timeout)
    assert (code, out) == (2, "")
    assert "no name server answers" in err
