"""The synchronous face: the same client from any thread, also after a fork."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import traceback
from functools import partial

import pytest
import trio

import triomq
from triomq import errors
from triomq._blocking import calls, loop_thread
from triomq_protocol.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = triomq.MessageQueue("T", "broker-a", 0)


WAIT_S = 30
"""Longer than anything here takes on a machine at a quarter of its speed."""


class Outcome(BaseException):
    """What tests are ended with, as by ``pytest.fail``."""


def open_client(cluster, **options):
    return triomq.blocking.open_client(cluster.name_server.address, **cluster.options(**options))


def loop_threads():
    return [thread for thread in threading.enumerate() if thread.name == "triomq"]


def test_send_and_pull(system_cluster, make_callback):
    callback = make_callback()
    with open_client(system_cluster) as client:
        with client.producer("P") as producer:
            result = producer.send(triomq.Message("T", b"one"), queue=QUEUE)
            assert producer.send(triomq.Message("T", b"two"), callback, queue=QUEUE) is None
            producer.flush()
            assert producer.in_flight == 0
            producer.send_batch([triomq.Message("T", b"three")], queue=QUEUE)
            assert producer.queues("T") == [QUEUE, triomq.MessageQueue("T", "broker-a", 1)]
        consumer = client.pull_consumer("G")
        assert consumer.fetch_queues("T")[0] == QUEUE
        assert [message.body for message in consumer.pull(QUEUE)] == [b"one", b"two", b"three"]
        consumer.seek(QUEUE, 1)
        assert consumer.position(QUEUE) == 1
        consumer.commit(QUEUE)
        assert consumer.committed(QUEUE) == 1
        assert client.admin.topics() == ["T"]
    assert result.status is triomq.SendStatus.SEND_OK
    assert len(callback.results) == 1
    assert not loop_threads()


def test_errors_are_raised_unchanged(system_cluster):
    with pytest.raises(errors.InvalidCall):
        triomq.blocking.open_client("nonsense")
    assert not loop_threads()
    with open_client(system_cluster) as client:
        producer = client.producer("P")
        with pytest.raises(errors.MessageIllegal):
            producer.send(triomq.Message("T", b""))
        with pytest.raises(errors.InvalidCall, match=r"already, made with other arguments; close\(\) that one first"):
            client.producer("P", send_timeout_s=1)
    with pytest.raises(errors.ClientClosed):
        producer.send(triomq.Message("T", b"x"))
    with pytest.raises(errors.ClientClosed):
        client.producer("Q")
    client.close()


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer"])
def test_a_notebooks_cell_can_be_run_twice(system_cluster, kind):
    with open_client(system_cluster) as client:
        make = getattr(client, kind)
        first = make("P")
        assert make("P") is first
        assert make(group="P") is first
        assert make("Q") is not first
        first.close()
        second = make("P")
        assert second is not first
        with second, pytest.raises(errors.InvalidCall, match="already; share it, or close it first"):
            make("P")  # it belongs to the block, whose end closes it
        assert make("P") is not second


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer"])
def test_a_group_that_is_no_text(system_cluster, kind):
    with open_client(system_cluster) as client, pytest.raises(errors.InvalidCall, match="the group is list, not text"):
        getattr(client, kind)(["P"])


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer"])
def test_what_a_closed_client_has_closed_can_be_closed(system_cluster, kind):
    with open_client(system_cluster) as client:
        member = getattr(client, kind)("P")
    member.close()
    client = open_client(system_cluster)
    with pytest.raises(ZeroDivisionError), getattr(client, kind)("P"):  # noqa: PT012 - the end of the block is tested
        client.close()
        raise ZeroDivisionError


def test_a_share_of_a_closed_client(system_cluster):
    system_cluster.broker.consumers.serves_groups = True
    client = open_client(system_cluster)
    with pytest.raises(ZeroDivisionError), client.pull_consumer("G").share("T"):  # noqa: PT012 - as above
        client.close()
        raise ZeroDivisionError


def test_a_share_outside_its_block(system_cluster):
    with (
        open_client(system_cluster) as client,
        pytest.raises(errors.InvalidCall, match=r"or `with` in triomq\.blocking"),
    ):
        next(client.pull_consumer("G").share("T"))


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer"])
def test_the_same_call_in_several_threads_gives_one_object(system_cluster, kind):
    made = []
    barrier = threading.Barrier(4)
    with open_client(system_cluster) as client:

        def make():
            barrier.wait()
            made.append(getattr(client, kind)("P"))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1


def test_a_callback_gets_what_its_client_has_and_makes_nothing(system_cluster):
    got = []

    def callback(_result, _error):
        got.append(client.producer("P"))
        try:
            client.producer("Q")
        except errors.InvalidCall as error:
            got.append(error)

    with open_client(system_cluster) as client:
        producer = client.producer("P")
        producer.send(triomq.Message("T", b"x"), callback)
        producer.flush()
    assert got[0] is producer
    assert "callback" in str(got[1])


def test_many_threads_share_a_client(system_cluster):
    with open_client(system_cluster) as client:
        producer = client.producer("P")

        def work(number):
            for _ in range(20):
                producer.send(triomq.Message("T", b"%d" % number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(system_cluster.broker.bodies("T")) == 160


def test_a_callback_may_not_wait_for_its_own_client(system_cluster):
    caught = []

    class Callback:
        def on_success(self, result):
            try:
                producer.send(triomq.Message("T", b"again"))
            except errors.InvalidCall as error:
                caught.append(error)

        def on_exception(self, error):
            caught.append(error)

    with open_client(system_cluster) as client:
        producer = client.producer("P")
        producer.send(triomq.Message("T", b"x"), Callback())
        producer.flush()
    assert "callback" in str(caught[0])


def test_closing_from_another_thread_ends_a_waiting_call(system_cluster):
    system_cluster.broker.script(RequestCode.PULL_MESSAGE, None)
    client = open_client(system_cluster)
    consumer = client.pull_consumer("G")
    ended = []

    def wait():
        try:
            consumer.pull(QUEUE, 0, block=True)
        except errors.MQError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not system_cluster.broker.requests(RequestCode.PULL_MESSAGE):
        time.sleep(0.001)
    client.close()
    thread.join(5)
    assert isinstance(ended[0], errors.ClientClosed)
    assert not loop_threads()


@contextlib.contextmanager
def interrupted_once(ready):
    """Raises SIGINT in the main thread when something is so."""
    main = threading.main_thread().ident

    def interrupt():
        while not ready():
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    # A process that was started with SIGINT ignored, by `&` in a script or by nohup, would never see it.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        yield
        thread.join()
    finally:
        signal.signal(signal.SIGINT, inherited)


def test_an_interrupt_cancels_the_call(system_cluster):
    system_cluster.broker.script(RequestCode.PULL_MESSAGE, None)
    with open_client(system_cluster) as client:
        consumer = client.pull_consumer("G")
        with (
            interrupted_once(lambda: system_cluster.broker.requests(RequestCode.PULL_MESSAGE)),
            pytest.raises(KeyboardInterrupt),
        ):
            consumer.pull(QUEUE, 0, block=True)
        assert consumer.pull(QUEUE, 0).status is triomq.PullStatus.NO_NEW_MESSAGE


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_while_opening_leaves_no_thread(before, monkeypatch):
    """Also one before the thread's loop runs."""
    steps = []
    run = trio.run

    def run_late(main):
        if before:
            steps.append("in the thread")
            while "interrupted" not in steps:
                time.sleep(0.001)
        run(main)

    @contextlib.asynccontextmanager
    async def never_open():
        steps.append("opening")
        try:
            await trio.sleep_forever()
            yield
        finally:
            steps.append("left")

    give_up = loop_thread._Opening.give_up
    monkeypatch.setattr(trio, "run", run_late)
    monkeypatch.setattr(
        loop_thread._Opening, "give_up", lambda opening: (steps.append("interrupted"), give_up(opening))
    )
    with interrupted_once(lambda: steps), pytest.raises(KeyboardInterrupt):
        loop_thread.LoopThread(never_open, name="triomq")
    assert not loop_threads()
    assert steps == (
        ["in the thread", "interrupted", "opening", "left"] if before else ["opening", "interrupted", "left"]
    )


def test_each_thread_that_closes_a_client_waits_for_its_end(system_cluster, monkeypatch):
    closing, go_on, ended = threading.Event(), threading.Event(), []
    leave = triomq.Client.aclose

    async def aclose(client, **options):
        closing.set()
        await trio.to_thread.run_sync(go_on.wait)
        await leave(client, **options)

    monkeypatch.setattr(triomq.Client, "aclose", aclose)
    client = open_client(system_cluster)
    loop = client._loop.thread()

    def close():
        client.close()
        ended.append(loop.is_over)

    threads = [threading.Thread(target=close) for _ in range(2)]
    threads[0].start()
    assert closing.wait(60)
    threads[1].start()
    threads[1].join(0.05)  # one that does not wait ends now
    go_on.set()
    for each in threads:
        each.join(60)
    assert ended == [True, True]


def test_a_client_that_is_never_closed_ends_with_its_last_reference(system_cluster):
    client = open_client(system_cluster)
    client.producer("P").send(triomq.Message("T", b"x"))
    (thread,) = loop_threads()
    del client
    deadline = time.monotonic() + 30
    while thread.is_alive() and time.monotonic() < deadline:
        gc.collect()  # the loop may still hold the last call for a moment
        thread.join(0.02)
    assert not loop_threads()
    assert system_cluster.broker.requests(RequestCode.UNREGISTER_CLIENT)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="forking a process with threads is a warning since Python 3.12")
def test_a_forked_child_opens_a_loop_of_its_own(system_cluster):
    with open_client(system_cluster) as client:
        producer = client.producer("P")
        consumer = client.pull_consumer("G")
        producer.send(triomq.Message("T", b"parent"), queue=QUEUE)
        parent_id = client.client_id
        child = os.fork()
        if not child:
            code = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            try:
                assert not loop_threads()
                result = producer.send(triomq.Message("T", b"child"), queue=QUEUE)
                bodies = [message.body for message in consumer.pull(QUEUE, 0)]
                assert (result.queue_offset, bodies) == (1, [b"parent", b"child"])
                assert client.client_id != parent_id
                client.close()
                assert not loop_threads()
                code = 0
            except BaseException:  # noqa: BLE001 - the child must not go on with pytest
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # The parent's own link is as it was.
        producer.send(triomq.Message("T", b"parent again"), queue=QUEUE)
        assert client.client_id == parent_id
    assert not loop_threads()


def test_a_child_forked_without_pythons_hooks_is_told_what_to_do(system_cluster, monkeypatch):
    """It finds its parent's thread, as workers of uWSGI do.

    No process is forked here: without the hooks, its interpreter may wait for a thread that only its parent has.
    """
    client = open_client(system_cluster)
    producer, thread = client.producer("P"), client._loop.thread()
    with monkeypatch.context() as patch:
        patch.setattr(thread, "pid", os.getpid() + 1)
        for call in (partial(producer.send, triomq.Message("T", b"child")), lambda: client.client_id):
            with pytest.raises(errors.InvalidCall, match=r"without Python's hooks, .* --lazy-apps"):
                call()
        client.close()  # does not end the parent's thread
    assert loop_threads()
    thread.close()
    assert not loop_threads()
    assert not system_cluster.broker.requests(SEND)


@pytest.mark.parametrize("what", ["send", "close"])
def test_a_signal_handler_runs_in_a_forked_childs_first_call(system_cluster, monkeypatch, what):
    """It uses or closes the client in the thread that is opening it again."""
    client = open_client(system_cluster)
    producer = client.producer("P")
    (parents,) = loop_threads()
    stop_parents = client._loop.thread().close
    client._loop.forget_parent()  # as in a child
    ends = []

    def call(body):
        with contextlib.suppress(errors.ClientClosed):
            ends.append(producer.send(triomq.Message("T", body), queue=QUEUE).queue_offset)

    def opened(*args, **kwargs):
        monkeypatch.setattr(calls, "LoopThread", loop_thread.LoopThread)
        made = loop_thread.LoopThread(*args, **kwargs)
        call(b"handler") if what == "send" else client.close()
        return made

    monkeypatch.setattr(calls, "LoopThread", opened)
    thread = threading.Thread(target=call, args=(b"call",), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    stop_parents()
    assert not parents.is_alive()
    assert ends == ([0, 1] if what == "send" else [])
    assert len(loop_threads()) == len(ends) / 2
    client.close()
    assert not loop_threads()


@pytest.fixture
def groups(system_cluster):
    """A cluster whose broker serves consumer groups, with ten messages."""
    system_cluster.broker.consumers.serves_groups = True
    for number in range(10):
        system_cluster.broker.store("T", 0, b"m%d" % number, b"")
    return system_cluster


def test_lite_pull(groups):
    with open_client(groups) as client:
        with client.lite_pull_consumer("G", start_from="earliest", batch_max=4) as consumer:
            consumer.assign([QUEUE])
            assert [message.queue_offset for message in consumer.poll()] == [0, 1, 2, 3]
            consumer.pause(QUEUE)
            consumer.resume(QUEUE)
            consumer.seek(QUEUE, 8)
            assert [message.queue_offset for message in consumer.poll()] == [8, 9]
            consumer.commit()
            assert (consumer.committed(QUEUE), consumer.position(QUEUE)) == (10, 10)
            consumer.seek_to_begin()
            for message in consumer:
                if message.queue_offset == 2:
                    break
            assert consumer.assignment == [QUEUE]
        assert groups.broker.offsets["G", "T", 0] == 3
        with pytest.raises(errors.ClientClosed):
            consumer.poll()
    assert not loop_threads()


def test_push_deliveries(groups):
    with open_client(groups) as client:
        with client.push_consumer("G", start_from="earliest", drain_s=0.5) as consumer:
            consumer.subscribe("T")
            seen = []
            for delivery in consumer:
                with delivery as message:
                    seen.append(message.queue_offset)
                if len(seen) == 10:
                    break
        assert seen == list(range(10))
        assert groups.broker.offsets["G", "T", 0] == 10
    assert not loop_threads()


def test_a_failing_block_sends_its_message_back(groups):
    with open_client(groups) as client:
        with client.push_consumer("G", start_from="earliest", drain_s=0.5) as consumer:
            consumer.subscribe("T")
            for delivery in consumer:
                with delivery as message:
                    if message.queue_offset == 3:
                        raise triomq.Later(2)
                    if message.queue_offset == 4:
                        raise ZeroDivisionError
                if message.queue_offset == 9:
                    break
        levels = [
            command.fields["delayLevel"] for command in groups.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
        ]
        assert levels == ["2", "0"]
        assert groups.broker.offsets["G", "T", 0] == 10


@pytest.mark.parametrize("ordered", [True, False])
def test_an_interrupted_block_has_its_message_given_out_again(groups, ordered):
    with open_client(groups) as client:
        with client.push_consumer("G", ordered=ordered, start_from="earliest", drain_s=0.5) as consumer:
            consumer.subscribe("T")
            seen = []

            def handle(*, interrupted):
                with consumer.poll(30) as message:
                    seen.append((message.queue_offset, message.reconsume_times))
                    if interrupted:
                        raise KeyboardInterrupt

            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    handle(interrupted=True)
            handle(interrupted=False)
        assert seen == [(0, 0)] * 3
        assert groups.broker.offsets["G", "T", 0] == 1
        assert not groups.broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK)


def test_an_interrupted_block_of_a_closed_client_ends_with_the_interrupt(groups):
    client = open_client(groups)
    consumer = client.push_consumer("G", start_from="earliest", drain_s=0).__enter__()
    consumer.subscribe("T")

    def handle():
        with consumer.poll(30):
            client.close()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handle()


def test_an_ordered_loop_commits_by_hand(groups):
    seen = []
    with open_client(groups) as client:
        options = {"ordered": True, "auto_commit": False, "start_from": "earliest", "drain_s": 0.5}
        with client.push_consumer("G", **options) as consumer:
            consumer.subscribe("T")
            for delivery in consumer:
                seen.append(delivery.message.queue_offset)
                with delivery:
                    if len(seen) == 2:
                        raise triomq.Rollback(suspend_s=0.01)
                    if len(seen) == 5:
                        delivery.commit()
                if len(seen) == 6:
                    break
        assert seen == [0, 1, 0, 1, 2, 3]
        assert groups.broker.offsets["G", "T", 0] == 3


def test_push_handlers_run_in_threads(groups):
    threads = set()
    with open_client(groups) as client, client.push_consumer("G", start_from="earliest", drain_s=5) as consumer:
        consumer.subscribe("T")
        seen = []

        def handle(message):
            threads.add(threading.current_thread().name)
            seen.append(message.queue_offset)
            if len(seen) == 10:
                threading.Thread(target=consumer.drain).start()

        consumer.run(handle, concurrency=3)
        assert sorted(seen) == list(range(10))
    assert "triomq" not in threads
    assert "MainThread" not in threads


@pytest.mark.parametrize("what", ["consumer", "block", "client"])
def test_a_handler_that_would_wait_for_itself_is_refused(groups, what):
    refused = []
    with open_client(groups) as client:
        consumer = client.push_consumer("G", start_from="earliest")
        close = {
            "consumer": consumer.close,
            "block": lambda: consumer.__exit__(None, None, None),
            "client": client.close,
        }

        def handle(_message):
            if not refused:
                try:
                    close[what]()
                except errors.InvalidCall as error:
                    refused.append(str(error))
                else:
                    refused.append("")
            consumer.drain()

        with consumer:
            consumer.subscribe("T")
            consumer.run(handle, concurrency=1)
        client.producer("P").send(triomq.Message("T", b"x"), queue=QUEUE)
    of_client = " of the client" if what == "client" else ""
    assert refused[0].startswith(f"close(){of_client} waits for all callbacks, so a callback cannot wait for it: ")
    assert "call drain(), which does not wait, or call it in another thread" in refused[0]


def test_a_consumer_whose_callback_was_refused_is_still_kept(groups):
    with open_client(groups) as client:
        consumer = client.push_consumer("G", start_from="earliest")
        consumer._call(lambda core: core.__aenter__())
        consumer.subscribe("T")

        def handle(_message):
            with contextlib.suppress(errors.InvalidCall):
                consumer.close()
            consumer.drain()

        consumer.run(handle, concurrency=1)
        assert client.push_consumer("G", start_from="earliest") is consumer


@pytest.mark.parametrize("how", ["called", "thread"])
def test_a_local_transaction_closes_its_client_in_another_thread_only(system_cluster, how):
    refused = []

    def close():
        try:
            client.close()
        except errors.InvalidCall as error:
            refused.append(str(error))

    def execute(_transaction):
        if how == "called":
            close()
        else:
            threads.append(threading.Thread(target=close))
            threads[0].start()
        return triomq.TransactionState.COMMIT

    threads = []
    with open_client(system_cluster) as client:
        producer = client.producer("P", transactions=lambda _: triomq.TransactionState.UNKNOWN)
        with contextlib.suppress(errors.ClientClosed):  # in the other thread it was closed meanwhile
            producer.send_in_transaction(triomq.Message("T", b"x"), execute)
        for thread in threads:
            thread.join()
    text = "close() of the client waits for all callbacks, so a callback cannot wait for it: call it in another thread"
    assert [each.split(" (")[0] for each in refused] == ([text] if how == "called" else [])


def test_a_client_is_collected_in_a_worker_thread_which_does_not_wait_for_its_end(system_cluster, monkeypatch):
    others = loop_threads()
    client, joined = open_client(system_cluster), []
    (loop,) = set(loop_threads()) - set(others)
    producer = client.producer("P", transactions=lambda _: triomq.TransactionState.UNKNOWN)

    def execute(_transaction):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "join", joined.append)
            client._loop._finalizer()

    with contextlib.suppress(errors.ClientClosed):
        producer.send_in_transaction(triomq.Message("T", b"x"), execute)
    assert not joined
    loop.join()


def test_a_client_that_is_collected_in_the_loop_of_another_does_not_stop_it(system_cluster, monkeypatch):
    forgotten, loops, joined = open_client(system_cluster), loop_threads(), []
    with open_client(system_cluster) as client:
        producer = client.producer("P")

        def collect(_result, _error):
            with monkeypatch.context() as patch:
                patch.setattr(loops[0], "join", joined.append)
                forgotten._loop._finalizer()

        producer.send(triomq.Message("T", b"x"), collect, queue=QUEUE)
        producer.flush()
        assert not joined
        loops[0].join()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, Outcome])
def test_an_exception_that_ends_a_program_is_raised_by_run_and_leaves_the_client_open(groups, kind):
    def handle(_message):
        raise kind

    with open_client(groups) as client:
        with client.push_consumer("G", start_from="earliest", drain_s=5) as consumer:
            consumer.subscribe("T")
            with pytest.raises(kind):
                consumer.run(handle, concurrency=1)
        client.producer("P").send(triomq.Message("T", b"x"), queue=QUEUE)


def test_why_a_loop_has_failed_is_logged(system_cluster, caplog):
    def callback(*_):
        raise Outcome

    with open_client(system_cluster) as client:
        producer = client.producer("P")
        producer.send(triomq.Message("T", b"x"), callback, queue=QUEUE)
        with contextlib.suppress(errors.ClientClosed):
            while True:
                producer.flush()
    failed = [record for record in caplog.records if "the loop of thread triomq has failed" in record.message]
    assert len(failed) == 1
    assert failed[0].exc_info[0] is Outcome


def test_a_share_is_pulled_in_a_plain_loop(groups):
    came, went = [], []
    callbacks = triomq.ConsumerCallbacks(on_assigned=came.extend, on_revoked=went.extend)
    with open_client(groups) as client:
        consumer = client.pull_consumer("G")
        seen = []
        with consumer.share("T", max_messages=4, callbacks=callbacks) as pulls:
            for result in pulls:
                seen += [message.body for message in result]
                consumer.commit(result.queue)
                if len(seen) == 10:
                    break
            assert QUEUE in pulls.assignment
        assert seen == [b"m%d" % number for number in range(10)]
        assert groups.broker.offsets["G", "T", 0] == 10
        assert sorted(came) == sorted(went)
        with pytest.raises(errors.InvalidCall, match="inside its block"):
            next(pulls)
        with pytest.raises(errors.InvalidCall, match="needs a topic"):
            consumer.share()
    assert not loop_threads()


@pytest.mark.parametrize("kind", ["producer", "pull_consumer", "lite_pull_consumer", "push_consumer"])
def test_groups_have_the_prefix_of_the_namespace(system_cluster, kind):
    with open_client(system_cluster, namespace="NS") as client:
        member = getattr(client, kind)("G")
    assert member.group == "NS%G"
    assert kind != "lite_pull_consumer" or member.auto_commit
