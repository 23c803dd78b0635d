"""Turns async methods into blocking ones: proxies, whose calls run in the loop of their client.

The loop itself is a :class:`LoopThread`; this module opens it, again in a forked child, and keeps track of its users.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

import trio

from triomq._blocking.loop_thread import LoopThread
from triomq._client import client as _client
from triomq._constructors import NoPublicConstructor
from triomq._made_methods import MadeMethod, made_from
from triomq._tasks.own_callbacks import refusal
from triomq.errors import ClientClosed, InvalidCall

P = ParamSpec("P")
R = TypeVar("R")
Core = TypeVar("Core")


class ClientLoop:
    """The loop of one client in each process that uses it: a forked child opens a client of its own.

    Args:
        session: opens the client.

    Attributes:
        making: held by a thread while it creates an object which the client keeps, so that no other creates it too.
            Never taken in the loop's own thread, which its holder waits for.
    """

    def __init__(self, session: Callable[[], AbstractAsyncContextManager[_client.Client]]) -> None:
        self._session = session
        # A signal handler may run in the thread that holds one of them.
        self.making: threading.RLock = threading.RLock()
        self._lock = threading.RLock()
        self._closed = False
        self._thread: LoopThread[_client.Client] | None = None
        self._finalizer: weakref.finalize[[], ClientLoop] | None = None
        _loops.add(self)

    def thread(self) -> LoopThread[_client.Client]:
        """The thread of this process, started if there is none.

        Raises:
            ClientClosed: :meth:`close` was called.
            InvalidCall: this process was forked without Python's hooks, after which nothing of the parent's state holds.
        """
        before = self._thread
        if before is not None and before.pid != os.getpid():
            raise InvalidCall(
                f"process {before.pid} opened this client, and this one was forked from it without Python's hooks, as by "
                "uWSGI: start uWSGI with --enable-threads and --lazy-apps (or --py-call-uwsgi-fork-hooks), or open the "
                "client after the fork"
            )
        with self._lock:
            if self._thread is None and not self._closed:
                self._open()
            thread = self._thread
            if self._closed or thread is None:
                raise ClientClosed("the client is closed")
            return thread

    def _open(self) -> None:
        opened = LoopThread(self._session, name="triomq")
        if self._closed or self._thread is not None:
            # By a signal handler that has run in this thread meanwhile.
            opened.close()
            return
        self._thread = opened
        # Also at the end of the process, so that an open client flushes.
        self._finalizer = weakref.finalize(self, opened.close_unused)

    def close(self) -> None:
        """Close the client and end its thread; while another call does that, wait for it.

        Raises:
            InvalidCall: a handler, a check or a local transaction has called it, and would wait for itself.
        """
        thread = self._thread
        if thread is not None and not self._closed and thread.is_worker:
            with suppress(ClientClosed):
                thread.call(partial(_refuse_callbacks, thread.session))
            raise refusal("close() of the client", in_thread=True)
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.close()
        if self._finalizer is not None:
            self._finalizer.detach()

    def forget_parent(self) -> None:
        """Drop the parent's thread, in a forked child."""
        self._lock = threading.RLock()
        self.making = threading.RLock()
        self._thread = None
        if self._finalizer is not None:
            self._finalizer.detach()


async def _refuse_callbacks(client: _client.Client) -> None:
    await trio.lowlevel.checkpoint()
    client._members.refuse_callbacks("aclose() of the client")  # noqa: SLF001


_loops: weakref.WeakSet[ClientLoop] = weakref.WeakSet()


def _forget_parents() -> None:
    for loop in list(_loops):
        loop.forget_parent()


os.register_at_fork(after_in_child=_forget_parents)


class Proxy(Generic[Core], metaclass=NoPublicConstructor):
    """Calls an object that lives in a client's loop, from any thread; the object is created again after a fork.

    Args:
        loop: the client's loop.
        make: creates the object.
    """

    def __init__(self, loop: ClientLoop, make: Callable[[_client.Client], Core]) -> None:
        self._loop = loop
        self._make = make
        self._made_in: LoopThread[_client.Client] | None = None
        """The thread in which the object exists, or existed before a fork; None: it was never created."""
        self._core: Core

    def _call(
        self, run: Callable[[Core], Awaitable[R]], give_back: Callable[[Core, R], Awaitable[object]] | None = None
    ) -> R:
        """Call an async function with the object, in the loop.

        Args:
            run: the function.
            give_back: takes back the result if the caller is interrupted just as it arrives; None: it is dropped.
        """
        thread = self._loop.thread()

        async def serve() -> R:
            if self._made_in is not thread:
                self._core = self._make(thread.session)
                self._made_in = thread
            return await run(self._core)

        async def take_back(result: R) -> None:
            if give_back is not None:
                await give_back(self._core, result)

        return thread.call(serve, take_back)

    def _call_plain(self, run: Callable[[Core], R]) -> R:
        """Run a plain function with the object in the loop's thread, to which the object belongs."""

        async def serve(core: Core) -> R:
            await trio.lowlevel.checkpoint()
            return run(core)

        return self._call(serve)


class InGroup(Protocol):
    """A producer or a consumer."""

    @property
    def group(self) -> str:
        """The group, with the namespace's prefix."""


class AsyncCloseable(InGroup, Protocol):
    """An object that :class:`ClosingProxy` can close."""

    async def aclose(self) -> None:
        """Close it."""


Closeable = TypeVar("Closeable", bound=AsyncCloseable)


Member = TypeVar("Member", bound=InGroup)


class KeptProxy(Proxy[Member]):
    """A proxy that its client keeps until it is closed or entered: the same call returns the same one."""

    @property
    def group(self) -> str:
        """The group's name as brokers know it, with the namespace's prefix."""
        # It never changes: the client's thread need not be asked.
        return self._core.group

    _kept = True
    """Whether it is open, and belongs to no ``with`` block."""

    @contextmanager
    def _closes(self) -> Iterator[None]:
        """Its client keeps it no longer, unless a callback has called and is refused; a closed client has closed it too."""
        kept, self._kept = self._kept, False
        try:
            with suppress(ClientClosed):
                yield
        except InvalidCall:
            self._kept = kept
            raise


class ClosingProxy(KeptProxy[Closeable]):
    """A proxy for use in ``with``, whose end closes the object; or for use until its client closes."""

    def close(self) -> None:
        """Close it now; a second time does nothing.

        Raises:
            InvalidCall: a callback or a check has called it, and would wait for itself.
        """
        with self._closes():
            self._call(lambda core: core.aclose())

    def __enter__(self) -> Self:
        self._kept = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def blocking_method(
    method: Callable[Concatenate[Core, P], Awaitable[R]],
    give_back: Callable[[Core, R], Awaitable[object]] | None = None,
) -> MadeMethod[P, R]:
    """Turn an asynchronous method into a blocking one.

    Args:
        method: the asynchronous method.
        give_back: takes back the result if the caller is interrupted just as it arrives; None: it is dropped.
    """

    @made_from(method)
    def call(self: Proxy[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(lambda core: method(core, *args, **kwargs), give_back)

    return call


def plain_method(method: Callable[Concatenate[Core, P], R]) -> MadeMethod[P, R]:
    """Turn a plain method into one that runs in the loop's thread."""

    @made_from(method)
    def call(self: Proxy[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call_plain(lambda core: method(core, *args, **kwargs))

    return call
