import mmap
from typing import Final

VERSION: Final[int]

def write_entries(
    buffer: mmap.mmap,
    slots: int,
    number: int,
    stop: int,
    entries: bytes | bytearray,
    start: int,
    begin: int,
) -> int: ...
