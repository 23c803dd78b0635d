"""The command, its server, and pages in Chromium if it is installed."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from chromium import CHROMIUM, open_browser
from click.testing import CliRunner
from pictures import LOOKS, wrong_with

import triomq
from triomq_dashboard import DashboardSettings
from triomq_dashboard.command import PASSWORD_ENVIRONMENT, dashboard, serve_until
from triomq_server.cluster import open_cluster

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
    """No script of a message runs, the console is empty, and no page or menu is wider than a phone."""
    async with served(capfd) as (address, client), open_browser(tmp_path / "profile") as browser:
        found = (await client.messages.by_key("orders", "k"))[0]
        place = f"topic=orders&broker={found.queue.broker_name}&queue={found.queue_id}&offset={found.queue_offset}"
        for number, path in enumerate(
            (
                "/",
                "/topics",
                "/topic?name=orders",
                "/groups",
                "/messages?topic=orders",
                f"/message?{place}",
                "/dead-letters",
            )
        ):
            for look, (width, scheme) in LOOKS.items():
                picture = tmp_path / f"{number}-{look}.png"
                shown = await browser.look(address + path, picture, width=width, scheme=scheme)
                assert wrong_with(shown, address + path, width) == [], path
                assert "<title>broken" not in shown.html
                assert re.search(r"<img[^>]*onerror", shown.html) is None
                assert picture.stat().st_size > 5000
                assert ("&lt;script&gt;" in shown.html) is path.startswith("/message")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
async def test_what_the_pictures_find(tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    page.write_text(
        "<meta name=viewport content='width=device-width'><header><a style='margin-left: 900px' href='/'>far</a></header>"
        "<p style='width: 900px'>wide</p><script>console.warn('said', 7); nothing()</script>"
    )
    async with open_browser(tmp_path / "profile") as browser:
        shown = await browser.look(page.as_uri(), tmp_path / "wide.png", width=360, scheme="dark")
    found = "\n".join(wrong_with(shown, page.as_uri(), 360))
    assert "the console says warning: said 7" in found
    assert "nothing is not defined" in found
    assert "pixels wide in a window of 360" in found
    assert "beyond the window's edge: far" in found
