"""Opening a client, alone or with the one thing it is wanted for.

The client's nursery lives here: it begins and ends with the ``async with`` block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

import trio

from triomq._client import Client, ClientOptions
from triomq._lite_pull import LitePullConsumer
from triomq._name_servers import NameServers
from triomq._producer import Producer
from triomq._pull import PullConsumer
from triomq._push import PushConsumer


@asynccontextmanager
async def open_client(
    name_servers: NameServers | None = None, **options: Unpack[ClientOptions]
) -> AsyncIterator[Client]:
    """Open a client; at the end of the block producers flush, groups unregister, links close.

    Args:
        name_servers: ``"host:9876;host:9876"``, a list of addresses, a :class:`NameServerProvider`, or a function
            that returns a list; default is the environment's ``NAMESRV_ADDR``.
        dial: opens streams; default TCP.
        client_ip: this machine's address as others see it; default: found out.
        instance_name: tells clients of one address apart; default ``pid#nanoseconds``.
        unit_name: third part of the client id.
        default_topic: whose queues an unknown topic borrows.
        default_topic_queues: how many of them at most, per broker.
        refresh_every_s: period of the route refresh.
        heartbeat_every_s: period of heartbeats.
        backoff: pauses between dials of a dead address.
        max_pending: requests that may wait for an answer, per link.
        max_unsent_bytes: bytes that may wait for the kernel, per link.
        max_topics: topics whose routes are kept fresh.
        clock: wall clock in ms since 1970.
        chance: source of all random choices.

    Raises:
        InvalidCall: an address is not ``host:port``, or there is none.

    Nothing is dialled before it is needed.  Exceptions of the block come out as they are, not in groups.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            client = Client(name_servers, nursery, options)
            await client.start()
            try:
                yield client
            except BaseException as error:  # noqa: BLE001
                # Kept aside, so that the nursery does not wrap it.
                failure = error
            finally:
                try:
                    await client.aclose(at_once=failure is not None)
                finally:
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        crash = group.split(trio.Cancelled)[1]
        if crash is not None and isinstance(failure, trio.Cancelled):
            # A task of the client's own has failed, and the block was cancelled for that.
            raise _only(crash) from None
        if failure is None:
            raise _only(group) from None
    if failure is not None:
        try:
            raise failure
        finally:
            # The traceback holds this frame: let go of the cycle.
            del failure


@asynccontextmanager
async def open_producer(
    name_servers: NameServers | None, group: str, **options: Unpack[ClientOptions]
) -> AsyncIterator[Producer]:
    """A producer with a client of its own; arguments as for :func:`open_client`."""
    async with open_client(name_servers, **options) as client, client.producer(group) as producer:
        yield producer


@asynccontextmanager
async def open_pull_consumer(
    name_servers: NameServers | None, group: str, **options: Unpack[ClientOptions]
) -> AsyncIterator[PullConsumer]:
    """A pull consumer with a client of its own; arguments as for :func:`open_client`."""
    async with open_client(name_servers, **options) as client, client.pull_consumer(group) as consumer:
        yield consumer


@asynccontextmanager
async def open_push_consumer(
    name_servers: NameServers | None, group: str, **options: Unpack[ClientOptions]
) -> AsyncIterator[PushConsumer]:
    """A push consumer with a client of its own; arguments as for :func:`open_client`."""
    async with open_client(name_servers, **options) as client, client.push_consumer(group) as consumer:
        yield consumer


@asynccontextmanager
async def open_lite_pull_consumer(
    name_servers: NameServers | None, group: str, **options: Unpack[ClientOptions]
) -> AsyncIterator[LitePullConsumer]:
    """A lite pull consumer with a client of its own; arguments as for :func:`open_client`."""
    async with open_client(name_servers, **options) as client, client.lite_pull_consumer(group) as consumer:
        yield consumer


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner
