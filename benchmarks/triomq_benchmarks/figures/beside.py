"""Formats a measured figure together with the limit that it is compared with."""

from __future__ import annotations

import math

DIGITS_MOST = 15
"""A float has no more decimal digits."""

EQUAL_WITHIN = 1e-9
"""Relative; a smaller difference comes from the arithmetic, as in 0.3 / 3."""


def beside(value: float, limit: float, digits: int) -> str:
    """A figure rounded so that it still lies on its own side of a limit: 0.996 beside 1 is not "1.00".

    Args:
        value: what was measured.
        limit: what it is compared with.
        digits: behind the point, where that is enough.
    """
    if math.isclose(value, limit, rel_tol=EQUAL_WITHIN):
        return f"{value:.{digits}f}"
    for more in range(digits, DIGITS_MOST + 1):
        text = f"{value:.{more}f}"
        shown = float(text)
        if (shown < limit, shown > limit) == (value < limit, value > limit):
            return text
    return repr(value)
