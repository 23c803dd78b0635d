"""The queues of a process, as connections of Kombu declare and bind them."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from kombu import Connection

import triomq_adapters.kombu  # noqa: F401 - makes the transport known
from triomq_adapters.kombu.exchange_reader import ExchangeReader, Matches
from triomq_adapters.kombu.transient_queues import TransientQueue

NOW = 1_800_000_000_000


def transport_of(connection: Connection) -> Any:
    """The transport of a connection, over a client that finds each topic."""
    transport: Any = connection.transport
    transport._client = SimpleNamespace(admin=SimpleNamespace(route=lambda _topic: None))
    transport.sender = SimpleNamespace(clock=lambda: NOW)
    return transport


def test_a_queue_that_is_declared_again_is_bound_once(monkeypatch) -> None:
    """Celery declares the queue of its results for each task that it sends."""
    bound: list[str] = []

    class Reader(ExchangeReader):
        def bind(self, name: str, queue: TransientQueue, matches: Matches) -> None:
            bound.append(name)
            super().bind(name, queue, matches)

    monkeypatch.setattr("triomq_adapters.kombu.transport.ExchangeReader", Reader)
    transport = transport_of(Connection("rocketmq://127.0.0.1:9876/"))
    channel = transport.create_channel(transport)
    for _ in range(3):
        channel.queue_declare("replies", auto_delete=True)
    assert bound == ["replies"]
    channel.queue_delete("replies")
    channel.queue_declare("replies", auto_delete=True)
    assert bound == ["replies"] * 2


def test_connections_that_use_different_urls_of_a_list_share_their_queues() -> None:
    """A connection that is made after the first name server failed uses the second one."""
    urls = "rocketmq://first:9876/;rocketmq://second:9876/"
    before, after = Connection(urls), Connection(urls)
    after.switch("rocketmq://second:9876/")
    assert (before.hostname, after.hostname) == ("first", "second")
    queue = transport_of(before).declare_transient("replies")
    assert transport_of(after).declare_transient("replies") is queue
    others = ("rocketmq://first:9876/", "rocketmq://second:9876/", "rocketmq://second:9876/shop")
    found = [transport_of(Connection(url)).declare_transient("replies") for url in others]
    assert len({id(each) for each in (queue, *found)}) == 4


def test_a_connection_that_is_dropped_is_not_kept() -> None:
    """Celery opens one in each thread that asks for a result, and closes none: its client ends with it."""
    transport = transport_of(Connection("rocketmq://127.0.0.1:9876/"))
    channel = transport.create_channel(transport)
    channel.queue_declare("replies", auto_delete=True)
    channel.basic_consume("replies", True, lambda _message: None, "tag")
    dropped = weakref.ref(transport)
    assert channel.qos is not None
    del transport, channel
    gc.collect()
    assert dropped() is None


def test_a_rejected_message_is_given_out_again_if_it_is_to_be() -> None:
    transport = transport_of(Connection("rocketmq://127.0.0.1:9876/"))
    channel = transport.create_channel(transport)
    channel.queue_declare("replies", auto_delete=True)
    properties = {"delivery_info": {"exchange": "", "routing_key": "replies"}}
    queue = transport.declare_transient("replies")
    waiting = queue.waiting
    for number in range(4):
        queue.put({"body": str(number), "headers": {}, "properties": properties}, 100)
    got = [channel.basic_get("replies") for _ in range(4)]
    assert [message.body for message in got] == [b"0", b"1", b"2", b"3"]
    assert not any("redelivered" in message.delivery_info for message in got)
    got[0].ack()
    got[1].reject()
    got[3].requeue()
    again = channel.basic_get("replies")
    assert again.body == b"3"
    assert again.delivery_info["redelivered"]
    again.ack()
    channel.basic_reject("unknown", requeue=True)
    channel.basic_recover(requeue=True)
    assert [message["body"] for message, _ in waiting] == ["2"], "the only one that is not acknowledged"
    left = channel.basic_get("replies")
    channel.queue_delete("replies")
    left.requeue()
    assert not waiting


def test_names_of_deleted_queues_are_limited(monkeypatch) -> None:
    monkeypatch.setattr("triomq_adapters.kombu.transport._DELETED_MAX", 10)
    transport = transport_of(Connection("rocketmq://127.0.0.1:9876/"))
    channel = transport.create_channel(transport)
    channel.queue_declare("kept", auto_delete=True)
    for number in range(100):
        channel.queue_declare(str(number), auto_delete=True)
        channel.queue_delete(str(number))
    assert transport.transient == {"kept", *map(str, range(90, 100))}
    channel.queue_declare("95", auto_delete=True)
    for number in range(100, 120):
        channel.queue_declare(str(number), auto_delete=True)
        channel.queue_delete(str(number))
    assert transport.transient == {"kept", "95", *map(str, range(110, 120))}, "it was declared again"


def test_a_name_is_free_for_a_shared_queue_after_the_transient_one_is_deleted() -> None:
    transport = transport_of(Connection("rocketmq://127.0.0.1:9876/"))
    channel = transport.create_channel(transport)
    channel.queue_declare("jobs", auto_delete=True)
    channel.queue_delete("jobs")
    assert "jobs" in transport.transient, "a consumer may still ask for it, and must not create its topic"
    transport.declare("jobs")
    assert "jobs" not in transport.transient
