"""Commands and typed headers: Java's rules for missing or malformed values, and templates against the encoder."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triomq_protocol import requests
from triomq_protocol.codes import LanguageCode, SerializeType
from triomq_protocol.errors import HeaderError, LocalProtocolError
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_protocol.wire.header import Header

HEADERS = [
    value for value in vars(requests).values()
    if isinstance(value, type) and issubclass(value, Header) and value is not Header
]  # fmt: skip
SEND = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}
BOTH = pytest.mark.parametrize("serialize", list(SerializeType))


def received(fields: dict[str, str] | None, serialize: int = SerializeType.JSON, code: int = 310) -> Command:
    (command,) = FrameDecoder().feed(Command.request(code, fields=fields, serialize=serialize).encode())
    return command


def received_json(ext: bytes) -> Command:
    header = b'{"code":310,"extFields":' + ext + b"}"
    (command,) = FrameDecoder().feed((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
    return command


def test_there_are_headers_for_every_conversation() -> None:
    assert len(HEADERS) > 70


@pytest.mark.parametrize("cls", HEADERS, ids=lambda cls: cls.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_headers_are_decoded_as_they_were_encoded(cls: type[Header], data: st.DataObject) -> None:
    values = {}
    for field in msgspec.structs.fields(cls):
        if not field.required and data.draw(st.booleans()):
            continue
        text = repr(field.type)
        if "bool" in text:
            values[field.name] = data.draw(st.booleans())
        elif "int" in text:
            bits = 31 if "2147483647" in text else 63
            values[field.name] = data.draw(st.integers(-(1 << bits), (1 << bits) - 1))
        else:
            values[field.name] = data.draw(st.text(min_size=1, max_size=20).filter(lambda t: t.strip() != "null"))
    header = cls(**values)
    for serialize in SerializeType:
        (command,) = FrameDecoder().feed(Command.request(1, header, serialize=serialize).encode())
        assert command.header(cls) == header


@BOTH
@pytest.mark.parametrize("name", ["a", "e", "f", "g", "h"])
def test_a_missing_field_is_named(name: str, serialize: int) -> None:
    fields = {key: text for key, text in SEND.items() if key != name}
    with pytest.raises(HeaderError) as caught:
        received(fields, serialize).header(requests.SendMessageRequestV2)
    assert caught.value.field == name


@BOTH
@pytest.mark.parametrize("text", ["zz", "", "1 ", "0x10", "2147483648", "-2147483649", "1e400", "9" * 5000, "--1"])
def test_a_malformed_number_is_named(text: str, serialize: int) -> None:
    with pytest.raises(HeaderError) as caught:
        received(SEND | {"e": text}, serialize).header(requests.SendMessageRequestV2)
    assert caught.value.field == "e"


@BOTH
@pytest.mark.parametrize(("text", "number"), [("+7", 7), ("007", 7), ("-0", 0), ("2147483647", 2147483647)])
def test_numbers_as_java_reads_them(text: str, number: int, serialize: int) -> None:
    assert received(SEND | {"e": text}, serialize).header(requests.SendMessageRequestV2).queue_id == number


@BOTH
@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("yes", False), ("", False)]
)
def test_booleans_as_java_reads_them(text: str, value: bool, serialize: int) -> None:
    assert received(SEND | {"m": text}, serialize).header(requests.SendMessageRequestV2).batch is value


@BOTH
def test_a_malformed_optional_field_is_null_without_fast_codec_and_an_error_with_it(serialize: int) -> None:
    back = {"offset": "1", "group": "g", "delayLevel": "0"}
    header = received(back | {"maxReconsumeTimes": "many"}, serialize).header(requests.ConsumerSendMsgBackRequest)
    assert header.max_reconsume_times is None
    with pytest.raises(HeaderError):
        received(SEND | {"l": "many"}, serialize).header(requests.SendMessageRequestV2)


@BOTH
def test_no_ext_fields_at_all(serialize: int) -> None:
    command = received(None, serialize, 105)
    assert command.fields is None
    assert command.header(requests.GetRouteInfoRequest).topic is None
    with pytest.raises(HeaderError):
        command.header(requests.SendMessageRequestV2)


def test_ext_fields_of_other_types_read_as_their_text() -> None:
    command = received_json(b'{"topic":5,"x":true,"y":null,"z":{"a":[1,2]},"w":1.5}')
    assert command.fields == {"topic": "5", "x": "true", "z": '{"a":[1,2]}', "w": "1.5"}
    assert command.header(requests.GetRouteInfoRequest).topic == "5"
    assert received_json(b"null").fields is None
    assert received_json(b"{}").fields == {}


@pytest.mark.parametrize("ext", [b'"text"', b"[1]", b"7"])
def test_ext_fields_that_are_no_map_are_an_unusable_request(ext: bytes) -> None:
    command = received_json(ext)
    with pytest.raises(HeaderError):
        _ = command.fields
    with pytest.raises(HeaderError):
        command.header(requests.GetRouteInfoRequest)


def test_unknown_languages_read_as_none() -> None:
    header = b'{"code":1,"language":"COBOL"}'
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    assert FrameDecoder().feed(frame)[0].language is None
    assert FrameDecoder().feed(frame.replace(b'"COBOL"', b' "rust"'))[0].language is LanguageCode.RUST


@pytest.mark.parametrize(
    "member", ['"~body":"QUJD"', '"~serialize":1', '"~header":{}', '"~extra":{"a":"b"}', '"body":"x"']
)
def test_names_that_are_not_on_the_wire_cannot_be_forged(member: str) -> None:
    header = f'{{"code":1,{member},"is_response":true}}'.encode()
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    (command,) = FrameDecoder().feed(frame)
    assert (command.code, command.body, command.serialize, command.is_response) == (1, b"", 0, False)
    assert command.fields is None
    assert command.header(requests.GetRouteInfoRequest).topic is None


@BOTH
def test_an_answer_has_the_serialization_of_its_request(serialize: int) -> None:
    request = Command.request(14, opaque=77, serialize=serialize)
    answer = request.answer(22, "not found", requests.RegisterBrokerResponse())
    assert (answer.opaque, answer.is_response, answer.language) == (77, True, LanguageCode.JAVA)
    (got,) = FrameDecoder().feed(answer.encode())
    assert (got.serialize, got.code, got.remark, got.opaque) == (serialize, 22, "not found", 77)
    assert FrameDecoder().feed(request.answer(serialize=0).encode())[0].serialize == 0


def test_a_header_without_values_is_an_empty_map_in_json() -> None:
    assert b'"extFields":{}' in Command().answer(header=requests.RegisterBrokerResponse()).encode()
    assert b"extFields" not in Command().answer().encode()


def test_what_does_not_fit_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        Command.request(1, fields={"k": "x" * (1 << 24)}).encode()
    with pytest.raises(LocalProtocolError):
        Command.request(1).encode_head(0x7FFFFFFF)
    with pytest.raises(LocalProtocolError):
        Command.request(1, fields={"k" * 40000: "x"}, serialize=SerializeType.ROCKETMQ).encode()
    with pytest.raises(LocalProtocolError):
        Command.request(1, opaque=1 << 40, serialize=SerializeType.ROCKETMQ).encode()


class Ratio(Header, kw_only=True):
    ratio: float = 0.0


@BOTH
def test_other_types_of_fields(serialize: int) -> None:
    (command,) = FrameDecoder().feed(Command.request(1, Ratio(ratio=1e10), serialize=serialize).encode())
    assert command.fields == {"ratio": "1.0E10"}
    assert command.header(Ratio).ratio == 1e10
    with pytest.raises(LocalProtocolError, match="whole number"):
        Command.request(1, requests.ViewMessageRequest(offset="5"), serialize=serialize).encode()  # type: ignore[arg-type]
