"""Send requests from a template: the constant part of a frame for one group and one queue, encoded once.

The template is cut out of a frame made by the protocol's own encoder, so that the wire format is defined only once; a
test compares both.  It takes half the time of the encoder (docs/explanation/hot-path.md).
"""

from __future__ import annotations

import itertools

from triomq_protocol.requests.send import encode_send_request_v2
from triomq_protocol.wire.fastjson import quote
from triomq_protocol.wire.lengths import MAX_HEADER_BYTES, MAX_LENGTH, does_not_fit, pack_lengths

_LENGTHS_BYTES = 8


class SendTemplate:
    """Requests of one group for one queue, for messages without flags of their own.

    Args:
        producer_group: the sender.
        topic: where messages go.
        queue_id: the queue.
        broker_name: its broker.
        default_topic: template topic of auto-creation.
        default_topic_queue_nums: upper bound of an auto-created topic's queues.

    Attributes:
        parts: the header's bytes before, between and after born timestamp, properties and opaque.
    """

    __slots__ = ("_parts", "parts")

    def __init__(
        self,
        *,
        producer_group: str,
        topic: str,
        queue_id: int,
        broker_name: str,
        default_topic: str,
        default_topic_queue_nums: int,
    ) -> None:
        for number in itertools.count(1_111_111_111):
            properties = f"properties {number}"
            frame = encode_send_request_v2(
                number + 1,
                producer_group=producer_group,
                topic=topic,
                queue_id=queue_id,
                sys_flag=0,
                born_timestamp=number,
                flag=0,
                properties=properties,
                body=b"",
                broker_name=broker_name,
                default_topic=default_topic,
                default_topic_queue_nums=default_topic_queue_nums,
            )
            header = frame[_LENGTHS_BYTES:].decode().replace(quote(properties), "\0")
            header = header.replace(str(number), "\0").replace(str(number + 1), "\0")
            parts = header.split("\0")
            # More parts: a name contains one of the numbers, so use others.
            if len(parts) == 4:
                self._parts = parts[0], parts[1], parts[2], parts[3]
                self.parts: tuple[bytes, ...] = tuple(part.encode() for part in parts)
                return

    def encode(self, opaque: int, born_timestamp: int, properties: str, body: bytes) -> bytes:
        """Encode the whole frame; the same bytes as ``encode_send_request_v2``."""
        start, before_properties, before_opaque, end = self._parts
        header = f"{start}{born_timestamp}{before_properties}{quote(properties)}{before_opaque}{opaque}{end}".encode()
        size = len(header)
        length = 4 + size + len(body)
        if size > MAX_HEADER_BYTES or length > MAX_LENGTH:
            raise does_not_fit(size, len(body))
        return b"".join((pack_lengths(length, size), header, body))
