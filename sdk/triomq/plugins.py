"""Plug points: the protocol of each, the values it is called with, and the implementations that come with the client.

Each plug point is a small protocol; an object with the same methods is enough, no base class is needed.  The
classes that programs use every day are in :mod:`triomq`.
"""

# Sorted by plug point and by hand; this module only re-exports.
# ruff: noqa: I001, RUF022

# Name servers, the first argument of open_client
from triomq._cluster.name_servers import (
    NameServers,
    NameServerProvider,
    StaticNameServers,
    CallableNameServers,
    DnsNameServers,
    HttpNameServers,
)

# Connections, open_client's `dial`
from triomq._transport.dialing import Dialer, NowaitStream, dial_tcp, tls_dialer

# The queue of a message, send's `selector`
from triomq._producer.strategies.queue_selectors import QueueSelector, SelectAtRandom, SelectRoundRobin, select_by_hash

# Further attempts of a send, and the brokers that they avoid: a producer's `retry` and `faults`
from triomq._producer.strategies.retry import RetryPolicy, Retries
from triomq._producer.strategies.faults import FaultStrategy, LatencyFaults

# Compression of bodies, a producer's `compressor`
from triomq._message.compression import Compressor, ZlibCompressor, Lz4Compressor, ZstdCompressor

# The shares of a group's members, a consumer's `allocate`
from triomq._consumer.group.allocate import (
    AllocateStrategy,
    Average,
    AverageByCircle,
    ByConfig,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Sticky,
)

# Committed offsets, a consumer's `offset_store`
from triomq._consumer.offset_store import OffsetStore
from triomq._consumer.offset_files import FileOffsets

# Filters that run in a filter server, an argument of subscribe
from triomq._message.subscription import ClassFilter

# What a client counts, for metrics: open_client's `statistics_sink`
from triomq._cluster.client_statistics import StatisticsSink

# Hooks around sends, pulls and handlers: a producer's `hooks`, a consumer's `pull_hooks`, `filter_hooks`, `consume_hooks`
from triomq._message.hooks import (
    SendHook,
    SendContext,
    PullHook,
    PullContext,
    FilterHook,
    ConsumeHook,
    ConsumeWrapper,
    ConsumeContext,
    ProcessHooks,
    process_hooks,
)

__all__ = [
    "NameServers",
    "NameServerProvider",
    "StaticNameServers",
    "CallableNameServers",
    "DnsNameServers",
    "HttpNameServers",
    "Dialer",
    "NowaitStream",
    "dial_tcp",
    "tls_dialer",
    "QueueSelector",
    "SelectAtRandom",
    "SelectRoundRobin",
    "select_by_hash",
    "RetryPolicy",
    "Retries",
    "FaultStrategy",
    "LatencyFaults",
    "Compressor",
    "ZlibCompressor",
    "Lz4Compressor",
    "ZstdCompressor",
    "AllocateStrategy",
    "Average",
    "AverageByCircle",
    "ByConfig",
    "ConsistentHash",
    "MachineRoom",
    "MachineRoomNearby",
    "Sticky",
    "OffsetStore",
    "FileOffsets",
    "ClassFilter",
    "StatisticsSink",
    "SendHook",
    "SendContext",
    "PullHook",
    "PullContext",
    "FilterHook",
    "ConsumeHook",
    "ConsumeWrapper",
    "ConsumeContext",
    "ProcessHooks",
    "process_hooks",
]
