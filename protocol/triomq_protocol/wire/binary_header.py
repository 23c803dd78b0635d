"""RocketMQ's binary header, serialize type 1 (docs/protocol/remoting.md §3; upstream `RocketMQSerializable`)."""

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError  # noqa: N812

import msgspec

from triomq_protocol.codes import LanguageCode
from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError
from triomq_protocol.java_text import utf8

_FIXED = Struct(">hbhiii")  # code, language, version, opaque, flag, length of the remark
_FIXED_BYTES = _FIXED.size
_MAX_NAME_BYTES = 32767
MAX_FIELDS = 4096
"""Maximum number of ext fields, in JSON too. No command has more than thirty; a header full of empty ones must not block
other links."""
_LANGUAGES: dict[int, str] = {int(code): code.name for code in LanguageCode}


class BinaryHeader(msgspec.Struct, frozen=True):
    """The parts of a decoded binary header; `area` is the undecoded map of `fields` ext fields, b"" if there is none."""

    code: int
    language_name: str | None
    version: int
    opaque: int
    flag: int
    remark: str | None
    area: bytes
    fields: int
    end: int


def _signed16(value: int) -> int:
    value &= 0xFFFF
    return value - 0x10000 if value > 0x7FFF else value


def encode_binary_header(
    code: int, language: LanguageCode | None, version: int, opaque: int, flag: int, remark: str | None, area: bytes
) -> bytes:
    """The header bytes; code and version keep their low 16 bits. Raises LocalProtocolError."""
    text = utf8(remark or "")
    number = LanguageCode.JAVA if language is None else language
    try:
        fixed = _FIXED.pack(_signed16(code), number, _signed16(version), opaque, flag, len(text))
    except StructError as error:
        raise LocalProtocolError(f"header out of range: {error}") from error
    return b"".join((fixed, text, len(area).to_bytes(4, "big"), area))


def encode_area(pairs: Iterable[tuple[str | None, str | None]]) -> bytes:
    """The map of ext fields; entries whose name or value is None are not written. Raises LocalProtocolError."""
    parts: list[bytes] = []
    for name, value in pairs:
        if name is None or value is None:
            continue
        key, text = utf8(name), utf8(value)
        if len(key) > _MAX_NAME_BYTES:
            raise LocalProtocolError(f"ext field name of {len(key)} bytes")
        parts += (len(key).to_bytes(2, "big"), key, len(text).to_bytes(4, "big"), text)
    return b"".join(parts)


def decode_binary_header(data: bytes) -> BinaryHeader:
    """Read a header. Raises RemoteProtocolError.

    As in Java a negative length of remark or map counts as none, and bytes after the map are not an error: `end` is the
    end of the map, and the frame's body begins there.
    """
    size = len(data)
    if size < _FIXED_BYTES + 4:
        raise RemoteProtocolError(f"binary header of {size} bytes")
    code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(data)
    at = _FIXED_BYTES
    remark = None
    if remark_bytes > 0:
        if remark_bytes > size - at - 4:
            raise RemoteProtocolError(f"remark of {remark_bytes} bytes in a header of {size} bytes")
        remark = data[at : at + remark_bytes].decode("utf-8", "replace")
        at += remark_bytes
    area_bytes = int.from_bytes(data[at : at + 4], "big", signed=True)
    at += 4
    area, fields = b"", 0
    if area_bytes > 0:
        if area_bytes > size - at:
            raise RemoteProtocolError(f"ext fields of {area_bytes} bytes in a header of {size} bytes")
        area = data[at : at + area_bytes]
        at += area_bytes
        fields = len(decode_area(area))
    return BinaryHeader(code, _LANGUAGES.get(language), version, opaque, flag, remark, area, fields, at)


def decode_area(area: bytes) -> list[tuple[str | None, str | None]]:
    """(name, value) pairs in wire order; a part of length 0 reads as None. Raises RemoteProtocolError."""
    pairs: list[tuple[str | None, str | None]] = []
    at, size = 0, len(area)
    while at < size:
        name, at = _part(area, at, 2)
        value, at = _part(area, at, 4)
        pairs.append((name, value))
        if len(pairs) > MAX_FIELDS:
            raise RemoteProtocolError(f"more than {MAX_FIELDS} ext fields")
    return pairs


def _part(area: bytes, at: int, length_bytes: int) -> tuple[str | None, int]:
    start = at + length_bytes
    if start > len(area):
        raise RemoteProtocolError("ext fields end inside a length")
    count = int.from_bytes(area[at:start], "big", signed=True)
    if count <= 0:
        return None, start
    end = start + count
    if end > len(area):
        raise RemoteProtocolError(f"ext field of {count} bytes in a map of {len(area)} bytes")
    return area[start:end].decode("utf-8", "replace"), end
