"""The parts of the log that have been repaired since the last start, in `triomq/repairedLog.json`.

`log_repair` notes them; the next start makes the queue entries of their records again, and keeps the note until these
are on the disk.
"""

from __future__ import annotations

import logging

import msgspec

from triomq_protocol.wire import fastjson
from triomq_server.disk import Disk
from triomq_server.disk.config_files import ConfigFile, ConfigFileDamaged

_log = logging.getLogger(__name__)


def _path(root: str) -> str:
    return f"{root}/triomq/repairedLog.json"


def repaired_parts(disk: Disk, root: str) -> list[tuple[int, int]]:
    """The repaired ranges of the log; empty if the note cannot be read."""
    try:
        content = ConfigFile(_path(root), disk).load()
        return [] if content is None else msgspec.convert(content, list[tuple[int, int]])
    except (ConfigFileDamaged, msgspec.ValidationError) as error:
        _log.error("%s: %s; repaired records may lack their queue entries", _path(root), error)
        return []


def note_repaired(disk: Disk, root: str, start: int, stop: int) -> None:
    """Note a part before it is written. OSError."""
    parts = dict.fromkeys([*repaired_parts(disk, root), (start, stop)])
    disk.make_directory(f"{root}/triomq")
    ConfigFile(_path(root), disk).save(fastjson.dumps([list(part) for part in parts]))


def forget_repaired(disk: Disk, root: str) -> None:
    """Delete the note: the queue entries of the repaired parts are on the disk."""
    # The backup first: without the file it would count.
    disk.remove(f"{_path(root)}.bak")
    disk.remove(_path(root))
