"""Rows become messages with a stable key, and every one of them is acknowledged."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import trio

import triomq
from pyspark_rocketmq.errors import BadOption, WriteFailed
from pyspark_rocketmq.options import write_options
from pyspark_rocketmq.rows.batch_elements import ElementEncoder, Elements
from pyspark_rocketmq.rows.row_keys import ROW_KEY, RowKeys
from pyspark_rocketmq.rows.row_messages import RowMessage, RowReader, utf8_rows
from pyspark_rocketmq.write import sending as sending_module
from pyspark_rocketmq.write.sending import TRIES, RowSender, Sent, cause_of, wait_replicated
from pyspark_rocketmq.write.writer import BatchWriter, StreamWriter, WrittenRows
from triomq import Message, MessageQueue, PullResult, PullStatus, SendResult, SendStatus
from triomq.errors import BrokerUnavailable, RouteNotFound, error_for_code
from triomq_protocol.codes import ResponseCode
from triomq_protocol.record.batch import split_batch

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]
MAP = pa.map_(pa.string(), pa.string())


def rows(**columns: list[object]) -> pa.RecordBatch:
    types = {"properties": MAP, "delay_level": pa.int32()}
    return pa.RecordBatch.from_arrays(
        [pa.array(values, types.get(name)) for name, values in columns.items()], names=list(columns)
    )


def messages(batch: pa.RecordBatch, scope: str = "job/7/0", topic: str | None = "T") -> list[RowMessage]:
    reader = RowReader(scope, topic, 4096, RowKeys(scope))
    return list(reader.messages(utf8_rows(batch, scope, 0), range(batch.num_rows)))


def test_columns_become_a_message() -> None:
    [made] = messages(
        rows(
            body=["text"],
            topic=["U"],
            tags=["a"],
            keys=["k1 k2"],
            sharding_key=["s"],
            delay_level=[3],
            properties=[[("x", "1"), ("UNIQ_KEY", "old"), ("CLUSTER", "c"), ("n", None)]],
        )
    )
    message = made.message
    assert (message.topic, message.body, message.tags, message.keys) == ("U", b"text", "a", ["k1", "k2"])
    assert (message.delay_level, made.sharding_key) == (3, "s")
    assert dict(message.properties or {}).keys() == {"x", ROW_KEY}, (
        "what belongs to the message read is not written again"
    )


def test_the_key_of_a_row_is_stable_and_its_own() -> None:
    def keys(bodies: list[object], scope: str = "job/7/0") -> list[str]:
        return [dict(each.message.properties or {})[ROW_KEY] for each in messages(rows(body=bodies), scope)]

    first = keys(["a", "b", "a", "c"])
    assert len(set(first)) == 4, "equal rows are two rows"
    assert sorted(first) == sorted(keys(["c", "a", "b", "a"])), "a shuffle read again may change the order"
    assert not set(first) & set(keys(["a", "b"], "job/8/0")), "another batch has other keys"
    assert all(each.startswith("job/7/0/") for each in first)


@pytest.mark.parametrize(
    ("batch", "topic", "says"),
    [
        (rows(body=["x", None]), "T", "row 1 of job/7/0 has no body"),
        (rows(body=["x"], topic=[None]), None, "row 0 of job/7/0 has no topic"),
        (rows(body=["x"], keys=["k" * 40_000]), "T", "row 0 of job/7/0 cannot be sent: .* have 40[0-9]{3} bytes"),
        (rows(body=["x", ""]), "T", "row 1 of job/7/0 cannot be sent: .*empty"),
        (
            rows(body=["x", "y" * 4097]),
            "T",
            "row 1 of job/7/0 cannot be sent: its body has 4097 bytes, more than 4096; set rocketmq.max_body_bytes higher",
        ),
        (rows(body=["x" * 5000]), "T", "row 0 .*5000 bytes"),
        (rows(body=["x"], tags=["a\x01"]), "T", "row 0 .*tags"),
    ],
)
def test_rows_that_cannot_be_messages(batch: pa.RecordBatch, topic: str | None, says: str) -> None:
    with pytest.raises(WriteFailed, match=says):
        messages(batch, topic=topic)


NO_TEXT = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xffA", None], pa.binary()).buffers())


def test_a_body_may_be_any_bytes_and_other_texts_are_utf_8() -> None:
    batch = pa.RecordBatch.from_arrays([NO_TEXT, pa.array(["é", "", None])], names=["body", "tags"])
    made = utf8_rows(batch, "job/7/0", 10)
    assert made.to_pydict() == {"body": [b"a", b"\xffA", None], "tags": ["é", "", None]}


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("keys", NO_TEXT),
        ("sharding_key", NO_TEXT),
        ("properties", pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), NO_TEXT)),
        ("properties", pa.MapArray.from_arrays([0, 1, 2, 2], NO_TEXT[:2], pa.array(["a", "b"]))),
    ],
)
def test_a_text_that_is_not_utf_8_is_named(name: str, column: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"] * 3), column], names=["body", name])
    says = f"row 11 of job/7/0 cannot be sent: its column {name} holds bytes that are not UTF-8"
    with pytest.raises(WriteFailed, match=says):
        utf8_rows(batch, "job/7/0", 10)


class FakeProducer:
    """Takes requests after a while, and may refuse some."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.requests: list[list[bytes]] = []
        self.stored: dict[MessageQueue, list[bytes]] = {queue: [] for queue in QUEUES}
        self.under_way = self.most_under_way = self.lookups = 0

    async def queues(self, _topic: str) -> list[MessageQueue]:
        self.lookups += 1
        await trio.lowlevel.checkpoint()
        return QUEUES

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        return await self._take([message.body], queue)

    async def send_elements(
        self, topic: str, elements: bytes, message_ids: Sequence[str], *, queue: MessageQueue | None = None
    ) -> SendResult:
        found = split_batch(elements, b"").elements
        assert topic == "T"
        assert [each[3] for each in found] == list(message_ids)
        return await self._take([each[1] for each in found], queue)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _take(self, bodies: list[bytes], queue: MessageQueue | None) -> SendResult:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await trio.sleep(1 / (1 + len(self.requests)))
        finally:
            self.under_way -= 1
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailable("send", address="broker:1")
        self.requests.append(bodies)
        place = queue or QUEUES[len(self.requests) % len(QUEUES)]
        self.stored[place] += bodies
        return SendResult(SendStatus.SEND_OK, "", "", place, len(self.stored[place]) - len(bodies))


def elements(bodies: list[bytes], sharding_keys: list[str | None] | None = None) -> Elements:
    columns: dict[str, list[object]] = {"body": list(bodies)}
    if sharding_keys is not None:
        columns["sharding_key"] = list(sharding_keys)
    ids = itertools.count()
    encoder = ElementEncoder(
        "T",
        4096,
        RowKeys("job/7/0"),
        lambda count: pa.array([f"{next(ids):032X}" for _ in range(count)], pa.large_string()),
    )
    [made], alone = encoder.encode(rows(**columns))
    assert not len(alone)
    return made


@asynccontextmanager
async def sending(producer: object, *, batch_rows: int, in_flight: int) -> AsyncIterator[RowSender]:
    sender = RowSender(producer, batch_rows=batch_rows, in_flight=in_flight)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(sender.run)
        try:
            yield sender
        finally:
            nursery.cancel_scope.cancel()


async def test_batches_and_a_bounded_number_under_way(autojump_clock: trio.testing.MockClock) -> None:
    producer = FakeProducer()
    async with sending(producer, batch_rows=10, in_flight=3) as sender:
        bodies = [b"%d" % number for number in range(95)]
        await sender.put(elements(bodies))
        assert sender.sent.rows < 95, "the next rows are encoded while these are on their way"
        await sender.finish()
    assert producer.most_under_way == 3
    assert sorted(len(each) for each in producer.requests) == [5, *[10] * 9]
    assert sorted(body for some in producer.requests for body in some) == sorted(bodies)
    assert (sender.sent.rows, sender.sent.requests, sender.sent.statuses) == (95, 10, {"SEND_OK": 10})
    assert sender.sent.body_bytes == sum(map(len, bodies))
    assert sum(last + 1 for last in sender.sent.last.values()) == 95


async def test_the_next_rows_are_encoded_while_those_before_find_their_places(
    autojump_clock: trio.testing.MockClock,
) -> None:
    producer = FakeProducer()
    async with sending(producer, batch_rows=1, in_flight=1) as sender:
        await sender.put(elements([b"a", b"b", b"c"]))
        assert producer.requests == []
        await sender.put(elements([b"d", b"e"]))
        assert producer.requests == [[b"a"], [b"b"]], "and no more than one batch of rows ahead"
        await sender.finish()
    assert producer.requests == [[b"a"], [b"b"], [b"c"], [b"d"], [b"e"]]


async def test_a_sharding_key_keeps_its_order_in_one_queue(autojump_clock: trio.testing.MockClock) -> None:
    producer = FakeProducer(failures=2)
    keys = [f"key {key}" for key in range(5)]
    async with sending(producer, batch_rows=3, in_flight=8) as sender:
        for begin in (0, 10):
            own = [(b"%s %d" % (key.encode(), n), key) for n in range(begin, begin + 10) for key in keys]
            await sender.put(elements([body for body, _ in own], [key for _, key in own]))
        await sender.put(RowMessage(Message("T", b"key 3 20"), "key 3"))
        await sender.finish()
    places = {body: queue for queue, bodies in producer.stored.items() for body in bodies}
    for key in keys:
        expected = [b"%s %d" % (key.encode(), n) for n in range(21 if key == "key 3" else 20)]
        assert len({places[body] for body in expected}) == 1
        assert [body for body in producer.stored[places[expected[0]]] if body in expected] == expected


async def test_queues_are_looked_up_once_for_each_arrow_batch(autojump_clock: trio.testing.MockClock) -> None:
    producer = FakeProducer()
    async with sending(producer, batch_rows=10, in_flight=8) as sender:
        for _ in range(3):
            sender.look_up_again()
            await sender.put(elements([b"a", b"b", b"c"], ["x", "y", None]))
            await sender.put(RowMessage(Message("T", b"d"), "z"))
        await sender.finish()
    assert producer.lookups == 3


async def test_rows_without_a_key_beside_rows_with_one(autojump_clock: trio.testing.MockClock) -> None:
    producer = FakeProducer()
    async with sending(producer, batch_rows=10, in_flight=8) as sender:
        await sender.put(elements([b"a", b"b", b"c", b"d"], ["x", None, None, "x"]))
        await sender.finish()
    assert sorted(producer.requests) == [[b"a", b"d"], [b"b", b"c"]]


async def test_one_refusal_fails_the_task_and_reports_how_many_rows_were_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with sending(FakeProducer(failures=TRIES), batch_rows=10, in_flight=1) as sender:
        await sender.put(elements([b"%d" % number for number in range(30)]))
        for call in (sender.put(elements([b"x"])), sender.finish()):
            with pytest.raises(
                WriteFailed, match=r"^BrokerUnavailable: send, asked broker:1 .*; 0 rows .*spark_row_key"
            ):
                await call
    async with sending(FakeProducer(failures=TRIES), batch_rows=10, in_flight=1) as sender:
        await sender.put(RowMessage(Message("T", b"x"), "key"))
        with pytest.raises(WriteFailed):
            await sender.finish()


async def test_what_is_given_up_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    producer = FakeProducer()
    async with sending(producer, batch_rows=1, in_flight=2) as sender:
        await sender.put(elements([b"a"]))
        await sender.aclose()
        for call in (sender.put(elements([b"b", b"c"])), sender.finish()):
            with pytest.raises(WriteFailed, match="not all of them are acknowledged"):
                await call
    assert not producer.requests


async def test_a_client_that_closes_before_the_end_is_no_success(autojump_clock: trio.testing.MockClock) -> None:
    sender = RowSender(FakeProducer(), batch_rows=1, in_flight=2)  # type: ignore[arg-type]
    async with trio.open_nursery() as finishing, trio.open_nursery() as nursery:
        await nursery.start(sender.run)
        await sender.put(elements([b"a"]))

        async def finish() -> None:
            with pytest.raises(WriteFailed, match="not all of them are acknowledged"):
                await sender.finish()

        finishing.start_soon(finish)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_a_failed_write_gives_the_cause_first_and_one_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "PAUSE_S", 0.0)
    async with triomq.open_client("127.0.0.1:1", route_wait_s=0.05) as client:
        producer = client.producer("writes", send_timeout_s=0.2)
        async with sending(producer, batch_rows=128, in_flight=1) as sender:
            await sender.put(elements([b"%d" % number for number in range(128)]))
            with pytest.raises(WriteFailed) as raised:
                await sender.finish()
        producer.abort()
    text = str(raised.value)
    assert text.startswith("NoNameServer: "), text
    assert re.search(r"message [0-9A-F]{32} and 127 more, ", text), text
    assert len(text) < 700, text


def test_a_topic_that_takes_no_batches_names_the_cure_for_spark() -> None:
    remark = "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL"
    text = cause_of(error_for_code(ResponseCode.MESSAGE_ILLEGAL, remark, what="send to topic T", address="proxy:8080"))
    assert "expected type is FIFO" in text
    assert "give the cluster's name servers as the option namesrv" in text
    assert "max_body_bytes" not in text
    assert "properties=" not in text
    other = cause_of(
        error_for_code(
            ResponseCode.MESSAGE_ILLEGAL, remark.replace("FIFO", "DELAY"), what="send to topic T", address="proxy:8080"
        )
    )
    assert "takes only messages of the topic's type" in other
    assert "max_body_bytes" not in other


def test_a_full_disk_of_a_broker_is_reported_with_its_cure() -> None:
    remark = "service not available now. It may be caused by [...] the broker's disk is full [CL:  0.93 CQ:  0.93 INDEX:  0.93]"
    text = cause_of(BrokerUnavailable("send to topic T", remark=remark, address="b:1"))
    assert re.search(r"disk is full \[CL:  0.93 .* asked b:1 \(.*free space on its disk: its log says why", text), text


def test_a_failed_job_reports_what_remains_and_that_a_new_one_has_other_keys(caplog: pytest.LogCaptureFixture) -> None:
    options = write_options({"namesrv": "h:1", "topic": "T"})
    writer = BatchWriter(options, overwrite=False)
    with caplog.at_level(logging.WARNING):
        writer.abort([WrittenRows(0, Sent(rows=7)), None])
    assert "the 7 rows of the tasks that succeeded and perhaps some of the others remain stored" in caplog.text
    assert "other values of spark_row_key" in caplog.text
    assert writer.job != BatchWriter(options, overwrite=False).job


def test_a_named_job_has_the_same_keys_again(caplog: pytest.LogCaptureFixture) -> None:
    options = write_options({"namesrv": "h:1", "topic": "T", "writeName": "orders/7"})
    writer = BatchWriter(options, overwrite=False)
    with caplog.at_level(logging.WARNING):
        writer.abort([None])
    assert "the same values of spark_row_key" in caplog.text
    assert writer.job == BatchWriter(options, overwrite=False).job == "orders/7"
    with pytest.raises(BadOption, match="writeName is for batches"):
        StreamWriter(options, overwrite=False)


class FakeSlave:
    def __init__(self, end: int, *, is_there: bool = True) -> None:
        self.end = end
        self.is_there = is_there

    async def pull(self, queue: MessageQueue, offset: int, *, max_messages: int) -> PullResult:
        await trio.sleep(0.01)
        if not self.is_there:
            raise RouteNotFound("the route has no broker to read from as slave")
        status = PullStatus.FOUND if offset < self.end else PullStatus.NO_NEW_MESSAGE
        self.end += 1
        return PullResult(
            status, queue, next_offset=offset + 1, min_offset=0, max_offset=self.end, suggested_broker_id=0,
            broker_address="slave:1",
        )  # fmt: skip


async def test_replicated_is_what_a_slave_hands_out(autojump_clock: trio.testing.MockClock) -> None:
    slave = FakeSlave(3)
    await wait_replicated(slave, {QUEUES[0]: 10})  # type: ignore[arg-type]
    assert slave.end > 10
    with pytest.raises(WriteFailed, match=r"no slave showed offset 10 .*no broker to read from as slave"):
        await wait_replicated(FakeSlave(0, is_there=False), {QUEUES[0]: 10})  # type: ignore[arg-type]
