"""A master that dies while the doctor looks: its slaves are not said to have another history."""

from __future__ import annotations

import itertools

import pytest
import trio

from triomq._admin import long_bodies
from triomq._examination.doctor import AGAIN_S
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import KVTable


def log_that_grows(broker, *ends):
    """Have a broker report these ends of its log, one after another; none: it does not answer any more."""
    serve, ends = broker.serve, itertools.chain(ends, itertools.repeat(None))

    def answer(command):
        if command.code != RequestCode.GET_BROKER_RUNTIME_INFO:
            return serve(command)
        end = next(ends)
        return None if end is None else command.answer(0, body=KVTable(table={"commitLogMaxOffset": str(end)}).encode())

    broker.serve = answer


@pytest.fixture(autouse=True)
def _answers_are_read_in_the_loop(monkeypatch):
    """A virtual clock does not see worker threads."""
    monkeypatch.setattr(long_bodies, "SHORT_BODY_BYTES", 1 << 30)


async def kinds(client, timeout_s: float = 30) -> dict[str, str]:
    found = await client.doctor.findings(timeout_s=timeout_s)
    return {each.kind: each.what for each in found if each.kind.startswith(("slave", "broker_silent"))}


async def test_a_master_that_dies_meanwhile_does_not_answer(autojump_clock, cluster) -> None:
    """The slave, which was asked a moment later, had more already."""
    log_that_grows(cluster.broker, 1000)
    log_that_grows(cluster.add_slave(), 1200, 1300)
    async with cluster.client() as client:
        found = await kinds(client)
    assert list(found) == ["broker_silent"]
    assert "Broker broker-a:0" in found["broker_silent"]


async def test_a_slave_that_dies_meanwhile_does_not_answer(autojump_clock, cluster) -> None:
    log_that_grows(cluster.broker, 1000, 1300)
    log_that_grows(cluster.add_slave(), 900)
    async with cluster.client() as client:
        found = await kinds(client)
    assert list(found) == ["broker_silent"]
    assert "Broker broker-a:1" in found["broker_silent"]


async def test_nothing_is_concluded_if_time_is_over_before_both_were_asked_again(autojump_clock, cluster) -> None:
    log_that_grows(cluster.broker, 1000, 1300)
    log_that_grows(cluster.add_slave(), 1200, 1300)
    async with cluster.client() as client:
        started = trio.current_time()
        assert await kinds(client, AGAIN_S / 2) == {}
        assert trio.current_time() - started < AGAIN_S
