"""Generators and driver communicate over real sockets, without Spark: rows once, complete files, compared clocks,
rejected peers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.ledger import folder_sink
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.spark.collector import Collector, open_collector
from triomq_benchmarks.spark.engine import _results
from triomq_benchmarks.spark.link import (
    Agreed,
    ClockEstimate,
    ClockReport,
    File,
    Finished,
    FrameReader,
    Hello,
    LinkError,
    Row,
    Stop,
    Uplink,
    encode,
    estimate_clock,
)
from triomq_benchmarks.spark.worker import Report


@attrs.define
class Received:
    """What the driver received."""

    collector: Collector
    rows: list[IntervalRow]
    starts: list[float]
    lines: list[str]

    def hello(self, worker: int = 0, *, files: bool = False, token: str | None = None) -> Hello:
        return Hello(self.collector.token if token is None else token, worker, "host", 42, files)


@asynccontextmanager
async def driver(folder: Path | None = None, workers: int = 2) -> AsyncIterator[Received]:
    rows: list[IntervalRow] = []
    starts: list[float] = []
    lines: list[str] = []
    keep = folder_sink(folder) if folder else None
    with trio.fail_after(20):
        async with open_collector("127.0.0.1", workers, rows.append, keep, starts.append, lines.append) as collector:
            yield Received(collector, rows, starts, lines)


async def in_thread(action, *arguments):
    return await trio.to_thread.run_sync(action, *arguments)


def row(second: int, worker: int = 0) -> IntervalRow:
    return IntervalRow(worker=worker, second=second, sent=10, acked=9, errors=1, consumed=5)


def greet(received: Received) -> None:
    with Uplink.connect(received.collector.address, received.hello()) as link:
        link.estimate_clock()
        link.wait_end()


def files_below(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_the_shortest_round_trip_gives_the_clock() -> None:
    slow = (1_000, 500, 9_000_000)
    quick = (2_000, 1_000, 2_400)  # in the middle it was 2,200 here
    assert estimate_clock([slow, quick, slow]) == ClockEstimate(ahead_ns=1_200, error_ns=200)


def test_two_estimates_cover_both() -> None:
    joined = ClockEstimate(100, 10).join(ClockEstimate(300, 50))
    assert (joined.ahead_ns - joined.error_ns, joined.ahead_ns + joined.error_ns) == (90, 350)


@pytest.mark.parametrize("ahead_ns", [0, 5_000_000_000, -7_000_000])
async def test_a_wrong_clock_is_found_within_the_error(ahead_ns: int) -> None:
    def ask(received: Received) -> ClockEstimate:
        with Uplink.connect(received.collector.address, received.hello()) as link:
            found = link.estimate_clock(lambda: time.time_ns() + ahead_ns)
            link.send(ClockReport(found.ahead_ns, found.error_ns))
            link.wait_end()
        return found

    async with driver() as received:
        found = await in_thread(ask, received)
    assert abs(found.ahead_ns - ahead_ns) <= found.error_ns
    assert received.lines == [
        f"clock of worker 0 (host, pid 42): {found.ahead_ns / 1e6:+.3f} ms against the driver's, ± {found.error_ns / 1e6:.3f} ms"
    ]


async def test_rows_are_received_once_and_a_result_ends_them() -> None:
    result = WorkerResult(worker=1, host="host", pid=42, sent=30)

    def send(received: Received) -> None:
        with Uplink.connect(received.collector.address, received.hello(1)) as link:
            for sequence in (0, 1, 1, 2, 0):
                link.send(Row(sequence, row(sequence, 1)))
            link.send(Agreed(12.5))
            link.send(Agreed(13.5))
            link.send(Finished(result))
            link.wait_end()

    async with driver() as received:
        await in_thread(send, received)
        peer = received.collector.peers[1]
        assert received.rows == [row(0, 1), row(1, 1), row(2, 1)]
        assert received.starts == [12.5], "all agree on the same start: it is reported once"
        assert (peer.host, peer.sent, peer.acked, peer.errors, peer.consumed) == ("host", 30, 27, 3, 15)
        assert (peer.result, peer.gone_at) == (result, None)


async def test_an_end_without_a_result_is_recorded() -> None:
    def send(received: Received) -> None:
        with Uplink.connect(received.collector.address, received.hello()) as link:
            link.send(Row(0, row(0)))

    async with driver() as received:
        await in_thread(send, received)
        await received.collector.peers[0].ended.wait()
        assert received.collector.peers[0].gone_at is not None
        assert received.rows == [row(0)]


async def test_files_arrive_complete_and_only_in_their_folder(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000

    def send(received: Received, name: str) -> None:
        with Uplink.connect(received.collector.address, received.hello(files=True)) as link:
            link.send(File(name, content))
            link.wait_end()

    async with driver(tmp_path) as received:
        await in_thread(send, received, "consumed/worker-0000-000000.parquet")
    assert (tmp_path / "consumed" / "worker-0000-000000.parquet").read_bytes() == content
    async with driver(tmp_path / "in") as received:
        await in_thread(send, received, "../worker-0000-000000.parquet")
    assert files_below(tmp_path) == ["worker-0000-000000.parquet"]


@pytest.mark.parametrize("failure", ["", "the ledger of worker 0 could not be written: Broken pipe"])
async def test_a_file_that_cannot_be_kept_is_the_reason_of_its_generator(tmp_path: Path, failure: str) -> None:
    name = "consumed/worker-0000-000000.parquet"
    (tmp_path / name).mkdir(parents=True)  # something is in the way

    def send(received: Received) -> None:
        with (
            contextlib.suppress(OSError, LinkError),
            Uplink.connect(received.collector.address, received.hello(files=True)) as link,
        ):
            link.send(File(name, b"content"))
            link.wait_end()

    async with driver(tmp_path) as received:
        await in_thread(send, received)
        report = Report(WorkerResult(worker=0, host="host", pid=42, failure=failure), [])
        found = _results(received.collector, [report], None)[0].failure
    assert found.startswith(f"{name} could not be written: [Errno ")
    assert found.endswith(failure)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("first", ["wrong token", "no such worker", "no hello", "garbage", "too long"])
async def test_unauthorized_peers_are_rejected(first: str) -> None:
    def send(received: Received) -> bytes:
        frames = {
            "wrong token": encode(received.hello(token="guess")),
            "no such worker": encode(received.hello(7)),
            "no hello": encode(Row(0, row(0))),
            "garbage": b"\0\0\0\4GET ",
            "too long": b"\x7f\0\0\0",
        }
        with socket.create_connection(received.collector.address, 10) as link:
            link.sendall(frames[first] + encode(Row(0, row(0))))
            try:
                return link.recv(100)
            except ConnectionResetError:
                return b""

    async with driver() as received:
        assert await in_thread(send, received) == b""
        assert received.rows == []
        # Other links are not affected.
        await in_thread(greet, received)
        assert received.collector.peers[0].host == "host"


async def test_stop_reaches_generators_and_they_may_still_send() -> None:
    def send(received: Received) -> bool:
        with Uplink.connect(received.collector.address, received.hello()) as link:
            reader, messages = FrameReader(), []
            while not messages:
                data = link.socket.recv(1000)
                if not data:
                    return False
                messages += reader.feed(data)
            link.send(Row(0, row(3)))
            return isinstance(messages[0], Stop)

    answers: list[bool] = []
    # As when a run is cancelled, the collector with it: what generators send then must still be received.
    with trio.CancelScope() as run:
        async with driver() as received, trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True

            async def generator() -> None:
                answers.append(await in_thread(send, received))

            nursery.start_soon(generator)
            await received.collector.peers[0].arrived.wait()
            run.cancel()
            await received.collector.stop_generators(10)
            assert received.rows == [row(3)]
    assert answers == [True]


async def test_the_wait_for_a_stop_is_bounded() -> None:
    async with driver() as received:
        link = await in_thread(Uplink.connect, received.collector.address, received.hello())
        with link:
            await received.collector.peers[0].arrived.wait()
            begin = trio.current_time()
            await received.collector.stop_generators(0.2)
            assert trio.current_time() - begin < 5


def test_frames_are_decoded_however_they_are_split() -> None:
    messages = [Row(0, row(0)), Stop(), Agreed(1.5)]
    data = b"".join(map(encode, messages))
    reader = FrameReader()
    assert [message for at in range(len(data)) for message in reader.feed(data[at : at + 1])] == messages
    with pytest.raises(LinkError, match="longer than"):
        list(reader.feed(b"\xff\xff\xff\xff"))
