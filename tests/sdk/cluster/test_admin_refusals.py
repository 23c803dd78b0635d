"""Administrative calls while one broker refuses the account: what the others answered, and who refuses."""

from __future__ import annotations

import pytest

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicStatsTable,
)
from triomq_protocol.requests.admin import TopicOffset

NAMES = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
MEMBERS = RequestCode.GET_CONSUMER_CONNECTION_LIST
PROGRESS = RequestCode.GET_CONSUME_STATS
TOPIC = RequestCode.GET_TOPIC_STATS_INFO
REMARK = "org.apache.rocketmq.acl.common.AclException: Need admin permission for accessKey=operator"
QUEUE = triomq.MessageQueue("T", "broker-b", 0)


def refusing(command):
    return command.answer(ResponseCode.SYSTEM_ERROR, REMARK)


def refusing_as_5(command):
    return command.answer(ResponseCode.NO_PERMISSION, "User:operator has no permission to access Group:G")


def answering(body):
    return lambda command: command.answer(0, body=body.encode())


GROUPS = SubscriptionGroupTable(subscription_group_table={"G": SubscriptionGroupConfig(group_name="G")})
OFFSETS = ConsumeStats(
    consume_tps=0.0, offset_table={QUEUE: OffsetWrapper(broker_offset=7, consumer_offset=3, last_timestamp=0)}
)
ONLINE = ConsumerConnection(connection_set=[], subscription_table={})
BOUNDS = TopicStatsTable(offset_table={QUEUE: TopicOffset(min_offset=0, max_offset=7, last_update_timestamp=0)})
CALLS = {
    NAMES: (lambda client: client.groups.names(), GROUPS),
    PROGRESS: (lambda client: client.groups.progress("G"), OFFSETS),
    TOPIC: (lambda client: client.admin.topic_stats("T"), BOUNDS),
}


@pytest.mark.parametrize(
    ("refuse", "advice"), [(refusing, "use an account with `admin: true`"), (refusing_as_5, "mqadmin createAcl")]
)
@pytest.mark.parametrize("code", CALLS)
async def test_the_others_answers_and_who_refuses(autojump_clock, cluster, code, refuse, advice):
    other = cluster.add_master("broker-b")
    call, body = CALLS[code]
    cluster.broker.script(code, refuse)
    other.script(code, answering(body))
    async with cluster.client() as client:
        found = await call(client)
    assert list(found.refused) == ["broker-a"]
    assert found.refused["broker-a"].startswith(f"{cluster.broker.address} refuses: ")
    assert "operator" in found.refused["broker-a"]
    assert advice in found.refused["broker-a"]
    assert list(getattr(found, "offset_table", found)) == (["G"] if code == NAMES else [QUEUE])


@pytest.mark.parametrize("code", [*CALLS, MEMBERS])
async def test_an_account_that_all_refuse_is_an_error(autojump_clock, cluster, code):
    other = cluster.add_master("broker-b")
    call = CALLS[code][0] if code != MEMBERS else lambda client: client.groups.members("G")
    for broker in (cluster.broker, other):
        broker.script(code, refusing)
    async with cluster.client() as client:
        with pytest.raises(errors.AccessRefused, match="Need admin permission"):
            await call(client)


async def test_what_a_refusing_broker_has_is_unknown_rather_than_none(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    cluster.broker.script(PROGRESS, refusing, refusing)
    other.script(PROGRESS, answering(OFFSETS), answering(OFFSETS))
    cluster.broker.script(MEMBERS, refusing, refusing)
    other.script(MEMBERS, answering(ONLINE), lambda command: command.answer(206, "not online"))
    async with cluster.client() as client:
        progress = await client.groups.progress("G")
        assert progress.lag is None
        assert progress.lag_of(QUEUE) == 4, "this queue's broker answered"
        with pytest.raises(errors.AccessRefused, match="nothing was set"):
            await client.groups.clone_offsets("G", "H")
        assert await client.groups.members("G") is not None
        with pytest.raises(errors.AccessRefused, match="unknown: broker broker-a"):
            await client.groups.members("G")


@pytest.mark.parametrize(
    ("remark", "kind"),
    [
        (REMARK, errors.AccessRefused),
        ("can not find message by the offset, 4096", errors.NotFound),
        ("java.lang.IllegalArgumentException", errors.NotFound),  # for an offset inside a record
    ],
)
async def test_a_message_that_an_account_may_not_see_may_be_stored(autojump_clock, cluster, remark, kind):
    cluster.network.nodes["127.0.0.1:10911"] = cluster.broker
    cluster.broker.script(
        RequestCode.VIEW_MESSAGE_BY_ID, lambda command: command.answer(ResponseCode.SYSTEM_ERROR, remark)
    )
    async with cluster.client() as client:
        with pytest.raises(kind) as caught:
            await client.messages.by_id("7F00000100002A9F0000000000001000", any_address=True)
    assert ("is not stored" in str(caught.value)) is (kind is errors.NotFound)
