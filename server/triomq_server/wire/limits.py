"""The limits of a set of links, every one with a name in the configuration."""

from __future__ import annotations

import attrs

from triomq_protocol.wire.frame import MAX_FRAME_BYTES


@attrs.frozen
class Limits:
    """What one server allows.

    Attributes:
        idle_s: a link on which no byte moves for so long is closed (``serverChannelMaxIdleTimeSeconds``).
        frame_bytes: the largest incoming frame, its length field included.
        output_bytes: unsent bytes of a link above which it is not read from (``linkOutputLimitBytes``).
        connections: accepted links at one time (``maxConnections``).
        waiting_requests: requests of all links that may wait in handlers (``maxWaitingRequests``).
        grace_s: how long a stopping server waits for handlers that wait, and for unsent answers.
    """

    idle_s: float = 120.0
    frame_bytes: int = MAX_FRAME_BYTES
    output_bytes: int = 16_777_216
    connections: int = 10_000
    waiting_requests: int = 10_000
    grace_s: float = 1.0
