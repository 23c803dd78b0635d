"""The transport of Kombu in this process: queues, exchanges, acknowledgements, prefetch, tasks that are due later."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from kombu.pools import reset
from unreadable import send_unreadable

import triomq
import triomq_adapters.kombu  # noqa: F401 - makes the transport known
from triomq_adapters.delays import wall_ms
from triomq_testing import RocketMQ

TIMEOUT_S = 120
DIRECT = Exchange("work", type="direct")
QUEUE = Queue("jobs.urgent", DIRECT, routing_key="urgent")


@pytest.fixture
def connect(rocketmq: RocketMQ) -> Iterator[Callable[..., Connection]]:
    opened = []

    def connect(**options: object) -> Connection:
        connection = Connection(
            f"rocketmq://{rocketmq.namesrv_addr}/", transport_options={"send_timeout": 60, "queues": 4, **options}
        )
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.release()
    reset()


def send(connection: Connection, *bodies: object, queue: Queue = QUEUE, **options: object) -> None:
    with connection.channel() as channel:
        producer = Producer(channel, serializer="json")
        for body in bodies:
            producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options)


class Receiver:
    """A consumer with what it got."""

    def __init__(self, connection: Connection, queue: Queue = QUEUE, prefetch: int = 0, **options: Any) -> None:
        self.connection = connection
        self.got: list[Any] = []
        self.messages: list[Any] = []
        self.channel = connection.channel()
        self.consumer = Consumer(self.channel, [queue], callbacks=[self._take], **options)
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def _take(self, body: object, message: object) -> None:
        self.got.append(body)
        self.messages.append(message)

    def until(self, count: int) -> list[Any]:
        while len(self.got) < count:
            self.connection.drain_events(timeout=TIMEOUT_S)
        return self.got

    def no_more(self) -> bool:
        try:
            self.connection.drain_events(timeout=0.3)
        except TimeoutError:
            return True
        return False


def test_acknowledged_messages_are_done_and_the_next_consumer_gets_the_others(connect, rocketmq) -> None:
    first = connect()
    send(first, *range(10))
    receiver = Receiver(first)
    assert sorted(receiver.until(10)) == list(range(10))
    for message in receiver.messages:
        if message.payload % 2:
            message.ack()
    first.release()
    assert sorted(Receiver(connect()).until(5))[:1] == [0]
    (stored, *_) = rocketmq.messages("jobs%2Eurgent")
    assert stored.body.endswith(b"\n0")


def test_an_unreadable_body_does_not_stop_a_worker(connect, rocketmq, caplog) -> None:
    send_unreadable(rocketmq, "jobs%2Eurgent")
    connection = connect()
    send(connection, *range(5))
    receiver = Receiver(connection)
    assert sorted(receiver.until(5)) == list(range(5))
    assert "is not a message of Kombu, and is delivered again later" in caplog.text


def test_rejected_messages_are_dropped_or_redelivered(connect) -> None:
    connection = connect()
    send(connection, "drop", "again")
    receiver = Receiver(connection)
    receiver.until(2)
    for message in receiver.messages[:2]:
        message.reject(requeue=message.payload == "again")
    assert receiver.until(3)[2] == "again"
    receiver.messages[2].ack()
    assert receiver.no_more()


def test_no_more_is_taken_than_the_prefetch_count(connect) -> None:
    connection = connect()
    send(connection, *range(10))
    receiver = Receiver(connection, prefetch=3)
    receiver.until(3)
    assert receiver.no_more()
    receiver.messages[0].ack()
    receiver.until(4)
    assert receiver.no_more()


def test_without_acknowledgements_nothing_is_redelivered(connect) -> None:
    connection = connect()
    send(connection, *range(5))
    assert sorted(Receiver(connection, no_ack=True).until(5)) == list(range(5))
    connection.release()
    again = connect()
    send(again, "last")
    assert Receiver(again, no_ack=True).until(1) == ["last"]


def test_what_takes_too_long_is_given_out_again(connect, rocketmq) -> None:
    connection = connect(visibility_timeout=0.2)
    send(connection, "slow")
    receiver = Receiver(connection)
    with rocketmq.clock.fast_forward():
        receiver.until(2)
    first, second = receiver.messages
    assert (first.delivery_info["redelivered"], second.delivery_info["redelivered"]) == (False, True)
    second.ack()
    first.ack()  # too late, and no error


def test_a_cancelled_consumer_gives_its_queues_to_others(connect) -> None:
    one, other = connect(), connect()
    receiver = Receiver(one)
    send(one, "first")
    receiver.until(1)
    receiver.consumer.cancel()
    receiver.messages[0].ack()  # now the group is left
    send(one, *range(8))
    assert sorted(Receiver(other).until(8)) == list(range(8))


@pytest.mark.parametrize(
    ("kind", "key", "sent", "found"),
    [
        ("fanout", "", ["a", "b.c"], ["a", "b.c"]),
        ("topic", "task.#", ["task.done", "worker.up", "task.a.b"], ["task.done", "task.a.b"]),
        ("direct", "me", ["you", "me"], ["me"]),
    ],
)
def test_each_connection_reads_an_exchange_for_itself(kind, key, sent, found, connect) -> None:
    exchange = Exchange("news", type=kind, durable=False)
    readers = [
        Receiver(connect(), Queue(f"reader{number}", exchange, routing_key=key, auto_delete=True, durable=False))
        for number in range(2)
    ]
    with connect().channel() as channel:
        producer = Producer(channel)
        for text in sent:
            producer.publish(text, exchange=exchange, routing_key=text, declare=[exchange])
    for reader in readers:
        assert reader.until(len(found)) == found
        assert reader.no_more()


def test_replies_are_kept_while_no_connection_reads_them(connect) -> None:
    """As the results of Celery's tasks: declared where they are sent, read where they are asked for, perhaps much later."""
    replies = Queue("replies", Exchange(""), routing_key="replies", auto_delete=True, durable=False)

    def reply(text: str) -> None:
        with connect().channel() as channel:
            Producer(channel).publish(text, exchange="", routing_key="replies", delivery_mode="transient")

    connect().channel().queue_declare("replies", auto_delete=True, durable=False)
    reply("first")
    reader = Receiver(connect(clock=lambda: wall_ms() + 3_600_000), replies)
    assert reader.until(1) == ["first"]
    reader.connection.release()
    reply("second")
    reader = Receiver(connect(clock=lambda: wall_ms() + 7_200_000), replies)
    assert reader.until(1) == ["second"]
    assert reader.no_more()
    reader.channel.queue_delete("replies")
    reply("third")
    assert reader.no_more()


def test_workers_share_what_a_durable_queue_gets_of_a_topic_exchange(connect) -> None:
    queue = Queue("all-tasks", Exchange("tasks", type="topic"), routing_key="task.#")
    connection = connect()
    with connection.channel() as channel:
        producer = Producer(channel)
        for key in ("task.a", "task.b.c"):
            producer.publish(key, exchange=queue.exchange, routing_key=key, declare=[queue])
    receiver = Receiver(connection, queue)
    assert sorted(receiver.until(2)) == ["task.a", "task.b.c"]


@pytest.mark.parametrize("days", [0.0002, 0.21, 40])
def test_a_task_is_delivered_when_it_is_due(days, connect, rocketmq) -> None:
    def now() -> datetime:
        return rocketmq.clock.now()

    connection = connect(clock=lambda: int(now().timestamp() * 1000))
    due = now() + timedelta(days=days)
    send(connection, "due", headers={"eta": due.isoformat(), "task": "jobs.add", "id": "7"})
    receiver = Receiver(connection)
    with rocketmq.clock.fast_forward():
        receiver.until(1)
    # The rest of the time, up to 10 s, it waits in the worker.
    assert now() >= due - timedelta(seconds=10)
    assert {(each.tags, *each.keys) for each in rocketmq.messages("jobs%2Eurgent")} == {("jobs.add", "7")}


def test_what_is_no_message_of_kombu_does_not_stop_a_worker(connect, rocketmq, caplog) -> None:
    connection = connect()
    send(connection, "good")
    rocketmq.send("jobs%2Eurgent", b"garbage")
    receiver = Receiver(connection)
    assert receiver.until(1) == ["good"]
    send(connection, "better")
    assert receiver.until(2)[1] == "better"
    give_up_at = time.monotonic() + TIMEOUT_S
    while "not a message of Kombu" not in caplog.text:
        assert time.monotonic() < give_up_at
        receiver.no_more()


def test_a_queue_can_be_purged(connect) -> None:
    connection = connect()
    send(connection, *range(5))
    with connection.channel() as channel:
        bound = QUEUE(channel)
        bound.declare()
        assert bound.purge() == 5
    send(connection, "after")
    assert Receiver(connection).until(1) == ["after"]


def test_a_queue_of_a_virtual_host_can_be_purged_while_a_worker_is_there(rocketmq) -> None:
    options = {"send_timeout": 60, "queues": 1}
    with Connection(f"rocketmq://{rocketmq.namesrv_addr}/host", transport_options=options) as connection:
        send(connection, "one")
        receiver = Receiver(connection)
        receiver.until(1)
        receiver.messages[0].ack()
        with connection.channel() as channel:
            QUEUE(channel).purge()
        send(connection, "after")
        assert receiver.until(2) == ["one", "after"]


def test_the_error_of_a_message_that_is_too_long_names_the_limit(connect) -> None:
    connection = connect()
    with pytest.raises(triomq.errors.MessageIllegal, match="more than 4194304"):
        send(connection, "x" * 5_000_000, retry=True)
    send(connection, "x" * (4 * 1024 * 1024 - 1000))
    assert len(Receiver(connection).until(1)[0]) == 4 * 1024 * 1024 - 1000


def test_no_name_server_is_an_error_that_kombu_tries_again() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with (
            Connection(f"rocketmq://{address}/", connect_timeout=0.1) as connection,
            pytest.raises(OperationalError, match=address),
        ):
            connection.ensure_connection(max_retries=1, interval_start=0.01)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_use_its_parents_connection(connect) -> None:
    connection = connect()
    send(connection, "one")
    receiver = Receiver(connection)
    receiver.until(1)
    child = os.fork()
    if not child:
        code = 1
        try:
            connection.collect()
            own = connect()
            send(own, "of the child")
            own.release()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert receiver.until(2)[1] == "of the child"
    for message in receiver.messages:
        message.ack()
