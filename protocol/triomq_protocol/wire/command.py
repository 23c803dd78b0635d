"""Command: one request or response, its header in JSON and in RocketMQ's binary form (docs/protocol/remoting.md §2
and §3)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

import msgspec

from triomq_protocol.codes import VERSION, LanguageCode, SerializeType
from triomq_protocol.errors import BodyError, HeaderError, RemoteProtocolError
from triomq_protocol.flags import ONEWAY, RESPONSE
from triomq_protocol.java_text import utf8
from triomq_protocol.wire.binary_header import (
    MAX_FIELDS,
    decode_area,
    decode_binary_header,
    encode_area,
    encode_binary_header,
)
from triomq_protocol.wire.fastjson import (
    MAX_TOLERANT_BYTES,
    MAX_TOLERANT_HEADER_BYTES,
    dumps,
    integer_of_text,
    java_map_order,
    loads,
    member_name,
    quote,
)
from triomq_protocol.wire.header import Header, Int32, header_from_fields, json_decoder
from triomq_protocol.wire.lengths import frame_lengths

H = TypeVar("H", bound=Header)
_NO_EXT = msgspec.Raw()
"""A longer header must have the usual form: an unusual one of this size takes up to 30 ms, one of 16 MiB seconds."""
_DECODERS: dict[type[Header], Callable[[msgspec.Raw], Any]] = {}
"""The fast readers of header classes: one look-up in a dictionary, used for every request."""

if TYPE_CHECKING:
    _LocalInt = int
    _LocalBytes = bytes
    _LocalFields = dict[str, str | None]
    _LocalHeader = Any
else:

    class _Local:
        """Type of attributes that are not members of a JSON header; the decoder rejects a header with one of their
        names."""

    _LocalInt = _LocalBytes = _LocalFields = _LocalHeader = _Local

_WIRE_NAMES = {
    "language_name": "language",
    "raw_ext": "extFields",
    "serialize": "~serialize",
    "body": "~body",
    "extra": "~extra",
    "header_object": "~header",
    "written_serialize": "serializeTypeCurrentRPC",
}

JSON_END = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
"""How a JSON header of ours ends: for modules that write whole headers without a `Command`."""


def _remember_decoder(cls: type[H]) -> Callable[[msgspec.Raw], H]:
    decoder = _DECODERS[cls] = json_decoder(cls)
    return decoder


# An unknown member may be a known one in another spelling, which only the tolerant reader accepts.
class Command(msgspec.Struct, rename=_WIRE_NAMES, gc=False, forbid_unknown_fields=True):
    """One decoded frame. Fast to create and to read; ext fields are decoded on access.

    A JSON header is decoded straight into this struct. Make commands with `request` and `answer`.

    Attributes:
        code: request code, or response code if `is_response`.
        flag: bit 0 response, bit 1 one-way.
        opaque: pairs an answer with its request; 0 if the peer sent none.
        version: the writer's version number (407 is 4.9.7).
        remark: text of an error answer; None if absent.
        serialize: how the header was (will be) written, a SerializeType.
        body: b"" if there is none.
        language_name: the writer's language by name; None if it is unknown. See `language`.
        raw_ext: received ext fields, not decoded: JSON text, or the map area of a binary header. They fit `serialize`
            as received; to send a received command in the other form, make a new one from its `fields`.
        extra, header_object: ext fields and header object of a command created locally.
        written_serialize: the encoding that a JSON header names. It has no effect: the frame's mark counts.
    """

    # In the order in which Java writes the members: the decoder looks for each behind the one before.
    code: Int32 = 0
    raw_ext: msgspec.Raw = _NO_EXT
    flag: Int32 = 0
    language_name: str | None = "JAVA"
    opaque: Int32 = 0
    remark: str | None = None
    written_serialize: Literal["JSON", "ROCKETMQ"] | None = None
    version: Int32 = 0
    serialize: _LocalInt = 0
    body: _LocalBytes = b""
    extra: _LocalFields | None = None
    header_object: _LocalHeader = None

    @property
    def language(self) -> LanguageCode | None:
        """Language of the writer; None if its name or number is unknown."""
        name = self.language_name
        return LanguageCode.__members__.get(name.upper()) if name else None

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether this request must not be answered."""
        return self.flag & ONEWAY != 0

    @property
    def received_bytes(self) -> int:
        """The bytes that a received command keeps in memory: ext fields, remark and body."""
        return memoryview(self.raw_ext).nbytes + len(self.remark or "") + len(self.body)

    @property
    def fields(self) -> dict[str, str] | None:
        """All ext fields as text, in wire order; None if the frame had none. Decoded at every call.

        Of a repeated name the last value counts. Fields without value (null) are left out. Raises HeaderError if the
        received fields are not a map.
        """
        pairs = self.field_pairs()
        if pairs is None:
            return None
        # Only then without nulls: access control takes a last null for a field that is absent, and so must handlers.
        return {name: value for name, value in dict(pairs).items() if name is not None and value is not None}

    def field_pairs(self) -> list[tuple[str | None, str | None]] | None:
        """The ext fields in wire order, duplicates, null names and null values included."""
        raw = bytes(self.raw_ext)
        if raw:
            if self.serialize:
                return decode_area(raw)
            return _json_pairs(raw)
        merged = self._merged()
        if merged is None:
            return None
        return [(name, merged[name]) for name in java_map_order(merged)]

    def _merged(self) -> dict[str, str | None] | None:
        """Extra fields, then the header object's, in the order in which Java puts them into its map."""
        if self.header_object is None:
            return self.extra
        merged = dict(self.extra) if self.extra else {}
        merged.update(self.header_object.to_fields())
        return merged

    def header(self, cls: type[H]) -> H:
        """The ext fields as a typed header object. Raises HeaderError naming the field that cannot be used."""
        raw = self.raw_ext
        if not self.serialize and raw is not _NO_EXT:
            try:
                decoded: H = (_DECODERS.get(cls) or _remember_decoder(cls))(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # the slow path names the bad field, or reads what only Java accepts
            else:
                return decoded
        return header_from_fields(cls, self.fields)

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        *,
        fields: Mapping[str, str | None] | None = None,
        body: bytes = b"",
        oneway: bool = False,
        opaque: int = 0,
        language: LanguageCode = LanguageCode.PYTHON,
        serialize: int = SerializeType.JSON,
        version: int = VERSION,
        remark: str | None = None,
    ) -> Self:
        """A request; `fields` are ext fields in addition to the header object's (Java's `addExtField`)."""
        return cls(
            code=code,
            flag=2 if oneway else 0,
            opaque=opaque,
            version=version,
            remark=remark,
            serialize=serialize,
            body=body,
            language_name=language.name,
            extra=None if fields is None else dict(fields),
            header_object=header,
        )

    def answer(
        self,
        code: int = 0,
        remark: str | None = None,
        header: Header | None = None,
        *,
        fields: Mapping[str, str | None] | None = None,
        body: bytes = b"",
        serialize: int | None = None,
    ) -> "Command":
        """The response to this request: its opaque, flag 1, language JAVA, its serialization unless given.

        A header object without values is written as empty ext fields `{}`, no header object as none at all.
        """
        return Command(
            code=code,
            flag=RESPONSE,
            opaque=self.opaque,
            version=VERSION,
            remark=remark,
            serialize=self.serialize if serialize is None else serialize,
            body=body,
            extra=None if fields is None else dict(fields),
            header_object=header,
        )

    def encode(self) -> bytes:
        """The whole frame, byte for byte as Java writes it. Raises LocalProtocolError if it does not fit."""
        body = self.body
        return self.encode_head(len(body)) + body if body else self.encode_head(0)

    def encode_head(self, body_bytes: int) -> bytes:
        """The frame without its body, with lengths for a body of `body_bytes` that the caller appends."""
        header = self._binary_header() if self.serialize else utf8(self._json_header())
        return frame_lengths(len(header), body_bytes, self.serialize) + header

    def _json_header(self) -> str:
        pairs = self.field_pairs()
        ext = ""
        if pairs is not None:
            shown = [f"{quote(name)}:{quote(value)}" for name, value in pairs if name is not None and value is not None]
            ext = f',"extFields":{{{",".join(shown)}}}'
        language = "" if self.language_name is None else f',"language":{quote(self.language_name)}'
        remark = "" if self.remark is None else f',"remark":{quote(self.remark)}'
        return (
            f'{{"code":{int(self.code)}{ext},"flag":{int(self.flag)}{language},"opaque":{int(self.opaque)}{remark}'
            f',"serializeTypeCurrentRPC":"JSON","version":{int(self.version)}}}'
        )

    def _binary_header(self) -> bytes:
        header = self.header_object
        raw = bytes(self.raw_ext)
        if raw:
            area = raw
        elif header is not None and header.fixed_order:
            extra = self.extra or {}
            area = encode_area(header.to_fields()) + encode_area((name, extra[name]) for name in java_map_order(extra))
        else:
            area = encode_area(self.field_pairs() or ())
        return encode_binary_header(self.code, self.language, self.version, self.opaque, self.flag, self.remark, area)


_read_ext = msgspec.json.Decoder(dict[str, str | int | float | bool | None] | None).decode


def _ext_members(raw: bytes) -> object:
    """What received ext fields hold. Lists and objects, which no client sends, are read if they are short: making a text
    of them takes up to 2 µs for each byte. Raises HeaderError."""
    try:
        return _read_ext(raw)
    except NOT_USUAL:
        pass
    try:
        if len(raw) > MAX_TOLERANT_BYTES:
            return _read_ext(raw.decode("utf-8", "replace"))  # of clients whose properties are not UTF-8
        members = loads(raw)
    except (BodyError, *NOT_USUAL) as error:
        raise HeaderError("extFields", "is not JSON, or is too long for JSON in an unusual form") from error
    if (
        len(raw) > MAX_TOLERANT_HEADER_BYTES
        and isinstance(members, dict)
        and any(isinstance(value, dict | list) for value in members.values())
    ):
        raise HeaderError(
            "extFields", f"has {len(raw)} bytes with lists or objects; the limit is {MAX_TOLERANT_HEADER_BYTES}"
        )
    return members


def _json_pairs(raw: bytes) -> list[tuple[str | None, str | None]] | None:
    members = _ext_members(raw)
    if members is None:
        return None
    if not isinstance(members, dict):
        raise HeaderError("extFields", "is not a map")
    if len(members) > MAX_FIELDS:
        raise HeaderError("extFields", f"has more than {MAX_FIELDS} members")
    return [(str(name), ext_text(value)) for name, value in members.items()]


def ext_text(value: object) -> str | None:
    """The text Java makes of an ext field's JSON value: text as it is, anything else its JSON."""
    if value is None or isinstance(value, str):
        return value
    return dumps(value).decode()


# ---------------------------------------------------------------- received headers


def _reject_member(_: type, value: object) -> object:
    raise ValueError(f"not a member of a header: {value!r}"[:200])


decode_usual_command: Final = msgspec.json.Decoder(Command, dec_hook=_reject_member).decode
_LANGUAGE_NAMES = {int(code): code.name for code in LanguageCode}


NOT_USUAL = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What `decode_usual_command` raises at a header in another form than the usual one."""


def decode_json_command(header: bytes) -> Command:
    """A command from its JSON header, without body. Raises RemoteProtocolError.

    Anything FastJSON reads is read (docs/protocol/remoting.md §2 and §13.2), the usual form by the fast decoder.
    """
    try:
        return decode_usual_command(header)
    except NOT_USUAL:
        return decode_unusual_command(header)


def decode_unusual_command(header: bytes) -> Command:
    """What `decode_json_command` does with a header for which `decode_usual_command` has raised `NOT_USUAL`."""
    if len(header) > MAX_TOLERANT_BYTES:
        raise RemoteProtocolError(
            f"header of {len(header)} bytes in an unusual form, the limit is {MAX_TOLERANT_BYTES}"
        )
    try:
        members = loads(header, tolerant_bytes=MAX_TOLERANT_HEADER_BYTES)
    except BodyError as error:
        raise RemoteProtocolError(f"header is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise RemoteProtocolError("header is not a JSON object")
    found: dict[str, object] = {}
    for name, value in members.items():
        found.setdefault(member_name(str(name)), value)
    ext = found.get("extfields")
    if ext is not None and not isinstance(ext, dict):
        raise RemoteProtocolError("extFields is not a JSON object")
    return Command(
        code=_int32("code", found),
        flag=_int32("flag", found),
        opaque=_int32("opaque", found),
        version=_int32("version", found),
        remark=ext_text(found.get("remark")),
        language_name=_language_name(found.get("language", "JAVA")),
        raw_ext=_NO_EXT if ext is None else msgspec.Raw(dumps(ext)),
    )


def _language_name(value: object) -> str | None:
    if isinstance(value, int):  # Java's reader takes a number as the ordinal
        return _LANGUAGE_NAMES.get(value)
    return value.upper() if isinstance(value, str) and value.upper() in LanguageCode.__members__ else None


def _int32(name: str, members: dict[str, object]) -> int:
    """A number the way FastJSON casts it: text parsed, fractions cut, more than 32 bits wrapped."""
    value = members.get(name)
    try:
        if value is None:
            return 0
        if isinstance(value, str):
            return integer_of_text(value, 32)
        if isinstance(value, int | float):
            return (int(value) + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
    except (ValueError, OverflowError):
        pass
    raise RemoteProtocolError(f"header member {name} is not a number: {str(value)[:100]!r}")


def decode_binary_command(data: bytes, body_bytes: int) -> tuple[Command, int]:
    """A command from its binary header and the bytes after it, and how many ext fields it has. Raises
    RemoteProtocolError.

    Like Java's reader the body begins where the header's fields end, even if the declared header length is greater.
    """
    parts = decode_binary_header(data[: len(data) - body_bytes])
    command = Command(
        code=parts.code,
        flag=parts.flag,
        opaque=parts.opaque,
        version=parts.version,
        remark=parts.remark,
        serialize=SerializeType.ROCKETMQ,
        body=data[parts.end : parts.end + body_bytes],
        language_name=parts.language_name,
        raw_ext=msgspec.Raw(parts.area) if parts.area else _NO_EXT,
    )
    return command, parts.fields
