"""The broker of FastStream: handlers over a server and without one, replies, batches, failures, routers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import httpx
import pydantic
import pytest
from fastapi import Depends, FastAPI
from faststream import AckPolicy, Header
from unreadable import send_unreadable

import triomq
from triomq_adapters.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQRoute,
    RocketMQRoutePublisher,
    RocketMQRouter,
    TestRocketMQBroker,
)
from triomq_adapters.faststream.fastapi import RocketMQRouter as WebRouter
from triomq_testing import RocketMQ

TIMEOUT_S = 120


class Order(pydantic.BaseModel):
    number: int


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await main()

    asyncio.run(limited())


def broker_of(rocketmq: RocketMQ, **options: object) -> RocketMQBroker:
    return RocketMQBroker(rocketmq.namesrv_addr, send_timeout_s=60, **options)  # type: ignore[arg-type]


def test_handlers_take_and_send_on(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)
    seen: asyncio.Queue[object] = asyncio.Queue()

    @broker.subscriber("orders", tags="new || changed")
    @broker.publisher("bills", tags="paper", headers={"by": "test"})
    async def bill(order: Order, by: str = Header("by", default="")) -> Order:
        await seen.put((order.number, by))
        return Order(number=order.number * 10)

    @broker.subscriber("bills")
    async def post(order: Order, message: RocketMQMessage) -> None:
        await seen.put((order.number, message.headers["by"], message.raw_message.tags))

    async def main() -> None:
        async with broker:
            await broker.start()
            await broker.publish(Order(number=1), "orders", tags="old")
            await broker.publish(Order(number=2), "orders", tags="new", keys="k", headers={"by": "me"})
            assert [await seen.get(), await seen.get()] == [(2, "me"), (20, "test", "paper")]
            assert await broker.ping(60)
        assert not await broker.ping()

    run(main)
    assert [message.keys for message in rocketmq.messages("orders")] == [[], ["k"]]
    with triomq.blocking.open_client(rocketmq.namesrv_addr) as client:  # acknowledged, and the groups are left
        assert client.groups.progress("bills-subscribers").lag == 0
        assert client.groups.members("bills-subscribers") is None


@pytest.mark.parametrize("body", [b"bytes", "text", {"a": [1]}, 5, None, b""])
def test_a_request_is_answered_by_what_the_handler_returns(body: object, rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)

    @broker.subscriber("echo")
    async def echo(message: RocketMQMessage) -> object:
        return await message.decode()

    publisher = broker.publisher("echo")
    answered = asyncio.Event()

    @broker.subscriber("answers")
    async def answer(message: RocketMQMessage) -> None:
        assert await message.decode() == (body if body is not None else b"")
        answered.set()

    async def main() -> None:
        async with broker:
            await broker.start()
            for ask in (broker.request, publisher.request):
                reply = await ask(body, "echo", timeout=60, correlation_id="c1")
                assert await reply.decode() == (body if body is not None else b"")
                assert reply.correlation_id == "c1"
            await broker.publish(body, "echo", reply_to="answers")
            await answered.wait()

    run(main)


def test_batches(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)
    publisher = broker.publisher("numbers", batch=True)
    seen: list[int] = []
    done = asyncio.Event()

    @broker.subscriber("numbers", batch=True, batch_max=10)
    async def take(numbers: list[int]) -> None:
        assert len(numbers) <= 10
        seen.extend(numbers)
        if len(seen) == 40:
            done.set()

    async def main() -> None:
        async with broker:
            await broker.publish_batch(*range(20), topic="numbers")
            await publisher.publish(list(range(20, 40)))
            await broker.start()
            await done.wait()

    run(main)
    assert sorted(seen) == list(range(40))


@pytest.mark.parametrize(
    ("policy", "calls"), [(None, 3), (AckPolicy.REJECT_ON_ERROR, 1), (AckPolicy.ACK_FIRST, 1), (AckPolicy.MANUAL, 3)]
)
def test_failed_messages_are_redelivered_unless_configured_otherwise(
    policy: AckPolicy | None, calls: int, rocketmq: RocketMQ
) -> None:
    broker = broker_of(rocketmq)
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    @broker.subscriber("orders", **({"ack_policy": policy} if policy else {}))
    async def fail(message: RocketMQMessage) -> None:
        await seen.put(message.body)
        if policy is AckPolicy.MANUAL:
            await (message.nack() if seen.qsize() < 3 else message.ack())
        elif message.body == b"bad" and seen.qsize() < 3:
            raise ValueError("this one fails twice")

    async def main() -> None:
        async with broker:
            await broker.start()
            await broker.publish(b"bad", "orders")
            while seen.qsize() < calls:  # noqa: ASYNC110 - handlers fill it
                await asyncio.sleep(0.01)

    with rocketmq.clock.fast_forward():
        run(main)
    assert seen.qsize() == calls


def test_several_workers_handle_at_the_same_time(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)
    together = asyncio.Barrier(4)

    @broker.subscriber("orders", max_workers=3)
    async def meet(_: bytes) -> None:
        await together.wait()

    async def main() -> None:
        async with broker:
            await broker.start()
            for _ in range(3):
                await broker.publish(b"x", "orders")
            await together.wait()

    run(main)


def test_messages_without_a_handler(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)
    subscriber = broker.subscriber("orders", group="readers")

    async def main() -> None:
        async with broker:
            await broker.start()
            assert await subscriber.get_one(timeout=0.01) is None
            await broker.publish("one", "orders")
            await broker.publish("two", "orders")
            first = await subscriber.get_one(timeout=60)
            await first.ack()
            async for second in subscriber:
                await second.ack()
                break
            assert {await first.decode(), await second.decode()} == {"one", "two"}

    run(main)


def test_subscribers_without_handlers_join_once(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)
    subscriber = broker.subscriber("orders")

    async def main() -> None:
        async with broker:
            await broker.start()
            async with asyncio.TaskGroup() as tasks:
                found = [tasks.create_task(subscriber.get_one(timeout=60)) for _ in range(2)]
                for text in ("one", "two"):
                    await broker.publish(text, "orders")
            assert {await (await each).decode() for each in found} == {"one", "two"}

    run(main)


def test_a_subscription_that_cannot_be_made_stays_an_error(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)
    subscriber = broker.subscriber("orders", tags="price > 10")

    async def main() -> None:
        async with broker:
            await broker.start()
            for _ in range(2):
                with pytest.raises(triomq.errors.InvalidCall, match="SQL92"):
                    await subscriber.get_one(timeout=0.1)

    run(main)


def test_routers(rocketmq: RocketMQ) -> None:
    """Also nested, and with handlers that are not decorated ones; their prefixes begin their topics."""
    seen: asyncio.Queue[object] = asyncio.Queue()

    async def bill(order: Order) -> Order:
        return Order(number=order.number * 10)

    inner = RocketMQRouter(
        "b-", handlers=[RocketMQRoute(bill, "orders", publishers=[RocketMQRoutePublisher("bills", tags="paper")])]
    )
    outer = RocketMQRouter("a-", routers=[inner])

    @outer.subscriber("answers")
    async def take(text: str) -> None:
        await seen.put(text)

    @inner.subscriber("bills")
    async def post(order: Order, message: RocketMQMessage) -> None:
        raw = message.raw_message
        await seen.put((order.number, raw.topic, raw.tags))

    publisher = outer.publisher("answers")
    broker = broker_of(rocketmq)
    broker.include_router(outer)

    async def main() -> None:
        async with broker:
            await broker.start()
            await broker.publish(Order(number=2), "a-b-orders")
            assert await seen.get() == (20, "a-b-bills", "paper")
            await publisher.publish("thanks")
            assert await seen.get() == "thanks"

    run(main)


# FastStream 0.7.8 calls it.
@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning")
def test_a_router_of_fastapi(rocketmq: RocketMQ) -> None:
    router = WebRouter(rocketmq.namesrv_addr, prefix="/shop")
    seen: asyncio.Queue[object] = asyncio.Queue()

    @router.post("/orders")
    async def order(text: str) -> None:
        await router.broker.publish(text, "orders")

    @router.subscriber("orders")
    @router.publisher("bills")
    async def bill(text: str, opened: Annotated[str, Depends(lambda: "a book")]) -> str:
        return f"{text} in {opened}"

    @router.subscriber("bills")
    async def post(text: str) -> None:
        await seen.put(text)

    app = FastAPI()
    app.include_router(router)

    async def main() -> None:
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://example")
        async with app.router.lifespan_context(app), web:
            assert (await web.post("/shop/orders", params={"text": "one"})).status_code == 200
            assert await seen.get() == "one in a book"
        assert not await router.broker.ping()

    run(main)


def test_a_request_without_a_reply_ends_in_time(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)

    async def main() -> None:
        async with broker:
            await broker.connect()
            with pytest.raises(TimeoutError, match="orders"):
                await broker.request("?", "orders", timeout=0.2)

    run(main)


def test_with_a_server_in_a_test(rocketmq: RocketMQ) -> None:
    broker = broker_of(rocketmq)

    @broker.subscriber("orders")
    async def take(_: str) -> None: ...

    async def main() -> None:
        async with TestRocketMQBroker(broker, with_real=True) as test:
            await test.publish("one", "orders")
            await take.wait_call(timeout=TIMEOUT_S)
            take.mock.assert_called_once_with("one")

    run(main)


@pytest.mark.parametrize("batch_max", [1, 8])
def test_an_unreadable_body_stops_no_subscriber(rocketmq: RocketMQ, caplog, batch_max: int) -> None:
    send_unreadable(rocketmq, "mixed")
    broker = broker_of(rocketmq, queues=1)
    seen: asyncio.Queue[object] = asyncio.Queue()

    @broker.subscriber("mixed", batch_max=batch_max, start_from="earliest")
    async def take(bodies: Any) -> None:
        for body in bodies if isinstance(bodies, list) else [bodies]:
            await seen.put(body)

    async def main() -> None:
        async with broker:
            await broker.start()
            for number in range(9):
                await broker.publish(f"body {number}", "mixed")
            assert sorted([await seen.get() for _ in range(9)]) == [f"body {number}" for number in range(9)]

    run(main)
    assert "cannot be read, and is delivered again later" in caplog.text


def test_a_subscriber_without_handlers_passes_over_an_unreadable_body(rocketmq: RocketMQ) -> None:
    send_unreadable(rocketmq, "mixed")
    broker = broker_of(rocketmq, queues=1)
    subscriber = broker.subscriber("mixed", start_from="earliest")

    async def main() -> None:
        async with broker:
            await broker.start()
            await broker.publish("one", "mixed")
            async for message in subscriber:
                assert await message.decode() == "one"
                await message.ack()
                break
            assert await subscriber.get_one(timeout=0.1) is None

    run(main)
