"""Child processes of the benchmarks and the interop tests: start, wait until they serve, measure, end by pid.

Every wait has a limit. A child's output goes to a file, so that it never blocks on a full pipe and an error can quote
it. CPU time and memory are read from `/proc`, in the same way for every language.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import msgspec
import trio

from triomq_command.ending_signals import signals_put_off

START_LIMIT_S = 120
STOP_LIMIT_S = 60
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ChildError(Exception):
    """A child process died, did not get ready or did not answer in time; the message quotes its output."""


def check_cancelled() -> None:
    """Raise `trio.Cancelled` in a thread whose task in trio's loop was cancelled; elsewhere, do nothing."""
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:
        return  # not a thread of trio


@attrs.frozen
class Memory:
    """Resident memory in bytes, from `/proc/<pid>/status`.

    Attributes:
        total_bytes: all resident pages.
        own_bytes: without pages of mapped files (a mapped store counts as resident as soon as it is touched).
    """

    total_bytes: int
    own_bytes: int


class Child:
    """A process that we started, with its output in a file."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, pipes: bool = False
    ) -> None:
        """Start `argv`; with `pipes`, its standard input and output are ours and `log` has only its errors."""
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self.started_at = time.perf_counter()
        try:
            with log.open("ab") as out, signals_put_off():
                self.process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipes else out,
                    stderr=out,
                    env={**os.environ, **env} if env else None,
                    # Admin tools leave files in their working directory.
                    cwd=log.parent,
                    start_new_session=True,
                )
        except KeyboardInterrupt:
            # The caller does not get this object, and the process, in a session of its own, no Ctrl-C.
            if hasattr(self, "process"):
                self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def output(self) -> str:
        """The end of the child's output."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def failure(self, what: str) -> ChildError:
        """An error about this child that quotes its output."""
        return ChildError(
            f"{self.name} (pid {self.pid}, exit {self.process.poll()}) {what}; it printed:\n{self.output()}"
        )

    def wait_until(self, ready: Callable[[], bool], limit_s: float = START_LIMIT_S, pause_s: float = 0.005) -> float:
        """Call `ready` until it returns true; return the seconds since the child was started.

        Raises:
            ChildError: the child died first, or `limit_s` passed.
        """
        deadline = time.perf_counter() + limit_s
        while not ready():
            if not self.alive:
                raise self.failure("ended before it was ready")
            if time.perf_counter() > deadline:
                raise self.failure(f"was not ready within {limit_s:.0f} s")
            check_cancelled()
            time.sleep(pause_s)
        return time.perf_counter() - self.started_at

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def memory(self) -> Memory:
        """Resident memory now."""
        pages: dict[str, int] = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in {"VmRSS", "RssAnon"}:
                pages[name] = int(value.split()[0]) * 1024
        return Memory(total_bytes=pages["VmRSS"], own_bytes=pages["RssAnon"])

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Send SIGTERM, wait, and send SIGKILL if it still runs; return the exit code (negative: the signal)."""
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self._reap()

    def kill(self) -> None:
        """Send SIGKILL, like a crash, and wait until it has ended."""
        if self.alive:
            self.process.send_signal(signal.SIGKILL)
        self._reap()

    def _reap(self) -> int:
        code = self.process.wait(STOP_LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # it no longer reads the buffered rest
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class DriverError(Exception):
    """A driver process answered that the command failed; the message is the driver's own."""


class Driver(Child):
    """A child that takes one JSON object per line and answers each with one JSON object per line."""

    def __init__(self, name: str, argv: Sequence[str], log: Path) -> None:
        super().__init__(name, argv, log, pipes=True)
        self._pending = bytearray()

    def call(self, command: Mapping[str, object], limit_s: float) -> dict[str, object]:
        """Send one command and wait for its answer.

        Raises:
            DriverError: the answer has an `error`.
            ChildError: the driver died or did not answer within `limit_s`; it can no longer be used.
        """
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(command) + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise self.failure("takes no more commands") from error
        answer = msgspec.json.decode(self._line(limit_s), type=dict[str, object])
        if "error" in answer:
            raise DriverError(f"{self.name}: {answer['error']}")
        return answer

    def _line(self, limit_s: float) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None
        deadline = time.perf_counter() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._pending.partition(b"\n")
                if newline:
                    self._pending = rest
                    return bytes(line)
                if not selector.select(max(0.0, deadline - time.perf_counter())):
                    raise self.failure(f"did not answer within {limit_s:.0f} s")
                data = os.read(stdout.fileno(), 1 << 16)
                if not data:
                    raise self.failure("closed its output")
                self._pending += data


@contextmanager
def reserved_port(*beside: int) -> Iterator[int]:
    """Reserve a free loopback port, and its neighbours at the distances `beside`, while the block lasts.

    The same search in any process finds another port; so a server may start late, end and start again. It must set
    SO_REUSEADDR, as most do. The port is below those that systems use for outgoing connections: one of these could take
    it before the server does.

    Raises:
        OSError: none was found.
    """
    chance = random.SystemRandom()
    for _ in range(200):
        port = chance.randrange(10_000, 32_000)
        with ExitStack() as stack:
            try:
                for distance in (0, *beside):
                    # Exclusive until it is bound; then a server may listen on it, because this socket does not.
                    link = stack.enter_context(socket.socket())
                    link.bind(("127.0.0.1", port + distance))
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError:
                continue
            yield port
            return
    raise OSError("found no free ports on the loopback interface")


@contextmanager
def kept_port(port: int, *beside: int) -> Iterator[int]:
    """Reserve a known port, whose server may be running, so that no other process takes it during a restart."""
    with ExitStack() as stack:
        for distance in (0, *beside):
            link = stack.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # its server listens, and so keeps the port
                link.bind(("127.0.0.1", port + distance))
        yield port
