"""Sets up the compiled module that handles plain sends, many at once, if it is available.

It does the work of `send.Sending` for messages that need nothing special, with the same bytes on disk and the same
answers, at a fraction of the cost.
"""

from __future__ import annotations

from functools import partial

from triomq_protocol.checksum import raw_crc32
from triomq_protocol.names import FORBIDDEN_TOPICS, RETRY_PREFIX
from triomq_protocol.requests.registration import TopicConfig
from triomq_protocol.wire.frame import MAX_FRAME_BYTES
from triomq_server.broker.broker import Broker
from triomq_server.broker.refusals import RefusedError
from triomq_server.broker.requests.burst_access import request_access
from triomq_server.broker.requests.sending.answers import SendCompletion
from triomq_server.broker.requests.sending.rewriting import batch_properties
from triomq_server.compiled import USED
from triomq_server.store import Arrival

if USED:
    from triomq_server.compiled import sends

_HOST_BYTES = 8


def is_plain_topic(name: str, config: TopicConfig) -> bool:
    """Whether messages sent to a topic are stored as they are."""
    return (
        config.topic_filter_type == "SINGLE_TAG" and name not in FORBIDDEN_TOPICS and not name.startswith(RETRY_PREFIX)
    )


def compiled_sends(broker: Broker, completion: SendCompletion) -> sends.SendBursts | None:
    """The compiled way to store a broker's messages; None if there is none here, or it is not wanted."""
    if not USED:
        return None
    return sends.SendBursts(
        store=broker.store,
        topics=broker.topics.table,
        queues=broker.store.consume_queues.table,
        is_plain_topic=is_plain_topic,
        count=broker.stats.count_put,
        requests=broker.traffic.requests,
        checksum=raw_crc32,
        arrival=Arrival,
        batch_properties=partial(_batch_properties, broker),
        hold=completion.hold,
        access=request_access(broker),
    )


def configure(bursts: sends.SendBursts, broker: Broker, completion: SendCompletion, *, restricted: bool) -> None:
    """Take over the broker's settings.

    Args:
        bursts: gets them.
        broker: has them.
        completion: writes and holds the answers of sends.
        restricted: not every send is accepted now.
    """
    cluster = broker.config.broker_cluster_name
    bursts.active = not restricted and cluster.isascii() and len(broker.store_host) == _HOST_BYTES
    bursts.waits = completion.waits
    if bursts.active:
        bursts.configure(
            cluster.encode(),
            completion.answers.json_middle,
            completion.answers.json_end,
            broker.store_host,
            body_most=broker.config.store.max_message_size,
            frame_most=MAX_FRAME_BYTES,
        )


def _batch_properties(broker: Broker, text: str) -> bytes | None:
    try:
        return batch_properties(text, broker.config.broker_cluster_name)
    except RefusedError:
        return None  # the handler answers
