"""Signs requests for brokers with access control (docs/protocol/remoting.md §11; upstream `AclClientRPCHook`)."""

import hmac
from base64 import b64encode
from collections.abc import Mapping

from triomq_protocol.java_text import utf8

REFUSAL = "org.apache.rocketmq.acl.common.AclException"
"""Remarks of refusals begin with it; clients and tools recognise them by it."""
ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def sign(
    fields: Mapping[str, str | None],
    body: bytes,
    *,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
) -> dict[str, str | None]:
    """All ext fields of a signed request: the given ones, then SecurityToken (if any), AccessKey and Signature.

    Pass the result as the command's `fields` together with its header object, as Java does: a fixed-order binary
    header then carries its fields twice, any other form once.

    Args:
        fields: all ext fields of the request, the header object's included (`header.to_fields()`).
        body: the request's body.
        access_key: the account.
        secret_key: its secret; not sent.
        security_token: a temporary account's token.
    """
    signed = dict(fields)
    if security_token is not None:
        signed[SECURITY_TOKEN] = security_token
    signed[ACCESS_KEY] = access_key
    signed[SIGNATURE] = signature(signed, body, secret_key)
    return signed


def values_to_sign(fields: Mapping[str, str | None]) -> bytes:
    """The signed bytes before the body: the values in key order without Signature; a None counts as the text `null`, as
    in Java."""
    names = sorted(name for name in fields if name != SIGNATURE)
    if not "".join(names).isascii():
        names.sort(key=_utf16_order)
    return utf8("".join(["null" if (value := fields[name]) is None else value for name in names]))


def _utf16_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def signature(fields: Mapping[str, str | None], body: bytes, secret_key: str) -> str:
    """Base64 of HMAC-SHA1 over the values and the body; a server recomputes it."""
    return signature_of(values_to_sign(fields), secret_key, body).decode()


def signature_of(signed: bytes, secret_key: str, body: bytes = b"") -> bytes:
    """As `signature`, of bytes to sign and the body behind them; a large body is not copied for it."""
    code = hmac.new(utf8(secret_key), signed, "sha1")
    if body:
        code.update(body)
    return b64encode(code.digest())
