"""Controls a cluster's clock and faults from other processes, over HTTP on loopback.

`triomq run` and the workers of one run of pytest use it. Paths start with a secret of the cluster, so that no other
program on the machine finds them by chance:

- ``GET /SECRET/``: the name servers, and the time by the brokers' clock.
- ``POST /SECRET/clock/advance?hours=2``: days, hours, minutes and seconds are added. The answer is sent when everything
  that was due is done.
- ``POST /SECRET/clock/fast-forward``: for as long as the connection is open.
- ``POST /SECRET/faults/kill?node=broker-a``: any method of `Faults`; all brokers without a node.

Answers are JSON; those for errors have a member ``error``.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs
import trio

from triomq_server.wire import error_text
from triomq_testing.steered.clock import SteeredClock, whole_ms
from triomq_testing.steered.faults import SLOWEST_S, Faults

MOST_CONNECTIONS = 64
REQUEST_BYTES_MOST = 8192
REQUEST_WITHIN_S = 10.0

FAULTS = ("kill", "stop", "start", "freeze", "cut", "slow", "fill_disk", "mend")
"""The actions on nodes."""

_REMARKS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Headers Too Large"}
_TIMES = ("days", "hours", "minutes", "seconds")


@attrs.frozen
class _RefusedError(Exception):
    """A request cannot be carried out; the text gives the reason."""

    code: int
    text: str


class Control:
    """Answers requests to control a cluster; belongs to the loop of its servers.

    Args:
        namesrv_addr: the name servers.
        clock: the clock of all brokers.
        faults: the faults; they may be called from threads of this loop.
        secret: the first part of all paths.
    """

    def __init__(self, namesrv_addr: str, clock: SteeredClock, faults: Faults, secret: str) -> None:
        self._namesrv_addr = namesrv_addr
        self._clock = clock
        self._faults = faults
        self._secret = secret
        self._connections = 0

    async def serve(self, listening: socket.socket) -> None:
        """Answer until cancelled; the socket is closed then."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        await trio.serve_listeners(self._serve_counted, [listener])

    async def _serve_counted(self, stream: trio.SocketStream) -> None:
        if self._connections >= MOST_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            await self._answer(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has disconnected
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.SocketStream) -> None:
        code, answer = 200, {}
        try:
            with trio.move_on_after(REQUEST_WITHIN_S) as reading:
                method, path, query = await _request(stream)
            if reading.cancelled_caught:
                return
            path = self._inner(path)
            if path == "clock/fast-forward":
                _expect("POST", method)
                await self._fast_forward(stream)
                return
            await self._do(method, path, query)
        except _RefusedError as refusal:
            code, answer = refusal.code, {"error": refusal.text}
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception as error:  # noqa: BLE001 - a broker that cannot be started must not end the others
            code, answer = 400, {"error": error_text(error)}
        await stream.send_all(_head(code) + json.dumps(answer or self._state()).encode() + b"\n")
        # Closing while the peer still sends would reset the connection, and lose data that it has not read.
        await stream.send_eof()
        with trio.move_on_after(REQUEST_WITHIN_S):
            while await stream.receive_some(REQUEST_BYTES_MOST):
                pass

    def _inner(self, path: str) -> str:
        secret, _, inner = path.removeprefix("/").partition("/")
        if secret != self._secret:
            raise _RefusedError(404, "nothing is here")
        return inner

    async def _do(self, method: str, path: str, query: Mapping[str, str]) -> None:
        subject, _, verb = path.partition("/")
        if path == "":
            _expect("GET", method)
        elif path == "clock/advance":
            _expect("POST", method)
            await self._clock.advance(whole_ms(timedelta(**_numbers(query, _TIMES))))
        elif subject == "faults" and verb in FAULTS:
            _expect("POST", method)
            node = query.get("node")
            numbers = _numbers(
                {key: value for key, value in query.items() if key != "node"}, ("seconds",) if verb == "slow" else ()
            )
            if verb == "slow" and not numbers:
                raise _RefusedError(400, f"slow needs seconds, from 0 to {SLOWEST_S}")
            await trio.to_thread.run_sync(partial(getattr(self._faults, verb), node, **numbers))
        else:
            raise _RefusedError(
                404, f"there is no {path[:80]}: clock/advance, clock/fast-forward, faults/{'|'.join(FAULTS)}"
            )

    async def _fast_forward(self, stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._clock.fast_forward)
            await stream.send_all(_head(200))
            with contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some(REQUEST_BYTES_MOST):
                    pass
            nursery.cancel_scope.cancel()

    def _state(self) -> dict[str, str]:
        shown = datetime.fromtimestamp(self._clock() / 1000, UTC)
        return {"namesrv_addr": self._namesrv_addr, "time": shown.isoformat(timespec="milliseconds")}


class ThreadCalls:
    """Passes calls of `Faults` from a thread of a trio loop back into this loop."""

    def call(self, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run it and wait for its end."""
        return trio.from_thread.run(run)


def _head(code: int) -> bytes:
    return (f"HTTP/1.1 {code} {_REMARKS[code]}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n").encode()


def _expect(method: str, given: str) -> None:
    if method != given:
        raise _RefusedError(405, f"use {method} here, not {given}")


def _numbers(query: Mapping[str, str], known: tuple[str, ...]) -> dict[str, float]:
    for key in query:
        if key not in known:
            raise _RefusedError(400, f"{key!r} is not known here: {', '.join(known) or 'only node'}")
    try:
        return {key: float(value) for key, value in query.items()}
    except ValueError as error:
        raise _RefusedError(400, f"no number: {error}") from None


async def _request(stream: trio.SocketStream) -> tuple[str, str, dict[str, str]]:
    """Method, path and query of a request; the body is ignored."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > REQUEST_BYTES_MOST:
            raise _RefusedError(431, f"a request has at most {REQUEST_BYTES_MOST} bytes")
        more = await stream.receive_some(REQUEST_BYTES_MOST)
        if not more:
            raise trio.ClosedResourceError
        data += more
    words = data.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _RefusedError(400, "this is not a request of HTTP/1.1")
    parts = urlsplit(words[1])
    return words[0], unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True))
