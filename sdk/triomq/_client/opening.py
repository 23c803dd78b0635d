"""Opens a client, alone or with one producer or consumer.

The client's nurseries live here: they begin and end with the ``async with`` block.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar, Unpack

import trio

from triomq._client.client import Client
from triomq._client.options import ClientOptions
from triomq._cluster.name_servers import NameServers
from triomq._constructors import construct
from triomq._tasks.exception_groups import was_cancelled, without_groups
from triomq.errors import InvalidCall

P = ParamSpec("P")
Member = TypeVar("Member", bound=AbstractAsyncContextManager[Any])
Opened = TypeVar("Opened")


class _Block(AbstractAsyncContextManager[Opened]):
    """The result of an opening function: entered by ``async with``; any other use raises an error that names it."""

    __slots__ = ("_block", "_name")

    def __init__(self, block: AbstractAsyncContextManager[Opened], name: str) -> None:
        self._block = block
        self._name = name

    async def __aenter__(self) -> Opened:
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, traceback)

    def _advice(self) -> str:
        what = self._name.removeprefix("open_")
        return f"triomq.{self._name} is entered by `async with triomq.{self._name}(...) as {what}:`"

    if not TYPE_CHECKING:  # type checkers refuse these uses by themselves

        def __enter__(self) -> NoReturn:
            raise InvalidCall(f"{self._advice()}; without a trio loop use triomq.blocking.open_client")

        def __exit__(self, *_: object) -> None:
            """Exists only so that ``with`` calls ``__enter__``."""

        def __await__(self) -> NoReturn:
            raise InvalidCall(f"{self._advice()}, and not awaited")

        def __getattr__(self, name: str) -> NoReturn:
            if name in self.__slots__:
                raise AttributeError(name)  # a copy that has not got its values yet
            raise AttributeError(f"no attribute {name!r}: {self._advice()}", name=name, obj=self)


def _block(function: Callable[P, AsyncIterator[Opened]]) -> Callable[P, AbstractAsyncContextManager[Opened]]:
    """``asynccontextmanager``, with errors that name the cure for any other use."""
    manager = asynccontextmanager(function)

    @functools.wraps(function)
    def enter(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[Opened]:
        return _Block(manager(*args, **kwargs), enter.__name__)

    return enter


@_block
async def open_client(
    name_servers: NameServers | None = None, **options: Unpack[ClientOptions]
) -> AsyncIterator[Client]:
    """Open a client; at the end of the block producers flush, groups unregister, links close.

    Args:
        name_servers: ``"host:9876;host:9876"``, a list of addresses, a :class:`triomq.plugins.NameServerProvider`,
            or a function that returns a list; default is the environment's ``NAMESRV_ADDR``.
        dial: opens streams; default TCP.
        tls: True uses TLS, and accepts servers with a certificate for their name from an authority of the system; or
            an ``ssl.SSLContext`` with the authorities to trust and the certificate to present. :func:`triomq.plugins.tls_dialer` makes
            dialers from files.
        credentials: the account that signs all requests, for brokers with access control; default: no signatures.
        client_ip: this machine's address as seen by others; default: detected.
        instance_name: distinguishes clients of one address; default ``pid#nanoseconds``. The offset files of
            broadcasting consumers have it in their path: without a name, offsets are lost with the client.
        unit_name: third part of the client id.
        unit_mode: whether heartbeats and requests state that the client belongs to a unit (``unitMode``).
        namespace: a prefix that distinguishes topics and groups of several instances on the same brokers. Topics are given
            and returned without it; the attribute ``group`` of a producer or consumer has it.
        trace: whether producers and consumers send traces of their messages to a broker; their own ``trace`` overrides it.
        trace_topic: the topic of the traces; default ``RMQ_SYS_TRACE_TOPIC``.
        default_topic: the topic whose queues a send to an unknown topic uses, so that a broker may create the topic.
        default_topic_queues: the most of these queues, per broker.
        refresh_every_s: seconds between two refreshes of the routes.
        heartbeat_every_s: seconds between two heartbeats.
        route_wait_s: how long sends, pulls, commits and administrative calls wait while no name server, no route or no
            broker can be reached; default None: until their own deadline. 0: not at all. For a send, its deadline
            begins when they can be reached, if that is later than ``send_timeout_s``.
        backoff: pauses between dials of an unreachable address.
        max_pending: requests that may wait for an answer, per link.
        max_unsent_bytes: bytes that may wait for the kernel, per link.
        max_header_bytes: the longest header of an answer, its remark included; a longer one ends the connection
            with :class:`~triomq.errors.ProtocolViolation`. Errors keep the first 4096 characters of a remark.
        max_topics: topics whose routes are kept.
        clock: wall clock in ms since 1970.
        chance: source of all random choices.
        statistics_sink: receives the client's counters; see :class:`triomq.plugins.StatisticsSink`.
        statistics_every_s: seconds between two reports; one more follows at the end.

    Raises:
        InvalidCall: an address is not ``host:port``, or there is none; or no trio loop runs here. For asyncio there is
            :mod:`triomq.aio`.

    No connection is opened before it is needed.  Exceptions of the block are raised as they are, not in groups.
    """
    _check_loop()
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            links = _LinkTasks(nursery)
            try:
                client = construct(Client, name_servers, nursery, await links.open(), options)
                await client._start()  # noqa: SLF001
                try:
                    yield client
                except BaseException as error:  # noqa: BLE001
                    # Kept aside, so that the nursery does not wrap it.
                    failure = error
                finally:
                    await client.aclose(at_once=failure is not None)
            finally:
                nursery.cancel_scope.cancel()
                links.end()
    except BaseExceptionGroup as group:
        crash = group.split(trio.Cancelled)[1]
        if crash is not None and was_cancelled(failure):
            # A task of the client's own has failed, and the block was cancelled for that.
            raise without_groups(crash) from None
        if failure is None:
            raise without_groups(group) from None
    if failure is not None:
        try:
            raise failure
        finally:
            # The traceback holds this frame: let go of the cycle.
            del failure


class _LinkTasks:
    """The tasks of a client's links, in a nursery that a cancel of the block does not reach.

    Consumers that are cancelled with the client commit and leave their groups at their end, and need its links; they do
    not need its other tasks, which may run the user's code.

    Args:
        block: the nursery around the block, which is cancelled when a link's task fails.
    """

    def __init__(self, block: trio.Nursery) -> None:
        self._block = block
        self._nursery: trio.Nursery
        self._opened = trio.Event()
        self._over = trio.Event()

    async def open(self) -> trio.Nursery:
        """Open the nursery."""
        # Not by `start`: interrupted by Ctrl-C, that would wait for the task, which waits for `end`.
        self._block.start_soon(self._run)
        with trio.CancelScope(shield=True):  # it waits for nobody
            await self._opened.wait()
        return self._nursery

    def end(self) -> None:
        """Cancel the tasks."""
        self._over.set()

    @trio.lowlevel.enable_ki_protection
    async def _run(self) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as self._nursery:
                self._opened.set()
                try:
                    await self._over.wait()
                except trio.Cancelled:
                    # A task has failed. The nursery stays open: the end of the block may still ask for links.
                    self._block.cancel_scope.cancel()
                    with trio.CancelScope(shield=True):
                        await self._over.wait()
                    raise
                self._nursery.cancel_scope.cancel()


def _check_loop() -> None:
    """Raise :class:`InvalidCall` if trio cannot run here, and name what to use instead."""
    if trio.lowlevel.in_trio_task():
        return
    asyncio = sys.modules.get("asyncio")  # a program with such a loop has imported it; for others it would take time
    try:
        running = asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        running = False
    if not running:
        raise InvalidCall(
            "triomq.open_client needs a trio loop, and none runs here; start one by trio.run(main), or use "
            "triomq.blocking.open_client"
        )
    raise InvalidCall(
        "triomq.open_client needs a trio loop, and this is an asyncio loop; use triomq.aio.open_client, which has the same "
        "methods"
    )


def _shorthand(
    method: Callable[Concatenate[Client, P], Member],
) -> Callable[Concatenate[NameServers | None, P], AbstractAsyncContextManager[Member]]:
    """A function that opens a client with what one of its methods creates; its arguments are those of the method."""

    @_block
    async def opened(name_servers: NameServers | None, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Member]:
        async with open_client(name_servers) as client, method(client, *args, **kwargs) as member:
            yield member

    functools.update_wrapper(opened, method)
    kind = method.__name__
    opened.__name__ = opened.__qualname__ = f"open_{kind}"
    opened.__module__ = __name__
    opened.__doc__ = f"""Open a client with one {kind.replace("_", " ")}, for as long as the block lasts.

    Args:
        name_servers: as for :func:`open_client`, whose other options need :func:`open_client` itself.

    The other arguments are those of :meth:`triomq.Client.{kind}`.
    """
    signature = inspect.signature(method)
    first = inspect.Parameter("name_servers", inspect.Parameter.POSITIONAL_ONLY, annotation="NameServers | None")
    opened.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[first, *list(signature.parameters.values())[1:]],
        return_annotation=f"AbstractAsyncContextManager[{signature.return_annotation}]",
    )
    return opened


open_producer: Final = _shorthand(Client.producer)
open_pull_consumer: Final = _shorthand(Client.pull_consumer)
open_push_consumer: Final = _shorthand(Client.push_consumer)
open_lite_pull_consumer: Final = _shorthand(Client.lite_pull_consumer)
