"""The limits of a set of links, every one with a name in the configuration."""

from __future__ import annotations

import msgspec

from triomq_protocol.wire.frame import MAX_FRAME_BYTES
from triomq_server.wire.limits.budget import Budget, WaitingBytes
from triomq_server.wire.limits.traffic import Traffic


class Limits(msgspec.Struct, frozen=True):
    """What one server allows.

    Attributes:
        idle_s: a link on which no byte moves for so long is closed (``serverChannelMaxIdleTimeSeconds``).
        frame_bytes: the largest incoming frame, its length field included.
        header_bytes: the longest header of an incoming frame. A send's has at most 32 KiB of properties.
        output_bytes: unsent bytes of a link above which it is not read from (``linkOutputLimitBytes``).
        connections: accepted links at one time (``maxConnections``).
        waiting_requests: requests of all links that may wait in handlers (``maxWaitingRequests``).
        waiting: bytes of such requests, and of those worked on in slices, of all links (``waitingRequestsLimitBytes``).
        incomplete: bytes of incomplete frames of all links (``incompleteFramesLimitBytes``).
        unsent: bytes of answers that peers do not take, of all links (``outputLimitBytes``).
        traffic: what the links count.
        grace_s: how long a stopping server waits for handlers that wait, and for unsent answers.
    """

    idle_s: float = 120.0
    frame_bytes: int = MAX_FRAME_BYTES
    header_bytes: int = 262_144
    output_bytes: int = 16_777_216
    connections: int = 10_000
    waiting_requests: int = 5_000
    waiting: WaitingBytes = msgspec.field(default_factory=WaitingBytes)
    incomplete: Budget = msgspec.field(default_factory=Budget)
    unsent: Budget = msgspec.field(default_factory=Budget)
    traffic: Traffic = msgspec.field(default_factory=Traffic)
    grace_s: float = 1.0


def incomplete_budget(limit_bytes: int) -> Budget:
    """For ``Limits.incomplete``; one for all listeners of a process."""
    return Budget("incomplete frames", "incompleteFramesLimitBytes", limit_bytes)


def unsent_budget(limit_bytes: int) -> Budget:
    """For ``Limits.unsent``; one for all listeners of a process."""
    return Budget("answers that are not taken", "outputLimitBytes", limit_bytes)
