"""Offsets in the form of options and checkpoints: `{"topic": {"broker": {"queue id": offset}}}`. Pure.

The older rocketmq-spark connector uses the same form; -2 means the earliest offset and -1 the latest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from pyspark_rocketmq.errors import BadOption
from pyspark_rocketmq.times import TIME_FORM, time_ms_of
from triomq._companions import OFFSET_MAX

EARLIEST: Final = -2
LATEST: Final = -1
COMMITTED: Final = -3
"""The group's committed offset; an extension that is never written as JSON."""

NEW_FROM: Final = "new queues from"
"""In a stream's offsets, next to the topics: the starts of queues that the previous trigger did not know, if not 0. No
topic has this name, since names contain no blank."""

_QUEUE_NUMBER: Final = re.compile("0|[1-9][0-9]{0,9}")

OffsetTree: TypeAlias = dict[str, dict[str, dict[str, int]]]
"""Topic -> broker name -> queue id as text -> offset."""


@attrs.frozen(order=True)
class QueueId:
    """One queue; sorts by topic, broker, id.

    Args:
        topic: its topic.
        broker_name: its broker.
        queue_id: its number there.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic} at {self.broker_name}"


Offsets: TypeAlias = dict[QueueId, int]


def tree_of(offsets: Mapping[QueueId, int]) -> OffsetTree:
    """The nested form of offsets, sorted, so that equal offsets are equal as text."""
    tree: OffsetTree = {}
    for queue in sorted(offsets):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return tree


def offsets_of(tree: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """The flat form of a nested one created by :func:`tree_of`; starts of new queues are left out."""
    return {
        QueueId(topic, broker, int(queue_id)): offset
        for topic, brokers in tree.items()
        if topic != NEW_FROM
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def with_new_from(tree: OffsetTree, starts: Mapping[QueueId, int]) -> dict[str, Any]:
    """A nested form with the starts of new queues added; those that start at 0 are not named."""
    later = {queue: start for queue, start in starts.items() if start}
    return {**tree, NEW_FROM: tree_of(later)} if later else {**tree}


def parse_offsets(option: str, text: str) -> Offsets:
    """Parse offsets as a user wrote them.

    Args:
        option: the option's name, for errors.
        text: JSON.

    Raises:
        BadOption: it does not have the form above; the error states where.
    """

    def check(queue: QueueId, offset: object) -> int:
        if type(offset) is not int or not EARLIEST <= offset <= OFFSET_MAX:
            raise BadOption(
                f"{option}: the offset of {_place_of(queue)} is {json.dumps(offset)}, and must be a whole number from 0 "
                f"on, {EARLIEST} for the earliest or {LATEST} for the latest"
            )
        return offset

    return _parse_queues(option, text, '{"topic": {"broker-a": {"0": 123, "1": -1}}}', check)


def parse_times(option: str, text: str) -> dict[QueueId, int]:
    """Parse times of single queues, in ms since 1970: JSON as for :func:`parse_offsets`, with times for offsets.

    Raises:
        BadOption: it does not have this form; the error states where.
    """

    def check(queue: QueueId, time: object) -> int:
        if type(time) is not int and not isinstance(time, str):
            raise BadOption(f"{option}: the time of {_place_of(queue)} is {json.dumps(time)}; the form is {TIME_FORM}")
        try:
            return time_ms_of(str(time))
        except ValueError as error:
            raise BadOption(f"{option}: the time of {_place_of(queue)} is {json.dumps(time)}, {error}") from None

    return _parse_queues(option, text, '{"topic": {"broker-a": {"0": 1700000000000}}}', check)


def _place_of(queue: QueueId) -> str:
    return f"queue '{queue.queue_id}' of broker {queue.broker_name!r} of topic {queue.topic!r}"


def _parse_queues(option: str, text: str, form: str, check: Callable[[QueueId, object], int]) -> dict[QueueId, int]:
    tree = _json_of(option, "neither a known value nor JSON", text, form)
    found: dict[QueueId, int] = {}
    for topic, brokers in _items(tree, option, "the whole", form):
        for broker, queues in _items(brokers, option, f"topic {topic!r}", form):
            for queue_id, value in _items(queues, option, f"broker {broker!r} of topic {topic!r}", form):
                if not _QUEUE_NUMBER.fullmatch(queue_id):
                    raise BadOption(
                        f"{option}: the queue id {queue_id[:20]!r} is not a number such as 0 or 12; the form is {form}"
                    )
                queue = QueueId(topic, broker, int(queue_id))
                found[queue] = check(queue, value)
    if not found:
        raise BadOption(f"{option} names no queue; the form is {form}")
    return found


def parse_assignment(text: str) -> frozenset[QueueId]:
    """Parse the queues of the option `assign`, `{"topic": {"broker-a": [0, 1]}}`.

    Raises:
        BadOption: it does not have this form.
    """
    form = '{"topic": {"broker-a": [0, 1]}}'
    tree = _json_of("assign", "not JSON", text, form)
    queues: set[QueueId] = set()
    for topic, brokers in _items(tree, "assign", "the whole", form):
        for broker, ids in _items(brokers, "assign", f"topic {topic!r}", form):
            if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
                raise BadOption(
                    f"assign: broker {broker!r} of topic {topic!r} needs a list of queue ids; the form is {form}"
                )
            queues.update(QueueId(topic, broker, each) for each in ids)
    if not queues:
        raise BadOption(f"assign names no queue; the form is {form}")
    return frozenset(queues)


def _json_of(option: str, what: str, text: str, form: str) -> object:
    """Parse an option's value as JSON; `what` describes a value that is not JSON."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise BadOption(f"{option} names {twice!r} twice; name it once")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except BadOption:
        raise
    except (ValueError, RecursionError) as error:
        # The text may have any length.
        raise BadOption(f"{option} is {what} ({error}): {text[:200]!r}; the form is {form}") from None


def _items(value: object, option: str, place: str, form: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        raise BadOption(f"{option}: {place} is {json.dumps(value)}, not an object in braces; the form is {form}")
    return value.items()
