"""The compiled way to store sends does the same as the handlers, byte for byte, for any input."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from typing import Any

import pytest
import trio.testing
from burst_twins import ACCOUNTS, Twins, Way, access_rules, compare, small_files

from triomq_protocol.acl import signature_of
from triomq_protocol.record.batch import encode_batch_element
from triomq_server.broker.handlers import fast_handlers
from triomq_server.compiled import USED
from triomq_server.config import BrokerConfig, BrokerRole, FlushDiskType
from triomq_server.store.files.segments import Segment

pytestmark = pytest.mark.skipif(not USED, reason="no compiled modules in this installation")


@pytest.fixture
def config(config: BrokerConfig) -> Any:
    return small_files(config)


@pytest.mark.parametrize("seed", range(8))
async def test_both_ways_store_and_answer_the_same(
    seed: int, new_desk: Callable[[], AbstractAsyncContextManager[Any]]
) -> None:
    counts = await compare(seed, 40, new_desk)
    assert counts["taken_bytes"] > counts["bytes"] * 0.1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "settings",
    [
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        {"broker_role": BrokerRole.SYNC_MASTER},
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "broker_role": BrokerRole.SYNC_MASTER},
    ],
    ids=["flush", "replicate", "both"],
)
async def test_both_ways_wait_for_disk_and_slave_alike(
    seed: int, settings: dict[str, Any], new_desk: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    """There is no slave: a send that waits for one gets this status, at once or when the disk is ready."""
    counts = await compare(seed, 40, partial(new_desk, **settings))
    assert counts["taken_bytes"] > counts["bytes"] * 0.1


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("white", [(), ("10.0.0.*",), ("127.0.0.1",)], ids=["no host", "others", "all"])
async def test_both_ways_store_the_same_of_what_is_signed(
    seed: int, white: tuple[str, ...], new_desk: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    counts = await compare(seed, 40, partial(new_desk, rules=access_rules(*white)), signs=True)
    assert counts["taken_bytes"] > counts["bytes"] * 0.05


@pytest.mark.parametrize(("last", "code"), [("broker-b", 1), (None, 0)])
async def test_a_signature_that_covers_a_field_twice_is_refused(
    last: str | None, code: int, new_desk: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    """The compiled way does not decide which of the values counts."""
    async with new_desk(rules=access_rules("127.0.0.2")) as desk:
        pairs = sorted({**FIELDS, "n": "broker-a", "AccessKey": "may do most"}.items())
        if last is not None:
            pairs.insert([name for name, _ in pairs].index("n") + 1, ("n", last))
        signed = "".join([value for _, value in pairs]).encode() + b"body"
        pairs.append(("Signature", signature_of(signed, ACCOUNTS["may do most"]).decode()))
        data = Twins(0).json_frame(310, pairs, b"body")
        way = Way(desk, compiled=True)
        way.link.peer = "127.0.0.2:40000"
        await way.receive(frame(310, b"makes the queue"))
        way.link.peer = "127.0.0.1:40000"
        (answer,) = await way.receive(data)
        assert b'{"code":%d,' % code in answer
        assert (way.taken > 0) is (code == 0)


async def test_the_fast_listener_stores_sends_the_same_way_and_serves_no_pulls(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]],
) -> None:
    async with new_desk() as desk:
        assert [burst.codes for burst in fast_handlers(desk.handlers).bursts] == [{10, 310, 320}]
        assert {10, 310, 320, 11, 361} == set().union(*[burst.codes for burst in desk.handlers.bursts])


@pytest.mark.parametrize("batch", ["true", "false"])
async def test_a_send_that_does_not_wait_is_left_to_the_handlers(
    batch: str, new_desk: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    async with new_desk(broker_role=BrokerRole.SYNC_MASTER) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        body = encode_batch_element(b"x", b"")
        (waits,) = await way.receive(frame(310, body, i="WAIT\x01true", m=batch))
        (does_not,) = await way.receive(frame(310, body, i="WAIT\x01false", m=batch))
        assert b'{"code":11' in waits
        assert b'{"code":0' in does_not


async def test_statuses_are_counted_as_errors_by_the_code_of_their_request(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]],
) -> None:
    async with new_desk(broker_role=BrokerRole.SYNC_MASTER) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        assert desk.broker.traffic.errors == {(310, 11): 1}
        data = frame(310, b"x") * 3 + frame(320, encode_batch_element(b"x", b""), m="true")
        assert len(await way.receive(data)) == 4
        assert way.taken == len(data)
        assert desk.broker.traffic.errors == {(310, 11): 4, (320, 11): 1}


@pytest.mark.parametrize("compiled", [True, False])
async def test_slow_appends_are_counted_by_either_way(
    compiled: bool, new_desk: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    async with new_desk() as desk:
        way = Way(desk, compiled=compiled)
        times = desk.broker.store.times
        times.now = lambda: 0.0  # on a busy machine it would be slow
        await way.receive(frame(310, b"makes the queue"))
        times.sample(0, lambda: desk.broker.stats.puts_made)
        times.now = count(0.0, 0.007).__next__
        batch = encode_batch_element(b"x", b"") * 2
        assert len(await way.receive(frame(310, b"x") * 2 + frame(320, batch, m="true"))) == 3
        times.sample(60_000, lambda: desk.broker.stats.puts_made)
        assert {span: puts for span, puts in times.distribution().items() if puts} == {"0~10ms": 3}
        assert times.longest_put_ms == 7
        assert bool(way.taken) is compiled


async def test_what_sends_wait_is_part_of_their_time(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]], autojump_clock: trio.testing.MockClock
) -> None:
    async with new_desk(flush_disk_type=FlushDiskType.SYNC_FLUSH) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        times = desk.broker.store.times
        times.sample(0, lambda: desk.broker.stats.puts_made)
        data = frame(310, b"x") * 3
        assert desk.handlers.bursts[0].take(way.link, data) == len(data)
        desk.broker.store.notify_arrivals()
        autojump_clock.jump(0.25)
        assert len(await way.receive(frame(310, b"x"))) == 4
        times.sample(60_000, lambda: desk.broker.stats.puts_made)
        assert {span: puts for span, puts in times.distribution().items() if puts} == {"<=0ms": 1, "200~500ms": 3}


FIELDS = {"a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": ""}


def frame(code: int, body: bytes, **fields: str) -> bytes:
    """A send in the usual form."""
    return Twins(0).json_frame(code, list({**FIELDS, **fields}.items()), body)


@pytest.mark.parametrize(
    ("level", "code"), [("1", 13), ("+1", 13), ("0", 0), ("-1", 0), ("soon", 1), ("1" * 5000, 1), ("0" * 5000, 0)]
)
async def test_a_batchs_delay_is_answered_as_by_the_handlers(
    level: str, code: int, new_desk: Callable[..., AbstractAsyncContextManager[Any]]
) -> None:
    async with new_desk() as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        (answer,) = await way.receive(frame(320, encode_batch_element(b"x", b""), i=f"DELAY\x01{level}", m="true"))
        assert b'"code":%d,' % code in answer
        assert b"ValueError" not in answer


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0x7FFFFFEA, 0x7FFFFFE9, 1 << 30, 101, -1, -0x80000000])
async def test_an_element_whose_length_exceeds_its_batch_is_refused(
    length: int, new_desk: Callable[[], AbstractAsyncContextManager[Any]]
) -> None:
    """Nothing can be added in 32 bits to the longest lengths."""
    async with new_desk() as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        element = bytes(16) + struct.pack(">i", length) + bytes(100)
        (answer,) = await way.receive(frame(320, element, m="true"))
        assert b"BodyError" in answer
        (answer,) = await way.receive(frame(310, b"next"))
        assert b'"queueOffset":"1"' in answer


async def test_a_batch_with_many_keys_is_left_to_slices(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]],
) -> None:
    element = encode_batch_element(b"", b"KEYS\x01" + b"a " * 1024)
    async with new_desk(mapped_file_size_commit_log=1 << 23, mapped_file_size_consume_queue=1 << 16) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        assert desk.handlers.bursts[0].take(way.link, frame(320, element * 33, m="true")) == 0
        taken = frame(320, element * 32, m="true")
        assert desk.handlers.bursts[0].take(way.link, taken) == len(taken)


async def test_a_batch_of_very_many_messages_is_left_to_slices(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]],
) -> None:
    element = encode_batch_element(b"x", b"")
    async with new_desk(mapped_file_size_commit_log=1 << 23, mapped_file_size_consume_queue=20 * 10_000) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        assert desk.handlers.bursts[0].take(way.link, frame(320, element * 4097, m="true")) == 0
        taken = frame(320, element * 4096, m="true")
        assert desk.handlers.bursts[0].take(way.link, taken) == len(taken)


async def test_space_is_reserved_without_leaving_sends_to_the_handlers(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]],
) -> None:
    """Space in the log is reserved 4 MiB at a time, in a queue a page and then 64 KiB."""
    async with new_desk(mapped_file_size_commit_log=1 << 24, mapped_file_size_consume_queue=20 * 20_000) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        batch = frame(320, encode_batch_element(b"x" * 800, b"") * 300, m="true")
        for _ in range(20):
            data = batch * 2
            while data:
                taken = desk.handlers.bursts[0].take(way.link, data)
                assert taken >= len(batch)
                data = data[taken:]
        assert desk.broker.store.queue_bounds("T1", 0) == (0, 12_001)
        single = frame(310, b"y" * 1000)
        assert desk.handlers.bursts[0].take(way.link, single * 300) == len(single) * 300


async def test_a_batch_that_does_not_fit_into_the_files_is_left_to_the_handlers(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]],
) -> None:
    async with new_desk(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 500) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))
        many = frame(320, encode_batch_element(b"", b"") * 500, m="true")
        assert desk.handlers.bursts[0].take(way.link, many) == 0
        large = frame(320, encode_batch_element(b"x" * 10_000, b"") * 80, m="true")
        assert desk.handlers.bursts[0].take(way.link, large) == len(large)
        assert desk.handlers.bursts[0].take(way.link, large) == 0


async def test_without_space_on_the_disk_sends_are_left_to_the_handlers(
    new_desk: Callable[..., AbstractAsyncContextManager[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with new_desk(mapped_file_size_commit_log=1 << 24, mapped_file_size_consume_queue=20 * 10_000) as desk:
        way = Way(desk, compiled=True)
        await way.receive(frame(310, b"makes the queue"))

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Segment, "reserve", full)
        single = frame(310, b"x")
        assert desk.handlers.bursts[0].take(way.link, single * 300) == len(single) * 203
        assert desk.broker.store.queue_bounds("T1", 0) == (0, 204)
