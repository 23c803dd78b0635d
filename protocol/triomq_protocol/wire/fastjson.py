"""Java's JSON dialect (FastJSON 1.2.69; docs/protocol/remoting.md §13).

The writer puts map keys that are not text unquoted before the colon, which is not valid JSON; the reader accepts that and
more. Speed matters little here: frequent headers have templates, and standard JSON is parsed by msgspec.
"""

import heapq
import math
import re
import types
import typing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec

from triomq_protocol.errors import BodyError, BodyTooLongError
from triomq_protocol.java_text import join_pairs, join_surrogates, map_capacity, map_hash, parse_integer

_INT32_MOST = (1 << 31) - 1

MAX_DEPTH = 64
"""Deeper nesting is refused; the protocol's own bodies nest at most six levels."""

MAX_TOLERANT_BYTES = 1 << 14
"""The tolerant reader takes up to 2 µs per byte; a longer text would block the event loop too long."""

MAX_TOLERANT_HEADER_BYTES = 1 << 12
"""The same for a header, since any client may send many."""

SMALL_KEY_MOST = 0xFFFF
"""Whole numbers from 0 to this as keys are the ids of queues and levels, and cannot collide."""

WIDE_KEYS_MOST = 512
"""Other whole numbers as keys of one object. The hash of a number is no secret: many keys can be chosen such that each
is compared with all before it."""


class ObjectKey(tuple[tuple[str, object], ...]):
    """A JSON object used as a map key: its members as (name, value) pairs sorted by name; hashable."""

    __slots__ = ()

    def members(self) -> dict[str, object]:
        """The object itself."""
        return dict(self)


# ---------------------------------------------------------------- reading

_BLANKS = re.compile(r"(?:[ \t\r\n\f\b]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?[0-9]{1,400}(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,9})?")
_WORD = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
_STRING = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_HEX2 = re.compile(r"[0-9a-fA-F]{2}")
_SHORT = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
          "v": "\v", "0": "\0", "1": "\1", "2": "\2", "3": "\3", "4": "\4", "5": "\5", "6": "\6", "7": "\7"}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None, "NaN": math.nan}


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, what: str) -> BodyError:
        return BodyError("JSON", f"{what} at character {self.at}")

    def skip(self) -> str:
        match = _BLANKS.match(self.text, self.at)
        if match:
            self.at = match.end()
        return self.text[self.at : self.at + 1]

    def document(self) -> object:
        value = self.value(0)
        if self.skip():
            raise self.fail("text after the document")
        return value

    def value(self, depth: int) -> object:
        char = self.skip()
        if depth > MAX_DEPTH:
            raise self.fail("nested too deeply")
        if char == "{":
            return self.members(depth)
        if char == "[":
            return self.items(depth)
        if char in _STRING:
            return self.string(char)
        word = _WORD.match(self.text, self.at)
        if word and word.group() in _WORDS:
            self.at = word.end()
            return _WORDS[word.group()]
        return self.number()

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if not match:
            raise self.fail("value expected")
        self.at = match.end()
        text = match.group()
        if "." in text or "e" in text or "E" in text:
            return float(text)
        return int(text)

    def string(self, quote_char: str) -> str:
        plain = _STRING[quote_char]
        parts = []
        escaped = False
        self.at += 1
        while True:
            match = plain.match(self.text, self.at)
            if match is None:  # unreachable: the pattern matches the empty string
                raise self.fail("string expected")
            parts.append(match.group())
            self.at = match.end() + 1
            char = self.text[match.end() : self.at]
            if char == quote_char:
                break
            if not char:
                raise self.fail("unterminated string")
            parts.append(self.escape())
            escaped = True
        return join_pairs("".join(parts)) if escaped else parts[0]

    def escape(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char in _SHORT:
            return _SHORT[char]
        digits = {"u": _HEX4, "x": _HEX2}.get(char)
        match = digits.match(self.text, self.at) if digits else None
        if not match:
            raise self.fail("unknown escape")
        self.at = match.end()
        return chr(int(match.group(), 16))

    def items(self, depth: int) -> list[object]:
        out: list[object] = []
        self.at += 1
        while self.skip() != "]":
            out.append(self.value(depth + 1))
            self.comma("]")
        self.at += 1
        return out

    def comma(self, end: str) -> None:
        char = self.skip()
        if char == ",":
            self.at += 1
        elif char != end:
            raise self.fail(f"comma or {end} expected")

    def members(self, depth: int) -> dict[object, object]:
        out: dict[object, object] = {}
        wide = 0
        self.at += 1
        while self.skip() != "}":
            key = self.key(depth)
            if type(key) is int and not 0 <= key <= SMALL_KEY_MOST:
                wide += 1
                if wide > WIDE_KEYS_MOST:
                    raise self.fail(f"more than {WIDE_KEYS_MOST} numbers as keys")
            if self.skip() != ":":
                raise self.fail("colon expected")
            self.at += 1
            out[key] = self.value(depth + 1)
            self.comma("}")
        self.at += 1
        return out

    def key(self, depth: int) -> str | int | ObjectKey:
        char = self.skip()
        if char in _STRING:
            return self.string(char)
        word = _WORD.match(self.text, self.at)
        if word:
            self.at = word.end()
            return word.group()
        if char == "{":
            return _frozen_members(self.value(depth + 1))
        number = self.number()
        return int(number) if isinstance(number, int) or number.is_integer() else str(number)


def _frozen_members(value: object) -> ObjectKey:
    if not isinstance(value, dict):
        raise BodyError("JSON", "map key is not an object")
    return ObjectKey(sorted((str(name), _frozen(member)) for name, member in value.items()))


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return _frozen_members(value)
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, float) or (isinstance(value, int) and not -_INT32_MOST - 1 <= value <= _INT32_MOST):
        # Two numbers that are 2**61 - 1 apart have the same hash, and so have the objects that hold them.
        raise BodyError("JSON", f"a map key holds the number {str(value)[:50]}")
    return value


def loads(data: bytes | str, *, tolerant_bytes: int = MAX_TOLERANT_BYTES) -> object:
    """Parse a document: standard JSON, and all that section 13.2 lists.

    Object keys come back as `str` (quoted or identifier), `int` (unquoted number) or `ObjectKey` (an object). A longer
    text than `tolerant_bytes` must be standard JSON. Raises BodyError.
    """
    try:
        value = _loads_standard(data)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return loads_tolerant(data, tolerant_bytes=tolerant_bytes)
    _check_depth(value)
    return value


_REPLACEMENT: Final = "\ufffd"
"""What replaces bytes that are not UTF-8."""


def _loads_standard(data: bytes | str) -> object:
    try:
        return msgspec.json.decode(data)
    except (UnicodeDecodeError, msgspec.DecodeError):  # from msgspec 0.23 on, a DecodeError for both
        if isinstance(data, str):
            raise
        # Of clients whose properties are not UTF-8: the tolerant reader takes 500 times as long.
        text = bytes(data).decode("utf-8", "replace")
        if _REPLACEMENT not in text:
            raise
        return msgspec.json.decode(text)


def _check_depth(value: object) -> None:
    """Apply the tolerant reader's depth limit to what msgspec has parsed: the writer recurses. Raises BodyError."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            member
            for container in level
            if isinstance(container, dict | list)
            for member in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return
    raise BodyError("JSON", "nested too deeply")


def loads_tolerant(data: bytes | str, *, tolerant_bytes: int = MAX_TOLERANT_BYTES) -> object:
    """`loads` without the attempt to read standard JSON first. Raises BodyError."""
    if len(data) > tolerant_bytes:
        raise BodyTooLongError("JSON", len(data), tolerant_bytes)
    text = data if isinstance(data, str) else bytes(data).decode("utf-8", "replace")
    try:
        return _Reader(text).document()
    except (OverflowError, TypeError, ValueError) as error:
        raise BodyError("JSON", str(error)) from error


# ---------------------------------------------------------------- casting


def member_name(name: str) -> str:
    """The form of a member's name that FastJSON compares if the exact name does not match: no case, no `_`, no `-`."""
    return name.lower().replace("_", "").replace("-", "")


_TRAILING_ZEROS = re.compile(r"\.0*$")


def integer_of_text(text: str, bits: int) -> int:
    """The number FastJSON reads from text for a numeric member, such as "1,000" and "5.00". Raises ValueError."""
    if text in ("", "null", "NULL"):
        return 0
    return parse_integer(_TRAILING_ZEROS.sub("", text.replace(",", "")), bits)


# ---------------------------------------------------------------- writing

# Characters that Java's writer escapes with upper-case hex, and the C encoder differently or not at all.
_ODD = re.compile("[\x0b\x0e\x0f\x1a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHORT_OUT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_is_odd = _ODD.search


def quote(text: str) -> str:
    """A JSON string as Java writes it, quotes included."""
    if _is_odd(text):
        return '"' + _ESCAPED.sub(_escape_char, join_surrogates(text)) + '"'
    return encode_basestring(text)


def _escape_char(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_OUT.get(char) or f"\\u{ord(char):04X}"


def java_double(value: float) -> str:
    """`Double.toString`, and `null` for values that JSON cannot represent."""
    if not math.isfinite(value):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    figures = "".join(map(str, digits)).rstrip("0")
    shown = f"{figures[0]}.{figures[1:] or '0'}E{len(digits) + int(exponent) - 1}"
    return "-" + shown if sign else shown


@lru_cache(512)
def _members_of(cls: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """(attribute, `"name":`) of a class, alphabetical as FastJSON sorts bean properties."""
    fields = sorted(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
    return tuple((attribute, quote(name) + ":") for name, attribute in fields)


_SCALARS: frozenset[object] = frozenset({str, int, bool, types.NoneType})


@lru_cache(512)
def _is_flat(cls: type[msgspec.Struct]) -> bool:
    """Whether the C encoder writes the members of a class in Java's order, and none of them has members itself."""
    names, config = list(cls.__struct_encode_fields__), cls.__struct_config__
    if names != sorted(names) or config.tag is not None or config.omit_defaults or config.array_like:
        return False
    return all(_is_scalar(field.type) for field in msgspec.structs.fields(cls))


def _is_scalar(annotation: Any) -> bool:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _is_scalar(args[0])
    if origin is types.UnionType or origin is typing.Union:
        return all(map(_is_scalar, args))
    return annotation in _SCALARS


def _flat(value: msgspec.Struct) -> str | None:
    """The compact text of a flat struct, in a tenth of the time: tables have thousands of them. None if Java's may
    differ: it leaves out members that are null, and escapes other characters."""
    if not _is_flat(type(value)):
        return None
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError):  # a lone surrogate, a number beyond 64 bits
        return None
    if text.isascii() and text.isprintable() and "\\" not in text and ":null" not in text:
        return text
    return None


def _plain_numbers(value: dict[object, object]) -> bool:
    return bool(value) and {*map(type, value), *map(type, value.values())} == {int}


class _Writer:
    """Builds the text of one document; `pretty` is FastJSON's tab form."""

    def __init__(self, *, pretty: bool) -> None:
        self.parts: list[str] = []
        self.depth = 0
        self.pretty = pretty

    def line(self) -> None:
        if self.pretty:
            self.parts.append("\n" + "\t" * self.depth)

    def value(self, value: object) -> None:
        add = self.parts.append
        if isinstance(value, str):
            add(quote(value))
        elif value is None:
            add("null")
        elif isinstance(value, bool):
            add("true" if value else "false")
        elif isinstance(value, int):
            add(str(int(value)))
        elif isinstance(value, float):
            add(java_double(value))
        elif isinstance(value, msgspec.Struct):
            self.struct(value)
        elif isinstance(value, dict):
            self.mapping(value)
        elif isinstance(value, ObjectKey):
            self.mapping(dict(value))
        elif isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
            self.items(value)
        else:
            raise TypeError(f"{type(value).__name__} has no JSON form")

    def struct(self, value: msgspec.Struct) -> None:
        flat = _flat(value)
        if flat is not None and not self.pretty:
            self.parts.append(flat)
            return
        # A text may end with a comma.
        if flat is not None and flat.count(',"') + 1 == len(value.__struct_fields__):
            line = "\n" + "\t" * (self.depth + 1)
            members = flat[1:-1].replace(',"', f',{line}"')
            self.parts.append(f"{{{line}{members}{line[:-1]}}}")
            return
        pairs = [(name, member) for attribute, name in _members_of(type(value))
                 if (member := getattr(value, attribute)) is not None]  # fmt: skip
        self.braces(pairs, lambda name: self.parts.append(name))

    def mapping(self, value: dict[object, object]) -> None:
        if _plain_numbers(value):  # offset tables are long, and written every few seconds
            entries = ",".join([f"{key}:{number}" for key, number in value.items()])
            self.parts.append(f"{{{entries}")
            self.line()
            self.parts.append("}")
            return
        self.braces(list(value.items()), self.key)

    def key(self, key: object) -> None:
        self.value(key)
        self.parts.append(":")

    def braces(
        self, pairs: list[tuple[object, object]] | list[tuple[str, object]], write_key: Callable[..., None]
    ) -> None:
        add = self.parts.append
        add("{")
        self.depth += 1
        for number, (key, member) in enumerate(pairs):
            if number:
                add(",")
            if isinstance(key, str):
                self.line()  # FastJSON breaks lines before text keys only
            write_key(key)
            self.value(member)
        self.depth -= 1
        if pairs:
            self.line()
        add("}")

    def items(self, values: Iterable[object]) -> None:
        add = self.parts.append
        add("[")
        self.depth += 1
        number = 0
        for number, value in enumerate(values, 1):
            if number > 1:
                add(",")
            self.line()
            self.value(value)
        self.depth -= 1
        if number:
            self.line()
        add("]")


def dumps(value: object) -> bytes:
    """Write compactly: dict order is kept, int and ObjectKey and Struct keys are written raw before the colon.

    msgspec Structs are written with their members in alphabetical order, None members left out.
    """
    writer = _Writer(pretty=False)
    writer.value(value)
    return "".join(writer.parts).encode()


def dumps_pretty(value: object) -> bytes:
    """Write in the tab form of configuration files (docs/protocol/store.md §21): raw-keyed entries share a line."""
    writer = _Writer(pretty=True)
    writer.value(value)
    return "".join(writer.parts).encode()


def dumps_standard(value: object) -> bytes:
    """The standard JSON of route answers: keys quoted and sorted (numbers by value), ASCII only, `/` as `\\/`."""
    writer = _Writer(pretty=False)
    writer.value(_sorted_keys(value))
    return _standard_text("".join(writer.parts))


_NOT_ASCII = re.compile(r"[^\0-\x7e]+")


def _standard_text(text: str) -> bytes:
    """JSON with `/` as `\\/` and non-ASCII characters as their UTF-16 units."""
    text = text.replace("/", "\\/")
    if text.isascii():
        return text.encode()
    return _NOT_ASCII.sub(_units, text).encode()


def _units(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex("-", 2).upper().replace("-", "\\u")
    return f"\\u{units}"


def _sorted_keys(value: object) -> object:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (0, key, "") if isinstance(key, int) else (1, 0, str(key)))
        return {str(key): _sorted_keys(value[key]) for key in keys}
    if isinstance(value, list):
        return [_sorted_keys(item) for item in value]
    if isinstance(value, msgspec.Struct):
        pairs = ((name[1:-2], getattr(value, attribute)) for attribute, name in _members_of(type(value)))
        return {name: _sorted_keys(member) for name, member in pairs if member is not None}
    return value


# ---------------------------------------------------------------- HashMap order


_KEPT_CHARACTERS = 1024
"""Of the names of one order that is kept; peers choose the names of brokers."""


@lru_cache(4096)
def _ordered(keys: tuple[str, ...]) -> tuple[str, ...]:
    mask = map_capacity(len(keys)) - 1
    # A stable sort keeps insertion order inside a bucket.
    return tuple(sorted(keys, key=lambda key: map_hash(key) & mask))


def java_map_order(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys, given in insertion order, in the iteration order of a Java HashMap (section 13.4)."""
    names = tuple(keys)
    if len(names) <= 32 and sum(map(len, names)) <= _KEPT_CHARACTERS:
        return _ordered(names)
    return _ordered.__wrapped__(names)


# ---------------------------------------------------------------- in slices

SLICE_WEIGHT = 4096
"""Values written or names ordered in one slice; an object or list counts as 16. A slice takes a few milliseconds."""

_CONTAINER_WEIGHT = 16
_ESCAPED_WEIGHT = 4
"""Characters that may have to be escaped and take as long as a value."""


_ABSENT: Final = object()


class _SlicedWriter:
    """`_Writer` as generators. The keys of a dict are copied when its turn comes.

    A text counts as one more value for every `characters_weight` characters.

    Keys and values are not paired: the garbage collector would visit hundreds of thousands of tuples at once. It ignores
    a tuple of texts.
    """

    def __init__(self, encode: Callable[[str], bytes] = str.encode, characters_weight: int = 64) -> None:
        self._writer = _Writer(pretty=False)
        self._parts = self._writer.parts
        self._encode = encode
        self._characters_weight = characters_weight
        self._weight = 0
        self.done: list[bytes] = []

    def value(self, value: object) -> Generator[None, None, None]:
        if isinstance(value, list):
            yield from self.items(tuple(value))
        elif isinstance(value, dict):
            yield from self.pairs(tuple(value), value.get, self._writer.key)
        elif isinstance(value, msgspec.Struct):
            if (flat := _flat(value)) is not None:
                self._parts.append(flat)
                yield from self.weigh(_CONTAINER_WEIGHT + len(flat) // self._characters_weight)
                return
            members = {name: getattr(value, attribute) for attribute, name in _members_of(type(value))}
            names = [name for name, member in members.items() if member is not None]
            yield from self.pairs(names, members.get, self._parts.append)
        else:
            self._writer.value(value)
            yield from self.weigh(1 + len(value) // self._characters_weight if type(value) is str else 1)

    def items(self, items: Sequence[object]) -> Generator[None, None, None]:
        self._parts.append("[")
        for number, item in enumerate(items):
            if number:
                self._parts.append(",")
            yield from self.value(item)
        self._parts.append("]")
        yield from self.weigh(_CONTAINER_WEIGHT)

    def pairs(
        self, keys: Sequence[Any], value_of: Callable[[Any, object], object], write_key: Callable[[Any], None]
    ) -> Generator[None, None, None]:
        self._parts.append("{")
        separator = ""
        for key in keys:
            member = value_of(key, _ABSENT)
            if member is _ABSENT:
                continue  # it was removed since the keys were copied
            self._parts.append(separator)
            separator = ","
            write_key(key)
            if type(key) is str:
                self._weight += len(key) // self._characters_weight
            yield from self.value(member)
        self._parts.append("}")
        yield from self.weigh(_CONTAINER_WEIGHT)

    def weigh(self, weight: int) -> Generator[None, None, None]:
        """Count the written values; yield after each slice."""
        self._weight += weight
        if self._weight >= SLICE_WEIGHT:
            self._weight = 0
            self.join()
            yield

    def join(self) -> None:
        self.done.append(self._encode("".join(self._parts)))
        self._parts.clear()


def dumps_in_slices(value: object) -> Generator[None, None, bytes]:
    """`dumps`, which yields after each slice, so that a caller can do other work in between; returns the bytes.

    Lists and the keys of maps are copied when their turn comes, so they may change in between: entries removed before
    they are written are left out, added ones are not written, and replaced ones are written with their new value.
    """
    writer = _SlicedWriter()
    yield from writer.value(value)
    writer.join()
    return b"".join(writer.done)


def dumps_standard_in_slices(value: object) -> Generator[None, None, bytes]:
    """`dumps_standard` of a value that does not change in between; yields after each slice, and returns the bytes."""
    writer = _SlicedWriter(_standard_text, _ESCAPED_WEIGHT)
    ordered = _sorted_keys(value)
    yield
    yield from writer.value(ordered)
    writer.join()
    return b"".join(writer.done)


def number_maps_in_slices(
    member: str, maps: Iterable[tuple[str, Mapping[int, int]]], *, pretty: bool
) -> Generator[None, None, bytes]:
    """`dumps({member: maps})`, or `dumps_pretty`, of a long table of small maps of numbers; yields after each slice.

    Tables of offsets have this form. It takes a fifth of the time of `dumps_in_slices`.
    """
    line, key_end, map_end, end = ("\n\t\t", "\n\t\t}", "\n\t}", "\n}") if pretty else ("", "}", "}", "}")
    done: list[bytes] = []
    parts: list[str] = []
    weight = 0
    separator = ("{\n\t" if pretty else "{") + quote(member) + ":{"
    empty = True
    for key, numbers in maps:
        entries = ",".join([f"{number}:{value}" for number, value in numbers.items()])
        parts.append(f"{separator}{line}{quote(key)}:{{{entries}{key_end if numbers else '}'}")
        separator, empty = ",", False
        weight += 4 + len(numbers)
        if weight >= SLICE_WEIGHT:
            weight = 0
            done.append("".join(parts).encode())
            parts.clear()
            yield
    parts.append((separator + "}" if empty else map_end) + end)
    done.append("".join(parts).encode())
    return b"".join(done)


def java_map_order_in_slices(keys: Iterable[str]) -> Generator[None, None, list[str]]:
    """`java_map_order`, which yields after each slice."""
    names = list(keys)
    if len(names) <= SLICE_WEIGHT:
        return list(java_map_order(names))
    mask = map_capacity(len(names)) - 1
    # Bucket and position in one number: objects by the hundred thousand would make the garbage collector look at all of
    # them in one go.
    runs = []
    for begin in range(0, len(names), SLICE_WEIGHT):
        end = min(begin + SLICE_WEIGHT, len(names))
        runs.append(sorted((map_hash(names[index]) & mask) << 32 | index for index in range(begin, end)))
        yield
    ordered: list[str] = []
    for number, key in enumerate(heapq.merge(*runs), 1):
        ordered.append(names[key & 0xFFFFFFFF])
        if not number % SLICE_WEIGHT:
            yield
    return ordered
