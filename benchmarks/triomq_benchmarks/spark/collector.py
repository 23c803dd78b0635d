"""The driver's end of the links from load generators on a Spark cluster: takes rows, keeps files, answers clocks.

A client has seconds to show the run's token, and each generator has one link of each kind, so that unknown peers cost
nothing.  What a generator has reported is kept, however it ends.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.engine import OnRow
from triomq_benchmarks.spark.link import (
    Agreed,
    ClockAnswer,
    ClockQuestion,
    ClockReport,
    File,
    Finished,
    FrameReader,
    Hello,
    LinkError,
    Message,
    Row,
    Stop,
    encode,
)

HELLO_LIMIT_S: Final = 10.0
RECEIVE_BYTES: Final = 1 << 18
_FILE_NAME: Final = re.compile(r"(acknowledged|consumed)/worker-\d{4,}-\d{6,}\.parquet\Z")
_log = logging.getLogger(__name__)

Keep = Callable[[str, bytes], None]
"""Keeps a file of the ledger; called in a worker thread."""


@attrs.define(eq=False)
class Peer:
    """The driver's view of one load generator.

    Attributes:
        worker: its number.
        host: its machine; empty until it has connected.
        pid: its process id.
        rows: number of its rows that have arrived.
        sent: sum over those rows, for a generator that cannot send its result; so are the next three.
        acked: as `sent`.
        errors: as `sent`.
        consumed: as `sent`.
        clock: its estimate of its clock's offset.
        result: its result, sent at its end.
        gone_at: time at which its link ended without a result, on trio's clock.
        stream: its link, once it has connected.
        arrived: set once it has connected.
        ended: set once its link has ended.
        unkept: why a file of its ledger could not be kept; it sees only the end of a link. Empty: all were.
    """

    worker: int
    host: str = ""
    pid: int = 0
    rows: int = 0
    sent: int = 0
    acked: int = 0
    errors: int = 0
    consumed: int = 0
    clock: ClockReport | None = None
    result: WorkerResult | None = None
    gone_at: float | None = None
    stream: trio.SocketStream | None = attrs.field(default=None, repr=False)
    arrived: trio.Event = attrs.field(factory=trio.Event, repr=False)
    ended: trio.Event = attrs.field(factory=trio.Event, repr=False)
    unkept: str = ""


class Collector:
    """Listens for generators; see `open_collector`."""

    def __init__(
        self,
        workers: int,
        on_row: OnRow,
        keep: Keep | None,
        started: Callable[[float], None],
        say: Callable[[str], None],
    ) -> None:
        self.token = secrets.token_hex(16)
        self.address = ("", 0)
        self.peers = [Peer(worker) for worker in range(workers)]
        self._on_row = on_row
        self._keep = keep
        self._started = started
        self._say = say
        self.agreed = False
        self._scopes: set[trio.CancelScope] = set()
        self._open_files: set[int] = set()

    def take_row(self, peer: Peer, sequence: int, row: IntervalRow) -> None:
        """Accept a generator's row, unless it has arrived before."""
        if sequence < peer.rows:
            return
        peer.rows = sequence + 1
        for counter in ("sent", "acked", "errors", "consumed"):
            setattr(peer, counter, getattr(peer, counter) + getattr(row, counter))
        self._on_row(row)

    async def stop_generators(self, limit_s: float) -> None:
        """Ask all generators to end, and wait until they have reported their results, or `limit_s` is over."""
        with trio.move_on_after(limit_s):
            async with trio.open_nursery() as nursery:
                for peer in self.peers:
                    if peer.stream is not None:
                        nursery.start_soon(self._stop, peer, peer.stream)

    async def _stop(self, peer: Peer, stream: trio.SocketStream) -> None:
        try:
            await stream.send_all(encode(Stop()))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        await peer.ended.wait()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one link, from its first frame to its end.

        Shielded: when the run is cancelled, generators still report their results; `close` ends the links.
        """
        with trio.CancelScope(shield=True) as scope:
            self._scopes.add(scope)
            try:
                async with stream:
                    await self._serve(stream)
            except (trio.BrokenResourceError, LinkError) as error:
                _log.warning("a load generator's link broke: %s", error)
            finally:
                self._scopes.discard(scope)

    def close(self) -> None:
        """End all links."""
        for scope in list(self._scopes):
            scope.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        reader = FrameReader()
        with trio.move_on_after(HELLO_LIMIT_S) as limit:
            messages = await _first_messages(stream, reader)
        if limit.cancelled_caught or not messages:
            return
        hello, *rest = messages
        known = isinstance(hello, Hello) and secrets.compare_digest(hello.token, self.token)
        if not isinstance(hello, Hello) or not known or not 0 <= hello.worker < len(self.peers):
            _log.warning("a client that is not a load generator of this run connected; its link was closed")
            return
        peer = self.peers[hello.worker]
        if hello.files:
            await self._take_files(stream, reader, rest, peer)
        else:
            await self._take_rows(stream, reader, rest, peer, hello)

    async def _take_rows(
        self, stream: trio.SocketStream, reader: FrameReader, first: list[Message], peer: Peer, hello: Hello
    ) -> None:
        if peer.stream is not None:
            return
        peer.host, peer.pid, peer.stream = hello.host, hello.pid, stream
        peer.arrived.set()
        try:
            for message in first:
                await self._take(message, peer, stream)
            while data := await stream.receive_some(RECEIVE_BYTES):
                for message in reader.feed(data):
                    await self._take(message, peer, stream)
        finally:
            if peer.result is None:
                peer.gone_at = trio.current_time()
            peer.ended.set()

    async def _take(self, message: Message, peer: Peer, stream: trio.SocketStream) -> None:
        match message:
            case Row(sequence, row):
                self.take_row(peer, sequence, row)
            case ClockQuestion():
                await stream.send_all(encode(ClockAnswer(time.time_ns())))
            case ClockReport(ahead_ns, error_ns):
                peer.clock = message
                where = f"{peer.host}, pid {peer.pid}"
                self._say(
                    f"clock of worker {peer.worker} ({where}): {ahead_ns / 1e6:+.3f} ms against the driver's, "
                    f"± {error_ns / 1e6:.3f} ms"
                )
            case Agreed(start) if not self.agreed:
                self.agreed = True
                self._started(start)
            case Finished(result):
                peer.result = result
            case _:
                pass

    async def _take_files(
        self, stream: trio.SocketStream, reader: FrameReader, first: list[Message], peer: Peer
    ) -> None:
        if peer.worker in self._open_files or self._keep is None:
            return
        self._open_files.add(peer.worker)
        for message in first:
            await self._take_file(message, peer)
        while data := await stream.receive_some(RECEIVE_BYTES):
            for message in reader.feed(data):
                await self._take_file(message, peer)

    async def _take_file(self, message: Message, peer: Peer) -> None:
        assert self._keep is not None
        if not isinstance(message, File) or not _FILE_NAME.match(message.name):
            raise LinkError("a link for the ledger's files carried something else")
        try:
            await trio.to_thread.run_sync(self._keep, message.name, message.content)
        except OSError as error:
            peer.unkept = f"{message.name} could not be written: {error}"
            raise LinkError(peer.unkept) from error


async def _first_messages(stream: trio.SocketStream, reader: FrameReader) -> list[Message]:
    """The messages of the first receive that completes a frame; none if the link ends before."""
    while data := await stream.receive_some(RECEIVE_BYTES):
        if messages := list(reader.feed(data)):
            return messages
    return []


@asynccontextmanager
async def open_collector(
    host: str,
    workers: int,
    on_row: OnRow,
    keep: Keep | None,
    started: Callable[[float], None],
    say: Callable[[str], None],
) -> AsyncIterator[Collector]:
    """Listen for as long as the block lasts.

    Args:
        host: interface to listen on, which the cluster's workers can reach: that of Spark's own driver.
        workers: number of generators.
        on_row: takes each row once.
        keep: takes each file of the ledger; None: there is no ledger.
        started: takes the common start, on the driver's clock.
        say: takes lines for people, about clocks.
    """
    collector = Collector(workers, on_row, keep, started, say)
    listeners = await trio.open_tcp_listeners(0, host=host)
    collector.address = (host, listeners[0].socket.getsockname()[1])
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, collector.serve, listeners)
        try:
            yield collector
        except BaseException as error:  # noqa: BLE001 - raised again once the links are closed
            failure = error
        collector.close()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
