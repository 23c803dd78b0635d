"""A slave's requests for its master's tables: their times, the values passed on, and the effect of failures."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.wire.command import Command
from triomq_server.replication.metadata import PERIOD_S, SOONEST_S, MetadataSync
from triomq_server.wire import AnswerTimeoutError

CODES = [
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
]


class FakeMaster:
    """Answers every request with its own code as the body."""

    def __init__(self) -> None:
        self.down = False
        self.refuses: set[int] = set()
        self.silent: set[int] = set()
        self.asked: list[tuple[float, str]] = []

    @asynccontextmanager
    async def open_link(self, address: str) -> AsyncIterator["FakeMaster"]:
        await trio.lowlevel.checkpoint()
        self.asked.append((trio.current_time(), address))
        if self.down:
            raise ConnectionRefusedError(111, "no listener")
        yield self

    async def request(self, command: Command, timeout_s: float) -> Command:
        await trio.lowlevel.checkpoint()
        if command.code in self.silent:
            await trio.sleep(timeout_s)
            raise AnswerTimeoutError("no answer")
        if command.code in self.refuses:
            return command.answer(ResponseCode.SYSTEM_ERROR, "no")
        return command.answer(body=str(int(command.code)).encode())


class Tables:
    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []

    def _take(self, name: str, body: bytes) -> None:
        if body == b"bad":
            raise ValueError("no table")
        self.taken.append((name, body))

    async def replace_topics(self, body: bytes) -> None:
        self._take("topics", body)

    async def merge_consumer_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        self._take("offsets", body)

    async def save_delay_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        self._take("delays", body)

    async def replace_groups(self, body: bytes) -> None:
        self._take("groups", body)


ALL = [("topics", b"21"), ("offsets", b"43"), ("delays", b"45"), ("groups", b"201")]


@pytest.fixture
def master() -> FakeMaster:
    return FakeMaster()


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
async def sync(master: FakeMaster, tables: Tables, nursery: trio.Nursery) -> MetadataSync:
    sync = MetadataSync(tables, master.open_link, own_address="me:1")
    nursery.start_soon(sync.run)
    return sync


async def test_all_four_soon_after_the_start_then_every_period(autojump_clock, sync, master, tables) -> None:
    begin = trio.current_time()
    sync.follow("master:10911")
    await trio.sleep(30)
    assert tables.taken == ALL * 3
    assert [(round(when - begin, 1), whom) for when, whom in master.asked] == [
        (seconds, "master:10911") for seconds in (0.1, 10.1, 20.1)
    ]
    assert sync.rounds == 3


async def test_nothing_is_asked_without_a_master_or_of_the_slave_itself(autojump_clock, sync, master) -> None:
    await trio.sleep(30)
    sync.follow("me:1")
    await trio.sleep(30)
    assert master.asked == []


async def test_a_new_master_and_an_unknown_topic_are_asked_about_at_once_but_not_without_end(
    autojump_clock, sync, master
) -> None:
    await trio.sleep(5)
    begin = trio.current_time()
    sync.follow("master:10911")
    await trio.sleep(0.01)
    assert len(master.asked) == 1
    for _ in range(100):
        sync.fetch_soon()
        await trio.sleep(0.01)
    assert 5 <= len(master.asked) <= (trio.current_time() - begin) / SOONEST_S + 1


async def test_long_tables_are_not_asked_for_again_and_again(autojump_clock, sync, master, tables, monkeypatch) -> None:
    async def replace(body: bytes) -> None:
        await trio.sleep(1)

    monkeypatch.setattr(tables, "replace_topics", replace)
    sync.follow("master:10911")
    for _ in range(301):
        sync.fetch_soon()
        await trio.sleep(0.1)
    times = [round(when) for when, _ in master.asked]
    assert times == [times[0] + 5 * number for number in range(len(times))]
    assert len(times) >= 6


async def test_a_new_master_is_asked_at_once_after_one_that_takes_long(
    autojump_clock, sync, master, tables, monkeypatch
) -> None:
    async def replace(body: bytes) -> None:
        await trio.sleep(5)

    monkeypatch.setattr(tables, "replace_topics", replace)
    sync.follow("master:10911")
    await trio.sleep(8)
    sync.follow("other:10911")
    await trio.sleep(0.01)
    assert [whom for _, whom in master.asked] == ["master:10911", "other:10911"]


async def test_a_step_that_fails_leaves_the_others(autojump_clock, sync, master, tables, caplog) -> None:
    master.refuses.add(RequestCode.GET_ALL_TOPIC_CONFIG)
    master.silent.add(RequestCode.GET_ALL_DELAY_OFFSET)
    sync.follow("master:10911")
    await trio.sleep(5)
    assert tables.taken == [("offsets", b"43"), ("groups", b"201")]
    assert sync.rounds == 0
    assert "GET_ALL_TOPIC_CONFIG answered with code 1: no" in caplog.text


async def test_an_undecodable_table_is_a_log_line(autojump_clock, sync, master, tables, caplog, monkeypatch) -> None:
    async def replace(body: bytes) -> None:
        tables._take("topics", b"bad")

    monkeypatch.setattr(tables, "replace_topics", replace)
    sync.follow("master:10911")
    await trio.sleep(5)
    assert tables.taken == ALL[1:]
    assert "something else than its table" in caplog.text


async def test_an_answer_whose_fields_are_no_map_is_a_log_line(
    autojump_clock, sync, master, tables, caplog, monkeypatch
) -> None:
    request = master.request

    async def answer(command: Command, timeout_s: float) -> Command:
        answered = await request(command, timeout_s)
        if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            answered.raw_ext = msgspec.Raw(b"[]")
        return answered

    monkeypatch.setattr(master, "request", answer)
    sync.follow("master:10911")
    await trio.sleep(5)
    assert tables.taken == [ALL[0], *ALL[2:]]
    assert "GET_ALL_CONSUMER_OFFSET answered with something else than its table" in caplog.text


async def test_a_full_disk_of_the_slave_keeps_the_other_tables_and_is_not_reported_as_the_masters(
    autojump_clock, sync, master, tables, caplog, monkeypatch
) -> None:
    caplog.set_level("INFO")
    full = True

    async def save(body: bytes, fields: Mapping[str, str]) -> None:
        if full:
            raise OSError(28, "No space left on device")
        tables._take("delays", body)

    monkeypatch.setattr(tables, "save_delay_offsets", save)
    master.refuses.add(RequestCode.GET_ALL_TOPIC_CONFIG)
    sync.follow("master:10911")
    await trio.sleep(25)
    assert tables.taken == [("offsets", b"43"), ("groups", b"201")] * 3
    own = [message for message in caplog.messages if "GET_ALL_DELAY_OFFSET" in message]
    assert len(own) == 1
    assert "this broker's own disk" in own[0]
    assert "master:10911" not in caplog.text
    full = False
    await trio.sleep(20)
    assert tables.taken[-1] == ("groups", b"201")
    assert ("delays", b"45") in tables.taken
    assert [message for message in caplog.messages if "works again" in message] == [
        "metadata of the master: GET_ALL_DELAY_OFFSET works again"
    ]


async def test_a_master_that_is_away_is_asked_again(autojump_clock, sync, master, tables) -> None:
    master.down = True
    sync.follow("master:10911")
    await trio.sleep(5)
    assert tables.taken == []
    master.down = False
    await trio.sleep(PERIOD_S)
    assert tables.taken == ALL


async def test_an_error_without_text_is_named(autojump_clock, sync, master, tables, caplog, monkeypatch) -> None:
    async def save(body: bytes, fields: Mapping[str, str]) -> None:
        raise OSError

    async def replace(body: bytes) -> None:
        raise ValueError

    monkeypatch.setattr(tables, "save_delay_offsets", save)
    monkeypatch.setattr(tables, "replace_topics", replace)
    sync.follow("master:10911")
    await trio.sleep(5)
    assert (
        "GET_ALL_DELAY_OFFSET has been answered, but this broker's own disk refuses the table: OSError" in caplog.text
    )
    assert "GET_ALL_TOPIC_CONFIG answered with something else than its table: ValueError" in caplog.text
