"""Takes pictures of each page of the dashboard, light, dark and narrow, and prints what the browser's console said.

::

    python tests/dashboard/pictures.py FOLDER [--of ours|4.9.7]

It starts a cluster of two masters with a slave each, of ours or of the real 4.9.7 (which needs Java and Maven), with
topics, groups and dead letters. It ends with 1 when the console said something, or a page or the menu is wider than the
window.
"""

# ruff: noqa: ASYNC110 - what is waited for happens in the broker
from __future__ import annotations

import argparse
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

import trio
from chromium import CHROMIUM, Browser, Shown, open_browser

import triomq
from triomq_benchmarks.clusters.cluster import JavaCluster, OurCluster, in_thread, open_cluster, open_java_cluster
from triomq_benchmarks.clusters.java import find_java
from triomq_dashboard import DashboardSettings
from triomq_dashboard.command import serve_until

LOOKS: Mapping[str, tuple[int, Literal["light", "dark"]]] = {
    "light": (1280, "light"),
    "dark": (1280, "dark"),
    "narrow": (360, "light"),
}
LONG = "returns_of_the_northern_warehouse_" + "x" * 60
WRONG = "/topic?name=unknown"
LETTERS = 3
WATCHED_S = 12.0
"""Until lines over time have points."""


@asynccontextmanager
async def filled(client: triomq.Client) -> AsyncIterator[Mapping[str, str]]:
    """Topics, groups of which one has members and another is behind, and dead letters; yields page -> its address."""
    for topic in ("orders", "payments", LONG):
        await client.admin.create_topic(topic, queues=4)
    async with client.producer("shop") as producer:
        for number in range(60):
            await producer.send(
                triomq.Message(
                    "orders" if number % 3 else LONG,
                    f'{{"order": {number}, "customer": "Zoë", "note": "{"long " * 20}"}}'.encode(),
                    keys=f"order-{number}",
                    tags="new",
                    properties={"origin": "shop.example", "note": "<b>&amp; no markup</b>"},
                )
            )

        async def refuse(_message: triomq.ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            raise ValueError("the warehouse does not know this order")

        async def accept(_message: triomq.ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()

        async def keep_sending() -> None:
            while True:
                await producer.send(triomq.Message("payments", b"paid"))
                await trio.sleep(0.2)

        retries = triomq.ConsumeRetries(max_times=0)
        async with (
            client.push_consumer("billing", start_from="earliest") as billing,
            client.push_consumer("warehouse", start_from="earliest", retries=retries) as warehouse,
            trio.open_nursery() as nursery,
        ):
            await billing.subscribe("payments")
            await warehouse.subscribe("orders")
            nursery.start_soon(billing.run, accept)
            nursery.start_soon(warehouse.run, refuse)
            nursery.start_soon(keep_sending)
            with trio.fail_after(120):
                while await client.dead_letters.count("warehouse") < LETTERS:
                    await trio.sleep(0.2)
            found = (await client.messages.by_key("orders", "order-1"))[0]
            place = {
                "topic": "orders",
                "broker": found.queue.broker_name,
                "queue": found.queue.queue_id,
                "offset": found.queue_offset,
            }
            yield {
                "cluster": "/",
                "topics": "/topics",
                "topic": "/topic?name=payments",
                "tail": "/tail?name=payments",
                "groups": "/groups",
                "group": "/group?name=billing",
                "group-behind": "/group?name=warehouse",
                "search": "/messages",
                "messages": "/messages?topic=orders",
                "message": f"/message?{urlencode(place)}",
                "dead-letters": "/dead-letters",
                "dead-letters-of": "/dead-letters/group?name=warehouse",
                "health": "/health",
                "wrong": WRONG,
            }
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(client: triomq.Client, settings: DashboardSettings) -> AsyncIterator[str]:
    """The address of a dashboard of a client."""
    end = trio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_until, client, settings, listening, end.wait)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        end.set()


def wrong_with(shown: Shown, address: str, width: int) -> list[str]:
    """What is wrong with the page of an address in a window of a width."""
    # Of an answer with an error's code the console says that it is one.
    expected = f"status of 503 () {address}"
    found = [
        f"the console says {each}" for each in shown.said if not (address.endswith(WRONG) and each.endswith(expected))
    ]
    if shown.width > width:
        found.append(f"{shown.width} pixels wide in a window of {width}")
    if shown.outside:
        found.append(f"beyond the window's edge: {', '.join(shown.outside)}")
    return found


async def take(browser: Browser, address: str, pages: Mapping[str, str], folder: Path) -> int:
    """Take the pictures of pages; returns how many are wrong, after a line for each."""
    wrong = 0
    for name, path in pages.items():
        for look, (width, scheme) in LOOKS.items():
            picture = folder / f"{name}-{look}.png"
            shown = await browser.look(address + path, picture, width=width, scheme=scheme)
            found = wrong_with(shown, address + path, width)
            wrong += bool(found)
            sys.stdout.write(f"{picture}: {'; '.join(found) or 'the console says nothing'}\n")
    return wrong


async def main(folder: Path, kind: str) -> int:
    """Take all pictures; returns how many pages are wrong."""
    await trio.Path(folder).mkdir(parents=True, exist_ok=True)
    cluster: AbstractAsyncContextManager[OurCluster | JavaCluster]
    if kind == "ours":
        cluster = in_thread(open_cluster(masters=2, slaves=1))
    else:
        cluster = in_thread(open_java_cluster(find_java(), masters=2, slaves=1, sync_replication=False, settings={}))
    async with AsyncExitStack() as stack:
        name_servers = (await stack.enter_async_context(cluster)).name_servers
        client = await stack.enter_async_context(triomq.open_client(name_servers))
        pages = await stack.enter_async_context(filled(client))
        changing = await stack.enter_async_context(served(client, DashboardSettings(allow_changes=True)))
        guarded = await stack.enter_async_context(served(client, DashboardSettings(password="long enough")))
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        browser = await stack.enter_async_context(open_browser(Path(profile)))
        await browser.look(changing + pages["topic"], folder / "topic-light.png", width=1280, scheme="light")
        await browser.look(changing + pages["group"], folder / "group-light.png", width=1280, scheme="light")
        await trio.sleep(WATCHED_S)
        return await take(browser, changing, pages, folder) + await take(browser, guarded, {"login": "/login"}, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--of", choices=["ours", "4.9.7"], default="ours")
    arguments = parser.parse_args()
    if CHROMIUM is None:
        parser.error("there is no Chromium: install Debian's package chromium")
    sys.exit(1 if trio.run(partial(main, arguments.folder, arguments.of)) else 0)
