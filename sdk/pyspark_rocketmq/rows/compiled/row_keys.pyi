from typing import Final

from _typeshed import ReadableBuffer

VERSION: Final[int]

class Keys:
    wide: bool
    def __init__(self, prefix: bytes) -> None: ...
    def of(self, contents: ReadableBuffer, ends: ReadableBuffer) -> tuple[bytes, bytes]: ...
