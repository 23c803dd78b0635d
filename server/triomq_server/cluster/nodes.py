"""Runs one node of a plan until cancelled, whether it is embedded or has its own process."""

from collections.abc import Callable
from functools import partial

import attrs
import trio

from triomq_server.broker.lifecycle import serve_broker
from triomq_server.clock_waits import ClockWaits
from triomq_server.cluster.plan import NAMESRV, NodePlan
from triomq_server.config import BrokerConfig, NamesrvConfig
from triomq_server.disk import Disk
from triomq_server.namesrv import serve_namesrv
from triomq_server.store import wall_ms
from triomq_server.wire import Dial, Listen, dial_tcp, listen_tcp


@attrs.frozen
class Machine:
    """The environment of a node.

    Attributes:
        disk: the disk for its files; by default the operating system's.
        dial, listen: its network.
        clock: its wall clock in ms.
        clock_waits: waits for times of the clock, for code that sets it.
    """

    disk: Disk | None = None
    dial: Dial = dial_tcp
    listen: Listen = listen_tcp
    clock: Callable[[], int] = wall_ms
    clock_waits: ClockWaits = attrs.Factory(ClockWaits)


def _ignore(_not_written: str) -> None:
    """Ignore the argument; the default of `run_node`."""


async def run_node(
    plan: NodePlan,
    machine: Machine | None = None,
    *,
    not_written: Callable[[str], None] = _ignore,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, then stop in order.

    Args:
        plan: the node.
        machine: its environment; this machine by default.
        not_written: called at the end of a broker's stop with each item that the disk did not take.
        task_status: started when the node can be used: it listens, and has registered with the name servers.

    Raises:
        OSError: a port is taken, or the disk fails.
    """
    on = machine or Machine()
    plan.directory.mkdir(parents=True, exist_ok=True)
    async with trio.open_nursery() as nursery:
        if plan.kind == NAMESRV:
            namesrv, _ = NamesrvConfig.from_properties(plan.properties)
            await nursery.start(partial(serve_namesrv, namesrv, listen=on.listen, disk=on.disk))
        else:
            broker, _ = BrokerConfig.from_properties(plan.properties)
            await nursery.start(
                partial(
                    serve_broker,
                    broker,
                    disk=on.disk,
                    dial=on.dial,
                    listen=on.listen,
                    clock=on.clock,
                    clock_waits=on.clock_waits,
                    role_path=str(plan.role_file),
                    not_written=not_written,
                )
            )
        task_status.started()
