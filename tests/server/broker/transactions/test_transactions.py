"""Transactions of a whole broker: what consumers see, what producers are asked, and what restarts and roles do to
them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.layout import BODY_AT, PHYSICAL_OFFSET_AT
from triomq_protocol.record.view import RecordView, iter_records
from triomq_protocol.requests.heartbeat import HeartbeatData, ProducerData
from triomq_protocol.requests.transaction import EndTransactionRequest
from triomq_protocol.wire.command import Command
from triomq_server.broker.admin.ha import CHANGE_ROLE
from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv

HALVES, OPS, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
BORN = 1_795_000_000_000
NAMESRV = "127.0.0.1:9876"
SLAVE_PORT = 10921


def half(number: int = 0, *, group: str = "PG", sys_flag: int = 4, **properties: str) -> dict[str, Any]:
    pairs = {
        "TRAN_MSG": "true",
        "PGROUP": group,
        "UNIQ_KEY": f"ID{number}",
        "TAGS": "TagA",
        "WAIT": "true",
        **properties,
    }
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())
    born = BORN + int(trio.current_time() * 1000)
    return {"body": b"%d" % number, "properties": text, "sys_flag": sys_flag, "born_timestamp": born}


def end_of(sent: Command, kind: int, *, group: str = "PG", **fields: Any) -> Command:
    """The end of the transaction of a half message, by the answer to its send."""
    header = EndTransactionRequest(
        **{
            "producer_group": group,
            "tran_state_table_offset": int(sent.fields["queueOffset"]),
            "commit_log_offset": offset_of(sent),
            "commit_or_rollback": kind,
            "msg_id": "x",
            **fields,
        }
    )
    return Command.request(RequestCode.END_TRANSACTION, header)


def end_of_checked(question: Command, kind: int, group: str = "PG") -> Command:
    """The answer to a question."""
    header = EndTransactionRequest(
        producer_group=group,
        tran_state_table_offset=int(question.fields["tranStateTableOffset"]),
        commit_log_offset=int(question.fields["commitLogOffset"]),
        commit_or_rollback=kind,
        from_transaction_check=True,
        msg_id=question.fields["msgId"],
    )
    return Command.request(RequestCode.END_TRANSACTION, header, oneway=True)


def offset_of(sent: Command) -> int:
    """The log offset of a message, by the answer to its send."""
    return int(sent.fields["msgId"][16:], 16)


async def ops(peer: Any) -> int:
    """How many op messages there are; their topic has no configuration, so it cannot be pulled."""
    answer = await peer.ask(Command.request(RequestCode.GET_MAX_OFFSET, fields={"topic": OPS, "queueId": "0"}))
    return int(answer.fields["offset"])


async def records(peer: Any, topic: str = "T1", offset: int = 0) -> list[RecordView]:
    answer = await peer.pull(topic, offset, max_msg_nums=32)
    return list(iter_records(answer.body)) if answer.code == 0 else []


async def bodies(peer: Any, topic: str = "T1") -> list[bytes]:
    return [record.body for record in await records(peer, topic)]


@pytest.fixture
def open_broker(open_broker: Any) -> Any:
    """A broker that keeps links on which nothing is sent: rounds of the check are minutes apart."""
    return partial(open_broker, serverChannelMaxIdleTimeSeconds=86_400)


class Producer:
    """A member of a producer group that answers questions."""

    def __init__(self, peer: Any, answer: Callable[[RecordView], int | None], group: str) -> None:
        self.peer = peer
        self.asked: list[RecordView] = []
        self._answer = answer
        self._group = group

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self._beat()
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat_on)
            try:
                while True:
                    await self._answer_one()
            except (AssertionError, trio.BrokenResourceError):
                nursery.cancel_scope.cancel()

    async def _beat(self) -> None:
        data = HeartbeatData(client_id="P@1", producer_data_set=[ProducerData(group_name=self._group)])
        await self.peer.send(Command.request(RequestCode.HEART_BEAT, body=data.encode()))
        await trio.testing.wait_all_tasks_blocked()

    async def _beat_on(self) -> None:
        while True:
            await trio.sleep(30)
            await self._beat()

    async def _answer_one(self) -> None:
        question = await self.peer.receive()
        if question.code == RequestCode.CHECK_TRANSACTION_STATE:
            record = RecordView(question.body)
            self.asked.append(record)
            kind = self._answer(record)
            if kind is not None:
                await self.peer.send(end_of_checked(question, kind, self._group))


async def join(
    nursery: trio.Nursery, broker: Any, answer: Callable[[RecordView], int | None], group: str = "PG", port: int = 10911
) -> Producer:
    producer = Producer(await broker.peer(port), answer, group)
    await nursery.start(producer.run)
    return producer


async def test_commit_and_rollback(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        first, second = await peer.put(queue_id=0, **half(1)), await peer.put(queue_id=0, **half(2))
        assert await bodies(peer) == []
        assert (await peer.ask(end_of(second, COMMIT))).code == 0
        answer = await peer.ask(end_of(first, ROLLBACK))
        assert (answer.code, answer.remark) == (0, "not set any response code")
        (record,) = await records(peer)
        assert (record.body, record.sys_flag, record.tags) == (b"2", COMMIT, "TagA")
        assert record.prepared_transaction_offset == offset_of(second)
        assert await ops(peer) == 2
        await trio.sleep(200)
        assert await bodies(peer) == [b"2"]
        assert len(await bodies(peer, HALVES)) == 2, "nothing was checked"


async def test_a_pull_that_waits_gets_the_committed_message(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer, reader = await broker.peer(), await broker.peer()
        sent = await peer.put(queue_id=0, **half(1))
        await reader.send(reader.pull_request("T1", 0, sys_flag=6))
        await trio.sleep(1)
        await peer.send(end_of(sent, COMMIT))
        with trio.fail_after(1):
            answer = await reader.receive()
        assert [record.body for record in iter_records(answer.body)] == [b"1"]


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"group": "Other"}, "The producer group wrong"),
        ({"tran_state_table_offset": 1}, "The transaction state table offset wrong"),
        ({"tran_state_table_offset": -1}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 1 << 62}, "Find prepared transaction message failed"),
        ({"kind": 4}, "commitOrRollback"),
        ({"kind": 1}, "commitOrRollback"),
    ],
)
@pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
async def test_false_ends_are_refused(open_broker: Any, fields: dict[str, Any], remark: str, kind: int) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        sent = await peer.put(queue_id=0, **half(1))
        answer = await peer.ask(end_of(sent, **{"kind": kind, **fields}))
        assert answer.code == 1
        assert remark in answer.remark
        assert (await bodies(peer), await ops(peer)) == ([], 0)
        assert (await peer.ask(end_of(sent, COMMIT))).code == 0, "it can still be ended"
        assert await bodies(peer) == [b"1"]


async def test_only_a_half_message_can_be_ended(open_broker: Any) -> None:
    """Neither a committed message, which has the same properties, nor a body that looks like a half message."""
    async with open_broker() as broker:
        peer = await broker.peer()
        sent = await peer.put(queue_id=0, **half(1))
        await peer.ask(end_of(sent, COMMIT))
        (message,) = await records(peer)
        again = end_of(sent, COMMIT, commit_log_offset=message.physical_offset)
        assert (await peer.ask(again)).remark == "Find prepared transaction message failed"
        (stored,) = await records(peer, HALVES)
        # The third message like this will lie where the first two say; a false record in its body says the same.
        begins = [offset_of(await peer.put("Other", stored.data, properties="")) for _ in range(2)]
        place = 2 * begins[1] - begins[0] + BODY_AT
        false = bytearray(stored.data)
        false[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = place.to_bytes(8, "big")
        assert offset_of(await peer.put("Other", bytes(false), properties="")) + BODY_AT == place
        answer = await peer.ask(end_of(sent, COMMIT, commit_log_offset=place))
        assert answer.remark == "Find prepared transaction message failed"
        assert await bodies(peer) == [b"1"]


async def test_long_names_of_clients_are_cut_off_in_the_log(open_broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        sent = await peer.put(queue_id=0, **half(1))
        await peer.ask(end_of(sent, COMMIT, group="x" * 1000, msg_id="y" * 1000))
    (line,) = [line for line in caplog.messages if "are refused" in line]
    assert "of producer groups xx" in line
    assert len(line) < 500


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("then", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("compat", [{}, {"compat": "4.9"}])
async def test_a_repeated_end(open_broker: Any, first: int, then: int, compat: dict[str, str]) -> None:
    async with open_broker(**compat) as broker:
        peer = await broker.peer()
        sent = await peer.put(queue_id=0, **half(1))
        assert (await peer.ask(end_of(sent, first))).code == 0
        answer = await peer.ask(end_of(sent, then))
        if compat:
            assert answer.code == 0
            assert len(await bodies(peer)) == [first, then].count(COMMIT)
        else:
            assert (answer.code, answer.remark) == (1, "The transaction has ended before")
            assert await bodies(peer) == [b"1"] * (first == COMMIT)


async def test_an_unknown_end_is_not_answered(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        sent = await peer.put(queue_id=0, **half(1))
        await peer.send(end_of(sent, UNKNOWN))
        with trio.move_on_after(5) as waited:
            await peer.receive()
        assert waited.cancelled_caught
        assert await ops(peer) == 0


@pytest.mark.parametrize(("kind", "seen"), [(COMMIT, [b"7"]), (ROLLBACK, [])])
async def test_a_silent_producer_is_asked(open_broker: Any, kind: int, seen: list[bytes]) -> None:
    async with open_broker() as broker, trio.open_nursery() as nursery:
        peer = await broker.peer()
        producer = await join(nursery, broker, lambda _: kind)
        await peer.put(queue_id=2, **half(7))
        await trio.sleep(59)
        assert producer.asked == []
        await trio.sleep(2)
        (asked,) = producer.asked
        assert (asked.topic, asked.queue_id, asked.body) == ("T1", 2, b"7")
        assert asked.properties["TRANSACTION_CHECK_TIMES"] == "1"
        answer = await peer.pull("T1", 0, queue_id=2)
        assert [record.body for record in iter_records(answer.body)] == seen
        await trio.sleep(200)
        assert len(producer.asked) == 1, "once it has ended, nobody asks again"
        assert len(await bodies(peer, HALVES)) == 2
        nursery.cancel_scope.cancel()


async def test_a_young_half_message_is_not_asked_about(open_broker: Any) -> None:
    async with (
        open_broker(transactionTimeOut=30_000, transactionCheckInterval=10_000) as broker,
        trio.open_nursery() as nursery,
    ):
        producer = await join(nursery, broker, lambda _: COMMIT)
        await (await broker.peer()).put(queue_id=0, **half(1))
        await trio.sleep(29)
        assert producer.asked == []
        await trio.sleep(3)
        assert len(producer.asked) == 1
        nursery.cancel_scope.cancel()


async def test_after_the_last_check_it_is_given_up_and_can_be_resumed(open_broker: Any, caplog: Any) -> None:
    async with (
        open_broker(transactionCheckMax=3, transactionCheckInterval=10_000) as broker,
        trio.open_nursery() as nursery,
    ):
        peer = await broker.peer()
        answers = [UNKNOWN, None, UNKNOWN, COMMIT]
        producer = await join(nursery, broker, lambda _: answers.pop(0))
        await peer.put(queue_id=0, **half(1))
        await trio.sleep(100)
        assert len(producer.asked) == 3
        (given_up,) = await records(peer, GIVEN_UP)
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3", "as often as it was checked, and as Java has it"
        assert given_up.properties["REAL_TOPIC"] == "T1"
        assert "are given up" in caplog.text
        resume = {"msgId": given_up.offset_message_id}
        assert (await peer.ask(Command.request(323, fields=resume))).code == 0
        await trio.sleep(30)
        assert len(producer.asked) == 4
        assert await bodies(peer) == [b"1"]
        for false in ("", "x", given_up.offset_message_id[:-1] + "0", producer.asked[0].offset_message_id):
            assert (await peer.ask(Command.request(323, fields={"msgId": false}))).code == 1
        nursery.cancel_scope.cancel()


async def test_without_a_producer_checks_count_all_the_same(open_broker: Any, caplog: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put(queue_id=0, **half(1))
        await trio.sleep(61 * 15)
        assert await bodies(peer, GIVEN_UP) == []
        await trio.sleep(120)
        assert await bodies(peer, GIVEN_UP) == [b"1"]
    line = "1 checks of transactions were not sent: no producer is connected of groups PG"
    assert caplog.text.count(line) == 15, "one transaction"


async def test_any_member_of_the_group_is_asked_and_no_other_client(open_broker: Any) -> None:
    async with open_broker() as broker, trio.open_nursery() as nursery:
        peer = await broker.peer()
        members = [await join(nursery, broker, lambda _: COMMIT) for _ in range(3)]
        stranger = await join(nursery, broker, lambda _: COMMIT, "Strangers")
        for number in range(9):
            await peer.put(queue_id=0, **half(number))
        await trio.sleep(61)
        assert [len(member.asked) for member in members] == [3, 3, 3]
        assert stranger.asked == []
        assert sorted(await bodies(peer)) == [b"%d" % number for number in range(9)]
        nursery.cancel_scope.cancel()


async def test_a_producer_that_wants_more_time(open_broker: Any) -> None:
    """It is not asked before, however often the message is stored again; an end for the first copy ends all of them."""
    async with (
        open_broker(transactionCheckInterval=10_000, transactionCheckMax=10) as broker,
        trio.open_nursery() as nursery,
    ):
        peer = await broker.peer()
        producer = await join(nursery, broker, lambda _: ROLLBACK)
        ended = await peer.put(queue_id=0, **half(1, CHECK_IMMUNITY_TIME_IN_SECONDS="100"))
        await peer.put(queue_id=0, **half(2, CHECK_IMMUNITY_TIME_IN_SECONDS="100"))
        await trio.sleep(95)
        assert producer.asked == []
        copies = await records(peer, HALVES)
        assert len(copies) > 10
        assert {copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] for copy in copies[2:]} == {"0", "1"}
        assert {copy.properties["WAIT"] for copy in copies[2:]} == {"false"}
        assert (await peer.ask(end_of(ended, COMMIT))).code == 0
        await trio.sleep(200)
        assert [asked.body for asked in producer.asked] == [b"2"]
        assert await bodies(peer) == [b"1"]
        nursery.cancel_scope.cancel()


async def test_an_end_that_arrives_after_its_check_was_sent(open_broker: Any) -> None:
    """The producer's own end for the first copy crosses the check: one message, and the answer is refused."""
    async with open_broker() as broker, trio.open_nursery() as nursery:
        peer = await broker.peer()
        producer = await join(nursery, broker, lambda _: None)
        sent = await peer.put(queue_id=0, **half(1))
        await trio.sleep(61)
        assert len(producer.asked) == 1
        assert (await peer.ask(end_of(sent, COMMIT))).code == 0
        newest = (await records(peer, HALVES))[-1]
        late = end_of(
            sent, ROLLBACK, tran_state_table_offset=newest.queue_offset, commit_log_offset=newest.physical_offset
        )
        assert (await peer.ask(late)).remark == "The transaction has ended before"
        assert await ops(peer) == 2, "one for each copy"
        await trio.sleep(200)
        assert (len(producer.asked), await bodies(peer)) == (1, [b"1"])
        nursery.cancel_scope.cancel()


async def test_a_delay_begins_with_the_commit(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        sent = await peer.put(queue_id=0, **half(1, DELAY="2"))
        assert await bodies(peer, HALVES) == [b"1"]
        await trio.sleep(20)
        assert (await peer.ask(end_of(sent, COMMIT))).code == 0
        await trio.sleep(4)
        assert await bodies(peer) == []
        await trio.sleep(2)
        (record,) = await records(peer)
        assert (record.body, record.sys_flag) == (b"1", COMMIT)


async def test_settings_take_effect_while_the_broker_runs(open_broker: Any) -> None:
    async with open_broker() as broker, trio.open_nursery() as nursery:
        peer = await broker.peer()
        producer = await join(nursery, broker, lambda _: None)
        await peer.put(queue_id=0, **half(1))
        body = b"transactionCheckInterval=1000\ntransactionTimeOut=100000\ntransactionCheckMax=2"
        assert (await peer.ask(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body))).code == 0
        await trio.sleep(99)
        assert producer.asked == []
        await trio.sleep(10)
        assert len(producer.asked) == 2
        assert await bodies(peer, GIVEN_UP) == [b"1"]
        nursery.cancel_scope.cancel()


# -- restarts and roles


async def test_a_restart_continues_where_the_check_was(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        sent = [await peer.put(queue_id=0, **half(number)) for number in range(6)]
        for number, kind in ((0, COMMIT), (3, ROLLBACK)):
            await peer.ask(end_of(sent[number], kind))
        await trio.sleep(130)
        await peer.ask(end_of(sent[4], COMMIT))
    for _ in range(2):
        async with open_broker(disk=disk) as broker, trio.open_nursery() as nursery:
            peer = await broker.peer()
            producer = await join(nursery, broker, lambda record: ROLLBACK if record.body == b"5" else COMMIT)
            await trio.sleep(61)
            asked = [record.body for record in producer.asked]
            assert sorted(asked) in ([b"1", b"2", b"5"], [])
            assert sorted(await bodies(peer)) == [b"0", b"1", b"2", b"4"]
            nursery.cancel_scope.cancel()
    assert asked == [], "the second start finds nothing open"


async def test_ends_before_a_restart_are_known_after_it(open_broker: Any) -> None:
    disk = MemoryDisk()
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        sent = await peer.put(queue_id=0, **half(1))
        await peer.ask(end_of(sent, ROLLBACK))
    async with open_broker(disk=disk) as broker:
        peer = await broker.peer()
        await trio.sleep(0.1)
        assert (await peer.ask(end_of(sent, COMMIT))).remark == "The transaction has ended before"
        assert await bodies(peer) == []


async def test_a_slave_copies_transactions_and_continues_them_as_master(
    open_broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    async with trio.open_nursery() as nursery:
        config, _ = NamesrvConfig.from_properties({"kvConfigPath": "/nowhere/kvConfig.json"})
        await nursery.start(partial(serve_namesrv, config, listen=network.listen))
        async with (
            open_broker(network=network, namesrvAddr=NAMESRV) as master,
            open_broker(
                network=network, brokerRole="SLAVE", brokerId=1, listenPort=SLAVE_PORT, namesrvAddr=NAMESRV
            ) as slave,
        ):
            peer = await master.peer()
            sent = [await peer.put(queue_id=0, **half(number)) for number in range(4)]
            await peer.ask(end_of(sent[0], COMMIT))
            await trio.sleep(100)
            await peer.ask(end_of(sent[1], ROLLBACK))
            await trio.sleep(15)
            other = await slave.peer(SLAVE_PORT)
            answer = await other.ask(end_of(sent[2], COMMIT))
            assert (answer.code, answer.remark) == (11, "not set any response code")
            on_slave = await join(nursery, slave, lambda _: COMMIT, port=SLAVE_PORT)
            await trio.sleep(100)
            assert on_slave.asked == [], "a slave asks nobody"
            await change_role(peer, "SLAVE")
            await change_role(other, "ASYNC_MASTER")
            await trio.sleep(61)
            assert sorted(record.body for record in on_slave.asked) == [b"2", b"3"]
            assert sorted(await bodies(other)) == [b"0", b"2", b"3"]
            assert "the store did not take" not in caplog.text, "the old master checks nothing any more"
            nursery.cancel_scope.cancel()


async def change_role(peer: Any, role: str) -> None:
    answer = await peer.ask(Command.request(CHANGE_ROLE, fields={"role": role}))
    assert answer.code == 0, answer.remark
