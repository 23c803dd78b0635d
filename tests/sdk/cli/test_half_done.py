"""Changes that one of several servers refuses: the others make them, and the command names these."""

from __future__ import annotations

import json

import pytest

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    CreateTopicRequest,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from triomq_protocol.requests.route import WipeWritePermOfBrokerResponse

LIST = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
CREATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
CREATE_TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC
DELETE_TOPIC = RequestCode.DELETE_TOPIC_IN_BROKER


def done(command):
    return command.answer(0)


def refused(command):
    return command.answer(ResponseCode.SYSTEM_ERROR, "the disk is full")


def group_of(**settings):
    config = SubscriptionGroupConfig(group_name="G", **settings)
    body = SubscriptionGroupTable(subscription_group_table={"G": config}).encode()
    return lambda command: command.answer(0, body=body)


@pytest.fixture
def two(command_line):
    """A command line with two masters, and both."""
    return command_line, command_line.cluster.broker, command_line.cluster.add_master("broker-b")


def test_settings_that_cannot_be_read_are_not_replaced(two):
    command_line, silent, other = two
    silent.script(LIST, None)
    other.script(LIST, group_of(retry_max_times=3))
    other.script(CREATE, done)
    code, out, err = command_line("groups", "G", "--create", "--no-consume")
    assert (code, out) == (1, "")
    assert "nothing was changed on broker broker-a, whose settings of group G are unknown" in err
    assert "Done at broker-b; not at broker-a." in err
    assert not silent.requests(CREATE)
    (request,) = other.requests(CREATE)
    changed = SubscriptionGroupConfig.decode(request.body)
    assert (changed.consume_enable, changed.retry_max_times) == (False, 3)


def test_a_set_whose_settings_are_unknown_is_named(two):
    command_line, silent, other = two
    silent.script(LIST, None)
    other.script(LIST, group_of())
    code, out, err = command_line("groups", "G", "--settings", "--json")
    assert (code, json.loads(out)["broker"]) == (1, "broker-b")
    assert "broker broker-a: the master broker-a-0:10911 does not answer" in err
    assert "its settings are unknown" in err


def test_settings_that_a_slave_has_are_not_called_its_masters(command_line):
    """It may lack the latest change, and is not changed."""
    slave = command_line.cluster.add_slave()
    command_line.cluster.broker.script(LIST, None, None, None)
    slave.script(LIST, *[group_of(consume_enable=False)] * 3)
    code, out, err = command_line("groups", "G", "--settings", "--json")
    assert (code, json.loads(out)["consume"]) == (1, False)
    assert "broker broker-a: the master broker-a-0:10911 does not answer" in err
    assert "as a slave has them" in err
    code, _, err = command_line("groups", "G", "--create", "--no-consume")
    assert (code, "nothing was changed on broker broker-a" in err) == (1, True)


def test_a_group_is_changed_at_the_others(two):
    command_line, refusing, other = two
    for broker in (refusing, other):
        broker.script(LIST, group_of())
    refusing.script(CREATE, refused)
    other.script(CREATE, done)
    code, _, err = command_line("groups", "G", "--create", "--max-retries", "3")
    assert code == 1
    assert "the disk is full" in err
    assert "Done at broker-b; not at broker-a." in err


def test_a_topic_is_changed_at_the_others(two):
    command_line, refusing, other = two
    command_line.cluster.name_server.add_route("T", refusing, other, queues=2)
    refusing.script(CREATE_TOPIC, refused)
    other.script(CREATE_TOPIC, done)
    code, _, err = command_line("topics", "T", "--create", "--queues", "4", "--yes")
    assert code == 1
    assert "the disk is full" in err
    assert f"Done at {other.address}; not at {refusing.address}." in err


def of_4_9(command):
    return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")


def topic_of(name, perm):
    table = TopicConfigTable(topic_config_table={name: TopicConfig(topic_name=name, perm=perm)})
    return lambda command: command.answer(0, body=table.encode())


@pytest.mark.parametrize(("more", "perms"), [([], [6, 4]), (["--perm", "2"], [2, 2])])
def test_the_permission_that_a_route_hides_is_kept(two, more, perms):
    command_line, of_5, other = two
    command_line.cluster.name_server.add_route("T", of_5, other, perm=4)
    other.script(RequestCode.GET_TOPIC_CONFIG, of_4_9)
    other.script(RequestCode.GET_ALL_TOPIC_CONFIG, topic_of("T", 4))
    code, _, _ = command_line("topics", "T", "--create", "--queues", "4", "--yes", *more)
    sent = [each.header(CreateTopicRequest) for node in (of_5, other) for each in node.requests(CREATE_TOPIC)]
    assert [(each.perm, each.write_queue_nums) for each in sent] == [(perm, 4) for perm in perms], code


def test_a_broker_without_the_topic_gets_it_with_both_permissions(two):
    command_line, first, second = two
    command_line.cluster.name_server.add_route("T", first, perm=4)
    first.script(RequestCode.GET_TOPIC_CONFIG, lambda command: command.answer(ResponseCode.TOPIC_NOT_EXIST, "no"))
    second.script(RequestCode.GET_TOPIC_CONFIG, of_4_9)
    second.script(RequestCode.GET_ALL_TOPIC_CONFIG, topic_of("U", 4))
    command_line("topics", "T", "--create", "--queues", "4", "--yes")
    sent = [each.header(CreateTopicRequest).perm for node in (first, second) for each in node.requests(CREATE_TOPIC)]
    assert sent == [6, 6]


@pytest.mark.parametrize(
    ("more", "settings"), [([], (3, 2, 4)), (["--queues", "4"], (4, 4, 4)), (["--perm", "2"], (3, 2, 2))]
)
def test_a_topic_that_the_name_servers_lack_keeps_a_brokers_settings(two, more, settings):
    """Its master has registered only in part, or it was deleted on name servers alone."""
    command_line, first, second = two
    has = TopicConfig(topic_name="U", read_queue_nums=3, write_queue_nums=2, perm=4)
    first.script(RequestCode.GET_TOPIC_CONFIG, lambda command: command.answer(0, body=has.encode()))
    command_line("topics", "U", "--create", "--yes", *more)
    sent = [each.header(CreateTopicRequest) for node in (first, second) for each in node.requests(CREATE_TOPIC)]
    of_new = (4, 4, 6) if "4" in more else (8, 8, 2) if "2" in more else (8, 8, 6)
    assert [(each.read_queue_nums, each.write_queue_nums, each.perm) for each in sent] == [settings, of_new]


@pytest.mark.parametrize("known", [False, True])
def test_fewer_queues_than_a_broker_has_of_a_topic_that_name_servers_lack_are_asked_about(two, known):
    """Messages in the other queues could no longer be read; another broker's part may be known."""
    command_line, first, second = two
    topic = "U"
    if known:
        topic = "V"
        command_line.cluster.name_server.add_route(topic, second, queues=2)
    has = TopicConfig(topic_name=topic, read_queue_nums=16, write_queue_nums=12, perm=6)
    first.script(RequestCode.GET_TOPIC_CONFIG, *[lambda command: command.answer(0, body=has.encode())] * 2)
    second.script(RequestCode.GET_TOPIC_CONFIG, refused, refused)
    code, out, err = command_line("topics", topic, "--create", "--queues", "4")
    assert (code, out) == (2, "")
    assert f"reduces topic {topic} (16/12 queues " in err
    assert not first.requests(CREATE_TOPIC)
    command_line("topics", topic, "--create", "--queues", "4", "--yes")
    assert [each.header(CreateTopicRequest).read_queue_nums for each in first.requests(CREATE_TOPIC)] == [4]


def test_a_new_topic_is_created_at_the_others(two):
    command_line, silent, other = two
    silent.script(CREATE_TOPIC, None)
    other.script(CREATE_TOPIC, done)
    code, _, err = command_line("topics", "U", "--create")
    assert code == 1
    assert err.count("Done at") == 1
    assert f"Done at {other.address}; not at {silent.address}." in err


def test_a_delete_that_stops_names_where_it_stopped(two):
    command_line, first, second = two
    first.script(DELETE_TOPIC, done)
    second.script(DELETE_TOPIC, refused)
    code, out, err = command_line("topics", "T", "--delete", "--yes")
    assert (code, out) == (1, "")
    assert f"Done at {first.address}; not at {second.address}." in err


def test_a_delete_that_a_name_server_refuses_names_the_name_server(command_line):
    broker, name_server = command_line.cluster.broker, command_line.cluster.name_server
    broker.script(DELETE_TOPIC, done)
    name_server.script(RequestCode.DELETE_TOPIC_IN_NAMESRV, refused)
    code, _, err = command_line("topics", "T", "--delete", "--yes")
    assert code == 1
    assert f"Done at {broker.address}; not at {name_server.address}." in err


def test_where_one_broker_is_all_there_is_no_note(command_line):
    command_line.cluster.broker.script(DELETE_TOPIC, refused)
    code, _, err = command_line("topics", "T", "--delete", "--yes")
    assert code == 1
    assert "the disk is full" in err
    assert "Done at" not in err


def test_a_group_is_deleted_as_far_as_the_error_reports(two):
    command_line, first, second = two
    for broker in (first, second):
        broker.script(LIST, group_of(), group_of(), group_of())
        offline = [lambda command: command.answer(ResponseCode.CONSUMER_NOT_ONLINE, "not online")] * 2
        broker.script(RequestCode.GET_CONSUMER_CONNECTION_LIST, *offline)
    first.script(RequestCode.DELETE_SUBSCRIPTIONGROUP, done)
    second.script(RequestCode.DELETE_SUBSCRIPTIONGROUP, refused)
    code, _, err = command_line("groups", "G", "--delete", "--yes")
    assert code == 1
    assert "Done at broker-a; not at broker-b." in err


@pytest.fixture
def two_name_servers(cluster):
    """Makes a client of two name servers, and both."""
    first = cluster.name_server
    second = type(first)(cluster.network, "ns-2:9876")
    second.brokers.update(first.brokers)
    return triomq.open_client(f"{first.address};{second.address}", **cluster.options()), first, second


def changed_by_the_first_only(code, name_servers, answer):
    """Whichever is asked first makes the change, the other refuses; the addresses in the order of the requests."""
    asked = []

    def answer_of(address):
        def make(command):
            asked.append(address)
            return answer(command) if len(asked) == 1 else refused(command)

        return make

    for each in name_servers:
        each.script(code, answer_of(each.address))
    return asked


async def test_a_key_is_set_at_the_others(autojump_clock, two_name_servers):
    opening, first, second = two_name_servers
    first.script(RequestCode.PUT_KV_CONFIG, refused)
    second.script(RequestCode.PUT_KV_CONFIG, done)
    async with opening as client:
        with pytest.raises(errors.MQError) as failure:
            await client.servers.kv_put("NAMESPACE", "k", "v")
    assert failure.value.__notes__ == [f"Done at {second.address}; not at {first.address}."]


async def test_a_write_permission_is_removed_as_far_as_the_error_reports(autojump_clock, two_name_servers):
    opening, *name_servers = two_name_servers
    header = WipeWritePermOfBrokerResponse(wipe_topic_count=2)
    changed = changed_by_the_first_only(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER, name_servers, lambda command: command.answer(0, header=header)
    )
    async with opening as client:
        with pytest.raises(errors.MQError) as failure:
            await client.servers.set_write_permission("broker-a", allowed=False)
    assert failure.value.__notes__ == ["Done at {}; not at {}.".format(*changed)]


async def test_name_servers_are_set_as_far_as_the_error_reports(autojump_clock, two_name_servers):
    opening, *name_servers = two_name_servers
    changed = changed_by_the_first_only(RequestCode.UPDATE_NAMESRV_CONFIG, name_servers, done)

    def settings_of(address):
        value = "true" if address in changed else "false"
        return lambda command: command.answer(0, body=f"orderMessageEnable={value}".encode())

    for each in name_servers:
        each.script(RequestCode.GET_NAMESRV_CONFIG, *[lambda command, a=each.address: settings_of(a)(command)] * 2)
    async with opening as client:
        with pytest.raises(errors.MQError) as failure:
            await client.servers.set_name_server_config({"orderMessageEnable": "true"})
    assert failure.value.__notes__ == ["Done at {}; not at {}.".format(*changed)]
