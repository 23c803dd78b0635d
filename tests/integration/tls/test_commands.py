"""The commands over TLS: set by options or the environment, and their errors."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import trio

from triomq_server.cluster import open_cluster


@pytest.fixture
async def cluster(nursery, files):
    """A name server and a master that accept only TLS and require certificates; its name servers."""
    certificate, key = files.pair("broker")
    settings = {
        **files.mutual(),
        "tls.server.mode": "enforcing",
        "tls.client.certPath": str(certificate),
        "tls.client.keyPath": str(key),
    }
    async with open_cluster(slaves=0, settings=settings) as running:
        yield running.name_servers


async def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "triomq", *arguments]
    started = partial(
        subprocess.run,
        argv,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
        check=False,
    )
    return await trio.to_thread.run_sync(started)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("cluster-status",), ("admin", "ha")], ids=" ".join)
async def test_commands_over_tls(cluster, files, command) -> None:
    certificate, key = files.pair("client")
    options = ["-n", cluster, "--tls-ca", str(files.trust)]
    result = await run(*command, *options, "--tls-cert", str(certificate), "--tls-key", str(key))
    assert (result.returncode, result.stderr) == (0, "")
    assert "broker-a" in result.stdout
    given = {"ROCKETMQ_TLS_INSECURE": "true", "ROCKETMQ_TLS_CERT": str(certificate), "ROCKETMQ_TLS_KEY": str(key)}
    assert "broker-a" in (await run(*command, "-n", cluster, **given)).stdout
    for arguments, text in (
        ([], "speaks TLS"),
        (["--tls"], "--tls-ca"),
        (["--tls-ca", str(files.trust)], "--tls-cert"),
        (["--tls-ca", "/nowhere.pem"], "No such file"),
    ):
        refused = await run(*command, "-n", cluster, *arguments)
        assert refused.returncode in (1, 2)
        assert text.lower() in refused.stderr.lower()
        assert "Traceback" not in refused.stderr
