"""Explains why a server could not start or continue, in one line with the cause and the remedy.

Anything not listed here is a defect and keeps its traceback.
"""

import errno
import os
import socket
from collections.abc import Iterable, Iterator, Mapping

from triomq_server.config import ConfigError, PropertiesError
from triomq_server.disk import THREADS_CURE, StoreLocked
from triomq_server.disk.config_files import ConfigFileDamaged
from triomq_server.plain_files import NotAFileError
from triomq_server.store.files.segments import StoreDamaged

_CURES = {
    errno.EADDRINUSE: "another program listens on that port; stop it, or set another listenPort (--port)",
    errno.EADDRNOTAVAIL: "this machine has no such address; set brokerIP1 (broker) or bindAddress (name server) to one that it has",
    errno.EACCES: "this user may not do that; ports below 1024 and other users' directories are closed",
    errno.EPERM: "this user may not do that",
    errno.ENOSPC: "the disk is full; free some space, or set storePathRootDir (--store) to a directory on another one",
    errno.ENOENT: "there is no such directory and none can be made; set storePathRootDir (--store) to one that can",
    errno.ENOTDIR: "a file stands where a directory should be; move it away, or set storePathRootDir (--store)",
    errno.ENAMETOOLONG: "the path is too long; set storePathRootDir (--store) to a shorter one",
    errno.ELOOP: "its symbolic links lead back to themselves; set storePathRootDir (--store) to another directory",
    errno.EDQUOT: "this user's quota is used up; free some space, or set storePathRootDir (--store) to another file system",
    errno.EMFILE: "the process may not open more files; raise its limit (ulimit -n, or LimitNOFILE of systemd)",
    errno.ENFILE: "the machine has no more open files to give; raise fs.file-max (sysctl)",
    errno.EAFNOSUPPORT: "this machine does not support that kind of address; give an IPv4 address instead of an IPv6 one",
    errno.EISDIR: "a directory stands where a file should be; move it away",
    errno.EEXIST: "a file stands where a directory should be; move it away, or set storePathRootDir (--store)",
    errno.EROFS: "the file system is read-only; see whether it has faults (dmesg), and mount it writable; if nothing is stored "
    "yet, another storePathRootDir (--store) will do",
}

_UNREADABLE = "this user may not read or write it; look at its owner and mode (ls -l), and at those of its directories"


NO_CURRENT_DIRECTORY = "the current directory has been removed: change to another one (cd), then start again"


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The plain errors inside any number of groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def explain(error: BaseException, settings: Mapping[str, str]) -> str | None:
    """One line for an error that an operator can fix; None if any part of it is a defect.

    Args:
        error: what ended the server, perhaps a group.
        settings: the server's RocketMQ keys, to name ports and directories.
    """
    lines = [_explain_one(leaf, settings) for leaf in leaves(error)]
    known = [line for line in lines if line is not None]
    if len(known) < len(lines) or not known:
        return None
    return "; ".join(dict.fromkeys(known))


def lacks_current_directory(error: OSError) -> bool:
    """Whether a relative path could not be used because the current directory has been removed."""
    if not isinstance(error, FileNotFoundError) or error.filename:
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def explain_not_written(not_written: Iterable[str]) -> str:
    """One line for the items that an orderly stop could not write."""
    return (
        f"stopped, but the disk has not taken everything: {'; '.join(not_written)}. See that it has space, is not read-only "
        "and has no faults (dmesg), then start again: the start checks the store as after a crash"
    )


def _explain_one(error: BaseException, settings: Mapping[str, str]) -> str | None:
    if isinstance(error, ConfigError | PropertiesError):
        return f"bad configuration: {error}"
    if isinstance(error, StoreLocked | StoreDamaged | ConfigFileDamaged):
        return str(error)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return f"{error}: {THREADS_CURE}"
    if isinstance(error, NotAFileError):
        return f"{error.filename}: {error.strerror}; move it away, or name another one, then start again"
    if isinstance(error, socket.gaierror):
        keys = ("brokerIP1", "brokerIP2") if "brokerName" in settings else ("bindAddress",)
        given = ", ".join(f"{key}={settings[key]}" for key in keys if key in settings)
        return (
            f"{error.strerror} ({given}): a host name cannot be resolved; check brokerIP1 and brokerIP2 (broker) or "
            "bindAddress (name server), and the machine's name service"
        )
    if isinstance(error, OSError) and lacks_current_directory(error):
        return NO_CURRENT_DIRECTORY
    if isinstance(error, OSError) and error.errno in _CURES:
        if error.errno in (errno.ENOENT, errno.EEXIST) and (link := _broken_link(error.filename)) is not None:
            return (
                f"{link} is a symbolic link to {os.readlink(link)}, which is not there; mount that file system, or make "
                "what it leads to"
            )
        where = error.filename or _ports(settings) if error.errno != errno.ENOSPC else settings.get("storePathRootDir")
        cure = _UNREADABLE if error.errno == errno.EACCES and error.filename else _CURES[error.errno]
        return f"{error.strerror or error} ({where}): {cure}"
    return None


def _broken_link(path: str | None) -> str | None:
    """The path or the parent directory that is a link to nothing; None if there is none."""
    while path:
        if os.path.islink(path) and not os.path.exists(path):
            return path
        above = os.path.dirname(path)
        path = above if above != path else None
    return None


def _ports(settings: Mapping[str, str]) -> str:
    port = settings.get("listenPort", "?")
    if "brokerName" in settings and port.isdecimal() and port != "0":
        return f"port {port} or its neighbours {int(port) - 2} and {int(port) + 1}"
    return f"port {port}"
