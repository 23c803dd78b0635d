"""Uses of the public names that mypy has to accept: it is the test, nothing here is run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, assert_type

import trio

import pyspark_rocketmq
import triomq
import triomq_server.cluster
import triomq_testing
from triomq import plugins
from triomq._aio.calls import async_method
from triomq._blocking.calls import blocking_method
from triomq._made_methods import MadeMethod

QUEUE = triomq.MessageQueue("orders", "broker-a", 0)

# These lines are errors for a type checker, or the comments are: a package that imports some names on their first use must
# not seem to have every name.
MISSING = (
    triomq.Admin,  # type: ignore[attr-defined]
    triomq_server.serve,  # type: ignore[attr-defined]
    triomq_server.cluster.serve,  # type: ignore[attr-defined]
    triomq_testing.Broker,  # type: ignore[attr-defined]
    pyspark_rocketmq.Source,  # type: ignore[attr-defined]
)

ALLOCATE: list[plugins.AllocateStrategy] = [
    plugins.Average(),
    plugins.AverageByCircle(),
    plugins.ConsistentHash(10),
    plugins.ByConfig([QUEUE]),
    plugins.ByConfig(each for each in (QUEUE,)),
    plugins.MachineRoom(["east"]),
    plugins.MachineRoom({"east", "west"}),
    plugins.Sticky(),
]
NAME_SERVERS: list[plugins.NameServers] = [
    "a:9876",
    ["a:9876"],
    plugins.StaticNameServers("a:9876"),
    plugins.CallableNameServers(lambda: ["a:9876"]),
    plugins.DnsNameServers("a"),
    plugins.HttpNameServers("a"),
]
COMPRESSORS: list[plugins.Compressor] = [
    plugins.ZlibCompressor(),
    plugins.Lz4Compressor(),
    plugins.ZstdCompressor(),
]
DIALERS: list[plugins.Dialer] = [plugins.dial_tcp, plugins.tls_dialer()]


class Dial:
    async def __call__(self, address: str) -> trio.SocketStream:
        return await trio.open_tcp_stream(address, 1)


class Policy:
    attempts = 3

    def retries(self, error: triomq.MQError) -> bool:
        return error.retriable

    def retries_result(self, result: triomq.SendResult) -> bool:
        return result.status is not triomq.SendStatus.SEND_OK

    def attempt_timeout_s(self, left_s: float, attempts_left: int, *, elsewhere: bool) -> float:
        return left_s if elsewhere else left_s / attempts_left

    def pause_s(self, attempt: int, chance: float) -> float:
        return attempt * chance


class Faults:
    def choose(
        self, queues: Sequence[triomq.MessageQueue], last_broker: str | None, count: Callable[[], int], now: float
    ) -> triomq.MessageQueue:
        return queues[count() % len(queues)]

    def update(self, broker_name: str, latency_s: float, now: float, *, isolate: bool) -> None:
        """Nothing to learn."""


class Store:
    async def read(self, queue: triomq.MessageQueue) -> int | None:
        return queue.queue_id

    async def commit(self, offsets: Mapping[triomq.MessageQueue, int]) -> None:
        """Nothing is kept."""


def by_customer(queues: Sequence[triomq.MessageQueue], message: triomq.Message, customer: str) -> triomq.MessageQueue:
    return queues[len(customer) % len(queues)]


async def on_assigned(queues: Sequence[triomq.MessageQueue]) -> None:
    """Waits for nothing."""


async def handle(message: triomq.ReceivedMessage) -> None:
    """Handles nothing."""


async def use(client: triomq.Client, blocking: triomq.blocking.Client) -> None:
    message = triomq.Message("orders", b"one")
    producer = client.producer("shop", retry=Policy(), faults=Faults())
    result: triomq.SendResult = await producer.send(message, selector=by_customer, arg="ada")
    result = blocking.producer("shop").send(message, selector=by_customer, arg="ada")
    await producer.send(message, lambda stored, error: print(stored or error), queue=result.queue)
    callbacks = triomq.ConsumerCallbacks(on_assigned=on_assigned, on_revoked=on_assigned)
    for allocate in ALLOCATE:
        async with client.push_consumer("g", allocate=allocate, callbacks=callbacks, offset_store=Store()) as consumer:
            await consumer.run(handle)


def clients() -> list[object]:
    return [triomq.open_client(each, dial=Dial()) for each in NAME_SERVERS]


# Type checkers other than mypy call an attribute of a class without `self` if its type is only `Callable`.
assert_type(async_method(triomq.Producer.flush), MadeMethod[[], Coroutine[Any, Any, None]])
assert_type(blocking_method(triomq.Producer.flush), MadeMethod[[], None])


async def use_in_asyncio(client: triomq.aio.Client, queue: triomq.MessageQueue) -> None:
    message = triomq.Message("orders", b"one")
    producer = client.producer("shop", linger_s=None)
    assert_type(producer, triomq.aio.Producer)
    assert_type(await producer.send_batch([message]), triomq.SendResult)
    producer.send_batch(message, queue=queue)  # type: ignore[arg-type, unused-coroutine]
    pulls = client.pull_consumer("g")
    assert_type(await pulls.pull(queue, 0, block=False), triomq.PullResult)
    assert_type(pulls.positions(), Mapping[triomq.MessageQueue, int])
    async with client.push_consumer("g") as consumer:
        assert_type(await consumer.subscribe("orders"), None)
        async for delivery in consumer:
            assert_type(delivery.message, triomq.ReceivedMessage)


def use_blocking(client: triomq.blocking.Client, queue: triomq.MessageQueue) -> None:
    producer = client.producer("shop", linger_s=None)
    assert_type(producer, triomq.blocking.Producer)
    assert_type(producer.send_batch([triomq.Message("orders", b"one")]), triomq.SendResult)
    assert_type(client.pull_consumer("g").pull(queue, 0, block=False), triomq.PullResult)
    assert_type(client.admin.topics(), list[str])
    client.admin.create_topic()  # type: ignore[call-arg]


async def use_delivery(delivery: triomq.Delivery) -> None:
    assert_type(delivery.message, triomq.ReceivedMessage)
