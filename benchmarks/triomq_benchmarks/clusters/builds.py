"""Builds drivers at run time from their sources and public packages, and caches them in the temporary directory.

No part of other clients or of RocketMQ is shipped: Maven, Go and npm fetch the packages named in the drivers' manifests.
A build is keyed by its sources, so that a second run starts at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

DRIVERS = Path(__file__).parents[1] / "drivers"
BUILD_LIMIT_S = 240
_DONE = "done"


class ToolUnavailableError(Exception):
    """A tool is missing, or its packages cannot be downloaded; the message says which, also for tests' skip reasons."""


def find_tool(name: str) -> str:
    """The path of an executable.

    Raises:
        ToolUnavailableError: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise ToolUnavailableError(f"{name} is not installed")
    return found


def cache_folder(key: str) -> Path:
    """A cache folder that outlives the process; only this user can read it.

    Raises:
        ToolUnavailableError: it belongs to another user, who could have put programs there that this one would run.
    """
    root = Path(tempfile.gettempdir()) / f"triomq-builds-{os.getuid()}"
    with suppress(FileExistsError):
        root.mkdir(parents=True, mode=0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ToolUnavailableError(
            f"{root} is another user's, or others may write to it: remove it, or set TMPDIR to a directory of your own"
        )
    folder = root / key
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def digest(paths: Sequence[Path], *extra: str) -> str:
    """A short name for the content of `paths` and the texts `extra`."""
    content = hashlib.sha256("\0".join(extra).encode())
    for path in paths:
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:16]


def version_of(path: Path) -> str:
    """A text for a digest that changes when the program at a path is installed again."""
    return f"{path} {path.stat().st_mtime_ns if path.exists() else 0}"


def run_tool(argv: Sequence[str], what: str, *, cwd: Path | None = None) -> None:
    """Run a build tool to its end.

    Raises:
        ToolUnavailableError: it failed or took too long; the message ends with its output.
    """
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False, cwd=cwd)
    except subprocess.TimeoutExpired as error:
        raise ToolUnavailableError(f"{what} took longer than {BUILD_LIMIT_S} s") from error
    if done.returncode != 0:
        raise ToolUnavailableError(f"{what} failed: {(done.stdout + done.stderr).strip()[-800:]}")


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """Let only one process at a time build in a folder of the cache; the others wait, and then find it built."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(
    folder: Path, argv: Sequence[str], what: str, *, sources: Sequence[Path] = (), cwd: Path | None = None
) -> Path:
    """Run a build tool once for a folder of the cache, with copies of `sources` in it.

    Raises:
        ToolUnavailableError: it failed or took too long.
    """
    with building(folder):
        if not (folder / _DONE).exists():
            for source in sources:
                shutil.copy(source, folder)
            run_tool(argv, what, cwd=cwd)
            (folder / _DONE).touch()
    return folder


def go_driver_command() -> list[str]:
    """Build the driver around client-go, and return the command that starts it. Raises ToolUnavailableError."""
    go = find_tool("go")
    sources = sorted((DRIVERS / "go").iterdir())
    folder = cache_folder(f"go-{digest(sources)}")
    built(
        folder, [go, "build", "-o", "driver", "."], "building the driver around client-go", sources=sources, cwd=folder
    )
    return [str(folder / "driver")]


def node_driver_command() -> list[str]:
    """Install ali-ons next to its driver, and return the command that starts the driver.

    Raises ToolUnavailableError.
    """
    node, npm = find_tool("node"), find_tool("npm")
    sources = sorted((DRIVERS / "node").glob("*.js*"))
    argv = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    folder = cache_folder(f"node-{digest(sources)}")
    return [node, str(built(folder, argv, "installing ali-ons", sources=sources, cwd=folder) / "driver.js")]
