"""What load generators on a Spark cluster and their driver say to each other while a run lasts, and how clocks are
compared.

Spark brings results home at the end of a stage only. So each generator opens two links to the driver: one for rows, its
result and the word to stop, one for finished files of its ledger, written by the ledger's own thread. Frames are a
length of four bytes and a MessagePack value; the first must carry the run's token. The driver's end is in
`collector.py`.

Clocks. A generator asks the driver for its clock many times, each time noting its own before and after. Whatever the
way there and the way back took, the driver answered in between: the answer belongs to the middle, and cannot be wrong
by more than half the round trip. The quickest round trip of all gives the estimate and its error, as in NTP.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

import attrs
import msgspec

from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.run_result import WorkerResult

FRAME_BYTES_MAX: Final = 64 << 20
CONNECT_LIMIT_S: Final = 15.0
CLOCK_ROUNDS: Final = 40
_CLOCK_PAUSE_S: Final = 0.002
_LENGTH: Final = struct.Struct(">I")


class LinkError(Exception):
    """Data that is not a frame, or a link that ended too early."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first frame of each link.

    Attributes:
        token: the run's token, so that no other process is taken for a generator.
        worker: the generator's number.
        host: its machine.
        pid: its process id.
        files: whether this link is the one for the ledger's files.
    """

    token: str
    worker: int
    host: str
    pid: int
    files: bool = False


class ClockQuestion(msgspec.Struct, tag="clock?", frozen=True):
    """A request for the driver's clock."""


class ClockAnswer(msgspec.Struct, tag="clock", frozen=True):
    """The driver's wall clock, in nanoseconds since the epoch."""

    driver_ns: int


class ClockReport(msgspec.Struct, tag="clock report", frozen=True):
    """A generator's estimate of its own clock, in nanoseconds."""

    ahead_ns: int
    error_ns: int


class Agreed(msgspec.Struct, tag="agreed", frozen=True):
    """The common start, in seconds since the epoch on the driver's clock."""

    start: float


class Row(msgspec.Struct, tag="row", frozen=True):
    """An increment; `sequence` counts a generator's rows from 0."""

    sequence: int
    row: IntervalRow


class File(msgspec.Struct, tag="file", frozen=True):
    """A file of the ledger."""

    name: str
    content: bytes


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """The end of a generator."""

    result: WorkerResult


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """The driver's command to end early, and to report all results so far."""


Message = Hello | ClockQuestion | ClockAnswer | ClockReport | Agreed | Row | File | Finished | Stop
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encode a message as a whole frame."""
    content = _encoder.encode(message)
    return _LENGTH.pack(len(content)) + content


class FrameReader:
    """Splits bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterable[Message]:
        """Add bytes; returns the messages that are complete now.

        Raises:
            LinkError: the data is not one of our frames, or a frame is too long.
        """
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > FRAME_BYTES_MAX:
                raise LinkError(f"a frame of {length} bytes is longer than {FRAME_BYTES_MAX}")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            content = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            try:
                yield _decoder.decode(content)
            except msgspec.MsgspecError as error:
                raise LinkError(f"a frame cannot be read: {error}") from error


@attrs.frozen
class ClockEstimate:
    """The difference between a clock and the driver's.

    Attributes:
        ahead_ns: this clock minus the driver's.
        error_ns: the maximum error of that value, in either direction.
    """

    ahead_ns: int
    error_ns: int

    def join(self, later: ClockEstimate) -> ClockEstimate:
        """Combine both estimates: their middle, and an error that covers both, drift included."""
        low = min(self.ahead_ns - self.error_ns, later.ahead_ns - later.error_ns)
        high = max(self.ahead_ns + self.error_ns, later.ahead_ns + later.error_ns)
        return ClockEstimate((low + high) // 2, -((low - high) // 2))


def estimate_clock(rounds: Iterable[tuple[int, int, int]]) -> ClockEstimate:
    """Estimate a clock from rounds of question and answer.

    Args:
        rounds: own clock before, the driver's clock, own clock after; nanoseconds, at least one round.
    """
    before, driver, after = min(rounds, key=lambda one: one[2] - one[0])
    return ClockEstimate((before + after) // 2 - driver, max(1, (after - before + 1) // 2))


class Uplink:
    """A generator's end of a link, blocking; the run's loop uses the socket only between `connect` and the end."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._reader = FrameReader()

    @classmethod
    def connect(cls, address: tuple[str, int], hello: Hello) -> Uplink:
        """Open a link to the driver.

        Raises:
            OSError: it cannot be reached.
        """
        sock = socket.create_connection(address, CONNECT_LIMIT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = cls(sock)
        link.send(hello)
        return link

    def send(self, message: Message) -> None:
        """Send one frame."""
        self.socket.sendall(encode(message))

    def estimate_clock(self, clock_ns: Callable[[], int] = time.time_ns) -> ClockEstimate:
        """Compare this machine's clock with the driver's; takes about a tenth of a second.

        Raises:
            LinkError: the driver did not answer.
        """
        question = encode(ClockQuestion())
        rounds = []
        for _ in range(CLOCK_ROUNDS):
            before = clock_ns()
            self.socket.sendall(question)
            answer = self._receive()
            after = clock_ns()
            if isinstance(answer, ClockAnswer):
                rounds.append((before, answer.driver_ns, after))
            time.sleep(_CLOCK_PAUSE_S)
        if not rounds:
            raise LinkError("the driver did not send its clock")
        return estimate_clock(rounds)

    def wait_end(self) -> None:
        """Announce that nothing more follows, and wait until the driver has received everything."""
        self.socket.shutdown(socket.SHUT_WR)
        while self.socket.recv(1 << 16):
            pass

    def _receive(self) -> Message:
        while True:
            data = self.socket.recv(1 << 16)
            if not data:
                raise LinkError("the driver closed the link")
            for message in self._reader.feed(data):
                return message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
