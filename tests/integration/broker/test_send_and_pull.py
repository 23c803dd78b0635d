"""Send, pull, hold and restart over real sockets and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.record.batch import encode_batch_element
from triomq_protocol.record.view import iter_records
from triomq_protocol.requests.offset import UpdateConsumerOffsetRequest
from triomq_protocol.wire.command import Command

BODY = bytes(range(256)) * 4


@pytest.mark.parametrize("in_flight", [1, 8, 64])
async def test_sends_in_flight_are_all_stored_in_order(open_broker: Any, connect: Any, in_flight: int) -> None:
    count = 256
    async with open_broker() as addresses, connect(addresses.listen) as wire:
        answers = []
        for first in range(0, count, in_flight):
            frames = [wire.numbered(wire.put_request("T1", b"%d-" % n + BODY)) for n in range(first, first + in_flight)]
            await wire.stream.send_all(b"".join(frames))
            answers += [await wire.receive() for _ in range(in_flight)]
        assert {answer.code for answer in answers} == {0}
        assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(count))
        assert len({answer.fields["msgId"] for answer in answers}) == count
        records, offset = [], 0
        while offset < count:
            answer = await wire.ask(wire.pull_request("T1", offset))
            assert answer.code == 0
            assert answer.fields is not None
            records += list(iter_records(answer.body))
            offset = int(answer.fields["nextBeginOffset"])
        assert [record.body for record in records] == [b"%d-" % n + BODY for n in range(count)]
        assert [record.offset_message_id for record in records] == [answer.fields["msgId"] for answer in answers]


async def test_many_links_at_once(open_broker: Any, connect: Any) -> None:
    done: list[int] = []

    async def client(address: str, queue_id: int) -> None:
        async with connect(address) as wire:
            for n in range(50):
                answer = await wire.ask(wire.put_request("T1", b"%d" % n, queue_id=queue_id))
                assert answer.code == 0
                assert answer.fields["queueOffset"] == str(n)
            pulled = await wire.ask(wire.pull_request("T1", 40, queue_id=queue_id))
            assert [record.body for record in iter_records(pulled.body)] == [b"%d" % n for n in range(40, 50)]
            done.append(queue_id)

    async with open_broker() as addresses, trio.open_nursery() as nursery:
        for queue_id in range(4):
            nursery.start_soon(client, addresses.listen, queue_id)
    assert sorted(done) == [0, 1, 2, 3]


async def test_batch(open_broker: Any, connect: Any) -> None:
    elements = b"".join(encode_batch_element(b"m%d" % n, b"KEYS\x01k%d" % n) for n in range(5))
    async with open_broker() as addresses, connect(addresses.listen) as wire:
        answer = await wire.ask(wire.put_request("T1", elements, code=320, batch=True, properties="WAIT\x01true"))
        assert answer.code == 0
        pulled = await wire.ask(wire.pull_request("T1", 0))
    records = list(iter_records(pulled.body))
    assert [record.body for record in records] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert answer.fields["msgId"].split(",") == [record.offset_message_id for record in records]
    assert records[3].properties == {"KEYS": "k3", "WAIT": "true", "CLUSTER": "C1"}


async def test_the_fast_listener_serves_all_but_pulls(open_broker: Any, connect: Any) -> None:
    async with open_broker() as addresses, connect(addresses.listen, -2) as wire:
        assert (await wire.ask(wire.put_request("T1", b"x"))).code == 0
        refused = await wire.ask(wire.pull_request("T1", 0))
    assert (refused.code, refused.remark) == (3, " request type 11 not supported")


async def test_a_held_pull_wakes_at_once(open_broker: Any, connect: Any) -> None:
    """Ten times: a pull waits at the end, a message arrives on another link, and the answer follows at once."""
    delays = []
    async with open_broker() as addresses, connect(addresses.listen) as reader, connect(addresses.listen) as writer:
        await writer.ask(writer.put_request("T1", b"0"))
        for n in range(1, 11):
            await reader.stream.send_all(reader.numbered(reader.pull_request("T1", n, suspend_ms=20_000)))
            await trio.sleep(0.02)
            await writer.stream.send_all(writer.numbered(writer.put_request("T1", b"%d" % n)))
            start = trio.current_time()
            with trio.fail_after(60):
                answer = await reader.receive()
            delays.append(trio.current_time() - start)
            assert [record.body for record in iter_records(answer.body)] == [b"%d" % n]
            await writer.receive()
    # Otherwise the end of the hold, after 20 s, would answer; a loaded machine is late with most of them.
    assert min(delays) < 0.5, delays


async def test_restart_on_the_same_directory(open_broker: Any, connect: Any, store_folder: Path) -> None:
    update = UpdateConsumerOffsetRequest(consumer_group="CG", topic="T1", queue_id=0, commit_offset=7)
    async with open_broker() as addresses, connect(addresses.listen) as wire:
        for n in range(10):
            await wire.ask(wire.put_request("T1", b"%d" % n))
        assert (await wire.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, update))).code == 0
    assert not (store_folder / "abort").exists()
    assert (store_folder / "config" / "consumerOffset.json").read_text() == (
        '{\n\t"offsetTable":{\n\t\t"T1@CG":{0:7\n\t\t}\n\t}\n}'
    )
    async with open_broker(autoCreateTopicEnable="false") as addresses, connect(addresses.listen) as wire:
        pulled = await wire.ask(wire.pull_request("T1", 0))
        assert [record.body for record in iter_records(pulled.body)] == [b"%d" % n for n in range(10)]
        query = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
        offset = await wire.ask(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, fields=query))
        assert offset.fields == {"offset": "7"}
        answer = await wire.ask(wire.put_request("T1", b"10"))
        assert answer.fields["queueOffset"] == "10"


async def test_sync_flush_answers_when_the_bytes_are_on_disk(open_broker: Any, connect: Any) -> None:
    async with open_broker(flushDiskType="SYNC_FLUSH") as addresses, connect(addresses.listen) as wire:
        frames = [wire.numbered(wire.put_request("T1", b"%d" % n)) for n in range(64)]
        with trio.fail_after(60):
            await wire.stream.send_all(b"".join(frames))
            answers = [await wire.receive() for _ in range(64)]
    assert {answer.code for answer in answers} == {0}


async def test_a_frame_that_is_none_costs_only_its_own_link(open_broker: Any, connect: Any) -> None:
    async with open_broker() as addresses, connect(addresses.listen) as good, connect(addresses.listen) as bad:
        await bad.stream.send_all(b"\x7f\xff\xff\xff garbage")
        assert await bad.stream.receive_some(100) == b""
        assert (await good.ask(good.put_request("T1", b"x"))).code == 0
