"""The order in which measurements that are compared take turns."""

from __future__ import annotations

from triomq_benchmarks.figures.turns import in_turns, turns


def test_every_other_round_goes_backwards() -> None:
    assert list(turns(["a", "b"], 3)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_results_are_in_the_order_of_what_was_called() -> None:
    order: list[str] = []

    def call(name: str) -> str:
        order.append(name)
        return name.upper()

    found = in_turns(3, [lambda: call("a"), lambda: call("b"), lambda: call("c")])
    assert "".join(order) == "abccbaabc"
    assert found == [["A"] * 3, ["B"] * 3, ["C"] * 3]
