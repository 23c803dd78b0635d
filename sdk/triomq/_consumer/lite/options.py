"""What users set on lite pull consumers beyond what all members of a group are set.

Upstream: the fields of ``DefaultLitePullConsumer``.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from triomq.errors import InvalidCall

HELD_MAX: Final = 10_000
"""How many messages are fetched ahead over all queues (``pullThresholdForAll``)."""


def _positive(_options: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value < 1:
        raise InvalidCall(f"{attribute.name} is {value}, not at least 1")


@attrs.frozen(kw_only=True)
class LiteOptions:
    """The arguments of ``client.lite_pull_consumer`` that push consumers do not have.

    Args:
        auto_commit: whether what was polled is committed without being asked.
        batch_max: messages per pull.
        held_max: messages fetched ahead over all queues.

    Raises:
        InvalidCall: an option cannot be used.
    """

    auto_commit: bool
    batch_max: int = attrs.field(validator=_positive)
    held_max: int = attrs.field(validator=_positive)
