"""Waiting sends: released by offset, expired by deadline, called back once, and dropped."""

from hypothesis import given
from hypothesis import strategies as st

from triomq_server.store.flush.offset_waiters import OffsetWaiters


def test_one_release_frees_all_it_covers_in_order() -> None:
    answers: list[tuple[int, bool]] = []
    waiters = OffsetWaiters()
    for end in (30, 10, 20, 40):
        waiters.add(end, 5.0, lambda ok, end=end: answers.append((end, ok)))
    assert waiters.release(30) == 3
    assert answers == [(10, True), (20, True), (30, True)]
    assert waiters.waiting == 1
    assert waiters.expire(5.0) == 1
    assert answers[-1] == (40, False)
    assert waiters.next_deadline() == float("inf")


def test_deadlines_are_the_waiters_own() -> None:
    answers: list[str] = []
    waiters = OffsetWaiters()
    waiters.add(10, 9.0, lambda ok: answers.append(f"late {ok}"))
    waiters.add(20, 2.0, lambda ok: answers.append(f"early {ok}"))
    assert waiters.next_deadline() == 2.0
    assert waiters.expire(1.9) == 0
    assert waiters.expire(2.0) == 1
    assert answers == ["early False"]
    assert waiters.next_deadline() == 9.0
    assert waiters.release(20) == 1
    assert answers == ["early False", "late True"]


def test_end_of_service_fails_everyone_once() -> None:
    answers: list[bool] = []
    waiters = OffsetWaiters()
    waiters.add(10, 9.0, answers.append)
    waiters.add(20, 9.0, answers.append)
    waiters.release(10)
    waiters.fail_all()
    waiters.fail_all()
    assert answers == [True, False]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 50), st.integers(1, 50)),
            st.tuples(st.just("release"), st.integers(1, 50), st.just(0)),
            st.tuples(st.just("expire"), st.integers(1, 50), st.just(0)),
        )
    )
)
def test_against_a_plain_list(steps: list[tuple[str, int, int]]) -> None:
    waiters = OffsetWaiters()
    model: dict[int, tuple[int, int]] = {}
    answers: dict[int, bool] = {}
    for number, (what, value, deadline) in enumerate(steps):
        if what == "add":
            model[number] = (value, deadline)
            waiters.add(value, deadline, lambda ok, number=number: answers.__setitem__(number, ok))
            continue
        before = dict(answers)
        column = 0 if what == "release" else 1
        gone = {number for number, key in model.items() if key[column] <= value}
        assert getattr(waiters, what)(value) == len(gone)
        assert {number: ok for number, ok in answers.items() if number not in before} == dict.fromkeys(
            gone, what == "release"
        )
        for number in gone:
            del model[number]
        assert waiters.waiting == len(model)
        assert waiters.next_deadline() == min((key[1] for key in model.values()), default=float("inf"))


def test_a_busy_queue_stays_small() -> None:
    waiters = OffsetWaiters()
    for end in range(10_000):
        waiters.add(end + 1, 3.0 + end, lambda ok: None)
        waiters.release(end - 3)
    assert len(waiters._by_deadline) < 10
    assert len(waiters._by_offset) < 10
