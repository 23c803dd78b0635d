from typing import Final

VERSION: Final[int]

def only_files(paths: list[str], length: int, most_bytes: int) -> list[tuple[str, bytes] | None]: ...
