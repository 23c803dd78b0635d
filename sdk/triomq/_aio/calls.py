"""Turns trio's async methods into asyncio methods: proxies, whose calls run in the guest run of their client."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast

import sniffio

from triomq._aio.guest_run import Session
from triomq._arguments.async_functions import is_async
from triomq._client import client as _client
from triomq._constructors import NoPublicConstructor
from triomq._consumer.push.handlers import Handler
from triomq._made_methods import MadeMethod, made_from
from triomq.errors import ClientClosed

P = ParamSpec("P")
R = TypeVar("R")
Core = TypeVar("Core")
UsersCode = TypeVar("UsersCode")

ClientSession = Session[_client.Client]


class Proxy(Generic[Core], metaclass=NoPublicConstructor):
    """Calls an object that runs in trio from tasks of an asyncio loop.

    Args:
        session: the client's session.
        core: the object.
    """

    def __init__(self, session: ClientSession, core: Core) -> None:
        self._session = session
        self._core = core

    async def _call(self, run: Callable[[Core], Awaitable[R]]) -> R:
        """Call an async function with the object, in trio."""
        return await self._session.call(functools.partial(run, self._core))


class AsyncCloseable(Protocol):
    """An object that :class:`ClosingProxy` can close."""

    @property
    def group(self) -> str:
        """The group, with the namespace's prefix."""

    async def aclose(self) -> None:
        """Close it."""

    async def __aenter__(self) -> object:
        """Enter its block."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Leave its block."""


Closeable = TypeVar("Closeable", bound=AsyncCloseable)


class ClosingProxy(Proxy[Closeable]):
    """A proxy for use in ``async with``, whose end closes the object; or for use until its client closes."""

    @property
    def group(self) -> str:
        """The group's name as brokers know it, with the namespace's prefix."""
        return self._core.group

    async def aclose(self) -> None:
        """Close it now; a second time does nothing."""
        with suppress(ClientClosed):  # which has closed it
            await self._call(lambda core: core.aclose())

    async def __aenter__(self) -> Self:
        await self._call(lambda core: core.__aenter__())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ClientClosed):
            await self._call(lambda core: core.__aexit__(kind, error, trace))


def async_method(
    method: Callable[Concatenate[Core, P], Awaitable[R]],
) -> MadeMethod[P, Coroutine[Any, Any, R]]:
    """Turn a trio method into an asyncio method."""

    @made_from(method)
    async def call(self: Proxy[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._session.call(functools.partial(method, self._core, *args, **kwargs))

    return call


def plain_method(method: Callable[Concatenate[Core, P], R]) -> MadeMethod[P, R]:
    """Turn a plain method into the proxy's, which calls it directly: trio runs in the same thread."""

    @made_from(method)
    def call(self: Proxy[Core], /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._session.check()
        return method(self._core, *args, **kwargs)

    return call


def in_asyncio(session: ClientSession, code: UsersCode, method: str = "") -> UsersCode:
    """Wrap a user's function, or object with methods, for trio: what async ones return is awaited in the asyncio loop.

    Args:
        session: the client's session.
        code: the function or the object; any other value is returned as it is, for the client to refuse.
        method: a method that an object has, if it may be one.
    """
    if isinstance(code, type):
        return code
    if method and hasattr(code, method):
        return cast("UsersCode", _InAsyncio(session, code))
    if callable(code):
        return cast("UsersCode", _awaited(session, code) if is_async(code) else _called(session, code))
    return code


def handler_in_asyncio(session: ClientSession, handler: Handler) -> Handler:
    """Wrap a user's handler for trio: async ones are awaited in the asyncio loop, plain ones run in threads."""
    return _awaited(session, handler) if is_async(handler) else handler


def _awaited(session: ClientSession, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(function, updated=())
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await session.run_in_asyncio(functools.partial(function, *args, **kwargs))

    return call


def _called(session: ClientSession, function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function, which may return something to await: a coroutine, or a task that it has started."""

    async def wait(answer: Awaitable[Any]) -> Any:
        return await answer

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        # A task that it starts, and that begins at once, must not seem to be one of trio's.
        library, sniffio.thread_local.name = sniffio.thread_local.name, None
        try:
            answer = function(*args, **kwargs)
        finally:
            sniffio.thread_local.name = library
        return session.run_in_asyncio(functools.partial(wait, answer)) if inspect.isawaitable(answer) else answer

    return call


class _InAsyncio:
    """A user's object, such as a listener; its methods are called as functions are."""

    def __init__(self, session: ClientSession, code: object) -> None:
        self._session = session
        self._code = code

    def __getattr__(self, name: str) -> Any:
        return in_asyncio(self._session, getattr(self._code, name))
