"""Uses of the public names that mypy has to accept: it is the test, nothing here is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

import pyspark_rocketmq
import triomq
import triomq_server.cluster
import triomq_testing
from triomq import plugins

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
