"""The plan of a cluster on one machine: its nodes with their names, ports and RocketMQ properties, made before any starts.

Names follow RocketMQ's samples: ``broker-a`` is a master, ``broker-a-s`` its slave, ``broker-b`` the next master.
"""

from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase

import attrs

from triomq_server.config import (
    ROLE_KEYS,
    TLS_KEYS,
    BrokerConfig,
    ConfigError,
    NamesrvConfig,
    PropertiesError,
    load_properties,
)
from triomq_server.ports import HOST, free_ports

NAMESRV = "namesrv"
BROKER = "broker"

_LOG_FILE_BYTES = 64 * 1024 * 1024
"""Size of the log files of experimental clusters: RocketMQ's 1 GiB is for machines that do nothing else."""


@attrs.frozen
class NodePlan:
    """One node to be started.

    Attributes:
        name: unique in the cluster: ``namesrv-0``, ``broker-a``, ``broker-a-s``.
        kind: ``namesrv`` or ``broker``.
        address: ``host:port`` for clients.
        properties: its configuration, with RocketMQ's keys.
        directory: the directory of its files.
    """

    name: str
    kind: str
    address: str
    properties: Mapping[str, str]
    directory: Path

    @property
    def role(self) -> str:
        """``namesrv``, ``master`` or ``slave``."""
        if self.kind == NAMESRV:
            return NAMESRV
        return "slave" if self.properties["brokerRole"] == "SLAVE" else "master"

    @property
    def role_file(self) -> Path:
        """The file for the role that an operator gives a broker."""
        return self.directory / "triomq" / "role.properties"

    def with_kept_role(self) -> "NodePlan":
        """This node with the role that an operator has given it since it was planned, if its directory has one.

        Raises:
            OSError: the file exists and cannot be read.
            ConfigError: it cannot be understood.
        """
        if self.kind == NAMESRV:
            return self
        try:
            kept = load_properties(self.role_file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return self
        except PropertiesError as error:
            raise ConfigError(f"{self.role_file}: {error}; remove it to take the role of the command line") from error
        role = {key: kept[key] for key in ROLE_KEYS if key in kept}
        return attrs.evolve(self, properties={**self.properties, **role})


@attrs.frozen
class ClusterPlan:
    """All nodes of a cluster, in the order in which they start: name servers, masters, slaves."""

    directory: Path
    nodes: tuple[NodePlan, ...]

    @property
    def name_servers(self) -> str:
        """The name servers' addresses in clients' format: ``host:port;host:port``."""
        return ";".join(node.address for node in self.nodes if node.kind == NAMESRV)

    def stages(self) -> list[list[NodePlan]]:
        """Groups of nodes that may start together, in the order of their dependencies.

        A slave that registered before its master would learn the master's address only at its next registration.
        """
        groups = ([node for node in self.nodes if node.role == role] for role in (NAMESRV, "master", "slave"))
        return [group for group in groups if group]


def plan_cluster(
    directory: Path,
    *,
    masters: int = 1,
    slaves: int = 1,
    name_servers: int = 1,
    sync_replication: bool = False,
    sync_flush: bool = False,
    settings: Mapping[str, str] | None = None,
    ports: list[int] | None = None,
) -> ClusterPlan:
    """Plan a cluster.

    Args:
        directory: the directory with one folder per node; a broker keeps the role that an operator gave it there.
        masters: number of broker sets, at most 26.
        slaves: number of slaves of each master.
        name_servers: number of name servers; every broker registers with all of them.
        sync_replication: whether masters wait for a slave (``SYNC_MASTER``).
        sync_flush: whether brokers answer only when the message is on disk (``SYNC_FLUSH``).
        settings: RocketMQ keys for every broker, which override the planned ones; TLS keys also apply to name servers.
        ports: first ports of the nodes in starting order; a broker's HA port is the next one. By default free ports are
                chosen.

    Raises:
        ValueError: a count is out of range.
        OSError: no ports are free, or a role that an operator gave a broker of this directory cannot be read.
        ConfigError: such a role cannot be understood.
    """
    if not (1 <= masters <= len(ascii_lowercase) and slaves >= 0 and name_servers >= 1):
        raise ValueError("a cluster has 1 to 26 masters, 0 or more slaves for each, and at least one name server")
    if ports is None:
        ports = free_ports(node_count(masters, slaves, name_servers))
    addresses = [f"{HOST}:{port}" for port in ports[:name_servers]]
    tls = {key: value for key, value in (settings or {}).items() if key in TLS_KEYS}
    nodes = [_namesrv(directory, index, address, tls) for index, address in enumerate(addresses)]
    common = {
        "brokerClusterName": "DefaultCluster",
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "namesrvAddr": ";".join(addresses),
        "flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": str(_LOG_FILE_BYTES),
        # Such clusters share their disk with other programs: only a nearly full one may stop them.
        "diskMaxUsedSpaceRatio": "95",
        "diskSpaceWarningLevelRatio": "0.99",
        "diskSpaceCleanForciblyRatio": "0.98",
    }
    master_role = "SYNC_MASTER" if sync_replication else "ASYNC_MASTER"
    sets = [f"broker-{letter}" for letter in ascii_lowercase[:masters]]
    left = iter(ports[name_servers:])
    for broker_id in range(1 + slaves):
        for broker_name in sets:
            own = {
                "brokerName": broker_name,
                "brokerId": str(broker_id),
                "brokerRole": "SLAVE" if broker_id else master_role,
            }
            nodes.append(_broker(directory, next(left), common | own, settings or {}))
    return ClusterPlan(directory, tuple(node.with_kept_role() for node in nodes))


def check_settings(plan: ClusterPlan, *, strict: bool = False) -> list[str]:
    """The problems in the settings of a plan's nodes, without repeated lines.

    Raises:
        ConfigError: a node must not start with them; with `strict`, there is any problem.
    """
    found: dict[str, None] = {}
    for node in plan.nodes:
        kind = NamesrvConfig if node.kind == NAMESRV else BrokerConfig
        found.update(dict.fromkeys(kind.from_properties(node.properties, strict=strict)[1]))
    brokers = [node for node in plan.nodes if node.kind == BROKER]
    headed = {node.properties["brokerName"] for node in brokers if node.role == "master"}
    for node in brokers:
        if (name := node.properties["brokerName"]) not in headed:
            line = (
                f"{name} has no master: its brokers keep the roles of {plan.directory}, and its master is not among them; "
                "start as many slaves as before, or make one of them the master: `triomq admin role`"
            )
            found[line] = None
    return list(found)


def _namesrv(directory: Path, index: int, address: str, tls: Mapping[str, str]) -> NodePlan:
    name = f"{NAMESRV}-{index}"
    home = directory / name
    properties = {
        "listenPort": address.rpartition(":")[2],
        "bindAddress": HOST,
        "kvConfigPath": str(home / "kvConfig.json"),
        "configStorePath": str(home / "namesrv.properties"),
        **tls,
    }
    return NodePlan(name, NAMESRV, address, properties, home)


def _broker(directory: Path, port: int, own: Mapping[str, str], settings: Mapping[str, str]) -> NodePlan:
    broker_id = int(own["brokerId"])
    name = own["brokerName"] + ("" if not broker_id else "-s" if broker_id == 1 else f"-s{broker_id}")
    home = directory / name
    properties = {**own, "listenPort": str(port), "storePathRootDir": str(home), **settings}
    return NodePlan(name, BROKER, f"{HOST}:{properties['listenPort']}", properties, home)


def node_count(masters: int, slaves: int, name_servers: int) -> int:
    """The number of nodes of such a cluster."""
    return name_servers + masters * (1 + slaves)
