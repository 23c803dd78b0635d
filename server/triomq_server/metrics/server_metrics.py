"""Metrics that every server has: its process, its connections, its memory budgets, its errors."""

from __future__ import annotations

import resource
import time
from typing import Final, Protocol

from triomq_server.metrics.histogram import Histogram
from triomq_server.metrics.text import Family, TextWriter


class CountedBudget(Protocol):
    """A memory budget with the figures shown in metrics."""

    held_bytes: int
    limit_bytes: int
    closed: int


class CountedTraffic(Protocol):
    """The figures of all of a server's listeners."""

    receive_times: Histogram
    refused: int

    @property
    def requests(self) -> dict[int, int]:
        """Number of requests, by request code."""

    @property
    def errors(self) -> dict[tuple[int, int], int]:
        """Number of error answers, by request code and response code."""

    @property
    def links(self) -> int:
        """Number of open links."""

    @property
    def waiting_requests(self) -> int:
        """Number of requests that wait in handlers."""


CPU: Final = Family("process_cpu_seconds_total", "counter", "CPU time of the process, user and system.")
MEMORY: Final = Family("process_resident_memory_bytes", "gauge", "Memory of the process, files that it maps included.")
CONNECTIONS: Final = Family("triomq_connections", "gauge", "Open connections of clients and brokers.")
REFUSED: Final = Family(
    "triomq_connections_refused_total", "counter", "Connections refused or closed because of maxConnections."
)
WAITING: Final = Family("triomq_waiting_requests", "gauge", "Requests that wait in handlers.")
RECEIVES: Final = Family(
    "triomq_receive_duration_seconds",
    "histogram",
    "Time for all requests that were received together, answers included.",
)
REQUESTS: Final = Family(
    "triomq_requests_total", "counter", "Requests that came, by request code (-1: unknown).", ("request",)
)
ERRORS: Final = Family(
    "triomq_errors_total",
    "counter",
    "Answers with an error, by request code (-1: unknown) and code.",
    ("request", "code"),
)
HELD: Final = Family("triomq_memory_held_bytes", "gauge", "Bytes that connections hold.", ("budget",))
LIMIT: Final = Family("triomq_memory_limit_bytes", "gauge", "Limit of the bytes that connections hold.", ("budget",))
CLOSED: Final = Family(
    "triomq_memory_closed_connections_total", "counter", "Connections closed to keep to the limit.", ("budget",)
)


def write_server(writer: TextWriter, traffic: CountedTraffic, budgets: dict[str, CountedBudget]) -> None:
    """Write the metrics that every server has; takes some 100 microseconds."""
    writer.value(CPU, time.process_time())
    writer.value(MEMORY, _resident_bytes())
    writer.value(CONNECTIONS, traffic.links)
    writer.value(REFUSED, traffic.refused)
    writer.value(WAITING, traffic.waiting_requests)
    writer.histogram(RECEIVES, traffic.receive_times)
    writer.few(REQUESTS, [((str(request),), n) for request, n in sorted(traffic.requests.items())])
    writer.few(ERRORS, [((str(request), str(code)), n) for (request, code), n in sorted(traffic.errors.items())])
    writer.few(HELD, [((name,), budget.held_bytes) for name, budget in budgets.items()])
    writer.few(LIMIT, [((name,), budget.limit_bytes) for name, budget in budgets.items()])
    writer.few(CLOSED, [((name,), budget.closed) for name, budget in budgets.items()])


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0  # a system without /proc
