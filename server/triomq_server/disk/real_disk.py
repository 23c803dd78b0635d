"""The disk of the operating system: files and directories by their paths, chores in threads, locks of stores."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import resource
import shutil
import stat
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import trio

from triomq_server.compiled import USED as COMPILED
from triomq_server.disk.access import DiskUsage, Entry, MappedFile, StoreLocked, find_only_files
from triomq_server.disk.maps import Maps
from triomq_server.disk.real_files import RealMappedFile, content_end, map_file, sync_directory, write_zeros
from triomq_server.plain_files import not_a_file, open_plain, read_plain, replace_plain

T = TypeVar("T")

_log = logging.getLogger(__name__)

if COMPILED:
    from triomq_server.compiled import directories

THREADS_CURE = "raise the limit of processes (ulimit -u, TasksMax of systemd, the container's limit of pids)"
_THREADS_LOGGED_S = 60.0
"""Interval between log lines about threads that cannot be started."""

_LOOKING_AHEAD = 3  # calls
_LOOKED_AT_ONCE = 64  # directories per call

_locked_paths: set[str] = set()  # POSIX locks do not see a second open in the same process
_locked_paths_guard = threading.Lock()


class RealDisk:
    """The operating system's files.

    Args:
        threads: maximum number of simultaneous chores.
        maps: bounds the number of mapped files.
    """

    def __init__(self, *, threads: int = 4, maps: Maps | None = None) -> None:
        self.maps = maps if maps is not None else Maps()
        self._locked_directories: dict[str, int] = {}
        self._folders: dict[str, set[str]] = {}
        """The locked directories of stores, and the directories below each that are known to exist."""
        self._limiter = trio.CapacityLimiter(threads)
        self._threads_logged = -math.inf
        # Connections and the log's files soon exceed the customary 1024.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def run(self, chore: Callable[[], T]) -> T:
        """Run the chore in a worker thread of our own limiter, or in the loop while the system starts no thread."""
        begun = False

        def in_thread() -> T:
            nonlocal begun
            begun = True
            return chore()

        try:
            return await trio.to_thread.run_sync(in_thread, limiter=self._limiter)
        except RuntimeError as error:
            if begun:
                raise
            if trio.current_time() >= self._threads_logged + _THREADS_LOGGED_S:
                self._threads_logged = trio.current_time()
                _log.warning("%s: all requests wait for the disk meanwhile; %s", error, THREADS_CURE)
            return chore()

    def create(self, path: str, size: int, reserve: int, *, populate: bool = True) -> MappedFile:
        """Create a file, or set an existing one to this size."""
        self.make_directory(os.path.dirname(path))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            blank = os.fstat(fd).st_size == 0
            os.ftruncate(fd, size)
            if reserve:
                os.posix_fallocate(fd, 0, reserve)
                if blank and populate:
                    write_zeros(fd, 0, reserve)
            buffer = map_file(fd, size, self.maps)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        file = RealMappedFile(path, buffer, new=True, maps=self.maps)
        if reserve and populate:
            file.populate(0, reserve)
        return file

    def open(self, path: str) -> MappedFile:
        """Map the full length of a file."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return RealMappedFile(path, map_file(fd, os.fstat(fd).st_size, self.maps), new=False, maps=self.maps)
        finally:
            os.close(fd)

    def size(self, path: str) -> int:
        """The length in bytes."""
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """The modification time."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        """Sorted names."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def entries(self, path: str) -> Sequence[Entry]:
        """Read the directory once, and each file's status once: a start reads tens of thousands of directories."""
        try:
            names = os.scandir(path)
        except FileNotFoundError:
            return []
        found = []
        with names:
            for one in names:
                is_directory = one.is_dir()
                status = None if is_directory else one.stat()
                if status is not None and not stat.S_ISREG(status.st_mode):
                    raise not_a_file(one.path, status.st_mode)
                found.append(Entry(one.name, is_directory, 0 if status is None else status.st_size))
        return sorted(found)

    def only_files(
        self, paths: Iterable[str], length: int, most_bytes: int
    ) -> Generator[tuple[str, bytes] | None, None, None]:
        """Read ahead of the caller in a thread, with compiled code if available: a start has tens of thousands of
        queues to find, and processes each meanwhile."""
        if not COMPILED:
            yield from find_only_files(self, paths, length, most_bytes)
            return
        remaining = iter(paths)
        with ThreadPoolExecutor(1, "triomq looks for files") as pool:
            ahead: deque[Future[list[tuple[str, bytes] | None]]] = deque()
            while True:
                while len(ahead) < _LOOKING_AHEAD and (some := list(islice(remaining, _LOOKED_AT_ONCE))):
                    ahead.append(pool.submit(directories.only_files, some, length, most_bytes))
                if not ahead:
                    return
                yield from ahead.popleft().result()

    def content(self, path: str, most_bytes: int) -> tuple[bytes, int]:
        """Read only content: reading a hole through a descriptor takes no memory, but time."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = content_end(fd, 0, os.fstat(fd).st_size)
            return os.pread(fd, min(end, most_bytes), 0), end
        finally:
            os.close(fd)

    def read_part(self, path: str, start: int, size: int) -> bytes:
        """Read through a descriptor."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, start)
        finally:
            os.close(fd)

    def sync_file(self, path: str, start: int, end: int) -> None:  # noqa: ARG002 - the system syncs files, not ranges
        """Call `fdatasync`."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def is_directory(self, path: str) -> bool:
        """Whether the path is a directory."""
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return os.path.exists(path)

    def is_in_place(self, path: str) -> bool:
        """Compare with the open descriptor: some file systems change the number of an inode that is not open
        anywhere."""
        descriptor = self._locked_directories.get(path)
        try:
            return descriptor is None or os.path.samestat(os.fstat(descriptor), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def make_directory(self, path: str) -> None:
        """Like `mkdir -p`, but OSError (ESTALE) if a directory of a locked store, or the store, existed before: an
        operator who has moved it could not put it back in place of a new one."""
        found = []
        for root, folders in list(self._folders.items()):
            if path != root and not path.startswith(f"{root}/"):
                continue
            below = f"{root}/{path[len(root) + 1 :].partition('/')[0]}".rstrip("/")
            for known in (root, below):
                if (known == root or known in folders) and not os.path.isdir(known):
                    raise OSError(errno.ESTALE, "the directory was moved or removed, put it back", known)
            found.append((folders, below))
        os.makedirs(path, exist_ok=True)
        for folders, below in found:  # only once it exists: the disk may be full
            folders.add(below)

    def remove(self, path: str) -> None:
        """Like `rm -f`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Like `rm -rf`."""
        for folders in list(self._folders.values()):
            folders.discard(path)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: str) -> bytes:
        """Read the whole file."""
        return read_plain(path)

    def write(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write the whole file, and call `fsync`."""
        self.make_directory(os.path.dirname(path))
        with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as f:
            f.write(data)
            f.flush()
            if sync:
                os.fsync(f.fileno())

    def take_permissions(self, path: str, model: str) -> None:
        """Work on a descriptor; the file is never more readable than its model."""
        try:
            wanted = os.stat(model)
        except FileNotFoundError:
            return
        mode = wanted.st_mode & 0o777 | 0o200  # a file that its owner must not write was replaced nevertheless
        fd = open_plain(path, os.O_WRONLY | os.O_CREAT, mode & 0o700)
        try:
            now = os.fstat(fd)
            if now.st_gid != wanted.st_gid:
                try:
                    os.fchown(fd, -1, wanted.st_gid)
                except OSError:
                    mode &= ~0o070 | (mode & 0o007) << 3  # another group gets at most the rights of all others
            if now.st_uid != wanted.st_uid:
                with contextlib.suppress(OSError):  # only root may do it
                    os.fchown(fd, wanted.st_uid, -1)
            if now.st_mode & 0o777 != mode:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)

    def replace(self, source: str, target: str) -> None:
        """Rename the file, and force the directory to the disk."""
        replace_plain(source, target)
        sync_directory(os.path.dirname(target))

    def usage(self, path: str) -> DiskUsage:
        """Call `statvfs` on the path, or on its nearest existing parent."""
        path = os.path.abspath(path)  # the parent of a relative path's first part is ""
        while not os.path.exists(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        s = os.statvfs(path)
        return DiskUsage(s.f_blocks * s.f_frsize, s.f_bfree * s.f_frsize, s.f_bavail * s.f_frsize)

    def boot_id(self) -> str:
        """The kernel's boot id; empty if there is none."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
                return f.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive POSIX lock on the first byte, and make an entry in this process's own list."""
        folder = os.path.dirname(path)
        path = os.path.realpath(path)
        # By its own name: a link to a file system that is not mounted must not be filled.
        os.makedirs(folder, exist_ok=True)
        with _locked_paths_guard:
            if path in _locked_paths:
                raise StoreLocked(f"{path} is locked by this process: the store directory is already open")
            fd = open_plain(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as e:
                os.close(fd)
                if e.errno in (errno.EACCES, errno.EAGAIN):
                    raise StoreLocked(
                        f"{path} is locked: another broker process uses this store directory; stop it, or set another "
                        "storePathRootDir (--store)"
                    ) from None
                raise
            try:
                os.pwrite(fd, b"lock", 0)
                with os.scandir(folder) as found:
                    self._folders[folder] = {one.path for one in found if one.is_dir()}
            except BaseException:
                os.close(fd)
                raise
            _locked_paths.add(path)

        def release() -> None:
            self._folders.pop(folder, None)
            with _locked_paths_guard:
                _locked_paths.discard(path)
                os.close(fd)

        return release

    def lock_directory(self, path: str) -> Callable[[], None]:
        """Call `flock` on the directory itself: RocketMQ takes every name in a log's directory for a log file."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno == errno.EWOULDBLOCK:
                os.close(fd)
                raise StoreLocked(
                    f"the directory {os.path.realpath(path)} is locked: another broker process has its log there; stop "
                    "it, or set another storePathCommitLog"
                ) from None
            # NFS only has locks for files that are open for writing, which a directory never is.
            if e.errno not in (errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                os.close(fd)
                raise
        self._locked_directories[path] = fd
        self._folders[path] = set()

        def release() -> None:
            self._locked_directories.pop(path, None)
            self._folders.pop(path, None)
            # A child process before its exec has this descriptor too: closing is not enough.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

        return release
