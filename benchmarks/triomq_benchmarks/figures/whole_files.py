"""Writes files that are complete or absent, even if the disk fills up during a write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give the path of a file beside it, which takes its place at the end of the block; if that fails, it is removed."""
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
