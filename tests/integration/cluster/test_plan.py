"""The parts of a cluster, before anything starts."""

from pathlib import Path

import pytest

from triomq_server.cluster.plan import check_settings, plan_cluster
from triomq_server.config import BrokerConfig, ConfigError, NamesrvConfig

HOME = Path("/somewhere")


def test_names_roles_and_stages() -> None:
    plan = plan_cluster(HOME, masters=2, slaves=2, name_servers=2, ports=list(range(2000, 2080, 10)))
    assert [[node.name for node in stage] for stage in plan.stages()] == [
        ["namesrv-0", "namesrv-1"],
        ["broker-a", "broker-b"],
        ["broker-a-s", "broker-b-s", "broker-a-s2", "broker-b-s2"],
    ]
    assert [node.role for node in plan.nodes] == ["namesrv"] * 2 + ["master"] * 2 + ["slave"] * 4
    assert plan.name_servers == "127.0.0.1:2000;127.0.0.1:2010"
    assert plan.nodes[2].address == "127.0.0.1:2020"
    assert [node.directory for node in plan.nodes[:3]] == [HOME / "namesrv-0", HOME / "namesrv-1", HOME / "broker-a"]


def test_properties_are_what_rocketmq_understands_without_a_warning() -> None:
    plan = plan_cluster(
        HOME, sync_replication=True, sync_flush=True, settings={"maxMessageSize": "99"}, ports=[2000, 2010, 2020]
    )
    namesrv, master, slave = plan.nodes
    assert NamesrvConfig.from_properties(namesrv.properties)[1] == []
    config, warnings = BrokerConfig.from_properties(master.properties)
    assert warnings == []
    assert (config.broker_id, config.store.broker_role, config.store.flush_disk_type) == (
        0,
        "SYNC_MASTER",
        "SYNC_FLUSH",
    )
    assert (config.listen_port, config.store.ha_listen_port) == (2010, 2011)
    assert config.store.max_message_size == 99
    config, warnings = BrokerConfig.from_properties(slave.properties)
    assert warnings == []
    assert (config.broker_id, config.store.broker_role) == (1, "SLAVE")
    assert config.namesrv_addr == "127.0.0.1:2000"


def test_without_slaves() -> None:
    assert [node.role for node in plan_cluster(HOME, slaves=0, ports=[2000, 2010]).nodes] == ["namesrv", "master"]


@pytest.mark.parametrize("counts", [{"masters": 0}, {"masters": 27}, {"slaves": -1}, {"name_servers": 0}])
def test_counts_that_make_no_cluster(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a cluster has"):
        plan_cluster(HOME, **counts, ports=list(range(100)))


def keep_role(home: Path, node: str, text: str) -> None:
    (home / node / "triomq").mkdir(parents=True)
    (home / node / "triomq" / "role.properties").write_text(text)


def test_brokers_keep_the_roles_that_operators_gave_them(tmp_path: Path) -> None:
    ports = [2000, 2010, 2020]
    keep_role(tmp_path, "broker-a", "brokerRole=SLAVE\nbrokerId=2\n")
    keep_role(tmp_path, "broker-a-s", "brokerRole=SYNC_MASTER\nbrokerId=0\nlistenPort=1\n")
    plan = plan_cluster(tmp_path, ports=ports)
    assert [[node.name for node in stage] for stage in plan.stages()] == [["namesrv-0"], ["broker-a-s"], ["broker-a"]]
    configs = [BrokerConfig.from_properties(node.properties)[0] for node in plan.nodes[1:]]
    assert [(config.broker_id, config.store.broker_role, config.listen_port) for config in configs] == [
        (2, "SLAVE", 2010),
        (0, "SYNC_MASTER", 2020),
    ]
    assert check_settings(plan) == []
    (warning,) = check_settings(plan_cluster(tmp_path, slaves=0, ports=ports))
    assert "broker-a has no master: its brokers keep the roles of" in warning


def test_a_kept_role_that_cannot_be_read_is_no_other_role(tmp_path: Path) -> None:
    keep_role(tmp_path, "broker-a", "brokerRole=\\u00")
    with pytest.raises(ConfigError, match=r"role\.properties"):
        plan_cluster(tmp_path, ports=[2000, 2010, 2020])
    (tmp_path / "broker-a" / "triomq" / "role.properties").unlink()
    (tmp_path / "broker-a" / "triomq" / "role.properties").mkdir()
    with pytest.raises(OSError, match="directory"):
        plan_cluster(tmp_path, ports=[2000, 2010, 2020])
