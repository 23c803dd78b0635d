"""Places: connections are shared between hosts when all are taken."""

from __future__ import annotations

import trio
from loop_lines import lines_of

from triomq_server.wire.limits.places import Place, Places


class Link:
    def __init__(self, active_at: float) -> None:
        self.active_at = active_at


class Listener:
    """Places, and what has been ended."""

    def __init__(self, most: int) -> None:
        self.places = Places(most)
        self.ended: list[Place] = []

    def take(self, host: str, active_at: float | None = None) -> Place | None:
        place = self.places.take(host, lambda: self.ended.append(place))
        if place is not None and active_at is not None:
            place.link = Link(active_at)
        return place


async def test_while_there_is_room_one_host_may_have_all_places(autojump_clock) -> None:
    listener = Listener(100)
    taken = [listener.take("stranger") for _ in range(100)]
    assert None not in taken
    assert listener.take("stranger") is None
    assert not listener.ended


async def test_other_hosts_get_the_places_on_which_nothing_has_moved_for_longest(autojump_clock) -> None:
    listener = Listener(100)
    await trio.sleep(1000)
    crowd = [listener.take("stranger", active_at=float(99 - number)) for number in range(100)]
    closed = []
    listener.places.closed = closed.append
    got = [listener.take(f"host-{number % 4}") for number in range(80)]
    assert None not in got
    assert listener.ended == crowd[::-1][:80], "each host has 20 now"
    assert closed == ["stranger"] * 80
    assert listener.places.taken == 100
    assert listener.take("host-0") is None, "no host has two more"
    assert listener.take("stranger") is None
    assert listener.take("host-4") is not None


async def test_a_connection_that_has_become_active_is_not_the_idlest(autojump_clock) -> None:
    listener = Listener(20)
    await trio.sleep(1000)
    crowd = [listener.take("stranger", active_at=float(number)) for number in range(20)]
    assert listener.take("host") is not None
    assert listener.ended == [crowd[0]]
    await trio.sleep(1)
    crowd[1].link.active_at = trio.current_time()
    listener.places.give(crowd[2])
    assert listener.take("host") is not None, "there was room"
    assert listener.take("host") is not None
    assert listener.ended == [crowd[0], crowd[3]]


async def test_places_are_given_back_once(autojump_clock) -> None:
    listener = Listener(2)
    first, second = listener.take("a"), listener.take("a")
    listener.places.give(first)
    listener.places.give(first)
    assert listener.places.taken == 1
    third = listener.take("b")
    assert third is not None
    for place in (second, third):
        listener.places.give(place)
    assert listener.places.taken == 0
    assert listener.take("a") is not None
    assert not listener.ended


async def test_taking_a_place_costs_the_same_work_for_any_number_of_hosts(autojump_clock) -> None:
    few, many = Listener(20), Listener(20_000)
    for listener, hosts in ((few, 10), (many, 10_000)):
        for number in range(2 * hosts):
            listener.take(f"host-{number % hosts}")
    assert lines_of(lambda: many.take("new")) <= lines_of(lambda: few.take("new")) + 5
