"""A consumer of the group G that has subscribed, and the events it reports."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

import triomq


class Events(list):
    """What `on_event` was called with."""

    def kinds(self):
        return [event.kind for event in self]


@pytest.fixture
def events():
    """What the consumers of `open_consumer` report."""
    return Events()


@pytest.fixture
def open_consumer(group_cluster, events):
    """Opens a consumer of group G with a client of its own, which starts at the earliest message of topic T."""

    @asynccontextmanager
    async def opened(kind="push", **options):
        async with group_cluster.client() as client:
            make = client.push_consumer if kind == "push" else client.lite_pull_consumer
            callbacks = triomq.ConsumerCallbacks(on_event=events.append)
            async with make("G", **{"start_from": "earliest", "callbacks": callbacks, **options}) as consumer:
                await consumer.subscribe("T")
                yield consumer

    return opened
