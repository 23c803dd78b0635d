"""The addresses and ports on which a broker listens, and under which it is known."""

from __future__ import annotations

import ipaddress
import socket
from functools import partial

import attrs
import msgspec
import trio
from trio.lowlevel import RunVar

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.hosts import pack_host
from triomq_server.config import BrokerConfig
from triomq_server.ports import free_ports
from triomq_server.wire.transport import no_host_name

LOOK_UP_S = 3.0
"""How long the name service may take for the host of another broker."""
LOOK_UPS_AT_ONCE = 4
"""Threads that ask it. Anyone can register brokers under names that take long, and a thread cannot be ended."""
_LOOKING_UP: RunVar[trio.CapacityLimiter | None] = RunVar("looking_up", None)
"""Of one run of trio: a thread that outlives its run does not give back its place."""


class BrokerAddresses(msgspec.Struct, frozen=True):
    """The addresses of a running broker.

    Attributes:
        listen: `brokerIP1:listenPort`, as registered.
        ha: `brokerIP2:haListenPort`, for slaves.
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
        try:
            found = await trio.socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # a part of the name is empty, or longer than 63 characters
            raise no_host_name(host) from error
        return pack_host(str(found[0][4][0]), port)


def literal_ip(address: str) -> str | None:
    """The IP address in a registered `host:port`, as sockets write it; None if the host is a name."""
    try:
        return str(ipaddress.ip_address(_host_of(address)))
    except ValueError:
        return None


async def ips_of(address: str) -> frozenset[str]:
    """The IP addresses of a registered `host:port`, looked up if the host is a name; none if it cannot be found within
    LOOK_UP_S."""
    ip = literal_ip(address)
    if ip is not None:
        return frozenset({ip})
    look_up = partial(socket.getaddrinfo, _host_of(address), None, type=socket.SOCK_STREAM)
    with trio.move_on_after(LOOK_UP_S):
        try:
            found = await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=_look_ups())
        except (OSError, ValueError, RuntimeError):  # no name of a host; no thread can be started
            return frozenset()
        return frozenset(str(entry[4][0]) for entry in found)
    return frozenset()


def _look_ups() -> trio.CapacityLimiter:
    limiter = _LOOKING_UP.get()
    if limiter is None:
        limiter = trio.CapacityLimiter(LOOK_UPS_AT_ONCE)
        _LOOKING_UP.set(limiter)
    return limiter


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]").partition("%")[0]


def with_port(config: BrokerConfig) -> BrokerConfig:
    """The configuration, with free ports in place of 0.

    Raises:
        OSError: there is no free port.
    """
    if config.listen_port:
        return config
    (port,) = free_ports(1, bind_host(config.broker_ip1))
    return attrs.evolve(config, listen_port=port)
