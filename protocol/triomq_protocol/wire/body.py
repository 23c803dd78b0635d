"""Bodies in Java's JSON dialect: typed classes in, exact bytes out (docs/protocol/remoting.md §13)."""

import re
import types
import typing
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

import msgspec

from triomq_protocol.errors import BodyError, BodyTooLongError
from triomq_protocol.wire.fastjson import (
    MAX_TOLERANT_BYTES,
    SMALL_KEY_MOST,
    WIDE_KEYS_MOST,
    ObjectKey,
    dumps,
    dumps_in_slices,
    dumps_pretty,
    integer_of_text,
    loads,
    member_name,
)

ANSWER_TOLERANT_BYTES = 4 << 20
"""Of an answer in the dialect: a peer that was asked may take more of the caller's time than an unknown one."""

SmallKey = Annotated[int, msgspec.Meta(ge=0, le=SMALL_KEY_MOST)]
"""A number as the key of a map. The fast decoder takes no others, since they can be chosen to collide; the tolerant one
takes a few."""

QueueId = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""Of 32 bits, as in Java. Larger numbers can be chosen to have the same hash."""


class JsonCodec:
    """Encoding and decoding of all bodies: a mixin of the base classes Body and FrozenBody."""

    __slots__ = ()

    tolerant_bytes: ClassVar[int] = MAX_TOLERANT_BYTES
    """A longer text must be standard JSON. Bodies that Java itself writes otherwise, and that only answers carry, have
    ANSWER_TOLERANT_BYTES, beyond which tables by queue are read as brokers write them: standard JSON but for objects as
    keys."""

    most_bytes: ClassVar[int] = 1 << 62
    most_objects: ClassVar[int] = 1 << 62
    """Limit for the body of a request. Reading an object takes up to a microsecond, and 16 MiB hold millions."""

    def encode(self) -> bytes:
        """The body as Java writes it: members in alphabetical order, raw map keys where Java writes them raw."""
        return dumps(self)

    def encode_in_slices(self) -> Generator[None, None, bytes]:
        """`encode`, which yields between parts that take a few milliseconds, and returns the bytes."""
        return dumps_in_slices(self)

    def encode_pretty(self) -> bytes:
        """The tab form in which Java writes its configuration files (docs/protocol/store.md §21)."""
        return dumps_pretty(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what Java would read (section 13.2). Raises BodyError.

        Unknown members are ignored and missing or null ones take their defaults; names match in any case, with or
        without `_` and `-`, numbers
        may be text and text numbers, maps keyed by numbers or queues may have text keys. Beyond `tolerant_bytes`, names
        match exactly, and the text must be standard JSON.
        """
        cls._check_size(data)
        decode = _fast_decoder(typing.cast("Any", cls))
        try:
            return typing.cast("Self", decode(data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        if len(data) > cls.tolerant_bytes:
            return cls._decode_long(data)
        if _RAW_NUMBER_KEY.search(data):
            try:
                return typing.cast("Self", decode(_quote_numbers(data)))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
        return cls.from_json(loads(data, tolerant_bytes=cls.tolerant_bytes))

    @classmethod
    def _check_size(cls, data: bytes) -> None:
        """Raise BodyError for a body that would take too long."""
        if len(data) > cls.most_bytes:
            raise BodyError(cls.__name__, f"{len(data)} bytes; at most {cls.most_bytes} are read")
        if len(data) > cls.most_objects and data.count(b"{") > cls.most_objects:
            raise BodyError(cls.__name__, f"{data.count(b'{')} objects; at most {cls.most_objects} are read")

    @classmethod
    def _decode_long(cls, data: bytes) -> Self:
        """Read a text that is too long for the tolerant decoder. Raises BodyError."""
        try:
            found = _relaxed_decoder(typing.cast("Any", cls))(data)
            return msgspec.convert(found, cls, from_attributes=True)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if cls.tolerant_bytes >= ANSWER_TOLERANT_BYTES and not _is_crowded(data):
                with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    return cls.from_json(msgspec.json.decode(_quote_objects(data)))
            raise BodyTooLongError(cls.__name__, len(data), cls.tolerant_bytes, str(error)) from error

    @classmethod
    def from_json(cls, value: object) -> Self:
        """A body from what `fastjson.loads` returned. Raises BodyError."""
        if not isinstance(value, dict):
            raise BodyError(cls.__name__, "the body is not a JSON object")
        try:
            return typing.cast("Self", _converter(typing.cast("Any", cls))(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise BodyError(cls.__name__, str(error)) from error


# An unknown member may be a known one in another case, which only the tolerant decoder matches; therefore
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
# Possessive, and content without a closing quote is taken too: else a text of escaped quotes costs quadratic time. All
# texts up to the next key are one match: each match takes some 100 bytes of memory.
_TEXTS_OR_NUMBER_KEY = re.compile(
    rb'(?:"(?:[^"\\]|\\.)*+"?(?:[^"{,]++|[{,](?!-?[0-9]+:))*+)++|([{,])(-?[0-9]+):', re.DOTALL
)


def _quote_numbers(data: bytes) -> bytes:
    """Java's JSON with raw number keys, the commonest dialect, as standard JSON."""
    return _TEXTS_OR_NUMBER_KEY.sub(lambda m: m[0] if m[1] is None else b'%b"%b":' % (m[1], m[2]), data)


# Texts as above.
_TEXTS_OR_OBJECT_KEY = re.compile(
    rb'(?:"(?:[^"\\]|\\.)*+"?[^"{]*+)++|(?<=[{,])(\{(?:[^{}"\\]++|"[^"\\]*+")*+\}):', re.DOTALL
)
_CONTAINER_BYTES = 32


def _is_crowded(data: bytes) -> bool:
    """Whether a text may have more objects and lists than a table by queue of its length. Millions of empty ones take a
    gigabyte."""
    return (data.count(b"{") + data.count(b"[")) * _CONTAINER_BYTES > len(data)


def _quote_objects(data: bytes) -> bytes:
    """Java's JSON with raw objects as keys, as tables by queue have them, as JSON with these keys as texts."""
    return _TEXTS_OR_OBJECT_KEY.sub(lambda m: m[0] if m[1] is None else b'"%b":' % m[1].replace(b'"', b'\\"'), data)


@lru_cache(None)
def _fast_decoder(cls: type[JsonCodec]) -> Callable[[bytes], Any]:
    """Standard JSON of exactly the declared types; anything else is left to the tolerant decoder."""
    return msgspec.json.Decoder(cls).decode


@lru_cache(None)
def _relaxed_decoder(cls: type[JsonCodec]) -> Callable[[bytes], Any]:
    """Standard JSON in which unknown members are skipped and numbers may be text; gives objects of copies of the
    classes."""
    return msgspec.json.Decoder(_relaxed(typing.cast("Any", cls)), strict=False).decode


@lru_cache(None)
def _relaxed(annotation: Any) -> Any:
    """A type like this one, with classes that skip unknown members."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is types.UnionType or origin is typing.Union:
        return typing.Union[tuple(_relaxed(arg) for arg in args)]  # noqa: UP007 - made at run time
    if origin is list:
        return list[_relaxed(args[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[args[0], _relaxed(args[1])]  # type: ignore[valid-type, misc]
    if not (isinstance(annotation, type) and issubclass(annotation, Body | FrozenBody)):
        return annotation
    fields: list[Any] = []
    names = {}
    for field in msgspec.structs.fields(annotation):
        names[field.name] = field.encode_name
        if field.required:
            fields.append((field.name, _relaxed(field.type)))
        else:
            factory = field.default_factory
            default = (
                msgspec.field(default_factory=factory) if callable(factory) else msgspec.field(default=field.default)
            )
            fields.append((field.name, _relaxed(field.type), default))
    return msgspec.defstruct(annotation.__name__, fields, rename=names, kw_only=True)


@lru_cache(None)
def _converter(annotation: Any) -> _Convert:
    """How to turn a parsed JSON value into a declared type, with FastJSON's casts."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is types.UnionType or origin is typing.Union:
        return _optional(_converter(next(arg for arg in args if arg is not types.NoneType)))
    if origin is list:
        return _list_of(_converter(args[0]))
    if origin is tuple:
        return _tuple_of(tuple(map(_converter, args)))
    if origin is Annotated:
        return _within(_converter(args[0]), args[1]) if annotation != SmallKey else _to_int
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


def _tuple_of(converts: tuple[_Convert, ...]) -> _Convert:
    def convert_tuple(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(converts):
            raise TypeError(f"list of {len(converts)} expected, got {_shown(value)}")
        return tuple(convert(item) for convert, item in zip(converts, value, strict=True))

    return convert_tuple


def _map_of(convert_key: _Convert, convert: _Convert) -> _Convert:
    def convert_map(value: Any) -> dict[Any, Any]:
        pairs = [(convert_key(key), convert(member)) for key, member in _object(value).items()]
        wide = sum(type(key) is int and not 0 <= key <= SMALL_KEY_MOST for key, _ in pairs)
        if wide > WIDE_KEYS_MOST:
            raise ValueError(f"{wide} large numbers as keys, the limit is {WIDE_KEYS_MOST}")
        return dict(pairs)

    return convert_map


def _within(convert: _Convert, bounds: msgspec.Meta) -> _Convert:
    def convert_number(value: Any) -> int:
        number: int = convert(value)
        if not typing.cast("int", bounds.ge) <= number <= typing.cast("int", bounds.le):
            raise ValueError(f"{str(number)[:50]} is out of range")
        return number

    return convert_number


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
