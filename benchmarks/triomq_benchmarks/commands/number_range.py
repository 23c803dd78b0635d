"""Options that are numbers in a range."""

from __future__ import annotations

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """Like click's own range, but refuses `nan`, which click accepts in any range: no comparison with it is true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert to a number; anything else fails the command."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
