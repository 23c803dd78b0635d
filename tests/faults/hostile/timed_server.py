"""A server's command whose loop is timed: the processor time of each turn, and what ran in the long ones.

    python tests/faults/hostile/timed_server.py TURNS broker -c server.conf

A turn is what the loop does from one wait for events to the next, with the wait's own processor time: while it lasts
nobody else is served. Processor time does not grow when the machine is busy with others. TURNS gets a line of JSON for
each turn of `NOTED_S` or more (see `Turn`), and `Turn`s of the last seconds are there at once.
"""

from __future__ import annotations

import functools
import gc
import json
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import attrs
import trio

from triomq_server.__main__ import main

NOTED_S = 0.01
SAMPLED_S = 0.02
"""From then on a turn's stack is looked at, at each `SAMPLE_EVERY_S` of the process's processor time."""
SAMPLE_EVERY_S = 0.005
FRAMES = 20
MOST_LINES = 100_000


@attrs.frozen
class Turn:
    """One turn of a loop.

    Attributes:
        ended_at: on the clock `time.monotonic`, which all processes of a machine share.
        cpu_s: processor time of the loop's thread.
        collecting_s: how much of it the garbage collector took.
        ran: what was seen on the stack from `SAMPLED_S` on, innermost function first, with how often.
    """

    ended_at: float
    cpu_s: float
    collecting_s: float = 0.0
    ran: dict[str, int] = attrs.field(factory=dict)

    def text(self) -> str:
        """One line."""
        most = max(self.ran, key=lambda stack: self.ran[stack], default="")
        return f"{1000 * self.cpu_s:.1f} ms, {1000 * self.collecting_s:.1f} ms of it collecting garbage: {most}"


def read_turns(path: Path) -> list[Turn]:
    """The turns that a timed server has written so far."""
    with path.open() as lines:
        return [Turn(**json.loads(line)) for line in lines if line.endswith("\n")]


class TimedTurns(trio.abc.Instrument):
    """Times the turns of this thread's loop and writes those of `NOTED_S` or more."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines = 0
        self._thread = threading.get_ident()
        self._begun = time.thread_time()
        self._collecting_s = self._collection_begun = 0.0
        self._ran: Counter[str] = Counter()

    def start(self) -> None:
        """From now on the long turns' stacks are looked at."""
        gc.callbacks.append(self._collected)
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_EVERY_S, SAMPLE_EVERY_S)

    def stop(self) -> None:
        """Look no more."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        gc.callbacks.remove(self._collected)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """With its last task the loop ends: it closes the socket that each signal is written to, and a little later tells
        Python so. A signal in between is reported as an error."""
        if task.parent_nursery is None:
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    def before_io_wait(self, timeout: float) -> None:
        """A turn has ended."""
        now = time.thread_time()
        spent = now - self._begun
        if spent >= NOTED_S:
            self._write(Turn(time.monotonic(), spent, self._collecting_s, dict(self._ran)))
            now = time.thread_time()  # what the writing took is in no turn
        self._begun = now
        self._collecting_s = 0.0
        if self._ran:
            self._ran = Counter()

    def _write(self, turn: Turn) -> None:
        self._lines += 1
        if self._lines <= MOST_LINES:
            self._file.write(json.dumps(attrs.asdict(turn)) + "\n")
            self._file.flush()

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        now = time.thread_time()
        if phase == "start":
            self._collection_begun = now
        else:
            self._collecting_s += now - self._collection_begun

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        """Called in the loop's thread, between two instructions of Python: a long call into C is seen at its end."""
        if time.thread_time() - self._begun < SAMPLED_S:
            return
        names: list[str] = []
        while frame is not None and len(names) < FRAMES:
            code = frame.f_code
            names.append(f"{Path(code.co_filename).stem}.{code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        self._ran[" < ".join(names)] += 1


def _timed(run: Any, file: TextIO) -> Any:
    @functools.wraps(run)
    def timed(*arguments: Any, **named: Any) -> Any:
        turns = TimedTurns(file)
        turns.start()
        try:
            return run(*arguments, instruments=[turns], **named)
        finally:
            turns.stop()

    return timed


if __name__ == "__main__":
    _, written, *rest = sys.argv
    with Path(written).open("w") as turns_file:
        trio.run = _timed(trio.run, turns_file)
        main(rest, prog_name="timed_server")
