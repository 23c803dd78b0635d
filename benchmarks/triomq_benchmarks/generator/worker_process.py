"""A child process of `ProcessEngine`: reads its share, runs it, writes rows and its result as lines of JSON.

Started as `python -m triomq_benchmarks.generator.worker_process`. Standard input brings the share (pickled by the
parent, which is the same installation), then the common start; its end ends the run, whatever else happens.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys

import msgspec
import trio

import triomq
from triomq_benchmarks.figures.intervals import IntervalRow
from triomq_benchmarks.figures.ledger import LedgerError
from triomq_benchmarks.figures.run_result import WorkerResult
from triomq_benchmarks.generator.engine import Share, plain_errors
from triomq_benchmarks.generator.worker import run_share, share_ledger


def _write(kind: str, value: object) -> None:
    # One write of a whole line: the pipe is the parent's, which reads it all the time.
    data = msgspec.json.encode({kind: value}) + b"\n"
    while data:
        data = data[os.write(1, data) :]


async def _run(share: Share) -> None:
    """Run the share until standard input ends."""
    lines = trio.lowlevel.FdStream(os.dup(0))
    async with lines, trio.open_nursery() as nursery:
        begin: list[float] = []
        start_known = trio.Event()

        async def listen() -> None:
            received = b""
            while data := await lines.receive_some():
                received += data
                if b"\n" in received:
                    begin.append(float(received.split()[1]))
                    start_known.set()
                    received = b""
            nursery.cancel_scope.cancel()

        async def agree(earliest: float) -> float:
            _write("ready", earliest)
            await start_known.wait()
            return begin[0]

        nursery.start_soon(listen)
        _write("result", await _result(share, agree))
        nursery.cancel_scope.cancel()


async def _result(share: Share, agree: object) -> WorkerResult:
    def emit(row: IntervalRow) -> None:
        _write("row", row)

    with share_ledger(share) as ledger:
        return await run_share(share, emit, ledger, agree_start=agree)  # type: ignore[arg-type]


def main() -> int:
    """Run one share; exit code 1 if it could not be run."""
    share: Share = pickle.loads(base64.b64decode(_first_line()))
    failure: str | None = None
    try:
        trio.run(_run, share)
    except* (triomq.MQError, LedgerError) as errors:
        failure = str(plain_errors(errors)[0])
    if failure is not None:
        _write("error", failure)
    return int(failure is not None)


def _first_line() -> bytes:
    """Read the first line of standard input, before the loop runs; exits if there is none."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 16)
        if not data:
            sys.exit(0)
        line += data
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
