"""Settings that request 25 changes while the broker runs, as far as messages and name servers notice them."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.command import Command


async def change(peer: Any, **settings: object) -> None:
    body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    assert (await peer.ask(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body))).code == 0


async def test_permission(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        await change(peer, brokerPermission=2)
        assert (await peer.pull()).code == 16
        await change(peer, brokerPermission=6)
        assert (await peer.pull()).code == 0


async def test_region_and_trace(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await change(peer, regionId="there", traceOn="false")
        for request in (peer.put_request(), peer.put_request("a b")):
            answer = await peer.ask(request)
            assert answer.fields is not None
            assert (answer.fields["MSG_REGION"], answer.fields["TRACE_ON"]) == ("there", "false")


@pytest.mark.parametrize(("wait", "code"), [("true", 11), ("false", 0)])
async def test_a_master_becomes_synchronous(open_broker: Any, wait: str, code: int) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        properties = f"WAIT\x01{wait}"
        assert (await peer.put(properties=properties)).code == 0
        await change(peer, brokerRole="SYNC_MASTER")
        assert (await peer.put(properties=properties)).code == code


async def test_sends_before_the_service_time(open_broker: Any) -> None:
    async with open_broker() as broker:
        peer = await broker.peer()
        await peer.put()
        await change(peer, startAcceptSendRequestTimeStamp=4_000_000_000_000)
        assert (await peer.put()).code == 1


async def test_slow_readers(open_broker: Any) -> None:
    async with open_broker(memoryBytes=1000) as broker:
        peer = await broker.peer()
        for _ in range(10):
            await peer.put(body=bytes(200))
        assert (await peer.pull(max_msg_nums=1)).fields["suggestWhichBrokerId"] == "1"
        await change(peer, slaveReadEnable="false")
        assert (await peer.pull(max_msg_nums=1)).fields["suggestWhichBrokerId"] == "0"
