"""Injects the workload's faults: kill, pause, restart, cut, each at its instant; and notes when each was done."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from triomq_benchmarks.figures.run_result import FaultInstant
from triomq_benchmarks.run.targets import ENDED_STATES, RunTarget, TargetError, TargetNode, pause, process_state, resume
from triomq_benchmarks.workload.workload import Fault, FaultKind, WorkloadError

_SYS_PIDFD_GETFD = 438
"""The same on every architecture that Linux has supported since 5.6."""

CUT_EVERY_S = 0.01
"""Interval at which links are broken while a node is cut off: no new link lasts longer."""


def check_faults(faults: Sequence[Fault], target: RunTarget) -> None:
    """Raise WorkloadError if a fault names a node that does not exist, or begins while another one holds that node: a
    process that has ended may have left its id to another one."""
    held: dict[str, Fault] = {}
    for fault in sorted(faults, key=lambda each: each.at_s):
        node = _node(fault, target)
        before = held.get(node.name)
        if before is not None and before.kind is FaultKind.KILL:
            raise WorkloadError(
                f"fault {fault}: {node.name} has been killed by then, by `{before}`, and is not started again; take "
                "`restart` for that"
            )
        if before is not None and fault.at_s < before.at_s + before.for_s:
            raise WorkloadError(f"fault {fault}: `{before}` is not over by then, and is of the same {node.name}")
        held[node.name] = fault


def _node(fault: Fault, target: RunTarget) -> TargetNode:
    """The node of a fault: by name, or the first with a role."""
    nodes = target.nodes
    if fault.node in nodes:
        return nodes[fault.node]
    for node in nodes.values():
        if node.role == fault.node:
            return node
    raise WorkloadError(
        f"fault {fault}: there is no {fault.node}; there are {', '.join(nodes)} "
        "([cluster] slaves = 1 in the workload gives each master a slave)"
    )


async def do_faults(
    faults: Sequence[Fault],
    target: RunTarget,
    origin: float,
    on_done: Callable[[FaultInstant], None],
    on_failed: Callable[[str], None],
) -> None:
    """Do all faults, each in a separate task, and return when the last is over. One waits while an earlier one still holds
    its node, as a node that is being started again does.

    Args:
        faults: the faults.
        target: the cluster.
        origin: start of the measured part, on trio's clock.
        on_done: called for each fault when it is over, also for one in progress when this is cancelled.
        on_failed: takes the reason why a fault, or its end, could not be done: its process had ended before, or a node
            could not be started again. The other faults are done.
    """
    turns = {name: trio.Lock() for name in target.nodes}
    async with trio.open_nursery() as nursery:
        for fault in faults:
            nursery.start_soon(_do, fault, target, turns, origin, on_done, on_failed)


async def _do(
    fault: Fault,
    target: RunTarget,
    turns: Mapping[str, trio.Lock],
    origin: float,
    on_done: Callable[[FaultInstant], None],
    on_failed: Callable[[str], None],
) -> None:
    await trio.sleep_until(origin + fault.at_s)
    async with turns[_node(fault, target).name]:
        node = _node(fault, target)  # with the process that it has now
        if node.pid and process_state(node.pid) in ENDED_STATES:
            # Not noted as done: the end of the process would seem to be the fault's.
            on_failed(f"{fault}: the process of {node.name} had ended before")
            return
        done = FaultInstant(what=f"{fault.kind} {fault.node}", node=node.name, second=trio.current_time() - origin)
        failure = ""
        try:
            await _KINDS[fault.kind](fault, node, target)
        except TargetError as error:
            failure = str(error)
        except OSError as error:  # the process has just ended, or its cluster has
            failure = f"the process of {node.name} cannot be reached: {error.strerror or error}"
        finally:
            if failure:
                on_failed(f"{fault}: {failure}")
            # A node that cannot be started again has been killed.
            if not failure or fault.kind is FaultKind.RESTART:
                ended = None if fault.kind is FaultKind.KILL else trio.current_time() - origin
                on_done(attrs.evolve(done, until=ended))


async def _kill(_fault: Fault, node: TargetNode, target: RunTarget) -> None:
    await target.kill(node.name)


async def _pause(fault: Fault, node: TargetNode, _target: RunTarget) -> None:
    pause(node)
    try:
        await trio.sleep(fault.for_s)
    finally:
        resume(node)


async def _restart(fault: Fault, node: TargetNode, target: RunTarget) -> None:
    await target.kill(node.name)
    await trio.sleep(fault.for_s)
    await target.start(node.name)


async def _cut(fault: Fault, node: TargetNode, _target: RunTarget) -> None:
    end = trio.current_time() + fault.for_s
    while True:
        break_links(node.pid)
        if trio.current_time() >= end:
            return
        await trio.sleep(CUT_EVERY_S)


_KINDS = {FaultKind.KILL: _kill, FaultKind.PAUSE: _pause, FaultKind.RESTART: _restart, FaultKind.CUT: _cut}


def break_links(pid: int) -> int:
    """Shut down every TCP link of a child process, both ways, as a cut wire's reset would; its listeners stay.

    Returns:
        The number of links.

    Raises:
        TargetError: this system does not permit it.
    """
    if platform.system() != "Linux":
        raise TargetError("the fault `cut` needs Linux 5.6 or newer; take `pause` instead")
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    broken = 0
    try:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                if not os.readlink(f"/proc/{pid}/fd/{entry}").startswith("socket:"):
                    continue
            except OSError:
                continue  # closed in the meantime
            descriptor = libc.syscall(_SYS_PIDFD_GETFD, pidfd, int(entry), 0)
            if descriptor < 0:
                if ctypes.get_errno() == errno.EBADF:
                    continue  # closed in the meantime
                reason = os.strerror(ctypes.get_errno())
                raise TargetError(
                    f"the fault `cut` cannot reach the links of process {pid}: {reason}; take `pause` instead"
                )
            broken += _shut(descriptor)
    finally:
        os.close(pidfd)
    return broken


def _shut(descriptor: int) -> bool:
    """Shut down a descriptor if it is a connected TCP link; our copy of it is closed."""
    with socket.socket(fileno=descriptor) as link:
        try:
            link.getpeername()
            if link.family in {socket.AF_INET, socket.AF_INET6}:
                link.shutdown(socket.SHUT_RDWR)
                return True
        except OSError:
            pass  # a listener, or a link that is already closed
    return False
