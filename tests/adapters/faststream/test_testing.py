"""Handlers run by FastStream without a server, and what a broker tells of itself."""

from __future__ import annotations

import asyncio

import pydantic
import pytest
from faststream import FastStream
from faststream.exceptions import SubscriberNotFound

import triomq
from triomq_adapters.faststream import RocketMQBroker, TestRocketMQBroker


class Order(pydantic.BaseModel):
    number: int


def test_without_a_server() -> None:
    broker = RocketMQBroker("127.0.0.1:1")
    bills = broker.publisher("bills")

    @broker.subscriber("orders", tags="new")
    @bills
    async def bill(order: Order) -> Order:
        return Order(number=order.number * 10)

    @broker.subscriber("numbers", batch=True)
    async def take(numbers: list[int]) -> int:
        return sum(numbers)

    async def main() -> None:
        async with TestRocketMQBroker(broker) as test:
            await test.publish(Order(number=1), "orders", tags="new")
            bill.mock.assert_called_once_with({"number": 1})
            bills.mock.assert_called_once_with({"number": 10})
            await test.publish(Order(number=2), "orders", tags="old")
            bill.mock.assert_called_once()
            await test.publish_batch(1, 2, topic="numbers")
            take.mock.assert_called_once_with([1, 2])
            reply = await test.request(Order(number=3), "orders", tags="new")
            assert await reply.decode() == {"number": 30}
            with pytest.raises(SubscriberNotFound):
                await test.request("?", "nobody")
            with pytest.raises(pydantic.ValidationError):
                await test.publish("no order", "orders", tags="new")

    asyncio.run(main())


def test_messages_are_taken_by_handlers_or_one_by_one() -> None:
    broker = RocketMQBroker("127.0.0.1:1")
    subscriber = broker.subscriber("orders")

    @subscriber
    async def take(_: str) -> None: ...

    async def main() -> None:
        async with TestRocketMQBroker(broker):
            with pytest.raises(AssertionError, match="use one without handlers"):
                await subscriber.get_one()

    asyncio.run(main())


def test_a_subscriber_that_a_test_adds() -> None:
    """It starts without a server, as the others."""
    broker = RocketMQBroker("127.0.0.1:1")

    async def take(_: str) -> None: ...

    async def main() -> None:
        async with TestRocketMQBroker(broker) as test:
            handler = test.subscriber("orders")
            wrapped = handler(take)
            await handler.start()
            wrapped.set_test()
            await test.publish("one", "orders")
            wrapped.mock.assert_called_once_with("one")

    asyncio.run(main())


def test_an_application_has_the_broker() -> None:
    broker = RocketMQBroker("127.0.0.1:9876")

    @broker.subscriber("orders")
    @broker.publisher("bills")
    async def bill(order: Order) -> Order:
        return order

    (subscriber,), (publisher,) = broker.subscribers, broker.publishers
    (orders,), (bills,) = subscriber.schema().values(), publisher.schema().values()
    assert (orders.address, bills.address) == ("orders", "bills")
    assert FastStream(broker).broker is broker


def test_a_broker_that_is_not_connected_is_an_error() -> None:
    async def main() -> None:
        with pytest.raises(triomq.errors.InvalidCall, match="not connected"):
            await RocketMQBroker("127.0.0.1:9876").publish("x", "orders")

    asyncio.run(main())
