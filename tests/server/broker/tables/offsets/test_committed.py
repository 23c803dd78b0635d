"""Committed offsets and consumerOffset.json (docs/protocol/store.md §21, docs/protocol/ha.md §7)."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from loop_lines import lines_of_slices
from text_file import TextFile

from triomq_protocol.requests.offset import ConsumerOffsetTable
from triomq_protocol.wire import fastjson
from triomq_server.broker.tables.offsets.committed import OffsetTable, decode_received, queue_end
from triomq_server.broker.tables.offsets.delay_levels import DelayOffsets
from triomq_server.broker.tables.offsets.resets import MERGED_PER_SLICE, Resets, decode_times
from triomq_server.disk.config_files import ConfigFileDamaged
from triomq_server.wire import to_the_end


def test_commit_and_query() -> None:
    offsets = OffsetTable(None)
    assert offsets.query("g", "t", 0) == -1
    offsets.commit("g", "t", 0, 9)
    offsets.commit("g", "t", 1, 4)
    offsets.commit("g", "t", 0, 3)
    assert offsets.query("g", "t", 0) == 3, "a lower offset counts too"
    assert offsets.queues("g", "t") == {0: 3, 1: 4}
    assert offsets.query("g", "t", 2) == -1


async def test_offsets_of_further_queues_are_refused_beyond_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    file = TextFile()
    limit_bytes = 10 * (300 + len("t0@g") + 2 * 64)
    offsets = OffsetTable(file, limit_bytes=limit_bytes)
    taken = [offsets.commit("g", f"t{number}", queue, 7) for number in range(20) for queue in range(2)]
    assert taken == [True] * 20 + [False] * 20
    assert len(offsets.table) == 10
    assert offsets.commit("g", "t0", 1, 3), "what is kept goes on"
    assert not offsets.commit("g", "t0", 2, 1)
    assert not to_the_end(offsets.clone("g", "other", "t0"))
    assert len(offsets.table) == 10
    assert offsets.commit("own", "half", 0, 8, always=True)
    assert "offsets of groups g are not kept: all offsets take 4320 bytes (consumerOffsetsLimitBytes)" in caplog.text
    offsets.persist()
    again = OffsetTable(file, limit_bytes=limit_bytes)
    again.load()
    assert again.held_bytes == offsets.held_bytes
    assert not again.commit("g", "t10", 0, 7)
    assert again.commit("g", "t0", 0, 9)
    to_the_end(again.remove_group("own"))
    to_the_end(again.remove_group("g"))
    assert again.held_bytes == 0
    assert again.commit("g", "t10", 0, 7)


def test_what_offsets_take_is_counted_by_every_change() -> None:
    offsets = OffsetTable(None, resets=Resets(None, lambda: 1))
    for queue_id in range(3):
        offsets.commit("g", "t", queue_id, 5)
        offsets.commit("g", "t", queue_id, 4)
    offsets.commit("h", "t", 0, 5)
    assert to_the_end(offsets.clone("g", "h", "t"))
    assert offsets.held_bytes == 2 * (300 + len("t@g") + 3 * 64)
    to_the_end(offsets.remove_group("g"))
    assert offsets.held_bytes == 300 + len("t@h") + 3 * 64


async def test_what_a_merge_has_brought_is_counted_with_the_next_write() -> None:
    offsets = OffsetTable(TextFile(), resets=Resets(None, lambda: 1))
    to_the_end(offsets.merge({"t@g": {0: 5, 1: 6}, "u@g": {0: 1}}))
    assert await offsets.persist_in_background()
    assert offsets.held_bytes == 2 * (300 + len("t@g")) + 3 * 64


def test_by_topic_and_group() -> None:
    offsets = OffsetTable(None)
    for group, topic in (("g", "t"), ("g", "%RETRY%g"), ("h", "t")):
        offsets.commit(group, topic, 0, 1)
    assert to_the_end(offsets.topics_of("g")) == ["t", "%RETRY%g"]
    assert to_the_end(offsets.groups_of("t")) == ["g", "h"]
    to_the_end(offsets.clone("g", "k", "t"))
    offsets.commit("k", "t", 0, 5)
    assert (offsets.query("g", "t", 0), offsets.query("k", "t", 0)) == (1, 5)
    to_the_end(offsets.clone("missing", "k", "x"))
    assert "x@k" not in offsets.table
    to_the_end(offsets.remove_group("g"))
    assert list(offsets.table) == ["t@h", "t@k"]


def test_file_form() -> None:
    file = TextFile()
    offsets = OffsetTable(file)
    offsets.persist()
    assert file.text == b'{\n\t"offsetTable":{}\n}'
    for queue, offset in ((0, 9), (1, 1), (2, 0)):
        offsets.commit("CG1", "T1", queue, offset)
    offsets.commit("CG1", "%RETRY%CG1", 0, 0)
    offsets.persist()
    assert file.text == (
        b'{\n\t"offsetTable":{\n\t\t"T1@CG1":{0:9,1:1,2:0\n\t\t},\n\t\t"%RETRY%CG1@CG1":{0:0\n\t\t}\n\t}\n}'
    )
    assert offsets.encode() == b'{"offsetTable":{"T1@CG1":{0:9,1:1,2:0},"%RETRY%CG1@CG1":{0:0}}}'
    again = OffsetTable(file)
    again.load()
    assert again.table == offsets.table


@pytest.mark.parametrize(
    "text", ['{"offsetTable":{"a@b":{"0":7}}}', '{\n "offsetTable" : { "a@b" : { 0 : 7 } }, "x": 1}', "{}"]
)
def test_other_writers_files(text: str) -> None:
    offsets = OffsetTable(TextFile(text.encode()))
    offsets.load()
    assert offsets.table == ({"a@b": {0: 7}} if "7" in text else {})


def test_real_file_byte_for_byte(vectors: Path) -> None:
    text = json.loads((vectors / "store-small.json").read_text())["configFiles"]["consumerOffset.json"].encode()
    file = TextFile(text)
    offsets = OffsetTable(file)
    offsets.load()
    offsets.persist()
    assert file.text == text


async def test_background_writes_only_changes_and_tries_again() -> None:
    file = TextFile()
    offsets = OffsetTable(file)
    await offsets.persist_in_background()
    assert file.saves == 0
    offsets.commit("g", "t", 0, 1)
    file.full = True
    await offsets.persist_in_background()
    file.full = False
    await offsets.persist_in_background()
    await offsets.persist_in_background()
    assert file.saves == 1


@pytest.mark.parametrize("disk_takes_log", [True, False])
async def test_the_log_is_on_disk_before_the_offsets_are_written(disk_takes_log: bool) -> None:
    file, steps = TextFile(), []
    offsets = OffsetTable(file)

    async def flush() -> None:
        steps.append(file.text)
        offsets.commit("g", "t", 0, 9)  # of a message that came meanwhile
        await trio.lowlevel.checkpoint()
        if not disk_takes_log:
            raise OSError("input/output error")

    assert await offsets.persist_in_background(flush)
    assert steps == [], "nothing has changed"
    offsets.commit("g", "t", 0, 1)
    assert await offsets.persist_in_background(flush)
    assert steps == [b""]
    assert b"{0:1\n" in file.text
    assert offsets.changed


async def test_the_later_of_two_writes_is_done_last(autojump_clock: trio.testing.MockClock) -> None:
    file = TextFile()
    offsets = OffsetTable(file)
    offsets.commit("g", "t", 0, 1)

    async def slow() -> None:
        await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(offsets.persist_in_background, slow)
        await trio.sleep(1)
        offsets.commit("g", "t", 0, 2)
        assert await offsets.persist_in_background()
    assert b"{0:2\n" in file.text


@pytest.mark.parametrize(
    ("end", "is_there", "is_in_topic", "expected"),
    [
        (7, True, True, 7),
        (7, True, False, 7),  # a queue of a topic that is deleted, or has become smaller
        (0, False, True, 0),  # the next message of a known topic is its first
        (0, False, False, None),
    ],
)
def test_where_the_next_message_of_a_queue_comes(
    end: int, is_there: bool, is_in_topic: bool, expected: int | None
) -> None:
    assert queue_end(end, is_there=is_there, is_in_topic=is_in_topic) == expected


def test_offsets_of_lost_messages_are_lowered_for_good() -> None:
    ends = {("t", 0): 5, ("t", 1): 0, ("%RETRY%g", 0): 0}
    offsets, elsewhere = (OffsetTable(None, resets=Resets(None, lambda: 1000)) for _ in range(2))
    for table in (offsets, elsewhere):
        to_the_end(table.merge({"t@g": {0: 9, 1: 3, 2: 7}, "t@h": {0: 5}, "%RETRY%g@g": {0: 0}, "gone@g": {0: 4}}))
    assert to_the_end(offsets.lower_to_ends(lambda topic, queue_id: ends.get((topic, queue_id)))) == 2
    lowered = {"t@g": {0: 5, 1: 0, 2: 7}, "t@h": {0: 5}, "%RETRY%g@g": {0: 0}, "gone@g": {0: 4}}
    assert offsets.table == lowered
    body, times = to_the_end(elsewhere.for_slaves())
    assert body != offsets.encode()
    to_the_end(offsets.merge(elsewhere.table, decode_times(str(times))))
    assert offsets.table == lowered, "another broker's old offsets do not come back"
    to_the_end(elsewhere.merge(offsets.table, decode_times(str(to_the_end(offsets.for_slaves())[1]))))
    assert elsewhere.table == lowered


@pytest.mark.parametrize("as_reset", [False, True])
def test_offsets_of_one_key_with_many_queues_are_lowered_in_slices(as_reset: bool) -> None:
    offsets = OffsetTable(None)
    many = dict.fromkeys(range(3 * MERGED_PER_SLICE), 9)
    for key, queues in (("t@g", many), ("gone@g", many), ("new@g", {0: 9})):
        offsets.table[key] = dict(queues)
    slices = offsets.lower_to_ends(lambda _topic, _queue_id: 5, as_reset=as_reset)
    next(slices)
    assert list(offsets.table["t@g"].values()).count(5) == MERGED_PER_SLICE
    offsets.table["t@g"] = {**offsets.table["t@g"], 3 * MERGED_PER_SLICE - 1: 4}  # requests between two slices
    del offsets.table["gone@g"]
    assert sum(1 for _ in slices) == 2
    assert set(offsets.table["t@g"].values()) == {4, 5}
    assert offsets.table["new@g"] == {0: 5}
    assert "gone@g" not in offsets.table


def test_a_slave_merges_complete_queue_maps() -> None:
    offsets = OffsetTable(None)
    offsets.commit("g", "t", 0, 9)
    offsets.commit("g", "t", 1, 9)
    offsets.commit("own", "t", 0, 2)
    to_the_end(offsets.merge({"t@g": {0: 4}}))
    assert offsets.table == {"t@g": {0: 4}, "t@own": {0: 2}}
    assert offsets.changed


async def test_a_delivery_is_on_disk_before_the_table_counts_it() -> None:
    file = TextFile()
    delays = DelayOffsets(file)
    delays.advance(2, 1, 100)
    steps = []

    async def flush() -> None:
        steps.append(file.text)
        delays.advance(2, 2, 200)
        await trio.lowlevel.checkpoint()

    async def broken() -> None:
        raise OSError("no space")

    await delays.persist_in_background(broken)
    assert not file.text
    await delays.persist_in_background(flush)
    assert not steps[0]
    assert file.text == b'{\n\t"offsetTable":{2:1\n\t}\n}'
    assert delays.changed
    delays.persist()
    assert b"{2:2" in file.text
    assert not delays.changed


@pytest.mark.parametrize("table", [OffsetTable, DelayOffsets])
@pytest.mark.parametrize("text", [b'{"offsetTable":{"T@G":{"a":1},"x":2}}', b'{"offsetTable":{"T@G":{0:[]},1:null}}'])
def test_a_file_of_another_shape_stops_the_start_with_its_name(table: Any, text: bytes) -> None:
    file = TextFile(text)
    with pytest.raises(ConfigFileDamaged, match=f"{file.path} does not hold what it should"):
        table(file).load()


KEYS = 20_000


def large_table(file: TextFile | None = None, times: TextFile | None = None) -> OffsetTable:
    resets = Resets(times, lambda: 1000)
    offsets = OffsetTable(file, resets=resets)
    for number in range(KEYS):
        offsets.commit("g", f"t{number}", 0, 10)
    return offsets


def change(offsets: OffsetTable) -> None:
    """One of everything that changes the table: at both ends of it, since it is written from its begin."""
    offsets.commit("g", "t0", 0, 11)
    offsets.commit("g", f"t{KEYS - 1}", 0, 5)
    offsets.commit("g", f"t{KEYS - 2}", 1, 5)
    offsets.commit("new", "t", 0, 1)
    to_the_end(offsets.clone("g", "h", f"t{KEYS - 3}"))
    to_the_end(offsets.merge({f"t{KEYS - 4}@g": {0: 99}}))
    to_the_end(offsets.remove_group("g"))


async def test_the_file_holds_one_moment_and_others_run_while_it_is_made(
    autojump_clock: trio.testing.MockClock,
) -> None:
    file, times = TextFile(), TextFile()
    offsets = large_table(file, times)
    offsets.commit("g", "t7", 0, 3)
    before, resets_before = dict(offsets.table), fastjson.dumps_pretty({"resets": {"t7@g": {0: 1000}}})
    expected = fastjson.dumps_pretty({"offsetTable": before})
    turns = 0

    async def write() -> None:
        await offsets.persist_in_background()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1
            if turns == 3:
                change(offsets)
    assert turns >= KEYS * 5 // fastjson.SLICE_WEIGHT
    assert file.text == expected
    assert times.text == resets_before
    assert offsets.changed, "what has changed meanwhile is written the next time"
    await offsets.persist_in_background()
    assert file.text == offsets.pretty()
    assert b'"t7@g"' not in file.text


async def test_a_write_that_is_cancelled_leaves_the_old_file_and_is_done_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    file, times = TextFile(b"old"), TextFile(b"old")
    offsets = large_table(file, times)
    offsets.commit("g", "t7", 0, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(offsets.persist_in_background)
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert (file.text, times.text) == (b"old", b"old")
    offsets.persist()
    assert file.text == offsets.pretty()
    assert b'"t7@g":{0:1000' in times.text


def test_slaves_get_offsets_and_resets_of_one_moment() -> None:
    offsets = large_table()
    offsets.commit("g", "t7", 0, 3)
    expected = offsets.encode(), offsets.resets.encode()  # type: ignore[union-attr]
    slices = offsets.for_slaves()
    next(slices)
    change(offsets)
    assert to_the_end(slices) == expected
    assert to_the_end(OffsetTable(None).for_slaves()) == (b'{"offsetTable":{}}', None)


@pytest.mark.parametrize(("topics", "queues"), [(1, 20_000), (40, 1000)])
def test_offsets_are_copied_and_removed_in_slices(topics: int, queues: int) -> None:
    offsets = OffsetTable(None, resets=Resets(None, lambda: 1000))
    for number in range(topics):
        for queue_id in range(queues):
            offsets.commit("g", f"t{number}", queue_id, 10)
    if topics == 1:
        assert max(lines_of_slices(offsets.clone("g", "h", "t0"))) < 20_000
        assert offsets.queues("h", "t0") == offsets.queues("g", "t0")
    assert max(lines_of_slices(offsets.remove_group("g"))) < 40_000
    assert not any(key.endswith("@g") for key in offsets.table)


@pytest.mark.parametrize(("topics", "queues"), [(1, 20_000), (20_000, 1)])
@pytest.mark.parametrize("compat_49", [False, True])
def test_offsets_are_merged_in_slices(topics: int, queues: int, compat_49: bool) -> None:
    offsets = OffsetTable(None, resets=None if compat_49 else Resets(None, lambda: 1000))
    received = {f"t{number}@g": dict.fromkeys(range(queues), 10) for number in range(topics)}
    assert max(lines_of_slices(offsets.merge(received))) < 60_000
    assert offsets.table == received
    times = {f"gone{number}@g": dict.fromkeys(range(queues), 10) for number in range(topics)}
    assert max(lines_of_slices(offsets.merge(received, times))) < 60_000
    fallen = {key: dict.fromkeys(of_queues, 9) for key, of_queues in received.items()}
    assert max(lines_of_slices(offsets.merge(fallen, None, received))) < 60_000
    assert offsets.table == fallen


async def test_a_long_answer_of_another_broker_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    decode = ConsumerOffsetTable.decode
    monkeypatch.setattr(
        ConsumerOffsetTable, "decode", lambda body: (threads.append(threading.get_ident()), decode(body))[1]
    )
    offsets = large_table()
    assert await decode_received(offsets.encode(), '{"t0@g":{0:5}}') == (offsets.table, {"t0@g": {0: 5}})
    assert await decode_received(b'{"offsetTable":{"t@g":{0:4}}}', None) == ({"t@g": {0: 4}}, None)
    assert [thread == threading.get_ident() for thread, _ in itertools.groupby(threads)] == [False, True]


async def test_a_file_written_during_a_merge_is_written_again_after_it(autojump_clock: trio.testing.MockClock) -> None:
    file = TextFile()
    offsets = OffsetTable(file, resets=Resets(None, lambda: 1000))
    slices = offsets.merge({f"t{number}@g": {0: 10} for number in range(KEYS)})
    next(slices)
    assert await offsets.persist_in_background()
    assert not offsets.changed
    to_the_end(slices)
    assert await offsets.persist_in_background()
    assert file.text == offsets.pretty()


def test_offsets_in_removed_topics_are_removed_at_other_brokers_of_the_set() -> None:
    clock = iter(range(1000, 2000))
    first, second = (OffsetTable(None, resets=Resets(None, lambda: next(clock))) for _ in range(2))
    for topic in ("gone", "made again", "kept"):
        first.commit("g", topic, 0, 10)
        first.commit("h", topic, 3, 10)
    to_the_end(second.merge(first.table, {}))
    gone = {"gone", "made again"}
    slices = first.remove_topics(lambda topic: topic in gone)
    gone.discard("made again")
    to_the_end(slices)
    assert set(first.table) == {"made again@g", "made again@h", "kept@g", "kept@h"}
    assert first.resets is not None
    to_the_end(second.merge(first.table, first.resets.table))
    assert second.table == first.table
    assert first.held_bytes == sum(first._bytes_of(key) for key in first.table)


@pytest.mark.parametrize(("groups", "queues"), [(3000, 1), (2, 3000)])
def test_offsets_in_a_topic_that_is_made_again_while_they_are_removed_stay(groups: int, queues: int) -> None:
    for turns in range(1, 4):
        offsets = OffsetTable(None, resets=Resets(None, lambda: 1000))
        for group in range(groups):
            for queue_id in range(queues):
                offsets.commit(f"g{group}", "T", queue_id, 500)
        gone = {"T"}
        slices = offsets.remove_topics(lambda topic, gone=gone: topic in gone)  # type: ignore[misc]
        for _ in zip(range(turns), slices, strict=False):
            pass
        gone.clear()
        for group in range(groups):
            offsets.commit(f"g{group}", "T", 0, 1)
        to_the_end(slices)
        assert [offsets.query(f"g{group}", "T", 0) for group in range(groups)] == [1] * groups


def test_a_topic_of_few_queues_is_removed_all_at_once() -> None:
    offsets = OffsetTable(None, resets=Resets(None, lambda: 1000))
    for number in range(500):
        for queue_id in range(5):
            offsets.commit("g", f"t{number}", queue_id, 10)
    for _ in offsets.remove_group("g"):
        assert all(len(queues) == 5 for queues in offsets.table.values())
    assert offsets.table == {}
