"""Writes files that are complete or absent, even if the disk fills up during a write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` at the end of the block unless the block fails."""
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
