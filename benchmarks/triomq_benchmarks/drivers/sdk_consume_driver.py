"""triomq's consumers as a load: the counterpart of `drivers/java/ConsumeLoad.java`.

One process, with one JSON object per line in and out.

They read a filled topic from its beginning and access every body, as an application would. The driver also fills that
topic, and stalls a consumer whose memory is to be measured. Run as
`python -m triomq_benchmarks.drivers.sdk_consume_driver`.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import trio

import triomq
from triomq_benchmarks.drivers.sdk_send_driver import lines

POLL_S = 1.0
FILL_IN_FLIGHT = 512
FILL_BATCH = 200
STABLE_S = 1.0
"""A stalled consumer has reached its limit when its count has not changed for this time."""
LOOK_S = 0.05


class Command(msgspec.Struct, rename="camel", kw_only=True):
    """A command of the benchmark.

    Attributes:
        op: `fill`, `push`, `lite` or `stall`.
        count: messages to send, or to consume.
        body_bytes: body size of sent messages.
        queues: queues of a filled topic; with 0, the default number, with messages sent to them in turn. Otherwise
            messages are sent in batches.
        group: a new one for each sample.
        pull_batch: messages per pull.
        concurrency: handlers of a push consumer.
        max_seconds: time limit, after which the command fails.
        limits: limits of a stalled consumer; empty: the default.
    """

    op: str
    name_servers: str
    topic: str
    count: int
    body_bytes: int = 1024
    queues: int = 0
    group: str = ""
    pull_batch: int = 32
    concurrency: int = 20
    max_seconds: float = 60.0
    limits: dict[str, int] = {}


class TooSlow(Exception):  # noqa: N818 - named after the state
    """The messages were not received in time."""


class Tally:
    """Consumed messages, timed from the first message to the last wanted one.

    Args:
        wanted: number of messages.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.messages = 0
        self.bytes = 0
        self.begun = False
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.done = False

    def begin(self) -> None:
        """Record the first message."""
        self.begun = True
        self.cpu_s = time.process_time()
        self.seconds = time.perf_counter()

    def end(self) -> None:
        """Record that all wanted messages were received."""
        self.seconds = time.perf_counter() - self.seconds
        self.cpu_s = time.process_time() - self.cpu_s
        self.done = True

    def result(self) -> dict[str, object]:
        """The answer to the command. Raises TooSlow."""
        if not self.done:
            raise TooSlow(f"only {self.messages} of {self.wanted} messages came in time")
        return {"messages": self.messages, "bytes": self.bytes, "seconds": self.seconds, "cpuSeconds": self.cpu_s}


async def push(command: Command) -> dict[str, object]:
    """A push consumer with an async handler that accesses each body."""
    tally = Tally(command.count)
    scope = trio.CancelScope(deadline=trio.current_time() + command.max_seconds)
    wanted = command.count

    async def handle(message: triomq.ReceivedMessage) -> None:
        if not tally.begun:
            tally.begin()
        tally.bytes += len(message.body)
        tally.messages += 1
        if tally.messages == wanted:
            tally.end()
            scope.cancel()

    async with (
        triomq.open_client(command.name_servers) as client,
        client.push_consumer(
            command.group,
            start_from="earliest",
            pulling=triomq.PullOptions(max_messages=command.pull_batch),
            drain_s=1.0,
        ) as consumer,
    ):
        await consumer.subscribe(command.topic)
        with scope:
            await consumer.run(handle, concurrency=command.concurrency)
    return tally.result()


async def lite(command: Command) -> dict[str, object]:
    """A lite pull consumer that polls assigned queues and accesses each body."""
    tally = Tally(command.count)
    async with (
        triomq.open_client(command.name_servers) as client,
        client.pull_consumer(f"{command.group}-queues") as asking,
        client.lite_pull_consumer(command.group, start_from="earliest", batch_max=command.pull_batch) as consumer,
    ):
        await consumer.assign(await asking.fetch_queues(command.topic))
        with trio.move_on_after(command.max_seconds):
            while tally.messages < command.count:
                count_all(tally, await consumer.poll(POLL_S))
            tally.end()
    return tally.result()


def count_all(tally: Tally, found: Sequence[triomq.ReceivedMessage]) -> None:
    """Count the messages of one poll."""
    if found and not tally.begun:
        tally.begin()
    tally.bytes += sum([len(message.body) for message in found])
    tally.messages += len(found)


# --- filling -----------------------------------------------------------------------------------------------------


class _Sent:
    """The callback of one send."""

    def __init__(self, free: trio.Semaphore) -> None:
        self.free = free
        self.errors: list[BaseException] = []

    def on_success(self, _result: triomq.SendResult) -> None:
        self.free.release()

    def on_exception(self, error: BaseException) -> None:
        self.errors.append(error)
        self.free.release()


async def fill(command: Command) -> dict[str, object]:
    """Send the messages to be consumed."""
    message = triomq.Message(command.topic, bytes(at % 251 for at in range(command.body_bytes)), tags="bench")
    async with (
        triomq.open_client(command.name_servers) as client,
        client.producer("bench-fill", compress_from_bytes=sys.maxsize, send_timeout_s=10.0) as producer,
    ):
        if command.queues:
            await client.admin.create_topic(command.topic, queues=command.queues)
            await _send_batches(producer, message, command)
        else:
            # The first one creates the topic.
            await producer.send(message)
            await _send_in_turns(producer, message, command.count - 1)
    return {"messages": command.count}


async def _send_in_turns(producer: triomq.Producer, message: triomq.Message, count: int) -> None:
    free = trio.Semaphore(FILL_IN_FLIGHT)
    sent = _Sent(free)
    for _ in range(count):
        await free.acquire()
        await producer.send(message, sent)
    for _ in range(FILL_IN_FLIGHT):
        await free.acquire()
    if sent.errors:
        raise sent.errors[0]


async def _send_batches(producer: triomq.Producer, message: triomq.Message, command: Command) -> None:
    for batch in triomq.split_batch(itertools.repeat(message, command.count), max_count=FILL_BATCH):
        await producer.send_batch(batch)


# --- memory ------------------------------------------------------------------------------------------------------


async def stall(command: Command) -> dict[str, object]:
    """Run a push consumer whose handlers block until it has reached its limit; then everything is consumed.

    The answer has resident memory: before, while the handlers blocked, and the maximum.
    """
    limits = triomq.FlowLimits(**command.limits)
    tally = Tally(command.count)
    going_on = trio.Event()
    finished = trio.Event()

    async def handle(message: triomq.ReceivedMessage) -> None:
        if not going_on.is_set():
            await going_on.wait()
        tally.bytes += len(message.body)
        tally.messages += 1
        if tally.messages >= command.count:
            finished.set()

    async with triomq.open_client(command.name_servers) as client:
        gc.collect()
        before = status_bytes("VmRSS")
        async with client.push_consumer(
            command.group,
            start_from="earliest",
            pulling=triomq.PullOptions(max_messages=command.pull_batch),
            limits=limits,
            drain_s=1.0,
        ) as consumer:
            await consumer.subscribe(command.topic)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: consumer.run(handle, concurrency=command.concurrency))
                assigned = consumer._member.engine.queues  # noqa: SLF001 - held messages are measured inside
                with trio.move_on_after(command.max_seconds):
                    held = await _stable(lambda: [each.process.count for each in assigned.values()])
                    stalled = status_bytes("VmRSS")
                    held_bytes = sum(each.process.size_bytes for each in assigned.values())
                    queues = len(consumer.assignment)
                    going_on.set()
                    await finished.wait()
                nursery.cancel_scope.cancel()
    if not finished.is_set():
        raise TooSlow(f"only {tally.messages} of {command.count} messages came in time")
    return {
        "messages": tally.messages,
        "held": held,
        "heldBytes": held_bytes,
        "queues": queues,
        "limitBytes": limits.size_bytes,
        "beforeBytes": before,
        "stalledBytes": stalled,
        "peakBytes": status_bytes("VmHWM"),
    }


async def _stable(held: Callable[[], list[int]]) -> int:
    """Wait until the numbers no longer change; returns their sum."""
    last: list[int] = []
    since = trio.current_time()
    while True:
        now = held()
        if now != last or not sum(now):
            last, since = now, trio.current_time()
        elif trio.current_time() > since + STABLE_S:
            return sum(now)
        await trio.sleep(LOOK_S)


def status_bytes(name: str) -> int:
    """The value in bytes of a line of `/proc/self/status` that is in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise LookupError(name)


OPS = {"fill": fill, "push": push, "lite": lite, "stall": stall}


async def main() -> None:
    """Answer commands until the input ends."""
    async for line in lines():
        command = msgspec.json.decode(line, type=Command)
        gc.collect()
        try:
            answer = await OPS[command.op](command)
        except (triomq.MQError, TooSlow) as error:
            answer = {"error": repr(error)}
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
