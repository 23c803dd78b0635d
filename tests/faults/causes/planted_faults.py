"""Plants faults in benchmark runs, and checks that each result names its cause.

    python tests/faults/causes/planted_faults.py --faults 200 --first 1

The first fault of each kind is planted in a run of real processes (`real_runs.py`; `--virtual`: none is), all others in
runs on a virtual clock (`virtual_runs.py`).  The exit status is 1 if more than one result in forty is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import trio
from fault_kinds import KINDS
from real_runs import run_really
from virtual_runs import run_virtually


def main() -> int:
    """Plant, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="seed of the first; the next has the next")
    parser.add_argument("--kind", help="only this one")
    parser.add_argument("--virtual", action="store_true", help="no real processes")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if given.kind in (None, kind.name)]
    planted, right = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for number in range(given.faults):
        kind = kinds[number % len(kinds)]
        real = number < len(kinds) and not given.virtual
        seed, began = given.first + number, time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            if real:
                decision = trio.run(run_really, kind.name, seed, Path(scratch))
            else:
                decision = run_virtually(kind.name, seed, Path(scratch))
        planted[kind.name, real] += 1
        named = kind.is_named(decision)
        right[kind.name, real] += named
        if real or not named:
            word = "right" if named else "WRONG"
            print(f"{word} {kind.name} (seed {seed}, {'real' if real else 'virtual'}, {time.monotonic() - began:.0f} s): "
                  f"{decision.status}: {decision.explanation}", flush=True)  # fmt: skip
            if not named:
                print(f"   expected {kind.status}, {kind.says!r}; notes: {decision.notes}", flush=True)
    print(f"\n{'kind':28} {'real processes':>16} {'virtual clock':>16}")
    for kind in kinds:
        cells = [f"{right[kind.name, real]} of {planted[kind.name, real]}" for real in (True, False)]
        print(f"{kind.name:28} {cells[0]:>16} {cells[1]:>16}")
    total = sum(right.values())
    print(f"{total} of {given.faults} causes named right, {len(kinds)} kinds")
    return int(40 * (given.faults - total) > given.faults)


if __name__ == "__main__":
    sys.exit(main())
