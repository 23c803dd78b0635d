"""Requests of the TLS tests to servers, and their waits."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.command import Command
from triomq_server.wire import dial_tcp, open_link, tls_dial

ASK = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)


async def ask(address: str, context: ssl.SSLContext) -> int:
    """The code of an answer over TLS."""
    async with open_link(address, dial=tls_dial(dial_tcp, lambda: context)) as link:
        return (await link.request(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), 60)).code


async def ask_plainly(address: str) -> int:
    """The code of an answer over plain TCP."""
    async with open_link(address) as link:
        return (await link.request(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), 60)).code


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110 (what is waited for is a line of the log)
            await trio.sleep(0.01)
