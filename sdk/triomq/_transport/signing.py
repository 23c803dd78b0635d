"""A link whose requests are signed (docs/protocol/remoting.md §11.1; upstream ``AclClientRPCHook``).

Each frame is signed when it is queued, whatever made it, so that none is sent without a signature. For this its header
is read again, a cost that links without credentials do not have.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import trio

from triomq._transport.credentials import Credentials
from triomq._transport.link import Link, Waiter
from triomq_protocol.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, sign
from triomq_protocol.java_text import utf8
from triomq_protocol.wire.command import Command, decode_json_command
from triomq_protocol.wire.fastjson import quote
from triomq_protocol.wire.lengths import frame_lengths

_ADDED: Final = (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)
_EXT: Final = b',"extFields":{'
_decode_fields = msgspec.json.Decoder(dict[str, str | None]).decode


def signed_frame(frame: bytes, credentials: Credentials) -> bytes:
    """Add access key and signature to a request; an answer stays as it is.

    Args:
        frame: one whole frame, as this client encodes it: its JSON header begins with the code and the ext fields.
        credentials: the account that signs.
    """
    header_end = 8 + int.from_bytes(frame[4:8])
    header, body = frame[8:header_end], frame[header_end:]
    command = decode_json_command(header)
    if command.is_response:
        return frame
    fields = _fields_of(command)
    names = len(fields)
    signed = sign(
        fields,
        body,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        security_token=credentials.security_token,
    )
    # Inserted as text: encoding all fields again would take four times as long. Their order does not matter.
    added = utf8(",".join(f"{quote(name)}:{quote(signed[name] or '')}" for name in _ADDED if name in signed))
    code_end = header.index(b",")
    ext_at = code_end + len(_EXT)
    if not header.startswith(_EXT, code_end):
        parts = [header[:code_end], _EXT, added, b"}", header[code_end:]]
    else:
        parts = [header[:ext_at], added, b"," if names else b"", header[ext_at:]]
    size = sum(map(len, parts))
    return b"".join((frame_lengths(size, len(body), 0), *parts, body))


def _fields_of(command: Command) -> dict[str, str | None]:
    try:
        return _decode_fields(command.raw_ext)
    except msgspec.MsgspecError:
        return dict(command.fields or {})  # no fields, or what only Java's reader accepts


class SignedLink(Link):
    """A link that signs every request, to brokers and name servers alike.

    Args:
        address: as for :class:`Link`.
        stream: as for :class:`Link`.
        credentials: the account that signs requests.
        options: the other arguments of :class:`Link`.
    """

    def __init__(self, address: str, stream: trio.abc.Stream, *, credentials: Credentials, **options: Any) -> None:
        super().__init__(address, stream, **options)
        self._credentials = credentials

    def submit(self, frame: bytes, opaque: int, waiter: Waiter, *, now: bool = False) -> None:
        """As :meth:`Link.submit`, signed.

        Raises:
            LinkLost: the link is no longer open; the waiter is not called.
        """
        super().submit(signed_frame(frame, self._credentials), opaque, waiter, now=now)

    def write(self, frame: bytes) -> None:
        """As :meth:`Link.write`: a one-way request signed, an answer as it is."""
        super().write(signed_frame(frame, self._credentials))
