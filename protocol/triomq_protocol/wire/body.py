"""Bodies in the JSON dialect of the Java side: typed classes in, exact bytes out (docs/protocol/remoting.md §13)."""

import re
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self, get_args, get_origin

import msgspec

from triomq_protocol.errors import BodyError
from triomq_protocol.wire.fastjson import ObjectKey, dumps, dumps_pretty, integer_of_text, loads, member_name


class JsonCodec:
    """Encoding and decoding of all bodies: a mixin of the base classes Body and FrozenBody."""

    __slots__ = ()

    def encode(self) -> bytes:
        """The body as Java writes it: members in alphabetical order, raw map keys where Java writes them raw."""
        return dumps(self)

    def encode_pretty(self) -> bytes:
        """The tab form in which Java writes its configuration files (docs/protocol/store.md §21)."""
        return dumps_pretty(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what Java would read (section 13.2). Raises BodyError.

        Unknown members are ignored and missing or null ones take their defaults; names match in any case, with or
        without `_` and `-`, numbers
        may be text and text numbers, maps keyed by numbers or queues may have text keys.
        """
        decode = _fast_decoder(typing.cast("Any", cls))
        for text in (data, _quote_numbers(data)) if _RAW_NUMBER_KEY.search(data) else (data,):
            try:
                return typing.cast("Self", decode(text))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
        return cls.from_json(loads(data))

    @classmethod
    def from_json(cls, value: object) -> Self:
        """A body from what `fastjson.loads` returned. Raises BodyError."""
        if not isinstance(value, dict):
            raise BodyError(cls.__name__, "the body is not a JSON object")
        try:
            return typing.cast("Self", _converter(typing.cast("Any", cls))(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise BodyError(cls.__name__, str(error)) from error


# An unknown member may be a known one in another case, which only the tolerant decoder matches; hence
# forbid_unknown_fields.


class Body(JsonCodec, msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Base of JSON bodies; attribute `broker_name` is the member `brokerName`; None is not written."""


class FrozenBody(JsonCodec, msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Base of JSON bodies that are values: equal and hashable by their members."""


_Convert = Callable[[Any], Any]


class _MisfitError(ValueError):
    """A member that cannot be read, with the names of its enclosing members: `outer.inner: reason`."""

    def __init__(self, member: str, error: Exception) -> None:
        super().__init__(f"{member}.{error}" if isinstance(error, _MisfitError) else f"{member}: {error}")


_RAW_NUMBER_KEY = re.compile(rb"[{,]-?[0-9]+:")
# Possessive, and content without a closing quote is taken too: else a text of escaped quotes costs quadratic time.
_TEXT_OR_NUMBER_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([{,])(-?[0-9]+):', re.DOTALL)


def _quote_numbers(data: bytes) -> bytes:
    """Java's JSON with raw number keys, the commonest dialect, as standard JSON."""
    return _TEXT_OR_NUMBER_KEY.sub(lambda m: m[0] if m[1] is None else b'%b"%b":' % (m[1], m[2]), data)


@lru_cache(None)
def _fast_decoder(cls: type[JsonCodec]) -> Callable[[bytes], Any]:
    """Standard JSON of exactly the declared types; anything else is left to the tolerant decoder."""
    return msgspec.json.Decoder(cls).decode


@lru_cache(None)
def _converter(annotation: Any) -> _Convert:
    """How to turn a parsed JSON value into a declared type, with FastJSON's casts."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is types.UnionType or origin is typing.Union:
        return _optional(_converter(next(arg for arg in args if arg is not types.NoneType)))
    if origin is list:
        return _list_of(_converter(args[0]))
    if origin is dict:
        return _map_of(_converter(args[0]), _converter(args[1]))
    if isinstance(annotation, type) and issubclass(annotation, Body | FrozenBody):
        return _body_of(annotation)
    return _SCALARS[annotation]


def _optional(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _list_of(convert: _Convert) -> _Convert:
    def convert_list(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise TypeError(f"list expected, got {_shown(value)}")
        return [convert(item) for item in value]

    return convert_list


def _map_of(convert_key: _Convert, convert: _Convert) -> _Convert:
    def convert_map(value: Any) -> dict[Any, Any]:
        return {convert_key(key): convert(member) for key, member in _object(value).items()}

    return convert_map


def _object(value: Any) -> dict[Any, Any]:
    """A JSON object in any of its forms: parsed, frozen as a map key, or as text in a quoted key."""
    if isinstance(value, ObjectKey):
        return value.members()
    if isinstance(value, str):
        value = loads(value)
    if not isinstance(value, dict):
        raise TypeError(f"object expected, got {_shown(value)}")
    return value


def _body_of(cls: type[Body] | type[FrozenBody]) -> _Convert:
    members = {
        member_name(field.encode_name): (field.name, _converter(field.type)) for field in msgspec.structs.fields(cls)
    }

    def convert_body(value: Any) -> Body | FrozenBody:
        values = {}
        for name, member in _object(value).items():
            found = members.get(member_name(str(name)))
            if found is not None and member is not None:
                try:
                    values[found[0]] = found[1](member)
                except (TypeError, ValueError, OverflowError) as error:
                    raise _MisfitError(str(name), error) from error
        return cls(**values)

    return convert_body


def _to_str(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def _to_int(value: Any) -> int:
    if isinstance(value, str):
        return integer_of_text(value, 64)
    if isinstance(value, int | float):
        return int(value)
    raise TypeError(f"number expected, got {_shown(value)}")


def _to_float(value: Any) -> float:
    if isinstance(value, str | int | float):
        return float(value)
    raise TypeError(f"number expected, got {_shown(value)}")


def _to_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in ("true", "1", "y", "t", "yes")
    if isinstance(value, int):
        return value == 1
    raise TypeError(f"true or false expected, got {_shown(value)}")


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"


_SCALARS: dict[Any, _Convert] = {str: _to_str, int: _to_int, float: _to_float, bool: _to_bool}
