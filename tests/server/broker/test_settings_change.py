"""Settings that request 25 changes while the broker runs, as far as messages and name servers notice them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.command import Command
from triomq_server.broker.tables.offsets.committed import OffsetTable
from triomq_server.config import BrokerConfig, StoreConfig
from triomq_server.config.settings import keys_of


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


async def test_no_setting_stops_a_broker(open_broker: Any) -> None:
    """Each key with values that no one would set, while all the tasks run: the broker serves on."""
    async with open_broker() as broker:
        peer = await broker.peer()
        for key in (*keys_of(BrokerConfig), *keys_of(StoreConfig)):
            for text in ("-1", "0", "1", "9223372036854775807", "nan", "", "a\\u0000b", "nope"):
                body = f"{key}={text}".encode()
                await peer.ask(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body))
        await trio.sleep(15)
        answer = await (await broker.peer()).ask(Command.request(RequestCode.GET_BROKER_CONFIG))
        assert answer.code == 0


async def test_a_failing_task_leaves_the_broker_serving(
    open_broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_table: OffsetTable) -> None:
        raise OverflowError("a table that cannot be written")

    monkeypatch.setattr(OffsetTable, "persist_in_background", fail)
    async with open_broker() as broker:
        await trio.sleep(60)
        assert (await (await broker.peer()).put()).code == 0
    assert "_persist_offsets has failed" in caplog.text
