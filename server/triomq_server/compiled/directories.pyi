from typing import Final

VERSION: Final[int]

def only_file(path: str, length: int, most_bytes: int) -> tuple[str, bytes, int] | None: ...
