"""triomq's SDK as a load: the counterpart of `drivers/java/LoadDriver.java`.

One process, with one JSON object per line in and out.

It uses the SDK as an application would; only the communication with the benchmark is specific. Run as
`python -m triomq_benchmarks.drivers.sdk_send_driver`.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import attrs
import msgspec
import trio

import triomq
from triomq_benchmarks.figures.latency import summarise

PULL_MAX_NUMS = 32
GROUP = "bench_producer"
CONSUMER_GROUP = "bench_consumer"
SEND_TIMEOUT_S = 10.0
ROUTE_TRIES = 50
ROUTE_PAUSE_S = 0.1


class Command(msgspec.Struct, rename="camel", kw_only=True):
    """A command of the benchmark; the fields are those of `Scenario.command` and `Load.run`."""

    op: str
    name_servers: str
    topic: str
    links: int
    in_flight: int
    mode: str
    batch: int
    body_bytes: int
    count: int
    max_seconds: float


@attrs.define
class Tally:
    """The progress of a run.

    Attributes:
        left: number of requests that may still be started.
        most_seconds: no request starts later than this after the first.
        deadline: the end of that time on `time.perf_counter_ns`, once the run has begun.
        seconds: duration from first request to last answer.
        cpu_s: CPU seconds of this process in that time, all threads.
        nanoseconds: duration of each answered request.
    """

    left: int
    most_seconds: float
    deadline: int = 0
    messages: int = 0
    body_bytes: int = 0
    failures: int = 0
    first_failure: str | None = None
    seconds: float = 0.0
    cpu_s: float = 0.0
    nanoseconds: list[int] = attrs.field(factory=list)

    def more(self) -> bool:
        """Whether another request may start; counts it."""
        if self.left <= 0 or time.perf_counter_ns() > self.deadline:
            return False
        self.left -= 1
        return True

    def failed(self, error: BaseException) -> None:
        """Record a failure."""
        self.failures += 1
        if self.first_failure is None:
            self.first_failure = repr(error)


class Clients:
    """Clients stay open between commands, as in a long-lived application; each has links of its own."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._producers: dict[tuple[str, int], triomq.Producer] = {}
        self._consumers: dict[str, triomq.PullConsumer] = {}

    async def producers(self, name_servers: str, count: int) -> list[triomq.Producer]:
        """`count` producers, each with a separate link."""
        for number in range(count):
            if (name_servers, number) not in self._producers:
                client = await self._stack.enter_async_context(triomq.open_client(name_servers))
                self._producers[name_servers, number] = await self._stack.enter_async_context(
                    client.producer(GROUP, compress_from_bytes=sys.maxsize, send_timeout_s=SEND_TIMEOUT_S)
                )
        return [self._producers[name_servers, number] for number in range(count)]

    async def consumer(self, name_servers: str) -> triomq.PullConsumer:
        """The one pull consumer."""
        if name_servers not in self._consumers:
            client = await self._stack.enter_async_context(triomq.open_client(name_servers))
            self._consumers[name_servers] = await self._stack.enter_async_context(client.pull_consumer(CONSUMER_GROUP))
        return self._consumers[name_servers]


class PendingSend:
    """One callback send in flight."""

    __slots__ = ("free", "started", "tally")

    def __init__(self, tally: Tally, free: trio.Semaphore) -> None:
        self.tally = tally
        self.free = free
        self.started = time.perf_counter_ns()

    def on_success(self, result: triomq.SendResult) -> None:  # noqa: ARG002 - the interface of SendCallback
        """Record that the message was stored."""
        tally = self.tally
        tally.nanoseconds.append(time.perf_counter_ns() - self.started)
        tally.messages += 1
        self.free.release()

    def on_exception(self, error: BaseException) -> None:
        """Record that the message was not stored."""
        self.tally.failed(error)
        self.free.release()


async def _send_sync(producer: triomq.Producer, message: triomq.Message, tally: Tally) -> None:
    while tally.more():
        started = time.perf_counter_ns()
        try:
            await producer.send(message)
        except triomq.MQError as error:
            tally.failed(error)
        else:
            tally.nanoseconds.append(time.perf_counter_ns() - started)
            tally.messages += 1


async def _send_batches(producer: triomq.Producer, messages: list[triomq.Message], tally: Tally) -> None:
    while tally.more():
        started = time.perf_counter_ns()
        try:
            await producer.send_batch(messages)
        except triomq.MQError as error:
            tally.failed(error)
        else:
            tally.nanoseconds.append(time.perf_counter_ns() - started)
            tally.messages += len(messages)


async def _send_async(producer: triomq.Producer, message: triomq.Message, tally: Tally, in_flight: int) -> None:
    free = trio.Semaphore(in_flight)
    while tally.more():
        # `acquire` passes through the scheduler each time, which an application need not do either.
        try:
            free.acquire_nowait()
        except trio.WouldBlock:
            await free.acquire()
        await producer.send(message, PendingSend(tally, free))
    for _ in range(in_flight):
        await free.acquire()


async def _send(command: Command, clients: Clients) -> dict[str, object]:
    producers = await clients.producers(command.name_servers, command.links)
    message = triomq.Message(command.topic, bytes(ord("a") + at % 26 for at in range(command.body_bytes)), tags="bench")
    tally = Tally(left=command.count // command.batch, most_seconds=command.max_seconds)

    async def run(nursery: trio.Nursery) -> None:
        for producer in producers:
            if command.mode == "async":
                nursery.start_soon(_send_async, producer, message, tally, command.in_flight)
                continue
            for _ in range(command.in_flight):
                if command.batch > 1:
                    nursery.start_soon(_send_batches, producer, [message] * command.batch, tally)
                else:
                    nursery.start_soon(_send_sync, producer, message, tally)

    await _timed(run, tally)
    tally.body_bytes = tally.messages * command.body_bytes
    return _result(tally)


async def _drain(command: Command, clients: Clients) -> dict[str, object]:
    consumer = await clients.consumer(command.name_servers)
    queues = await _queues(consumer, command.topic)
    tally = Tally(left=command.count, most_seconds=command.max_seconds)

    async def run(nursery: trio.Nursery) -> None:
        for queue in queues:
            nursery.start_soon(_drain_queue, consumer, queue, tally)

    await _timed(run, tally)
    return _result(tally)


async def _queues(consumer: triomq.PullConsumer, topic: str) -> list[triomq.MessageQueue]:
    """The queues of a topic; one created by a send is registered with the name server after a delay."""
    for _ in range(ROUTE_TRIES):
        try:
            return await consumer.fetch_queues(topic)
        except triomq.RouteError:
            await trio.sleep(ROUTE_PAUSE_S)
    return await consumer.fetch_queues(topic)


async def _drain_queue(consumer: triomq.PullConsumer, queue: triomq.MessageQueue, tally: Tally) -> None:
    offset = 0
    while tally.left > 0 and time.perf_counter_ns() < tally.deadline:
        started = time.perf_counter_ns()
        try:
            pulled = await consumer.pull(queue, offset=offset, max_messages=PULL_MAX_NUMS, block=False)
        except triomq.MQError as error:
            tally.failed(error)
            return
        tally.nanoseconds.append(time.perf_counter_ns() - started)
        if not pulled.messages:
            return
        offset = pulled.next_offset
        # As in the Java driver: every body is accessed.
        tally.body_bytes += sum(len(message.body) for message in pulled.messages)
        tally.messages += len(pulled.messages)
        tally.left -= len(pulled.messages)


async def _timed(run: Callable[[trio.Nursery], Awaitable[None]], tally: Tally) -> None:
    gc.collect()
    # After that, which may take as long as a short sample on a busy machine.
    tally.deadline = time.perf_counter_ns() + int(tally.most_seconds * 1e9)
    cpu_before, before = time.process_time(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        await run(nursery)
    # Before the results are computed: only the load itself counts.
    tally.seconds, tally.cpu_s = time.perf_counter() - before, time.process_time() - cpu_before


def _result(tally: Tally) -> dict[str, object]:
    latency = summarise(tally.nanoseconds)
    return {
        "messages": tally.messages,
        "bytes": tally.body_bytes,
        "failures": tally.failures,
        "firstFailure": tally.first_failure,
        "seconds": tally.seconds,
        "cpuSeconds": tally.cpu_s,
        "p50Us": latency.p50_us,
        "p99Us": latency.p99_us,
    }


async def lines() -> AsyncIterator[bytes]:
    """Yield the lines of the input."""
    pending = b""
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as stdin:
        while data := await stdin.receive_some():
            *whole, pending = (pending + data).split(b"\n")
            for line in whole:
                yield line


async def main() -> None:
    """Answer commands until the input ends."""
    async with AsyncExitStack() as stack:
        clients = Clients(stack)
        async for line in lines():
            command = msgspec.json.decode(line, type=Command)
            try:
                answer = await (_drain if command.op == "drain" else _send)(command, clients)
            except triomq.MQError as error:
                answer = {"error": repr(error)}
            sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
