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
"""Flag of a message that was sent before the run, for a backlog: its age has no meaning."""

_SEQUENCE_BITS = 40
_NUMBER_MAX = (1 << 63) - 1
"""The ledger's numbers have a sign."""

_WORDS = b"the broker answers the client in the order of its queues and the slave follows the log of its master "


@attrs.frozen
class Head:
    """The content of a body's first bytes.

    Attributes:
        run_number: the number of its run.
        number: the message's number in its run: `worker << 40 | sequence`.
        intended_ns: its intended send time, in nanoseconds since the measured part began.
        timed: False for a message sent before the run, for a backlog.
    """

    run_number: int
    number: int
    intended_ns: int
    timed: bool


def number_of(worker: int, sequence: int) -> int:
    """The number of a worker's n-th message."""
    return worker << _SEQUENCE_BITS | sequence


def head(run_number: int, number: int, intended_ns: int, *, timed: bool = True) -> bytes:
    """Build the first bytes of a body."""
    return _HEAD.pack(run_number, 0 if timed else UNTIMED, number, intended_ns)


def read_head(body: bytes) -> Head | None:
    """Parse a body's first bytes; None if it is too short to be ours, or its number is none of a worker's."""
    if len(body) < HEAD_BYTES:
        return None
    run_number, flags, number, intended_ns = _HEAD.unpack_from(body)
    if number > _NUMBER_MAX:
        return None
    return Head(run_number, number, intended_ns, not flags & UNTIMED)


def read_payload(workload: Workload, folder: Path | None = None) -> bytes:
    """The content of the workload's payload file; empty if it has none.

    Args:
        workload: the workload that names the file.
        folder: the base of a relative name.

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
    """The bytes after the head, in as many variants as the workload asks for."""
    if payload:
        return [payload[HEAD_BYTES:]]
    length = workload.body_bytes - HEAD_BYTES
    chance = random.Random(seed)
    drawn = int(length * workload.random_share)
    text = (_WORDS * (length // len(_WORDS) + 1))[: length - drawn]
    return [chance.randbytes(drawn) + text for _ in range(workload.payload_pool)]
