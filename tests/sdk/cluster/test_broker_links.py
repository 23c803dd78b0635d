"""From a queue to the link of its broker: the master's, or that of another broker of the same name."""

from __future__ import annotations

import pytest
import trio

import triomq
from triomq import errors
from triomq._cluster.broker_links import BrokerLinks

QUEUE = triomq.MessageQueue("T", "broker-a", 0)


def broker_links(client):
    return BrokerLinks(client._routes, client._links)


async def test_the_master_is_chosen_as_long_as_it_can_be_reached(autojump_clock, cluster):
    slave = cluster.add_slave()
    async with cluster.client() as client:
        brokers = broker_links(client)
        link = await brokers.of(QUEUE)
        assert link.address == cluster.broker.address
        # Virtual time passes only when all tasks wait: both sides have seen the connection begin, then end.
        await trio.sleep(0.1)
        await cluster.broker.stop()
        await trio.sleep(0.1)
        assert not link.is_open
        assert (await brokers.of(QUEUE)).address == slave.address
        with pytest.raises(errors.ConnectFailed):
            await brokers.of(QUEUE, only_master=True)


async def test_a_route_without_a_master_leaves_its_slaves_also_when_the_master_is_wanted(autojump_clock, cluster):
    slave = cluster.add_slave()
    cluster.name_server.add_route("T", slave)
    async with cluster.client() as client:
        assert (await broker_links(client).of(QUEUE, only_master=True)).address == slave.address


async def test_all_brokers_down_is_an_error(autojump_clock, cluster):
    slave = cluster.add_slave()
    await cluster.broker.stop()
    await slave.stop()
    async with cluster.client() as client:
        with pytest.raises(errors.ConnectFailed):
            await broker_links(client).of(QUEUE)
    assert {cluster.broker.address, slave.address} <= set(cluster.network.dials)


async def test_a_broker_that_is_not_in_the_route_is_looked_up_once_more(autojump_clock, cluster):
    queue = triomq.MessageQueue("T", "broker-b", 0)
    async with cluster.client() as client:
        brokers = broker_links(client)
        await brokers.of(QUEUE)
        with pytest.raises(errors.RouteNotFound, match="broker-b is not in the route"):
            await brokers.of(queue)
        other = cluster.add_master("broker-b")
        assert (await brokers.of(queue)).address == other.address


async def test_cancel_at_every_await(autojump_clock, cluster, cancel_at_step):
    step, finished = 0, False
    while not finished:
        step += 1
        assert step < 100
        async with cluster.client() as client:
            with cancel_at_step(step) as cancel:
                await broker_links(client).of(QUEUE, only_master=True)
                finished = True
            finished = finished and not cancel.scope.cancelled_caught
            # What was cancelled half-way does not stand in the way of the next call.
            with trio.fail_after(5):
                assert (await broker_links(client).of(QUEUE)).is_open


async def test_a_running_broker_that_is_out_of_the_route(autojump_clock, cluster):
    """As after the restart of a name server at which it has not registered yet."""
    other = cluster.add_master("broker-b")
    queue = triomq.MessageQueue("T", "broker-b", 0)
    async with cluster.client() as client:
        brokers = broker_links(client)
        link = await brokers.of(queue)
        cluster.name_server.add_route("T", cluster.broker)
        await client._routes.refresh("T")
        assert await brokers.of(queue, only_master=True) is link
        await other.stop()
        await trio.sleep(0.1)
        with pytest.raises(errors.BrokerNotFound):
            await brokers.of(queue)
