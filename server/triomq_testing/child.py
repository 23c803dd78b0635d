"""The command of `triomq run`: its process, the signals it gets, its end, and the end of all that it has left behind.

Only small modules of the standard library are imported here: the command starts before anything else is loaded. Linux
gives a process whose parent has ended to the nearest subreaper, which this process becomes: so nothing that the command
starts can hide.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

LEFT_BEHIND_GRACE_S = 1.0
"""How long what it has left behind may take."""

NOT_FOUND = 127
NOT_EXECUTABLE = 126
KILLED = 128
"""Exit statuses as shells have them; the number of the signal is added to the last."""


class Child:
    """A command's process and its descendants.

    Signals that end this process go to the command instead.

    Args:
        command: the program and its arguments.
        environment: of the command.
        grace_s: how long it may take to end after a signal.

    Attributes:
        pid: the command's.
        status: its exit status once it has ended; that of shells where a signal ended it.
        deadline: when it is killed, by the monotonic clock; None until the first signal.

    Raises OSError when it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], grace_s: float) -> None:
        self._grace_s = grace_s
        self.status: int | None = None
        self.deadline: float | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)  # until both sides know what to do with them
        before = {number: signal.getsignal(number) for number in self._signals}
        failure_end, write_end = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, environment, before, parent, write_end)
        os.close(write_end)
        for each in self._signals:
            if before[each] is not signal.SIG_IGN:
                signal.signal(each, self._pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
        with open(failure_end, "rb") as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(self.pid, 0)
            errno = int(failure)
            raise OSError(errno, os.strerror(errno), command[0])

    def _become(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        before: Mapping[signal.Signals, object],
        parent: int,
        write_end: int,
    ) -> None:
        """In the forked process: turn into the command."""
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(KILLED + signal.SIGTERM)
            # Python's own handlers and what Python ignores would be strange to the command.
            for each in (*self._signals, signal.SIGPIPE):
                if before.get(each) is not signal.SIG_IGN:
                    signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
            os.execvpe(command[0], list(command), dict(environment))
        except OSError as error:
            os.write(write_end, str(error.errno).encode())
        finally:
            os._exit(NOT_FOUND)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic() + self._grace_s
        if number == signal.SIGINT and _in_foreground():
            return  # the terminal has sent it to the command, too
        self.send(number)

    def send(self, number: int) -> None:
        """Send a signal to the command, if it has not ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Whether the command has ended; `status` says how."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else KILLED - code
        return self.status is not None

    def end_descendants(self) -> int:
        """End what the command has left behind: first asked, then killed.

        Returns:
            How many processes there were.
        """
        asked: set[int] = set()
        deadline = time.monotonic() + LEFT_BEHIND_GRACE_S
        while True:
            _reap()
            left = descendants(os.getpid())
            if not left:
                return len(asked)
            late = time.monotonic() > deadline
            for pid in left:
                if late or pid not in asked:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                        os.kill(pid, signal.SIGCONT)
            asked |= left
            time.sleep(0.01)


def descendants(ancestor: int) -> set[int]:
    """All processes below one, but for those that have ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program, in parentheses, may hold anything.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in b"ZX":
                    children.setdefault(int(parent), []).append(int(name))
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            found.add(pid)
            waiting.append(pid)
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no terminal
        return False
