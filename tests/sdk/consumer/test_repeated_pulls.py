"""Pulls that continue without their task: when they do, when they stop, and that no message is lost then."""

from __future__ import annotations

import logging

import pytest
import trio
from consumer_broker import until

import triomq
from triomq._consumer.puller import _Pull
from triomq._transport.link import Link
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.pull import PullMessageRequest, PullMessageResponse
from triomq_protocol.wire.command import Command

Q0 = triomq.MessageQueue("T", "broker-a", 0)


def fill(cluster, count):
    for number in range(count):
        cluster.broker.store("T", 0, b"%d" % number)


def pulls(broker):
    headers = [command.header(PullMessageRequest) for command in broker.requests(RequestCode.PULL_MESSAGE)]
    return [header.queue_offset for header in headers if header.queue_id == 0]


async def read_all(consumer, count):
    bodies = []
    while len(bodies) < count:
        bodies += [message.body for message in await consumer.poll(60)]
    assert bodies == [b"%d" % number for number in range(count)]


@pytest.fixture
def counted(monkeypatch):
    """How often a task asked for pulls, rather than an answer for the next one."""
    from triomq._consumer.puller import Puller

    calls = []
    pull = Puller.pull

    async def counting(self, call, go_on=None):
        if call.queue == Q0:
            calls.append(call.offset)
        return await pull(self, call, go_on)

    monkeypatch.setattr(Puller, "pull", counting)
    return calls


async def test_a_task_is_not_woken_by_each_of_many_answers(autojump_clock, group_cluster, counted):
    fill(group_cluster, 300)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0])
        await read_all(consumer, 300)
    assert pulls(group_cluster.broker)[:11] == [*range(0, 300, 32), 300]
    # The first run, and what waits at the end of the queue.
    assert len(counted) <= 3


async def test_limits_end_a_run(autojump_clock, group_cluster, counted):
    fill(group_cluster, 300)
    limits = triomq.FlowLimits(count=100)
    async with (
        group_cluster.client() as client,
        client.lite_pull_consumer("G", start_from="earliest", limits=limits) as consumer,
    ):
        await consumer.assign([Q0])
        await trio.sleep(60)
        assert pulls(group_cluster.broker) == [0, 32, 64, 96]
        await read_all(consumer, 300)
    assert pulls(group_cluster.broker)[:10] == [*range(0, 300, 32)]


async def test_a_pause_ends_a_run(autojump_clock, group_cluster):
    fill(group_cluster, 300)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0])
        while not pulls(group_cluster.broker):
            await trio.lowlevel.checkpoint()
        consumer.pause(Q0)
        await trio.sleep(60)
        assert len(pulls(group_cluster.broker)) <= 2
        consumer.resume(Q0)
        await read_all(consumer, 300)


async def test_a_new_expression_ends_a_run(autojump_clock, group_cluster):
    fill(group_cluster, 300)
    async with group_cluster.client() as client, client.push_consumer("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        while len(pulls(group_cluster.broker)) < 3:
            await trio.lowlevel.checkpoint()
        before = len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE))
        member = consumer._member
        member.subscriptions["T"] = newer = member.numbered(member.subscriptions["T"])
        while len(group_cluster.broker.requests(RequestCode.PULL_MESSAGE)) < before + 2:
            await trio.lowlevel.checkpoint()
        # One may have been under way.
        last = group_cluster.broker.requests(RequestCode.PULL_MESSAGE)[-1].header(PullMessageRequest)
        assert (last.topic, last.sub_version) == ("T", newer.version_ms)


async def test_a_run_continues_on_another_link_when_its_link_breaks(autojump_clock, group_cluster):
    fill(group_cluster, 300)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0])
        while len(pulls(group_cluster.broker)) < 3:
            await trio.lowlevel.checkpoint()
        await group_cluster.broker.cut()
        await read_all(consumer, 300)


async def test_a_suggestion_ends_a_run(autojump_clock, group_cluster):
    slave = group_cluster.add_slave()
    fill(group_cluster, 100)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0])
        (link,) = [each for each in client._links.open_links() if each.address == group_cluster.broker.address]
        while not pulls(group_cluster.broker):
            await trio.lowlevel.checkpoint()
        # At the end of the queue, the pull is held: now it is answered with a suggestion.
        await trio.sleep(1)
        (pull,) = link.pending.values()
        link.pending.clear()
        header = PullMessageResponse(suggest_which_broker_id=1, next_begin_offset=101, min_offset=0, max_offset=101)
        answer = Command(code=0, flag=1, header_object=header, body=group_cluster.broker.record_at(0).data)
        pull.answered(received(answer))
        await trio.sleep(1)
        assert pulls(slave)[0] == 101


def received(command):
    """A command as the other end gets it."""
    from triomq_protocol.wire.frame import FrameDecoder

    (got,) = FrameDecoder().feed(command.encode())
    return got


async def test_a_seek_ignores_an_answer_that_arrived_just_before(autojump_clock, group_cluster):
    fill(group_cluster, 10)
    async with group_cluster.client() as client, client.lite_pull_consumer("G", start_from="earliest") as consumer:
        await consumer.assign([Q0])
        await read_all(consumer, 10)
        (link,) = [each for each in client._links.open_links() if each.address == group_cluster.broker.address]
        (pull,) = link.pending.values()
        link.pending.clear()
        header = PullMessageResponse(suggest_which_broker_id=0, next_begin_offset=10, min_offset=0, max_offset=10)
        pull.answered(received(Command(code=19, flag=1, header_object=header)))
        # The task has its answer, and has not run yet.
        consumer._member.go_to(Q0, 0)
        await read_all(consumer, 10)


async def test_an_error_in_an_answer_fails_the_task_and_not_the_link(autojump_clock, group_cluster, monkeypatch):
    fill(group_cluster, 300)
    async with group_cluster.client() as client:
        consumer = client.lite_pull_consumer("G", start_from="earliest")

        class BrokenError(Exception):
            pass

        def broken(source, messages):
            if messages[0].queue_offset >= 96:
                raise BrokenError

        monkeypatch.setattr(consumer._member, "pulled", broken)
        await consumer.start()
        bounds = client.pull_consumer("others")
        await bounds.max_offset(Q0)
        (link,) = [each for each in client._links.open_links() if each.address == group_cluster.broker.address]
        failures = []
        run = consumer._member.engine._pull_queue

        async def hearing(source, scope):
            try:
                await run(source, scope)
            except BrokenError as error:
                failures.append(error)

        monkeypatch.setattr(consumer._member.engine, "_pull_queue", hearing)
        await consumer.assign([Q0])
        await trio.sleep(1)
        assert len(failures) == 1
        assert link.is_open
        await consumer.aclose()


async def test_an_error_of_the_client_itself_is_raised_unchanged(autojump_clock, group_cluster, monkeypatch):
    class BrokenError(Exception):
        pass

    async def broken():
        raise BrokenError

    raised = None
    try:
        async with group_cluster.client(heartbeat_every_s=5) as client:
            monkeypatch.setattr(client._heartbeats, "beat", broken)
            await trio.sleep(60)
    except BaseException as error:  # noqa: BLE001
        # A leaked `Cancelled` would end this test without a word.
        raised = error
    assert isinstance(raised, BrokenError)


async def test_a_block_that_is_cancelled_from_outside_is_cancelled(autojump_clock, group_cluster):
    with trio.move_on_after(1) as scope:
        async with group_cluster.client():
            await trio.sleep(60)
    assert scope.cancelled_caught


async def test_a_pull_consumers_run_continues_at_the_readers_offset(autojump_clock, group_cluster, counted):
    fill(group_cluster, 100)
    found: list[bytes] = []

    def go_on(result):
        found.extend(message.body for message in result)
        return min(10, 50 - len(found))

    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        result = await consumer._pull_run(Q0, 5, go_on, max_messages=10)
        assert (result.taken, result.next_offset) == (True, 55)
        assert found == [b"%d" % number for number in range(5, 55)]
        assert pulls(group_cluster.broker) == [5, 15, 25, 35, 45]
        assert counted == [5]
        # What is not a message ends a run, and its reader decides; what it had before is right.
        found.clear()
        result = await consumer._pull_run(Q0, 80, go_on, max_messages=10)
        assert (result.taken, result.status, result.next_offset) == (False, triomq.PullStatus.NO_NEW_MESSAGE, 100)
        assert found == [b"%d" % number for number in range(80, 100)]


async def test_requests_of_pull_consumers_runs_may_be_written_together(autojump_clock, group_cluster, monkeypatch):
    fill(group_cluster, 100)
    submit, at_once = Link.submit, []

    def noting(link, frame, opaque, waiter, *, now=False):
        if isinstance(waiter, _Pull):
            at_once.append(now)
        submit(link, frame, opaque, waiter, now=now)

    monkeypatch.setattr(Link, "submit", noting)
    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        await consumer._pull_run(Q0, 0, lambda result: 32 if result.next_offset < 96 else 0, max_messages=32)
        assert at_once == [False] * 3
        # The caller of a single pull waits for it alone.
        at_once.clear()
        await consumer.pull(Q0, 0)
        assert at_once == [True]


async def test_a_pull_consumers_run_continues_where_its_link_was_lost(autojump_clock, group_cluster):
    fill(group_cluster, 30)
    found: list[bytes] = []
    broken: list[int] = []

    def go_on(result):
        found.extend(message.body for message in result)
        if not broken:
            broken.append(len(found))
            for link in client._links.open_links():
                link.close()
        return min(10, 30 - len(found))

    async with group_cluster.client() as client:
        consumer = client.pull_consumer("G")
        result = await consumer._pull_run(Q0, 0, go_on, max_messages=10)
        assert result.taken
    assert broken == [10]
    assert found == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("kind", ["push_consumer", "lite_pull_consumer"])
async def test_a_pull_that_is_held_when_its_queue_is_paused_still_brings_messages(autojump_clock, group_cluster, kind):
    bodies = []

    async def read(consumer, wait_s):
        with trio.move_on_after(wait_s):
            async for each in consumer:
                bodies.append(each.message.body if kind == "push_consumer" else each.body)
                if kind == "push_consumer":
                    await each.done()

    async with group_cluster.client() as client, getattr(client, kind)("G", start_from="earliest") as consumer:
        await consumer.subscribe("T")
        await read(consumer, 5)
        consumer.pause(Q0)
        group_cluster.broker.store("T", 0, b"held")
        await read(consumer, 5)
        assert bodies == [b"held"]
        group_cluster.broker.store("T", 0, b"paused")
        await read(consumer, 60)
        assert bodies == [b"held"]
        consumer.resume(Q0)
        await read(consumer, 5)
        assert bodies == [b"held", b"paused"]


async def test_a_broker_that_ends_is_one_warning_for_all_queues_of_a_topic(autojump_clock, group_cluster, caplog):
    """And pulls that go on to fail are not a line each."""
    group_cluster.name_server.add_route("T", group_cluster.broker, queues=16)
    caplog.set_level(logging.INFO)
    async with group_cluster.client(route_wait_s=0) as client, client.lite_pull_consumer("G") as consumer:
        await consumer.subscribe("T")
        await until(lambda: len(consumer.assignment) == 16)
        for _ in range(2):
            caplog.clear()
            await group_cluster.broker.stop()
            await trio.sleep(60)
            lines = [record for record in caplog.records if "a pull failed" in record.getMessage()]
            assert [record.levelno for record in lines].count(logging.WARNING) == 1
            assert len(lines) < 15
            group_cluster.broker.up = True
            await trio.sleep(60)


async def test_a_broker_that_ends_after_it_did_not_know_the_group_is_one_warning(autojump_clock, group_cluster, caplog):
    group_cluster.name_server.add_route("T", group_cluster.broker, queues=1)
    caplog.set_level(logging.INFO)
    broker = group_cluster.broker
    async with group_cluster.client(route_wait_s=0) as client, client.lite_pull_consumer("G") as consumer:
        await consumer.subscribe("T")
        await until(lambda: consumer.assignment)
        caplog.clear()
        broker.script(
            RequestCode.PULL_MESSAGE, lambda command: command.answer(ResponseCode.SUBSCRIPTION_NOT_EXIST, "no")
        )
        await until(lambda: "SUBSCRIPTION_NOT_EXIST" in caplog.text, seconds=40)
        await broker.stop()
        await trio.sleep(60)
    levels = [record.levelno for record in caplog.records if "a pull failed" in record.getMessage()]
    assert levels.count(logging.WARNING) == 1
    assert levels[0] == logging.INFO


async def test_queues_that_fail_at_once_are_not_looked_through_for_each(autojump_clock, group_cluster, caplog):
    class Counted(dict):
        looks = 0

        def values(self):
            self.looks += 1
            return super().values()

    group_cluster.name_server.add_route("T", group_cluster.broker, queues=100)
    async with group_cluster.client(route_wait_s=0) as client, client.lite_pull_consumer("G") as consumer:
        await consumer.subscribe("T")
        await until(lambda: len(consumer.assignment) == 100)
        engine = consumer._member.engine
        queues = engine.queues = Counted(engine.queues)
        failed = []
        note = engine._failed.note
        engine._failed.note = lambda queue, *args, **more: (failed.append(queues.looks), note(queue, *args, **more))
        await group_cluster.broker.stop()
        await until(lambda: len(failed) == 100)
        assert failed[-1] - failed[0] < 10
    assert caplog.text.count("WARNING  triomq.consumer") == 1
