"""Groups of two Java and two Python members that join, leave and are killed, on the real broker and on ours.

Each member is a process that reports what it owns and handles; a producer sends all the time. On each broker a
concurrent and an ordered group run the same scenario at once, since most of the time passes until the locks of killed
members expire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
import trio
from consumer_ledger import Ledger, Queue
from group_audit import CONCURRENT_TWICE_MAX_S, ORDERED_TWICE_MAX_S, MemberRun, audit, ledger_of

import triomq
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.servers import Kind

QUEUES = 8
SEND_EVERY_S = 0.025
MESSAGES_MIN, MESSAGES_MAX = 800, 20_000
BALANCE_LIMIT_S = 300.0
LOCKS_LIVE_MS = 30_000
"""How long members rely on their locks: no shorter, or two may work in one queue; Java's default of 60 s takes
longer."""
SETTINGS = {"rebalanceLockMaxLiveTime": LOCKS_LIVE_MS}
PROPERTIES = {"rocketmq.broker.rebalance.lockMaxLiveTime": str(LOCKS_LIVE_MS)}
# A Java member that was refused a lock asks again in its next round only.
QUICK_ROUNDS = {"rocketmq.client.rebalance.waitInterval": "3000"}
ALL_QUEUES = {("broker-a", number) for number in range(QUEUES)}


@pytest.fixture(scope="module", params=[Kind.OURS, Kind.JAVA])
def target(request: pytest.FixtureRequest, servers: Any) -> Iterator[SingleBroker]:
    kind = request.param
    settings = SETTINGS if kind is Kind.OURS else {}
    with ExitStack() as stack:
        names = stack.enter_context(servers.namesrv(kind, f"{kind}-groups-namesrv"))
        name = f"{kind}-groups-broker"
        serving = stack.enter_context(servers.broker(kind, name, names.address, settings, properties=PROPERTIES))
        yield SingleBroker(kind, names, serving)


class GroupRun:
    """One group's run.

    Args:
        start: starts a member, Java's or ours, and returns it.
        ordered: how it consumes.
    """

    def __init__(self, start: Callable[..., Any], *, ordered: bool) -> None:
        self.ordered = ordered
        self.topic = f"T-mixed-{'ordered' if ordered else 'concurrent'}"
        self.group = self.topic.replace("T-", "G-")
        self.acknowledged: dict[str, tuple[Queue, int]] = {}
        self.events: list[str] = []
        self._start = start
        self._members: dict[str, Any] = {}
        self._present: list[str] = []
        self._killed_ms: dict[str, int] = {}
        self._last_phase = False
        self._begin_s = trio.current_time()

    def ledger(self) -> Ledger:
        """The ledger of everything up to now."""
        members = [
            MemberRun(name, member.events(), self._killed_ms.get(name)) for name, member in self._members.items()
        ]
        return ledger_of(self.acknowledged, self.topic, members)

    async def run(self, servers: str) -> None:
        """Run from the first member to the last handled message."""
        async with triomq.open_client(servers) as client:
            await client.admin.create_topic(self.topic, queues=QUEUES)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, client)
                await self._join("java-1", "python-1")
                await self._wait_balanced()
                await self._join("java-2", "python-2")
                await self._wait_balanced()
                self._kill("java-1", "python-1")
                await self._join("java-3", "python-3")
                await self._wait_balanced()
                await self._leave("java-2", "python-2")
                await self._wait_balanced()
                self._last_phase = True
            await self._until(lambda: not self.ledger().unhandled(), "everything is handled")
            await self._leave("java-3", "python-3")

    async def _send(self, client: triomq.Client) -> None:
        async with client.producer(f"P-{self.topic}") as producer:
            for number in range(MESSAGES_MAX):
                if self._last_phase and len(self.acknowledged) >= MESSAGES_MIN:
                    return
                body = f"{number:05d}"
                try:
                    result = await producer.send(triomq.Message(self.topic, body.encode()))
                except triomq.MQError as error:
                    # A loaded broker may refuse a message; another one follows.
                    self._note(f"{body} was not sent: {error.reason}")
                else:
                    place = (result.queue.broker_name, result.queue.queue_id)
                    self.acknowledged[body] = (place, result.queue_offset)
                await trio.sleep(SEND_EVERY_S)

    async def _join(self, *names: str) -> None:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._join_one, name)

    async def _join_one(self, name: str) -> None:
        self._members[name] = await trio.to_thread.run_sync(lambda: self._start(name.partition("-")[0], self))
        self._present.append(name)
        self._note(f"{name} joins")

    def _kill(self, *names: str) -> None:
        for name in names:
            self._present.remove(name)
            self._members[name].kill()
            self._killed_ms[name] = time.time_ns() // 1_000_000
            self._note(f"{name} is killed")

    async def _leave(self, *names: str) -> None:
        for name in names:
            self._present.remove(name)
            code = await trio.to_thread.run_sync(self._members[name].stop)
            self._note(f"{name} leaves, exit {code}")

    async def _wait_balanced(self) -> None:
        """Wait until every queue has exactly one owner, the shares are equal, and each member has handled a message: the
        next one to be killed must have handled some."""
        await self._until(
            self._is_balanced, f"{' and '.join(self._present)} share {QUEUES} queues, and handle messages"
        )

    def _is_balanced(self) -> bool:
        shares = [self._share(name) for name in self._present]
        fair = {len(share) for share in shares} == {QUEUES // len(shares)}
        works = all(self._members[name].messages() for name in self._present)
        return fair and works and set().union(*shares) == ALL_QUEUES

    def _share(self, name: str) -> set[Queue]:
        parts = [queue.split("@") for queue in self._members[name].queues()]
        return {(broker, int(number)) for _, broker, number in parts}

    async def _until(self, good: Callable[[], bool], what: str) -> None:
        try:
            with trio.fail_after(BALANCE_LIMIT_S):
                while not good():
                    for name in self._present:
                        assert self._members[name].alive, self._members[name].failure("ended by itself")
                    await trio.sleep(0.1)
        except trio.TooSlowError:
            shares = {name: sorted(self._share(name)) for name in self._present}
            pytest.fail(f"not in {BALANCE_LIMIT_S:g} s: {what}; {self.events}; {shares}")
        self._note(what)

    def _note(self, text: str) -> None:
        self.events.append(f"{trio.current_time() - self._begin_s:.1f} s: {text}")


@attrs.frozen
class Outcome:
    """The result of a group's run."""

    ledger: Ledger
    events: list[str]


@pytest.fixture(scope="module")
def outcomes(target: SingleBroker, java_push: Any, python_push: Any) -> dict[str, Outcome]:
    """The results of both groups, run at once."""
    servers = target.namesrv.address

    async def both() -> dict[str, Outcome]:
        runs = {"concurrent": GroupRun(start, ordered=False), "ordered": GroupRun(start, ordered=True)}
        async with trio.open_nursery() as nursery:
            for run in runs.values():
                nursery.start_soon(run.run, servers)
        return {name: Outcome(run.ledger(), run.events) for name, run in runs.items()}

    with ExitStack() as stack:

        def start(kind: str, run: GroupRun) -> Any:
            options: dict[str, Any] = {"ordered": str(run.ordered).lower(), "work_ms": 2}
            if kind == "java":
                # Otherwise its shutdown interrupts listeners, and reports their messages as consumed.
                options |= {"properties": QUICK_ROUNDS, "await_ms": 2000, "from": "first"}
            push = java_push if kind == "java" else python_push
            return stack.enter_context(push(servers, run.group, run.topic, **options))

        return trio.run(both)


@pytest.mark.parametrize("kind", ["concurrent", "ordered"])
def test_java_and_python_members_join_leave_and_are_killed(
    outcomes: dict[str, Outcome], target: SingleBroker, kind: str, figures: Callable[[str], None]
) -> None:
    ledger = outcomes[kind].ledger
    by_member: dict[str, int] = {}
    for handling in ledger.handlings:
        by_member[handling.member] = by_member.get(handling.member, 0) + 1
    figures(
        f"{target.kind} broker, {kind}: {len(ledger.acknowledged)} acknowledged, {len(ledger.handlings)} handled, "
        f"{ledger.repeats()} repeats, doubled for at most {ledger.doubled_s():.2f} s, {by_member}"
    )
    assert audit(ledger, ordered=kind == "ordered") == [], outcomes[kind].events
    assert len(by_member) == 6, "each member handled messages"
    assert len(ledger.acknowledged) >= MESSAGES_MIN


# --- the audit itself: a group's run without a fault, and faults injected into it ---------------------------------

TOPIC = "T"
Q = ("broker-a", 0)
SENT = {f"{number}": (Q, number) for number in range(6)}


def owns(ms: int, *queues: str) -> dict[str, Any]:
    return {"event": "queues", "time": ms, "queues": list(queues)}


def handled(number: int, begun: int, *, ms: int = 5, success: bool = True) -> dict[str, Any]:
    place = {"topic": TOPIC, "broker": "broker-a", "queue": 0, "offset": number, "body": f"{number}"}
    return {"event": "message", "time": begun + ms, "begun": begun, "success": success, **place}


def without_faults() -> list[MemberRun]:
    """One is killed before it committed its last message; the other takes over, then leaves."""
    one = [owns(1000, "T@broker-a@0", "%RETRY%G@broker-a@0")]
    one += [handled(number, 1100 + 10 * number) for number in (0, 1, 2)]
    other = [owns(31_300, "T@broker-a@0")]
    other += [handled(number, 31_400 + 10 * number) for number in (2, 3, 4, 5)]
    other += [{"event": "stopping", "time": 32_000}, owns(40_000)]
    return [MemberRun("one", one, killed_ms=1200), MemberRun("other", other)]


def faults_of(members: list[MemberRun], *, ordered: bool = True) -> set[str]:
    return {fault.partition(":")[0] for fault in audit(ledger_of(SENT, TOPIC, members), ordered=ordered)}


def changed(members: list[MemberRun], change: Callable[[list[dict[str, Any]]], object]) -> list[MemberRun]:
    """With the second member's events changed."""
    events = [dict(event) for event in members[1].events]
    change(events)
    return [members[0], attrs.evolve(members[1], events=events)]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_run_without_faults_has_none(ordered: bool) -> None:
    assert faults_of(without_faults(), ordered=ordered) == set()
    ledger = ledger_of(SENT, TOPIC, without_faults())
    assert ledger.repeats() == 1
    assert ledger.doubled_s() == 0


@pytest.mark.parametrize(
    ("change", "found", "found_unordered"),
    [
        pytest.param(lambda events: events.pop(4), {"lost"}, {"lost"}, id="the last but one is never handled"),
        pytest.param(lambda events: events[3].update(success=False), {"order", "lost"}, {"lost"}, id="it fails only"),
        pytest.param(lambda events: events[3].update(begun=31_460, time=31_465), {"order"}, set(), id="disorder"),
        pytest.param(lambda events: events.insert(1, handled(5, 31_350)), {"order"}, set(), id="the last one first"),
        pytest.param(lambda events: events[4].update(offset=7), {"place"}, {"place"}, id="in a place it was not sent to"),
        pytest.param(lambda events: events.insert(1, handled(1, 1112)), {"doubled"}, set(), id="both work in one queue"),
    ],
)  # fmt: skip
def test_injected_faults_are_detected(change: Any, found: set[str], found_unordered: set[str]) -> None:
    assert faults_of(changed(without_faults(), change)) == found
    assert faults_of(changed(without_faults(), change), ordered=False) == found_unordered


def test_a_queue_with_two_owners_is_detected() -> None:
    one, other = without_faults()
    for twice_s, ordered in ((ORDERED_TWICE_MAX_S, True), (CONCURRENT_TWICE_MAX_S, False)):
        for beyond_s, found in ((0.0, set()), (0.1, {"doubled"})):
            late = attrs.evolve(one, killed_ms=int(31_300 + (twice_s + beyond_s) * 1000))
            # Only ownership is under test here: the other one leaves later.
            stays = attrs.evolve(other, events=[each for each in other.events if each["event"] != "stopping"][:-1])
            assert faults_of([late, stays], ordered=ordered) == found
