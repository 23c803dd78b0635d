"""Half messages that have ended, and the progress in the op queue."""

from __future__ import annotations

import random

from triomq_server.broker.transactions.ended_halves import EndedHalves


def test_the_op_queue_is_passed_as_far_as_its_half_messages_are() -> None:
    ended = EndedHalves(10, 3)
    assert ended.next_op == 3
    for halves in ([12], [10], [], [15], [11]):
        ended.read_op(halves)
    assert ended.next_op == 8
    assert [half for half in range(8, 18) if half in ended] == [10, 11, 12, 15]
    assert ended.pass_to(12) == 3, "the first op message is about 12"
    assert ended.pass_to(13) == 6
    assert ended.pass_to(16) == 8
    assert (ended.op_offset, ended.next_op) == (8, 8)


def test_what_lies_before_the_beginning_is_not_known() -> None:
    ended = EndedHalves(10)
    ended.read_op([9])
    assert 9 not in ended
    assert ended.pass_to(10) == 1


def test_an_op_message_about_many_is_passed_with_the_last_of_them() -> None:
    ended = EndedHalves(10, 3)
    ended.read_op([14, 11, 9])
    ended.read_op([10])
    assert [half for half in range(8, 18) if half in ended] == [10, 11, 14]
    assert [ended.pass_to(half) for half in (12, 14, 15)] == [3, 3, 5]


def test_memory_stays_small_while_millions_end() -> None:
    chance = random.Random(3)
    ended = EndedHalves()
    for begin in range(0, 4_000_000, 50_000):
        halves = list(range(begin, begin + 50_000))
        chance.shuffle(halves)
        for half in halves:
            ended.read_op([half])
        assert ended.pass_to(begin + 50_000) == begin + 50_000
    assert len(ended._bits) < 300_000
    assert len(ended._halves) < 70_000
    assert 3_000_000 in ended, "a million remain known"
    assert 2_000 not in ended
