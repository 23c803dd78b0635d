"""The fast path of plain sends that join an open batch.

Such a send has no object for its attempts (`callbacks.py`); `merging.py` makes one only when its batch fails, is refused
or given up. `compiled/sends.pyx` does the same in C; if it was built, this module is unused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from triomq._producer.batches import ELEMENT_BYTES
from triomq_protocol.record.batch import encode_batch_element


class Window:
    """Counts the sends with a callback that are in flight, and limits them.

    Args:
        max_count: the most sends in flight.
        max_bytes: the most bytes of their bodies together; a larger body is accepted if it is the only one.

    Attributes:
        count: sends in flight, and running async callbacks.
        size_bytes: the sum of their bodies.
    """

    __slots__ = ("count", "max_bytes", "max_count", "size_bytes")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.count = 0
        self.size_bytes = 0

    def has(self, size_bytes: int) -> bool:
        """Whether a body of this size can be accepted now."""
        return self.count < self.max_count and (self.size_bytes + size_bytes <= self.max_bytes or not self.count)

    def take(self, size_bytes: int) -> None:
        """Count one more send."""
        self.count += 1
        self.size_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Count one send less."""
        self.count -= 1
        self.size_bytes -= size_bytes


class PlainSend:
    """A send that needs nothing but a place in a batch.

    Attributes:
        message: the message.
        callback: with the methods of a `SendCallback`.
        properties: as they were written; None if they can be derived again from the message, which cannot change.
        unique_key: the id users see.
        started: when it was accepted, on trio's clock.
    """

    __slots__ = ("callback", "message", "properties", "started", "unique_key")

    def __init__(self, message: Any, callback: Any, properties: bytes | None, unique_key: str, started: float) -> None:
        self.message = message
        self.callback = callback
        self.properties = properties
        self.unique_key = unique_key
        self.started = started


class OpenBatch:
    """Messages to one queue that share a request, from the first one until each has ended.

    Args:
        window: counts its plain sends.
        pinned: the queue that its messages must go to, if they must.
        target: the queue that they are sent to.
        link: the link to its broker.
        deadline: of the answer, on trio's clock.
        due: the latest time to write it, on trio's clock.
        wait_store_ok: the same for all its messages.

    Attributes:
        sends: `CallbackSend` and `PlainSend`, in order. The first one is not plain.
        opaque: the number of its request; negative until that is written.
        size_bytes: the size of the elements.
        plain_count: the number of plain sends.
        plain_body_bytes: the sum of their bodies.
        ended: the number of sends that have received their result, in order, or have been taken out.
    """

    __slots__ = (
        "_parts", "_window", "deadline", "due", "ended", "link", "opaque", "pinned", "plain_body_bytes", "plain_count",
        "sends", "size_bytes", "target", "wait_store_ok",
    )  # fmt: skip

    def __init__(
        self, window: Window, pinned: Any, target: Any, link: Any, deadline: float, due: float, wait_store_ok: bool
    ) -> None:
        self._window = window
        self._parts: list[bytes] = []
        self.pinned = pinned
        self.target = target
        self.link = link
        self.deadline = deadline
        self.due = due
        self.wait_store_ok = wait_store_ok
        self.sends: list[Any] = []
        self.opaque = -1
        self.size_bytes = self.plain_count = self.plain_body_bytes = self.ended = 0

    def add(self, send: Any, element: bytes) -> None:
        """Add a send and its element."""
        self.sends.append(send)
        self._parts.append(element)
        self.size_bytes += len(element)

    def elements(self) -> bytes:
        """The body of the request; to be called once."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def rest(self) -> list[Any]:
        """The sends that have not ended; from now on they are the caller's."""
        sends = self.sends[self.ended :]
        self.ended = len(self.sends)
        return sends

    def end(
        self,
        whole: Any,
        offset_message_ids: Sequence[str],
        failed: Callable[[PlainSend, Exception], None],
        later: Callable[[PlainSend, Any], None],
    ) -> None:
        """Give each send its result.

        Args:
            whole: the `SendResult` of the request; its queue offset is the first message's, and the others follow.
            offset_message_ids: one for each send.
            failed: called with an exception of a callback.
            later: called with the value that a callback has returned.
        """
        sends, window, make = self.sends, self._window, type(whole)
        status, queue, queue_offset = whole.status, whole.queue, whole.queue_offset
        shared = whole.transaction_id, whole.region_id, whole.trace_on
        # A callback may give up its producer, which takes the rest.
        while (number := self.ended) < len(sends):
            self.ended = number + 1
            send = sends[number]
            plain = type(send) is PlainSend
            unique_key = send.unique_key if plain else send.out.unique_key
            result = make(status, unique_key, offset_message_ids[number], queue, queue_offset + number, *shared)
            if not plain:
                send.outcome = result
                send.ended()
                continue
            window.give(len(send.message.body))
            try:
                found = send.callback.on_success(result)
            except Exception as error:  # noqa: BLE001 - a user's; it is logged with its traceback
                failed(send, error)
                continue
            if found is not None:
                later(send, found)


def lone_frame(
    parts: tuple[bytes, ...],  # noqa: ARG001
    message: Any,  # noqa: ARG001
    unique_key: str,  # noqa: ARG001
    born_ms: int,  # noqa: ARG001
    opaque: int,  # noqa: ARG001
) -> bytes | None:
    """The request of a single message: the bytes of `SendTemplate.encode`. None: that must encode it.

    Args:
        parts: those of the queue's template.
        message: a `Message` without flag whose body is sent as it is.
        unique_key: its id.
        born_ms: when it was created, in ms since 1970.
        opaque: the request's number.
    """
    return None


class Joins:
    """The open batches of one producer, and the plain sends that join them.

    Args:
        window: the producer's window.
        message_type: the class of messages; messages of subclasses are not plain.
        callback_of: turns a callback into an object with methods, or raises.
        properties_of: checks a message, and encodes its properties with the given unique key. None: it cannot be in a
            batch.
        reserve_keys: reserves a number of unique keys: all but the digits of the first one, and these as a number.
        now: trio's clock.
        body_bytes_max: the largest body of a plain send.
        message_bytes_max: the largest body plus properties of a message in a batch.
        batch_bytes_max: the most bytes of a batch's elements.
        messages_max: the most messages of a batch.
        adds_properties: whether `properties_of` adds any to a message's own.

    Attributes:
        open: topic and queue, or None for any queue -> the batch.
    """

    __slots__ = (
        "_batch_bytes_max", "_body_bytes_max", "_callback_of", "_key_number", "_key_stamp", "_keys_left",
        "_message_bytes_max", "_message_type", "_messages_max", "_now", "_properties_of", "_reserve_keys", "_window", "open",
    )  # fmt: skip

    def __init__(
        self,
        window: Window,
        *,
        message_type: type[Any],
        callback_of: Callable[[Any], Any],
        properties_of: Callable[[Any, str], bytes | None],
        reserve_keys: Callable[[int], tuple[str, int]],
        now: Callable[[], float],
        body_bytes_max: int,
        message_bytes_max: int,
        batch_bytes_max: int,
        messages_max: int,
        adds_properties: bool,  # noqa: ARG002 - of interest to the compiled twin, which does without `properties_of`
    ) -> None:
        self._window = window
        self._message_type: type[Any] = message_type
        self._callback_of = callback_of
        self._properties_of = properties_of
        self._reserve_keys = reserve_keys
        self._now = now
        self._body_bytes_max = body_bytes_max
        self._message_bytes_max = message_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._messages_max = messages_max
        self._key_stamp = ""
        self._key_number = self._keys_left = 0
        self.open: dict[tuple[str, Hashable], OpenBatch] = {}

    def begin(
        self,
        key: tuple[str, Hashable],
        target: Any,
        link: Any,
        deadline: float,
        due: float,
        *,
        wait_store_ok: bool,
    ) -> OpenBatch:
        """Open a batch for one topic and queue."""
        # Ids contain the time when they were made.
        self._keys_left = 0
        batch = self.open[key] = OpenBatch(self._window, key[1], target, link, deadline, due, wait_store_ok)
        return batch

    def has_room(self, batch: OpenBatch, size_bytes: int) -> bool:
        """Whether a message of this size may be added to a batch."""
        return len(batch.sends) < self._messages_max and batch.size_bytes + size_bytes < self._batch_bytes_max

    def join(self, message: Any, callback: Any, queue: Hashable) -> bool:
        """Accept a send if it is plain and there is an open batch for it.

        Raises:
            MQError: the message or the callback is illegal, and nothing was accepted.
        """
        if type(message) is not self._message_type or not self.open:
            return False
        try:
            batch = self.open.get((message.topic, queue))
        except TypeError:
            return False  # a topic or a queue of another type, to be refused
        body, window = message.body, self._window
        if batch is None or type(body) is not bytes or not 0 < len(body) <= self._body_bytes_max:
            return False
        if message.delay_level != 0 or message.wait_store_ok is not batch.wait_store_ok or not window.has(len(body)):
            return False
        if type(message.flag) is not int or not -(2**31) <= message.flag < 2**31:
            return False
        found = self._callback_of(callback)
        if not self._keys_left:
            self._key_stamp, self._key_number = self._reserve_keys(self._messages_max)
            self._keys_left = self._messages_max
        unique_key = f"{self._key_stamp}{self._key_number:04X}"
        properties = self._properties_of(message, unique_key)
        if properties is None or len(body) + len(properties) > self._message_bytes_max:
            return False
        if not self.has_room(batch, ELEMENT_BYTES + len(body) + len(properties)):
            return False
        self._key_number = (self._key_number + 1) & 0xFFFF
        self._keys_left -= 1
        batch.add(
            PlainSend(message, found, properties, unique_key, self._now()),
            encode_batch_element(body, properties, message.flag),
        )
        batch.plain_count += 1
        batch.plain_body_bytes += len(body)
        window.take(len(body))
        return True
