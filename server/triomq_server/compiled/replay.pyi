import mmap
from collections.abc import Callable, Collection
from typing import Any, Final

VERSION: Final[int]
LAYOUT: Final[dict[str, int]]

def run(
    buffer: mmap.mmap,
    base: int,
    start: int,
    end: int,
    until: int,
    table: dict[tuple[str, int], Any],
    excluded: str,
    hashes: bytearray | None,
    arrivals: list[Any] | None,
    watched: Collection[tuple[str, int]] | None,
    arrival: Callable[[str, int, int, int, int], Any],
) -> tuple[int, int]: ...
