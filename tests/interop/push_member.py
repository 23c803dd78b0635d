"""One of our push consumers in its own process, which reports the same events as `PushConsumer.java`.

Options are pairs `--name value`: --name-servers, --group, --topic, --instance, --ordered true, --work-ms (per message).
One JSON object per line on standard output: `started`, `message` (each delivery, when its handler ends), `queues`
(whenever they change), `stopping` and `stopped`.  SIGTERM shuts it down cleanly, SIGKILL like a crash.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Collection
from typing import Any

import trio

import triomq


def report(event: str, **fields: Any) -> None:
    """Print one event, flushed: this process may be killed at any time."""
    print(json.dumps({"event": event, "time": now_ms(), **fields}), flush=True)


def now_ms() -> int:
    """The time of the clock that all processes of this machine share, in ms."""
    return time.time_ns() // 1_000_000


class Owned:
    """The queues that this member owns."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def assigned(self, queues: Collection[triomq.MessageQueue]) -> None:
        self._names.update(map(self._name, queues))
        self._report()

    def revoked(self, queues: Collection[triomq.MessageQueue]) -> None:
        self._names.difference_update(map(self._name, queues))
        self._report()

    def on_event(self, event: triomq.ConsumerEvent) -> None:
        report("event", kind=event.kind, text=event.text)
        if event.kind == "lock_lost" and event.queue is not None:
            self.revoked([event.queue])

    def _report(self) -> None:
        report("queues", queues=sorted(self._names))

    @staticmethod
    def _name(queue: triomq.MessageQueue) -> str:
        return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"


async def stop_on_signal(consumer: triomq.PushConsumer) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            report("stopping")
            consumer.drain()
            return


async def main(options: argparse.Namespace) -> None:
    owned = Owned()

    async def handle(message: triomq.ReceivedMessage) -> None:
        begun = now_ms()
        await trio.sleep(options.work_ms / 1000)
        report(
            "message",
            topic=message.topic,
            broker=message.queue.broker_name,
            queue=message.queue_id,
            offset=message.queue_offset,
            body=message.body.decode(),
            begun=begun,
            success=True,
        )

    async with (
        triomq.open_client(options.name_servers, instance_name=options.instance) as client,
        client.push_consumer(
            options.group,
            ordered=options.ordered == "true",
            start_from="earliest",
            callbacks=triomq.ConsumerCallbacks(
                on_assigned=owned.assigned, on_revoked=owned.revoked, on_event=owned.on_event
            ),
        ) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stop_on_signal, consumer)
        await consumer.subscribe(options.topic)
        report("started", client=client.client_id)
        await consumer.run(handle)
    report("stopped")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--name-servers", "--group", "--topic", "--instance"):
        parser.add_argument(name, required=True)
    parser.add_argument("--ordered", default="false")
    parser.add_argument("--work-ms", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    trio.run(main, parsed(sys.argv[1:]))
