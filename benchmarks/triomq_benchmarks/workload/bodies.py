"""Bodies of a run's messages: 24 bytes that name the message and its intended instant, then payload.

The head travels in the body, since a property would cost every message several times its size on the wire and the time
to parse it.  By it a consumer knows which message it got, from which run, and how late.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import attrs

from triomq_benchmarks.workload.workload import HEAD_BYTES, Workload, WorkloadError

_HEAD = struct.Struct(">IIQq")
assert _HEAD.size == HEAD_BYTES

UNTIMED = 1
"""Flag of a message that was sent ahead of the run, for a backlog: its age means nothing."""

_SEQUENCE_BITS = 40
_WORDS = b"the broker answers the client in the order of its queues and the slave follows the log of its master "


@attrs.frozen
class Head:
    """What a body's first bytes say.

    Attributes:
        run_number: of the run it belongs to.
        number: of the message in its run: `worker << 40 | sequence`.
        intended_ns: when it was meant to be sent, in nanoseconds since the measured part began.
        timed: False for one sent ahead, for a backlog.
    """

    run_number: int
    number: int
    intended_ns: int
    timed: bool


def number_of(worker: int, sequence: int) -> int:
    """The number of a worker's n-th message."""
    return worker << _SEQUENCE_BITS | sequence


def head(run_number: int, number: int, intended_ns: int, *, timed: bool = True) -> bytes:
    """The first bytes of a body."""
    return _HEAD.pack(run_number, 0 if timed else UNTIMED, number, intended_ns)


def read_head(body: bytes) -> Head | None:
    """What a body's first bytes say; None for one that is too short to be ours."""
    if len(body) < HEAD_BYTES:
        return None
    run_number, flags, number, intended_ns = _HEAD.unpack_from(body)
    return Head(run_number, number, intended_ns, not flags & UNTIMED)


def read_payload(workload: Workload, folder: Path | None = None) -> bytes:
    """The content of the workload's payload file; empty where there is none.

    Args:
        workload: names the file.
        folder: what a relative name is relative to.

    Raises:
        WorkloadError: it cannot be read, or is too small.
    """
    if workload.payload_file is None:
        return b""
    path = Path(workload.payload_file)
    try:
        content = ((folder or Path()) / path).read_bytes()
    except OSError as error:
        raise WorkloadError(f"payload_file {path} cannot be read: {error.strerror}") from error
    if len(content) < HEAD_BYTES:
        raise WorkloadError(f"payload_file {path} has {len(content)} bytes; a body has at least {HEAD_BYTES}")
    return content


def payloads(workload: Workload, payload: bytes, seed: str) -> list[bytes]:
    """What follows the head, in as many variants as the workload wants."""
    if payload:
        return [payload[HEAD_BYTES:]]
    length = workload.body_bytes - HEAD_BYTES
    chance = random.Random(seed)
    drawn = int(length * workload.random_share)
    text = (_WORDS * (length // len(_WORDS) + 1))[: length - drawn]
    return [chance.randbytes(drawn) + text for _ in range(workload.payload_pool)]
