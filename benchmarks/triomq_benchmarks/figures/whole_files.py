"""Writes files that are complete or absent, even if the disk fills up during a write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` at the end of the block unless the block fails.

    A symbolic link stays, and what it points to is replaced. What is no file, such as a device or a pipe, cannot be
    replaced without being lost: its own path is yielded.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{target.name}.tmp")
    try:
        yield unfinished
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
