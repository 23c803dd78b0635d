"""Transactions: half messages, the notices to brokers of their end, and the brokers' checks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from stored_records import encode_record

import triomq
from triomq import errors
from triomq_protocol.codes import RequestCode
from triomq_protocol.hosts import pack_host
from triomq_protocol.properties import encode_properties_bytes
from triomq_protocol.requests import CheckTransactionStateRequest, EndTransactionRequest, UnregisterClientRequest
from triomq_protocol.requests.send import SendMessageRequestV2, SendMessageResponse
from triomq_protocol.wire.command import Command

SEND, END, CHECK = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION, RequestCode.CHECK_TRANSACTION_STATE
COMMIT, ROLLBACK, UNKNOWN = (
    triomq.TransactionState.COMMIT,
    triomq.TransactionState.ROLLBACK,
    triomq.TransactionState.UNKNOWN,
)
MESSAGE = triomq.Message("T", b"pay")


class Listener:
    """Gives the set answers, and records the checks."""

    def __init__(self, answer: object = COMMIT) -> None:
        self.answer = answer
        self.executed: list[triomq.Transaction] = []
        self.checked: list[triomq.ReceivedMessage] = []

    async def execute(self, transaction: triomq.Transaction) -> Any:
        self.executed.append(transaction)
        return self._answer()

    async def check(self, message: triomq.ReceivedMessage) -> Any:
        self.checked.append(message)
        return self._answer()

    def _answer(self) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ends(broker: Any) -> list[EndTransactionRequest]:
    return [command.header(EndTransactionRequest) for command in broker.requests(END)]


async def told(broker: Any, count: int = 1) -> list[EndTransactionRequest]:
    """The ends that a broker has received, once there are so many."""
    with trio.fail_after(60):
        while len(broker.requests(END)) < count:  # noqa: ASYNC110 - a fake broker has no event for it
            await trio.sleep(0.01)
    return ends(broker)


def check_of(
    make_record: Callable[..., bytes], key: str = "K1", group: str = "PG", offset: int = 7, **fields: Any
) -> Command:
    """A check as 4.9.7's broker sends it."""
    properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key}
    header = CheckTransactionStateRequest(
        tran_state_table_offset=offset, commit_log_offset=1000 + offset, msg_id=key, transaction_id=key, **fields
    )
    body = make_record(b"T", 1, b"pay", encode_properties_bytes(properties))
    return Command.request(CHECK, header, body=body, oneway=True)


@pytest.fixture
def make_record() -> Callable[..., bytes]:
    host = pack_host("127.0.0.1", 10911)

    def make(topic: bytes, queue_id: int, body: bytes, properties: bytes) -> bytes:
        return encode_record(topic, queue_id, body, properties, born_host=host, store_host=host)

    return make


@pytest.fixture
def ask(cluster: Any, make_record: Any) -> Callable[..., Any]:
    """Sends a check to the client that has sent something to the cluster's broker."""

    async def send(**options: Any) -> None:
        await cluster.broker.push_to(cluster.broker.streams[-1], check_of(make_record, **options))

    return send


# --- the local transaction -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK, UNKNOWN])
async def test_the_broker_gets_the_state_as_from_javas_client(autojump_clock, cluster, properties_of, state):
    listener = Listener(state)
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=listener)
        done = await producer.send_in_transaction(MESSAGE)
        (end,) = await told(cluster.broker)
    (half,) = cluster.broker.requests(SEND)
    header = half.header(SendMessageRequestV2)
    properties = properties_of(half)
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "PG")
    assert (header.sys_flag & 0xC, header.topic, half.body) == (4, "T", b"pay")
    (executed,) = listener.executed
    key = properties["UNIQ_KEY"]
    assert (executed.message, executed.transaction_id) == (MESSAGE, key)
    assert done == triomq.TransactionResult(executed.result, state)
    assert end == EndTransactionRequest(
        producer_group="PG",
        tran_state_table_offset=0,
        commit_log_offset=0,
        commit_or_rollback={COMMIT: 8, ROLLBACK: 12, UNKNOWN: 0}[state],
        from_transaction_check=False,
        msg_id=key,
        transaction_id=None,
        bname="broker-a",
    )
    (request,) = cluster.broker.requests(END)
    assert request.is_oneway
    assert request.remark is None


async def test_the_end_names_the_half_message_by_its_offsets(autojump_clock, cluster):
    answer = SendMessageResponse(msg_id="7F00000100002A9F0000000000012345", queue_id=1, queue_offset=42)
    cluster.broker.script(SEND, lambda command: command.answer(0, header=answer))
    async with cluster.client() as client:
        await client.producer("PG", transactions=Listener()).send_in_transaction(MESSAGE)
        (end,) = await told(cluster.broker)
    assert (end.commit_log_offset, end.tran_state_table_offset) == (0x12345, 42)


async def test_a_class_answers_for_no_transaction(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="transactions is the class Listener; give an object of it"):
            client.producer("G", transactions=Listener)


async def test_a_plain_function_runs_in_a_thread(autojump_clock, cluster):
    threads = []

    def execute(transaction: triomq.Transaction) -> triomq.TransactionState:
        threads.append(threading.current_thread())
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener(ROLLBACK))
        done = await producer.send_in_transaction(MESSAGE, execute)
    assert done.state is COMMIT
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("answer", [None, True, 8, "COMMIT"])
async def test_what_is_no_state_commits_nothing(autojump_clock, cluster, caplog, answer):
    async with cluster.client() as client:
        done = await client.producer("PG", transactions=Listener(answer)).send_in_transaction(MESSAGE)
        (end,) = await told(cluster.broker)
    assert (done.state, end.commit_or_rollback) == (UNKNOWN, 0)
    assert "no triomq.TransactionState" in caplog.text


async def test_an_error_of_the_local_transaction_is_unknown_to_the_broker_and_raised_here(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener(ValueError("no money")))
        with pytest.raises(ValueError, match="no money"):
            await producer.send_in_transaction(MESSAGE)
        (end,) = await told(cluster.broker)
    assert end.commit_or_rollback == 0
    remark = cluster.broker.requests(END)[0].remark
    assert remark == "executeLocalTransactionBranch Exception: ValueError: no money"


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_half_message_that_is_not_safe_is_rolled_back_before_anything_is_done(autojump_clock, cluster, code):
    def stored(command: Command) -> Command:
        answer = cluster.broker.send(command)
        answer.code = code
        return answer

    listener = Listener()
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=listener)
        cluster.broker.script(SEND, stored, stored)
        done = await producer.send_in_transaction(MESSAGE)
        assert (done.state, done.result.status) == (ROLLBACK, code)
        with pytest.raises(errors.TransactionRolledBack, match="nothing is delivered"):
            async with producer.transaction(MESSAGE):
                pytest.fail("the block is not entered")
        both = await told(cluster.broker, 2)
    assert [end.commit_or_rollback for end in both] == [12, 12]
    assert listener.executed == []


async def test_a_half_message_that_cannot_be_sent_is_no_transaction(autojump_clock, cluster):
    listener = Listener()
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=listener)
        cluster.broker.script(SEND, *[lambda command: command.answer(16, "forbidden")] * 3)
        with pytest.raises(errors.PermissionDenied):
            await producer.send_in_transaction(MESSAGE)
    assert (listener.executed, ends(cluster.broker)) == ([], [])


# --- blocks ----------------------------------------------------------------------------------------------------------


async def test_a_block_commits_at_its_end(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        async with producer.transaction(MESSAGE) as transaction:
            assert ends(cluster.broker) == []
        (end,) = await told(cluster.broker)
    assert (end.commit_or_rollback, end.msg_id) == (8, transaction.transaction_id)


@pytest.mark.parametrize("error", [ValueError("x"), trio.TooSlowError(), ExceptionGroup("g", [ValueError("x")])])
async def test_a_block_that_raises_rolls_back(autojump_clock, cluster, error):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        with pytest.raises(type(error)) as raised:
            async with producer.transaction(MESSAGE):
                raise error
        (end,) = await told(cluster.broker)
    assert raised.value is error
    assert end.commit_or_rollback == 12


async def test_a_block_may_roll_back_without_an_error(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        async with producer.transaction(MESSAGE) as transaction:
            transaction.rollback()
        (end,) = await told(cluster.broker)
    assert end.commit_or_rollback == 12


@pytest.mark.parametrize("what", ["producer", "client"])
async def test_a_check_that_would_wait_for_itself_is_refused(autojump_clock, cluster, ask, what):
    refused = []

    async def check(_message):
        try:
            await (client if what == "client" else producer).aclose()
        except errors.InvalidCall as error:
            refused.append(str(error))
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check)
        await producer.send(triomq.Message("T", b"x"))
        await ask()
        (end,) = await told(cluster.broker)
    assert "waits for all callbacks" in refused[0]
    assert end.commit_or_rollback == 8


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(), BaseExceptionGroup("g", [ValueError("x"), KeyboardInterrupt()])]
)
async def test_the_end_of_the_program_prints_nothing(autojump_clock, cluster, error):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        with pytest.raises(type(error)):
            async with producer.transaction(MESSAGE):
                raise error
        await producer.aclose()
    assert ends(cluster.broker) == []


async def test_a_cancelled_block_sends_no_outcome(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        with trio.move_on_after(5) as scope:
            async with producer.transaction(MESSAGE):
                await trio.sleep_forever()
        assert scope.cancelled_caught
        await producer.aclose()
    assert len(cluster.broker.requests(SEND)) == 1
    assert ends(cluster.broker) == []


async def test_a_cancelled_local_transaction_sends_no_outcome(autojump_clock, cluster):
    async def execute(transaction: triomq.Transaction) -> triomq.TransactionState:
        await trio.sleep_forever()
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        with trio.move_on_after(5) as scope:
            await producer.send_in_transaction(MESSAGE, execute)
        assert scope.cancelled_caught
        await producer.aclose()
    assert ends(cluster.broker) == []


async def test_a_cancel_at_any_step_commits_nothing_that_did_not_end(
    autojump_clock, make_group_cluster, cancel_at_step
):
    """Whichever step is cancelled: the broker gets COMMIT only after the block has ended."""
    outcomes = []
    for step in range(1, 100):
        reached = False
        async with make_group_cluster() as cluster:
            async with cluster.client() as client:
                producer = client.producer("PG", transactions=Listener())
                with cancel_at_step(step) as cancel:
                    async with producer.transaction(MESSAGE):
                        await trio.lowlevel.checkpoint()
                        reached = True
                await producer.aclose()
            states = [end.commit_or_rollback for end in ends(cluster.broker)]
            assert states == ([8] if reached else [])
            outcomes.append((reached, cancel.scope.cancelled_caught))
        if cancel.left > 0:
            break
    assert (False, True) in outcomes
    assert outcomes[-1] == (True, False)


async def test_the_end_reaches_a_master_whose_link_was_lost(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        async with producer.transaction(MESSAGE):
            await cluster.broker.cut()
            await trio.sleep(1)
        (end,) = await told(cluster.broker)
    assert end.commit_or_rollback == 8


async def test_the_end_reaches_the_broker_that_has_become_the_master(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        async with producer.transaction(MESSAGE):
            slave = cluster.add_slave()
            await cluster.broker.stop()
            slave.broker_id = 0
            cluster.name_server.add_route("T", slave)
        (end,) = await told(slave)
    assert end.commit_or_rollback == 8


@pytest.mark.parametrize("lost", ["the master", "the route's broker", "the topic's route"])
async def test_the_end_waits_for_a_master_that_is_back_in_a_moment(autojump_clock, cluster, caplog, lost):
    async def come_back() -> None:
        await trio.sleep(2)
        cluster.broker.up = True
        cluster.name_server.add_route("T", cluster.broker)

    async with cluster.client() as client, trio.open_nursery() as nursery:
        producer = client.producer("PG", transactions=Listener())
        async with producer.transaction(MESSAGE):
            await cluster.broker.stop()
            if lost == "the route's broker":
                cluster.name_server.add_route("T", cluster.add_master("broker-b", topic="U"))
            elif lost == "the topic's route":
                del cluster.name_server.routes["T"]
            nursery.start_soon(come_back)
        (end,) = await told(cluster.broker)
    assert end.commit_or_rollback == 8
    assert "could not send" not in caplog.text


@pytest.mark.parametrize(("left_s", "waited_s"), [(0, 0), (1, 1), (60, 3)])
async def test_an_end_does_not_wait_longer_than_its_caller(autojump_clock, cluster, caplog, left_s, waited_s):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        with trio.CancelScope() as scope:
            async with producer.transaction(MESSAGE):
                await cluster.broker.stop()
                begun = trio.current_time()
                scope.deadline = begun + left_s
        assert trio.current_time() - begun == pytest.approx(waited_s, abs=0.1)
    assert "could not send COMMIT of transaction" in caplog.text
    assert f"no listener at {cluster.broker.address}" in caplog.text


async def test_an_end_that_cannot_be_sent_is_logged_and_takes_a_bounded_time(autojump_clock, cluster, caplog):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        with trio.CancelScope() as scope:
            async with producer.transaction(MESSAGE):
                await trio.sleep(1)
                cluster.network.hanging.add(cluster.broker.address)
                await cluster.broker.cut()
                await trio.sleep(1)
                scope.cancel()
                begun = trio.current_time()
        assert trio.current_time() - begun == pytest.approx(3)
    assert "could not send COMMIT of transaction" in caplog.text
    assert "no connection within 3 s" in caplog.text


# --- ended by another process ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
async def test_a_half_message_is_ended_by_another_client(autojump_clock, cluster, state):
    answer = SendMessageResponse(msg_id="7F00000100002A9F0000000000012345", queue_id=1, queue_offset=42)
    cluster.broker.script(SEND, lambda command: command.answer(0, header=answer))
    cluster.broker.script(END, lambda command: command.answer(0))
    async with cluster.client() as client:
        half = await client.producer("PG", transactions=Listener()).send_half(MESSAGE)
    assert (half.half_offset, half.commit_log_offset, half.queue) == (
        42,
        0x12345,
        triomq.MessageQueue("T", "broker-a", 1),
    )
    async with cluster.client() as client:
        await client.producer("PG", transactions=Listener()).end_half(half, state)
    (request,) = cluster.broker.requests(END)
    assert not request.is_oneway, "the answer is waited for"
    assert request.header(EndTransactionRequest) == EndTransactionRequest(
        producer_group="PG",
        tran_state_table_offset=42,
        commit_log_offset=0x12345,
        commit_or_rollback=state.value,
        from_transaction_check=False,
        msg_id=half.message_id,
        transaction_id=half.message_id,
        bname="broker-a",
    )


async def test_an_end_that_a_broker_refuses_or_does_not_answer_is_an_error(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        half = await producer.send_half(MESSAGE)
        cluster.broker.script(END, lambda command: command.answer(1, "The transaction has ended before"))
        with pytest.raises(errors.BrokerFault, match=r"the end of the transaction of message .* has ended before"):
            await producer.end_half(half, COMMIT)
        cluster.network.hanging.add(cluster.broker.address)
        cluster.broker.script(END, lambda command: None)
        begun = trio.current_time()
        with pytest.raises(errors.MQError):
            await producer.end_half(half, COMMIT)
        assert trio.current_time() - begun <= 10
        with pytest.raises(errors.InvalidCall, match="until then its state is UNKNOWN"):
            await producer.end_half(half, UNKNOWN)
        with pytest.raises(errors.InvalidCall, match="no listener for transactions"):
            await client.producer("other").send_half(MESSAGE)


@pytest.mark.parametrize("lost", ["the master", "the route's broker", "the topic's route", "the name server"])
@pytest.mark.parametrize("new_client", [False, True])
async def test_an_end_waits_for_the_master_of_its_broker_set(autojump_clock, cluster, lost, new_client):
    """While it restarts, also when the topic has another broker, which knows nothing of the half message."""
    queue = triomq.MessageQueue("T", "broker-a", 0)
    half = triomq.HalfMessage(queue, "0" * 32, 42, 0x12345)
    other = cluster.add_master("broker-b")
    for broker in (cluster.broker, other):
        broker.script(END, lambda command: command.answer(0))
    async with cluster.client(route_wait_s=30) as client:
        producer = client.producer("PG", transactions=Listener())
        if not new_client:
            await producer.send(MESSAGE, queue=queue)
        await cluster.broker.stop()
        if lost == "the route's broker":
            cluster.name_server.add_route("T", other)
        elif lost == "the topic's route":
            del cluster.name_server.routes["T"]
            cluster.name_server.brokers.clear()
        elif lost == "the name server":
            await cluster.name_server.stop()

        async def come_back() -> None:
            await trio.sleep(20)
            cluster.broker.up = cluster.name_server.up = True
            cluster.name_server.add_route("T", cluster.broker, other)

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            await producer.end_half(half, COMMIT)
        assert trio.current_time() - begun == pytest.approx(20, abs=5)
    assert [end.commit_log_offset for end in ends(cluster.broker)] == [0x12345]
    assert ends(other) == []


@pytest.mark.parametrize(("route_wait_s", "waited_s"), [(None, 0.5), (0, 0), (10, 10)])
async def test_an_end_waits_as_long_as_all_other_calls(autojump_clock, cluster, route_wait_s, waited_s):
    async with cluster.client(route_wait_s=route_wait_s) as client:
        producer = client.producer("PG", transactions=Listener(), send_timeout_s=0.5)
        half = await producer.send_half(MESSAGE)
        await cluster.broker.stop()
        begun = trio.current_time()
        with pytest.raises(errors.ConnectFailed):
            await producer.end_half(half, COMMIT)
        assert trio.current_time() - begun == pytest.approx(waited_s, abs=0.1)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (triomq.Message("T", b"x", delay_level=3), "delay_level is 3"),
        (
            triomq.Message("T", b"x", properties={"TIMER_DELIVER_MS": "9"}),
            "time of delivery, and brokers of RocketMQ 5 deliver no",
        ),
        ([MESSAGE, MESSAGE], "brokers take no batch in a transaction"),
        (triomq.Message("T", b""), "the body is empty"),
    ],
)
async def test_what_cannot_be_in_a_transaction(autojump_clock, cluster, message, text):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        with pytest.raises(errors.CallError, match=text):
            await producer.send_in_transaction(message)
        with pytest.raises(errors.CallError, match=text):
            async with producer.transaction(message):
                pytest.fail("the block is not entered")
    assert cluster.broker.requests(SEND) == []


@pytest.mark.parametrize(
    ("group", "listener", "text"),
    [
        ("CLIENT_INNER_PRODUCER", Listener(), "a name that stays the same"),
        ("w-0f8fad5b-d9cb-469f-a165-70867728950e", Listener(), "a name that stays the same"),
        ("w0f8fad5bd9cb469fa16570867728950e", Listener(), "a name that stays the same"),
        ("PG", "listener", "transactions is str"),
        ("PG", 5, "transactions is int"),
    ],
)
async def test_producers_that_could_not_answer(autojump_clock, cluster, group, listener, text):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match=text):
            client.producer(group, transactions=listener)
        client.producer(group)  # as a plain one


async def test_without_a_listener_there_is_no_transaction(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG")
        with pytest.raises(errors.InvalidCall, match=r"transactions=listener"):
            async with producer.transaction(MESSAGE):
                pytest.fail("the block is not entered")
        checks_only = client.producer("PG2", transactions=Listener().check)
        with pytest.raises(errors.InvalidCall, match="has the method execute"):
            await checks_only.send_in_transaction(MESSAGE)
        with pytest.raises(errors.InvalidCall, match="execute is int; give a function"):
            await checks_only.send_in_transaction(MESSAGE, 3)
        with pytest.raises(errors.InvalidCall, match="max_checks"):
            client.producer("PG3", transactions=Listener(), max_checks=0)
        await checks_only.aclose()
        with pytest.raises(errors.ClientClosed):
            await checks_only.send_in_transaction(MESSAGE)
    assert cluster.broker.requests(SEND) == []


async def test_properties_that_hooks_add_leave_the_half_message_a_half_message(autojump_clock, cluster, properties_of):
    class Hook:
        def before_send(self, context: Any) -> dict[str, str]:
            return {"trace": "1"}

        def after_send(self, context: Any, outcome: object) -> None:
            pass

    async with cluster.client() as client:
        await client.producer("PG", transactions=Listener(), hooks=[Hook()]).send_in_transaction(MESSAGE)
    properties = properties_of(cluster.broker.requests(SEND)[0])
    assert (properties["trace"], properties["TRAN_MSG"], properties["PGROUP"]) == ("1", "true", "PG")


# --- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK, UNKNOWN])
async def test_a_check_is_answered_on_its_link(autojump_clock, cluster, ask, state):
    listener = Listener(state)
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=listener)
        await producer.send(MESSAGE)
        await ask(key="K1", offset=7, bname=None)
        (end,) = await told(cluster.broker)
    (message,) = listener.checked
    assert (message.transaction_id, message.body, message.topic, message.queue_id) == ("K1", b"pay", "T", 1)
    assert end == EndTransactionRequest(
        producer_group="PG",
        tran_state_table_offset=7,
        commit_log_offset=1007,
        commit_or_rollback={COMMIT: 8, ROLLBACK: 12, UNKNOWN: 0}[state],
        from_transaction_check=True,
        msg_id="K1",
        transaction_id="K1",
        bname=None,
    )
    assert cluster.broker.requests(END)[0].is_oneway


async def test_the_heartbeat_names_the_group_before_a_check_can_come(autojump_clock, cluster):
    async with cluster.client() as client:
        await client.producer("PG", transactions=Listener()).send_in_transaction(MESSAGE)
        await told(cluster.broker)
    assert b'"groupName":"PG"' in cluster.broker.requests(RequestCode.HEART_BEAT)[0].body


async def test_every_master_knows_a_group_that_has_sent_nothing(autojump_clock, cluster, make_record):
    """As after a restart: the transactions of the process before are checked with this one."""
    other = cluster.add_master("broker-b", topic="T2")
    cluster.name_server.script(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(1, "not yet"))
    listener = Listener()
    async with cluster.client() as client:
        client.producer("PG", transactions=listener)
        client.producer("plain")
        with trio.fail_after(10):
            for broker in (other, cluster.broker):
                while not broker.requests(RequestCode.HEART_BEAT):  # noqa: ASYNC110 - as above
                    await trio.sleep(0.1)
        await other.push_to(other.streams[-1], check_of(make_record))
        (end,) = await told(other)
        assert end.commit_or_rollback == 8
    for broker in (other, cluster.broker):
        left = [command.header(UnregisterClientRequest) for command in broker.requests(RequestCode.UNREGISTER_CLIENT)]
        assert "PG" in {each.producer_group for each in left}


def dials_of(cluster):
    return cluster.network.dials.count(cluster.broker.address)


async def test_a_proxy_of_rocketmq_5_is_not_asked_for_masters_again_and_again(autojump_clock, cluster):
    """It serves routes as a name server does, and does not know the request for all brokers."""

    def unsupported(command):
        return command.answer(3, " request type 106 not supported")

    cluster.name_server.script(RequestCode.GET_BROKER_CLUSTER_INFO, *[unsupported] * 1000)
    async with cluster.client() as client:
        producer = client.producer("G", transactions=lambda message: triomq.TransactionState.COMMIT)
        await trio.sleep(1)
        cluster.name_server.seen.clear()
        await trio.sleep(61)
        assert len(cluster.name_server.requests(RequestCode.GET_BROKER_CLUSTER_INFO)) <= 3
        await producer.send_in_transaction(triomq.Message("T", b"x"), lambda _: triomq.TransactionState.COMMIT)
        assert (await producer.send(triomq.Message("T", b"y"))).status is triomq.SendStatus.SEND_OK


@pytest.mark.parametrize("away_s", [0, 10])
async def test_a_broker_that_was_started_again_soon_knows_an_idle_producer(
    autojump_clock, cluster, ask, make_record, away_s
):
    listener = Listener()
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=listener)
        await producer.send(MESSAGE)
        await trio.sleep(1)
        await cluster.broker.stop()
        before = dials_of(cluster)
        await trio.sleep(away_s)
        cluster.broker.up = True
        await trio.sleep(8)  # the pause after a failed dial is at most 5 s
        assert dials_of(cluster) - before <= 2 + away_s / 3
        await ask()
        await told(cluster.broker)
        # From now on there is nothing to return to.
        before = dials_of(cluster)
        await trio.sleep(100)
        assert dials_of(cluster) == before
    assert len(listener.checked) == 1


async def test_a_broker_that_closes_every_link_is_dialled_rarely(autojump_clock, cluster):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener())
        await producer.send(MESSAGE)
        cluster.broker.serve = lambda command: cluster.broker.network.spawn(cluster.broker.cut)
        await cluster.broker.cut()
        before = dials_of(cluster)
        await trio.sleep(60)
        assert 10 <= dials_of(cluster) - before <= 25


@pytest.mark.parametrize("gone", ["the producer", "the route", "the transactions"])
async def test_no_consumer_returns_to_a_broker_that_is_no_longer_needed(autojump_clock, cluster, gone):
    async with cluster.client(refresh_every_s=1) as client:
        transactions = None if gone == "the transactions" else Listener()
        producer = client.producer("PG", transactions=transactions)
        await producer.send(MESSAGE)
        await trio.sleep(1)
        if gone == "the producer":
            await producer.aclose()
        await cluster.broker.stop()
        if gone == "the route":
            cluster.name_server.add_route("T", cluster.add_master("broker-b"))
            cluster.name_server.brokers.pop("broker-a")
        await trio.sleep(40)  # beyond the next look for all masters
        before = dials_of(cluster)
        await trio.sleep(25)
        assert dials_of(cluster) - before <= 1


async def test_a_producer_without_transactions_connects_to_no_broker(autojump_clock, cluster):
    async with cluster.client() as client:
        client.producer("PG")
        await trio.sleep(100)
    assert cluster.network.dials == []


async def test_an_id_is_one_line_of_the_log(autojump_clock, cluster, ask, caplog):
    """Any client can send half messages of the group."""
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener(OSError("no database")))
        await producer.send(MESSAGE)
        await ask(key="K1\nERROR forged")
        await told(cluster.broker)
    assert "the check of transaction K1?ERROR forged of group PG failed" in caplog.messages


async def test_a_check_that_fails_is_unknown(autojump_clock, cluster, ask, caplog):
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=Listener(OSError("no database")))
        await producer.send(MESSAGE)
        await ask()
        (end,) = await told(cluster.broker)
        assert end.commit_or_rollback == 0
        assert cluster.broker.requests(END)[0].remark == "checkLocalTransactionState Exception: OSError: no database"
        await producer.send(MESSAGE)  # the client lives on
    assert "the check of transaction K1 of group PG failed" in caplog.text


async def test_checks_with_bodies_that_cannot_be_read_are_one_line(autojump_clock, cluster, make_record, caplog):
    async def check(message: triomq.ReceivedMessage) -> triomq.TransactionState:
        await trio.lowlevel.checkpoint()
        assert message.body
        return triomq.TransactionState.COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check)
        await producer.send(MESSAGE)
        for number in range(50):
            command = check_of(make_record, key=f"K{number}")
            damaged = bytearray(command.body)
            damaged[39] |= 1  # the flag of compressed bodies, in the last byte of sysFlag
            command.body = bytes(damaged)
            await cluster.broker.push_to(cluster.broker.streams[-1], command)
        assert {end.commit_or_rollback for end in await told(cluster.broker, 50)} == {0}
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "asks about transaction K0 of group PG, whose message cannot be read" in line.getMessage()
    assert line.exc_info is None


async def test_checks_for_others_and_checks_without_a_message_are_dropped(autojump_clock, cluster, ask, caplog):
    caplog.set_level(logging.INFO)
    listener = Listener()
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=listener)
        await producer.send(MESSAGE)
        await ask(group="another")
        header = CheckTransactionStateRequest(tran_state_table_offset=1, commit_log_offset=1)
        bad = Command.request(CHECK, header, body=b"no record", oneway=True)
        await cluster.broker.push_to(cluster.broker.streams[-1], bad)
        await ask(key="K2")
        (end,) = await told(cluster.broker)
        assert end.msg_id == "K2"
    assert [message.transaction_id for message in listener.checked] == ["K2"]
    assert "of group another, which is not ours" in caplog.text
    assert "sends no message" in caplog.text


async def test_the_number_of_checks_is_bounded_and_none_is_lost(autojump_clock, cluster, ask):
    running, most = 0, 0

    async def check(message: triomq.ReceivedMessage) -> triomq.TransactionState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check, max_checks=3)
        await producer.send(MESSAGE)
        for number in range(10):
            await ask(key=f"K{number}", offset=number)
        found = await told(cluster.broker, 10)
    assert sorted(end.msg_id for end in found) == sorted(f"K{number}" for number in range(10))
    assert most == 3


async def test_too_many_checks_are_dropped_and_logged_once(autojump_clock, cluster, ask, caplog, monkeypatch):
    monkeypatch.setattr("triomq._producer.transaction_checks.WAITING_MAX", 2)
    go = trio.Event()

    async def check(message: triomq.ReceivedMessage) -> triomq.TransactionState:
        await go.wait()
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check, max_checks=1)
        await producer.send(MESSAGE)
        for number in range(8):
            await ask(key=f"K{number}", offset=number)
            await trio.sleep(1)
        go.set()
        await trio.sleep(1)
        found = ends(cluster.broker)
        assert [end.msg_id for end in found] == ["K0", "K1", "K2"]
        await ask(key="K9")
        await told(cluster.broker, 4)
    assert caplog.text.count("cannot answer all checks") == 1


async def test_one_that_is_asked_about_again_is_checked_once_and_answered_for_the_latest(autojump_clock, cluster, ask):
    """A broker has then appended the half message again: an answer for the older one would leave the newer open."""
    calls = []

    async def check(message: triomq.ReceivedMessage) -> triomq.TransactionState:
        calls.append(message.transaction_id)
        await trio.sleep(10)
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check)
        await producer.send(MESSAGE)
        await ask(key="K1", offset=7)
        await trio.sleep(2)
        await ask(key="K1", offset=8)
        await told(cluster.broker)
        await trio.sleep(30)
        found = ends(cluster.broker)
    assert calls == ["K1"]
    assert [(end.tran_state_table_offset, end.commit_log_offset) for end in found] == [(8, 1008)]


async def test_closing_waits_for_checks_that_run_and_drops_those_that_wait(autojump_clock, cluster, ask):
    async def check(message: triomq.ReceivedMessage) -> triomq.TransactionState:
        await trio.sleep(3)
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check, max_checks=1)
        await producer.send(MESSAGE)
        await ask(key="K1")
        await ask(key="K2")
        await trio.sleep(1)
        await producer.aclose()
        await ask(key="K3")
        await trio.sleep(30)
    assert [end.msg_id for end in ends(cluster.broker)] == ["K1"]


async def test_several_tasks_that_close_wait_for_a_check_only_until_it_ends(autojump_clock, cluster, ask):
    async def check(message: triomq.ReceivedMessage) -> triomq.TransactionState:
        await trio.sleep(2)
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check)
        await producer.send(MESSAGE)
        await ask(key="K1")
        await trio.sleep(1)
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.aclose)
            await trio.sleep(0.5)
            await producer.aclose()
        assert trio.current_time() - begun == pytest.approx(1, abs=0.1)
    assert [end.msg_id for end in ends(cluster.broker)] == ["K1"]


@pytest.mark.parametrize("how", ["slow", "aborted"])
async def test_closing_cancels_checks_that_do_not_end(autojump_clock, cluster, ask, how):
    cancelled = []

    async def check(message: triomq.ReceivedMessage) -> triomq.TransactionState:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.append(message.transaction_id)
            raise
        return COMMIT

    async with cluster.client() as client:
        producer = client.producer("PG", transactions=check)
        await producer.send(MESSAGE)
        await ask(key="K1")
        await trio.sleep(1)
        begun = trio.current_time()
        if how == "aborted":
            producer.abort()
        await producer.aclose()
        assert trio.current_time() - begun == pytest.approx(5 if how == "slow" else 0, abs=0.5)
        await trio.sleep(1)
        assert cancelled == ["K1"]
    assert ends(cluster.broker) == []


def test_without_await(system_cluster):
    """The blocking face: a block, an execute and an interrupted block."""
    with triomq.blocking.open_client(system_cluster.name_server.address, **system_cluster.options()) as client:
        producer = client.producer("PG", transactions=lambda message: COMMIT)
        with producer.transaction(MESSAGE) as transaction:
            pass
        done = producer.send_in_transaction(MESSAGE, lambda _: COMMIT)
        with pytest.raises(ValueError, match="x"), producer.transaction(MESSAGE):
            raise ValueError("x")
        with pytest.raises(KeyboardInterrupt), producer.transaction(MESSAGE):
            raise KeyboardInterrupt
    found = ends(system_cluster.broker)
    assert [end.commit_or_rollback for end in found] == [8, 8, 12]
    assert [end.msg_id for end in found[:2]] == [transaction.transaction_id, done.result.message_id]


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_a_check_whose_error_has_no_text(autojump_clock, cluster, make_record):
    """The broker gets the error; its text must not end the client."""
    async with cluster.client() as client, client.producer("PG", transactions=Listener(UnreadableError())) as producer:
        await producer.send(MESSAGE)
        await cluster.broker.push_to(cluster.broker.streams[0], check_of(make_record))
        (end,) = await told(cluster.broker)
        await producer.send(MESSAGE)
    assert end.commit_or_rollback == 0
    assert cluster.broker.requests(END)[0].remark == "checkLocalTransactionState Exception: UnreadableError: "


async def test_the_end_of_a_transaction_whose_master_is_at_another_address(autojump_clock, cluster):
    old = cluster.broker
    new = type(old)(cluster.network, old.name)
    new.address = "new:10911"
    cluster.network.nodes = {**cluster.network.nodes, old.address: old, new.address: new}
    async with cluster.client() as client:
        producer = client.producer("PG", transactions=lambda _message: COMMIT)
        async with producer.transaction(MESSAGE):
            cluster.name_server.add_route(MESSAGE.topic, new)
            cluster.network.hanging.add(old.address)
            await old.cut()
            await trio.testing.wait_all_tasks_blocked()
            begun = trio.current_time()
        assert trio.current_time() - begun < 1
        await trio.testing.wait_all_tasks_blocked()
        assert len(ends(new)) == 1


async def test_the_end_of_a_transaction_while_its_master_is_slow_and_the_name_servers_are_silent(
    autojump_clock, cluster
):
    dial, slow = cluster.network.dial, set()

    async def dial_late(address):
        if address in slow:
            await trio.sleep(1)
        return await dial(address)

    async with cluster.client(dial=dial_late) as client:
        producer = client.producer("PG", transactions=lambda _message: COMMIT)
        async with producer.transaction(MESSAGE):
            slow.add(cluster.broker.address)
            cluster.network.hanging.add(cluster.name_server.address)
            await cluster.name_server.cut()
            await cluster.broker.cut()
            await trio.testing.wait_all_tasks_blocked()
            begun = trio.current_time()
        assert trio.current_time() - begun == pytest.approx(1, abs=0.1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(ends(cluster.broker)) == 1
