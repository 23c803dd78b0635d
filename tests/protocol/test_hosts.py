"""Packed addresses."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.errors import BodyError, LocalProtocolError
from triomq_protocol.hosts import pack_host, unpack_host


@pytest.mark.parametrize(
    ("ip", "port", "packed"),
    [
        ("127.0.0.1", 10911, "7f00000100002a9f"),
        ("::1", 1, "0000000000000000000000000000000100000001"),
        ("::ffff:1.2.3.4", 1, "0102030400000001"),
        ("fe80::1%eth0", 65535, "fe80000000000000000000000000000 10000ffff".replace(" ", "")),
        ("0.0.0.0", 0, "0000000000000000"),
    ],
)
def test_packed(ip: str, port: int, packed: str) -> None:
    assert pack_host(ip, port).hex() == packed


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(0, (1 << 31) - 1))
def test_hosts_are_decoded_as_they_were_encoded(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    plain = str(ip).partition("%")[0]
    assert unpack_host(pack_host(plain, port)) == (str(mapped).partition("%")[0], port)


@pytest.mark.parametrize(("ip", "port"), [("name", 1), ("1.2.3.4", -1), ("", 1), ("1.2.3.4", 1 << 32), ("1.2.3", 1)])
def test_what_is_no_address(ip: str, port: int) -> None:
    with pytest.raises(LocalProtocolError):
        pack_host(ip, port)


@pytest.mark.parametrize("length", [0, 4, 5, 16, 19, 21])
def test_packed_addresses_have_one_of_two_lengths(length: int) -> None:
    with pytest.raises(BodyError):
        unpack_host(bytes(length))
