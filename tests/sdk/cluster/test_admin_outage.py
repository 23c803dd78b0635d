"""Administrative calls about sets whose master is registered, but does not answer."""

from __future__ import annotations

import struct

import pytest
import trio

import triomq
from triomq import errors
from triomq._admin.broker_sets import PATIENCE_S, PROBE_S
from triomq._admin.topics import CONTESTED_KEY
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    ConsumerConnection,
    ConsumeStats,
    CreateTopicRequest,
    KVTable,
    OffsetWrapper,
    SubscriptionGroupTable,
)
from triomq_protocol.requests.group_admin import ClientConnection, ConsumerRunningInfo

INFO = RequestCode.GET_BROKER_RUNTIME_INFO
CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
RUNNING = RequestCode.GET_CONSUMER_RUNNING_INFO
STATS = RequestCode.GET_CONSUME_STATS
MEMBERS = RequestCode.GET_CONSUMER_CONNECTION_LIST


def progress_of(broker, committed, end):
    table = {
        triomq.MessageQueue("T", broker.name, 0): OffsetWrapper(
            broker_offset=end, consumer_offset=committed, last_timestamp=0
        )
    }
    return lambda command: command.answer(0, body=ConsumeStats(consume_tps=0.0, offset_table=table).encode())


async def test_a_dead_master_is_named_and_the_other_sets_are_asked(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    await cluster.broker.stop()
    other.script(STATS, progress_of(other, 3, 7))
    async with cluster.client() as client:
        progress = await client.groups.progress("G")
        assert list(progress) == [triomq.MessageQueue("T", "broker-b", 0)]
        assert progress.lag is None
        assert "no listener" in progress.without_master["broker-a"]
        assert list(await client.admin.without_master()) == ["broker-a"]


async def test_the_progress_in_one_topic_is_known_while_a_set_without_it_is_dead(autojump_clock, cluster):
    dead = cluster.add_master("broker-b")
    await dead.stop()
    cluster.name_server.add_route("T", cluster.broker)
    cluster.broker.script(STATS, *[progress_of(cluster.broker, 3, 7)] * 3)
    async with cluster.client() as client:
        assert (await client.groups.progress("G", "T")).lag == 4
        # One that no name server knows may be anywhere.
        assert list((await client.groups.progress("G", "unknown")).without_master) == ["broker-b"]
        # The set had the topic when its route was last looked up.
        cluster.name_server.add_route("T", cluster.broker, dead)
        await client.producer("P").queues("T")
        cluster.name_server.add_route("T", cluster.broker)
        del cluster.name_server.brokers["broker-b"]
        assert list((await client.groups.progress("G", "T")).without_master) == ["broker-b"]


async def test_a_broker_that_answers_with_a_fault_is_named(autojump_clock, cluster):
    """Its queues are missing: the lag is not that of the others."""
    other = cluster.add_master("broker-b")
    cluster.broker.script(STATS, progress_of(cluster.broker, 3, 7))
    other.script(STATS, lambda command: command.answer(1, "java.lang.NullPointerException"))
    async with cluster.client() as client:
        progress = await client.groups.progress("G")
    assert list(progress) == [triomq.MessageQueue("T", "broker-a", 0)]
    assert progress.lag is None
    assert progress.without_master == {
        "broker-b": f"the master {other.address} answers with a fault: java.lang.NullPointerException"
    }


class _HttpAnswer:
    def encode(self):
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"


async def test_an_address_without_a_broker_is_named_and_the_other_sets_are_asked(autojump_clock, cluster):
    """Any client may register an address with name servers."""
    other = cluster.add_master("broker-b")
    cluster.broker.script(STATS, progress_of(cluster.broker, 3, 7))
    other.script(STATS, lambda command: _HttpAnswer())
    async with cluster.client() as client:
        progress = await client.groups.progress("G")
    assert list(progress) == [triomq.MessageQueue("T", "broker-a", 0)]
    assert list(progress.without_master) == ["broker-b"]
    assert "HTTP" in progress.without_master["broker-b"]


async def test_a_client_that_closes_meanwhile_raises_its_own_error(autojump_clock, cluster):
    """And no group of errors, which callers that expect an `MQError` would not catch."""
    cluster.add_slave()
    cluster.broker.script(STATS, lambda command: None)
    raised = []

    async def ask(client):
        try:
            await client.groups.progress("G")
        except Exception as error:  # noqa: BLE001 - its class is what is tested
            raised.append(type(error))

    async with trio.open_nursery() as nursery, cluster.client() as client:
        nursery.start_soon(ask, client)
        await trio.sleep(1)
    assert raised == [errors.ClientClosed]


async def test_a_link_without_capacity_raises_its_own_error(autojump_clock, cluster):
    cluster.broker.script(STATS, lambda command: None)
    async with cluster.client(max_pending=1) as client, trio.open_nursery() as nursery:

        async def wait():
            progress = await client.groups.progress("G")
            assert progress.without_master == {
                "broker-a": f"the master {cluster.broker.address} does not answer: no answer in time"
            }

        nursery.start_soon(wait)
        await trio.sleep(0.1)
        with pytest.raises(errors.Overloaded):
            await client.groups.members("H")


async def test_a_slave_answers_for_a_dead_master(autojump_clock, cluster):
    slave = cluster.add_slave()
    await cluster.broker.stop()
    slave.script(STATS, progress_of(slave, 3, 7))
    async with cluster.client() as client:
        progress = await client.groups.progress("G")
    queue = triomq.MessageQueue("T", "broker-a", 0)
    assert progress[queue].consumer_offset == 3
    assert progress.lag_of(queue) is None


async def test_brokers_with_the_same_id_are_named(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    other.script(INFO, lambda command: command.answer(0, body=KVTable(table={CONTESTED_KEY: "b:2"}).encode()))
    async with cluster.client() as client:
        assert await client.admin.contested_ids() == {other.address: "b:2"}


async def test_members_that_are_unknown_are_not_none(autojump_clock, cluster):
    """Offsets may be set only of a group without members: silence is no proof of that."""
    other = cluster.add_master("broker-b")
    other.script(MEMBERS, *[lambda command: command.answer(206, "not online")] * 2)
    await cluster.broker.stop()
    async with cluster.client(route_wait_s=0) as client:
        with pytest.raises(errors.BrokerNotFound, match="unknown: broker broker-a"):
            await client.groups.members("G")
        with pytest.raises(errors.BrokerNotFound):
            await client.groups.set_offsets("G", {triomq.MessageQueue("T", "broker-b", 0): 1})
        online = ConsumerConnection(connection_set=[], subscription_table={})
        other.script(MEMBERS, lambda command: command.answer(0, body=online.encode()))
        assert await client.groups.members("G") is not None
    assert not other.offsets


async def test_a_members_id_is_one_line_of_the_log(autojump_clock, cluster, caplog):
    """Any client may have any id."""
    forged = ClientConnection(client_id="m\nERROR forged", client_addr="h:1", language="JAVA", version=0)
    online = ConsumerConnection(connection_set=[forged], subscription_table={})
    cluster.broker.script(MEMBERS, lambda command: command.answer(0, body=online.encode()))
    cluster.broker.script(RUNNING, lambda command: command.answer(206, "not online"))
    async with cluster.client() as client:
        assert await client.groups.owners("G") == {}
    (line,) = [each for each in caplog.messages if "does not report" in each]
    assert line.startswith("m?ERROR forged in group G")
    assert "\n" not in line


async def test_the_list_of_groups(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    await cluster.broker.stop()
    table = SubscriptionGroupTable(subscription_group_table={})
    other.script(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda command: command.answer(0, body=table.encode()))
    async with cluster.client() as client:
        assert await client.groups.names() == []
        await other.stop()
        with pytest.raises(errors.BrokerNotFound, match="broker broker-b: the master"):
            await client.groups.names()


async def test_a_group_that_a_silent_set_may_know_is_not_called_unknown(autojump_clock, cluster):
    silent = cluster.add_master("broker-b")
    cluster.name_server.add_route("T", cluster.broker)
    cluster.broker.store("T", 0, b"m")
    body = SubscriptionGroupTable(subscription_group_table={}).encode()
    groups = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    cluster.broker.script(groups, *[lambda command: command.answer(0, body=body)] * 3)
    silent.script(groups, None, None, lambda command: command.answer(0, body=body))
    async with cluster.client() as client:
        found = await client.groups.names()
        assert (found, list(found.unknown), found.refused) == ([], ["broker-b"], {})
        message = await client.messages.at(triomq.MessageQueue("T", "broker-a", 0), 0)
        with pytest.raises(errors.BrokerNotFound, match=r"knows the consumer group G may not .* nothing was sent"):
            await client.messages.resend(message, "G")
        with pytest.raises(errors.GroupNotFound):
            await client.messages.resend(message, "G")


async def test_a_topic_created_while_a_set_has_no_master_is_reported_as_missing_there(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    del cluster.name_server.brokers["broker-a"].broker_addrs[0]
    other.script(CREATE, lambda command: command.answer(0))
    async with cluster.client() as client:
        with pytest.raises(errors.BrokerNotFound, match="and not on broker-a: no master of it is registered; start it"):
            await client.admin.create_topic("new")
        assert len(other.requests(CREATE)) == 1
        with pytest.raises(errors.BrokerNotFound, match="no master of broker-a is registered"):
            await client.admin.create_topic("new", brokers=["broker-a"])


async def test_a_topic_is_created_on_the_others_when_one_master_is_dead(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    await cluster.broker.stop()
    other.script(CREATE, lambda command: command.answer(0))
    async with cluster.client() as client:
        with pytest.raises(errors.ConnectFailed, match="broker-a"):
            await client.admin.create_topic("new")
    assert len(other.requests(CREATE)) == 1


async def test_queues_of_the_others_stay_readable_when_one_master_is_dead(autojump_clock, cluster):
    cluster.name_server.add_route("TBW102", cluster.broker, queues=3, perm=7)
    other = cluster.add_master("broker-b")
    await cluster.broker.stop()
    other.queues["new", 1].append(object())
    async with cluster.client() as client:
        with pytest.raises(errors.ConnectFailed, match="broker-a"):
            await client.admin.ensure_topic("new", queues=1)
    created = [request.header(CreateTopicRequest) for request in other.requests(CREATE)]
    assert [(each.read_queue_nums, each.write_queue_nums) for each in created] == [(1, 1), (2, 1)]


async def test_a_slave_reports_for_a_member_while_its_master_is_dead(autojump_clock, cluster):
    slave = cluster.add_slave()
    await cluster.broker.stop()
    info = ConsumerRunningInfo(properties={"x": "1"})
    slave.script(RUNNING, lambda command: command.answer(0, body=info.encode()))
    async with cluster.client() as client:
        assert (await client.groups.running_info("G", "c@1")).properties == {"x": "1"}
        await slave.stop()
        with pytest.raises(errors.BrokerNotFound, match="is unknown: broker broker-a: the master"):
            await client.groups.running_info("G", "c@1")


async def test_a_set_that_the_name_server_has_removed_is_named_as_long_as_a_route_has_it(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    other.script(STATS, progress_of(other, 3, 3))
    other.script(CREATE, lambda command: command.answer(0))
    async with cluster.client() as client:
        await client.pull_consumer("G").fetch_queues("T")
        await cluster.broker.stop()
        cluster.name_server.routes.clear()
        del cluster.name_server.brokers["broker-a"]
        assert list(await client.admin.without_master()) == ["broker-a"]
        assert (await client.groups.progress("G")).lag is None
        with pytest.raises(errors.BrokerNotFound, match="and not on broker-a"):
            await client.admin.create_topic("new")


async def test_a_route_may_change_while_a_broker_that_hangs_is_asked(autojump_clock, cluster):
    """Its set is known by the route alone: the name server has removed it."""
    hangs = cluster.add_master("broker-b")
    hangs.script(MEMBERS, None)
    cluster.broker.script(MEMBERS, lambda command: command.answer(206, "not online"))
    async with cluster.client() as client, trio.open_nursery() as nursery:
        cluster.name_server.add_route("T", cluster.broker, hangs)
        await client.producer("P").queues("T")
        del cluster.name_server.brokers["broker-b"]
        cluster.name_server.add_route("T", cluster.broker)

        async def ask():
            with pytest.raises(errors.BrokerNotFound, match="broker-b: the master broker-b-0:10911 does not answer"):
                await client.groups.members("G")

        nursery.start_soon(ask)
        await trio.sleep(1)
        await client._routes.refresh("T")
        assert "broker-b" not in await client.admin.broker_sets()


async def test_a_master_that_hangs_is_given_up_before_a_long_answer_is_due(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    other.script(STATS, progress_of(other, 3, 7))
    for code in (STATS, INFO):
        cluster.broker.script(code, lambda command: None)
    async with cluster.client() as client:
        began = trio.current_time()
        progress = await client.groups.progress("G")
        assert trio.current_time() - began == pytest.approx(PATIENCE_S + PROBE_S)
    assert list(progress) == [triomq.MessageQueue("T", "broker-b", 0)]
    assert "no answer in time" in progress.without_master["broker-a"]
    assert progress.lag is None


QUEUE = triomq.MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.servers.consume_stats("broker-a"),
        lambda client: client.servers.clean("broker-a", "queues"),
        lambda client: client.messages.page(QUEUE, 0),
    ],
)
async def test_a_broker_that_hangs_is_given_up_before_its_one_long_answer_is_due(autojump_clock, cluster, ask):
    cluster.broker.answer_to = lambda command: None
    async with cluster.client(route_wait_s=0) as client:
        began = trio.current_time()
        with pytest.raises(errors.RequestTimeout):
            await ask(client)
        assert trio.current_time() - began == pytest.approx(PATIENCE_S + PROBE_S)


async def test_a_long_answer_on_a_slow_connection_is_waited_for(autojump_clock, cluster):
    """A short request is answered only after it."""
    broker = cluster.broker
    broker.store("T", 0, bytes(1000))

    async def slowly(command):
        answer = broker.serve(command)
        answer.opaque = command.opaque
        frame, stream = answer.encode(), broker.asking
        async with broker.writing[stream]:
            for begin in range(0, len(frame), 100):
                await stream.send_all(frame[begin : begin + 100])
                await trio.sleep(1)

    broker.script(RequestCode.PULL_MESSAGE, slowly)
    async with cluster.client() as client:
        began = trio.current_time()
        page, _ = await client.messages.page(QUEUE, 0)
        assert trio.current_time() - began > 2 * PATIENCE_S + PROBE_S
    assert [message.body for message in page] == [bytes(1000)]


async def test_answers_without_their_fields_are_violations_of_the_protocol(autojump_clock, cluster):
    """And no errors of the header's reader, nor groups of them."""
    cluster.name_server.script(RequestCode.GET_KV_CONFIG, lambda command: _WithoutFields(command))
    cluster.broker.script(RequestCode.GET_MAX_OFFSET, lambda command: command.answer(0))
    async with cluster.client() as client:
        with pytest.raises(errors.ProtocolViolation, match="extFields"):
            await client.servers.kv_get("n", "k")
        with pytest.raises(errors.ProtocolViolation, match="offset"):
            await client.admin._show_queues(cluster.broker.address, "T", 1, 2)


async def test_a_route_with_more_queues_than_are_possible_is_refused(autojump_clock, cluster):
    """Any client may register one, and a program that lists its queues would need memory for them."""
    cluster.name_server.add_route("T", cluster.broker, queues=2**31 - 1)
    async with cluster.client() as client:
        with pytest.raises(errors.ProtocolViolation, match="it has 4294967294 queues; at most 131072 are possible"):
            await client.admin.route("T")
        with pytest.raises(errors.ProtocolViolation, match="at most 131072"):
            await client.admin.ensure_topic("T")
        await client.admin.delete_topic("T")


class _WithoutFields:
    """An answer whose fields are a list."""

    def __init__(self, command):
        self._opaque = command.opaque

    def encode(self):
        header = b'{"code":0,"extFields":[1],"flag":1,"language":"JAVA","opaque":%d,"version":399}' % self._opaque
        return struct.pack(">ii", 4 + len(header), len(header)) + header


async def test_a_topic_is_deleted_from_a_cluster_while_another_cluster_has_no_master(autojump_clock, cluster):
    other = cluster.add_master("broker-b")
    cluster.name_server.add_route("T", cluster.broker, other)
    _, missing = cluster.name_server.routes["T"].broker_datas
    missing.cluster, missing.broker_addrs = "other", {}
    async with cluster.client() as client:
        with pytest.raises(errors.RouteError, match="no master of broker-b is registered"):
            await client.admin.delete_topic("T")
        await client.admin.delete_topic("T", cluster="C")
    assert cluster.broker.requests(RequestCode.DELETE_TOPIC_IN_BROKER)
