"""Rules that every header and every body keeps, and the tables that say which fields a header has.

A table names fields as docs/protocol/broker-api.md does: `topic* queueId*:int32 order:bool=False`. A star marks a
required field, no type means text, and a field without `=` reads as None when it is absent. `clientID>client_id`
gives the attribute of a name that does not follow the rule. Each test module applies `HEADER_RULES` and
`BODY_RULES` to its classes, so a failure names the rule and the class.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq_protocol import requests
from triomq_protocol.codes import SerializeType
from triomq_protocol.errors import BodyError, HeaderError, RemoteProtocolError
from triomq_protocol.wire.binary_header import encode_area, encode_binary_header
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(max_size=12) | st.sampled_from(['"{1:', "a\\", "{", "\u2028", "\x7f", "null", "\U0001f600", "a/b"])
BOTH = pytest.mark.parametrize("serialize", list(SerializeType))
ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


# ---------------------------------------------------------------- frames


def frame_of(header: bytes, kind: int = SerializeType.JSON, body: bytes = b"") -> bytes:
    """A frame around header bytes, whatever they are."""
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big") + (kind << 24 | len(header)).to_bytes(4, "big") + header + body
    )


def exchanged(command: Command) -> Command:
    """The command as its receiver sees it."""
    (received,) = FrameDecoder().feed(command.encode())
    return received


def received(fields: dict[str, str | None], serialize: int) -> Command:
    """A received request with these ext fields; None is JSON's null, or a binary value without bytes."""
    if serialize == SerializeType.JSON:
        return received_json(json.dumps(fields))
    area = encode_area((name, value or "") for name, value in fields.items())
    (command,) = FrameDecoder().feed(frame_of(encode_binary_header(1, None, 407, 0, 0, None, area), serialize))
    return command


def received_json(ext: str) -> Command:
    """A received request with this text as its ext fields."""
    (command,) = FrameDecoder().feed(frame_of(f'{{"code":1,"extFields":{ext}}}'.encode()))
    return command


# ---------------------------------------------------------------- headers


@attrs.frozen
class Field:
    wire_name: str
    attribute: str
    kind: str
    required: bool
    default: object

    @property
    def bits(self) -> int:
        return {"int32": 32, "int64": 64}.get(self.kind, 0)


_FIELD = re.compile(r"(\w+)(?:>(\w+))?(\*?)(?::(\w+))?(?:=(\S*))?")
_DEFAULTS: dict[str | None, object] = {None: None, "False": False, "0": 0, "": ""}


def _field(text: str) -> Field:
    match = _FIELD.fullmatch(text)
    assert match, text
    name, attribute, star, kind, default = match.groups()
    attribute = attribute or re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)
    return Field(name, attribute, kind or "text", star == "*", _DEFAULTS[default])


def _fields(text: str) -> tuple[Field, ...]:
    return tuple(map(_field, text.split()))


@attrs.frozen
class HeaderCase:
    """A header class and its fields.

    Attributes:
        fixed: Java has a hand-written codec for it: optional numbers must be well-formed, too.
    """

    cls: type[requests.Header]
    fields: tuple[Field, ...] = attrs.field(converter=_fields)
    fixed: bool = False

    def __str__(self) -> str:
        return self.cls.__name__

    @property
    def values(self) -> dict[str, Any]:
        """A value for each attribute, different from the default and from each other."""
        out: dict[str, Any] = {}
        for number, field in enumerate(self.fields):
            out[field.attribute] = (
                True if field.kind == "bool"
                else (1 << field.bits - 1) - 1 - number if field.bits
                else f'{field.wire_name} "{number}" \u00e9'
            )  # fmt: skip
        return out

    @property
    def texts(self) -> dict[str, str | None]:
        """The same values as ext fields."""
        return {field.wire_name: as_text(self.values[field.attribute]) for field in self.fields}


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def all_fields_are_written(case: HeaderCase) -> None:
    assert case.cls.fixed_order is case.fixed
    for serialize in SerializeType:
        command = exchanged(Command.request(1, case.cls(**case.values), serialize=serialize))
        assert (command.fields or {}) == case.texts


def only_what_is_set_is_written(case: HeaderCase) -> None:
    header = case.cls(**{field.attribute: case.values[field.attribute] for field in case.fields if field.required})
    want = {
        field.wire_name: case.texts[field.wire_name] if field.required else as_text(field.default)
        for field in case.fields
        if field.required or field.default is not None
    }
    assert (exchanged(Command.request(1, header)).fields or {}) == want


def all_fields_are_read(case: HeaderCase) -> None:
    for serialize in SerializeType:
        assert received(case.texts, serialize).header(case.cls) == case.cls(**case.values)


def check_absent(case: HeaderCase, field: Field, fields: dict[str, str | None], serialize: int) -> None:
    command = received(fields, serialize)
    if field.required:
        with pytest.raises(HeaderError) as caught:
            command.header(case.cls)
        assert caught.value.field == field.wire_name
    else:
        assert command.header(case.cls) == case.cls(**case.values | {field.attribute: field.default})


def a_missing_field_is_named_or_takes_its_default(case: HeaderCase) -> None:
    for serialize in SerializeType:
        for field in case.fields:
            others = {name: text for name, text in case.texts.items() if name != field.wire_name}
            check_absent(case, field, others, serialize)


def null_is_absent(case: HeaderCase) -> None:
    for serialize in SerializeType:
        for field in case.fields:
            check_absent(case, field, case.texts | {field.wire_name: None}, serialize)


def numbers_have_their_range(case: HeaderCase) -> None:
    for serialize in SerializeType:
        for field in case.fields:
            limit = 1 << field.bits - 1 if field.bits else 0
            for number in (-limit, limit - 1) if field.bits else ():
                command = received(case.texts | {field.wire_name: str(number)}, serialize)
                assert getattr(command.header(case.cls), field.attribute) == number
            outside = (str(limit), str(-limit - 1), "9" * 5000, "x", "1x", " 1", "0x1", "1e999", "--1", "\u00b2")
            for text in outside if field.bits else ():
                command = received(case.texts | {field.wire_name: text}, serialize)
                if field.required or case.fixed:
                    with pytest.raises(HeaderError) as caught:
                        command.header(case.cls)
                    assert caught.value.field == field.wire_name
                else:
                    assert getattr(command.header(case.cls), field.attribute) == field.default


def unknown_fields_are_ignored(case: HeaderCase) -> None:
    extra: dict[str, str | None] = {"AccessKey": "k", "Signature": "s=", "ReqT": "0", "zz": "9" * 400}
    for serialize in SerializeType:
        assert received(extra | case.texts, serialize).header(case.cls) == case.cls(**case.values)
    nested = json.dumps(extra | case.texts | {"nested": {"a": [1, {"b": None}]}, "null": None})
    assert received_json(nested).header(case.cls) == case.cls(**case.values)


def the_last_of_a_repeated_field_is_taken(case: HeaderCase) -> None:
    first = [(name, "0") for name in case.texts]
    area = encode_area([*first, *case.texts.items()])
    (command,) = FrameDecoder().feed(frame_of(encode_binary_header(1, None, 407, 0, 0, None, area), 1))
    assert command.header(case.cls) == case.cls(**case.values)


def json_of_other_clients_is_read(case: HeaderCase) -> None:
    """Raw numbers and booleans, single quotes, names without quotes, comments, a comma before the end."""
    shown = [
        f"{field.wire_name}: {as_text(value)}" if field.kind != "text" else f"'{field.wire_name}':{json.dumps(value)}"
        for field in case.fields
        for value in [case.values[field.attribute]]
    ]
    for ext in ("{/* a */" + ", ".join(shown) + (",}" if shown else "}"), json.dumps(named(case), ensure_ascii=True)):
        assert received_json(ext).header(case.cls) == case.cls(**case.values)


def named(case: HeaderCase) -> dict[str, Any]:
    return {field.wire_name: case.values[field.attribute] for field in case.fields}


def a_header_that_ends_early_is_no_frame(case: HeaderCase) -> None:
    for serialize in SerializeType:
        header = Command.request(1, case.cls(**case.values), serialize=serialize).encode()[8:]
        for count in range(len(header)):
            with pytest.raises(RemoteProtocolError):
                FrameDecoder().feed(frame_of(header[:count], serialize))


def values_of_any_type_are_read_or_refused(case: HeaderCase) -> None:
    names = st.sampled_from([field.wire_name for field in case.fields] or ["x"])

    @settings(max_examples=6)
    @given(st.dictionaries(names, ANY_JSON, max_size=4))
    def check(odd: dict[str, Any]) -> None:
        command = received_json(json.dumps(named(case) | odd))
        refused: str | None = None
        try:
            header = command.header(case.cls)
        except HeaderError as error:
            refused = error.field
        else:
            assert exchanged(Command.request(1, header)).header(case.cls) == header
        assert refused is None or refused in odd

    check()


HEADER_RULES = pytest.mark.parametrize(
    "rule",
    [
        all_fields_are_written, only_what_is_set_is_written, all_fields_are_read,
        a_missing_field_is_named_or_takes_its_default, null_is_absent, numbers_have_their_range,
        unknown_fields_are_ignored, the_last_of_a_repeated_field_is_taken, json_of_other_clients_is_read,
        a_header_that_ends_early_is_no_frame, values_of_any_type_are_read_or_refused,
    ],
    ids=lambda rule: rule.__name__,
)  # fmt: skip


# ---------------------------------------------------------------- bodies

BodyClass = type[requests.Body] | type[requests.FrozenBody]


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a member's declared type; numbers within 64 bits, doubles finite."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return st.none() | values_of(next(arg for arg in args if arg is not types.NoneType))
    if origin is list:
        return st.lists(values_of(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if origin is typing.Annotated:
        return st.integers(args[1].ge, args[1].le)
    if isinstance(annotation, type) and issubclass(annotation, requests.Body | requests.FrozenBody):
        return bodies(annotation)
    return {str: TEXTS, int: INT64, bool: st.booleans(), float: st.floats(allow_nan=False, allow_infinity=False)}[
        annotation
    ]


def bodies(cls: BodyClass) -> st.SearchStrategy[Any]:
    """Instances of a body class with all members drawn."""
    return st.builds(cls, **{field.name: values_of(field.type) for field in msgspec.structs.fields(cls)})


def standard(value: object) -> Any:
    """A body as programs write it whose JSON has only text as keys: the key's JSON, where it is not text."""
    if isinstance(value, msgspec.Struct):
        return {field.encode_name: standard(getattr(value, field.name)) for field in msgspec.structs.fields(value)}
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else json.dumps(standard(key)): standard(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [standard(item) for item in value]
    return value


def members(cls: BodyClass) -> Iterator[tuple[str, str, Any]]:
    """(wire name, attribute, kind of the declared type) of every member."""
    for field in msgspec.structs.fields(cls):
        kind = field.type
        if typing.get_origin(kind) in (types.UnionType, typing.Union):
            kind = next(arg for arg in typing.get_args(kind) if arg is not types.NoneType)
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        yield field.encode_name, field.name, typing.get_origin(kind) or kind


def what_is_written_is_read(cls: BodyClass) -> None:
    @settings(max_examples=12)
    @given(bodies(cls))
    def check(body: Any) -> None:
        for data in (body.encode(), body.encode_pretty(), json.dumps(standard(body)).encode()):
            assert cls.decode(data) == body
        assert cls.decode(body.encode()).encode() == body.encode()

    check()


def missing_and_null_members_take_their_defaults(cls: BodyClass) -> None:
    assert cls.decode(b"{}") == cls()
    assert cls.decode(json.dumps({name: None for name, _, _ in members(cls)}).encode()) == cls()


def unknown_members_are_ignored(cls: BodyClass) -> None:
    @settings(max_examples=3)
    @given(bodies(cls))
    def check(body: Any) -> None:
        extra = {"new": 1, "nested": {"a": [{"b": None}]}, "numbers": {"0": []}}
        assert cls.decode(json.dumps(standard(body) | extra).encode()) == body
        assert cls.decode(b'{"raw":{0:1,{"a":1}:2},' + json.dumps(extra | standard(body)).encode()[1:]) == body

    check()


def names_match_in_any_case(cls: BodyClass) -> None:
    @settings(max_examples=3)
    @given(bodies(cls), st.sampled_from([str.upper, str.lower, str.capitalize]))
    def check(body: Any, change: Callable[[str], str]) -> None:
        plain = {change(name): value for name, value in standard(body).items()}
        assert cls.decode(json.dumps(plain).encode()) == body

    check()


def numbers_may_be_text_or_have_a_fraction(cls: BodyClass) -> None:
    for name, attribute, kind in members(cls):
        if kind is int:
            for text in ('"5"', "5.9", "5", "5e0"):
                assert getattr(cls.decode(f'{{"{name}":{text}}}'.encode()), attribute) == 5
            for text in ('""', '"null"', "0.9", "-0.9"):
                assert getattr(cls.decode(f'{{"{name}":{text}}}'.encode()), attribute) == 0
        if kind is float:
            assert getattr(cls.decode(f'{{"{name}":"1.5"}}'.encode()), attribute) == 1.5
        if kind is bool:
            for text, value in (('"true"', True), ("1", True), ('"false"', False), ("0", False)):
                assert getattr(cls.decode(f'{{"{name}":{text}}}'.encode()), attribute) is value
        if kind is str:
            assert getattr(cls.decode(f'{{"{name}":[1,{{"a":2}}]}}'.encode()), attribute) == '[1,{"a":2}]'


_WRONG: dict[Any, tuple[str, ...]] = {
    int: ("[]", "{}", '"x"', '"1e3"', "NaN", "1e999"), float: ("[]", "{}", '"x"'), bool: ("[]", "{}", "0.5"),
    str: (), list: ("5", "{}", '"x"', "true"), dict: ("5", "[]", '"x"', '"[]"', "true"),
}  # fmt: skip


def a_member_of_another_type_is_refused_by_name(cls: BodyClass) -> None:
    for name, _, kind in members(cls):
        for text in _WRONG.get(kind, ("5", "[]", '"x"', '"5"', "[{}]")):
            with pytest.raises(BodyError):
                cls.decode(f'{{"{name}":{text}}}'.encode())


def what_is_no_object_is_refused(cls: BodyClass) -> None:
    for data in (b"", b" ", b"null", b"[]", b"5", b'"{}"', b"{}{}", b"{} x", b"\xff\xfe", b"\x00", b"{{}}", b"{1}"):
        with pytest.raises(BodyError):
            cls.decode(data)


def a_body_that_ends_early_is_refused(cls: BodyClass) -> None:
    @settings(max_examples=3)
    @given(bodies(cls))
    def check(body: Any) -> None:
        data = body.encode()
        for count in range(len(data)):
            with pytest.raises(BodyError):
                cls.decode(data[:count])

    check()


def changed_bytes_are_read_or_refused(cls: BodyClass) -> None:
    @settings(max_examples=10)
    @given(bodies(cls), st.data())
    def check(body: Any, data: st.DataObject) -> None:
        noise = bytearray(body.encode())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(noise)))
            noise[at : at + data.draw(st.integers(0, 2))] = data.draw(
                st.binary(max_size=2) | st.sampled_from([b"{", b"}", b'"', b"[", b":", b",", b"1e999", b"-", b"null"])
            )
        try:
            again = cls.decode(bytes(noise))
        except BodyError:
            return
        assert isinstance(cls.decode(again.encode()), cls)

    check()


def members_of_any_type_are_read_or_refused(cls: BodyClass) -> None:
    @settings(max_examples=10)
    @given(st.dictionaries(st.sampled_from([name for name, _, _ in members(cls)]), ANY_JSON))
    def check(plain: dict[str, Any]) -> None:
        try:
            body = cls.decode(json.dumps(plain).encode())
        except BodyError:
            return
        assert isinstance(cls.decode(body.encode()), cls)

    check()


BODY_RULES = pytest.mark.parametrize(
    "rule",
    [
        what_is_written_is_read, missing_and_null_members_take_their_defaults, unknown_members_are_ignored,
        names_match_in_any_case, numbers_may_be_text_or_have_a_fraction, a_member_of_another_type_is_refused_by_name,
        what_is_no_object_is_refused, a_body_that_ends_early_is_refused, changed_bytes_are_read_or_refused,
        members_of_any_type_are_read_or_refused,
    ],
    ids=lambda rule: rule.__name__,
)  # fmt: skip
