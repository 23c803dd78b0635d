"""The address that records bear."""

from __future__ import annotations

import socket

import pytest

from triomq_server.broker.addresses import packed_address


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_address_or_a_name_is_packed(host: str) -> None:
    assert await packed_address(host, 10911) == b"\x7f\0\0\x01" + (10911).to_bytes(4, "big")


async def test_an_unknown_host_name_is_an_error_of_its_own() -> None:
    with pytest.raises(socket.gaierror):
        await packed_address("no host", 10911)
