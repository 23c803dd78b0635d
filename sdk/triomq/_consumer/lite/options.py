"""Options of lite pull consumers, in addition to those of all group members.

Upstream: the fields of ``DefaultLitePullConsumer``.
"""

from __future__ import annotations

from typing import Final

import attrs

from triomq._arguments.numbers import counts
from triomq._producer.trace import Tracer

HELD_MAX: Final = 10_000
"""The most messages fetched ahead over all queues (``pullThresholdForAll``)."""


@attrs.frozen(kw_only=True)
class LiteOptions:
    """The arguments of ``client.lite_pull_consumer`` that push consumers do not have.

    Args:
        auto_commit: whether polled messages are committed without a call of ``commit``.
        batch_max: messages per pull.
        held_max: messages fetched ahead over all queues.
        tracer: takes traces of polled messages; None: no traces.

    Raises:
        InvalidCall: an option cannot be used.
    """

    auto_commit: bool
    batch_max: int = attrs.field(validator=counts(1))
    held_max: int = attrs.field(validator=counts(1))
    tracer: Tracer | None = None
