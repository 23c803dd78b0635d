from typing import Final

VERSION: Final[int]

LAYOUT: Final[dict[str, int]]

def whole_records(page: bytes) -> tuple[int, int]: ...

class Records:
    count: int
    compressed: int
    queue_ids: bytes
    queue_offsets: bytes
    physical_offsets: bytes
    born_ms: bytes
    stored_ms: bytes
    reconsume_times: bytes

    def __init__(self, pages: list[bytes], start: int, end: int) -> None: ...
    def bodies(self) -> tuple[bytes, bytes]: ...
    def properties(self) -> Properties | None: ...

class Properties:
    def column(self, name: bytes) -> tuple[int, bytes, bytes, bytes]: ...
    def map_column(self) -> tuple[bytes, int, bytes, bytes, bytes, bytes]: ...
