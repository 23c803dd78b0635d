"""Signed requests: the documented signature, the order of the values, and what each change does to it."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, sign, signature, values_to_sign

# docs/protocol/remoting.md §11.1: verified against a broker with access control.
DOCUMENTED: dict[str, str | None] = {
    "a": "PGX", "b": "topicB", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "KEYS\x01kk",
    "j": "0", "k": "false", "m": "false",
}  # fmt: skip


def test_the_documented_request() -> None:
    signed = sign(DOCUMENTED, b"x", access_key="RocketMQ", secret_key="12345678")
    assert values_to_sign(signed) + b"x" == b"RocketMQPGXtopicBTBW10240017000000000000KEYS\x01kk0falsefalsex"
    assert signed == DOCUMENTED | {ACCESS_KEY: "RocketMQ", SIGNATURE: "GHhTN8ozTL0aV/hAqEAB/E8EQlw="}
    assert list(signed)[-2:] == [ACCESS_KEY, SIGNATURE]


def test_the_given_fields_are_not_changed() -> None:
    fields: dict[str, str | None] = {"a": "b"}
    sign(fields, b"", access_key="k", secret_key="s", security_token="t")
    assert fields == {"a": "b"}


def test_a_token_is_a_field_like_the_others() -> None:
    signed = sign({"Z": "z", "A": "a"}, b"!", access_key="key", secret_key="s", security_token="token")
    assert list(signed) == ["Z", "A", SECURITY_TOKEN, ACCESS_KEY, SIGNATURE]
    assert values_to_sign(signed) + b"!" == b"akeytokenz!"
    assert sign({}, b"", access_key="key", secret_key="s", security_token="")[SECURITY_TOKEN] == ""


def test_an_earlier_signature_is_replaced_and_not_signed() -> None:
    once = sign(DOCUMENTED, b"x", access_key="RocketMQ", secret_key="12345678")
    assert sign(once, b"x", access_key="RocketMQ", secret_key="12345678") == once
    assert values_to_sign({SIGNATURE: "old", "signature": "kept"}) == b"kept"


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({}, b""),
        ({"b": "1", "a": "2", "B": "3", "_": "4"}, b"3421"),  # capitals, underscore, small letters
        ({"a": None, "b": ""}, b"null"),
        ({"\uffff": "last", "\U0001f600": "first"}, b"firstlast"),  # UTF-16 units: a surrogate comes before U+FFFF
        ({"a": "\u4e16\ud800"}, "\u4e16?".encode()),
    ],
)
def test_values_in_the_order_of_their_names(fields: dict[str, str | None], content: bytes) -> None:
    assert values_to_sign(fields) == content
    assert values_to_sign(fields) + b"\x00\xff" == content + b"\x00\xff"


@given(
    st.dictionaries(st.text("abcXYZ", min_size=1), st.none() | st.text(max_size=8), max_size=8),
    st.binary(max_size=9),
    st.text(min_size=1),
)
def test_a_server_computes_the_same(fields: dict[str, str | None], body: bytes, secret: str) -> None:
    signed = sign(fields, body, access_key="k", secret_key=secret)
    names = sorted(set(signed) - {SIGNATURE})
    content = "".join("null" if signed[name] is None else str(signed[name]) for name in names).encode() + body
    digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    assert signed[SIGNATURE] == signature(signed, body, secret) == base64.b64encode(digest).decode()


def test_every_change_changes_the_signature() -> None:
    given = signature(DOCUMENTED, b"x", "12345678")
    others = [
        signature(DOCUMENTED | {"e": "1"}, b"x", "12345678"), signature(DOCUMENTED, b"y", "12345678"),
        signature(DOCUMENTED, b"", "12345678"), signature(DOCUMENTED, b"x", "12345679"), signature(DOCUMENTED | {"z": "1"}, b"x", "12345678"),
    ]  # fmt: skip
    assert len({given, *others}) == 6
    assert signature({"a": "bc"}, b"", "s") == signature({"a": "b", "c": "c"}, b"", "s")  # no separators, as in Java
