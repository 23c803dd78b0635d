"""How much one step of recovery does. Between two steps the event loop gets its turns."""

from __future__ import annotations

from collections.abc import Generator

Steps = Generator[None, None, None]
"""Work in pieces: what is run to its end, a step at a time."""

RECORDS_PER_STEP = 2000
BYTES_PER_STEP = 1 << 23
QUEUES_PER_STEP = 64
