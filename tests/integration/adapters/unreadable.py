"""A message with an unreadable body."""

from __future__ import annotations

import triomq
from triomq_protocol.record.layout import COMPRESSED, COMPRESSION_ZLIB
from triomq_testing import RocketMQ


class _Broken:
    """Marks a body as compressed that is not; without its library, an LZ4 body is no better."""

    sys_flag = COMPRESSED | COMPRESSION_ZLIB

    def compress(self, _body: bytes) -> bytes:
        return b"x"


def send_unreadable(rocketmq: RocketMQ, topic: str) -> None:
    """Send such a message to a topic."""
    with triomq.blocking.open_client(rocketmq.namesrv_addr) as client:
        client.admin.ensure_topic(topic, queues=1)
        producer = client.producer("broken", compressor=_Broken(), compress_from_bytes=0, send_timeout_s=60)
        producer.send(triomq.Message(topic, b"a body"))
