"""The pages about web frameworks and notebooks, run as their readers would run them."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import nbformat
import pytest
from fastapi import FastAPI
from nbclient import NotebookClient
from pages import blocks, write_files
from worker_process import end, wait_until, worker

import triomq
from triomq_testing import RocketMQ

SERVER = ["--workers", "2", "--bind", "127.0.0.1:0", "--timeout", "120", "--no-control-socket", "--preload"]


def listening_on(log: Path) -> str:
    """Where a gunicorn reports that it listens."""

    def address() -> list[str]:
        return [line.split()[-2] for line in log.read_text().splitlines() if "Listening at" in line]

    wait_until(address, "gunicorn's address")
    return address()[0]


def workers_of(log: Path) -> list[int]:
    return [int(line.split()[-1]) for line in log.read_text().splitlines() if "Booting worker" in line]


def bodies(rocketmq: RocketMQ) -> list[bytes]:
    return sorted(message.body for message in rocketmq.messages("orders"))


def test_fastapi(rocketmq: RocketMQ, tmp_path: Path) -> None:
    write_files("docs/how-to/web/fastapi.md", tmp_path, rocketmq.namesrv_addr)
    app = runpy.run_path(str(tmp_path / "shop.py"))["app"]

    async def order_by_web(app: FastAPI) -> str:
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://example")
        async with app.router.lifespan_context(app), web:
            return str((await web.post("/orders", content=b"one")).json()["id"])

    identifier = asyncio.run(order_by_web(app))
    (message,) = rocketmq.messages("orders")
    assert (message.body, message.message_id) == (b"one", identifier)


def test_flask_under_gunicorn(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """A client that was opened before the fork serves each worker, also one that takes a killed one's place."""
    write_files("docs/how-to/web/flask.md", tmp_path, rocketmq.namesrv_addr)
    log = tmp_path / "log"
    with worker("gunicorn", [*SERVER, "--threads", "4", "shop:app"], tmp_path, log) as server:
        address = listening_on(log)
        with httpx.Client(base_url=address, timeout=60) as web:
            answers = [web.post("/orders", content=b"%d" % number) for number in range(4)]
        wait_until(lambda: len(workers_of(log)) == 2, "two workers")
        os.kill(workers_of(log)[0], signal.SIGKILL)
        wait_until(lambda: len(workers_of(log)) == 3, "the worker in place of the killed one")
        with httpx.Client(base_url=address, timeout=60) as web:
            answers += [web.post("/orders", content=b"%d" % number) for number in range(4, 8)]
        end(server, log)
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len({answer.json()["id"] for answer in answers}) == 8
    assert bodies(rocketmq) == [b"%d" % number for number in range(8)]


def test_flask_answers_that_an_order_was_not_accepted(tmp_path: Path) -> None:
    """The application starts without RocketMQ; its requests fail within the time of a send."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        write_files("docs/how-to/web/flask.md", tmp_path, f"127.0.0.1:{taken.getsockname()[1]}")
    names = runpy.run_path(str(tmp_path / "shop.py"))
    try:
        answer = names["app"].test_client().post("/orders", data=b"one")
    finally:
        names["client"].close()
    assert (answer.status_code, answer.json) == (503, {"error": "the order was not taken, try again"})


def test_django(rocketmq: RocketMQ, tmp_path: Path) -> None:
    write_files("docs/how-to/web/django.md", tmp_path, rocketmq.namesrv_addr)
    rocketmq.topic("orders")  # a consumer looks for a topic that is not there every 30 s
    settings = os.environ | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(tmp_path)}
    django = [sys.executable, "-m", "django"]
    subprocess.run([*django, "migrate", "--run-syncdb"], cwd=tmp_path, env=settings, check=True, capture_output=True)
    web_log, log = tmp_path / "web.log", tmp_path / "log"
    with (
        worker("django", ["ship_orders", "--settings", "settings"], tmp_path, log) as shipping,
        worker("gunicorn", [*SERVER, "wsgi:application"], tmp_path, web_log) as server,
    ):
        with httpx.Client(base_url=listening_on(web_log), timeout=60) as web:
            answers = [web.post("/orders", content=b"order %d" % number) for number in range(3)]
            refused = web.post("/orders", content=b"\xff")  # no text: the row is not made
        wait_until(lambda: log.read_text().count("shipped order") == 3, "three orders shipped")
        end(shipping, log)
        end(server, web_log)
    assert [answer.json() for answer in answers] == [{"order": 1}, {"order": 2}, {"order": 3}], web_log.read_text()
    assert refused.status_code == 500
    shipped = [line for line in log.read_text().splitlines() if line.startswith("shipped")]
    assert sorted(shipped) == [f"shipped order {number}" for number in range(3)]
    count = "from shop.models import Order; print(Order.objects.filter(shipped=True).count())"
    shell = [*django, "shell", "--no-imports", "-c", count]
    done = subprocess.run(shell, cwd=tmp_path, env=settings, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "3"


def test_django_by_asgi(rocketmq: RocketMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lifespan opens a client in the server's loop, and lets the server end; views that are awaited send by it."""
    write_files("docs/how-to/web/django.md", tmp_path, rocketmq.namesrv_addr)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    log = tmp_path / "log"
    with worker(
        "hypercorn", ["--bind", "127.0.0.1:0", "--error-logfile", "-", "asgi:application"], tmp_path, log
    ) as server:

        def address() -> list[str]:
            return re.findall(r"Running on (http://[0-9.:]+)", log.read_text())

        wait_until(address, "hypercorn's address")
        with httpx.Client(base_url=address()[0], timeout=60) as web:
            answers = [web.post("/questions", content=b"%d" % number) for number in range(3)]
        end(server, log)
    assert [answer.status_code for answer in answers] == [200] * 3, log.read_text()
    found = rocketmq.messages("questions")
    assert sorted(message.body for message in found) == [b"0", b"1", b"2"]
    assert {message.message_id for message in found} == {answer.json()["id"] for answer in answers}
    assert server.returncode == 0
    assert not re.search("Error|Traceback", log.read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_cell_of_the_notebook_may_be_run_again(rocketmq: RocketMQ) -> None:
    cells = [
        nbformat.v4.new_code_cell(block.replace("127.0.0.1:9876", rocketmq.namesrv_addr))
        for block in blocks("docs/how-to/jupyter.md")
        for _ in range(2)
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()  # raises what a cell raises
    shown = [output["data"]["text/plain"] for cell in notebook.cells for output in cell.outputs if "data" in output]
    status = repr(triomq.SendStatus.SEND_OK)
    first = "[b'order 0', b'order 0', b'order 1']"
    assert shown == [status, status, first, first, "97", "97"]
    assert len(rocketmq.messages("orders")) == 200
