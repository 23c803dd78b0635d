"""The metrics of a name server, as served on `metricsPort`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from triomq_server.metrics.server_metrics import write_server
from triomq_server.metrics.text import Family, TextWriter
from triomq_server.namesrv.routes import RouteTable
from triomq_server.wire import Limits

BROKERS: Final = Family("triomq_namesrv_brokers", "gauge", "Brokers that are registered.")
BROKER_SETS: Final = Family("triomq_namesrv_broker_sets", "gauge", "Names of brokers that are registered.")
TOPICS: Final = Family("triomq_namesrv_topics", "gauge", "Topics with a route.")


def write_metrics(routes: RouteTable, limits: Limits, writer: TextWriter) -> Iterator[None]:
    """Write all metrics."""
    write_server(writer, limits.traffic, {"unsent_answers": limits.unsent, "incomplete_frames": limits.incomplete})
    brokers, sets, topics = routes.sizes()
    writer.value(BROKERS, brokers)
    writer.value(BROKER_SETS, sets)
    writer.value(TOPICS, topics)
    yield
