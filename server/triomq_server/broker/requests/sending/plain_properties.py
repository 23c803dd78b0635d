"""A cache of the stored properties of plain messages: most messages of a producer differ only in their unique key.

The text around the unique key is cached together with its stored form, so that a property string seen before is neither
parsed nor encoded again. All other properties are handled by `rewriting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from triomq_protocol.java_text import utf8
from triomq_protocol.names import KEYS, TAGS, UNIQ_KEY, WAIT
from triomq_protocol.properties import broker_properties

MARK = f"{UNIQ_KEY}\x01"
MARK_CHARACTERS = len(MARK)
KEY_CHARACTERS = 32
"""Length of a unique id made on an IPv4 host."""
_SHAPES_MAX = 1024
_SHAPE_CHARACTERS_MAX = 512


class Shape(NamedTuple):
    """The contents of a property string apart from its unique key.

    Attributes:
        before, after: the bytes stored around the unique key.
        tags: TAGS.
        wait: WAIT.
    """

    before: bytes
    after: bytes
    tags: str | None
    wait: str | None


class PlainProperties:
    """The property strings seen so far, without their unique keys.

    The hot path reads `shapes` directly. Its keys are the string up to and including `MARK`, and the rest after the next
    `KEY_CHARACTERS`; the characters between must be letters and digits.

    Args:
        cluster: the value of CLUSTER.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self.shapes: dict[str, Shape] = {}

    def learn(self, text: str, values: Mapping[str, str]) -> None:
        """Remember the shape of a plain message's property string, if it has one; `values` are its properties.

        Strings with KEYS have none: keys mostly differ from message to message.
        """
        if KEYS in values or len(text) > _SHAPE_CHARACTERS_MAX:
            return
        at = text.find(MARK) + MARK_CHARACTERS
        unique_key = text[at : at + KEY_CHARACTERS]
        if (
            values.get(UNIQ_KEY) != unique_key
            or len(unique_key) != KEY_CHARACTERS
            or not (unique_key.isascii() and unique_key.isalnum())
            or text.count(MARK) != 1
        ):
            return
        before, _, after = broker_properties(text, self._cluster, values).partition(MARK + unique_key)
        if len(self.shapes) >= _SHAPES_MAX:
            self.shapes.clear()
        self.shapes[text[:at] + text[at + KEY_CHARACTERS :]] = Shape(
            utf8(before + MARK), utf8(after), values.get(TAGS), values.get(WAIT)
        )
