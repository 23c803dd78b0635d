"""Selectors of a queue, with Java's hashes, so that Java and Python producers choose alike.

Upstream: ``SelectMessageQueueByHash``, ``SelectMessageQueueByRandom``, ``TopicPublishInfo``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from triomq._error_text import named_error, shown
from triomq._message.message import Message, MessageQueue
from triomq.errors import InvalidCall
from triomq_protocol.filters.tags import java_hash


class QueueSelector(Protocol):
    """Chooses the queue of one message; a plain function that returns soon.

    If order matters, the same arguments must give the same queue.
    """

    # Any, so that a user's function may annotate its argument: `customer: str`.
    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: Any, /) -> MessageQueue:
        """Choose a queue.

        Args:
            queues: the topic's writable queues, brokers by name, then queue ids.
            message: the message to be sent.
            arg: the argument given to ``send``.
        """


def select_by_hash(queues: Sequence[MessageQueue], _message: Message, arg: object, /) -> MessageQueue:
    """Java's ``SelectMessageQueueByHash``: equal arguments share a queue.

    Text hashes as Java's ``String``, an int as ``Integer`` if it fits into 32 bits and as ``Long`` otherwise.
    """
    return queues[abs(_java_remainder(java_hash_code(arg), len(queues)))]


def java_hash_code(arg: object) -> int:
    """``Object.hashCode`` of a text, int or bool, as a signed 32-bit number.

    Raises:
        InvalidCall: Java's hash of other types is not reproducible.
    """
    if isinstance(arg, bool):
        return 1231 if arg else 1237
    if isinstance(arg, str):
        return java_hash(arg)
    if isinstance(arg, int):
        if -(2**31) <= arg < 2**31:
            return arg
        bits = arg & (2**64 - 1)
        word = (bits ^ (bits >> 32)) & 0xFFFFFFFF
        return word - 2**32 if word >= 2**31 else word
    raise InvalidCall(f"select_by_hash takes text or an int, not {type(arg).__name__}")


def _java_remainder(value: int, count: int) -> int:
    # Java's % truncates toward zero: the sign is the dividend's.
    rest = abs(value) % count
    return -rest if value < 0 else rest


class SelectAtRandom:
    """Chooses a queue at random, all equally likely.

    Args:
        chance: the source of random choices.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance if chance is not None else random.Random()

    def __call__(self, queues: Sequence[MessageQueue], _message: Message, _arg: object, /) -> MessageQueue:
        """Choose a queue."""
        return self._chance.choice(queues)


class SelectRoundRobin:
    """Chooses one queue after the other, from a random start.

    Args:
        chance: gives the start.
    """

    def __init__(self, chance: random.Random | None = None) -> None:
        self._next = (chance if chance is not None else random.Random()).randrange(2**31)

    def __call__(self, queues: Sequence[MessageQueue], _message: Message, _arg: object, /) -> MessageQueue:
        """Choose a queue."""
        self._next = (self._next + 1) & 0x7FFFFFFF
        return queues[self._next % len(queues)]


def check_choice(queue: MessageQueue | None, selector: QueueSelector | None, arg: object) -> None:
    """Raise :class:`InvalidCall` unless the arguments of a send determine its queue by a single rule."""
    if queue is not None and selector is not None:
        raise InvalidCall("give either queue= or selector=, not both")
    if arg is None or selector is not None:
        return
    if queue is not None:
        raise InvalidCall(
            f"arg is {arg!r:.100}, and queue= names the queue already; give either queue= or selector= and arg="
        )
    raise InvalidCall(
        f"arg is {arg!r:.100}, and without selector= nothing chooses the queue by it, so messages with the same arg would "
        "go to different queues; give selector=triomq.plugins.select_by_hash too, or leave arg out"
    )


def choose_by_selector(
    selector: QueueSelector, queues: Sequence[MessageQueue], message: Message, arg: object
) -> MessageQueue:
    """Ask a selector and check its answer.

    Raises:
        InvalidCall: it raised, or its answer is not one of the queues.
    """
    try:
        chosen = selector(queues, message, arg)
    except Exception as error:
        raise InvalidCall(f"the queue selector failed: {named_error(error)}") from error
    if chosen not in queues:
        raise InvalidCall(
            f"the queue selector chose {shown(chosen)}, which is none of the topic's {len(queues)} queues"
        )
    return chosen
