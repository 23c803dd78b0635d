"""What can go wrong between bytes and meaning; the caller's side, the peer's side, or one unusable request."""


class ProtocolError(Exception):
    """Root of everything this package raises on purpose."""


class LocalProtocolError(ProtocolError):
    """We were asked to write something the format cannot carry, or used the API in a wrong order: fix the caller."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are no frames of this protocol: close the link, nothing can be read behind them."""


class HeaderError(ProtocolError):
    """A well-formed frame whose header fields cannot be used; answer it with code 1 and go on.

    Attributes:
        field: the Java name of the missing or malformed header field.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"header field {field!r} {reason}")
        self.field = field


class BodyError(ProtocolError):
    """A body (or a message record) that cannot be decoded; answer it with code 1 and go on.

    Attributes:
        what: the name of the body or format that was expected.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
