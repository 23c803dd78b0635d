"""Bodies in the JSON dialect of the Java side: typed classes in, exact bytes out (remoting.md section 13)."""

from typing import Self

import msgspec


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all JSON bodies; attribute `broker_name` is the member `brokerName`; None is not written."""

    def encode(self) -> bytes:
        """The body as Java writes it: members in alphabetical order, raw map keys where Java writes them raw."""
        raise LookupError

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what Java would read: unknown members ignored, missing ones default. Raises BodyError."""
        raise LookupError
