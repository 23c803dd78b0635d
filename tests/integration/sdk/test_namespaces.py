"""Administration, queries and request-reply in a namespace: names without the prefix here, with it on the broker."""

from __future__ import annotations

import trio

import triomq
from triomq_server.cluster import open_cluster


async def test_administration_and_queries_in_a_namespace() -> None:
    async with open_cluster(slaves=0) as cluster:
        servers = cluster.name_servers
        async with triomq.open_client(servers, namespace="NS") as client:
            await client.admin.create_topic("orders", queues=1)
            assert "NS%orders" in await client.admin.topics()
            sent = await client.producer("P").send(triomq.Message("orders", b"one", keys="k"))
            async with client.push_consumer("G", start_from="earliest") as consumer:
                await consumer.subscribe("orders")
                delivery = await anext(consumer)
                await delivery.done()
            assert {queue.topic for queue in (await client.admin.topic_stats("orders")).offset_table} == {"orders"}
            progress = await client.groups.progress("G", "orders")
            assert {queue.topic: offsets.consumer_offset for queue, offsets in progress.items()} == {"orders": 1}
            (by_id,) = await client.messages.by_unique_key("orders", sent.message_id)
            (by_key,) = await client.messages.by_key("orders", "k")
            stored = await client.messages.by_id(sent.offset_message_id)
            for message in (by_id, by_key, stored):
                assert (message.topic, message.queue, message.body) == ("orders", sent.queue, b"one")
            await client.groups.reset("G", "orders", client.groups.END)
            resent = await client.messages.resend(stored, "G")
            assert resent.message_id == sent.message_id
            async with client.push_consumer("G") as consumer:
                await consumer.subscribe("orders")
                delivery = await anext(consumer)
                await delivery.done()
                assert delivery.message.topic == "orders"
            await client.admin.delete_topic("orders")
            assert "NS%orders" not in await client.admin.topics()


async def test_members_in_a_namespace_follow_a_reset_that_may_make_the_group() -> None:
    async with open_cluster(slaves=0) as cluster, triomq.open_client(cluster.name_servers, namespace="NS") as client:
        await client.admin.create_topic("orders", queues=1)
        producer = client.producer("P")
        for number in range(3):
            await producer.send(triomq.Message("orders", b"%d" % number))
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("orders")
            for _ in range(3):
                await (await anext(consumer)).done()
            (reset,) = await client.groups.reset("G", "orders", 0, new_group=True)
            assert reset.online
            with trio.fail_after(60):
                again = await anext(consumer)
            assert again.message.body == b"0"
            await again.done()


async def test_a_group_of_a_namespace_gets_its_first_offset_in_an_idle_queue() -> None:
    async with open_cluster(slaves=0) as cluster, triomq.open_client(cluster.name_servers, namespace="NS") as client:
        await client.admin.create_topic("orders", queues=1)
        await client.admin.create_topic("idle", queues=1)
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("orders")
            await consumer.subscribe("idle")
            await client.producer("P").send(triomq.Message("orders", b"one"))
            await (await anext(consumer)).done()
            assert await client.groups.reset("G", "idle", 0)


async def test_request_and_reply_in_a_namespace() -> None:
    async with (
        open_cluster(slaves=0) as cluster,
        trio.open_nursery() as nursery,
        triomq.open_client(cluster.name_servers, namespace="NS") as client,
    ):
        await client.admin.create_topic("questions", queues=1)
        async with client.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("questions")

            async def answer(message: triomq.ReceivedMessage) -> None:
                await consumer.reply(message, b"re: " + message.body)

            nursery.start_soon(consumer.run, answer)
            reply = await client.producer("P").request(triomq.Message("questions", b"why"), 30)
            assert reply.body == b"re: why"
            consumer.drain()
