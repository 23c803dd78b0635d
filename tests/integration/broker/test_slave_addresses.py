"""Peers that count as a synchronous master's slaves, and one that reports an offset without storing anything."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from triomq_protocol.codes import ResponseCode
from triomq_protocol.replication import encode_report


@pytest.mark.parametrize(
    ("addresses", "status"),
    [
        ("10.0.0.0/8;192.168.7.7", ResponseCode.SLAVE_NOT_AVAILABLE),
        ("10.0.0.0/8;127.0.0.1", ResponseCode.SUCCESS),
        ("", ResponseCode.SUCCESS),
    ],
)
async def test_only_named_addresses_confirm_what_is_sent(
    addresses: str, status: int, open_broker: Any, connect: Any
) -> None:
    settings = {"brokerRole": "SYNC_MASTER", "haSlaveAddresses": addresses, "haSendHeartbeatInterval": "50"}
    async with open_broker(**settings) as broker, connect(broker.listen) as wire:
        host, _, port = broker.ha.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as peer, trio.open_nursery() as nursery:
            greeted = trio.Event()
            nursery.start_soon(_report_everything, peer, greeted)
            with trio.fail_after(60):
                await greeted.wait()
                answer = await wire.ask(wire.put_request("T1", b"hello"))
            assert answer.code == status
            nursery.cancel_scope.cancel()


async def _report_everything(peer: trio.SocketStream, greeted: trio.Event) -> None:
    """Claim whatever the master sends, and store nothing."""
    end = 0
    try:
        await peer.send_all(encode_report(0))
        while data := await peer.receive_some(1 << 16):
            end += max(0, len(data) - 12)
            greeted.set()
            await peer.send_all(encode_report(end))
    except trio.BrokenResourceError:
        pass
    greeted.set()
