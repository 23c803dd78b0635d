"""Progress lines that commands print on standard error while they measure."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console


def dim_progress(as_json: bool) -> Callable[[str], None]:
    """A function that prints a dim line; nothing where standard error is not a terminal, or the output is for machines."""
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        return lambda _text: None
    return lambda text: console.print(f"[dim]{text}")
