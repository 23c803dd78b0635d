"""A topic that is created if it is not there, while the first send of another client lets a broker create it."""

from __future__ import annotations

from typing import Any

import pytest

import triomq
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import DeleteTopicFromNamesrvRequest
from triomq_protocol.wire.command import Command
from triomq_server.cluster import open_cluster
from triomq_server.wire import open_link

MESSAGES = 8


async def bodies(client: triomq.Client, topic: str) -> list[bytes]:
    found = []
    consumer = client.pull_consumer("G")
    for queue in await consumer.fetch_queues(topic):
        found += [message.body for message in (await consumer.pull(queue, 0, block=False)).messages]
    return sorted(found)


@pytest.mark.parametrize(("queues", "readable"), [(1, 4), (2, 4), (16, 16)])
async def test_what_another_client_has_sent_meanwhile_can_be_read(
    queues: int, readable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_cluster(slaves=0) as cluster,
        triomq.open_client(cluster.name_servers) as client,
        triomq.open_client(cluster.name_servers) as other,
    ):
        route, producer = client.admin.route, other.producer("P")
        sent: list[triomq.SendResult] = []

        async def late(topic: str) -> Any:
            try:
                return await route(topic)
            except triomq.errors.RouteNotFound:
                # After the question for the route, and before the creation.
                sent.extend([await producer.send(triomq.Message(topic, b"%d" % number)) for number in range(MESSAGES)])
                raise

        monkeypatch.setattr(client.admin, "route", late)
        assert await client.admin.ensure_topic("tasks", queues=queues)
        assert {result.queue.queue_id for result in sent} == {0, 1, 2, 3}
        (of_broker,) = (await route("tasks")).queue_datas
        assert (of_broker.read_queue_nums, of_broker.write_queue_nums) == (readable, queues)
        assert await bodies(client, "tasks") == [b"%d" % number for number in range(MESSAGES)]
        assert not await client.admin.ensure_topic("tasks", queues=3)
        assert (await route("tasks")).queue_datas == [of_broker]


async def test_a_topic_without_messages_gets_its_queues() -> None:
    async with open_cluster(slaves=0) as cluster, triomq.open_client(cluster.name_servers) as client:
        assert await client.admin.ensure_topic("tasks", queues=1)
        (of_broker,) = (await client.admin.route("tasks")).queue_datas
        assert (of_broker.read_queue_nums, of_broker.write_queue_nums) == (1, 1)


async def test_a_topic_that_only_the_name_servers_lack_keeps_its_messages_readable() -> None:
    async with open_cluster(slaves=0) as cluster, triomq.open_client(cluster.name_servers) as client:
        await client.admin.create_topic("tasks", queues=16)
        producer = client.producer("P")
        for number in range(16):
            await producer.send(triomq.Message("tasks", b"%d" % number))
        delete = Command.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequest(topic="tasks"))
        async with open_link(cluster["namesrv-0"].address) as link:
            assert (await link.request(delete, 5)).code == 0
        assert await client.admin.ensure_topic("tasks", queues=8)
        (of_broker,) = (await client.admin.route("tasks")).queue_datas
        assert (of_broker.read_queue_nums, of_broker.write_queue_nums) == (16, 8)
        assert len(await bodies(client, "tasks")) == 16
