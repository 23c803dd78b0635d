"""Errors of encoding and decoding: caused by the caller, by the peer, or by one unusable request."""


class ProtocolError(Exception):
    """Base class of the errors that this package raises."""


class LocalProtocolError(ProtocolError):
    """The value cannot be represented in the format, or the API was called in a wrong order: correct the caller."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are not frames of this protocol: close the link, nothing after them can be read."""


class HeaderError(ProtocolError):
    """A well-formed frame whose header fields cannot be used; answer it with code 1 and continue.

    Attributes:
        field: the Java name of the missing or malformed header field.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"header field {field!r} {reason}")
        self.field = field


class BodyError(ProtocolError):
    """A body (or a message record) that cannot be decoded; answer it with code 1 and continue.

    Attributes:
        what: the name of the body or format that was expected.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what


class BodyTooLongError(BodyError):
    """A body in an unusual form, for instance with objects as keys, that is too long to be read in this form.

    Attributes:
        size_bytes: its length.
        limit_bytes: the largest length in this form.
    """

    def __init__(self, what: str, size_bytes: int, limit_bytes: int, reason: str = "") -> None:
        super().__init__(
            what, f"{size_bytes} bytes of non-standard JSON, the limit is {limit_bytes}" + (reason and f": {reason}")
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
