"""Reads another broker's copy of the log by log offset, over its main port, to repair a stopped broker.

Unlike the replication stream, this reports no offset, so that no sender counts the reader as a slave with a copy.
RocketMQ's brokers do not know the request; from them single records are read.
"""

from __future__ import annotations

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.header import Header
from triomq_server.replication.divergence import RemoteLog
from triomq_server.wire import Asking

READ_LOG = 29_004
"""The request code, ours: bytes of the log as they are. RocketMQ's brokers answer it with code 3."""
READ_MOST_BYTES = 1 << 20
"""Bytes in one answer."""
TIMEOUT_S = 10.0


class ReadLogRequest(Header, kw_only=True):
    """Header of READ_LOG: the first log offset, and the number of bytes. The answer ends at the end of a log file."""

    offset: int
    most_bytes: int


class NotThereError(Exception):
    """The other broker answers, but does not have, or give, these bytes."""


class LogCopy:
    """The log of a broker that runs.

    Args:
        link: to its main port.
    """

    def __init__(self, link: Asking) -> None:
        self._link = link
        self._records = RemoteLog(link)
        self._gives_bytes = True

    async def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the log; at least one, at most `size_bytes`.

        Raises:
            NotThereError: it has none there, or gives none.
            OSError, LinkError: as the link does.
        """
        if self._gives_bytes:
            header = ReadLogRequest(offset=offset, most_bytes=min(size_bytes, READ_MOST_BYTES))
            answer = await self._link.request(Command.request(READ_LOG, header), TIMEOUT_S)
            if answer.code == ResponseCode.SUCCESS and 0 < len(answer.body) <= size_bytes:
                return bytes(answer.body)
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotThereError(answer.remark or f"it gives {len(answer.body)} bytes at log offset {offset}")
            self._gives_bytes = False
        record = await self._records.record(offset)
        if record is None or len(record) > size_bytes:
            raise NotThereError(f"it is a RocketMQ broker, and has no fitting record at log offset {offset}")
        return record


async def fetch_table(link: Asking, code: RequestCode) -> bytes:
    """The body of an answer that is a whole table, such as all topics. Raises NotThereError, OSError, LinkError."""
    answer = await link.request(Command.request(code), TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise NotThereError(f"{code.name} is refused with code {answer.code}: {answer.remark}")
    return bytes(answer.body)
