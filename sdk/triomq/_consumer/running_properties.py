"""The properties that operators see of push, lite pull and pull consumers (docs/protocol/consumer.md §14.2).

Upstream: ``ConsumerRunningInfo``.
"""

from __future__ import annotations


def consumer_properties(
    consume_type: str, *, ordered: bool = False, threads: int = 0, started_ms: int | None = None
) -> dict[str, str]:
    """The properties of a consumer that operators' commands need (docs/protocol/consumer.md §14.2).

    Args:
        consume_type: ``CONSUME_ACTIVELY`` or ``CONSUME_PASSIVELY``.
        ordered: whether one message of a queue is handled at a time.
        threads: the most handlers that may run.
        started_ms: when it started, in ms since 1970; None: when its client started.
    """
    found = {
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_CONSUMEORDERLY": str(ordered).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(threads),
    }
    if started_ms is not None:
        found["PROP_CONSUMER_START_TIMESTAMP"] = str(started_ms)
    return found
