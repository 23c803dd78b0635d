"""Notes about this run for the next start, in `triomq/boot_id`: the machine's boot, and whether the store was a master's.

After a crash the next start can tell whether only the process has ended, which loses no written bytes. It also knows
whether the log's last bytes are own appends, which are complete or absent, or were copied from a master, in which case
they may end anywhere.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from triomq_server.disk import Disk

_log = logging.getLogger(__name__)

_MASTER = b" master"


class LastRun(NamedTuple):
    """Attributes:
    same_boot: whether the machine has run through since then.
    was_master: whether the log's last bytes are own appends; false if that is not known.
    """

    same_boot: bool
    was_master: bool


def _path(root: str) -> str:
    return f"{root}/triomq/boot_id"


def last_run(disk: Disk, root: str) -> LastRun:
    """What the last run has noted."""
    try:
        noted = disk.read(_path(root))
    except FileNotFoundError:
        return LastRun(same_boot=False, was_master=False)
    boot_id = disk.boot_id().encode()
    same_boot = boot_id != b"" and noted.removesuffix(_MASTER) == boot_id
    return LastRun(same_boot, same_boot and noted.endswith(_MASTER))


def note_run(disk: Disk, root: str, *, is_slave: bool, sync: bool = True) -> None:
    """Note this run. OSError.

    Args:
        disk: access to the files.
        root: the store's directory.
        is_slave: whether a master feeds the log from now on.
        sync: whether the note has to survive a power failure. After a change of the role it need not, since the changed
            boot id is enough.
    """
    disk.write(_path(root), disk.boot_id().encode() + (b"" if is_slave else _MASTER), sync=sync)


def note_role(disk: Disk, root: str, *, is_slave: bool) -> None:
    """Note a change of the role. If that fails, the next start knows nothing of this run, and assumes the worst."""
    try:
        note_run(disk, root, is_slave=is_slave, sync=False)
    except OSError as error:
        _log.warning("%s cannot be written: %s; after a crash, a start takes longer", _path(root), error)
        disk.remove(_path(root))
