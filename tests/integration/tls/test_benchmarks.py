"""Benchmarks of a cluster that takes TLS alone and checks accounts: their options, what they read, their errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

import triomq
from triomq_benchmarks.clusters.access import Access
from triomq_benchmarks.figures.run_files import read_run
from triomq_benchmarks.generator.local_engine import LocalEngine
from triomq_benchmarks.run.one_run import run_workload
from triomq_benchmarks.run.targets import TargetError, open_run_target
from triomq_benchmarks.workload.workload import ConsumeMode, Workload
from triomq_server.cluster import open_cluster

pytestmark = pytest.mark.slow
LIMIT_S = 240.0
"""A busy machine takes many seconds to start a process; what is tested is not that."""

# Machines that run tests are busy: how late the generator is, is not what is tested here.
SHORT = Workload(name="short", rate_per_s=50, duration_s=1, warm_up_s=0.2, lateness_limit_ms=60_000)

ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: the-operator, secretKey: operators-secret, admin: true}
- {accessKey: the-set-account, secretKey: sets-own-secret}
- {accessKey: orders-app, secretKey: apps-own-secret, topicPerms: [orders=PUB|SUB], defaultGroupPerm: SUB}
- {accessKey: orders-sender, secretKey: apps-own-secret, topicPerms: [orders=PUB]}
"""
OPERATOR = {"ROCKETMQ_ACCESS_KEY": "the-operator", "ROCKETMQ_SECRET_KEY": "operators-secret"}


@attrs.frozen
class Guarded:
    """A name server, a master and a slave, and what clients need for them."""

    name_servers: str
    trust: Path
    folder: Path

    def access(self, access_key: str, secret_key: str = "apps-own-secret") -> Access:
        return Access(credentials=triomq.Credentials(access_key, secret_key), tls={"ca": str(self.trust)})

    async def bench(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "triomq_benchmarks", "run", *arguments, "--target", self.name_servers, "--json"]
        started = partial(
            subprocess.run,
            argv,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=self.folder,
            env={**os.environ, **environment},
            check=False,
        )
        return await trio.to_thread.run_sync(started)


@pytest.fixture
async def guarded(nursery, files, tmp_path: Path) -> AsyncIterator[Guarded]:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    of_set = tmp_path / "set.yml"
    of_set.write_text("accessKey: the-set-account\nsecretKey: sets-own-secret\n")
    settings = {
        **files.server(),
        "tls.server.mode": "enforcing",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(files.trust),
        "aclEnable": "true",
        "rocketmqHome": str(home),
        "aclCredentialsFile": str(of_set),
        "haSlaveAddresses": "127.0.0.1",
    }
    folder = tmp_path / "runs"
    folder.mkdir()
    async with open_cluster(slaves=1, settings=settings) as running:
        yield Guarded(running.name_servers, files.trust, folder)


async def test_processes_measure_a_guarded_cluster_and_keep_the_secret(guarded: Guarded) -> None:
    (guarded.folder / "short.toml").write_text(
        'rate = "50/s"\nduration = "3 s"\nwarm_up = "500 ms"\nlateness_limit = "60 s"\nproducers = 2\nconsumers = 2\n'
    )
    done = await guarded.bench(
        "short.toml", "--engine", "processes", "--tls-ca", str(guarded.trust), "--out", "found", **OPERATOR
    )
    assert done.returncode == 0, done
    result = read_run(guarded.folder / "found")
    assert result.decision.passed
    assert result.audit is not None
    assert result.audit["clean"] is True
    assert (result.target_details["tls"], result.target_details["signed"]) == (True, True)
    assert all(about["version"] for about in result.target_details["nodes"].values())
    assert any(row.replication_lag_bytes is not None for row in result.rows), "the brokers were asked while it ran"
    shown = [done.stdout, done.stderr, *(path.read_bytes().decode("latin-1") for path in guarded.folder.rglob("*.*"))]
    assert not [text for text in shown if "operators-secret" in text]
    async with triomq.open_client(
        guarded.name_servers, **guarded.access("the-operator", "operators-secret").options()
    ) as client:
        assert not [topic for topic in await client.admin.topics() if topic.startswith("bench-")]
        assert not [group for group in await client.groups.names() if group.startswith("bench-")]


async def test_an_account_without_rights_is_refused_before_the_run(guarded: Guarded) -> None:
    async def run(access_key: str, workload: Workload) -> tuple[str, ...]:
        with trio.fail_after(LIMIT_S):
            async with open_run_target(guarded.name_servers, workload, guarded.access(access_key)) as target:
                return (await run_workload(workload, target, LocalEngine(), seed=1)).decision.notes

    async with triomq.open_client(
        guarded.name_servers, **guarded.access("the-operator", "operators-secret").options()
    ) as client:
        await client.admin.create_topic("orders", queues=2)
    orders = attrs.evolve(SHORT, topic_names=("orders",))
    # On a busy machine there are notes about a load generator that was late, too.
    (note,) = [each for each in await run("orders-app", orders) if "stays on the cluster" in each]
    assert "stays on the cluster: delete group" in note
    with pytest.raises(TargetError, match=r"Need admin permission.*--set topic_names=NAME"):
        await run("orders-app", SHORT)
    for consume in (ConsumeMode.PULL, ConsumeMode.PUSH):
        with pytest.raises(
            triomq.errors.AccessRefused, match=r"SUB is missing for accessKey=orders-sender.*groupPerms"
        ):
            await run("orders-sender", attrs.evolve(orders, consume=consume))


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ((), {}, "the peer speaks TLS: give open_client(tls=True), or --tls"),
        (("--tls",), OPERATOR, "signed by no authority that is trusted here: give that as ca (--tls-ca)"),
        (("--tls-insecure",), {}, "the request was not signed: give"),
        (("--tls-insecure",), {**OPERATOR, "ROCKETMQ_SECRET_KEY": "a-wrong-one"}, "the secret key is not the one in"),
    ],
)
async def test_errors_name_the_option_that_is_missing(
    guarded: Guarded, arguments: tuple[str, ...], environment: dict[str, str], says: str
) -> None:
    done = await guarded.bench("quick", *arguments, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not [secret for secret in environment.values() if "secret" in secret and secret in done.stderr]
