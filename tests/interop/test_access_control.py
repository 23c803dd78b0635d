"""Access control, judged by RocketMQ's own tool and client: the same requests by the same accounts, on the real broker
and on ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triomq_benchmarks.clusters.processes import DriverError
from triomq_benchmarks.clusters.servers import Kind

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: reader-1, secretKey: reader-secret, admin: false, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""
MESSAGE = SimpleNamespace(for_java=lambda: {"body": "aGVsbG8=", "flag": 0, "properties": {}})
REFUSED = "org.apache.rocketmq.acl.common.AclException"


@pytest.mark.parametrize("kind", [Kind.JAVA, Kind.OURS])
def test_the_real_tool_is_allowed_and_refused(
    kind: Kind, servers: Any, scratch: Path, java_client: Any, fresh_java_client: Any
) -> None:
    home = scratch / f"acl-{kind}-broker"
    (home / "conf").mkdir(parents=True)
    file = home / "conf" / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    settings: dict[str, object] = {"aclEnable": True}
    if kind is Kind.OURS:
        settings |= {"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1"}
    for name in ("operator", "reader-1"):
        tools = scratch / f"acl-{kind}-{name}" / "conf" / "tools.yml"
        tools.parent.mkdir(parents=True)
        tools.write_text(f"accessKey: {name}\nsecretKey: {name.removesuffix('-1')}-secret\n")
    with (
        servers.namesrv(kind, f"acl-{kind}-namesrv") as names,
        servers.broker(kind, home.name, names.address, settings) as broker,
        fresh_java_client(f"acl-{kind}-operator") as operator,
        fresh_java_client(f"acl-{kind}-reader-1") as reader,
    ):
        create = ("updateTopic", "-b", broker.address, "-t", "Guarded", "-r", "2", "-w", "2")
        assert "success" in operator.admin(names.address, *create)
        for client, why in ((reader, "Need admin permission"), (java_client, "No accessKey is configured")):
            printed = client.admin(names.address, *create)
            assert REFUSED in printed
            assert why in printed
        with pytest.raises(DriverError, match="still failed"):
            java_client.send(names.address, "Guarded", [MESSAGE])
        assert "brokerName" in operator.admin(names.address, "getBrokerConfig", "-b", broker.address)
        assert REFUSED in java_client.admin(names.address, "getBrokerConfig", "-b", broker.address)
        added = operator.admin(
            names.address, "updateAclConfig", "-b", broker.address, "-a", "visitor", "-s", "visitor-secret", "-t", "A=PUB"
        )  # fmt: skip
        assert "success" in added
        assert "visitor-secret" in file.read_text()
        assert "visitor" in operator.admin(names.address, "getAclConfig", "-b", broker.address)
        assert "success" in operator.admin(names.address, "deleteAclConfig", "-b", broker.address, "-a", "visitor")
        assert "visitor" not in file.read_text()
