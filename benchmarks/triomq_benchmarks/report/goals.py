"""Formats a measured ratio with its goal, as text for tables."""

from __future__ import annotations

from rich.text import Text

from triomq_benchmarks.figures.beside import beside


def ratio_text(ratio: float | None, goal: float | None, *, at_most: bool = False) -> Text:
    """Format a ratio, green if it reaches its goal, red if it does not.

    Args:
        ratio: None if there is nothing to compare with.
        goal: None if there is none.
        at_most: whether the goal is an upper limit.
    """
    if ratio is None:
        return Text("-")
    if goal is None:
        return Text(f"{ratio:.2f}x")
    reached = ratio <= goal if at_most else ratio >= goal
    return Text(
        f"{beside(ratio, goal, 2)}x ({'<=' if at_most else '>='} {goal:g})", style="green" if reached else "bold red"
    )
