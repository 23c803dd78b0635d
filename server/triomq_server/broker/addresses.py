"""Which addresses and ports a broker listens on and is known by."""

from __future__ import annotations

import ipaddress
import socket

import attrs
import trio

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.hosts import pack_host
from triomq_server.config import BrokerConfig

FAST_PORT_DISTANCE = 2
"""The fast listener's port is this far below the main one; the HA listener's is one above it."""

_ATTEMPTS = 64


@attrs.frozen
class BrokerAddresses:
    """Where a running broker can be reached.

    Attributes:
        listen: `brokerIP1:listenPort`, as registered.
        ha: `brokerIP2:haListenPort`, where slaves follow it.
    """

    listen: str
    ha: str


def bind_host(address: str) -> str:
    """The interface to listen on: all of them, as in RocketMQ, but only the loopback if the registered address is
    one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "127.0.0.1" if address == "localhost" else "0.0.0.0"
    if ip.is_loopback:
        return str(ip)
    return "::" if ip.version == 6 else "0.0.0.0"


def choose_port(host: str) -> int:
    """A main port such that it, the fast port below and the HA port above are free now.

    Raises:
        OSError: no such port was found.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(_ATTEMPTS):
        with _bound(family, host, 0) as first:
            port = int(first.getsockname()[1])
            if not 1024 + FAST_PORT_DISTANCE <= port < 65535:
                continue
            try:
                _bound(family, host, port - FAST_PORT_DISTANCE).close()
                _bound(family, host, port + 1).close()
            except OSError:
                continue
            return port
    raise OSError(f"no three free ports on {host} in {_ATTEMPTS} attempts")


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def joined(host: str, port: int) -> str:
    """`host:port` as RocketMQ writes it; IPv6 addresses have no brackets there either."""
    return f"{host}:{port}"


async def packed_address(host: str, port: int) -> bytes:
    """STOREHOST of the records a broker writes: its registered address, looked up if it is a name.

    Raises:
        OSError: the name cannot be resolved.
    """
    try:
        return pack_host(host, port)
    except LocalProtocolError:
        found = await trio.socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
        return pack_host(str(found[0][4][0]), port)


def with_port(config: BrokerConfig) -> BrokerConfig:
    """The configuration, with a free port where it leaves the choice to the system (port 0).

    Raises:
        OSError: there is none.
    """
    if config.listen_port:
        return config
    return attrs.evolve(config, listen_port=choose_port(bind_host(config.broker_ip1)))
