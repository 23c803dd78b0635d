"""How often comparisons of repeats are wrong: of a side with itself, and of a side with one that is 5 % slower.

Noise is drawn from distributions, or from runs that were made: `python tests/benchmarks/repeat_noise.py [DIR...]`, where
DIR is what `triomq bench compare ours ours --repeat N --out DIR` wrote.  Each comparison makes as many rounds as it asks
for, beginning with ten.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import attrs

from triomq_benchmarks.figures.repeats import ROUNDS_LEAST, differences, rounds_needed

Round = Mapping[str, float]
"""Logarithms of B : A by measure, that which matters first."""

MOST = 20_000
WANTED = 0.05


@attrs.frozen
class Tally:
    """Comparisons in which a difference was called, of how many, with how many rounds in the middle and at most."""

    called: int
    comparisons: int
    rounds: float
    rounds_max: int


def compared(draw: Callable[[], Round], slower: float) -> tuple[bool, int]:
    """One comparison; whether it calls a difference (of the median, where there is one), and its rounds."""
    shift = math.log1p(slower)
    rounds: list[Round] = []
    wanted = ROUNDS_LEAST
    while len(rounds) < wanted:
        rounds += [draw() for _ in range(wanted - len(rounds))]
        first = next(iter(rounds[0]))
        needed = rounds_needed([each[first] + shift for each in rounds], WANTED)
        if needed > len(rounds):
            wanted = min(needed, 2 * len(rounds), MOST)
    series = {
        name: [each[name] + (shift if "ms" in name or name == first else 0.0) for each in rounds] for name in rounds[0]
    }
    found = differences(series)
    return (found[first].is_real if slower else any(each.is_real for each in found.values())), len(rounds)


def tally(draw: Callable[[], Round], comparisons: int, slower: float) -> Tally:
    """Many comparisons."""
    results = [compared(draw, slower) for _ in range(comparisons)]
    counts = [count for _, count in results]
    return Tally(sum(called for called, _ in results), comparisons, median(counts), max(counts))


def made_noise(chance: random.Random, scatter: float, *, heavy: bool = False) -> Callable[[], Round]:
    """Eight measures, the first with this scatter; the others go with it in part. Heavy: one round in ten is wild."""

    def draw() -> Round:
        first = chance.gauss(0, scatter) * (4 if heavy and chance.random() < 0.1 else 1)
        return {"p50": first, **{f"other {number}": 0.6 * first + chance.gauss(0, scatter) for number in range(7)}}

    return draw


def noise_of_runs(chance: random.Random, folder: Path) -> Callable[[], Round]:
    """Rounds of a comparison that was made of a side with itself: drawn again, and A and B exchanged by chance."""
    from triomq_benchmarks.report.repeated_comparison import logarithms_of
    from triomq_benchmarks.run.repeats import paired, runs_below

    series = logarithms_of(*paired(runs_below(folder / "a"), runs_below(folder / "b")))
    count = len(next(iter(series.values())))

    def draw() -> Round:
        number, sign = chance.randrange(count), chance.choice((1, -1))
        return {name: sign * values[number] for name, values in series.items()}

    return draw


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--comparisons", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    noises = {
        "normal, 2 %": made_noise(chance, 0.02),
        "normal, 5 %": made_noise(chance, 0.05),
        "normal, 10 %": made_noise(chance, 0.1),
        "one round in ten wild, 5 %": made_noise(chance, 0.05, heavy=True),
        **{f"rounds of {folder}": noise_of_runs(chance, folder) for folder in given.folders},
    }
    print(f"{'noise between rounds':40} {'A/A called':>12} {'5 % found':>12} {'rounds asked for: middle, most':>32}")
    for name, draw in noises.items():
        same, slower = (tally(draw, given.comparisons, by) for by in (0.0, WANTED))
        cells = [f"{each.called} of {each.comparisons}" for each in (same, slower)]
        print(f"{name:40} {cells[0]:>12} {cells[1]:>12} {f'{slower.rounds:g}, {slower.rounds_max}':>32}", flush=True)


if __name__ == "__main__":
    main()
