"""A running cluster in a test: its address, its topics, and their messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import triomq
from triomq_testing.steered.clock import Calls, Clock
from triomq_testing.steered.faults import Faults

T = TypeVar("T")


class SharedClient(Protocol):
    """The client of a cluster's helpers, in the loop of the servers; opened on first use."""

    async def client(self) -> triomq.Client:
        """The client."""
        ...

    async def producer(self) -> triomq.Producer:
        """Its producer."""
        ...


class RocketMQ:
    """A cluster for a test, with its clock and its faults; created by the fixtures and by `Servers.open`.

    Every method may be called from any thread, and from tests with trio or asyncio, whose loop it blocks for
    milliseconds.

    Attributes:
        namesrv_addr: the name servers, ``host:port``, for clients in any language.
        clock: the wall clock of the brokers.
        faults: breaks the nodes.
        prefix: the prefix of the names of this test's topics and groups.
    """

    def __init__(
        self,
        namesrv_addr: str,
        clock: Clock,
        faults: Faults,
        sdk: SharedClient,
        calls: Calls,
        prefix: str = "",
    ) -> None:
        self.namesrv_addr = namesrv_addr
        self.clock = clock
        self.faults = faults
        self.prefix = prefix
        self._sdk = sdk
        self._calls = calls

    def with_prefix(self, prefix: str) -> RocketMQ:
        """The same cluster with another prefix of names."""
        return RocketMQ(self.namesrv_addr, self.clock, self.faults, self._sdk, self._calls, prefix)

    def name(self, name: str) -> str:
        """The full name of a topic or group of this test."""
        return self.prefix + name

    def topic(self, name: str, *, queues: int = 4) -> str:
        """Create a topic of this test on every master.

        Returns:
            Its full name, for clients.
        """

        async def create(client: triomq.Client) -> str:
            await client.admin.create_topic(self.name(name), queues=queues)
            return self.name(name)

        return self._with_client(create)

    def send(
        self,
        topic: str,
        *bodies: bytes,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
    ) -> list[triomq.SendResult]:
        """Send a message for each body to a topic, by its full name, and wait until all are stored."""

        async def send() -> list[triomq.SendResult]:
            producer = await self._sdk.producer()
            return [
                await producer.send(
                    triomq.Message(topic, body, tags, keys, properties=properties, delay_level=delay_level)
                )
                for body in bodies
            ]

        sent: list[triomq.SendResult] = self._calls.call(send)
        return sent

    def messages(self, topic: str) -> list[triomq.ReceivedMessage]:
        """All messages stored in a topic, by its full name, in the order stored; none if there is no such topic.

        Delayed messages are stored in their topic when they are due. Dead letters are in the topic ``%DLQ%`` plus the
        group's name.

        Raises:
            BrokerNotFound: a broker set is down, so its messages are not known.
        """

        async def read(client: triomq.Client) -> list[triomq.ReceivedMessage]:
            registered = (await client.admin.cluster_info()).broker_addr_table or {}
            down = dict.fromkeys(self.faults.broker_sets - registered.keys(), "it is not registered")
            bounds: Mapping[triomq.MessageQueue, triomq.admin.TopicOffset] = {}
            try:
                stats = await client.admin.topic_stats(topic)
            except triomq.errors.RouteNotFound:
                pass
            else:
                bounds = stats.offset_table
                answered = {queue.broker_name for queue in bounds}
                down |= {name: why for name, why in stats.without_master.items() if name not in answered}
            if down:
                texts = "; ".join(f"{name}: {why}" for name, why in sorted(down.items()))
                raise triomq.errors.BrokerNotFound(f"not all messages of {topic} can be read ({texts})")
            found: list[triomq.ReceivedMessage] = []
            for queue, ends in bounds.items():
                offset = ends.min_offset
                while offset < ends.max_offset:
                    some, offset = await client.messages.page(queue, offset)
                    if not some:
                        break
                    found += some
            return sorted(found, key=lambda message: (message.stored_ms, message.physical_offset))

        return self._with_client(read)

    def _with_client(self, use: Callable[[triomq.Client], Awaitable[T]]) -> T:
        async def run() -> T:
            return await use(await self._sdk.client())

        result: T = self._calls.call(run)
        return result
