"""Sets up the compiled module that answers plain pulls, many at once, if it is available.

It does the work of `pull.Pulling` for pulls that need nothing special, with the same answers, at a fraction of the cost.
"""

from __future__ import annotations

from triomq_protocol.names import RETRY_PREFIX
from triomq_protocol.requests.heartbeat import BROADCASTING
from triomq_protocol.requests.pull import encode_pull_answer_head
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.broker.requests.burst_access import request_access
from triomq_server.compiled import USED
from triomq_server.metrics.store_times import SLOW_S
from triomq_server.store import ReadStatus
from triomq_server.wire import WRITE_BYTES

if USED:
    from triomq_server.compiled import pulls


def compiled_pulls(broker: Broker) -> pulls.PullBursts | None:
    """The compiled way to answer a broker's pulls; None if there is none here, or it is not wanted."""
    if not USED:
        return None
    return pulls.PullBursts(
        store=broker.store,
        config=broker.config.store,
        queues=broker.store.consume_queues.table,
        topics=broker.topics.table,
        groups=broker.groups,
        clients=broker.clients,
        commit=broker.offsets.commit,
        count=broker.stats.count_get,
        clock=broker.clock,
        times=broker.store.times,
        slow_s=SLOW_S,
        requests=broker.traffic.requests,
        retry_prefix=RETRY_PREFIX,
        broadcasting=BROADCASTING,
        access=request_access(broker),
    )


def configure(bursts: pulls.PullBursts, broker: Broker, *, readable: bool) -> None:
    """Take over the broker's settings.

    Args:
        bursts: gets them.
        broker: has them.
        readable: whether pulls are answered at all.
    """
    bursts.active = readable and not broker.is_slave
    bursts.configure(_answer_end(), slave_read=broker.config.slave_read_enable, unsent_most=WRITE_BYTES)


def _answer_end() -> bytes:
    """The bytes after the opaque in an answer with messages."""
    head = encode_pull_answer_head(
        Command(0),
        0,
        ReadStatus.FOUND.name,
        suggest_which_broker_id=0,
        next_begin_offset=0,
        min_offset=0,
        max_offset=0,
        body_bytes=0,
    )
    opaque = b'"opaque":0'
    return head[head.index(opaque) + len(opaque) :]
