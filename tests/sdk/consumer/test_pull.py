"""Pulls: positions, filters, lazy decoding, and the broker to which they are sent."""

from __future__ import annotations

import math

import pytest
import trio

import triomq
from triomq import errors
from triomq._consumer.puller import PullCall
from triomq._message.subscription import make_subscription
from triomq_protocol import flags
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import DeleteTopicFromNamesrvRequest, HeartbeatData, UnregisterClientRequest
from triomq_protocol.requests.pull import PullMessageRequest

PULL = RequestCode.PULL_MESSAGE
QUEUE = triomq.MessageQueue("T", "broker-a", 0)


async def fill(client, count, *, queue=QUEUE, tags=None):
    async with client.producer("P") as producer:
        for number in range(count):
            tag = tags[number % len(tags)] if tags else None
            await producer.send(triomq.Message("T", b"m%d" % number, tags=tag), queue=queue)


def pulls(node):
    return [command.header(PullMessageRequest) for command in node.requests(PULL)]


def bodies(result):
    return [message.body for message in result]


async def test_own_position_moves_on(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 5)
        consumer = client.pull_consumer("G")
        assert bodies(await consumer.pull(QUEUE, max_messages=3)) == [b"m0", b"m1", b"m2"]
        assert bodies(await consumer.pull(QUEUE, max_messages=3)) == [b"m3", b"m4"]
        third = await consumer.pull(QUEUE)
        assert await consumer.position(QUEUE) == 5
    assert third.status is triomq.PullStatus.NO_NEW_MESSAGE
    assert (third.next_offset, third.min_offset, third.max_offset) == (5, 0, 5)
    assert not third.messages
    assert [p.queue_offset for p in pulls(cluster.broker)] == [0, 3, 5]


async def test_a_result_is_false_without_messages(autojump_clock, cluster):
    found = []
    async with cluster.client() as client:
        await fill(client, 5, tags=["a", "b"])
        consumer = client.pull_consumer("G")
        while result := await consumer.pull(QUEUE, max_messages=2):
            found += bodies(result)
            assert len(pulls(cluster.broker)) <= 4
        assert found == [b"m0", b"m1", b"m2", b"m3", b"m4"]
        # The broker found tags of the same hash; none of them is wanted.
        nothing = await consumer.pull(QUEUE, 0, max_messages=1, tags="b")
    assert (bool(nothing), len(nothing)) == (False, 0)


async def test_an_explicit_offset_does_not_change_the_position(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 5)
        consumer = client.pull_consumer("G")
        await consumer.pull(QUEUE, max_messages=2)
        assert bodies(await consumer.pull(QUEUE, 4)) == [b"m4"]
        assert bodies(await consumer.pull(QUEUE, max_messages=1)) == [b"m2"]
        consumer.seek(QUEUE, 1)
        assert bodies(await consumer.pull(QUEUE, max_messages=1)) == [b"m1"]


@pytest.mark.parametrize("step", ["committed", "pulled"])
async def test_a_seek_during_a_pull_is_kept(autojump_clock, cluster, step):
    code = RequestCode.QUERY_CONSUMER_OFFSET if step == "committed" else RequestCode.PULL_MESSAGE

    async def late(command):
        await trio.sleep(1)
        return cluster.broker.serve(command)

    for body in (b"a", b"b", b"c"):
        cluster.broker.store("T", 0, body)
    cluster.broker.script(code, late)
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: consumer.pull(QUEUE, max_messages=1))
            await trio.sleep(0.5)
            consumer.seek(QUEUE, 2)
        expected = 3 if step == "committed" else 2  # a pull that had not been sent starts there
        assert await consumer.position(QUEUE) == expected


async def test_the_request(autojump_clock, cluster):
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        await consumer.pull(QUEUE, 0, max_messages=7, tags="a || b")
        await consumer.pull(QUEUE, 0, block=True)
    first, second = pulls(cluster.broker)
    assert (first.consumer_group, first.topic, first.queue_id, first.bname) == ("G", "T", 0, "broker-a")
    assert (first.max_msg_nums, first.sub_version, first.commit_offset) == (7, 0, 0)
    assert (first.subscription, first.expression_type) == ("a || b", "TAG")
    assert (first.sys_flag, first.suspend_timeout_millis) == (flags.PULL_SUBSCRIPTION, 0)
    assert (second.sys_flag, second.suspend_timeout_millis, second.subscription) == (6, 20000, "*")


async def test_a_nearer_deadline_shortens_the_brokers_wait(autojump_clock, cluster):
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        await consumer.fetch_queues("T")
        with trio.fail_after(7.5):
            await consumer.pull(QUEUE, 0, block=True)
        await consumer.pull(QUEUE, 0, block=True, suspend_s=0.5)
    assert [p.suspend_timeout_millis for p in pulls(cluster.broker)] == [7500, 500]


async def test_tags_and_sql_exclude_each_other(autojump_clock, cluster):
    async with cluster.client() as client:
        consumer = client.pull_consumer("C")
        with pytest.raises(errors.InvalidCall, match="give either tags= or sql="):
            await consumer.pull(QUEUE, 0, tags="a", sql="b = 1")


@pytest.mark.parametrize("suspend_s", [math.inf, -math.inf, math.nan, -1])
async def test_no_broker_holds_a_pull_without_end(autojump_clock, cluster, suspend_s):
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        with pytest.raises(errors.InvalidCall, match=f"suspend_s is {suspend_s}, not a number of seconds"):
            await consumer.pull(QUEUE, 0, block=True, suspend_s=suspend_s)
    assert pulls(cluster.broker) == []


async def test_messages_are_what_was_stored(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("P")
        sent = await producer.send(
            triomq.Message("T", b"x", tags="t", keys=("k1", "k2"), properties={"u": "ü"}, flag=7), queue=QUEUE
        )
        result = await client.pull_consumer("G").pull(QUEUE, 0)
    (message,) = result.messages
    assert (message.topic, message.queue, message.queue_id, message.queue_offset) == ("T", QUEUE, 0, 0)
    assert (message.body, message.tags, message.keys, message.flag) == (b"x", "t", ["k1", "k2"], 7)
    assert message.properties == {"u": "ü", "KEYS": "k1 k2", "TAGS": "t", "UNIQ_KEY": sent.message_id}
    assert message.message_id == sent.message_id
    assert message.offset_message_id == "7F00000100002A9F0000000000000000"
    assert (message.born_ms, message.stored_ms) == (1_700_000_000_000, 1_700_000_000_000)
    assert (message.born_host, message.store_host) == (("127.0.0.1", 40000), ("127.0.0.1", 10911))
    assert (message.min_offset, message.max_offset, message.reconsume_times) == (0, 1, 0)
    assert (message.physical_offset, message.sys_flag, message.transaction_id) == (0, 0, None)
    assert sent.message_id in repr(message)


async def test_nothing_is_decoded_that_is_not_read(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 3)
        result = await client.pull_consumer("G").pull(QUEUE)
    assert result.status is triomq.PullStatus.FOUND
    assert result.next_offset == 3
    assert len(result.body) > 100
    assert result._messages is None
    assert [message._record for message in result.messages] == [None, None, None]
    assert bodies(result) == [b"m0", b"m1", b"m2"]


async def test_tags_that_share_a_hash_are_distinguished(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 6, tags=["Aa", "BB", "c"])  # Java's hash of Aa and BB is 2112
        consumer = client.pull_consumer("G")
        result = await consumer.pull(QUEUE, tags="Aa")
        assert bodies(result) == [b"m0", b"m3"]
        assert result.next_offset == 6
        assert bodies(await consumer.pull(QUEUE, 0, tags="BB || c")) == [b"m1", b"m2", b"m4", b"m5"]
        none = await consumer.pull(QUEUE, 0, tags="d")
        assert (none.status, none.next_offset) == (triomq.PullStatus.NO_MATCHED_MESSAGE, 6)
        with pytest.raises(errors.InvalidCall, match="cannot be used"):
            await consumer.pull(QUEUE, 0, tags="||")


async def test_an_illegal_offset_is_corrected(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 2)
        consumer = client.pull_consumer("G")
        consumer.seek(QUEUE, 99)
        result = await consumer.pull(QUEUE)
        assert (result.status, result.next_offset) == (triomq.PullStatus.OFFSET_ILLEGAL, 2)
        assert await consumer.position(QUEUE) == 2


async def test_it_starts_at_the_offsets_of_the_group(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 5)
        consumer = client.pull_consumer("G")
        assert await consumer.committed(QUEUE) is None
        with pytest.raises(errors.InvalidCall, match="no position"):
            await consumer.commit(QUEUE)
        await consumer.pull(QUEUE, max_messages=3)
        await consumer.commit(QUEUE)
        assert await consumer.committed(QUEUE) == 3
        await consumer.aclose()
        again = client.pull_consumer("G")
        assert bodies(await again.pull(QUEUE)) == [b"m3", b"m4"]
        await again.commit(QUEUE, 1)
        assert cluster.broker.offsets["G", "T", 0] == 1


async def test_offsets(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 5)
        consumer = client.pull_consumer("G")
        assert await consumer.fetch_queues("T") == [QUEUE, triomq.MessageQueue("T", "broker-a", 1)]
        assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 5)
        assert await consumer.offset_by_time(QUEUE, 1_700_000_000_003) == 3


async def test_offsets_in_a_file(cluster, tmp_path):
    path = tmp_path / "folder" / "offsets.json"
    store = triomq.plugins.FileOffsets(path)
    async with cluster.client() as client:
        consumer = client.pull_consumer("G", offset_store=store)
        assert await consumer.committed(QUEUE) is None
        await consumer.commit(QUEUE, 3)
        await consumer.commit(QUEUE, 7)
        assert not cluster.broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert await triomq.plugins.FileOffsets(path).read(QUEUE) == 7
    assert (tmp_path / "folder" / "offsets.json.bak").exists()
    path.write_bytes(b"torn")
    assert await triomq.plugins.FileOffsets(path).read(QUEUE) == 3
    (tmp_path / "folder" / "offsets.json.bak").write_bytes(b"torn too")
    with pytest.raises(triomq.MQError, match="cannot be read"):
        await triomq.plugins.FileOffsets(path).read(QUEUE)


# --- master and slave ------------------------------------------------------------------------------------------


async def test_suggestions_are_followed_per_queue(autojump_clock, cluster):
    slave = cluster.add_slave()
    other = triomq.MessageQueue("T", "broker-a", 1)
    async with cluster.client() as client:
        await fill(client, 4)
        consumer = client.pull_consumer("G")
        cluster.broker.suggests = slave.suggests = 1
        first = await consumer.pull(QUEUE, max_messages=1)
        second = await consumer.pull(QUEUE, max_messages=1)
        assert [first.broker_address, second.broker_address] == [cluster.broker.address, slave.address]
        assert (first.suggested_broker_id, second.suggested_broker_id) == (1, 1)
        cluster.broker.suggests = 0
        assert (await consumer.pull(other)).broker_address == cluster.broker.address
        slave.suggests = 0
        assert (await consumer.pull(QUEUE, max_messages=1)).broker_address == slave.address
        assert (await consumer.pull(QUEUE, max_messages=1)).broker_address == cluster.broker.address


async def test_a_slave_does_not_get_what_the_master_is_to_commit(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        await fill(client, 2)
        puller = client.pull_consumer("G")._puller
        call = PullCall(
            QUEUE, 0, max_messages=1, suspend_ms=0, subscription=make_subscription("T", "*", 0), sub_version=0,
            timeout_s=5, commit_offset=7,
        )  # fmt: skip
        cluster.broker.suggests = 1
        await puller.pull(call)
        await puller.pull(call)
    for node, commit_flag in ((cluster.broker, flags.PULL_COMMIT_OFFSET), (slave, 0)):
        (header,) = pulls(node)
        assert (header.sys_flag & flags.PULL_COMMIT_OFFSET, header.commit_offset) == (commit_flag, 7)


@pytest.mark.parametrize("code", [19, 20, 21])
async def test_every_status_carries_a_suggestion(autojump_clock, cluster, code):
    slave = cluster.add_slave()
    cluster.broker.store("T", 0, b"x")
    cluster.broker.suggests = 1

    def answer(command):
        answer = cluster.broker.pull(command)
        answer.code = code
        return answer

    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        cluster.broker.script(PULL, answer)
        await consumer.pull(QUEUE, 0)
        assert (await consumer.pull(QUEUE, 0)).broker_address == slave.address


async def test_an_error_does_not_change_the_suggestion(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        consumer._puller.nodes.suggest(QUEUE, 1)
        slave.script(PULL, lambda command: command.answer(1, "no"))
        with pytest.raises(errors.BrokerFault):
            await consumer.pull(QUEUE, 0)
        assert consumer._puller.nodes.wanted(QUEUE) == 1


@pytest.mark.parametrize("how", ["refused", "lost", "never-there"])
async def test_the_slave_is_asked_at_once_when_the_master_is_gone(autojump_clock, cluster, how):
    slave = cluster.add_slave()

    async def die(command):
        await cluster.broker.stop()

    async with cluster.client() as client:
        await fill(client, 3)
        consumer = client.pull_consumer("G")
        consumer.seek(QUEUE, 0)
        if how == "never-there":
            await cluster.broker.stop()
        else:
            await consumer.fetch_queues("T")
            if how == "lost":
                cluster.broker.script(PULL, die)
            else:
                await cluster.broker.stop()
        started = trio.current_time()
        result = await consumer.pull(QUEUE)
        assert result.broker_address == slave.address
        assert bodies(result) == [b"m0", b"m1", b"m2"]
        dials = len(cluster.network.dials)
        for _ in range(20):
            await consumer.pull(QUEUE, 0)
        assert trio.current_time() == started
        # The master is not dialled for every pull.
        assert len(cluster.network.dials) - dials <= 1
        # Back again, it is used again.
        cluster.broker.up = True
        await trio.sleep(6)
        assert (await consumer.pull(QUEUE, 0)).broker_address == cluster.broker.address


def reject(command):
    """As a slave that serves no reads, or a master without memory for new messages."""
    return command.answer(2, "[REJECTREQUEST]system busy, start flow control for a while")


async def test_a_master_that_has_become_a_slave_without_reads_is_left(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        await fill(client, 3)
        consumer = client.pull_consumer("G")
        await consumer.fetch_queues("T")
        cluster.broker.script(PULL, *[reject] * 1000)
        cluster.broker.broker_id, slave.broker_id = 1, 0
        cluster.name_server.add_route("T", slave, cluster.broker)
        started = trio.current_time()
        result = await consumer.pull(QUEUE, 0)
        assert (result.broker_address, bodies(result)) == (slave.address, [b"m0", b"m1", b"m2"])
        assert trio.current_time() == started
        await trio.sleep(0.1)
        cluster.broker.seen.clear()
        await consumer.pull(QUEUE, 0)
        assert not pulls(cluster.broker), "the route has been asked for"


async def held_pull(cluster, client, consumer, nursery):
    """A pull that the master holds, and whose result is returned by the function returned."""
    await consumer.fetch_queues("T")
    cluster.broker.script(PULL, None)
    found = []

    async def pull():
        with trio.CancelScope() as scope:
            found.append(scope)
            found.append(await consumer.pull(QUEUE, 0, suspend_s=15))

    nursery.start_soon(pull)
    await trio.testing.wait_all_tasks_blocked()
    return found


async def test_a_pull_that_the_former_master_holds_is_sent_to_its_successor(autojump_clock, cluster):
    """Messages arrive there, and a slave may hold the pull to its end."""
    slave = cluster.add_slave()
    async with cluster.client() as client, trio.open_nursery() as nursery:
        await fill(client, 3)
        consumer = client.pull_consumer("G")
        found = await held_pull(cluster, client, consumer, nursery)
        started = trio.current_time()
        cluster.broker.broker_id, slave.broker_id = 1, 0
        cluster.name_server.add_route("T", slave, cluster.broker)
        await client._routes.refresh("T")
        await trio.testing.wait_all_tasks_blocked()
        (_, result) = found
        assert (result.broker_address, bodies(result)) == (slave.address, [b"m0", b"m1", b"m2"])
        assert trio.current_time() == started


async def test_a_pull_is_held_no_longer_because_its_master_changes(autojump_clock, cluster):
    """Each change would add as much again, and with two brokers that both register as the master there are many."""
    slave = cluster.add_slave()
    async with cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.pull_consumer("G")
        await consumer.fetch_queues("T")
        cluster.broker.script(PULL, None)
        slave.script(PULL, None)
        nursery.start_soon(lambda: consumer.pull(QUEUE, 0, block=True, suspend_s=15))
        await trio.sleep(14)
        cluster.broker.broker_id, slave.broker_id = 1, 0
        cluster.name_server.add_route("T", slave, cluster.broker)
        await client._routes.refresh("T")
        await trio.testing.wait_all_tasks_blocked()
        assert [pull.suspend_timeout_millis for pull in pulls(cluster.broker) + pulls(slave)] == [15_000, 1000]
        nursery.cancel_scope.cancel()


async def test_a_held_pull_stays_while_its_master_does(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.pull_consumer("G")
        found = await held_pull(cluster, client, consumer, nursery)
        for brokers in ([cluster.broker], [slave], [cluster.broker, slave]):
            cluster.name_server.add_route("T", *brokers)
            await client._routes.refresh("T")
            await trio.testing.wait_all_tasks_blocked()
        assert len(found) == len(pulls(cluster.broker)) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["cancelled", "lost"])
async def test_a_held_pull_that_ends_when_its_master_changes(autojump_clock, cluster, how):
    slave = cluster.add_slave()
    async with cluster.client() as client, trio.open_nursery() as nursery:
        consumer = client.pull_consumer("G")
        found = await held_pull(cluster, client, consumer, nursery)
        cluster.broker.broker_id, slave.broker_id = 1, 0
        cluster.name_server.add_route("T", slave, cluster.broker)
        (waiting,) = consumer._puller._waiting
        # Both before the pull's task runs.
        if how == "cancelled":
            found[0].cancel()
        else:
            waiting._link.pending.pop(waiting._opaque).failed(errors.LinkLost("the connection broke"))
        client._routes._store("T", cluster.name_server.routes["T"], borrowed=False)
        await trio.testing.wait_all_tasks_blocked()
        assert found[0].cancelled_caught is (how == "cancelled")
        assert [result.broker_address for result in found[1:]] == [slave.address] * (how == "lost")


async def test_a_pull_whose_master_changes_while_its_link_opens(autojump_clock, cluster):
    slave = cluster.add_slave()
    opens = trio.Event()

    async def dial(address):
        if address == cluster.broker.address:
            await opens.wait()
        return await cluster.network.dial(address)

    async with cluster.client(dial=dial) as client, trio.open_nursery() as nursery:
        consumer = client.pull_consumer("G")
        found = await held_pull(cluster, client, consumer, nursery)
        cluster.broker.broker_id, slave.broker_id = 1, 0
        cluster.name_server.add_route("T", slave, cluster.broker)
        await client._routes.refresh("T")
        started = trio.current_time()
        opens.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [result.broker_address for result in found[1:]] == [slave.address]
        assert trio.current_time() == started
    assert not pulls(cluster.broker)


async def test_no_broker_that_serves_reads_is_left(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        await consumer.fetch_queues("T")
        for node in (cluster.broker, slave):
            node.script(PULL, reject)
        with pytest.raises(errors.RequestRejected, match="slaveReadEnable") as caught:
            await consumer.pull(QUEUE, 0)
    assert caught.value.code == 2
    assert [attempt.address for attempt in caught.value.attempts] == [cluster.broker.address, slave.address]


async def test_no_broker_left(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client(route_wait_s=0) as client:
        consumer = client.pull_consumer("G")
        await consumer.fetch_queues("T")
        for node in (cluster.broker, slave):
            await node.stop()
        with pytest.raises(errors.ConnectFailed) as caught:
            await consumer.pull(QUEUE, 0)
    assert [attempt.address for attempt in caught.value.attempts] == [cluster.broker.address, slave.address]


@pytest.mark.parametrize(
    ("preference", "expected"), [("master", 0), (triomq.ReadPreference.SLAVE, 1), ("prefer_slave", 1), (0, 0), (1, 1)]
)
async def test_read_preference(autojump_clock, cluster, preference, expected):
    slave = cluster.add_slave()
    cluster.broker.suggests, slave.suggests = 1, 0
    async with cluster.client() as client:
        consumer = client.pull_consumer("G", read_preference=preference)
        for _ in range(3):
            assert (await consumer.pull(QUEUE, 0)).broker_address == [cluster.broker, slave][expected].address


async def test_master_and_slave_are_meant_strictly_and_prefer_slave_is_not(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="prefer_slave"):
            client.pull_consumer("G", read_preference="nearest")
        consumers = {each: client.pull_consumer(f"G-{each}", read_preference=each) for each in ("master", "slave")}
        eager = client.pull_consumer("G", read_preference="prefer_slave")
        await slave.stop()
        assert (await eager.pull(QUEUE, 0)).broker_address == cluster.broker.address
        with pytest.raises(errors.ConnectFailed):
            await consumers["slave"].pull(QUEUE, 0)
        slave.up = True
        await cluster.broker.stop()
        with pytest.raises(errors.ConnectFailed):
            await consumers["master"].pull(QUEUE, 0)
        await trio.sleep(6)
        assert (await eager.pull(QUEUE, 0)).broker_address == slave.address


async def test_a_broker_id_that_no_broker_has_is_named(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(
            errors.RouteNotFound, match=r"no broker of .* to read from as broker id 2: .* are 0 "
        ) as one:
            await client.pull_consumer("G", read_preference=2).pull(QUEUE, 0)
    assert "read_preference" in str(one.value)
    assert "creat" not in str(one.value)


async def test_one_pull_may_prefer_another_broker(autojump_clock, cluster):
    slave = cluster.add_slave()
    master, other = cluster.broker.address, slave.address
    cluster.broker.suggests, slave.suggests = 1, 0
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        asked = [None, "master", triomq.ReadPreference.SLAVE, None, "master"]
        found = [(await consumer.pull(QUEUE, 0, read_preference=each)).broker_address for each in asked]
        # What the master suggested to the first pull holds for the fourth, whatever was pulled between them.
        assert found == [master, master, other, other, master]
        with pytest.raises(errors.InvalidCall, match="prefer_slave"):
            await consumer.pull(QUEUE, 0, read_preference="nearest")
        await cluster.broker.stop()
        with pytest.raises(errors.ConnectFailed):
            await consumer.pull(QUEUE, 0, read_preference="master")
        assert (await consumer.pull(QUEUE, 0)).broker_address == other


async def test_a_set_without_slaves_serves_no_reader_of_slaves(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(errors.RouteNotFound, match="slave"):
            await client.pull_consumer("G", read_preference="slave").pull(QUEUE, 0)


async def test_a_silent_broker_is_skipped_for_a_while(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        cluster.broker.script(PULL, None)
        started = trio.current_time()
        assert (await consumer.pull(QUEUE, 0)).broker_address == slave.address
        assert trio.current_time() - started >= 10
        waited_until = trio.current_time()
        for _ in range(5):
            assert (await consumer.pull(QUEUE, 0)).broker_address == slave.address
        assert trio.current_time() == waited_until
        await trio.sleep(6)
        assert (await consumer.pull(QUEUE, 0)).broker_address == cluster.broker.address


async def test_a_slave_that_came_after_the_route_was_fetched_is_found(autojump_clock, cluster):
    async with cluster.client() as client:
        await fill(client, 1)
        consumer = client.pull_consumer("G")
        await consumer.pull(QUEUE, 0)
        slave = cluster.add_slave()
        await cluster.broker.stop()
        started = trio.current_time()
        assert (await consumer.pull(QUEUE, 0)).broker_address == slave.address
        assert trio.current_time() == started


async def test_queries_go_to_the_slave_at_once_when_the_master_is_gone(autojump_clock, cluster):
    cluster.add_slave()
    async with cluster.client() as client:
        await fill(client, 3)
        consumer = client.pull_consumer("G")
        assert await consumer.max_offset(QUEUE) == 3
        await cluster.broker.stop()
        started = trio.current_time()
        assert await consumer.max_offset(QUEUE) == 3
        assert trio.current_time() == started


async def test_offsets_are_not_committed_to_a_slave_while_the_route_has_a_master(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        await consumer.fetch_queues("T")
        await cluster.broker.stop()
        for _ in range(2):
            with pytest.raises(errors.ConnectFailed):
                await consumer.commit(QUEUE, 3)
        assert slave.offsets == {}
        cluster.name_server.add_route("T", slave)
        await consumer.commit(QUEUE, 3)
    assert slave.offsets == {("G", "T", 0): 3}


async def test_a_commit_makes_its_group_known(autojump_clock, cluster):
    """A broker of 5 refuses the offset of a group that has sent no heartbeat yet."""
    known = set()

    def commit(command):
        if not known:
            return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group G not exist!")
        return cluster.broker.serve(command)

    def beat(command):
        known.add("G")
        return cluster.broker.serve(command)

    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        await consumer.fetch_queues("T")
        await trio.sleep(1)
        cluster.broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, commit, commit)
        cluster.broker.script(RequestCode.HEART_BEAT, beat)
        await consumer.commit(QUEUE, 3)
        assert cluster.broker.offsets == {("G", "T", 0): 3}
        # One that stays unknown is an error.
        known.clear()
        cluster.broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, commit, commit)
        with pytest.raises(errors.GroupNotFound):
            await consumer.commit(QUEUE, 4)


# --- the rest --------------------------------------------------------------------------------------------------


async def test_cancel_leaves_the_position(autojump_clock, cluster, cancel_at_step):
    async with cluster.client() as client:
        await fill(client, 3)
    finished, step = False, 0
    while not finished:
        step += 1
        async with cluster.client() as client:
            consumer = client.pull_consumer("G")
            with cancel_at_step(step) as cancel:
                await consumer.pull(QUEUE)
            finished = not cancel.scope.cancelled_caught
            assert bodies(await consumer.pull(QUEUE)) == ([] if finished else [b"m0", b"m1", b"m2"])
    assert step > 5


async def test_a_waiting_pull_in_a_cancelled_scope_is_cancelled(autojump_clock, cluster):
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        with trio.CancelScope() as scope:
            scope.cancel()
            await consumer.pull(QUEUE, offset=0, block=True)
        assert scope.cancelled_caught


async def test_the_late_answer_of_a_cancelled_pull_is_dropped(autojump_clock, cluster):
    async def late(command):
        await trio.sleep(1)
        return cluster.broker.pull(command)

    async with cluster.client() as client:
        await fill(client, 3)
        consumer = client.pull_consumer("G")
        consumer.seek(QUEUE, 1)
        cluster.broker.script(PULL, late)
        with trio.move_on_after(0.5):
            await consumer.pull(QUEUE)
        assert await consumer.position(QUEUE) == 1
        await trio.sleep(1)
        assert await consumer.position(QUEUE) == 1
        assert bodies(await consumer.pull(QUEUE)) == [b"m1", b"m2"]


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.pull(QUEUE, -1),
        lambda consumer: consumer.pull(QUEUE, 0, max_messages=0),
        lambda consumer: consumer.pull(QUEUE, 0, tags=["a"]),
        lambda consumer: consumer.pull("T", 0),
    ],
)
async def test_arguments_out_of_range(autojump_clock, cluster, call):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall):
            await call(client.pull_consumer("G"))
    assert not cluster.network.dials


async def test_unknown_topic_and_broker(autojump_clock, cluster):
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        with pytest.raises(errors.RouteNotFound):
            await consumer.fetch_queues("nowhere")
        with pytest.raises(errors.RouteNotFound, match="broker-z"):
            await consumer.pull(triomq.MessageQueue("T", "broker-z", 0), 0)


async def test_the_default_topic_is_not_borrowed_for_reading(autojump_clock, cluster):
    cluster.name_server.add_route("TBW102", cluster.broker)
    async with cluster.client() as client:
        await client.producer("P").send(triomq.Message("new", b"x"))
        with pytest.raises(errors.RouteNotFound):
            await client.pull_consumer("G").fetch_queues("new")


async def test_a_topic_made_by_a_send_is_waited_for(autojump_clock, cluster):
    cluster.name_server.add_route("TBW102", cluster.broker)

    async def announce():
        await trio.sleep(0.2)
        cluster.name_server.add_route("new", cluster.broker)

    async with cluster.client() as client, trio.open_nursery() as nursery:
        sent = await client.producer("P").send(triomq.Message("new", b"x"))
        nursery.start_soon(announce)
        assert bodies(await client.pull_consumer("G").pull(sent.queue, 0)) == [b"x"]


async def test_sql_needs_a_broker_that_has_sent_its_version(autojump_clock, cluster):
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        cluster.broker.version = 200
        await consumer.pull(QUEUE, 0)
        await trio.sleep(1)
        with pytest.raises(errors.UnsupportedRequest, match="SQL"):
            await consumer.pull(QUEUE, 0, sql="a > 1")
        cluster.broker.version = 407
        await trio.sleep(31)
        await consumer.pull(QUEUE, 0, sql="a > 1")
    assert pulls(cluster.broker)[-1].expression_type == "SQL92"
    assert pulls(cluster.broker)[-1].subscription == "a > 1"


async def test_the_first_pull_by_sql_asks_a_broker_for_its_version(autojump_clock, cluster):
    """Java's first pulls fail until the next periodic heartbeat."""
    cluster.broker.version = 407
    async with cluster.client() as client:
        await client.pull_consumer("G").pull(QUEUE, 0, sql="a > 1")
        assert trio.current_time() < 1
    assert pulls(cluster.broker)[-1].expression_type == "SQL92"


async def test_sql_that_cannot_be_parsed_is_refused_here(autojump_clock, cluster):
    """Brokers answer it with every message."""
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        for wrong in ("a >", "", "1 + 1"):
            with pytest.raises(errors.InvalidCall, match="SQL92 expression"):
                await consumer.pull(QUEUE, 0, sql=wrong)
    assert not pulls(cluster.broker)


async def test_hooks(autojump_clock, cluster):
    seen = []

    class Hook:
        def before_pull(self, context):
            seen.append((context.group, context.queue, context.queue_offset))

        def after_pull(self, context, outcome):
            seen.append(outcome)
            raise RuntimeError("a hook's own fault")

    async with cluster.client() as client:
        consumer = client.pull_consumer("G", pull_hooks=[Hook()])
        result = await consumer.pull(QUEUE, 0)
        cluster.broker.script(PULL, lambda command: command.answer(16, "no"))
        with pytest.raises(errors.PermissionDenied) as caught:
            await consumer.pull(QUEUE, 0)
    assert seen == [("G", QUEUE, 0), result, ("G", QUEUE, 0), caught.value]


async def test_heartbeats_and_leaving(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        consumer = client.pull_consumer("G")
        producer = client.producer("P")
        await consumer.fetch_queues("T")
        await trio.sleep(1)
        for node in (cluster.broker, slave):
            (beat,) = node.requests(RequestCode.HEART_BEAT)
            data = HeartbeatData.decode(beat.body)
            assert data.client_id == client.client_id
            assert [group.group_name for group in data.producer_data_set] == ["P"]
            (group,) = data.consumer_data_set
            assert (group.group_name, group.consume_type) == ("G", "CONSUME_ACTIVELY")
            assert group.subscription_data_set == []
        await trio.sleep(60)
        assert len(cluster.broker.requests(RequestCode.HEART_BEAT)) == 3
        await cluster.broker.cut()  # a link that is opened again carries a heartbeat at once
        await consumer.pull(QUEUE, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(cluster.broker.requests(RequestCode.HEART_BEAT)) == 4
        await producer.aclose()
        await consumer.aclose()
        with pytest.raises(errors.ClientClosed):
            await consumer.pull(QUEUE, 0)
    for node in (cluster.broker, slave):
        left = [command.header(UnregisterClientRequest) for command in node.requests(RequestCode.UNREGISTER_CLIENT)]
        assert {(each.producer_group, each.consumer_group) for each in left} == {("P", None), (None, "G")}
        assert {each.client_id for each in left} == {client.client_id}


async def test_clients_with_producers_only_do_not_contact_slaves(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        await client.producer("P").send(triomq.Message("T", b"x"))
        await trio.sleep(60)
    assert cluster.broker.requests(RequestCode.HEART_BEAT)
    assert not slave.seen


async def test_a_broker_that_hangs_does_not_hold_up_closing(autojump_clock, cluster):
    async with cluster.client() as client:
        await client.producer("P").send(triomq.Message("T", b"x"))
        cluster.broker.script(RequestCode.UNREGISTER_CLIENT, None)
        started = trio.current_time()
    assert trio.current_time() - started <= 3.001


async def test_the_blocks_exception_is_raised_unwrapped(autojump_clock, cluster):
    with pytest.raises(ZeroDivisionError):
        async with cluster.client():
            raise ZeroDivisionError
    with trio.move_on_after(1) as scope:
        async with cluster.client():
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_admin(autojump_clock, cluster):
    cluster.add_master("broker-b")
    async with cluster.client() as client:
        assert await client.admin.create_topic("N", queues=3) == ["broker-a-0:10911", "broker-b-0:10911"]
        await client.admin.create_topic("N", brokers=["broker-b"])
        assert len(cluster.broker.requests(RequestCode.UPDATE_AND_CREATE_TOPIC)) == 1
        await client.admin.delete_topic("N")
        await client.admin.delete_topic("N", cluster="C")
        headers = [
            command.header(DeleteTopicFromNamesrvRequest)
            for command in cluster.name_server.requests(RequestCode.DELETE_TOPIC_IN_NAMESRV)
        ]
        assert headers == [
            DeleteTopicFromNamesrvRequest(topic="N"),
            DeleteTopicFromNamesrvRequest(topic="N", cluster_name="C"),  # it stays in other clusters
        ]
        assert (await client.admin.cluster_info()).cluster_addr_table == {"C": ["broker-a", "broker-b"]}
        for call, what in (
            (client.admin.create_topic("TBW102"), "system topic"),
            (client.admin.create_topic("a b"), "characters"),
            (client.admin.create_topic("N", cluster="X"), "no cluster X; known: C"),
            (client.admin.create_topic("N", brokers=["z"]), "no broker z"),
            (client.admin.create_topic("N", queues=0), "queues is 0, not a whole number from 1 to 65536"),
            (client.admin.create_topic("N", queues=2.5), "queues is 2.5"),
            (client.admin.create_topic("N", read_queues=-1), "read_queues is -1"),
            (client.admin.create_topic("N", perm=9), "perm is 9, not a sum of 4"),
            (client.admin.create_topic("N", perm=-1), "perm is -1"),
        ):
            with pytest.raises(errors.InvalidCall, match=what):
                await call
        with pytest.raises(errors.RouteNotFound):
            await client.admin.route("nowhere")
