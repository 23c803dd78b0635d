"""Peers that send requests but read nothing: the data kept for them is bounded."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from triomq_protocol.requests import KVTable
from triomq_protocol.requests.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from triomq_protocol.wire.command import Command
from triomq_server.broker.requests import clients


async def test_held_pulls_of_a_reader_that_takes_nothing_get_no_messages(open_broker: Any) -> None:
    async with open_broker(linkOutputLimitBytes=1) as broker:
        peer, reader = await broker.peer(), await broker.peer()
        await peer.put(body=bytes(10))
        pull = reader.pull_request(offset=1, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND)
        for _ in range(20):
            await reader.send(pull)
        await reader.ask(Command.request(RequestCode.GET_BROKER_CONFIG))
        await peer.put(body=bytes(5000))
        codes = []
        for _ in range(20):
            answer = await reader.receive()
            codes.append(answer.code)
            if answer.code:
                assert (answer.code, answer.fields["nextBeginOffset"], answer.body) == (19, "1", b"")
        assert codes == [0] + 19 * [19]


async def test_the_budgets_of_the_settings_are_kept_on_both_ports(open_broker: Any) -> None:
    async with open_broker(incompleteFramesLimitBytes=16 << 20, outputLimitBytes=1 << 20) as broker:
        peers = [await broker.peer(), await broker.peer(), await broker.peer(broker.config.listen_port - 2)]
        for peer in peers:
            await peer.stream.send_all(struct.pack(">iI", 15_000_000, 100) + bytes(6_000_000))
        closed = 0
        for peer in peers:
            with trio.move_on_after(1), suppress(trio.BrokenResourceError):
                closed += await peer.stream.receive_some() == b""
        assert closed == 1
        other = await broker.peer()
        info = KVTable.decode((await other.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))).body).table
        assert info["triomqIncompleteFrameBytes"] == "12000016"
        assert info["triomqIncompleteFrameClosedLinks"] == "1"
        assert info["triomqUnsentLimitBytes"] == str(1 << 20)


async def test_a_member_that_takes_nothing_is_not_notified(desk: Any, client_link: Any) -> None:
    mute, other = client_link(), client_link("127.0.0.1:2")
    body = desk_heartbeat("one")
    await desk.ask(RequestCode.HEART_BEAT, body=body, link=mute)
    mute.unsent_bytes = clients.MOST_UNSENT_BYTES + 1
    before = len(mute.notified)
    await desk.ask(RequestCode.HEART_BEAT, body=desk_heartbeat("two"), link=other)
    assert len(mute.notified) == before
    mute.unsent_bytes = 0
    await desk.ask(RequestCode.HEART_BEAT, body=desk_heartbeat("three"), link=client_link("127.0.0.1:3"))
    assert len(mute.notified) == before + 1


def desk_heartbeat(client: str) -> bytes:
    """A member of the group CG."""
    consumer = ConsumerData(
        group_name="CG",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
    )
    return HeartbeatData(client_id=client, consumer_data_set=[consumer]).encode()
