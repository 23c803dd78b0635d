"""Packed addresses in records and message ids: 4 or 16 bytes of IP, then the port as int32."""

import ipaddress
from functools import lru_cache

from triomq_protocol.errors import BodyError, LocalProtocolError


@lru_cache(4096)
def pack_host(ip: str, port: int) -> bytes:
    """8 bytes for IPv4, 20 for IPv6; an IPv4 address mapped into IPv6 is packed as IPv4. Raises LocalProtocolError."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).packed + port.to_bytes(4, "big")
    except (ValueError, OverflowError) as error:
        raise LocalProtocolError(f"not an IP address and port: {ip!r} port {port}") from error


@lru_cache(4096)
def unpack_host(host: bytes) -> tuple[str, int]:
    """Address text and port of 8 or 20 bytes. Raises BodyError."""
    if len(host) not in (8, 20):
        raise BodyError("host", f"{len(host)} bytes")
    return str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big", signed=True)
