"""Counters of all links of a server, over all its listeners: open connections, times, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Protocol

from triomq_protocol.codes import ResponseCode
from triomq_server.metrics.histogram import Histogram

OTHER_CODE = -1
"""Counts all response codes that RocketMQ does not have."""

_KNOWN = frozenset(ResponseCode)


class LinkHolder(Protocol):
    """A hub, as `Traffic` knows it."""

    waiting_requests: int

    @property
    def links(self) -> Sized:
        """Those that are open."""


class Traffic:
    """Figures of all listeners of a server.

    Attributes:
        hubs: the hubs that serve now.
        receive_times: time taken by the handlers of requests that were received together, including their answers.
        requests: number of requests by code; unknown codes count as -1.
        errors: answers with a code other than 0, by request code and answer code. Unknown codes count as -1, also of
            answers: brokers pass on the code that a client answers (307, 309), which may be any number.
        refused: connections refused, or closed in favour of other hosts, because of `Limits.connections`.
    """

    def __init__(self) -> None:
        self.hubs: list[LinkHolder] = []
        self.receive_times = Histogram()
        self.requests: Counter[int] = Counter()
        self.errors: Counter[tuple[int, int]] = Counter()
        self.refused = 0

    @property
    def links(self) -> int:
        """How many are open."""
        return sum(len(hub.links) for hub in self.hubs)

    @property
    def waiting_requests(self) -> int:
        """How many wait in handlers."""
        return sum(hub.waiting_requests for hub in self.hubs)

    def count_error(self, request_code: int, code: int, *, known: bool = True) -> None:
        """A request is answered with an error."""
        self.errors[request_code if known else -1, code if code in _KNOWN else OTHER_CODE] += 1
