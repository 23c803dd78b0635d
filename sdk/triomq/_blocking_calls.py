"""Calls from any thread into a client's own thread, where a trio loop runs."""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar

import trio

from triomq import _client, _opening
from triomq._client import ClientOptions
from triomq._name_servers import NameServers
from triomq.errors import ClientClosed, InvalidCall

P = ParamSpec("P")
R = TypeVar("R")
Core = TypeVar("Core")

_JOIN_TIMEOUT_S = 10.0


class Call(Generic[R]):
    """One call on its way through the loop: its scope, and how it ended."""

    def __init__(self, run: Callable[[], Awaitable[R]]) -> None:
        self._run = run
        self._scope = trio.CancelScope()
        self._ended: queue.SimpleQueue[Callable[[], R]] = queue.SimpleQueue()

    async def serve(self) -> None:
        """Run in the loop's thread; whatever happens, the caller hears of it."""
        end: Callable[[], R] = _raise_closed
        try:
            with self._scope:
                result = await self._run()
                end = functools.partial(_return, result)
        except Exception as error:  # noqa: BLE001 - raised again where the caller waits
            end = functools.partial(_raise, error)
        finally:
            self._ended.put(end)

    def wait(self, token: trio.lowlevel.TrioToken) -> R:
        """Wait in the caller's thread; an interrupt there cancels the call here, and is raised when that is done."""
        try:
            token.run_sync_soon(trio.lowlevel.spawn_system_task, self.serve)
        except trio.RunFinishedError:
            raise ClientClosed("the client is closed") from None
        try:
            end = self._ended.get()
        except BaseException:
            token.run_sync_soon(self._scope.cancel)
            self._ended.get()
            raise
        return end()


def _return(result: R) -> R:
    return result


def _raise(error: Exception) -> NoReturn:
    raise error


def _raise_closed() -> NoReturn:
    raise ClientClosed("the client was closed during the call")


class Loop:
    """A thread with a trio loop and an open client in it."""

    def __init__(self, name_servers: NameServers | None, options: ClientOptions) -> None:
        self.pid = os.getpid()
        self.client: _client.Client
        self.token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # A daemon, so that a client nobody closed cannot keep the process from ending.
        self._thread = threading.Thread(
            target=self._serve, args=(name_servers, options, started), name="triomq", daemon=True
        )
        self._thread.start()
        failure = started.get()
        if failure is not None:
            self._thread.join()
            raise failure

    def _serve(
        self,
        name_servers: NameServers | None,
        options: ClientOptions,
        started: queue.SimpleQueue[BaseException | None],
    ) -> None:
        async def main() -> None:
            async with _opening.open_client(name_servers, **options) as self.client:
                self.token = trio.lowlevel.current_trio_token()
                self._stop = trio.Event()
                started.put(None)
                await self._stop.wait()

        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that opens the client
            started.put(error)

    def call(self, run: Callable[[], Awaitable[R]]) -> R:
        """Run something in the loop and wait for its end."""
        if threading.current_thread() is self._thread:
            raise InvalidCall("a callback must not wait for its own client; use the async one, or another thread")
        return Call(run).wait(self.token)

    def close(self) -> None:
        """Close the client and end the thread; nothing in a forked child, to which neither belongs."""
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        try:
            self.token.run_sync_soon(self._stop.set)
        except trio.RunFinishedError:
            pass
        self._thread.join(_JOIN_TIMEOUT_S)


class Owner(Protocol):
    """The client whose loop a face uses."""

    def running(self) -> Loop:
        """The loop of this process."""


class Face(Generic[Core]):
    """What hands calls over to an object in the loop; the object is made anew after a fork."""

    def __init__(self, client: Owner, make: Callable[[_client.Client], Core]) -> None:
        self._client = client
        self._make = make
        self._made_in: Loop | None = None
        self._core: Core

    def hand_over(self, run: Callable[[Core], Awaitable[R]]) -> R:
        """Run something with the object, in the loop."""
        loop = self._client.running()

        async def serve() -> R:
            if self._made_in is not loop:
                self._core = self._make(loop.client)
                self._made_in = loop
            return await run(self._core)

        return loop.call(serve)

    def join(self) -> None:
        """Make the object behind this face now, so that what is wrong with its arguments is raised now."""
        self.hand_over(_join)


async def _join(_core: object) -> None:
    await trio.lowlevel.checkpoint()


def derived(method: Callable[Concatenate[Core, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """The synchronous method of an async one."""

    @functools.wraps(method)
    def call(self: Face[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.hand_over(lambda core: method(core, *args, **kwargs))

    return call


def derived_plain(method: Callable[Concatenate[Core, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The method of a plain one, run in the loop's thread, to which the object belongs."""

    @functools.wraps(method)
    def call(self: Face[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def run(core: Core) -> R:
            await trio.lowlevel.checkpoint()
            return method(core, *args, **kwargs)

        return self.hand_over(run)

    return call
