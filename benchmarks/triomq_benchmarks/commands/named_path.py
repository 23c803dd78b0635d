"""Options and arguments that are paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class NamedPath(click.Path):
    """Like click's own path, as a `Path`, but refuses an empty one.

    A shell passes an empty path for a variable that is not set, and `Path("")` is the current folder.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert to a path; an empty one fails the command."""
        if not str(value):
            self.fail("the path is empty; for the current folder write `.`", param, ctx)
        return super().convert(value, param, ctx)
