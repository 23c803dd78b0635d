"""Which broker serves the next pull: one table of cases (consumer.md §2)."""

from __future__ import annotations

import pytest

from triomq import MessageQueue, ReadPreference
from triomq._node_cache import Node, NodeCache, find

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
        ({0: M, 1: S1}, 0, False, (M, S1), Node(M, 0)),  # nobody can: the first choice
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
def test_wanted(preference, suggested, wanted):
    cache = NodeCache(preference)
    if suggested is not None:
        cache.suggest(queue(), suggested)
    assert cache.wanted(queue()) == wanted


def test_each_queue_has_its_own_suggestion():
    cache = NodeCache()
    cache.suggest(queue(0), 1)
    cache.suggest(queue(1), 2)
    assert [cache.wanted(queue(number)) for number in range(3)] == [1, 2, 0]
    cache.suggest(queue(0), 0)
    assert cache.wanted(queue(0)) == 0
    assert len(cache) == 1
    cache.forget(queue(1))
    assert len(cache) == 0


def test_a_route_without_the_suggested_broker_ends_the_suggestion():
    cache = NodeCache()
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
    chosen = NodeCache(preference).choose(queue(), {0: M, 1: S1, 3: S2}, 0.0, skip=lambda address: address in down)
    assert chosen is not None
    assert chosen.address == expected


def test_a_suggestion_that_nobody_confirms_ends():
    cache = NodeCache()
    cache.suggest(queue(), 1, now=100.0)
    assert cache.wanted(queue(), now=159.0) == 1
    cache.suggest(queue(), 1, now=159.0)
    assert cache.wanted(queue(), now=200.0) == 1
    assert cache.wanted(queue(), now=220.0) == 0
    assert len(cache) == 0


def test_silence_is_remembered_for_a_while_or_until_an_answer():
    cache = NodeCache()
    cache.note_silence(M, 10.0)
    assert [cache.is_unwell(M, now) for now in (10.0, 14.9, 15.0)] == [True, True, False]
    cache.note_silence(M, 20.0)
    cache.note_answer(M)
    assert not cache.is_unwell(M, 20.0)
