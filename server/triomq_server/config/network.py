"""Settings of the listening side, the same for brokers and name servers (RocketMQ's ``NettyServerConfig``)."""

from __future__ import annotations

import ipaddress
import os
import socket

import attrs

from triomq_protocol.names import MAX_NAME_CHARACTERS
from triomq_protocol.wire.frame import MAX_FRAME_BYTES
from triomq_server.config.memory import share_of_memory
from triomq_server.config.settings import INT32_MOST, setting, unusable_if_empty
from triomq_server.config.tls import TlsConfig

MOST_ADDRESSES = 64
"""Maximum number of servers in one setting; each has a task that keeps a connection."""


def rocketmq_home() -> str | None:
    """The environment's ``ROCKETMQ_HOME``: brokers with access control need it, and tools ask for it."""
    return os.environ.get("ROCKETMQ_HOME")


def in_home(*names: str) -> str:
    """A path below the user's home; below ``/`` for a user who has none, such as a bare number in a container."""
    home = os.path.expanduser("~")
    return os.path.join("/" if home == "~" else home, *names)


def host_name() -> str:
    """The machine's name, RocketMQ's default for ``brokerName``."""
    return socket.gethostname() or "DEFAULT_BROKER"


def first_address() -> str:
    """The address that other machines see: the source address of the default route, or else 127.0.0.1.

    No packet is sent: connecting a datagram socket only queries the routing table.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address = str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
    return "127.0.0.1" if ipaddress.ip_address(address).is_unspecified else address


def unusable_address(text: str) -> str | None:
    """The reason why a text is not a list ``host:port;host:port``; None if it is one."""
    addresses = [part.strip() for part in text.split(";") if part.strip()]
    if len(addresses) > MOST_ADDRESSES:
        return f"{len(addresses)} addresses; at most {MOST_ADDRESSES} are possible"
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or len(port) > 5 or not 0 < int(port) < 65536:
            return f"{address!r} is not host:port"
        if not host.isascii() or len(host) > 255 or " " in host:
            return f"{host!r} is not the name or address of a host"
    return None


def unusable_host(text: str) -> str | None:
    """The reason why a text is neither an address without port nor a name; None if it may be one.

    Whether a name can be resolved is not checked."""
    return "IPv6 addresses are written without brackets here" if text.startswith("[") else None


def networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Parse a list of IP addresses and networks, ``10.0.0.7;10.1.0.0/16``. Raises ValueError for any other text."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(";") if part.strip())


def unusable_networks(text: str) -> str | None:
    """The reason why a text is not a list of IP addresses and networks; None if it is one."""
    try:
        found = networks(text)
    except ValueError as error:
        return str(error)
    return f"{len(found)} addresses; at most {MOST_ADDRESSES} are possible" if len(found) > MOST_ADDRESSES else None


def unusable_name(text: str) -> str | None:
    """The reason why a text cannot be a name in messages or routes; None if it can."""
    if len(text) > MAX_NAME_CHARACTERS:
        return f"{len(text)} characters; at most {MAX_NAME_CHARACTERS} are possible"
    return unusable_if_empty(text)


def unusable_region(text: str) -> str | None:
    """The reason why a text cannot be a region, which is in every answer to a send; None if it can."""
    return unusable_name(text) if text.isascii() else "only ASCII is possible"


@attrs.define(kw_only=True)
class ServerNetworkConfig:
    """Keys of all listening processes.

    Thread counts and buffer switches are shown to tools but have no effect, see `without_effect`.
    """

    rocketmq_home: str | None = setting(factory=rocketmq_home, fixed=True)
    listen_port: int = setting(8888, least=0, most=65535, fixed=True)
    """TCP port; 0 lets the system choose one."""
    server_worker_threads: int = 8
    server_callback_executor_threads: int = 0
    server_selector_threads: int = 3
    server_oneway_semaphore_value: int = 256
    """Maximum number of our one-way requests that wait on one link."""
    server_async_semaphore_value: int = 64
    """Maximum number of our requests that wait for answers, all links together."""
    server_channel_max_idle_time_seconds: int = setting(120, least=1, most=86_400, at_start=True)
    """A link without a byte in either direction for this many seconds is closed."""
    server_socket_snd_buf_size: int = 0
    """Bytes; 0 keeps the system's default. The same is true of the next key."""
    server_socket_rcv_buf_size: int = 0
    write_buffer_high_water_mark: int = 0
    write_buffer_low_water_mark: int = 0
    server_socket_backlog: int = setting(1024, least=1)
    server_pooled_byte_buf_allocator_enable: bool = True
    use_epoll_native_selector: bool = False

    # Ours, unknown to RocketMQ.
    max_connections: int = setting(10_000, least=1, most=INT32_MOST, at_start=True)
    """Maximum number of accepted links; a further one is refused, or replaces one of a host that has more."""
    link_output_limit_bytes: int = setting(1_048_576, least=1, most=INT32_MOST, at_start=True)
    """Unsent bytes of one link above which no more is read from it until they have been sent. The kernel buffers a few MiB
    before; more would only be work and memory for peers that read slowly or never."""
    output_limit_bytes: int = setting(factory=lambda: share_of_memory(8, least=128 << 20), least=1 << 20, fixed=True)
    """Unsent bytes of all links together; beyond this limit, the links with the most are closed."""
    incomplete_frames_limit_bytes: int = setting(
        factory=lambda: share_of_memory(16, least=64 << 20), least=MAX_FRAME_BYTES, fixed=True
    )
    """Bytes of incomplete frames of all links together; beyond this limit, the links with the most are closed."""
    max_waiting_requests: int = setting(5_000, least=1, most=INT32_MOST, at_start=True)
    """Maximum number of requests of all links that wait in handlers; further ones are answered with SYSTEM_BUSY."""
    waiting_requests_limit_bytes: int = setting(
        factory=lambda: share_of_memory(16, least=64 << 20), least=MAX_FRAME_BYTES, fixed=True
    )
    """Bytes of waiting or running requests of all links together; beyond this limit, they are answered SYSTEM_BUSY."""

    metrics_port: int = setting(0, least=0, most=65535, fixed=True)
    """TCP port on which Prometheus reads the metrics; 0 opens none."""
    metrics_bind_address: str = setting("127.0.0.1", fixed=True, check=unusable_name)
    """The address on which ``metrics_port`` listens. Clients that reach it can read the names of topics and groups."""

    tls: TlsConfig = attrs.field(factory=TlsConfig, metadata={"triomq.skip": True})
    """The keys of RocketMQ's `tls.properties`."""
