"""The port on which Prometheus reads a server's metrics: HTTP/1.1, one request per connection, ``GET /metrics``.

Connections are bounded in number, request size and time. Scrapers that ask while a text is being made, or shortly after,
get the same text: a hundred of them cost as much as one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NoReturn

import trio

from triomq_server.config import ConfigError
from triomq_server.metrics.text import CONTENT_TYPE, TextWriter

MOST_CONNECTIONS: Final = 128
"""Maximum number of open connections; a further one is closed at once."""

REQUEST_BYTES_MOST: Final = 8192
REQUEST_WITHIN_S: Final = 5.0
ANSWER_WITHIN_S: Final = 10.0
"""A scraper that has not read the text in this time is disconnected; Prometheus' default timeout is ten seconds."""

FRESH_S: Final = 1.0
"""Age up to which a text is given to later scrapers."""

_REMARKS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
}  # fmt: skip

_log = logging.getLogger(__name__)

Listen = Callable[[str, int], Awaitable[Sequence[trio.abc.Listener[trio.abc.Stream]]]]
Collect = Callable[[TextWriter], Iterator[None]]
"""Writes all metrics of a server; other tasks may run at each step."""


class MetricsPort:
    """Serves the metrics of one server.

    Args:
        collect: writes the metrics.
    """

    def __init__(self, collect: Collect) -> None:
        self._collect = collect
        self._making = trio.Lock()
        self._text: list[bytes] = []
        self._made_at = -FRESH_S
        self._connections = 0

    async def text(self) -> Sequence[bytes]:
        """The metrics in pieces, at most `FRESH_S` old."""
        async with self._making:
            if trio.current_time() >= self._made_at + FRESH_S:
                writer = TextWriter()
                for _ in self._collect(writer):
                    await trio.lowlevel.checkpoint()
                self._text = writer.finish()
                self._made_at = trio.current_time()
            return self._text

    async def serve(
        self, host: str, port: int, *, listen: Listen, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Answer scrapers until cancelled.

        Raises:
            ConfigError: the server cannot listen on the address.
        """
        try:
            listeners = await listen(host, port)
        except OSError as error:
            raise ConfigError(
                f"metricsPort={port} cannot be used at {host}: {error.strerror or error}; stop what listens there, or set "
                "another metricsPort or metricsBindAddress"
            ) from error
        _log.info("metrics are at http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
        task_status.started()
        await trio.serve_listeners(self._serve_counted, list(listeners))
        raise AssertionError("a listener ended by itself")

    async def _serve_counted(self, stream: trio.abc.Stream) -> None:
        if self._connections >= MOST_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            await self._answer(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("a scraper has gone: %r", error)
        except Exception:  # noqa: BLE001 (the task's outermost edge)
            _log.exception("the metrics could not be written")
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.abc.Stream) -> None:
        with trio.move_on_after(REQUEST_WITHIN_S) as reading:
            code, method = await _request(stream)
        if reading.cancelled_caught or not code:
            return
        pieces: Sequence[bytes] = (f"{_REMARKS[code]}; metrics are at /metrics\n".encode(),)
        if code == 200:
            pieces = await self.text()
        head = (
            f"HTTP/1.1 {code} {_REMARKS[code]}\r\nContent-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {sum(map(len, pieces))}\r\nConnection: close\r\n\r\n"
        )
        with trio.move_on_after(ANSWER_WITHIN_S) as sending:
            await stream.send_all(head.encode())
            for piece in pieces if method != b"HEAD" else ():
                await stream.send_all(piece)
            # Closing while the peer still sends would reset the connection, and lose unread bytes of the answer.
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
        if sending.cancelled_caught:
            _log.info("a scraper did not take the metrics within %g s, and is cut off", ANSWER_WITHIN_S)


async def _request(stream: trio.abc.Stream) -> tuple[int, bytes]:
    """Read a request; returns the code of the answer, 0 for none, and the method."""
    data = b""
    while b"\r\n\r\n" not in data and b"\n\n" not in data:
        if len(data) > REQUEST_BYTES_MOST:
            return 431, b""
        more = await stream.receive_some(REQUEST_BYTES_MOST)
        if not more:
            return 0, b""
        data += more
    parts = data.partition(b"\n")[0].split()
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/"):
        return 400, b""
    method, target, _ = parts
    if method not in (b"GET", b"HEAD"):
        return 405, method
    return (200 if target.partition(b"?")[0] == b"/metrics" else 404), method
