"""Points of growth: a new broker with more and more of one thing, and its cost of a send, of idling and of a start.

The cost of a send is the broker's CPU time divided by the messages, so that it does not depend on the client. The growing
part is idle: links that send nothing, queues without messages, groups without members, old files of the log.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from triomq_benchmarks.clusters.cluster import SingleBroker, open_single_broker
from triomq_benchmarks.clusters.server_state import ask_blocking
from triomq_benchmarks.clusters.servers import Kind
from triomq_benchmarks.drivers.prepared_frames import send_all, send_frames
from triomq_benchmarks.growth.stores import QUEUES, write_groups, write_log, write_topics
from triomq_protocol.codes import RequestCode

Progress = Callable[[str], None]
TOPIC = "bench"
IN_FLIGHT = 64
BODY_BYTES = 1024
IDLE_S = 2.0
QUIET_AFTER_S = 1.0
"""Pause after a load, or after new links, before idling is measured."""
BYTES_MOST = 96 << 20


@attrs.frozen
class Term:
    """A quantity that grows.

    Attributes:
        name: its name, also on the command line.
        counts: the numbers to measure; the first is the base.
        quick_counts: the same for a quick run.
    """

    name: str
    counts: tuple[int, ...]
    quick_counts: tuple[int, ...]


TERMS = (
    Term("links", (0, 500, 5000), (0, 200)),
    Term("topics", (0, 1000, 10_000), (0, 500)),
    Term("groups", (0, 100, 1000), (0, 100)),
    Term("log-gib", (0, 10, 50), (0, 2)),
    Term("body-bytes", (128, 1024, 16_384, 262_144, 4 << 20), (128, 16_384)),
)


@attrs.frozen
class Point:
    """The figures of one broker with a given number of something.

    Attributes:
        term: the quantity that grows.
        count: the number.
        send_us: the broker's CPU time per send of 1 KiB (for `body-bytes`: of that size), microseconds.
        idle_ms: its CPU time per second without any load, milliseconds.
        memory_bytes: its own memory before the load, without mapped files.
        each_bytes: additional memory per item compared with the first point; None for that point, and if it has no
            meaning.
        start_s: from the start of the process to its first answer, with a store that another start has seen.
    """

    term: str
    count: int
    send_us: float
    idle_ms: float
    memory_bytes: int
    each_bytes: float | None
    start_s: float


def raise_descriptor_limit() -> int:
    """Raise the descriptor limit to the maximum for this process and its children; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def _idle_links(address: str, count: int) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        for number in range(count):
            stack.enter_context(socket.create_connection((host, int(port)), 30))
            if number % 100 == 99:
                # The broker has accepted what it answers behind; its backlog is shorter than all the links.
                ask_blocking(address, RequestCode.GET_BROKER_CONFIG)
        yield


def _prepare(term: str, count: int, home: Path) -> None:
    if term == "topics":
        write_topics(home, count)
    elif term == "groups":
        write_groups(home, TOPIC, count)
    elif term == "log-gib":
        write_log(home, TOPIC, count)


def _idle_ms(on: SingleBroker) -> float:
    before, began = on.broker.cpu_s(), time.perf_counter()
    time.sleep(IDLE_S)
    return (on.broker.cpu_s() - before) / (time.perf_counter() - began) * 1000


def _send_us(on: SingleBroker, body_bytes: int, messages: int) -> float:
    count = max(IN_FLIGHT, min(messages, BYTES_MOST // body_bytes))
    in_flight = max(1, min(IN_FLIGHT, (1 << 20) // body_bytes))
    frames = send_frames(TOPIC, body_bytes, min(count, 1000), queues=QUEUES)
    best = float("inf")
    for _ in range(3):
        before, sent = on.broker.cpu_s(), 0
        while sent < count:
            sent += send_all(on.broker.address, frames, in_flight).messages
        best = min(best, (on.broker.cpu_s() - before) / sent * 1e6)
    return best


def measure_point(term: str, count: int, home: Path, messages: int, base: Point | None) -> Point:
    """Start a broker with a given number of something, measure it, and stop it.

    Args:
        term: the quantity that grows.
        count: the number.
        home: an empty folder.
        messages: sends of one sample, of which the cheapest of three counts.
        base: the first point of the term.

    Raises:
        OSError: the machine has too few descriptors, ports or memory.
    """
    _prepare(term, count, home)
    with open_single_broker(Kind.OURS, home) as on:
        on.ensure_topic(TOPIC, QUEUES)
    # The second start, because the first has to make tables and queues from the files.
    with open_single_broker(Kind.OURS, home) as on:
        start_s = on.broker.first_answer_s
        with _idle_links(on.broker.address, count if term == "links" else 0):
            time.sleep(QUIET_AFTER_S)
            memory = on.broker.memory().own_bytes
            idle_ms = _idle_ms(on)
            send_us = _send_us(on, count if term == "body-bytes" else BODY_BYTES, messages)
    each = None
    if base is not None and term != "body-bytes":
        each = (memory - base.memory_bytes) / (count - base.count)
    return Point(term, count, send_us, idle_ms, memory, each, start_s)


def measure_growth(terms: list[Term], home: Path, *, messages: int, quick: bool, progress: Progress) -> Iterator[Point]:
    """Measure all points of the terms, each on a separate broker."""
    raise_descriptor_limit()
    for term in terms:
        base: Point | None = None
        for count in term.quick_counts if quick else term.counts:
            progress(f"{term.name}: {count:,}")
            point = measure_point(term.name, count, home / f"{term.name}-{count}", messages, base)
            base = base or point
            yield point
