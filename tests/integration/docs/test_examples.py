"""The examples of the README and of the documentation, run against a cluster as a reader would run them."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from pages import ROOT, blocks, write_files
from prometheus_client.parser import text_string_to_metric_families
from worker_process import WAIT_S, wait_until, worker

import triomq
from triomq_server.cluster import Cluster, open_cluster
from triomq_testing import RocketMQ

pytest_plugins = ["pytester"]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_cluster(slaves=0) as cluster:
        yield cluster


def run(source: str, page: str, address: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(source.replace("127.0.0.1:9876", address), page, "exec"), names)
    return names


async def test_readme_sends_and_pulls(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    send, pull = blocks("README.md")[:2]
    await trio.to_thread.run_sync(run, send, "README.md", cluster.name_servers)
    assert "SEND_OK" in capfd.readouterr().out
    await trio.to_thread.run_sync(run, pull, "README.md", cluster.name_servers)
    assert "b'hello'" in capfd.readouterr().out


async def test_readme_consumes_until_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    send, _, consume = blocks("README.md")[:3]
    await trio.to_thread.run_sync(run, send, "README.md", cluster.name_servers)
    script = tmp_path / "consume.py"
    script.write_text(consume.replace("127.0.0.1:9876", cluster.name_servers))
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(
                    trio.run_process, [sys.executable, "-u", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    check=False,
                    # A shell's background jobs ignore SIGINT, and so would whatever they start.
                    preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
                )
            )  # fmt: skip
            printed = b""
            for count in (1, 2):
                while printed.count(b"en b'hello'") < count:
                    data = await process.stdout.receive_some()
                    assert data, (printed, await process.stderr.receive_some())
                    printed += data
                if count == 1:
                    await trio.to_thread.run_sync(run, send, "README.md", cluster.name_servers)
            process.send_signal(signal.SIGINT)
            errors = await process.stderr.receive_some()
    assert (process.returncode, errors) == (0, b"")
    # What was handled is committed, and the group is left. The last handler may be interrupted after it has printed.
    async with triomq.open_client(cluster.name_servers) as client:
        assert (await client.groups.progress("readme")).lag <= 1
        assert await client.groups.members("readme") is None


async def test_tutorial(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    source = "\n".join(blocks("docs/tutorial.md")).replace("100_000", "500")
    names = await trio.to_thread.run_sync(run, source, "docs/tutorial.md", cluster.name_servers)
    async with triomq.open_client(cluster.name_servers) as client:
        producer = client.producer("tutorial")
        assert await names["send_all"](producer) == 500  # type: ignore[operator]
        await names["impatient"](producer)  # type: ignore[operator]
        capfd.readouterr()
        assert await names["read_all"](client) == 502  # type: ignore[operator]
    assert capfd.readouterr().out.count("b'") == 1, "one of 10,000 is printed"


async def test_prometheus_reads_what_a_client_counts(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    page = "docs/how-to/client-metrics.md"
    await trio.to_thread.run_sync(run, blocks(page)[-1], page, cluster.name_servers)
    families = {each.name: each for each in text_string_to_metric_families(capfd.readouterr().out)}
    (sent,) = families["triomq_client_sent_messages"].samples
    assert (sent.labels, sent.value) == ({"group": "shop", "topic": "orders"}, 1)
    times = {
        each.name.removeprefix("triomq_client_send_seconds"): each.value
        for each in families["triomq_client_send_seconds"].samples
    }
    assert times["_count"] == 1
    assert times["_sum"] > 0


OF_PYTEST = "docs/how-to/test-with-pytest.md"
OF_WEB = [f"docs/how-to/{name}.md" for name in ("jupyter", "web/django", "web/fastapi", "web/flask")]
"""Pages with tests of their own."""


WORKERS = {
    "docs/how-to/celery.md": (["celery", "-A", "tasks", "worker", "-c", "1"], ["hello world", "hello later"]),
    "docs/how-to/faststream.md": (
        ["faststream", "run", "service:app"],
        ["bill of 20", "answered 30", "order 4 is back", "credit of 4"],
    ),
    "docs/how-to/taskiq.md": (["taskiq", "worker", "tasks:broker"], ["hello world", "hello later"]),
}
"""Pages whose examples are files: how a worker of theirs is started, and what it prints once the others have run."""


@pytest.mark.parametrize("page", WORKERS)
def test_worker(page: str, rocketmq: RocketMQ, tmp_path: Path) -> None:
    command, printed = WORKERS[page]
    files = write_files(page, tmp_path, rocketmq.namesrv_addr)
    log = tmp_path / "log"
    with worker(command[0], command[1:], tmp_path, log):
        for name in files:
            if name.startswith(("send", "test")):
                subprocess.run([sys.executable, name], cwd=tmp_path, check=True, timeout=WAIT_S)
        wait_until(lambda: all(text in log.read_text() for text in printed), f"{printed} in the worker's output")


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """Examples may add handlers to loggers of the package, and to no other test's."""
    logger = logging.getLogger("triomq")
    before = logger.handlers[:]
    yield
    logger.handlers[:] = before


def pages_with_examples() -> list[str]:
    pages = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how-to").rglob("*.md"))
    return [page for page in pages if blocks(page) and page not in (*WORKERS, OF_PYTEST, *OF_WEB)]


def test_the_page_of_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("\n".join(blocks(OF_PYTEST)))
    pytester.makeini("[pytest]\ntrio_mode = true\n")
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", "--strict-markers", timeout=240)
    done.assert_outcomes(passed=9)


@pytest.mark.parametrize("page", pages_with_examples())
async def test_how_to(page: str, cluster: Cluster, own_handlers: None) -> None:
    # In a thread, where blocking clients may be used.
    names = await trio.to_thread.run_sync(run, "\n".join(blocks(page)), page, cluster.name_servers)
    try:
        for name, example in names.items():
            if name.startswith("test_"):
                await example()  # type: ignore[operator]
    finally:
        client = names.get("client")
        if isinstance(client, triomq.blocking.Client):
            await trio.to_thread.run_sync(client.close)


@pytest.mark.parametrize("page", [page for page in pages_with_examples() if "/plug-in/" in page])
def test_each_plug_point_has_an_example_that_runs(page: str) -> None:
    assert any("async def test_" in block for block in blocks(page))
