"""What `triomq bench run --find-max-rate` prints about its search."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from triomq_benchmarks.commands.runs import run
from triomq_benchmarks.run.decisions.max_rate import MaxRate


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (MaxRate(800, "broker", ()), "ours: 800 messages per second are sustained"),
        (MaxRate(0, "broker", ()), "ours: 0 messages per second are sustained"),
        (MaxRate(0, "unfinished", ()), "ours: no sustained rate was found, and the search was not finished"),
        (
            MaxRate(800, "unfinished", ()),
            "ours: at least 800 messages per second are sustained, and the search was not finished",
        ),
    ],
)
def test_a_search_that_was_interrupted_claims_no_limit(found: MaxRate, text: str) -> None:
    shown = StringIO()
    run._print_search("ours", found, Console(file=shown, width=200))
    assert shown.getvalue().splitlines()[-1] == text
