"""Signing requests for brokers with access control (remoting.md section 11.1)."""

from collections.abc import Mapping


def sign(
    fields: Mapping[str, str], body: bytes, *, access_key: str, secret_key: str, security_token: str | None = None
) -> dict[str, str]:
    """The fields to add to a request: AccessKey, Signature, and SecurityToken if given.

    Args:
        fields: all ext fields of the request, the header object's included.
    """
    raise LookupError


def signature(fields: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """Base64 of HMAC-SHA1 over the values in key order and the body; what a server recomputes."""
    raise LookupError
