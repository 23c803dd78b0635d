"""What a broker's links count, where clients choose the numbers."""

from __future__ import annotations

from triomq_protocol.codes import ResponseCode
from triomq_server.wire import Traffic

OTHER_CODE = -1
"""Stands for all response codes that RocketMQ does not have."""

_KNOWN = frozenset(ResponseCode)


class BrokerTraffic(Traffic):
    """Counts answers with errors by the codes that are known: requests 307 and 309 are answered with the code that a client
    answers, which may be any number."""

    def count_error(self, request_code: int, code: int, *, known: bool = True) -> None:
        """A request is answered with an error."""
        super().count_error(request_code, code if code in _KNOWN else OTHER_CODE, known=known)
