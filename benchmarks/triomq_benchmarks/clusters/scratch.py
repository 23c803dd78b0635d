"""Temporary folders whose removal never fails: a measurement must not be lost by it."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)


@contextmanager
def scratch_folder(prefix: str, within: Path | None = None) -> Iterator[str]:
    """A temporary folder while the block lasts; if it cannot be removed then, a warning is logged.

    `tempfile.TemporaryDirectory` raises if a folder's rights were taken away, whatever its options, or calls itself
    without end.

    Args:
        prefix: the beginning of its name.
        within: where it is made; default: the system's folder, or TMPDIR.

    Raises:
        OSError: it cannot be made.
    """
    folder = tempfile.mkdtemp(prefix=prefix, dir=within)
    try:
        yield folder
    finally:
        left: list[BaseException] = []
        shutil.rmtree(folder, onerror=lambda _function, _path, info: left.append(info[1]))
        if any(not isinstance(error, FileNotFoundError) for error in left):
            _log.warning("the temporary folder %s could not be removed, and stays: %s", folder, left[0])
