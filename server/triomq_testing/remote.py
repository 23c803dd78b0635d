"""Controls the clock and faults of a cluster in another process; the other side is `control`."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlencode, urlsplit

ANSWER_WITHIN_S = 120.0
"""Time limit for an answer: advancing a clock by years, with all that is due meanwhile, takes seconds."""


class Remote:
    """Sends requests to the process that runs a cluster; methods wait for the answer, and may be called in any thread.

    Args:
        url: the URL of the cluster's control, with its secret.

    Methods raise ConnectionError if the cluster no longer runs, and ValueError if it refuses a request.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"{url!r} is not an address of a cluster: http://127.0.0.1:PORT/SECRET")
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")

    def state(self) -> dict[str, str]:
        """The name servers and the time."""
        return self._ask("GET", "")

    def do(self, what: str, **query: str | float) -> dict[str, str]:
        """Request an action, such as ``clock/advance``; returns the state afterwards."""
        return self._ask("POST", what, **query)

    def now_ms(self) -> int:
        """The clock's time, in ms since 1970."""
        return round(datetime.fromisoformat(self.state()["time"]).timestamp() * 1000)

    def advance(self, by_ms: int) -> None:
        """Set the clock forward."""
        self.do("clock/advance", seconds=by_ms / 1000)

    @contextlib.contextmanager
    def fast_forward(self) -> Iterator[None]:
        """Deliver delayed messages without waiting, for as long as the block lasts."""
        with self._asked("POST", "clock/fast-forward", {}) as (connection, response):
            try:
                yield
            finally:
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    response.read()

    def _ask(self, method: str, what: str, **query: str | float) -> dict[str, str]:
        with self._asked(method, what, query) as (_, response):
            answer: dict[str, str] = json.loads(response.read())
            return answer

    @contextlib.contextmanager
    def _asked(
        self, method: str, what: str, query: dict[str, str | float]
    ) -> Iterator[tuple[socket.socket, http.client.HTTPResponse]]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_WITHIN_S)
        try:
            try:
                connection.connect()
                link = connection.sock
                connection.request(method, f"{self._path}/{what}?{urlencode(query)}")
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise ConnectionError(
                    f"the cluster at {self._host}:{self._port} does not answer ({error}); has the process that ran it ended?"
                ) from error
            with response:
                if response.status != 200:
                    raise ValueError(json.loads(response.read())["error"])
                yield link, response
        finally:
            connection.close()
