"""Waiting sends: released by offset, expired by deadline, called back once, and forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from triomq_server.replication.waiters import OffsetWaiters


def test_one_release_frees_all_it_covers_in_order() -> None:
    heard: list[tuple[int, bool]] = []
    waiters = OffsetWaiters()
    for end in (30, 10, 20, 40):
        waiters.park(end, 5.0, lambda ok, end=end: heard.append((end, ok)))
    assert waiters.release(30) == 3
    assert heard == [(10, True), (20, True), (30, True)]
    assert waiters.waiting == 1
    assert waiters.expire(5.0) == 1
    assert heard[-1] == (40, False)
    assert waiters.next_deadline() is None


def test_deadlines_are_the_waiters_own() -> None:
    heard: list[str] = []
    waiters = OffsetWaiters()
    waiters.park(10, 9.0, lambda ok: heard.append(f"late {ok}"))
    waiters.park(20, 2.0, lambda ok: heard.append(f"early {ok}"))
    assert waiters.next_deadline() == 2.0
    assert waiters.expire(1.9) == 0
    assert waiters.expire(2.0) == 1
    assert heard == ["early False"]
    assert waiters.next_deadline() == 9.0
    assert waiters.release(20) == 1
    assert heard == ["early False", "late True"]


def test_end_of_service_fails_everyone_once() -> None:
    heard: list[bool] = []
    waiters = OffsetWaiters()
    waiters.park(10, 9.0, heard.append)
    waiters.park(20, 9.0, heard.append)
    waiters.release(10)
    waiters.fail_all()
    waiters.fail_all()
    assert heard == [True, False]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("park"), st.integers(1, 50), st.integers(1, 50)),
            st.tuples(st.just("release"), st.integers(1, 50), st.just(0)),
            st.tuples(st.just("expire"), st.integers(1, 50), st.just(0)),
        )
    )
)
def test_against_a_plain_list(steps: list[tuple[str, int, int]]) -> None:
    waiters = OffsetWaiters()
    model: dict[int, tuple[int, int]] = {}
    heard: dict[int, bool] = {}
    for number, (what, value, deadline) in enumerate(steps):
        if what == "park":
            model[number] = (value, deadline)
            waiters.park(value, deadline, lambda ok, number=number: heard.__setitem__(number, ok))
            continue
        before = dict(heard)
        column = 0 if what == "release" else 1
        gone = {number for number, key in model.items() if key[column] <= value}
        assert getattr(waiters, what)(value) == len(gone)
        assert {number: ok for number, ok in heard.items() if number not in before} == dict.fromkeys(
            gone, what == "release"
        )
        for number in gone:
            del model[number]
        assert waiters.waiting == len(model)
        assert waiters.next_deadline() == min((key[1] for key in model.values()), default=None)


def test_a_busy_queue_stays_small() -> None:
    waiters = OffsetWaiters()
    for end in range(10_000):
        waiters.park(end + 1, 3.0 + end, lambda ok: None)
        waiters.release(end - 3)
    assert len(waiters._by_deadline) < 10
    assert len(waiters._by_offset) < 10
