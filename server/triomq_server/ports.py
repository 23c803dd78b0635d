"""The three ports of a broker, and the search for free ones if none are given.

RocketMQ's brokers listen on a main port, on the fast port two below it and, for replication, on the port above it.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

HOST: Final = "127.0.0.1"

FAST_PORT_DISTANCE: Final = 2
"""The fast listener's port is this far below the main port; the HA listener's port is one above it."""

ATTEMPTS: Final = 5
"""How often a cluster is started on free ports: another process may take one between choosing and binding it."""

_FREE: Final = range(15_000, 32_000)
"""Below Linux' range for outgoing connections, so that none of them takes a port between choosing and binding it."""

_WIDTH: Final = 4
"""Distance between the first ports of two nodes: the three ports of a broker, and a gap."""

_LAST: Final = 65_535

_TAKEN: Final = (errno.EADDRINUSE, errno.EACCES)
"""Errors for one port; any other would come for all ports."""


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Choose random main ports of brokers, with all three ports of each free now on that address.

    Raises:
        OSError: fewer ports are free, or no socket can be bound to the address at all.
    """
    with reserved_ports(count, host) as found:
        return found


@contextmanager
def reserved_ports(count: int, host: str = HOST) -> Iterator[list[int]]:
    """`free_ports`, which no other search finds free during the block. Servers can listen on them.

    Raises:
        OSError: as for `free_ports`.
    """
    with ExitStack() as reserved:
        yield _search(count, host, reserved)


def _search(count: int, host: str, reserved: ExitStack) -> list[int]:
    candidates = list(_FREE[::_WIDTH])
    random.shuffle(candidates)
    found: list[int] = []
    why = errno.EADDRINUSE
    for port in candidates:
        if len(found) == count:
            break
        with ExitStack() as probes:
            try:
                for near in _of_broker(port):
                    # Linux lets others listen on a port that is only bound, if both allow it.
                    _probe(probes, host, near, shared=False).setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise OSError(error.errno, f"no port on {host} can be used: {error.strerror}") from error
                why = error.errno
                continue
            found.append(port)
            reserved.push(probes.pop_all())
    if len(found) < count:
        raise OSError(why, f"no {count} free ports on {host} between {_FREE.start} and {_FREE.stop}")
    return found


def ports_from(base: int, count: int) -> list[int]:
    """The same ports on every call, on the loopback address: `base` and every fourth port after it.

    Raises:
        ValueError: not all of them are valid port numbers.
        OSError: one of them, or of the two other ports that a broker needs, is taken; the text names it.
    """
    ports = list(range(base, base + count * _WIDTH, _WIDTH))
    if ports[0] - FAST_PORT_DISTANCE < 1 or ports[-1] + 1 > _LAST:
        raise ValueError(
            f"{count} nodes from port {base} on need the ports {base - FAST_PORT_DISTANCE} to {ports[-1] + 1}"
        )
    for port in ports:
        for near in _of_broker(port):
            with ExitStack() as probes:
                try:
                    _probe(probes, HOST, near, shared=True)
                except OSError as error:
                    raise OSError(error.errno, f"port {near} cannot be used: {error.strerror}") from error
    return ports


def _of_broker(port: int) -> tuple[int, int, int]:
    return port - FAST_PORT_DISTANCE, port, port + 1


def _probe(probes: ExitStack, host: str, port: int, *, shared: bool) -> socket.socket:
    """Bind a socket; OSError if the port is taken, with `shared` not if it is only bound, or was used a short time ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = probes.enter_context(socket.socket(family))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
    probe.bind((host, port))
    return probe
