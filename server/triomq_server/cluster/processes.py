"""A cluster of processes: one per node, forked from a parent that has imported everything once.

The parent runs no event loop; it starts the nodes, waits for signals and commands, and reports ended nodes. A node can be
killed like any process, and started again. Nodes end when the parent does, however it ends: they hold the reading end
of a pipe that only the parent can write to. The events are plain dictionaries, for people or for `--json`.
"""

import json
import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import NoReturn

import attrs

from triomq_command.ending_signals import ending_signals
from triomq_command.garbage import importing
from triomq_server.cluster.control import VERBS, ControlError, ControlSocket, words_of
from triomq_server.cluster.plan import ClusterPlan, NodePlan
from triomq_server.config import ConfigError
from triomq_server.process.age import seconds_since_start

Event = dict[str, object]

_GRACE_S = 15.0
"""Maximum duration of an orderly stop, after which the process is killed."""


_SIGNALS = {
    "stop": (signal.SIGTERM, signal.SIGCONT),  # a paused process acts on SIGTERM when it continues
    "kill": (signal.SIGKILL,),
    "pause": (signal.SIGSTOP,),
    "resume": (signal.SIGCONT,),
}
"""The signals that each command on standard input sends to its node."""


_HANDLED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals for which parent or node has a handler, or which the node ignores."""


class StartError(Exception):
    """A node could not start; the text names it and the cause."""


@attrs.define
class _Process:
    plan: NodePlan
    pid: int = 0
    ready: bool = False
    status_fd: int = -1
    status: bytes = b""
    error: str | None = None
    wanted: bool = True
    restarts: bool = False
    restarted_at: float | None = None


class ClusterProcesses:
    """Starts, watches and stops the processes of a plan.

    Args:
        plan: the nodes.
        announce: called with every event: ``ready``, or ``stopping`` if a signal arrived first; ``started``, ``ended``,
            ``error``, ``stopped``.
    """

    def __init__(self, plan: ClusterPlan, announce: Callable[[Event], None]) -> None:
        self._plan = plan
        self._announce_outside = announce
        self._control: ControlSocket | None = None
        self._processes = {node.name: _Process(node) for node in plan.nodes}
        # Not epoll: commands may be read from a file or from /dev/null, which epoll refuses.
        self._selector = selectors.PollSelector()
        self._life_read, self._life_write = os.pipe()
        self._signals_read, self._signals_write = os.pipe()
        self._commands = b""
        self._stop = False
        self._interrupts = 0
        self._failed: dict[str, None] = {}
        """Nodes that were stopped and ended with an error; killed nodes have none."""

    def run(self, *, control: bool = False) -> int:
        """Start everything, serve until SIGTERM, SIGINT, SIGHUP or the end of the commands, stop everything.

        Args:
            control: take commands from standard input, one per line: ``stop NAME`` (in order), ``kill NAME`` (SIGKILL),
                ``start NAME``, ``restart NAME``, ``pause NAME`` (SIGSTOP), ``resume NAME`` (SIGCONT); the end of the
                input ends the cluster.

        Returns:
            The exit code: 0 after a requested stop; 1 if a node could not start, or failed to stop as requested, such as
            a broker whose disk does not take everything.
        """
        # First: the imports below take longest, and an interrupt during them is handled like a later one.
        self._catch_signals()
        # The imports of every node, done once and shared by all of them, and excluded from every collection afterwards.
        with importing():
            import triomq_server.cluster.nodes  # noqa: F401

        if control:
            self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_commands)
        try:
            self._plan.directory.mkdir(parents=True, exist_ok=True)
            self._control = ControlSocket(self._plan.directory, self._selector, self._run_command)
            self._wait(0)  # signals that arrived during the imports
            for stage in self._plan.stages():
                if not self._stop:
                    self._start([self._processes[node.name] for node in stage])
            self._announce({"event": "stopping", "ready": False} if self._stop else self._ready_event())
            while not self._stop:
                self._wait(None)
        except (StartError, ControlError) as error:
            from triomq_server.wire import error_text

            self._announce({"event": "error", "error": error_text(error)})
            return 1
        finally:
            if self._control is not None:
                self._control.close()
                self._control = None
            self._stop_all()
        for name in self._failed:
            text = f"{name} has not stopped in order; its log lines say why"
            self._announce({"event": "error", "name": name, "error": text})
        self._announce({"event": "stopped"})
        return 1 if self._failed else 0

    def _announce(self, event: Event) -> None:
        self._announce_outside(event)
        self._end_command(event)

    def _end_command(self, event: Event) -> None:
        if self._control is not None:
            self._control.end_command(event)

    def _ready_event(self) -> Event:
        return {
            "event": "ready",
            "ready_s": round(seconds_since_start(), 3),
            "pid": os.getpid(),
            "name_servers": self._plan.name_servers,
            "directory": str(self._plan.directory),
            "nodes": [_describe(process) for process in self._processes.values()],
        }

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self, processes: list[_Process]) -> None:
        """Fork these nodes together, and wait until all are ready or the cluster must stop."""
        for process in processes:
            self._fork(process)
        while not self._stop and not all(process.ready for process in processes):
            self._wait(None)
            for process in processes:
                if process.pid == 0:
                    raise StartError(f"{process.plan.name}: {process.error or 'ended before it was ready'}")

    def _fork(self, process: _Process) -> None:
        try:
            read_fd, write_fd = os.pipe()
        except OSError as error:
            raise _not_forked(process, error) from error
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed before the start
                stream.flush()
        process.ready, process.status, process.error, process.wanted = False, b"", None, True
        self._failed.pop(process.plan.name, None)
        # Until the child has its own handlers. With the parent's, a signal to the child is lost there, and its number is
        # written to the parent's pipe, so that the parent stops the whole cluster.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            try:
                pid = os.fork()
            except OSError as error:
                os.close(read_fd)
                os.close(write_fd)
                raise _not_forked(process, error) from error
            if pid == 0:
                os.close(self._life_write)
                os.close(read_fd)
                if self._control is not None:
                    self._control.close_in_child()
                _child(process.plan, write_fd, self._life_read, mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_fd)
        process.pid = pid
        process.status_fd = read_fd
        self._selector.register(read_fd, selectors.EVENT_READ, lambda: self._read_status(process))

    def _read_status(self, process: _Process) -> None:
        data = os.read(process.status_fd, 65536)
        process.status += data
        if data and not process.status.endswith(b"\n"):
            return
        self._selector.unregister(process.status_fd)
        os.close(process.status_fd)
        process.status_fd = -1
        if process.status:
            process.error = json.loads(process.status).get("error")
            process.ready = process.error is None
        self._announce_restart(process)

    # -- waiting -------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        os.set_blocking(self._signals_write, False)
        signal.set_wakeup_fd(self._signals_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *ending_signals()):
            signal.signal(number, lambda _number, _frame: None)
        self._selector.register(self._signals_read, selectors.EVENT_READ, self._read_signals)

    def _wait(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            # An earlier callback may have removed it: a node that has ended leaves both a signal and its last status.
            if self._selector.get_map().get(key.fileobj) is key:
                key.data()

    def _read_signals(self) -> None:
        for number in os.read(self._signals_read, 512):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                # One after another signal may be the first: those that come together are handled in any order.
                self._interrupts += number == signal.SIGINT
                self._stop = True

    def _reap(self) -> None:
        for process in self._processes.values():
            if not process.pid:
                continue
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if not pid:
                continue
            if process.status_fd >= 0:
                self._read_status(process)
            process.pid = 0
            code = os.waitstatus_to_exitcode(status)
            if not process.wanted and code > 0:
                self._failed[process.plan.name] = None
            restarts, process.restarts = process.restarts and not self._stop, False
            if restarts:
                self._start_again(process)
                continue
            self._announce(
                {
                    "event": "ended",
                    "name": process.plan.name,
                    "pid": pid,
                    "status": code,
                    "wanted": not process.wanted,
                }
            )

    # -- commands ------------------------------------------------------------------------------------------------

    def _read_commands(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self._selector.unregister(sys.stdin.fileno())
            self._stop = True
            return
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            if line.strip():
                self._run_command(words_of(line))

    def _run_command(self, words: list[str]) -> None:
        verb, name = (*words, "", "")[:2]
        process = self._processes.get(name)
        if verb not in VERBS:
            error = f"unknown command {' '.join(words)!r}; give {', '.join(VERBS[:-1])} or {VERBS[-1]} NAME"
            self._announce({"event": "error", "name": name, "error": error})
        elif process is None:
            error = f"no node is called {name!r}; the nodes are {', '.join(self._processes)}"
            self._announce({"event": "error", "name": name, "error": error})
        elif verb == "start" or (verb == "restart" and not process.pid):
            self._start_again(process)
        elif not process.pid:
            # Only commands through the socket are answered: programs that write to standard input expect no event.
            self._end_command({"event": "error", "name": name, "error": f"{name} does not run"})
        elif verb == "restart":
            process.restarts = True
            for number in _SIGNALS["stop"]:
                _signal(process, number)
        else:
            if verb in ("stop", "kill"):
                # The last command counts: a restart that is under way does not start the node.
                process.wanted = process.restarts = False
            for number in _SIGNALS[verb]:
                _signal(process, number)
            if verb in ("pause", "resume"):
                self._end_command({"event": f"{verb}d", "name": name})

    def _start_again(self, process: _Process) -> None:
        """Fork and return; the result is announced when the node reports it, so other commands are handled meanwhile."""
        if process.pid or self._stop:
            name = process.plan.name
            why = "is already running" if process.pid else "is not started: the cluster stops"
            self._announce({"event": "error", "name": name, "error": f"{name} {why}"})
            return
        try:
            process.plan = process.plan.with_kept_role()
        except (OSError, ConfigError) as error:
            from triomq_server.wire import error_text

            name = process.plan.name
            self._announce({"event": "error", "name": name, "error": f"{name} is not started: {error_text(error)}"})
            return
        process.restarted_at = time.monotonic()
        try:
            self._fork(process)
        except StartError as error:
            process.restarted_at = None
            self._announce({"event": "error", "name": process.plan.name, "error": str(error)})

    def _announce_restart(self, process: _Process) -> None:
        """Announce the end of a restart: the node is ready, has reported an error, or has ended."""
        begin, process.restarted_at = process.restarted_at, None
        if begin is None:
            return
        if process.ready:
            self._announce({"event": "started", "ready_s": round(time.monotonic() - begin, 3), **_describe(process)})
        else:
            text = f"{process.plan.name}: {process.error or 'ended before it was ready'}"
            self._announce({"event": "error", "name": process.plan.name, "error": text})

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Stop in reverse starting order; stages that take too long, and all after a second Ctrl-C, get SIGKILL.

        Other signals may come twice, and standard input ends with a program that has sent one.
        """
        self._stop = True  # nothing restarts any more
        for stage in reversed(self._plan.stages()):
            processes = [self._processes[node.name] for node in stage]
            deadline = time.monotonic() + _GRACE_S
            for process in processes:
                process.wanted = False
                _signal(process, signal.SIGTERM)
                _signal(process, signal.SIGCONT)  # it may be paused
            while any(process.pid for process in processes):
                self._wait(min(0.2, max(deadline - time.monotonic(), 0)))
                self._reap()
                if self._interrupts > 1 or time.monotonic() > deadline:
                    for process in processes:
                        _signal(process, signal.SIGKILL)


def _not_forked(process: _Process, error: OSError) -> StartError:
    cure = "end other processes, or raise the limits (ulimit -u and -n)"
    return StartError(f"{process.plan.name} is not started: no process can be made, {error.strerror}; {cure}")


def _signal(process: _Process, number: int) -> None:
    if process.pid:
        os.kill(process.pid, number)


def _describe(process: _Process) -> Event:
    plan = process.plan
    return {
        "name": plan.name,
        "role": plan.role,
        "pid": process.pid,
        "address": plan.address,
        "directory": str(plan.directory),
    }


def _child(plan: NodePlan, status_fd: int, life_fd: int, mask: Collection[int]) -> NoReturn:
    """Run a node in a forked process, and never return into the parent's code.

    Args:
        plan: the node.
        status_fd: takes the line that the node is ready, or why it is not.
        life_fd: becomes readable when the parent has ended.
        mask: the signals to block once the node has its own handlers; until then, all of `_HANDLED` are.
    """
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        # A terminal sends its interrupt and its end to all processes; only the parent decides the order of the stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = _run_child(plan, status_fd, life_fd)
    except BaseException:
        logging.getLogger(__name__).exception("%s failed", plan.name)
    finally:
        logging.shutdown()
        os._exit(code)


def _run_child(plan: NodePlan, status_fd: int, life_fd: int) -> int:
    import trio

    from triomq_server.cluster.nodes import run_node
    from triomq_server.process.failures import explain, explain_not_written
    from triomq_server.process.stopping import run_until_signal

    ready: list[bool] = []
    not_written: list[str] = []

    async def stop_with_parent(scope: trio.CancelScope) -> None:
        await trio.lowlevel.wait_readable(life_fd)
        scope.cancel()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_with_parent, nursery.cancel_scope)
            await nursery.start(partial(run_node, plan, not_written=not_written.append))
            os.write(status_fd, b'{"ready": true}\n')
            ready.append(True)

    try:
        trio.run(run_until_signal, main, signal.SIGTERM)
    except Exception as error:
        text = explain(error, plan.properties)
        if not ready:
            os.write(status_fd, json.dumps({"error": text or repr(error)}).encode() + b"\n")
        if text is None:
            raise
        if ready:
            logging.getLogger(__name__).error("%s: %s", plan.name, text)  # noqa: TRY400 -- the line is sufficient
        return 1
    if not_written:
        logging.getLogger(__name__).error("%s: %s", plan.name, explain_not_written(not_written))
        return 1
    return 0
