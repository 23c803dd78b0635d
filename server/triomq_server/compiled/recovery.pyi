import mmap
from collections.abc import Callable
from typing import Final

VERSION: Final[int]
LAYOUT: Final[dict[str, int]]

def pass_records(
    buffer: mmap.mmap,
    start: int,
    end: int,
    base: int,
    bytes_most: int,
    checksum: Callable[[bytes], int] | None,
    may_be_torn: bool,
    last_records: dict[tuple[str, int], tuple[int, int, int]],
) -> tuple[int, int, int]: ...
def pass_dispatched(
    buffer: mmap.mmap,
    start: int,
    end: int,
    base: int,
    bytes_most: int,
    indexed_until: int,
    known: dict[tuple[str, int], int],
) -> tuple[int, int, int]: ...
def pass_entries(
    buffer: mmap.mmap | bytes, start: int, stop: int, limit: int, before: int, last: int
) -> tuple[int, int, int, int]: ...
