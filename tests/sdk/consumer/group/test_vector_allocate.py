"""Allocation of queues: Java's own results, and properties that hold for every group."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq import MessageQueue
from triomq._consumer.group.allocate import (
    AllocateStrategy,
    Average,
    AverageByCircle,
    ByConfig,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Sticky,
    _sticky_owners,
    sorted_members,
    sorted_queues,
)
from triomq.errors import InvalidCall

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[3] / "vectors" / "allocate.json").read_text())["cases"]


def first_part(name: str) -> str:
    return name.split("-")[0]


def strategy_of(case: dict[str, Any]) -> AllocateStrategy:
    parameters = case["parameters"] or {}
    made: AllocateStrategy
    match case["strategy"]:
        case "AVG":
            made = Average()
        case "AVG_BY_CIRCLE":
            made = AverageByCircle()
        case "CONSISTENT_HASH":
            made = ConsistentHash(parameters.get("virtualNodeCount", 10))
        case "CONFIG":
            made = ByConfig([MessageQueue(*queue) for queue in parameters["configuredQueues"]])
        case "MACHINE_ROOM":
            made = MachineRoom(parameters["consumerIdcs"])
        case "MACHINE_ROOM_NEARBY-AVG":
            made = MachineRoomNearby(Average(), first_part, first_part)
        case other:
            raise AssertionError(other)
    return made


@pytest.mark.parametrize(("broker", "is_kept"), [("r1@a", True), ("r1@", False), ("r1@a@", True), ("r1@a@b", False)])
def test_machine_rooms_are_read_from_names_as_java_splits_them(broker: str, is_kept: bool) -> None:
    queue = MessageQueue("T", broker, 0)
    assert MachineRoom(["r1"])("c", [queue], ["c"]) == [queue][:is_kept]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['name']}-{case['strategy']}")
def test_java_gives_the_same(case: dict[str, Any]) -> None:
    strategy = strategy_of(case)
    queues = [MessageQueue(*queue) for queue in case["queues"]]
    members = case["clients"]
    if case.get("error"):
        with pytest.raises(InvalidCall):
            strategy(case["asked"], queues, members)
        return
    results = case["result"] if isinstance(case["result"], dict) else {case["asked"]: case["result"]}
    for member, indexes in results.items():
        assert list(strategy(member, queues, members)) == [queues[index] for index in indexes]


def test_the_vectors_inputs_are_in_our_order() -> None:
    # So that what is proved for the vectors' order holds for what the rebalance hands in.
    for case in CASES:
        queues = [MessageQueue(*queue) for queue in case["queues"]]
        assert sorted_queues(queues) == queues
        assert sorted_members(case["clients"]) == case["clients"]


def test_ids_sort_as_java_texts() -> None:
    assert sorted_members(["10.0.0.2@7#9", "10.0.0.1@8#1@unit", "10.0.0.10@7#9"]) == [
        "10.0.0.10@7#9", "10.0.0.1@8#1@unit", "10.0.0.2@7#9",
    ]  # fmt: skip
    # By UTF-16 units: a character outside the plane (D83D DE00) comes before U+FF01.
    assert sorted_members(["\uff01", "\U0001f600"]) == ["\U0001f600", "\uff01"]


QUEUES = st.sets(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["hz-a", "hz-b", "sh-a", "sz@a"]), st.integers(0, 40)),
    min_size=1, max_size=40,
).map(sorted_queues)  # fmt: skip
MEMBERS = st.sets(st.from_regex(r"(hz|sh|sz|bj)-[a-z0-9@#]{1,6}", fullmatch=True), min_size=1, max_size=12).map(
    sorted_members
)
RULES: list[AllocateStrategy] = [
    Average(), AverageByCircle(), ConsistentHash(), ConsistentHash(1), Sticky(),
    MachineRoomNearby(Average(), first_part, first_part),
    MachineRoomNearby(Sticky(), lambda name: name[:2], first_part),
]  # fmt: skip


@pytest.mark.parametrize("strategy", RULES, ids=lambda rule: re.sub(r"<function (\S+) at \w+>", r"\1", repr(rule)))
@given(QUEUES, MEMBERS)
def test_each_queue_has_one_owner(strategy: AllocateStrategy, queues: list[MessageQueue], members: list[str]) -> None:
    shares = [queue for member in members for queue in strategy(member, queues, members)]
    assert sorted_queues(shares) == queues


@given(QUEUES, MEMBERS)
def test_sticky_shares_are_even(queues: list[MessageQueue], members: list[str]) -> None:
    sizes = [len(Sticky()(member, queues, members)) for member in members]
    assert max(sizes) - min(sizes) <= 1


def moved(strategy: AllocateStrategy, queues: list[MessageQueue], before: list[str], after: list[str]) -> int:
    def owners(members: list[str]) -> dict[MessageQueue, str]:
        return {queue: member for member in members for queue in strategy(member, queues, members)}

    old, new = owners(before), owners(after)
    return sum(old[queue] != new[queue] for queue in queues)


def test_sticky_shares_stay_the_same_in_every_version() -> None:
    """Members of one group may run different versions."""
    queues = [MessageQueue("T", broker, number) for broker in "ab" for number in range(4)]
    members = ["m1", "m2", "m\ud800"]
    shares = [
        [f"{each.broker_name}{each.queue_id}" for each in Sticky()(member, queues, members)] for member in members
    ]
    assert shares == [["a2", "b1", "b3"], ["a1", "b2"], ["a0", "a3", "b0"]]


def test_sticky_works_out_the_same_shares_once() -> None:
    """Each round of each member computes them, for as long as nothing changes."""
    queues = [MessageQueue("Once", "b", number) for number in range(64)]
    members = [f"m{number}" for number in range(8)]
    before = _sticky_owners.cache_info().misses
    for _ in range(3):
        for member in members:
            Sticky()(member, queues, members)
    assert _sticky_owners.cache_info().misses == before + 1


def test_a_join_moves_little_with_sticky() -> None:
    queues = [MessageQueue("T", f"broker-{name}", number) for name in "abcd" for number in range(16)]
    sticky = average = 0
    for count in range(2, 10):
        members = sorted_members([f"10.0.0.{number}@1#1" for number in range(count)])
        joined = sorted_members([*members, "10.0.0.1@2#2"])
        sticky += moved(Sticky(), queues, members, joined)
        average += moved(Average(), queues, members, joined)
    # The new member's share alone is 90 queues over all rounds.
    assert sticky < average * 0.7
    assert sticky < 180


def test_a_client_that_is_no_member_gets_no_queue() -> None:
    queues = [MessageQueue("T", "b", number) for number in range(4)]
    for strategy in RULES:
        assert list(strategy("hz-stranger", queues, ["hz-1", "hz-2"])) == []


def test_a_machine_room_must_have_a_name() -> None:
    nearby = MachineRoomNearby(Average(), lambda _name: "", first_part)
    with pytest.raises(InvalidCall, match="machine room of 'b'"):
        nearby("hz-1", [MessageQueue("T", "b", 0)], ["hz-1"])
