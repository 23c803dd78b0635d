"""Command: one request or response, its header in JSON and in RocketMQ's binary form (remoting.md sections 2 and 3)."""

from collections.abc import Mapping
from typing import Self, TypeVar

import msgspec

from triomq_protocol.codes import VERSION, LanguageCode, SerializeType
from triomq_protocol.header import Header

H = TypeVar("H", bound=Header)


class Command(msgspec.Struct):
    """One frame's meaning. Fast to make and to read; ext fields are decoded only when asked for.

    Attributes:
        code: request code, or response code if `is_response`.
        flag: bit 0 response, bit 1 one-way.
        opaque: pairs an answer with its request.
        version: the writer's version number (407 is 4.9.7).
        remark: text of an error answer; None if absent.
        serialize: how the header was (will be) written, a SerializeType.
        body: b"" if there is none.
    """

    code: int = 0
    flag: int = 0
    opaque: int = 0
    version: int = VERSION
    remark: str | None = None
    serialize: int = SerializeType.JSON
    body: bytes = b""

    @property
    def language(self) -> LanguageCode | None:
        """Language of the writer; None if its name or number is unknown."""
        raise LookupError

    @property
    def fields(self) -> dict[str, str] | None:
        """All ext fields as text, in wire order; None if the frame had none. Do not change the dict."""
        raise LookupError

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return self.flag & 1 == 1

    @property
    def is_oneway(self) -> bool:
        """Whether this request must not be answered."""
        return self.flag & 2 == 2

    def header(self, cls: type[H]) -> H:
        """The ext fields as a typed header object. Raises HeaderError naming the field that cannot be used."""
        raise LookupError

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        oneway: bool = False,
        opaque: int = 0,
        language: LanguageCode = LanguageCode.PYTHON,
        serialize: int = SerializeType.JSON,
        version: int = VERSION,
        remark: str | None = None,
    ) -> Self:
        """A request; `fields` are ext fields beside the header object's (Java's `addExtField`)."""
        raise LookupError

    def answer(
        self,
        code: int = 0,
        remark: str | None = None,
        header: Header | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        serialize: int | None = None,
    ) -> "Command":
        """The response to this request: its opaque, flag 1, language JAVA, its serialization unless given.

        A header object without values is written as empty ext fields `{}`, no header object as none at all.
        """
        raise LookupError

    def encode(self) -> bytes:
        """The whole frame, byte for byte as Java writes it. Raises LocalProtocolError if it does not fit."""
        raise LookupError

    def encode_head(self, body_bytes: int) -> bytes:
        """The frame without its body, with lengths for a body of `body_bytes` that the caller appends."""
        raise LookupError
