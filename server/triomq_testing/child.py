"""The command of `triomq run`: its process, its signals, its end, and the end of all processes that it leaves behind.

The command's parent is not the process of `triomq run` but a small watcher, forked from it: if that process is killed,
the watcher still ends the command and removes the cluster's files. Only small modules of the standard library are
imported here, since the watcher is forked before anything else is loaded. Linux gives a process whose parent has ended
to the nearest subreaper, which is the watcher, so no process that the command starts can escape. If the watcher is
killed, the process of `triomq run` is the next subreaper.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

LEFT_BEHIND_GRACE_S = 1.0
"""How long the processes that the command leaves behind may take to end."""

NOT_FOUND = 127
NOT_EXECUTABLE = 126
KILLED = 128
"""Exit statuses as in shells; the number of the signal is added to the last."""

_FROM_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
"""Ctrl-C and Ctrl-\\: a terminal sends these to all processes in the foreground."""
_PASSED_ON = (*_FROM_TERMINALS, signal.SIGTERM, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_END = signal.SIGUSR1
"""The signal from the parent to the watcher when the cluster has ended."""


class NotStartedError(OSError):
    """The command cannot be started: there is no such program, or it cannot be executed."""


class Child:
    """A command's process and its descendants.

    The process exists at once, but becomes the command only in `start`. Signals that would end this process are blocked
    from now on; `pass_on` sends them to the command.

    Args:
        command: the program and its arguments.
        environment: the command's environment.
        grace_s: how many seconds it may take to end after a signal.

    Attributes:
        pid: the command's process id.
        descriptor: a descriptor that becomes readable when it has ended.
        status: its exit status once it has ended; as in shells if a signal ended it.
        deadline: when it is killed, by the monotonic clock; None until the first signal, SIGQUIT not counted: Java and Go
            print their stacks then, and Java continues.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], grace_s: float) -> None:
        self._program = command[0]
        self._grace_s = grace_s
        self.status: int | None = None
        self.deadline: float | None = None
        _become_subreaper()
        # Until all processes handle them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, _END, signal.SIGCHLD))
        failure, tell_failure = os.pipe2(os.O_CLOEXEC)
        wait_start, start = os.pipe2(os.O_CLOEXEC)
        end, tell_end = os.pipe2(os.O_CLOEXEC)
        self.descriptor: int = end
        os.set_blocking(self.descriptor, False)
        parent = os.getpid()
        self._watcher = os.fork()
        if self._watcher == 0:
            _watch(command, environment, mask, parent, wait_start, tell_failure, tell_end)
        for descriptor in (wait_start, tell_failure, tell_end):
            os.close(descriptor)
        # Those that are ignored would stay pending if they were blocked.
        self._passed_on = [each for each in _PASSED_ON if signal.getsignal(each) is not signal.SIG_IGN]
        self._failure = open(failure, "rb")  # noqa: SIM115 -- closed by `end`, like the next
        self._start = open(start, "wb", buffering=0)  # noqa: SIM115
        self.pid: int = int(self._failure.read1(16) or 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, *self._passed_on})

    def start(self) -> None:
        """Let the process become the command, unless it has ended. Raises NotStartedError."""
        with contextlib.suppress(BrokenPipeError), self._start:
            self._start.write(b"1")
        failure = int(self._failure.read() or 0)  # returns once it is the command, or has ended
        if failure:
            raise NotStartedError(failure, os.strerror(failure), self._program)

    @property
    def is_started(self) -> bool:
        """Whether :meth:`start` was called."""
        return self._start.closed

    def pass_on(self) -> None:
        """Send the command the signals that have arrived, unless a terminal has sent them to the command, too."""
        while (got := signal.sigtimedwait(self._passed_on, 0)) is not None:
            if self.deadline is None and got.si_signo != signal.SIGQUIT:
                self.deadline = time.monotonic() + self._grace_s
            if got.si_code <= 0 or got.si_signo not in _FROM_TERMINALS:  # positive if it comes from the kernel
                self.send(got.si_signo)

    def send(self, number: int) -> None:
        """Send a signal to the command, if it has not ended."""
        if not self.has_ended() and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Whether the command has ended; `status` is then set."""
        if self.status is None:
            with contextlib.suppress(BlockingIOError):
                # Nothing if the watcher was killed, which the command cannot outlive.
                self.status = int(os.read(self.descriptor, 16) or KILLED + signal.SIGKILL)
        return self.status is not None

    def end(self) -> None:
        """End the processes that the command left behind, by a signal and then by force. Call it after the cluster."""
        self._start.close()
        self._failure.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._watcher, _END)
        if os.waitpid(self._watcher, 0)[1]:  # it was killed, and they are this process's children now
            end_descendants()


def _watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: Collection[int],
    parent: int,
    wait_start: int,
    tell_failure: int,
    tell_end: int,
) -> NoReturn:
    """In the watcher: fork the command's process; end what is left of it on the parent's signal or death."""
    status = 0
    try:
        _close_all_but(wait_start, tell_failure, tell_end)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how the command has ended
        libc = _become_subreaper()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        watcher = os.getpid()
        child = os.fork()
        if child == 0:
            _become(command, environment, mask, watcher, wait_start, tell_failure)
        os.close(wait_start)
        os.close(tell_failure)
        while os.getppid() == parent:
            got = signal.sigwaitinfo((*_PASSED_ON, _END, signal.SIGCHLD))
            if got.si_signo == _END and got.si_pid == parent:
                break
            _reap(child, tell_end)
        end_descendants()
        if os.getppid() != parent:
            from triomq_testing.directories import remove_left_behind

            remove_left_behind()
    except Exception:  # noqa: BLE001 - reported here, since no caller is left
        status = 1
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: Collection[int],
    watcher: int,
    wait_start: int,
    tell_failure: int,
) -> NoReturn:
    """In the watcher's child: wait for the start, then turn into the command."""
    try:
        os.write(tell_failure, b"%d" % os.getpid())
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != watcher:
            os._exit(KILLED + signal.SIGTERM)
        # The command must not inherit Python's own handlers and ignored signals.
        for each in (*_PASSED_ON, *_IGNORED_BY_PYTHON):
            if each in _IGNORED_BY_PYTHON or signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.read(wait_start, 1):
            os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        os.write(tell_failure, str(error.errno).encode())
    finally:
        os._exit(NOT_FOUND)


def _close_all_but(*kept: int) -> None:
    """Close this program's descriptors; those that it was given for the command stay open."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            if int(name) not in kept and not os.get_inheritable(int(name)):
                os.close(int(name))


def end_descendants() -> None:
    """End all descendants of this process, by a signal and then by force."""
    asked: set[int] = set()
    deadline = time.monotonic() + LEFT_BEHIND_GRACE_S
    while True:
        _reap()
        left = descendants(os.getpid())
        if not left:
            return
        late = time.monotonic() > deadline
        for pid in left:
            if late or pid not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
        asked |= left
        time.sleep(0.01)


def descendants(ancestor: int) -> set[int]:
    """All descendants of a process, except those that have ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The program's name, in parentheses, may contain any bytes.
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


def _reap(child: int = 0, tell_end: int = -1) -> None:
    """Reap children that have ended; report first how the given one ended, whose pid is not reused until then."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == child:
                code = ended.si_status if ended.si_code == os.CLD_EXITED else KILLED + ended.si_status
                with contextlib.suppress(BrokenPipeError):
                    os.write(tell_end, b"%d" % code)
            os.waitpid(ended.si_pid, 0)


def _become_subreaper() -> ctypes.CDLL:
    libc = _libc()
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return libc


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
