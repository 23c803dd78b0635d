"""What the queues of Kombu send again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest
import trio

import triomq
from triomq_adapters.delays import DUE_PROPERTY
from triomq_adapters.envelopes import pack
from triomq_adapters.kombu.exchange_reader import ExchangeReader
from triomq_adapters.kombu.sender import Sender
from triomq_adapters.kombu.transient_queues import TransientQueue, TransientQueues
from triomq_adapters.kombu.work_queue import WorkQueue

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("due", "level"), [(None, 0), ("soon", 0), ("²", 0), ("1" * 5000, 0), (str(NOW), 0), (str(NOW + 60_000), 5)]
)
def test_a_message_with_any_time_is_sent_again(due: str | None, level: int) -> None:
    """Any client can send to the topic of a queue."""
    sent: list[triomq.Message] = []
    producer: Any = SimpleNamespace(send=sent.append)
    properties = {} if due is None else {DUE_PROPERTY: due}
    received: Any = SimpleNamespace(body=b"b", tags="t", keys=["k"], properties=properties)
    Sender(producer, lambda: NOW).send_on("T", received)
    assert [(each.body, each.tags, each.keys, each.delay_level) for each in sent] == [(b"b", "t", "k", level)]


class Refused:
    """A consumer that cannot subscribe, and whether it is in its group."""

    is_member = False

    def __enter__(self) -> Self:
        self.is_member = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_member = False

    def subscribe(self, _topic: str) -> None:
        raise triomq.errors.NoNameServer("no name server answers")


@pytest.mark.parametrize("kind", ["work", "exchange"])
def test_a_consumer_that_cannot_subscribe_leaves_its_group(kind: str) -> None:
    """Or the next attempt would find the client in the group already."""
    consumer: Any = Refused()
    client: Any = SimpleNamespace(push_consumer=lambda *_, **__: consumer)
    sender: Any = None
    make: dict[str, Callable[[], object]] = {
        "work": lambda: WorkQueue(consumer, "T", sender),
        "exchange": lambda: ExchangeReader(client, "T", replies=False),
    }
    with pytest.raises(triomq.errors.NoNameServer):
        make[kind]()
    assert not consumer.is_member


PLACE = triomq.MessageQueue("exchange-", "a", 0)


def received(offset: int, stored_ms: int, place: triomq.MessageQueue = PLACE) -> Any:
    return SimpleNamespace(queue=place, queue_offset=offset, stored_ms=stored_ms)


def test_each_message_is_new_once() -> None:
    queue = TransientQueue(NOW)
    assert [queue.is_new(received(offset, NOW + offset)) for offset in (3, 4, 4, 3, 6)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert queue.next_offset(PLACE) == 7


def test_a_topic_that_was_created_again_has_new_messages() -> None:
    queue = TransientQueue(NOW)
    assert queue.is_new(received(90, NOW))
    assert queue.is_new(received(0, NOW + 1))
    assert queue.is_new(received(1, NOW + 1))


def test_a_message_read_again_is_not_new_if_the_clock_of_its_broker_was_set_back() -> None:
    queue = TransientQueue(NOW)
    messages = [received(5, NOW + 10), received(6, NOW + 5), received(7, NOW + 6)]
    assert [queue.is_new(each) for each in messages * 2] == [True] * 3 + [False] * 3


class HookedPlace:
    """A place of messages that calls a function when it is looked up for the second time."""

    lookups = 0
    on_second: Callable[[], None]

    def __hash__(self) -> int:
        self.lookups += 1
        if self.lookups == 2:
            self.on_second()
        return id(self)


def test_a_message_is_new_for_one_of_two_threads() -> None:
    """The other one asks after this one has looked up what was read, and before it has noted the message."""
    queue = TransientQueue(NOW)
    answers: list[bool] = []
    place: Any = HookedPlace()
    other = threading.Thread(target=lambda: answers.append(queue.is_new(received(0, NOW, place))))

    def ask_in_another_thread() -> None:
        other.start()
        other.join(0.2)

    place.on_second = ask_in_another_thread
    answers.append(queue.is_new(received(0, NOW, place)))
    other.join()
    assert sorted(answers) == [False, True]


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    queues = TransientQueues()
    queue = queues.declare(("r",), NOW)
    with queues._lock, queue._lock:
        queues._unlock()  # as after a fork
        assert not queues._lock.locked()
        assert not queue._lock.locked()


def test_places_are_read_separately() -> None:
    queue, other = TransientQueue(NOW), triomq.MessageQueue("exchange-", "b", 0)
    assert queue.is_new(received(5, NOW))
    assert queue.next_offset(other) is None
    assert queue.is_new(received(2, NOW, other))


def test_a_queue_outlives_its_connections_until_it_is_deleted() -> None:
    queues = TransientQueues()
    first = queues.declare(("a", "", "replies"), NOW)
    assert queues.declare(("a", "", "replies"), NOW + 60_000) is first
    assert queues.declare(("b", "", "replies"), NOW + 60_000) is not first
    queues.delete(("a", "", "replies"))
    assert queues.declare(("a", "", "replies"), NOW + 60_000).since_ms == NOW + 60_000


def test_the_queues_that_were_used_last_are_kept() -> None:
    queues = TransientQueues()
    for number in range(1500):
        queues.declare((str(number),), NOW + number)
        queues.declare(("used",), NOW)
    assert queues.declare(("used",), 0).declarations == 1501
    assert queues.declare(("0",), 0).since_ms == 0


class Readers:
    """A client that counts its consumers, which begin where they are told and get what is in `log`."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.starts: list[int] = []
        self.open = 0
        self.waits: list[float] = []
        self.late = False
        """Whether messages come only if they are waited for."""
        self.on_done: Callable[[], None] = lambda: None

    def push_consumer(self, _group: str, *, start_from: int, offset_store: Any, **_: object) -> Any:
        self.starts.append(start_from)
        self.open += 1
        offset = trio.run(offset_store.read, PLACE)
        left = [
            each
            for each in self.log
            if (each.stored_ms >= start_from if offset is None else each.queue_offset >= offset)
        ]

        def poll(wait_s: float = 0.0) -> Any:
            self.waits.append(wait_s)
            if self.late and not wait_s:
                return None
            return SimpleNamespace(message=left.pop(0), done=lambda: self.on_done()) if left else None

        def close() -> None:
            self.open -= 1

        consumer = SimpleNamespace(subscribe=lambda _topic: None, poll=poll, close=close)
        return Entered(consumer)


class Entered(SimpleNamespace):
    def __init__(self, consumer: SimpleNamespace) -> None:
        super().__init__(**vars(consumer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def reply(offset: int, stored_ms: int, to: str) -> Any:
    body = pack({"body": "", "headers": {}, "properties": {"delivery_info": {"routing_key": to}}})
    return SimpleNamespace(queue=PLACE, queue_offset=offset, stored_ms=stored_ms, body=body)


def read_all(reader: ExchangeReader, name: str) -> int:
    count = 0
    while reader.take(name, lambda: "tag") is not None:
        count += 1
    return count


def test_what_came_since_the_first_declaration_is_read_later() -> None:
    """Celery declares the queue of its results where it sends, and reads it once a result is asked for."""
    client: Any = Readers()
    queues = TransientQueues()
    sending = ExchangeReader(client, "exchange-", replies=True)
    sending.bind("r", queues.declare(("r",), NOW), "r".__eq__)
    assert client.open == 0, "who only sends reads nothing"
    client.log = [
        reply(0, NOW - 60_000, "r"),
        reply(1, NOW + 10, "r"),
        reply(2, NOW + 20, "other"),
        reply(3, NOW + 30, "r"),
    ]
    reading = ExchangeReader(client, "exchange-", replies=True)
    reading.bind("r", queues.declare(("r",), NOW + 600_000), "r".__eq__)
    assert read_all(reading, "r") == 2
    assert client.starts == [NOW - 5_000]
    reading.close()
    client.log.append(reply(4, NOW + 600_000, "r"))
    again = ExchangeReader(client, "exchange-", replies=True)
    again.bind("r", queues.declare(("r",), NOW + 900_000), "r".__eq__)
    assert read_all(again, "r") == 1, "of a new connection, only what the last one has not read"


def test_a_queue_that_is_bound_later_gets_what_came_before() -> None:
    client: Any = Readers()
    queues = TransientQueues()
    queues.declare(("old",), NOW)
    client.log = [reply(0, NOW + 10, "old"), reply(1, NOW + 20, "first")]
    reader = ExchangeReader(client, "exchange-", replies=True)
    reader.bind("first", queues.declare(("first",), NOW), "first".__eq__)
    assert read_all(reader, "first") == 1
    reader.bind("old", queues.declare(("old",), NOW + 30), "old".__eq__)
    assert (read_all(reader, "old"), read_all(reader, "first")) == (1, 0)
    reader.bind("new", queues.declare(("new",), NOW + 40), "new".__eq__)
    assert (client.open, len(client.starts)) == (1, 2), "a new queue needs no new consumer"


def test_threads_that_read_one_exchange_lose_nothing() -> None:
    """One takes a message from the consumer, and another one takes the next before the first one is distributed."""
    client: Any = Readers()
    reader = ExchangeReader(client, "exchange-", replies=True)
    reader.bind("r", TransientQueue(NOW), "r".__eq__)
    client.log = [reply(offset, NOW + offset, "r") for offset in range(3)]
    taken: list[Any] = []
    other = threading.Thread(target=lambda: taken.append(reader.take("r", lambda: "tag")))

    def let_the_other_read() -> None:
        client.on_done = lambda: None
        other.start()
        other.join(0.2)

    client.on_done = let_the_other_read
    taken.append(reader.take("r", lambda: "tag"))
    other.join()
    assert None not in taken
    assert len(taken) + read_all(reader, "r") == 3


def test_what_was_read_before_a_queue_was_declared_is_not_read_for_it() -> None:
    """Celery has a queue of results for each thread: each new one would go through the whole history."""
    client: Any = Readers()
    queues = TransientQueues()
    reader = ExchangeReader(client, "exchange-", replies=True)
    reader.bind("old", queues.declare(("a", "old"), NOW), "old".__eq__)
    client.log = [*(reply(offset, NOW + offset, "other") for offset in range(50)), reply(50, NOW + 50, "old")]
    assert read_all(reader, "old") == 1
    client.waits.clear()
    queues.declare(("a", "new"), NOW + 60)
    client.log.append(reply(51, NOW + 70, "new"))
    reader.bind("new", queues.declare(("a", "new"), NOW + 80), "new".__eq__)
    assert (read_all(reader, "new"), len(client.waits)) == (1, 2)
    assert queues.declare(("b", "new"), NOW).next_offset(PLACE) is None, "another cluster has other messages"


def test_a_get_waits_for_what_came_before_the_first_one() -> None:
    """Celery asks for the state of a task with a get: a result that has been there for long must be found."""
    client: Any = Readers()
    client.late = True
    client.log = [reply(0, NOW + 10, "r"), reply(1, NOW + 20, "other")]
    reader = ExchangeReader(client, "exchange-", replies=True)
    reader.bind("r", TransientQueue(NOW), "r".__eq__)
    assert reader.take("r", lambda: "tag") is None, "a loop that asks again does not wait"
    assert reader.take("r", lambda: "tag", 1.0) is not None
    assert reader.take("r", lambda: "tag", 1.0) is None
    client.waits.clear()
    assert reader.take("r", lambda: "tag", 1.0) is None
    assert client.waits == [0], "what was there has been read"


def test_the_caller_sees_its_timeout_while_messages_of_others_are_read(monkeypatch) -> None:
    """A process that sends tasks all day, and asks for one result, reads what all others got on that day."""
    clock = itertools.count(step=0.001)
    monkeypatch.setattr("triomq_adapters.kombu.exchange_reader.time", SimpleNamespace(monotonic=lambda: next(clock)))
    client: Any = Readers()
    client.log = [*(reply(offset, NOW + offset, "other") for offset in range(1000)), reply(1000, NOW + 1000, "r")]
    reader = ExchangeReader(client, "exchange-", replies=True)
    reader.bind("r", TransientQueue(NOW), "r".__eq__)
    attempts = 1
    while reader.take("r", lambda: "tag") is None:
        attempts += 1
    assert attempts > 3


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 10**9), (10**9, 250)])
def test_a_queue_that_is_not_read_keeps_its_newest_messages(monkeypatch, caplog, most, most_bytes) -> None:
    """Another queue of the exchange is read, and what arrives is distributed."""
    monkeypatch.setattr("triomq_adapters.kombu.transient_queues.WAITING_MAX", most)
    monkeypatch.setattr("triomq_adapters.kombu.transient_queues.WAITING_BYTES_MAX", most_bytes)
    client: Any = Readers()
    client.log = [reply(offset, NOW + offset, "left") for offset in range(10)]
    assert 250 // 4 < len(client.log[0].body) <= 250 // 3
    client.log.append(reply(10, NOW + 10, "read"))
    reader = ExchangeReader(client, "exchange-", replies=True)
    left = TransientQueue(NOW)
    reader.bind("left", left, "left".__eq__)
    reader.bind("read", TransientQueue(NOW), "read".__eq__)
    assert read_all(reader, "read") == 1
    assert len(left.waiting) == 3
    assert caplog.text.count("the transient queue 'left' is not read") == 1
    assert read_all(reader, "left") == 3
    client.log.extend(reply(offset, NOW + offset, "left") for offset in range(11, 14))
    reader.close()
    assert read_all(reader, "left") == 3, "it has room again"


def test_a_message_longer_than_a_queue_may_hold_is_kept_alone(monkeypatch) -> None:
    monkeypatch.setattr("triomq_adapters.kombu.transient_queues.WAITING_BYTES_MAX", 10)
    queue = TransientQueue(NOW)
    assert not queue.put({"body": "1"}, 100)
    assert queue.put({"body": "2"}, 100)
    assert not queue.put({"body": "3"}, 100), "reported once"
    assert queue.take() == {"body": "3"}
    queue.put_back({"body": "3"})
    assert (queue.take(), queue.take()) == ({"body": "3"}, None)
