"""The choice of the broker for the next pull: one table of cases (docs/protocol/consumer.md §2)."""

from __future__ import annotations

import pytest

from triomq import MessageQueue, ReadPreference
from triomq._cluster.replica_choice import SUGGESTIONS_MAX, Node, NodeCache, find, read_preference_of
from triomq.errors import InvalidCall


class FakeClock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


M, S1, S2 = "m:1", "s1:1", "s2:1"


@pytest.mark.parametrize(
    ("addresses", "wanted", "only_this", "down", "expected"),
    [
        ({0: M, 1: S1}, 0, False, (), Node(M, 0)),
        ({0: M, 1: S1}, 1, False, (), Node(S1, 1)),
        ({0: M, 2: S2}, 1, False, (), Node(S2, 2)),  # the id after the wanted one
        ({0: M, 3: S2}, 1, False, (), Node(M, 0)),  # else the first by id
        ({1: S1, 2: S2}, 0, False, (), Node(S1, 1)),  # the master is gone from the route
        ({2: S2}, 5, False, (), Node(S2, 2)),
        ({1: S1}, 0, True, (), None),
        ({0: M, 2: S2}, 1, True, (), Node(S2, 2)),
        ({0: M, 3: S2}, 1, True, (), None),
        ({}, 0, False, (), None),
        ({0: M, 1: S1}, 0, False, (M,), Node(S1, 1)),  # the master cannot be reached
        ({0: M, 1: S1}, 1, False, (S1,), Node(M, 0)),
        ({0: M, 1: S1, 2: S2}, 1, False, (S1,), Node(S2, 2)),
        ({0: M, 1: S1}, 0, False, (M, S1), Node(M, 0)),  # none can: the first choice
        ({0: M, 1: S1}, 0, True, (M,), Node(M, 0)),
    ],
)
def test_find(addresses, wanted, only_this, down, expected):
    assert find(addresses, wanted, only_this=only_this, is_down=lambda address: address in down) == expected


def queue(number=0, name="a"):
    return MessageQueue("T", name, number)


@pytest.mark.parametrize(
    ("preference", "suggested", "wanted"),
    [
        (ReadPreference.SUGGESTED, None, 0),
        (ReadPreference.SUGGESTED, 1, 1),
        (ReadPreference.SUGGESTED, 0, 0),
        (ReadPreference.MASTER, 1, 0),
        (ReadPreference.SLAVE, None, 1),
        (ReadPreference.SLAVE, 0, 1),
        (ReadPreference.SLAVE, 2, 2),
        (ReadPreference.PREFER_SLAVE, None, 1),
        (ReadPreference.PREFER_SLAVE, 2, 2),
    ],
)
def test_which_broker_id_is_wanted(preference, suggested, wanted):
    cache = NodeCache(preference, FakeClock())
    if suggested is not None:
        cache.suggest(queue(), suggested)
    assert cache.wanted(queue()) == wanted


def test_each_queue_has_its_own_suggestion():
    cache = NodeCache(timer=FakeClock())
    cache.suggest(queue(0), 1)
    cache.suggest(queue(1), 2)
    assert [cache.wanted(queue(number)) for number in range(3)] == [1, 2, 0]
    cache.suggest(queue(0), 0)
    assert cache.wanted(queue(0)) == 0
    assert len(cache) == 1
    cache.forget(queue(1))
    assert len(cache) == 0


def test_a_route_without_the_suggested_broker_ends_the_suggestion():
    cache = NodeCache(timer=FakeClock())
    cache.suggest(queue(0), 1)
    cache.suggest(queue(0, "b"), 1)
    cache.suggest(MessageQueue("U", "a", 0), 1)
    cache.forget_gone("T", {"a": {0: M}, "b": {0: M, 1: S1}})
    assert [cache.wanted(queue(0)), cache.wanted(queue(0, "b")), cache.wanted(MessageQueue("U", "a", 0))] == [0, 1, 1]


@pytest.mark.parametrize(
    ("preference", "down", "expected"),
    [
        (ReadPreference.SUGGESTED, (), M),
        (ReadPreference.MASTER, (M,), M),
        (ReadPreference.SLAVE, (S1,), S2),
        (ReadPreference.SLAVE, (S1, S2), S1),
        (ReadPreference.PREFER_SLAVE, (), S1),
        (ReadPreference.PREFER_SLAVE, (S1,), S2),
        (ReadPreference.PREFER_SLAVE, (S1, S2), M),
    ],
)
def test_choose(preference, down, expected):
    chosen = NodeCache(preference, FakeClock()).choose(
        queue(), {0: M, 1: S1, 3: S2}, skip=lambda address: address in down
    )
    assert chosen is not None
    assert chosen.address == expected


def test_a_suggestion_that_no_answer_confirms_ends():
    clock = FakeClock(100.0)
    cache = NodeCache(timer=clock)
    cache.suggest(queue(), 1)
    clock.now = 159.0
    assert cache.wanted(queue()) == 1
    cache.suggest(queue(), 1)
    clock.now = 200.0
    assert cache.wanted(queue()) == 1
    clock.now = 220.0
    assert cache.wanted(queue()) == 0
    assert len(cache) == 0


def test_a_node_counts_as_silent_for_a_while_or_until_an_answer():
    clock = FakeClock(10.0)
    cache = NodeCache(timer=clock)
    cache.record_silence(M)
    found = []
    for clock.now in (10.0, 14.9, 15.0):
        found.append(cache.is_silent(M))
    assert found == [True, True, False]
    cache.record_silence(M)
    cache.record_answer(M)
    assert not cache.is_silent(M)


def test_a_silent_master_is_skipped_until_it_answers():
    clock = FakeClock()
    cache = NodeCache(timer=clock)

    def chosen():
        node = cache.choose(queue(), {0: M, 1: S1}, skip=lambda _address: False)
        assert node is not None
        return node.address, cache.stays(node, 0)

    assert chosen() == (M, True)
    cache.record_silence(M)
    assert chosen() == (S1, False)
    clock.now = 5.0
    assert chosen() == (M, True)


def test_no_more_suggestions_are_kept_than_the_limit():
    cache = NodeCache(timer=FakeClock())
    for number in range(SUGGESTIONS_MAX + 1):
        cache.suggest(queue(number), 1)
    assert len(cache) == SUGGESTIONS_MAX
    assert [cache.wanted(queue(number)) for number in (0, 1, SUGGESTIONS_MAX)] == [0, 1, 1]


@pytest.mark.parametrize(("broker_id", "expected"), [(0, M), (1, S1), (2, S2), (3, None)])
@pytest.mark.parametrize("suggested", [0, 1, 2])
def test_the_caller_chooses_the_broker(broker_id, expected, suggested):
    cache = NodeCache(read_preference_of(broker_id), FakeClock())
    cache.suggest(queue(), suggested)
    addresses = {0: M, 1: S1, 2: S2}
    for down in (set(), {M, S1}):
        chosen = cache.choose(queue(), addresses, skip=down.__contains__)
        assert (chosen and chosen.address) == expected


@pytest.mark.parametrize("value", [-1, True, 1.0, None, "1"])
def test_what_is_no_preference(value):
    with pytest.raises(InvalidCall, match="read_preference"):
        read_preference_of(value)
