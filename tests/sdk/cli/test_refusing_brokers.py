"""Commands about groups while one broker refuses the account: the others' rows, and a sentence at the end."""

from __future__ import annotations

import json

import pytest

from triomq import MessageQueue
from triomq.admin import OffsetWrapper
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import ConsumeStats, SubscriptionGroupConfig, SubscriptionGroupTable

REMARK = "org.apache.rocketmq.acl.common.AclException: Need admin permission for accessKey=operator"
CODES = (
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
)


@pytest.fixture
def half_refused(command_line):
    """A command line whose account broker-a refuses, and broker-b lets look."""
    refusing, other = command_line.cluster.broker, command_line.cluster.add_master("broker-b")
    for code in CODES:
        refusing.script(code, *[lambda command: command.answer(ResponseCode.SYSTEM_ERROR, REMARK)] * 4)
    offsets = OffsetWrapper(broker_offset=7, consumer_offset=3, last_timestamp=0)
    table = SubscriptionGroupTable(subscription_group_table={"G": SubscriptionGroupConfig(group_name="G")})
    progress = ConsumeStats(consume_tps=0.0, offset_table={MessageQueue("T", "broker-b", 0): offsets})
    other.script(CODES[0], *[lambda command: command.answer(0, body=table.encode())] * 4)
    other.script(CODES[1], *[lambda command: command.answer(0, body=progress.encode())] * 4)
    other.script(CODES[2], *[lambda command: command.answer(206, "not online")] * 4)
    for broker in (refusing, other):
        broker.script(
            RequestCode.GET_BROKER_RUNTIME_INFO, *[lambda command: command.answer(0, body=b'{"table":{}}')] * 4
        )
    return command_line


@pytest.mark.parametrize("command", [("groups",), ("offsets", "show", "G")])
def test_the_others_are_shown_and_the_refusing_broker_is_named(half_refused, command):
    code, out, err = half_refused(*command, "--json")
    assert code == 1
    row = json.loads(out)
    assert row["group"] == "G"
    if command == ("groups",):
        assert (row["members"], row["lag"], row["refused"]) == (None, None, ["broker-a"])
    else:
        assert (row["broker"], row["lag"]) == ("broker-b", 4)
    assert f"broker broker-a: {half_refused.cluster.broker.address} refuses: " in err
    assert "use an account with `admin: true`" in err
    assert "what it has is missing" in err


def test_a_group_whose_members_a_broker_hides_is_shown(half_refused):
    code, out, err = half_refused("groups", "G")
    assert code == 1
    assert "members: unknown" in out
    assert "broker-b" in out
    assert "admin: true" in err


def test_the_list_says_why_members_are_unknown(command_line):
    """A broker may let an account look at a group's progress, and not at its members."""
    broker = command_line.cluster.broker
    table = SubscriptionGroupTable(subscription_group_table={"G": SubscriptionGroupConfig(group_name="G")})
    broker.script(CODES[0], lambda command: command.answer(0, body=table.encode()))
    broker.script(CODES[1], lambda command: command.answer(0, body=ConsumeStats().encode()))
    broker.script(CODES[2], lambda command: command.answer(ResponseCode.SYSTEM_ERROR, REMARK))
    broker.script(RequestCode.GET_BROKER_RUNTIME_INFO, lambda command: command.answer(0, body=b'{"table":{}}'))
    code, out, err = command_line("groups")
    assert code == 1
    assert out.splitlines()[1].split()[:2] == ["G", "unknown"]
    assert "admin: true" in err
