"""The small parts of push consumers: filter servers, copies, rates, what operators see and ask."""

# ruff: noqa: SIM117 - the order of blocks is what is tested

from __future__ import annotations

import pytest
import trio
from consumer_broker import record_of

import triomq
from triomq import errors
from triomq._cluster.counters import Counters
from triomq._consumer.group.statistics import ConsumerStatistics
from triomq_protocol import flags
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests.pull import PullMessageRequest
from triomq_protocol.requests.send import SendMessageRequestV2
from triomq_protocol.requests.send_back import ConsumerSendMsgBackRequest

Q0 = triomq.MessageQueue("T", "broker-a", 0)


async def test_class_filters_go_to_a_filter_server(autojump_clock, group_cluster):
    broker, name_server = group_cluster.broker, group_cluster.name_server
    filter_server = type(broker)(group_cluster.network, "filter")
    filter_server.queues = broker.queues
    filter_server.consumers.serves_groups = True
    broker.store("T", 0, b"x")
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T", triomq.plugins.ClassFilter("org.example.Filter"))
            await trio.sleep(5)
            # Without a filter server nothing is pulled from the broker, which could not filter.
            assert not [each for each in broker.requests(RequestCode.PULL_MESSAGE) if b'"T"' in each.encode()]
            name_server.routes["T"].filter_server_table = {broker.address: [filter_server.address]}
            with trio.fail_after(90):
                async with await anext(consumer) as delivery:
                    assert delivery.message.body == b"x"
    pulls = [each.header(PullMessageRequest) for each in filter_server.requests(RequestCode.PULL_MESSAGE)]
    assert pulls[0].sys_flag & flags.PULL_CLASS_FILTER
    assert pulls[0].subscription == "org.example.Filter"


async def test_the_request_that_sends_back(autojump_clock, group_cluster):
    group_cluster.broker.store("other", 0, b"before")
    group_cluster.broker.store("T", 0, b"x", b"UNIQ_KEY\x01KEY")
    async with group_cluster.client() as client:
        async with client.push_consumer(
            "G", start_from="earliest", retries=triomq.ConsumeRetries(max_times=5)
        ) as consumer:
            await consumer.subscribe("T")
            delivery = await anext(consumer)
            await delivery.later(7)
    (request,) = group_cluster.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
    header = request.header(ConsumerSendMsgBackRequest)
    assert (header.offset, header.group, header.delay_level, header.bname) == (1000, "G", 7, "broker-a")
    assert (header.origin_msg_id, header.origin_topic, header.max_reconsume_times) == ("KEY", "T", 5)


async def test_the_copy_that_is_sent_instead(autojump_clock, group_cluster):
    broker = group_cluster.broker
    broker.store("T", 0, b"x", b"UNIQ_KEY\x01KEY\x02mine\x01yes\x02TRAN_MSG\x01true", reconsume_times=4)
    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, lambda command: command.answer(1, "no"))
    async with group_cluster.client() as client:
        async with client.push_consumer(
            "G", start_from="earliest", retries=triomq.ConsumeRetries(max_times=9)
        ) as consumer:
            await consumer.subscribe("T")
            await (await anext(consumer)).later()
    (request,) = broker.requests(RequestCode.SEND_MESSAGE_V2)
    header = request.header(SendMessageRequestV2)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%G", 5, 9)
    properties = dict(each.split("\x01") for each in header.properties.split("\x02") if each)
    assert properties == {
        "UNIQ_KEY": "KEY",
        "mine": "yes",
        "RETRY_TOPIC": "T",
        "RECONSUME_TIME": "5",
        "MAX_RECONSUME_TIMES": "9",
        "DELAY": "7",
        "ORIGIN_MESSAGE_ID": "KEY",
    }


async def test_pull_requests_of_push_consumers(autojump_clock, group_cluster):
    group_cluster.broker.store("T", 0, b"x")
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T", "a")
            await trio.sleep(40)
    pulls = [each.header(PullMessageRequest) for each in group_cluster.broker.requests(RequestCode.PULL_MESSAGE)]
    mine = [pull for pull in pulls if pull.topic == "T" and pull.queue_id == 0]
    assert {pull.sys_flag for pull in mine} == {flags.PULL_SUSPEND, flags.PULL_SUSPEND | flags.PULL_COMMIT_OFFSET}
    assert {(pull.suspend_timeout_millis, pull.max_msg_nums, pull.subscription) for pull in mine} == {(15000, 32, None)}
    assert mine[-1].commit_offset == 1


async def test_slaves_get_no_commits(autojump_clock, group_cluster):
    slave = group_cluster.add_slave()
    slave.consumers = group_cluster.broker.consumers
    group_cluster.broker.store("T", 0, b"x")
    group_cluster.broker.suggests = 1
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            async with await anext(consumer):
                pass
            await trio.sleep(40)
    pulls = [each.header(PullMessageRequest) for each in slave.requests(RequestCode.PULL_MESSAGE)]
    mine = [pull for pull in pulls if pull.topic == "T"]
    assert mine
    assert not any(pull.sys_flag & flags.PULL_COMMIT_OFFSET for pull in mine)


async def test_a_broker_that_does_not_know_the_subscription_yet_gets_a_heartbeat_at_once(autojump_clock, group_cluster):
    broker = group_cluster.broker
    broker.store("T", 0, b"x")
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            await trio.sleep(20)
            async with await anext(consumer):
                pass
            broker.consumers.subscriptions.clear()  # it restarted
            broker.store("T", 0, b"y")
            started = trio.current_time()
            async with await anext(consumer) as delivery:
                assert delivery.message.body == b"y"
            # No heartbeat was due: the refusal caused one, and the pull was repeated without a pause.
            assert trio.current_time() - started < 0.5


async def test_rates_of_the_last_minute(autojump_clock):
    statistics = ConsumerStatistics("G", Counters())
    counters = statistics.of("T")
    statistics.sample()
    for _ in range(6):
        await trio.sleep(10)
        counters.ok += 100
        counters.failed += 10
        counters.handling_s += 1.1
        counters.pulls += 4
        counters.pulled += 110
        counters.pulling_s += 0.02
        statistics.sample()
    status = statistics.status("T")
    assert status.consume_rt == pytest.approx(10)
    assert status.pull_rt == pytest.approx(5)
    assert status.consume_failed_msgs == 60
    assert status.consume_ok_tps == pytest.approx(10, rel=0.2)
    assert status.pull_tps == pytest.approx(11, rel=0.2)
    assert statistics.status("other").consume_ok_tps == 0


async def test_what_operators_see(autojump_clock, group_cluster):
    for _ in range(3):
        group_cluster.broker.store("T", 0, b"x" * 100)
    async with group_cluster.client() as client:
        async with client.push_consumer("G", ordered=True, start_from="earliest") as consumer:
            await consumer.subscribe("T")
            await trio.sleep(5)
            async with await anext(consumer):
                pass
            info = consumer._member.running_info()
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["messageModel"] == "CLUSTERING"
    assert {each.topic for each in info.subscription_set} == {"T", "%RETRY%G"}
    queue = info.mq_table[Q0]
    assert (queue.cached_msg_count, queue.cached_msg_min_offset, queue.cached_msg_max_offset) == (2, 1, 2)
    assert (queue.commit_offset, queue.locked, queue.droped) == (1, True, False)
    assert abs(queue.last_pull_timestamp - 1_700_000_000_000) < 60_000
    assert set(info.status_table) == {"T", "%RETRY%G"}


async def test_one_message_on_demand(autojump_clock, group_cluster):
    seen = []

    async def handler(message):
        seen.append((message.topic, message.body, message.queue.broker_name))
        if message.body == b"later":
            raise triomq.Later
        if message.body == b"fails":
            raise ValueError("no")

    def record(body, topic="T", properties=b""):
        return record_of(topic, 0, body, properties, queue_offset=0, physical_offset=0, times=0)

    async with group_cluster.client() as client:
        async with client.push_consumer("G") as consumer:
            unhandled = await consumer._member.consume_directly(record(b"x"), "broker-a")
            assert unhandled.consume_result == "CR_THROW_EXCEPTION"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handler)
                await trio.sleep(1)
                results = [
                    await consumer._member.consume_directly(record(body), "broker-a")
                    for body in (b"x", b"later", b"fails")
                ]
                back = record(b"back", "%RETRY%G", b"RETRY_TOPIC\x01T")
                results.append(await consumer._member.consume_directly(back, "broker-b"))
                broken = await consumer._member.consume_directly(b"\0\0\0\4", "broker-a")
                consumer.drain()
    expected = ["CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION", "CR_SUCCESS"]
    assert [each.consume_result for each in results] == expected
    assert results[2].remark == "ValueError: no"
    assert seen[-1] == ("T", b"back", "broker-b")
    assert broken.consume_result == "CR_THROW_EXCEPTION"
    assert not group_cluster.broker.offsets


async def test_a_queue_is_not_pulled_while_the_consumer_is_full_and_no_poll_is_lost(autojump_clock, group_cluster):
    """A full queue is woken, it does not poll: no pull is under way, and none is sent until messages are done."""
    for _ in range(100):
        group_cluster.broker.store("T", 0, b"x")
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest", limits=triomq.FlowLimits(count=31)) as consumer:
            await consumer.subscribe("T")
            await trio.sleep(30)
            pulls = [
                each
                for each in group_cluster.broker.requests(RequestCode.PULL_MESSAGE)
                if each.header(PullMessageRequest).queue_id == 0 and b'"T"' in each.encode()
            ]
            assert len(pulls) == 1
            before = trio.current_time()
            async with await anext(consumer):
                pass
            await trio.lowlevel.checkpoint()
            while consumer._member.engine.queues[Q0].process.count < 60:
                await trio.testing.wait_all_tasks_blocked()
            assert trio.current_time() == before


async def test_errors_while_pulling_are_waited_out(autojump_clock, group_cluster):
    broker = group_cluster.broker
    broker.store("T", 0, b"x")

    def busy(command):
        return command.answer(215, "flow control")

    def fault(command):
        return command.answer(1, "disk")

    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            broker.script(RequestCode.PULL_MESSAGE, *[busy] * 20, *[fault] * 3)
            await consumer.subscribe("T")
            with trio.fail_after(20):
                async with await anext(consumer) as delivery:
                    assert delivery.message.body == b"x"


async def test_a_slave_that_serves_no_reads_is_asked_with_growing_pauses(autojump_clock, group_cluster):
    """It rejects each pull at once, as long as there is no master."""
    broker = group_cluster.broker

    def reject(command):
        return command.answer(2, "[REJECTREQUEST]system busy, start flow control for a while")

    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            broker.script(RequestCode.PULL_MESSAGE, *[reject] * 10_000)
            await consumer.subscribe("T")
            await trio.sleep(60)
            queues = len(consumer._member.engine.queues)
            assert len(broker.requests(RequestCode.PULL_MESSAGE)) < 70 * queues
            broker.scripts.clear()
            broker.store("T", 0, b"x")
            with trio.fail_after(1.1):
                async with await anext(consumer) as delivery:
                    assert delivery.message.body == b"x"


@pytest.mark.parametrize(("times", "warnings"), [(1, 0), (3, 1)])
async def test_a_broker_that_does_not_know_the_group_gets_a_heartbeat(
    autojump_clock, group_cluster, caplog, times, warnings
):
    broker = group_cluster.broker
    broker.store("T", 0, b"x")
    unheard = [lambda command: command.answer(24, "the consumer's subscription not exist")] * times

    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await trio.sleep(60)  # the retry topic's pull waits for messages
            broker.script(RequestCode.PULL_MESSAGE, *unheard)
            beats = len(broker.requests(RequestCode.HEART_BEAT))
            await consumer.subscribe("T")
            with trio.fail_after(20):
                async with await anext(consumer) as delivery:
                    assert delivery.message.body == b"x"
            assert len(broker.requests(RequestCode.HEART_BEAT)) > beats + 1
    logged = [record for record in caplog.records if "subscription not exist" in record.message]
    assert len([record for record in logged if record.levelname == "WARNING"]) == warnings


async def test_a_master_that_goes_away_does_not_end_the_consumer(autojump_clock, group_cluster):
    broker = group_cluster.broker
    broker.store("T", 0, b"x")
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            async with await anext(consumer):
                pass
            await broker.stop()
            await trio.sleep(100)
            broker.up = True
            broker.store("T", 0, b"y")
            with trio.fail_after(60):
                async with await anext(consumer) as delivery:
                    assert delivery.message.body == b"y"


async def test_an_answer_twice_is_refused(autojump_clock, group_cluster):
    group_cluster.broker.store("T", 0, b"x")
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            delivery = await anext(consumer)
            await delivery.done()
            with pytest.raises(errors.InvalidCall, match="answered"):
                await delivery.later()
            with pytest.raises(errors.InvalidCall, match="answered"):
                async with delivery:
                    raise AssertionError("not entered")


@pytest.mark.parametrize("seed", range(12))
async def test_a_seek_while_pulling_waits_for_space_is_followed(autojump_clock, group_cluster, seed):
    """The task that is cancelled and the one that begins may run in either order: neither loses the other's wait."""
    for _ in range(100):
        group_cluster.broker.store("T", 0, b"x")
    async with group_cluster.client() as client:
        async with client.push_consumer("G", start_from="earliest", limits=triomq.FlowLimits(count=1)) as consumer:
            await consumer.subscribe("T")
            await trio.sleep(1)
            consumer._member.engine.suspend(True)
            await trio.sleep(1)
            consumer._member.engine.seek(Q0, 60 + seed)
            for _ in range(seed):
                await trio.lowlevel.checkpoint()
            consumer._member.engine.suspend(False)
            with trio.fail_after(5):
                assert (await anext(consumer)).message.queue_offset == 60 + seed


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "on_event"])
def test_what_is_no_function_is_refused_as_a_callback(name):
    with pytest.raises(errors.InvalidCall, match=f"{name} is str; give a function"):
        triomq.ConsumerCallbacks(**{name: "print"})


async def _nobody_awaits(event):
    raise NotImplementedError


async def test_an_async_function_is_refused_where_it_would_not_be_awaited(group_cluster):
    with pytest.raises(errors.InvalidCall, match="on_event is an async function, which nobody would await"):
        triomq.ConsumerCallbacks(on_event=_nobody_awaits)

    class AsyncToCall:
        __call__ = staticmethod(_nobody_awaits)

    with pytest.raises(errors.InvalidCall, match="on_event is an async function, which nobody would await"):
        triomq.ConsumerCallbacks(on_event=AsyncToCall())
    triomq.ConsumerCallbacks(on_assigned=_nobody_awaits)
    async with group_cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="give a plain one"):
            client.pull_consumer("G", on_event=_nobody_awaits)
