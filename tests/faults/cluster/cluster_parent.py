"""The parent process of a cluster under test: like `triomq cluster --control`, but each slave reaches its master
through a proxy.

python cluster_parent.py DIRECTORY '{"sync": true, "flush": false, "slaves": 1, "proxy": 12345, "settings": {}}'
"""

import faulthandler
import json
import signal
import sys
from pathlib import Path

import attrs
from injected_faults import FAULTS

from triomq_server.cluster.plan import plan_cluster
from triomq_server.cluster.processes import ClusterProcesses


def main() -> int:
    # A node that hangs prints its stacks on this signal.
    faulthandler.register(signal.SIGUSR1)
    asked = json.loads(sys.argv[2])
    if asked["injected"]:
        FAULTS[asked["injected"]](setattr)
    plan = plan_cluster(
        Path(sys.argv[1]),
        slaves=asked["slaves"],
        sync_replication=asked["sync"],
        sync_flush=asked["flush"],
        settings=asked["settings"],
    )
    proxied = {"haMasterAddress": f"127.0.0.1:{asked['proxy']}"}
    nodes = [
        attrs.evolve(node, properties={**node.properties, **proxied}) if node.role == "slave" else node
        for node in plan.nodes
    ]
    plan = attrs.evolve(plan, nodes=tuple(nodes))
    return ClusterProcesses(plan, lambda event: print(json.dumps(event), flush=True)).run(control=True)


if __name__ == "__main__":
    sys.exit(main())
