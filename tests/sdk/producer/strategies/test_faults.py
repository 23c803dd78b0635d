"""The broker of the next attempt (docs/protocol/client.md §6.7)."""

from __future__ import annotations

import pytest

import triomq
from triomq._producer.strategies.faults import LatencyFaults, choose_plain, not_available_for_s


@pytest.mark.parametrize(
    ("latency", "pause"),
    [(0.01, 0), (0.05, 0), (0.1, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (14.9, 180), (15, 600), (30, 600)],
)
def test_latency_table(latency, pause):
    assert not_available_for_s(latency) == pause


def queues(*names):
    return [triomq.MessageQueue("T", name, number) for name in names for number in (0, 1)]


def counter(start=-1):
    numbers = iter(range(start + 1, 10_000))
    return lambda: next(numbers)


def test_plain_choice_passes_over_the_last_broker():
    assert choose_plain(queues("a", "b"), None, counter()) == triomq.MessageQueue("T", "a", 0)
    assert choose_plain(queues("a", "b"), "a", counter()) == triomq.MessageQueue("T", "b", 0)
    assert choose_plain(queues("a"), "a", counter()) == triomq.MessageQueue("T", "a", 0)


def test_fault_choice():
    faults = LatencyFaults()
    faults.update("a", 0.6, 0, isolate=False)
    assert faults.choose(queues("a", "b"), "b", counter(), 1).broker_name == "b"  # the last broker does not count
    faults.update("b", 0.01, 0, isolate=True)
    # None is available: the half with the smaller latency, one broker here.
    assert faults.choose(queues("a", "b"), None, counter(), 1).broker_name == "b"
    assert faults.is_available("a", 30)
    assert not faults.is_available("b", 599)
    assert faults.choose(queues("a", "b"), None, counter(), 31).broker_name == "a"
    alone = LatencyFaults()
    alone.update("gone", 0.6, 0, isolate=True)
    alone.update("a", 0.6, 0, isolate=True)
    assert alone.choose(queues("a"), None, counter(), 1).broker_name == "a"
