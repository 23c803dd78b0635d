"""Request and response header objects: the text rules of ext fields (docs/protocol/remoting.md §6).

Upstream: `RemotingCommand.decodeCommandCustomHeader` and `makeCustomHeaderToNet`.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from triomq_protocol.errors import HeaderError, LocalProtocolError
from triomq_protocol.java_text import parse_integer
from triomq_protocol.wire.fastjson import java_double

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Header(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all header classes; attribute `queue_id` is sent as ext field `queueId`.

    A field without default is required: a request in which it is missing or malformed raises HeaderError. A field
    with a default follows Java's lenient rule: absent or malformed reads as the default. None is not sent.
    Numbers and booleans in unusual spellings (`5.0`, `1` for true) are read, where Java would drop them.

    Attributes:
        fixed_order: written in declaration order, before other ext fields, in binary headers (Java's fast codec);
            malformed optional numbers are then an error as well.
    """

    fixed_order: ClassVar[bool] = False

    def to_fields(self) -> list[tuple[str, str]]:
        """(name, text) of every field that is not None, in declaration order."""
        out = []
        for attribute, name, to_text in _writers(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                out.append((name, value if to_text is None else to_text(value)))
        return out


H = TypeVar("H", bound=Header)


def _bool_text(value: object) -> str:
    return "true" if value else "false"


def _int_text(value: object) -> str:
    if not isinstance(value, int):
        raise LocalProtocolError(f"header field needs a whole number, got {value!r}")
    return str(int(value))


def _float_text(value: object) -> str:
    return java_double(float(str(value)))


_KINDS: dict[str, tuple[Callable[[object], str] | None, Callable[[str], object]]] = {
    "str": (None, str),
    "bool": (_bool_text, lambda text: text.lower() == "true"),
    "int32": (_int_text, lambda text: parse_integer(text, 32)),
    "int64": (_int_text, lambda text: parse_integer(text, 64)),
    "float": (_float_text, float),
}


def _kind(annotation: Any) -> str:
    parts = msgspec.inspect.type_info(annotation)
    if isinstance(parts, msgspec.inspect.UnionType):
        parts = next(part for part in parts.types if not isinstance(part, msgspec.inspect.NoneType))
    if isinstance(parts, msgspec.inspect.IntType):
        return "int32" if parts.le == (1 << 31) - 1 else "int64"
    return {
        msgspec.inspect.StrType: "str",
        msgspec.inspect.BoolType: "bool",
        msgspec.inspect.FloatType: "float",
    }[type(parts)]


@lru_cache(None)
def _kinds(cls: type[Header]) -> list[tuple[msgspec.structs.FieldInfo, str]]:
    return [(field, _kind(field.type)) for field in msgspec.structs.fields(cls)]


@lru_cache(None)
def _writers(cls: type[Header]) -> list[tuple[str, str, Callable[[object], str] | None]]:
    return [(field.name, field.encode_name, _KINDS[kind][0]) for field, kind in _kinds(cls)]


@lru_cache(None)
def json_decoder(cls: type[H]) -> Callable[[bytes | msgspec.Raw], H]:
    """The fast reader of a class from the JSON text of ext fields; raises msgspec's errors."""
    return msgspec.json.Decoder(cls, strict=False).decode


def header_from_fields(cls: type[H], fields: Mapping[str, str] | None) -> H:
    """A header object from ext fields as text. Raises HeaderError."""
    try:
        return msgspec.convert(fields or {}, cls, strict=False)
    except msgspec.ValidationError:
        return _lenient(cls, fields or {})


def _lenient(cls: type[H], fields: Mapping[str, str]) -> H:
    values: dict[str, object] = {}
    for field, kind in _kinds(cls):
        text = fields.get(field.encode_name)
        if text is None:
            if field.required:
                raise HeaderError(field.encode_name, "is missing")
            continue
        try:
            values[field.name] = _KINDS[kind][1](text)
        except ValueError as error:
            if field.required or cls.fixed_order:
                raise HeaderError(field.encode_name, f"is malformed: {text[:100]!r}") from error
    return cls(**values)
