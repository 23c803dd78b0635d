"""What a client holds, at one moment: values for metrics and for debugging."""

from __future__ import annotations

import attrs


@attrs.frozen
class LinkStatistics:
    """One link, at one moment.

    Args:
        address: the peer.
        pending: requests that wait for an answer.
        unsent_bytes: bytes that wait for the kernel.
    """

    address: str
    pending: int
    unsent_bytes: int


@attrs.frozen
class ClientStatistics:
    """What a client holds, at one moment; every figure has a limit in :class:`ClientOptions` or the producer's.

    Args:
        links: the open links.
        topics: topics whose routes are kept.
        callbacks: producer group -> sends whose callback has not ended.
        positions: consumer group -> queues with a position.
    """

    links: tuple[LinkStatistics, ...]
    topics: int
    callbacks: dict[str, int]
    positions: dict[str, int]
