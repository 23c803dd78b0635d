"""The command, its server, and pages in Chromium where there is one."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from click.testing import CliRunner

import triomq
from triomq_dashboard import DashboardSettings
from triomq_dashboard.command import PASSWORD_ENVIRONMENT, dashboard, serve_until
from triomq_server.cluster import open_cluster

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<script>document.title='broken'</script><img src=x onerror=console.error('broken')>"


@asynccontextmanager
async def served(capfd: pytest.CaptureFixture[str]) -> AsyncIterator[tuple[str, triomq.Client]]:
    """The address of a dashboard of a small cluster with a message."""
    end = trio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    async with (
        open_cluster(slaves=1) as cluster,
        triomq.open_client(cluster.name_servers) as client,
        trio.open_nursery() as nursery,
    ):
        await client.admin.create_topic("orders", queues=2)
        await client.producer("shop").send(
            triomq.Message("orders", EVIL.encode(), keys="k", tags=EVIL.replace(" ", "/"))
        )
        nursery.start_soon(serve_until, client, DashboardSettings(allow_changes=True), listening, end.wait)
        out = ""
        with trio.fail_after(60):
            while "the dashboard is at " not in out:
                await trio.sleep(0.01)
                out += capfd.readouterr().out
        yield out.split()[-1], client
        end.set()


async def test_it_serves_and_ends(capfd: pytest.CaptureFixture[str]) -> None:
    async with served(capfd) as (address, _), httpx.AsyncClient() as web:
        answer = await web.get(address)
        assert answer.status_code == 200
        assert "server" not in answer.headers
        assert "broker-a" in answer.text
    async with httpx.AsyncClient() as web:
        with pytest.raises(httpx.ConnectError):
            await web.get(address)


@pytest.mark.parametrize(
    ("arguments", "environment", "what"),
    [
        (["--host", "0.0.0.0"], {}, "is reached from other machines: give --password-file"),
        (["--host", "::"], {}, "is reached from other machines"),
        (["--host", "0.0.0.0"], {PASSWORD_ENVIRONMENT: "short"}, "fewer than 8 characters"),
        (["--password-file", "/no/such/file"], {}, "cannot be read"),
        (["--password-file", "{empty}"], {}, "is empty"),
        (["--certificate", "{empty}"], {}, "belong together"),
        (["--certificate", "{empty}", "--key", "{empty}"], {}, "cannot be used"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], environment: dict[str, str], what: str) -> None:
    (tmp_path / "empty").write_text("\n")
    given = [each.replace("{empty}", str(tmp_path / "empty")) for each in arguments]
    result = CliRunner().invoke(dashboard, given, env={PASSWORD_ENVIRONMENT: None, **environment})
    assert result.exit_code == 2
    assert what in result.output


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(dashboard, ["--port", str(taken.getsockname()[1]), "-n", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "cannot be listened on" in result.output
    assert "another --port" in result.output


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
async def test_pages_in_chromium(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def look(name: str, address: str, width: int, scheme: int) -> tuple[str, str]:
        """The page's elements after its scripts have run, and what the console said; a picture stays in the folder."""
        assert CHROMIUM is not None
        result = await trio.run_process(
            [
                CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / name}",
                f"--blink-settings=preferredColorScheme={scheme}", f"--window-size={width},900", "--virtual-time-budget=1000",
                "--enable-logging=stderr", f"--screenshot={tmp_path / name}.png", "--dump-dom", address,
            ],
            capture_stdout=True,
            capture_stderr=True,
        )  # fmt: skip
        said = [line for line in result.stderr.decode().splitlines() if "CONSOLE" in line]
        return result.stdout.decode(), "\n".join(said)

    async with served(capfd) as (address, client):
        found = (await client.messages.by_key("orders", "k"))[0]
        place = f"topic=orders&broker={found.queue.broker_name}&queue={found.queue_id}&offset={found.queue_offset}"
        pages = {
            "cluster": ("/", 1280, 1),
            "message": (f"/message?{place}", 500, 0),
        }
        seen = {name: await look(name, address + path, width, scheme) for name, (path, width, scheme) in pages.items()}
    for name, (page, said) in seen.items():
        assert said == "", name
        assert "<title>broken" not in page
        assert re.search(r"<img[^>]*onerror", page) is None
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert "&lt;script&gt;" in seen["message"][0]
