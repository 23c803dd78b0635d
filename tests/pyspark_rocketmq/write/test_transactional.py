"""Transactional writes against a broker of lists: drivers that die anywhere, answers that are lost, tasks that run
twice."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import attrs
import trio

from pyspark_rocketmq.errors import WriteFailed
from pyspark_rocketmq.rows.row_messages import RowMessage
from pyspark_rocketmq.write import transactional
from pyspark_rocketmq.write.decisions import Decision, DecisionReader, messages_of, newest_decision
from pyspark_rocketmq.write.transactional import (
    ATTEMPT,
    TaskHalves,
    answer_about,
    attempt_name,
    checker,
    commit_trigger,
)
from triomq import HalfMessage, Message, MessageQueue, PullStatus, TransactionState
from triomq.errors import LinkLost, MessageIllegal
from triomq_protocol.checksum import crc32

CASES = int(os.environ.get("TRIOMQ_SPARK_TRANSACTIONS", "150"))
DECISIONS = MessageQueue("decisions", "broker-a", 0)
TARGETS = [MessageQueue("T", broker, number) for broker in ("broker-a", "broker-b") for number in range(2)]
QUERY = "5d1f"


class DriverKilled(BaseException):
    """The driver's process was killed."""


@attrs.define
class Half:
    queue: MessageQueue
    message_id: str
    body: bytes
    attempt: str
    is_open: bool = True


class FakeBrokers:
    """Queues as lists; a producer and a consumer in one.

    Args:
        chance: chooses what goes wrong.
        faults: how likely an answer is lost, or a request, or the driver killed, at each call.
        repeats: whether a second commit delivers again, as with a Java broker.
    """

    def __init__(self, chance: random.Random, *, faults: float, repeats: bool) -> None:
        self.chance = chance
        self.faults = faults
        self.repeats = repeats
        self.queues: dict[MessageQueue, list[tuple[str, bytes]]] = {each: [] for each in (DECISIONS, *TARGETS)}
        self.halves: list[Half] = []

    def _fault(self) -> str:
        """What goes wrong at this call."""
        if self.chance.random() >= self.faults:
            return ""
        return self.chance.choice(("killed before", "killed after", "lost", "unanswered", "unnoted"))

    def _before(self) -> str:
        fault = self._fault()
        if fault == "killed before":
            raise DriverKilled
        if fault == "lost":
            raise LinkLost("a request", address="a")
        return fault

    def _after(self, fault: str) -> None:
        if fault == "killed after":
            raise DriverKilled
        if fault:
            raise LinkLost("an answer", address="a")

    # --- of a producer

    async def send(self, message: Message, *, queue: MessageQueue) -> None:
        await trio.lowlevel.checkpoint()
        fault = self._before()
        self.queues[queue].append((f"d{len(self.queues[queue])}", message.body))
        self._after(fault)

    async def send_half(self, message: Message) -> HalfMessage:
        await trio.lowlevel.checkpoint()
        fault = self.chance.random() < 0.2 * self.faults
        number = len(self.halves)
        assert message.properties is not None
        half = Half(self.chance.choice(TARGETS), f"id{number}", message.body, message.properties[ATTEMPT])
        self.halves.append(half)
        if fault:
            raise LinkLost("an answer", address="a")
        return HalfMessage(half.queue, half.message_id, number, number * 100)

    async def end_half(self, given: HalfMessage, state: TransactionState) -> None:
        await trio.sleep(self.chance.choice((0.0, 0.1)))
        fault = self._before()
        half = self.halves[given.half_offset]
        assert half.message_id == given.message_id
        if not half.is_open and not self.repeats:
            raise LinkLost("The transaction has ended before", address="a")
        if state is TransactionState.COMMIT:
            self.queues[half.queue].append((half.message_id, half.body))
        if fault != "unnoted":
            half.is_open = False
        self._after(fault)

    # --- of a consumer

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        await trio.lowlevel.checkpoint()
        return [queue for queue in self.queues if queue.topic == topic]

    async def max_offset(self, queue: MessageQueue, *, only_master: bool) -> int:
        assert only_master
        await trio.lowlevel.checkpoint()
        self._after(self._before())
        return len(self.queues[queue])

    async def min_offset(self, queue: MessageQueue) -> int:
        await trio.lowlevel.checkpoint()
        return 0

    async def pull(self, queue: MessageQueue, offset: int, *, max_messages: int) -> Any:
        await trio.lowlevel.checkpoint()
        self._after(self._before())
        some = self.queues[queue][offset : offset + min(max_messages, self.chance.choice((3, 32)))]
        return Page(
            [
                SimpleNamespace(message_id=message_id, body=body, queue_offset=offset + number, keys=[])
                for number, (message_id, body) in enumerate(some)
            ],
            offset + len(some),
        )

    # --- of a broker

    def ask(self, decision: Decision | None) -> None:
        """Ask about all open half messages, and do what is answered."""
        for half in self.halves:
            if half.is_open:
                state = answer_about(half.attempt, decision)
                assert state is not TransactionState.COMMIT, "only drivers commit"
                if state is TransactionState.ROLLBACK:
                    half.is_open = False


class Page(list[Any]):
    """A result of a pull."""

    def __init__(self, messages: list[Any], next_offset: int) -> None:
        super().__init__(messages)
        self.messages = messages
        self.next_offset = next_offset
        self.status = PullStatus.FOUND if messages else PullStatus.NO_NEW_MESSAGE
        self.broker_address, self.min_offset, self.max_offset = "a", 0, next_offset


async def run_tasks(brokers: Any, batch: int, bodies: list[bytes]) -> list[TaskHalves]:
    """Two tasks, each of which may be run again after it has sent some rows."""
    tasks = []
    for partition in range(2):
        while True:
            attempt = attempt_name(QUERY, str(batch), partition)
            rows = [RowMessage(Message("T", body), None) for body in bodies[partition::2]]
            if brokers.chance.random() < 0.2:
                await transactional.send_halves(brokers, rows[: len(rows) // 2], attempt, 4)
                continue
            tasks.append(TaskHalves(QUERY, attempt, tuple(await transactional.send_halves(brokers, rows, attempt, 4))))
            break
    return tasks


@pytest.mark.parametrize("repeats", [False, True], ids=["our broker", "a Java broker"])
async def test_every_row_is_delivered_once(
    repeats: bool, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional, "COMMIT_LIMIT_S", 9.0)
    deaths = 0
    for seed in range(CASES):
        chance = random.Random(seed)
        brokers: Any = FakeBrokers(chance, faults=chance.choice((0.0, 0.02, 0.1)), repeats=repeats)
        sent: list[bytes] = []
        for batch in range(4):
            bodies = [b"%d %d" % (batch, number) for number in range(chance.choice((0, 1, 20)))]
            sent += bodies
            while True:
                try:
                    tasks = await run_tasks(brokers, batch, bodies)
                    await commit_trigger(brokers, brokers, DECISIONS.topic, batch, tasks, max_body_bytes=600)
                    break
                except* (DriverKilled, WriteFailed, LinkLost):
                    deaths += 1
                brokers.faults *= 0.8
                brokers.ask(newest(brokers))
            brokers.ask(newest(brokers))
        found = Counter(body for queue in TARGETS for _, body in brokers.queues[queue])
        assert found == Counter(sent), f"seed {seed}"
    assert deaths > CASES / 2


def newest(brokers: FakeBrokers) -> Decision | None:
    reader = DecisionReader(QUERY)
    for _, body in reversed(brokers.queues[DECISIONS]):
        if not reader.takes(body):
            break
    return reader.decision()


async def test_the_first_of_two_drivers_decides(autojump_clock: trio.testing.MockClock) -> None:
    brokers: Any = FakeBrokers(random.Random(1), faults=0.0, repeats=True)
    runs = [await run_tasks(brokers, 7, [b"%d" % number for number in range(10)]) for _ in range(5)]
    async with trio.open_nursery() as nursery:
        for tasks in runs:
            nursery.start_soon(commit_trigger, brokers, brokers, DECISIONS.topic, 7, tasks)
    decision = newest(brokers)
    assert decision is not None
    pieces = [body for _, body in brokers.queues[DECISIONS]]
    assert decision.run.encode() in pieces[0]
    delivered = {message_id for queue in TARGETS for message_id, _ in brokers.queues[queue]}
    assert delivered == {half.message_id for half in decision.halves}


async def test_an_old_checkpoint_is_refused() -> None:
    brokers: Any = FakeBrokers(random.Random(1), faults=0.0, repeats=False)
    for batch in (3, 4):
        await commit_trigger(brokers, brokers, DECISIONS.topic, batch, await run_tasks(brokers, batch, [b"%d" % batch]))
    with pytest.raises(WriteFailed, match="trigger 3 of query 5d1f comes after trigger 4 was committed"):
        await commit_trigger(brokers, brokers, DECISIONS.topic, 3, await run_tasks(brokers, 3, [b"again"]))


async def test_the_topic_of_decisions_must_be_one_queue() -> None:
    brokers: Any = FakeBrokers(random.Random(1), faults=0.0, repeats=False)
    tasks = [TaskHalves(QUERY, f"{QUERY}/0/0/x", ())]
    for topic, count in (("T", 4), ("absent", 0)):
        with pytest.raises(WriteFailed, match=rf"the topic {topic} with one queue on one master, and it has {count}"):
            await commit_trigger(brokers, brokers, topic, 0, tasks)


@pytest.mark.parametrize("count", [0, 1, 5, 10_000, 10_001])
def test_a_record_is_read_as_it_was_written(count: int) -> None:
    halves = tuple(HalfMessage(TARGETS[number % 4], f"id{number}", number, number * 7) for number in range(count))
    decision = Decision(QUERY, 3, "run", frozenset({"a", "b"}), {TARGETS[1]: 12, TARGETS[2]: 0}, halves)
    other = Decision("other", 9, "run2", frozenset(), {}, ())
    unfinished = Decision(QUERY, 4, "run3", frozenset(), {}, halves[:1])
    stored = [each.body for each in (*messages_of(decision, "D"), *messages_of(other, "D"))]
    stored += [each.body for each in messages_of(attrs.evolve(unfinished, halves=halves * 2), "D")[:-1]]
    # Another program writes to the topic, too.
    stored += [b"\xff", b"3", b"[]", b"{}", b'{"query": 3}']
    reader = DecisionReader(QUERY)
    assert all(reader.takes(body) for body in reversed(stored))
    assert reader.decision() == decision


@pytest.mark.parametrize("max_bytes", [300, 301, 317, 1000, 4000])
def test_no_message_of_a_record_is_longer_than_allowed(max_bytes: int) -> None:
    halves = tuple(HalfMessage(TARGETS[number % 4], f"id{number}", number, number * 7) for number in range(120))
    decision = Decision(QUERY, 3, "run", frozenset({"a", "b"}), {TARGETS[1]: 12}, halves)
    messages = messages_of(decision, "D", max_bytes)
    longest = max(len(message.body) for message in messages)
    assert max_bytes - 50 < longest <= max_bytes, "they are as long as they may be"
    reader = DecisionReader(QUERY)
    assert all(reader.takes(message.body) for message in reversed(messages))
    assert reader.decision() == decision


def test_a_record_that_cannot_be_written_names_the_cure() -> None:
    decision = Decision(QUERY, 3, "run", frozenset(f"attempt {number}" for number in range(50)), {}, ())
    with pytest.raises(WriteFailed, match=r"trigger 3 .* names 50 tasks, and rocketmq.max_body_bytes is 500: set it"):
        messages_of(decision, "D", 500)
    many = attrs.evolve(decision, attempts=frozenset(f"attempt {number:0100}" for number in range(10_000)))
    with pytest.raises(WriteFailed, match=r"names 10000 tasks, and such a message may have 1048576: write fewer"):
        messages_of(many, "D")


RECORD: dict[str, Any] = {
    "query": QUERY, "batch": 9, "run": "r", "piece": 0, "pieces": 1, "attempts": [], "before": [], "halves": [],
}  # fmt: skip
NO_RECORDS = [
    {"query": QUERY},
    {**RECORD, "batch": "9"},
    {**RECORD, "batch": -1},
    {**RECORD, "batch": None},
    {**RECORD, "run": ["r"]},
    {**RECORD, "piece": 1},
    {**RECORD, "piece": -1},
    {**RECORD, "pieces": None},
    {**RECORD, "pieces": 0},
    {**RECORD, "attempts": 3},
    {**RECORD, "attempts": [[]]},
    {**RECORD, "before": [3]},
    {**RECORD, "before": [["T", "broker-a", "0", 1]]},
    {**RECORD, "halves": [["T"]]},
    {**RECORD, "halves": {"a": 1}},
    {**RECORD, "halves": [["T", "broker-a", 0, "id", 1, 2, 3]]},
]


@pytest.mark.parametrize("record", NO_RECORDS, ids=json.dumps)
async def test_what_names_the_query_and_is_no_record_is_skipped(
    record: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    brokers: Any = FakeBrokers(random.Random(1), faults=0.0, repeats=False)
    bodies = [b"%d" % number for number in range(4)]
    await commit_trigger(brokers, brokers, DECISIONS.topic, 3, await run_tasks(brokers, 3, bodies[:2]))
    for _ in range(40):
        brokers.queues[DECISIONS].append(("x", json.dumps(record).encode()))
    await commit_trigger(brokers, brokers, DECISIONS.topic, 4, await run_tasks(brokers, 4, bodies[2:]))
    assert sorted(body for queue in TARGETS for _, body in brokers.queues[queue]) == bodies
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == 2, "one for each time that the topic is read"
    assert all(f"40 messages of {DECISIONS} name query {QUERY}" in line for line in lines)
    assert "the first is at offset 1:" in lines[0]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"query": "5d1f", "halves": ' + b"[" * 100_000,
        b'{"query": "5d1f", "batch": ' + b"9" * 5000 + b"}",
        b'{"query": "\xff"}',
        b'{"query": "5d1f", "run": "' + b"x" * (4 << 20) + b'"}',
    ],
    ids=["deep", "deep within", "long number", "not UTF-8", "huge"],
)
def test_no_body_of_another_program_ends_the_query(body: bytes) -> None:
    reader = DecisionReader(QUERY)
    assert reader.takes(body)
    assert reader.decision() is None


def stored_decision(**fields: Any) -> Any:
    body = messages_of(Decision(QUERY, 3, "run", frozenset(), {}, ()), "D")[0].body
    record = SimpleNamespace(body=body, body_crc=crc32(body))
    whole = {"message_id": "id", "body": body, "queue": DECISIONS, "queue_offset": 0, "keys": [QUERY], "record": record}
    return SimpleNamespace(**{**whole, **fields})


class Undecompressed:
    """A message whose body cannot be decompressed."""

    def __init__(self, keys: list[str]) -> None:
        self.keys, self.queue, self.queue_offset, self.message_id = keys, DECISIONS, 0, "id"
        self.record = SimpleNamespace(body=b"no zlib", body_crc=crc32(b"no zlib"))

    @property
    def body(self) -> bytes:
        raise MessageIllegal("the body cannot be decompressed")


class Stored:
    """The topic of decisions as a list."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages

    async def max_offset(self, queue: MessageQueue, *, only_master: bool) -> int:
        return len(self.messages)

    async def min_offset(self, queue: MessageQueue) -> int:
        return 0

    async def pull(self, queue: MessageQueue, offset: int, *, max_messages: int) -> Any:
        return Page(self.messages[offset : offset + max_messages], len(self.messages))


async def test_a_damaged_record_of_the_query_is_an_error() -> None:
    whole: Any = Stored([stored_decision()])
    decision = await newest_decision(whole, DECISIONS, QUERY)
    assert decision is not None
    damaged: Any = Stored([stored_decision(record=SimpleNamespace(body=b"{", body_crc=crc32(b"{}")))])
    with pytest.raises(
        WriteFailed, match=r"query 5d1f at offset 0 of .*decisions.* is damaged: .* Restore the broker's"
    ):
        await newest_decision(damaged, DECISIONS, QUERY)
    assert await newest_decision(damaged, DECISIONS, "another") is None


@pytest.mark.parametrize("keys", [[], [QUERY]])
async def test_a_body_that_cannot_be_decompressed_is_skipped(keys: list[str]) -> None:
    stored: Any = Stored([Undecompressed(keys)])
    assert await newest_decision(stored, DECISIONS, QUERY) is None


async def test_messages_of_others_in_the_target_queues_are_not_decompressed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    brokers: Any = FakeBrokers(random.Random(1), faults=0.0, repeats=False)
    tasks = await run_tasks(brokers, 3, [b"a", b"b"])
    halves = tuple(half for task in tasks for half in task.halves)
    decision = Decision(QUERY, 3, "run", frozenset(each.attempt for each in tasks), dict.fromkeys(TARGETS, 0), halves)
    brokers.queues[DECISIONS] += [("d", each.body) for each in messages_of(decision, "D")]
    await brokers.end_half(halves[0], TransactionState.COMMIT)
    pull = brokers.pull

    async def with_a_foreign_body(queue: MessageQueue, offset: int, *, max_messages: int) -> Any:
        page = await pull(queue, offset, max_messages=max_messages)
        if queue in TARGETS and page:
            page[0] = page.messages[0] = Undecompressed([])
            page[0].message_id = brokers.queues[queue][offset][0]
        return page

    brokers.pull = with_a_foreign_body
    await commit_trigger(brokers, brokers, DECISIONS.topic, 3, tasks)
    assert sorted(body for queue in TARGETS for _, body in brokers.queues[queue]) == [b"a", b"b"]


def test_a_record_without_its_beginning_is_an_error() -> None:
    halves = tuple(HalfMessage(TARGETS[0], f"id{number}", number, number) for number in range(3))
    reader = DecisionReader(QUERY)
    for message in messages_of(Decision(QUERY, 3, "run", frozenset(), {}, halves), "D", 170)[:0:-1]:
        reader.takes(message.body)
    with pytest.raises(WriteFailed, match="trigger 3 of query 5d1f has 2 of its 3 messages"):
        reader.decision()


@pytest.mark.parametrize(
    ("attempt", "state"),
    [
        ("q/4/0/loser", TransactionState.ROLLBACK),
        ("q/5/0/loser", TransactionState.ROLLBACK),
        ("q/5/0/winner", TransactionState.UNKNOWN),
        ("q/6/0/next", TransactionState.UNKNOWN),
    ],
)
def test_answers_to_checks(attempt: str, state: TransactionState) -> None:
    decision = Decision("q", 5, "run", frozenset({"q/5/0/winner"}), {}, ())
    assert answer_about(attempt, decision) is state
    assert answer_about(attempt, None) is TransactionState.UNKNOWN


@pytest.mark.parametrize(
    "attempt", ["", "q", "q/x/0/a", "q/\u0665/0/a", "q/5/0", "q/-1/0/a", "q/" + "9" * 5000 + "/0/a"]
)
def test_a_half_message_of_another_program_is_not_answered(attempt: str) -> None:
    asked: list[str] = []

    class Decisions:
        async def fetch_queues(self, topic: str) -> list[MessageQueue]:
            asked.append(topic)
            return []

    check = checker(Decisions(), "decisions")  # type: ignore[arg-type]
    message: Any = SimpleNamespace(properties={ATTEMPT: attempt})
    assert trio.run(check, message) is TransactionState.UNKNOWN
    assert not asked, "nor is the topic of decisions read for it"
    decision = Decision("q", 5, "run", frozenset(), {}, ())
    assert answer_about(attempt, decision) is TransactionState.UNKNOWN
