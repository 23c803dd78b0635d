"""Request and response header objects: the text rules of ext fields (remoting.md section 6).

Upstream: `RemotingCommand.decodeCommandCustomHeader` and `makeCustomHeaderToNet`.
"""

from typing import Annotated, ClassVar

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all header classes; attribute `queue_id` travels as ext field `queueId`.

    A field without default is required: a request in which it is missing or malformed raises HeaderError. A field
    with a default follows Java's lenient rule: absent or malformed reads as the default. None is not sent.

    Attributes:
        fixed_order: written in declaration order, before other ext fields, in binary headers (Java's fast codec);
            malformed optional fields are then an error as well.
    """

    fixed_order: ClassVar[bool] = False
