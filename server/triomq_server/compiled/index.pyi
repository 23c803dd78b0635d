import mmap
from typing import Final

VERSION: Final[int]

def write_entries(
    buffer: mmap.mmap,
    slots: int,
    number: int,
    stop: int,
    entries: list[tuple[int, int, int]],
    start: int,
    begin: int,
) -> int: ...
