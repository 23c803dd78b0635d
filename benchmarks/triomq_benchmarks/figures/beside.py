"""Formats a measured figure together with the limit that it is compared with."""

from __future__ import annotations

import math

DIGITS_MOST = 15
"""Maximum number of decimal digits in a float."""

EQUAL_WITHIN = 1e-9
"""Relative; smaller differences are arithmetic errors, as in 0.3 / 3."""


def beside(value: float, limit: float, digits: int) -> str:
    """Round a figure so that it stays on its own side of a limit: 0.996 next to 1 is not "1.00".

    Args:
        value: the measured value.
        limit: the limit that it is compared with.
        digits: decimal places, if that many are enough.
    """
    if math.isclose(value, limit, rel_tol=EQUAL_WITHIN):
        return f"{value:.{digits}f}"
    for more in range(digits, DIGITS_MOST + 1):
        text = f"{value:.{more}f}"
        shown = float(text)
        if (shown < limit, shown > limit) == (value < limit, value > limit):
            return text
    return repr(value)
