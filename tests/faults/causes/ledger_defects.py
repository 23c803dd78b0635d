"""Defects in the rows of a ledger, as a broker that loses, alters or repeats messages would leave them.  Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

Row = tuple[int, str, str, int, int, int]
"""Number, topic, broker, queue id, queue offset, CRC-32."""


def planted(
    kind: str, chance: random.Random, acknowledged: Sequence[Row], consumed: Sequence[Row]
) -> tuple[list[Row], list[Row]]:
    """Both kinds of rows with a defect in up to ten messages.

    Args:
        kind: name of one of `LEDGER_KINDS`.
        chance: which messages.
        acknowledged: rows, in order.
        consumed: rows, in the order of consumption, of one group.
    """
    sent, came = list(acknowledged), list(consumed)
    chosen = chance.sample(range(len(came)), chance.randint(1, 10))
    if kind == "messages lost":
        came = [row for place, row in enumerate(came) if place not in set(chosen)]
    elif kind == "bodies altered":
        for place in chosen:
            came[place] = (*came[place][:5], came[place][5] ^ 1 << chance.randrange(32))
    elif kind == "messages delivered twice":
        for place in sorted(chosen, reverse=True):
            came.insert(min(len(came), place + chance.randint(1, 30)), came[place])
    elif kind == "messages out of order":
        here = came[chosen[0]]
        places = [place for place, row in enumerate(came) if row[1:4] == here[1:4]]
        first = chance.randrange(len(places) - 1)
        one, other = places[first], places[first + 1]
        came[one], came[other] = came[other], came[one]
    elif kind == "messages of another run":
        _, topic, broker, queue_id, _, _ = came[0]
        came += [(1 << 50 | number, topic, broker, queue_id, 1_000_000 + number, 7) for number in range(len(chosen))]
    elif kind == "log went back":
        # The last messages of a queue are given once more, to others; both are consumed at their place.
        *_, last = sent
        queue = sorted((row for row in sent if row[1:4] == last[1:4]), key=lambda row: row[4])[-len(chosen) :]
        again = [(row[0] + (1 << 30), *row[1:]) for row in queue]
        sent += again
        came += again
    else:
        raise ValueError(kind)
    return sent, came
