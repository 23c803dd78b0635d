"""The check of open transactions, round by round: its limits, and what it does where something fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from loop_lines import lines_of

from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import encode_properties_bytes
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.heartbeat import HeartbeatData, ProducerData
from triomq_protocol.wire.command import Command
from triomq_server.broker.tables.offsets.resets import Resets
from triomq_server.broker.transactions.check_back import HANDLED_AT_ONCE, UNSENT_MOST_BYTES, CheckBack, _Round
from triomq_server.broker.transactions.decisions import MUTE_ROUNDS
from triomq_server.broker.transactions.open_transactions import COPIES_REMEMBERED, OpenTransactions
from triomq_server.config import BrokerConfig, BrokerRole
from triomq_server.store import AppendStatus, NewRecord

HALVES, OPS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"


@pytest.fixture
def config(config: BrokerConfig) -> BrokerConfig:
    """Files that hold thousands of half messages."""
    sizes = {"mapped_file_size_commit_log": 1 << 26, "mapped_file_size_consume_queue": 6_000_000}
    return attrs.evolve(config, store=attrs.evolve(config.store, **sizes))


HALF_PROPERTIES = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "", "REAL_TOPIC": "T", "REAL_QID": "0"}


def put_half(
    desk: Any, number: int | str = 0, *, group: str = "PG", body: bytes = b"x", ahead_ms: int = 0, **properties: str
) -> int:
    """Store a half message as a send does; returns its queue offset."""
    pairs = {**HALF_PROPERTIES, "PGROUP": group, "UNIQ_KEY": f"ID{number}"}
    record = NewRecord(HALVES, 0, body, encode_properties_bytes({**pairs, **properties}))
    record.born_timestamp = desk.clock.now_ms + ahead_ms
    result = desk.broker.store.append(record)
    assert result.status is AppendStatus.PUT_OK
    return int(result.queue_offset)


async def join(desk: Any, link: Any, group: str = "PG") -> None:
    data = HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name=group)])
    await desk.ask(RequestCode.HEART_BEAT, body=data.encode(), link=link)


def progress(desk: Any) -> tuple[int, int]:
    offsets = desk.broker.offsets
    return offsets.query(GROUP, HALVES, 0), offsets.query(GROUP, OPS, 0)


@pytest.fixture
def check(desk: Any) -> CheckBack:
    return CheckBack(desk.broker, desk.transactions)


async def minutes(desk: Any, check: CheckBack, count: int) -> None:
    """Let time pass, with a round of the check in each minute."""
    for _ in range(count):
        desk.clock.now_ms += 60_000
        await check._check_once()


async def test_a_round_skips_ended_half_messages_and_stops_at_young_ones(desk: Any, check: CheckBack) -> None:
    for number in range(4):
        put_half(desk, number)
    for half in (2, 0, 1):
        assert desk.transactions.end(half) is AppendStatus.PUT_OK
    await check._check_once()
    assert progress(desk) == (3, 3), "the fourth is too young"
    desk.clock.now_ms += 6000
    put_half(desk, 4)
    await check._check_once()
    assert progress(desk) == (4, 3), "stored again behind the fifth, which is too young"
    assert desk.broker.store.queue_bounds(HALVES, 0)[1] == 6
    assert desk.transactions.newest(3) == 5


async def test_an_end_behind_an_open_half_message_is_known_after_a_restart(desk: Any, check: CheckBack) -> None:
    put_half(desk, 0)
    put_half(desk, 1)
    assert desk.transactions.end(1) is AppendStatus.PUT_OK
    await check._check_once()
    desk.transactions.reset()
    await desk.transactions.load()
    assert (desk.transactions.has_ended(0), desk.transactions.has_ended(1)) == (False, True)


async def test_an_end_that_is_repeated_after_a_restart_is_known(desk: Any, check: CheckBack) -> None:
    """Also if the check had stored the half message again: the producer's own end is late, and that of the check came."""
    put_half(desk, 0)
    put_half(desk, 1)
    desk.clock.now_ms += 60_000
    await check._check_once()
    assert desk.transactions.end(2) is AppendStatus.PUT_OK, "the copy of the first"
    await minutes(desk, check, 2)
    assert progress(desk) == (5, 1)
    desk.transactions.reset()
    await desk.transactions.load()
    assert [desk.transactions.has_ended(half) for half in range(6)] == [True, False, True, False, False, False]
    desk.clock.now_ms += 60_000
    await check._check_once()
    assert progress(desk) == (6, 1)


async def test_half_messages_stored_while_the_clock_was_ahead_are_checked(
    desk: Any, check: CheckBack, client_link: Any
) -> None:
    """Their store times are in the future; the producer's clock was right. A round leaves its own copies to the next
    one."""
    link = client_link()
    await join(desk, link)
    desk.clock.now_ms += 3_600_000
    put_half(desk, 0, ahead_ms=-3_600_000)
    desk.clock.now_ms -= 3_600_000
    put_half(desk, 1)
    desk.clock.now_ms += 6000
    for round_number in (1, 2, 3):
        await check._check_once()
        assert len(link.notified) == 2 * round_number
        desk.clock.now_ms += 60_000


async def test_a_half_message_that_arrives_during_a_round_waits_for_the_next_one(
    desk: Any, check: CheckBack, client_link: Any
) -> None:
    link = client_link()
    await join(desk, link)
    for number in range(2 * HANDLED_AT_ONCE):
        put_half(desk, number)
    desk.clock.now_ms += 6000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check._check_once)
        while not link.notified:
            await trio.lowlevel.checkpoint()
        put_half(desk, 100, ahead_ms=-6000)
    assert len(link.notified) == 2 * HANDLED_AT_ONCE
    await check._check_once()
    assert len(link.notified) == 4 * HANDLED_AT_ONCE + 1


async def test_no_progress_is_noted_where_there_is_none(desk: Any, check: CheckBack) -> None:
    await check._check_once()
    assert progress(desk) == (-1, -1)


async def test_progress_beyond_the_end_of_the_queue_is_corrected(desk: Any) -> None:
    """The last messages were lost with a disk: those that are stored in their places have not been checked."""
    desk.broker.offsets.commit(GROUP, HALVES, 0, 100)
    desk.broker.offsets.commit(GROUP, OPS, 0, 70)
    transactions = OpenTransactions(desk.broker)
    for number in range(200):
        put_half(desk, number)
    assert transactions.position() == 0
    assert progress(desk) == (0, 0)


async def test_a_correction_of_the_progress_is_no_reset(desk: Any) -> None:
    """Others of the set, which still have the messages, would take over a reset, and deliver again what is committed."""
    desk.broker.offsets.commit(GROUP, HALVES, 0, 100)
    desk.broker.offsets.commit(GROUP, OPS, 0, 70)
    resets = desk.broker.offsets.resets = Resets(None, lambda: desk.clock.now_ms)
    OpenTransactions(desk.broker)
    assert progress(desk) == (0, 0)
    assert resets.table == {}


async def test_of_copies_behind_the_progress_the_newest_is_checked(
    desk: Any, check: CheckBack, client_link: Any
) -> None:
    """A slave that becomes the master may have old progress."""
    link = client_link()
    await join(desk, link)
    put_half(desk, 0)
    put_half(desk, 1)
    await minutes(desk, check, 3)
    assert desk.broker.store.queue_bounds(HALVES, 0)[1] == 8
    for topic in (HALVES, OPS):
        desk.broker.offsets.commit(GROUP, topic, 0, 1)
    desk.transactions.reset()
    link.notified.clear()
    await desk.transactions.load()
    desk.clock.now_ms += 60_000
    await check._check_once()
    assert len(link.notified) == 2
    assert progress(desk)[0] == 8
    assert desk.transactions.newest(1) == 9


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("passed", [0, 1])
async def test_transactions_of_one_message_object_sent_twice_are_both_checked(
    desk: Any, check: CheckBack, client_link: Any, rounds: int, passed: int
) -> None:
    """Within a millisecond they have the same key, born time and born host: neither counts as a copy of the other.

    The noted progress may be between them, and the copy of the first seem to be that of the second."""
    link = client_link()
    await join(desk, link)
    put_half(desk, 0)
    put_half(desk, 0)
    await minutes(desk, check, rounds)
    if rounds and passed:
        desk.clock.now_ms += 60_000
        check._handle(_Round(100, 0), desk.transactions.record(HALVES, 2 * rounds))  # the second has no such copy yet
    for topic in (HALVES, OPS):
        desk.broker.offsets.commit(GROUP, topic, 0, 2 * rounds + passed if topic == HALVES else 0)
    desk.transactions.reset()
    link.notified.clear()
    await desk.transactions.load()
    end = desk.broker.store.queue_bounds(HALVES, 0)[1]
    assert not [offset for offset in range(end) if desk.transactions.is_replaced(offset)]
    desk.clock.now_ms += 60_000
    await check._check_once()
    assert len(link.notified) == end - (2 * rounds + passed)


async def test_a_copy_that_counts_no_check_is_known_for_a_copy(desk: Any, check: CheckBack, client_link: Any) -> None:
    link = client_link()
    await join(desk, link)
    link.unsent_bytes = UNSENT_MOST_BYTES + 1
    put_half(desk, 0)
    await minutes(desk, check, MUTE_ROUNDS + 2)
    for topic in (HALVES, OPS):
        desk.broker.offsets.commit(GROUP, topic, 0, 0)
    desk.transactions.reset()
    await desk.transactions.load()
    assert desk.transactions.newest(0) == MUTE_ROUNDS + 2
    link.unsent_bytes = 0
    desk.clock.now_ms += 60_000
    await check._check_once()
    assert len(link.notified) == 1


async def test_a_broker_that_becomes_master_again_drops_its_record_of_the_cut(desk: Any, check: CheckBack) -> None:
    put_half(desk, 1)
    cut_at = desk.broker.store.log_max_offset
    desk.transactions.end(0)
    desk.broker.offsets.commit(GROUP, OPS, 0, 1)
    assert desk.transactions.has_ended(0)
    desk.broker.config.store.broker_role = BrokerRole.SLAVE
    check.read_config()
    await desk.broker.store.cut(cut_at)
    desk.broker.config.store.broker_role = BrokerRole.ASYNC_MASTER
    check.read_config()
    assert not desk.transactions.has_ended(0)
    assert progress(desk) == (-1, 0)


async def test_a_refusal_of_the_store_stops_a_round_and_loses_nothing(
    desk: Any, check: CheckBack, client_link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    link = client_link()
    await join(desk, link)
    put_half(desk, 1)
    put_half(desk, 2, TRANSACTION_CHECK_TIMES="15")
    desk.clock.now_ms += 10_000
    desk.broker.store.set_flag(2)
    await check._check_once()
    assert link.notified == []
    assert progress(desk)[0] in (-1, 0)
    assert "the store did not take 1 messages" in caplog.text
    desk.broker.store.clear_flag(2)
    await check._check_once()
    assert [one.code for one in link.notified] == [RequestCode.CHECK_TRANSACTION_STATE]
    assert desk.broker.store.queue_bounds("TRANS_CHECK_MAX_TIME_TOPIC", 0) == (0, 1)
    assert progress(desk)[0] == 2


async def test_progress_is_noted_only_when_the_copies_are_on_disk(
    desk: Any, check: CheckBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_half(desk, 1)
    desk.clock.now_ms += 10_000

    async def refuse() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(desk.broker.store, "flush", refuse)
        await check._check_once()
        assert progress(desk) == (-1, -1)
    await check._check_once()
    assert progress(desk)[0] == 2, "the half message again, and its copy"


async def test_a_producer_that_takes_nothing_holds_up_no_other(desk: Any, check: CheckBack, client_link: Any) -> None:
    mute, well = client_link("127.0.0.1:1"), client_link("127.0.0.1:2")
    await join(desk, mute, "Mute")
    await join(desk, well, "Well")
    mute.unsent_bytes = UNSENT_MOST_BYTES + 1
    for number in range(40):
        put_half(desk, number, group=("Mute", "Well")[number % 2])
    desk.clock.now_ms += 10_000
    began = trio.current_time()
    await check._check_once()
    assert trio.current_time() - began < 3, "the round has waited for the group once"
    assert (len(mute.notified), len(well.notified)) == (0, 20)
    copies = [desk.transactions.record(HALVES, offset).properties for offset in range(40, 80)]
    assert {copy["PGROUP"] for copy in copies if "TRANSACTION_CHECK_TIMES" in copy} == {"Well"}


CHECKED = "TRANS_CHECK_MAX_TIME_TOPIC"


async def rounds(desk: Any, check: CheckBack, most: int) -> int:
    """Make rounds until every half message is given up; returns how many."""
    for made in range(most):
        desk.clock.now_ms += 60_000
        await check._check_once()
        if desk.broker.store.queue_bounds(CHECKED, 0)[1] > 0:
            return made + 1
    raise AssertionError(f"still stored again after {most} rounds")


async def test_what_a_group_that_never_reads_is_to_be_asked_is_given_up(
    desk: Any, check: CheckBack, client_link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it seems to come from the future, so that it never becomes old."""
    mute = client_link()
    await join(desk, mute)
    mute.unsent_bytes = UNSENT_MOST_BYTES + 1
    put_half(desk, 1, ahead_ms=10**11)
    assert await rounds(desk, check, 40) == MUTE_ROUNDS + 15 + 1
    assert mute.notified == []
    assert "checks of transactions were not sent: no producer accepts them, of groups PG" in caplog.text


async def test_a_group_that_sometimes_takes_a_check_is_counted_from_zero(
    desk: Any, check: CheckBack, client_link: Any
) -> None:
    link = client_link()
    await join(desk, link)
    put_half(desk, 1)
    for asked in range(3):
        link.unsent_bytes = UNSENT_MOST_BYTES + 1
        await minutes(desk, check, MUTE_ROUNDS)
        link.unsent_bytes = 0
        desk.clock.now_ms += 60_000
        await check._check_once()
        newest = desk.transactions.record(HALVES, desk.broker.store.queue_bounds(HALVES, 0)[1] - 1)
        assert newest.properties["TRANSACTION_CHECK_TIMES"] == str(asked + 1)
        assert len(link.notified) == asked + 1


async def test_a_group_known_to_take_nothing_is_not_waited_for(desk: Any, check: CheckBack, client_link: Any) -> None:
    links = [client_link(f"127.0.0.1:{number}") for number in range(20)]
    for number, link in enumerate(links):
        await join(desk, link, f"G{number}")
        link.unsent_bytes = UNSENT_MOST_BYTES + 1
        put_half(desk, number, group=f"G{number}")
        check._mute_rounds[f"G{number}"] = MUTE_ROUNDS
    desk.clock.now_ms += 10_000
    began = trio.current_time()
    await check._check_once()
    assert trio.current_time() - began < 10, "one second for each group would be 20"
    assert desk.broker.store.queue_bounds(HALVES, 0)[1] == 40


async def test_no_more_silent_groups_are_kept_than_the_limit(
    desk: Any, check: CheckBack, client_link: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triomq_server.broker.transactions.check_back.MUTE_GROUPS_REMEMBERED", 5)
    monkeypatch.setattr("triomq_server.broker.transactions.check_back.PATIENCE_S", 0)
    for number in range(8):
        link = client_link(f"127.0.0.1:{number}")
        await join(desk, link, f"G{number}")
        link.unsent_bytes = UNSENT_MOST_BYTES + 1
        put_half(desk, number, group=f"G{number}")
    desk.clock.now_ms += 10_000
    await check._check_once()
    assert sorted(check._mute_rounds) == [f"G{number}" for number in range(3, 8)]


async def test_a_half_message_with_endless_immunity_is_given_up(
    desk: Any, check: CheckBack, client_link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    link = client_link()
    await join(desk, link)
    put_half(desk, 1, CHECK_IMMUNITY_TIME_IN_SECONDS=str(1 << 40))
    assert await rounds(desk, check, 40) == 14 + 15 + 1
    assert len(link.notified) == 15
    assert "asks for more time, of groups PG" in caplog.text


async def test_another_member_is_asked_where_one_takes_nothing(desk: Any, check: CheckBack, client_link: Any) -> None:
    mute, well, gone = client_link("127.0.0.1:1"), client_link("127.0.0.1:2"), client_link("127.0.0.1:3")
    for link in (mute, well, gone):
        await join(desk, link)
    mute.unsent_bytes = UNSENT_MOST_BYTES + 1
    gone.closed = True
    for number in range(6):
        put_half(desk, number)
    desk.clock.now_ms += 10_000
    await check._check_once()
    assert [len(link.notified) for link in (mute, well, gone)] == [0, 6, 0]


async def test_ends_that_rocketmq_5_has_written_count(desk: Any, client_link: Any) -> None:
    """It writes the ends of some seconds into one message, with a comma after each."""
    link = client_link()
    await join(desk, link)
    for number in range(6):
        put_half(desk, number)
    for body in (b"4,0,", b"2,", b"1,x,99,"):
        desk.broker.store.append(NewRecord(OPS, 0, body, b"TAGS\x01d", tags="d"))
    transactions = OpenTransactions(desk.broker)
    await transactions.load()
    assert [offset for offset in range(6) if offset in transactions.ended] == [0, 1, 2, 4]
    desk.clock.now_ms += 10_000
    await CheckBack(desk.broker, transactions)._check_once()
    assert [RecordView(command.body).unique_key for command in link.notified] == ["ID3", "ID5"]
    assert progress(desk) == (6, 3)


async def test_damaged_and_foreign_records_are_skipped(desk: Any, check: CheckBack, client_link: Any) -> None:
    """Half messages without a topic, op messages about nothing, or about half messages that are not there yet."""
    link = client_link()
    await join(desk, link)
    store = desk.broker.store
    put_half(desk, 1, REAL_QID="x")
    put_half(desk, 2, REAL_TOPIC="")
    put_half(desk, 3)
    for body, tags in ((b"", "d"), (b"x", "d"), (b"1", "e"), (b"-1", "d"), (b"9" * 18, "d"), (b"0", "d")):
        store.append(NewRecord(OPS, 0, body, b"TAGS\x01" + tags.encode(), tags=tags))
    transactions = OpenTransactions(desk.broker)
    await transactions.load()
    assert [offset for offset in range(4) if offset in transactions.ended] == [0]
    desk.clock.now_ms += 10_000
    await CheckBack(desk.broker, transactions)._check_once()
    assert len(link.notified) == 1
    assert progress(desk) == (3, 6)


@pytest.mark.parametrize(
    "properties", [{}, {"TRANSACTION_CHECK_TIMES": "15"}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}]
)
async def test_a_half_message_that_cannot_grow_holds_up_no_other(
    desk: Any, check: CheckBack, client_link: Any, properties: dict[str, str]
) -> None:
    """The largest properties that a record can have leave no space for the number of checks."""
    link = client_link()
    await join(desk, link)
    put_half(desk, 1, **properties)
    (known,) = [desk.transactions.record(HALVES, 0)]
    put_half(desk, 1, **properties, long="x" * (32767 - len(known.properties_bytes) - len("\x02long\x01")))
    put_half(desk, 2)
    desk.clock.now_ms += 10_000
    await check._check_once()
    given_up = desk.transactions.record(
        "TRANS_CHECK_MAX_TIME_TOPIC", desk.broker.store.queue_bounds("TRANS_CHECK_MAX_TIME_TOPIC", 0)[1] - 1
    )
    assert len(given_up.properties_bytes) == 32767
    assert progress(desk)[0] == 3
    assert b"ID2" in link.notified[-1].body


async def test_any_half_message_that_can_be_stored_is_checked_and_holds_up_no_other(
    desk: Any, check: CheckBack, client_link: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What is added to the properties for the record and for the check differs: the check has no room where the record has."""
    link = client_link()
    await join(desk, link)
    fixed = len(encode_properties_bytes({**HALF_PROPERTIES, "UNIQ_KEY": "ID00"})) + len("\x02long\x01")
    for spare in range(50):
        put_half(desk, f"{spare:02}", long="x" * (32767 - fixed - spare))
    put_half(desk, "last")
    desk.clock.now_ms += 10_000
    await check._check_once()
    assert progress(desk)[0] == 51
    given_up = desk.broker.store.queue_bounds("TRANS_CHECK_MAX_TIME_TOPIC", 0)[1]
    copied = desk.broker.store.queue_bounds(HALVES, 0)[1] - 51
    assert given_up + copied == 51
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "1 transactions are not checked, of groups PG; the half message of the last one is at offset 0:"
    )
    assert b"IDlast" in link.notified[-1].body
    asked = [RecordView(command.body) for command in link.notified]
    assert [record.unique_key for record in asked] == [*(f"ID{spare:02}" for spare in range(given_up, 50)), "IDlast"]
    assert {len(record.body) for record in asked} == {1}


class _CountingLink:
    """A producer's connection that only counts."""

    def __init__(self) -> None:
        self.peer, self.peer_host, self.closed, self.unsent_bytes, self.count = "127.0.0.1:1", bytes(8), False, 0, 0

    def notify(self, command: Command) -> None:
        command.encode()
        self.count += 1


@pytest.mark.slow
async def test_a_hundred_thousand_open_transactions(
    desk: Any, check: CheckBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked about once in a round, in short turns, and what is kept in memory is bounded."""
    open_transactions = 100_000
    link = _CountingLink()
    await join(desk, link)
    for number in range(open_transactions):
        put_half(desk, number)
    for number in range(0, open_transactions, 10):
        desk.transactions.end(number)
    desk.clock.now_ms += 10_000
    turns = 0
    ended = open_transactions // 10

    def counted(step: Callable[[_Round], Any], current: _Round) -> Any:
        nonlocal turns
        turns += 1
        return step(current)

    step = check._slice
    monkeypatch.setattr(check, "_slice", lambda current: counted(step, current))
    monkeypatch.setattr("triomq_server.broker.transactions.check_back.ROUND_S", 1e9)
    await check._check_once()
    assert link.count == open_transactions - ended
    assert turns > (open_transactions - ended) / HANDLED_AT_ONCE
    assert progress(desk) == (open_transactions, ended)
    desk.clock.now_ms += 1000
    assert lines_of(lambda: step(_Round(desk.broker.store.queue_bounds(HALVES, 0)[1], open_transactions))) < 20_000
    assert len(desk.transactions._copies) <= COPIES_REMEMBERED
    assert len(desk.transactions.ended._bits) < 100_000
