"""The tags that a query selects: as a set to compare rows with, and as an expression for brokers. Pure.

Brokers compare only hashes of tags, so the tags of received messages are compared again as text. Spark's filters are not
pushed down: see
:class:`~pyspark_rocketmq.read.batch_reader.BatchReader`.
"""

from __future__ import annotations

from collections.abc import Iterable

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.tags import check_tags


def tags_of(expression: str | None) -> frozenset[str] | None:
    """The tags that an option selects; None for all.

    Raises:
        ValueError: the option names no tag, or is not a list of tags.
    """
    try:
        return frozenset(check_tags(expression).tags) or None
    except LocalProtocolError as error:
        raise ValueError(str(error)) from error


def expression_for(tags: Iterable[str] | None) -> str | None:
    """The tag expression with which a broker sends these tags, and perhaps others; None if it has to send all."""
    if tags is None:
        return None
    wanted = sorted(tags)
    expression = " || ".join(wanted)
    # A tag with a separator or with blanks around it cannot be written in an expression.
    try:
        return expression if sorted(check_tags(expression).tags) == wanted else None
    except LocalProtocolError:
        return None
