"""Whole clusters on one machine: name servers, masters and slaves, for tests, demonstrations and trying things out.

`open_cluster` runs all nodes in the caller's process (`embedded`); the command line forks one process per node, so that a
node can really be killed (`processes`). Which nodes there are and how they are configured is worked out in `plan`.
"""

from triomq_server.cluster.embedded import Cluster, Node, open_cluster
from triomq_server.cluster.plan import ClusterPlan, NodePlan, free_ports, plan_cluster

__all__ = ["Cluster", "ClusterPlan", "Node", "NodePlan", "free_ports", "open_cluster", "plan_cluster"]
