"""Measurements that end early: what was measured before the end is kept, and shown with the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from triomq_command.running import EXIT_INTERRUPTED

T = TypeVar("T")

INTERRUPTED = "interrupted"
"""The reason if the user has ended it."""


def measured_until_end(measure: Callable[[], Iterable[T]], *errors: type[Exception]) -> tuple[list[T], str]:
    """Measure figures one after the other.

    Args:
        measure: returns the figures, each of which is measured when it is taken.
        errors: errors that end the measurement early.

    Returns:
        The figures, and the reason why there are no more of them; empty if there are all.
    """
    measured: list[T] = []
    try:
        for figure in measure():
            # `extend` promises nothing about what it has added before an error.
            measured.append(figure)  # noqa: PERF402
    except KeyboardInterrupt:
        return measured, INTERRUPTED
    except errors as error:
        return measured, str(error)
    return measured, ""


def end_early(failure: str, *, has_figures: bool) -> None:
    """End the command if there is a reason for that; call it when what was measured has been shown."""
    if failure == INTERRUPTED:
        sys.exit(EXIT_INTERRUPTED)
    if failure:
        raise click.ClickException(failure + ("\nWhat is shown was measured before." if has_figures else ""))
