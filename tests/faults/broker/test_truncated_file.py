"""A log file is truncated while its broker runs: the system ends the process, which still says what it was doing."""

import os
import signal
from pathlib import Path

import pytest
import trio
from killed_servers import LIMIT_S, SMALL_FILES, server

import triomq


async def test_the_call_that_met_the_end_of_the_file_is_logged(
    tmp_path: Path, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)
    namesrv_port, broker_port = ports
    settings = SMALL_FILES | {"namesrvAddr": f"127.0.0.1:{namesrv_port}"}
    flags = [f"--set={key}={value}" for key, value in settings.items()]
    store, broker_log = tmp_path / "store", tmp_path / "broker.log"
    async with (
        server(
            tmp_path / "namesrv.log", "namesrv", "--port", str(namesrv_port),
            "--set=bindAddress=127.0.0.1", f"--set=kvConfigPath={tmp_path}/kv.json",
        ),
        server(broker_log, "broker", "--port", str(broker_port), "--store", str(store), *flags) as broker,
        triomq.open_client(f"127.0.0.1:{namesrv_port}") as client,
        trio.open_nursery() as nursery,
    ):  # fmt: skip
        async with client.producer("p") as producer:
            result = await producer.send(triomq.Message("t", b"one"))
        os.truncate(store / "commitlog" / f"{0:020d}", 0)

        async def pull() -> None:
            async with client.pull_consumer("c") as consumer:
                await consumer.pull(result.queue, offset=0, block=False)

        nursery.start_soon(pull)
        with trio.fail_after(LIMIT_S):
            await broker.wait()
        nursery.cancel_scope.cancel()
    assert broker.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in broker_log.read_text()
