"""Whole clusters on one machine: name servers, masters and slaves, for tests, demonstrations and trying things out.

`open_cluster` runs all nodes in the caller's process (`embedded`); the command line forks one process per node, so that
a node can really be killed (`processes`). `plan` determines the nodes and their configuration.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triomq_server.cluster.embedded import Cluster, Node, open_cluster

__all__ = ["Cluster", "Node", "open_cluster"]


if not TYPE_CHECKING:  # a declaration that every name exists

    def __getattr__(name: str) -> object:
        """Import the embedded cluster on first use: a single server needs only the small modules of this package."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from triomq_server.cluster import embedded

        return getattr(embedded, name)
