"""Runs one node of a plan until cancelled; the same for nodes inside a process and nodes with a process of their
own."""

from functools import partial

import trio

from triomq_server.broker.lifecycle import serve_broker
from triomq_server.cluster.plan import NAMESRV, NodePlan
from triomq_server.config import BrokerConfig, NamesrvConfig
from triomq_server.namesrv import serve_namesrv


async def run_node(plan: NodePlan, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Serve until cancelled, then stop in order.

    Args:
      plan: which node.
      task_status: started when the node can be used: listening, and registered at the name servers.

    Raises:
      OSError: a port is taken, or the disk fails.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    async with trio.open_nursery() as nursery:
        if plan.kind == NAMESRV:
            namesrv, _ = NamesrvConfig.from_properties(plan.properties)
            await nursery.start(serve_namesrv, namesrv)
        else:
            broker, _ = BrokerConfig.from_properties(plan.properties)
            await nursery.start(partial(serve_broker, broker, role_path=str(plan.role_file)))
        task_status.started()
