"""Whole transfers of a replication stream, put together from the parts that the decoder yields."""

from __future__ import annotations

from triomq_protocol.replication import TransferDecoder


class Collector:
    """A decoder with a memory for bodies."""

    def __init__(self) -> None:
        self.decoder = TransferDecoder()
        self._begin = 0
        self._body = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The transfers completed by `data`: offset and body."""
        whole = []
        for offset, left, part in self.decoder.feed(memoryview(data)):
            if not self._body:
                self._begin = offset
            assert self._begin + len(self._body) == offset
            self._body += part
            if len(part) == left:
                whole.append((self._begin, self._body))
                self._body = b""
        return whole
