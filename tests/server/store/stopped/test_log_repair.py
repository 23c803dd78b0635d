"""Repair of a stopped broker's log and tables from another copy: written data, and data that must not be written."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.record.layout import BLANK_MAGIC, HEAD_V4, MARK
from triomq_protocol.requests.admin import SubscriptionGroupTable
from triomq_protocol.requests.offset import ConsumerOffsetTable
from triomq_protocol.requests.registration import TopicConfigTable
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire import fastjson
from triomq_protocol.wire.command import Command
from triomq_server.admin.store_repair import Outcome, repair
from triomq_server.config import StoreConfig
from triomq_server.disk import StoreLocked
from triomq_server.replication.log_copy import READ_LOG
from triomq_server.store import MessageStore, NewRecord, ReadStatus, open_store
from triomq_server.store.stopped.checking import check_store
from triomq_server.store.stopped.log_repair import Place, flaw_of_copy

MakeConfig = Callable[..., StoreConfig]
MakeRecord = Callable[..., NewRecord]

FILE_BYTES = 8192
RECORD_BYTES = 333
MESSAGES = 120
SOURCE = "127.0.0.1:1"


class Copy:
    """Another broker with the files of a store, and the tables given.

    Attributes:
        is_ours: whether it knows READ_LOG; RocketMQ's brokers give single records only.
    """

    def __init__(self, root: Path) -> None:
        self.log = {int(file.name): file.read_bytes() for file in (root / "commitlog").iterdir()}
        self.tables: dict[int, bytes] = {}
        self.is_ours = True

    async def request(self, command: Command, timeout_s: float) -> Command:
        fields = command.fields or {}
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            begin, end = self.bounds
            bounds = {"commitLogMinOffset": str(begin), "commitLogMaxOffset": str(end)}
            return command.answer(body=KVTable(table=bounds).encode())
        if command.code in self.tables:
            return command.answer(body=self.tables[command.code])
        if command.code == READ_LOG and self.is_ours:
            data = self.bytes_at(int(fields["offset"]))[: min(int(fields["mostBytes"]), 1000)]
            return command.answer(body=data) if data else command.answer(ResponseCode.SYSTEM_ERROR, "nothing there")
        if command.code == RequestCode.VIEW_MESSAGE_BY_ID:
            data = self.bytes_at(int(fields["offset"]))
            size = MARK.unpack_from(data)[0] if len(data) >= MARK.size else 0
            return command.answer(body=data[:size]) if data else command.answer(ResponseCode.SYSTEM_ERROR)
        return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    @property
    def bounds(self) -> tuple[int, int]:
        """Where its log begins and ends."""
        written = [base for base, data in self.log.items() if data.rstrip(b"\0")]
        return min(self.log, default=0), max((base + len(self.log[base].rstrip(b"\0")) for base in written), default=0)

    def bytes_at(self, offset: int) -> bytes:
        return self.log.get(offset - offset % FILE_BYTES, b"")[offset % FILE_BYTES :]

    @asynccontextmanager
    async def open(self, address: str) -> AsyncIterator[Any]:
        if address != SOURCE:
            raise ConnectionRefusedError("nobody listens")
        yield self


@pytest.fixture
async def root(tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord) -> Path:
    """A store of five log files."""
    async with open_store(make_config(tmp_path / "store", mapped_file_size_commit_log=FILE_BYTES)) as store:
        for n in range(MESSAGES):
            store.append(make_record(n, queue_id=n % 2))
    return tmp_path / "store"


@pytest.fixture
def copy(root: Path) -> Copy:
    return Copy(root)


def log_bytes(root: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((root / "commitlog").iterdir())}


def all_files(root: Path) -> dict[Path, bytes]:
    # The lock is made by the process that opens the store.
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}


def overwrite(root: Path, offset: int, data: bytes) -> None:
    while data:
        part = FILE_BYTES - offset % FILE_BYTES
        with (root / "commitlog" / f"{offset - offset % FILE_BYTES:020d}").open("r+b") as file:
            file.seek(offset % FILE_BYTES)
            file.write(data[:part])
        offset, data = offset + part, data[part:]


async def mend(root: Path, copy: Copy, *, write: bool = True, sources: tuple[str, ...] = (SOURCE,)) -> list[Outcome]:
    found = await repair(root, sources, None, write, copy.open)
    return [one for one in found if one.what.startswith("log")]


def numbers(store: MessageStore, record_number: Any) -> list[int]:
    """All messages that can be pulled, in the order of their queue offsets."""
    found: list[int] = []
    for queue_id in range(2):
        at, high = store.queue_bounds("T", queue_id)
        while at < high:
            result = store.read("T", queue_id, at, 1, None)
            assert result is not None
            assert result.status in (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE)
            found += map(record_number, result.slices)
            at = result.next_offset
    return sorted(found)


async def test_a_lost_end_is_reported_and_not_copied(root: Path, copy: Copy) -> None:
    *_, last = sorted((root / "commitlog").iterdir())
    last.unlink()
    before = log_bytes(root)
    (outcome,) = await mend(root, copy)
    assert not outcome.repaired
    assert "the log ends here, but its queues know of messages up to log offset" in outcome.what
    assert outcome.reasons == (
        "put the missing files there again from a copy, or make a broker of the set that has them the master",
    )
    assert log_bytes(root) == before


DAMAGE = {
    "a body": [(5 * RECORD_BYTES + 150, b"?")],
    "a size": [(5 * RECORD_BYTES, b"\x7f")],
    "the first record": [(0, bytes(20))],
    "a page": [(4096, random.Random(1).randbytes(2000))],
    "across files": [(FILE_BYTES - 700, bytes(1400))],
    "the mark of a file": [(24 * RECORD_BYTES, bytes(8))],
    "a whole file": [(2 * FILE_BYTES, bytes(FILE_BYTES))],
    "several": [(n * RECORD_BYTES + 150, b"?") for n in (3, 4, 9, 30)],
}


@pytest.mark.parametrize("started", [False, True], ids=["before a start", "after a start"])
@pytest.mark.parametrize("name", DAMAGE)
async def test_damaged_records_are_taken_from_the_copy(
    name: str, started: bool, root: Path, copy: Copy, make_config: MakeConfig, record_number: Any
) -> None:
    config = make_config(root, mapped_file_size_commit_log=FILE_BYTES)
    sound = log_bytes(root)
    for offset, data in DAMAGE[name]:
        overwrite(root, offset, data)
    if started:
        (root / "abort").touch()  # so that the start checks all of the log
        (root / "checkpoint").unlink()
        async with open_store(config) as store:
            assert len(numbers(store, record_number)) < MESSAGES or name == "the mark of a file"
        assert log_bytes(root) != sound or name == "the mark of a file"
    before = all_files(root)
    planned = await mend(root, copy, write=False)
    assert all(one.found and not one.repaired for one in planned)
    assert all_files(root) == before
    assert planned or log_bytes(root) == sound
    assert [one.what for one in await mend(root, copy)] == [one.what for one in planned]
    assert {name: data.rstrip(b"\0") for name, data in log_bytes(root).items()} == {
        name: data.rstrip(b"\0") for name, data in sound.items()
    }
    for _ in range(2):
        async with open_store(config) as store:
            assert numbers(store, record_number) == list(range(MESSAGES))
        assert not (root / "triomq" / "repairedLog.json").exists()
    assert check_store(root).damage == []
    assert await mend(root, copy) == []


@pytest.mark.parametrize("seed", range(10))
async def test_damage_anywhere_in_front_of_the_last_record_is_repaired_and_nothing_else_written(
    seed: int, root: Path, copy: Copy
) -> None:
    chance = random.Random(seed)
    sound = log_bytes(root)
    end = MESSAGES // 24 * FILE_BYTES - FILE_BYTES
    for _ in range(chance.randrange(1, 6)):
        size = chance.choice([1, 8, 60, 600])
        overwrite(root, chance.randrange(end - size), chance.randbytes(size))
    for one in await mend(root, copy):
        assert one.repaired, one
    after = log_bytes(root)
    assert check_store(root).count == 0
    # Bytes that no checksum covers may still differ: those of heads and properties, and behind the marks of files.
    differing = sum(a != b for name in sound for a, b in zip(sound[name], after[name], strict=True))
    assert differing <= 5 * 600


@pytest.mark.parametrize("at", [0, 5, 23])
async def test_a_copy_that_is_damaged_at_the_same_place_is_refused(at: int, root: Path, copy: Copy) -> None:
    overwrite(root, at * RECORD_BYTES + 150, b"?")
    for change in (150, 0, 30):  # body, size, log offset
        damaged = Copy(root)
        data = bytearray(copy.log[0])
        data[at * RECORD_BYTES + change] ^= 1
        damaged.log[0] = bytes(data)
        before = log_bytes(root)
        (outcome,) = await mend(root, damaged)
        assert not outcome.found
        assert f"holds a record whose {'body' if change == 150 else ''}" in outcome.reasons[0] or change
        assert log_bytes(root) == before


async def test_the_record_that_a_start_has_put_in_place_is_no_copy(
    root: Path, copy: Copy, make_config: MakeConfig
) -> None:
    config = make_config(root, mapped_file_size_commit_log=FILE_BYTES)
    overwrite(root, 5 * RECORD_BYTES + 150, b"?")
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    async with open_store(config):
        pass
    before = log_bytes(root)
    (outcome,) = await mend(root, Copy(root))
    assert "has been damaged at log offset 1665 as well" in outcome.reasons[0]
    assert log_bytes(root) == before
    assert [one.repaired for one in await mend(root, copy)] == [True]


async def test_another_history_is_refused(
    root: Path, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    async with open_store(make_config(tmp_path / "other", mapped_file_size_commit_log=FILE_BYTES)) as store:
        for n in range(MESSAGES):
            store.append(make_record(n + 1000, queue_id=n % 2))
    overwrite(root, 5 * RECORD_BYTES + 150, b"?")
    before = log_bytes(root)
    (outcome,) = await mend(root, Copy(tmp_path / "other"))
    assert not outcome.found
    assert "it is not a copy of this log" in outcome.reasons[0]
    assert log_bytes(root) == before


async def test_a_rocketmq_broker_gives_single_records(root: Path, copy: Copy) -> None:
    copy.is_ours = False
    sound = log_bytes(root)
    overwrite(root, 5 * RECORD_BYTES + 150, b"?")
    overwrite(root, 9 * RECORD_BYTES, bytes(2 * RECORD_BYTES))
    outcomes = await mend(root, copy)
    assert [one.found for one in outcomes] == ["1 record", "2 records"]
    assert log_bytes(root) == sound
    overwrite(root, FILE_BYTES - 700, bytes(1400))
    damaged = log_bytes(root)
    (outcome,) = await mend(root, copy)
    assert not outcome.found
    assert log_bytes(root) == damaged


async def test_the_first_broker_with_a_sound_copy_is_taken(root: Path, copy: Copy) -> None:
    sound = log_bytes(root)
    overwrite(root, 5 * RECORD_BYTES + 150, b"?")
    (outcome,) = await mend(root, copy, sources=("127.0.0.1:2", SOURCE))
    assert (outcome.source, outcome.repaired) == (SOURCE, True)
    assert "127.0.0.1:2: cannot be asked: nobody listens" in outcome.reasons
    assert log_bytes(root) == sound


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("records", [1, 2])
async def test_the_end_of_the_log_is_repaired_as_far_as_it_was_written(
    records: int, is_ours: bool, root: Path, copy: Copy, make_config: MakeConfig, record_number: Any
) -> None:
    sound = log_bytes(root)
    start = (MESSAGES // 24 - 1) * FILE_BYTES + (24 - records) * RECORD_BYTES
    for n in range(records):
        overwrite(root, start + n * RECORD_BYTES + 150, b"?")
    copy.is_ours = is_ours
    (outcome,) = await mend(root, copy)
    assert outcome.found == ("1 record" if records == 1 else f"{records} records")
    assert log_bytes(root) == sound
    async with open_store(make_config(root, mapped_file_size_commit_log=FILE_BYTES)) as store:
        assert numbers(store, record_number) == list(range(MESSAGES))


async def test_the_end_of_the_log_that_the_copy_has_not_is_left_to_the_start(root: Path, copy: Copy) -> None:
    last = (MESSAGES // 24 - 1) * FILE_BYTES
    overwrite(root, last + 23 * RECORD_BYTES + 150, b"?")
    before = log_bytes(root)
    for end in (0, 23 * RECORD_BYTES, 23 * RECORD_BYTES + 5, 24 * RECORD_BYTES - 1):
        copy.log[last] = copy.log[last][:end]
        (outcome,) = await mend(root, copy)
        assert not outcome.found
        assert "without a repair the next start cuts it off" in outcome.reasons[-1]
        assert log_bytes(root) == before


async def test_a_store_in_use_is_refused(root: Path, copy: Copy, make_config: MakeConfig) -> None:
    async with open_store(make_config(root, mapped_file_size_commit_log=FILE_BYTES)):
        with pytest.raises(StoreLocked):
            await mend(root, copy)


async def test_what_was_damaged_is_kept(root: Path, copy: Copy) -> None:
    overwrite(root, 5 * RECORD_BYTES + 150, b"?")
    damaged = log_bytes(root)[f"{0:020d}"][5 * RECORD_BYTES : 6 * RECORD_BYTES]
    await mend(root, copy)
    assert (root / "triomq" / "damaged" / f"{5 * RECORD_BYTES:020d}").read_bytes() == damaged


async def test_entries_of_messages_that_came_later_stay(
    tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord, record_number: Any
) -> None:
    """A queue whose only record was damaged has given its number to the next message."""
    root = tmp_path / "store"
    config = make_config(root, mapped_file_size_commit_log=FILE_BYTES)
    async with open_store(config) as store:
        for n in range(30):
            store.append(make_record(n, topic="U" if n == 5 else "T"))
    copy = Copy(root)
    overwrite(root, 5 * RECORD_BYTES + 150, b"?")
    shutil.rmtree(root / "consumequeue" / "U")
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    async with open_store(config) as store:
        assert store.append(make_record(30, topic="U")).queue_offset == 0
    assert [one.repaired for one in await mend(root, copy)] == [True]
    for _ in range(2):
        async with open_store(config) as store:
            result = store.read("U", 0, 0, 32, None)
            assert result is not None
            assert [record_number(data) for data in result.slices] == [30]


def test_a_mark_that_ends_behind_an_offset_is_no_copy() -> None:
    mark = MARK.pack(FILE_BYTES - 100, BLANK_MAGIC)
    for stop, sound in ((FILE_BYTES, True), (FILE_BYTES - 1, False), (200, False)):
        place = Place(100, stop, "damage", replaced=False)
        _, flaw = flaw_of_copy(mark.ljust(stop - 100, b"\0"), place, FILE_BYTES)
        assert (not flaw) == sound


# -- tables


TOPICS = b'{"dataVersion":{},"topicConfigTable":{"T":{"topicName":"T","readQueueNums":5}}}'
OFFSETS = b'{"offsetTable":{"T@G":{0:7}}}'


def table(root: Path, name: str) -> Path:
    (root / "config").mkdir(exist_ok=True)
    return root / "config" / name


@pytest.mark.parametrize("damage", ["missing", "broken", "empty", "something else"])
async def test_tables_are_taken_from_the_copy(damage: str, root: Path, copy: Copy) -> None:
    copy.tables = {
        RequestCode.GET_ALL_TOPIC_CONFIG: TOPICS,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'{"subscriptionGroupTable":{"G":{"groupName":"G"}}}',
        RequestCode.GET_ALL_CONSUMER_OFFSET: OFFSETS,
        RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{}}',
    }
    files = {
        "topics.json": RequestCode.GET_ALL_TOPIC_CONFIG,
        "subscriptionGroup.json": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        "consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
    }
    shapes: dict[str, Any] = {
        "topics.json": TopicConfigTable,
        "subscriptionGroup.json": SubscriptionGroupTable,
        "consumerOffset.json": ConsumerOffsetTable,
    }
    text = {"broken": b'{"topic', "empty": b"", "something else": b"[1]"}.get(damage)
    for name in files if text is not None else ():
        table(root, name).write_bytes(text)
        table(root, name + ".bak").write_bytes(text)
    assert sum(bool(one.found) for one in await repair(root, [SOURCE], None, False, copy.open)) == 3
    assert text is not None or not (root / "config").exists()
    outcomes = await repair(root, [SOURCE], None, True, copy.open)
    assert [(one.found, one.repaired) for one in outcomes] == [("1 entries", True)] * 3
    for name, code in files.items():
        written = table(root, name).read_bytes()
        assert table(root, name + ".bak").read_bytes() == written
        assert shapes[name].decode(written) == shapes[name].decode(copy.tables[code])
        if text is not None:
            assert (root / "triomq" / "damaged" / name).read_bytes() == text
    assert await repair(root, [SOURCE], None, True, copy.open) == []


async def test_a_table_whose_backup_is_sound_is_not_changed(root: Path, copy: Copy) -> None:
    for name, member in (
        ("topics.json", "topicConfigTable"), ("subscriptionGroup.json", "subscriptionGroupTable"),
        ("consumerOffset.json", "offsetTable"), ("delayOffset.json", "offsetTable"),
    ):  # fmt: skip
        table(root, name).write_bytes(b"{")
        table(root, name + ".bak").write_text(json.dumps({member: {}}))
    assert await repair(root, [SOURCE], None, True, copy.open) == []
    assert table(root, "topics.json").read_bytes() == b"{"


async def test_answers_that_are_no_tables_are_refused(root: Path, copy: Copy) -> None:
    table(root, "topics.json").write_bytes(b"{")
    for body in (b"", b"{", b"[]", b'{"topicConfigTable":3}'):
        copy.tables[RequestCode.GET_ALL_TOPIC_CONFIG] = body
        outcomes = await repair(root, [SOURCE], None, True, copy.open)
        assert not any(one.repaired for one in outcomes)
    assert table(root, "topics.json").read_bytes() == b"{"


@pytest.mark.parametrize(
    ("name", "code", "body"),
    [
        ("topics.json", RequestCode.GET_ALL_TOPIC_CONFIG, text)
        for text in (
            '{"topicConfigTable":{"x":5}}',
            '{"topicConfigTable":{"x":{"topicName":"y"}}}',
            '{"topicConfigTable":{"x":{}}}',
            '{"topicConfigTable":{"../../y":{"topicName":"../../y"}}}',
            '{"topicConfigTable":{"..":{"topicName":".."}}}',
            '{"topicConfigTable":{"x":{"topicName":"x","perm":"z"}}}',
            '{"topicConfigTable":{"x":{"topicName":"x","perm":16}}}',
            '{"topicConfigTable":{"x":{"topicName":"x","readQueueNums":-1}}}',
            '{"topicConfigTable":{"x":{"topicName":"x","writeQueueNums":2147483648}}}',
            '{"topicConfigTable":{"x":{"topicName":"x"}},"dataVersion":{"counter":"q"}}',
            '{"topicConfigTable":{"x":{"topicName":"x"}},"dataVersion":{"counter":-1}}',
        )
    ]
    + [
        ("subscriptionGroup.json", RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, text)
        for text in (
            '{"subscriptionGroupTable":{"x":[]}}',
            '{"subscriptionGroupTable":{"x":{"groupName":"y"}}}',
            '{"subscriptionGroupTable":{"a/b":{"groupName":"a/b"}}}',
            '{"subscriptionGroupTable":{"x":{"groupName":"x","retryQueueNums":-1}}}',
        )
    ]
    + [
        ("consumerOffset.json", RequestCode.GET_ALL_CONSUMER_OFFSET, text)
        for text in (
            '{"offsetTable":{"T@G":{"0":"abc"}}}',
            '{"offsetTable":{"T@G":{"0":1.5}}}',
            '{"offsetTable":{"T@G":{"0":1e999}}}',
            '{"offsetTable":{"T@G":{"0":99999999999999999999}}}',
            '{"offsetTable":{"T@G":{"zero":1}}}',
            '{"offsetTable":{"T@G":5}}',
            '{"offsetTable":{"T":{"0":5}}}',
            '{"offsetTable":{"T@G":{"0":-1}, "U@G":{"99999999":1}}}',
        )
    ]
    + [
        ("delayOffset.json", RequestCode.GET_ALL_DELAY_OFFSET, text)
        for text in (
            '{"offsetTable":{"1":"abc"}}',
            '{"offsetTable":{"one":1}}',
            '{"offsetTable":{"0":1,"3":-1}}',
            '{"offsetTable":{"1":1e999}}',
        )
    ],
)
async def test_garbage_in_the_shape_of_a_table_is_refused(
    name: str, code: RequestCode, body: str, root: Path, copy: Copy
) -> None:
    table(root, name).write_bytes(b"{")
    copy.tables[code] = body.encode()
    outcomes = await repair(root, [SOURCE], None, True, copy.open)
    assert not any(one.repaired for one in outcomes)
    assert table(root, name).read_bytes() == b"{"


async def test_tables_that_a_start_would_refuse_are_damaged(root: Path, copy: Copy) -> None:
    garbage = '{"topicConfigTable":{"x":5}}'
    for name in ("topics.json", "topics.json.bak"):
        table(root, name).write_text(garbage)
    (root / "triomq" / "removedQueues.json").write_text('{"1":2}')
    copy.tables = {RequestCode.GET_ALL_TOPIC_CONFIG: TOPICS}
    outcomes = await repair(root, [SOURCE], None, True, copy.open)
    topics, removed = outcomes[0], outcomes[-1]
    assert topics.repaired
    assert "does not hold what it should" in topics.what
    assert (root / "triomq" / "damaged" / "topics.json").read_text() == garbage
    assert "removedQueues.json does not hold what it should" in removed.what
    assert not removed.found


async def test_tables_of_another_log_are_refused(
    root: Path, tmp_path: Path, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """Also where this log is not damaged; and a trusted peer is not used if it is known to be another."""
    async with open_store(make_config(tmp_path / "other", mapped_file_size_commit_log=FILE_BYTES)) as store:
        for n in range(MESSAGES):
            store.append(make_record(n + 1000, queue_id=n % 2))
    other = Copy(tmp_path / "other")
    other.tables = {RequestCode.GET_ALL_TOPIC_CONFIG: TOPICS, RequestCode.GET_ALL_CONSUMER_OFFSET: OFFSETS}
    for trust in (False, True):
        outcomes = await repair(root, [SOURCE], None, True, other.open, trust=trust)
        assert len(outcomes) == 4
        assert not any(one.found for one in outcomes)
        assert all("it is not a copy of this log" in one.reasons[0] for one in outcomes)
    assert not (root / "config").exists()


@pytest.mark.parametrize("common", [3, 30, 100])
async def test_tables_of_a_log_that_has_diverged_are_refused(
    common: int, root: Path, tmp_path: Path, copy: Copy, make_config: MakeConfig, make_record: MakeRecord
) -> None:
    """The last records that both have count, not those from before."""
    other = tmp_path / "other"
    async with open_store(make_config(other, mapped_file_size_commit_log=FILE_BYTES)) as store:
        for n in range(MESSAGES):
            store.append(make_record(n if n < common else n + 1000, queue_id=n % 2))
    # Records have the time of their writing: the part in common is one store's.
    diverged = Copy(other)
    end = common // 24 * FILE_BYTES + common % 24 * RECORD_BYTES
    for base in diverged.log:
        kept = max(0, min(end - base, FILE_BYTES))
        diverged.log[base] = copy.log[base][:kept] + diverged.log[base][kept:]
    diverged.tables = {RequestCode.GET_ALL_CONSUMER_OFFSET: OFFSETS}
    outcomes = await repair(root, [SOURCE], None, True, diverged.open)
    assert not any(one.found for one in outcomes)
    assert not (root / "config").exists()


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("files", [1, 2, 4])
async def test_tables_of_a_copy_that_lags_or_starts_later_are_taken(
    files: int, is_ours: bool, root: Path, copy: Copy
) -> None:
    whole = copy.log
    for part in (sorted(whole)[:files], sorted(whole)[-files:]):
        shutil.rmtree(root / "config", ignore_errors=True)
        copy.log = {base: whole[base] for base in part}
        copy.is_ours = is_ours
        copy.tables = {RequestCode.GET_ALL_CONSUMER_OFFSET: OFFSETS}
        outcomes = await repair(root, [SOURCE], None, True, copy.open)
        assert sum(one.repaired for one in outcomes) == 1


async def test_tables_are_taken_from_a_copy_some_records_of_which_are_damaged(root: Path, copy: Copy) -> None:
    last = max(copy.log)
    for base, at in ((0, 0), (last, 22 * RECORD_BYTES), (last, 23 * RECORD_BYTES)):
        copy.log[base] = copy.log[base][: at + 150] + b"??" + copy.log[base][at + 152 :]
    copy.tables = {RequestCode.GET_ALL_CONSUMER_OFFSET: OFFSETS}
    outcomes = await repair(root, [SOURCE], None, True, copy.open)
    assert sum(one.repaired for one in outcomes) == 1


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("case", ["this log is empty", "the other log is empty", "the other log starts later"])
async def test_where_nothing_can_be_compared_the_peer_has_to_be_trusted(
    case: str, trust: bool, root: Path, copy: Copy
) -> None:
    if case == "this log is empty":
        for base in copy.log:
            overwrite(root, base, bytes(FILE_BYTES))
    elif case == "the other log is empty":
        copy.log.clear()
    else:
        copy.log = {base + 100 * FILE_BYTES: data for base, data in copy.log.items()}
    copy.tables = {RequestCode.GET_ALL_TOPIC_CONFIG: TOPICS}
    outcomes = await repair(root, [SOURCE], None, True, copy.open, trust=trust)
    topics = next(one for one in outcomes if "topics.json" in one.what)
    assert topics.repaired is trust
    assert "nothing shows whether it is a copy" in topics.reasons[0]
    assert (root / "config" / "topics.json").exists() == trust


@pytest.mark.parametrize("trust", [False, True])
async def test_a_log_without_a_sound_record_is_taken_from_a_trusted_peer_only(
    trust: bool, root: Path, copy: Copy
) -> None:
    for base in copy.log:
        overwrite(root, base, b"?" * FILE_BYTES)
    outcomes = await repair(root, [SOURCE], None, True, copy.open, trust=trust)
    assert outcomes[0].repaired is trust
    assert trust or "nothing shows whether it is a copy" in outcomes[0].reasons[0]


@pytest.mark.parametrize("with_files", [True, False], ids=["with queue files", "without"])
async def test_offsets_are_not_taken_beyond_the_messages_of_the_queues(
    with_files: bool, root: Path, copy: Copy
) -> None:
    if not with_files:
        shutil.rmtree(root / "consumequeue")
    copy.tables = {
        RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@G":{0:299,1:60,7:5},"U@G":{0:3},"T@H":{0:12}}}',
        RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:4611686018427387904}}',
    }
    offsets, progress = [one for one in await repair(root, [SOURCE], None, True, copy.open) if one.repaired]
    assert "3 offsets were behind the messages" in offsets.found
    assert "1 offsets were behind the messages" in progress.found
    assert fastjson.loads(table(root, "consumerOffset.json").read_bytes()) == {
        "offsetTable": {"T@G": {0: 60, 1: 60, 7: 0}, "U@G": {0: 0}, "T@H": {0: 12}}
    }
    assert fastjson.loads(table(root, "delayOffset.json").read_bytes()) == {"offsetTable": {1: 0}}


async def test_queues_whose_messages_have_expired_end_where_their_files_do(root: Path, copy: Copy) -> None:
    shutil.copytree(root / "consumequeue" / "T", root / "consumequeue" / "Old")
    copy.tables = {RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"Old@G":{0:59,1:61}}}'}
    await repair(root, [SOURCE], None, True, copy.open)
    written = fastjson.loads(table(root, "consumerOffset.json").read_bytes())
    assert written == {"offsetTable": {"Old@G": {0: 59, 1: 60}}}


async def test_messages_that_are_repaired_count_as_the_queue_s(root: Path, copy: Copy) -> None:
    overwrite(root, max(copy.log) + 22 * RECORD_BYTES + 150, b"?")
    overwrite(root, max(copy.log) + 23 * RECORD_BYTES + 150, b"?")
    copy.tables = {RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@G":{0:60,1:60}}}'}
    outcomes = await repair(root, [SOURCE], None, True, copy.open)
    assert not any("behind" in one.found for one in outcomes)


async def test_the_layout_that_these_tests_count_on(root: Path) -> None:
    first = log_bytes(root)[f"{0:020d}"]
    assert {MARK.unpack_from(first, n * RECORD_BYTES)[0] for n in range(24)} == {RECORD_BYTES}
    assert MARK.unpack_from(first, 24 * RECORD_BYTES)[0] == FILE_BYTES - 24 * RECORD_BYTES
    assert HEAD_V4.unpack_from(first)[6] == 0


# -- missing files


@pytest.mark.parametrize("missing", [[1], [2], [1, 2], [1, 3]], ids=str)
@pytest.mark.parametrize("started", [0, 1, 2])
async def test_a_missing_file_is_reported_and_repaired(
    missing: list[int],
    started: int,
    root: Path,
    copy: Copy,
    make_config: MakeConfig,
    record_number: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Repaired before a start, or after one or two."""
    before = log_bytes(root)
    names = [f"{n * FILE_BYTES:020d}" for n in missing]
    config = make_config(root, mapped_file_size_commit_log=FILE_BYTES)
    for name in names:
        (root / "commitlog" / name).unlink()
    report = check_store(root)
    assert sum(one.size_bytes for one in report.damage if one.kind == "missing") == len(missing) * FILE_BYTES
    for _ in range(started):
        caplog.clear()
        async with open_store(config) as store:
            there = numbers(store, record_number)
            assert len(there) == MESSAGES - FILE_BYTES // RECORD_BYTES * len(missing)
            assert store.log_max_offset == int(list(before)[-1]) + len(before[list(before)[-1]].rstrip(b"\0"))
        told = [one.getMessage() for one in caplog.records if one.levelname == "CRITICAL"]
        assert all(any(name in line for line in told) for name in names)
        assert all("nothing has been deleted" in line and "repair-store" in line for line in told)
        assert {name for name in before if name not in names} <= set(log_bytes(root))
    outcomes = await mend(root, copy, write=False)
    assert not any(one.repaired for one in outcomes)
    if not started:
        assert all(name not in log_bytes(root) for name in names)
    outcomes = await mend(root, copy)
    assert all(one.repaired for one in outcomes)
    assert outcomes
    if not started:
        assert all("new file" in one.found for one in outcomes)
    assert log_bytes(root) == before
    assert await mend(root, copy) == []
    caplog.clear()
    async with open_store(config) as store:
        assert numbers(store, record_number) == list(range(MESSAGES))
    assert not [one for one in caplog.records if one.levelname == "CRITICAL"]
    assert [one.kind for one in check_store(root).damage] == []


async def test_a_misplaced_file_far_away_is_reported_and_kept(
    root: Path, make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    stray = root / "commitlog" / f"{5000 * FILE_BYTES:020d}"
    stray.write_bytes(bytes(FILE_BYTES))
    overwrite(root, 5000 * FILE_BYTES, next(iter(log_bytes(root).values()))[:RECORD_BYTES])
    async with open_store(make_config(root, mapped_file_size_commit_log=FILE_BYTES)):
        pass
    assert "no log file" in caplog.text
    assert len(log_bytes(root)) < 20
