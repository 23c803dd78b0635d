"""Chromium without a window, controlled over a pair of pipes: pages as a browser shows them, and what its console said.

Windows of Chromium are at least 500 pixels wide; a phone is narrower, so the page's size is set by its DevTools
protocol.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Literal

import attrs
import trio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOAD_S = 60.0
SCRIPTS_S = 1.0
"""How long a page's scripts have run when its picture is taken. The live tail may have no message by then."""

SHOWN = """({
  html: document.documentElement.outerHTML, width: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
  outside: [...document.querySelectorAll('header a, header button')].filter((each) => {
    const place = each.getBoundingClientRect();
    return place.left < 0 || place.right > document.documentElement.clientWidth;
  }).map((each) => each.textContent),
})"""


@attrs.frozen
class Shown:
    """A page as the browser shows it.

    Attributes:
        html: its elements, after its scripts have run.
        width: of what it has, in pixels; more than the window's makes people scroll.
        outside: texts of the menu that are beyond the window's edge.
        said: what the console said, a text per line.
    """

    html: str
    width: int
    outside: list[str]
    said: list[str]


class Browser:
    """A running browser; made by `open_browser`."""

    def __init__(self, commands: trio.lowlevel.FdStream, events: trio.lowlevel.FdStream) -> None:
        self._commands = commands
        self._events = events
        self._unread = b""
        self._number = 0
        self._session = ""
        self._said: list[str] = []
        self._loaded = False

    async def start(self) -> None:
        """Open the one page that pictures are taken of."""
        target = (await self._ask("Target.createTarget", url="about:blank"))["targetId"]
        self._session = (await self._ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self._ask(f"{domain}.enable")

    async def look(self, address: str, picture: Path, *, width: int, scheme: Literal["light", "dark"]) -> Shown:
        """Load a page and take its picture, from its top to its end."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self._ask("Emulation.setDeviceMetricsOverride", **size)
        await self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._said, self._loaded = [], False
        with trio.fail_after(LOAD_S):
            await self._ask("Page.navigate", url=address)
            while not self._loaded:
                self._note(await self._event())
        await trio.sleep(SCRIPTS_S)
        found = await self._ask("Runtime.evaluate", expression=SHOWN, returnByValue=True)
        shown = found["result"]["value"]
        size["height"] = min(max(900, shown["height"]), 4000)
        await self._ask("Emulation.setDeviceMetricsOverride", **size)
        png = (await self._ask("Page.captureScreenshot", format="png"))["data"]
        await trio.Path(picture).write_bytes(base64.b64decode(png))
        return Shown(shown["html"], shown["width"], shown["outside"], self._said)

    async def _ask(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        await self._commands.send_all(json.dumps(command).encode() + b"\0")
        while True:
            event = await self._event()
            if event.get("id") == self._number:
                assert "error" not in event, event
                result: Mapping[str, Any] = event["result"]
                return result
            self._note(event)

    def _note(self, event: Mapping[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled":
                words = [str(each.get("value", each.get("description"))) for each in parameters["args"]]
                self._said.append(f"{parameters['type']}: {' '.join(words)}")
            case "Runtime.exceptionThrown":
                self._said.append(f"exception: {parameters['exceptionDetails']}")
            case "Log.entryAdded":
                entry = parameters["entry"]
                self._said.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")

    async def _event(self) -> Mapping[str, Any]:
        while b"\0" not in self._unread:
            data = await self._events.receive_some()
            assert data, "Chromium has ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        event: Mapping[str, Any] = json.loads(line)
        return event


@asynccontextmanager
async def open_browser(profile: Path) -> AsyncIterator[Browser]:
    """Run Chromium for as long as the block lasts.

    Args:
        profile: a folder for what it writes.
    """
    assert CHROMIUM is not None
    commands_out, commands_in = os.pipe()
    events_out, events_in = os.pipe()
    # It reads commands from file 3 and writes events to file 4.
    script = f'exec "$0" "$@" 3<&{commands_out} 4>&{events_in}'
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
        f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = await trio.lowlevel.open_process(
        ["bash", "-c", script, CHROMIUM, *options], stdout=DEVNULL, stderr=DEVNULL, pass_fds=(commands_out, events_in)
    )
    os.close(commands_out)
    os.close(events_in)
    try:
        async with trio.lowlevel.FdStream(commands_in) as commands, trio.lowlevel.FdStream(events_out) as events:
            browser = Browser(commands, events)
            await browser.start()
            yield browser
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            await process.wait()
