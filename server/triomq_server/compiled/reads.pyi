import mmap
from typing import Final

VERSION: Final[int]
LAYOUT: Final[dict[str, int]]

def find_records(
    entries: mmap.mmap,
    at: int,
    count: int,
    log: mmap.mmap,
    base: int,
    low: int,
    high: int,
    queue_id: int,
    number: int,
    bytes_most: int,
) -> tuple[list[memoryview], int] | None: ...
