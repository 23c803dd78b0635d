"""``triomq dashboard``: serves the dashboard until SIGINT or SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import click
import trio
from hypercorn.config import Config

from triomq import Client, ClientOptions, open_client
from triomq._cli.options import credentials_given, name_servers_option
from triomq._cli.tls import dialer_given
from triomq_dashboard.access import is_loopback
from triomq_dashboard.app import Dashboard, DashboardSettings
from triomq_dashboard.serving import serve

PASSWORD_ENVIRONMENT = "TRIOMQ_DASHBOARD_PASSWORD"
PASSWORD_LEAST = 8


def _password(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(PASSWORD_ENVIRONMENT) or None
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--password-file {file} cannot be read: {error}") from None
    if not lines or not lines[0].strip():
        raise click.UsageError(f"--password-file {file} is empty; its first line is the password")
    return lines[0].strip()


@click.command()
@name_servers_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen at; others than loopback need a password."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8088, show_default=True, help="0 takes a free one.")
@click.option("--allow-changes", is_flag=True, help="Have forms that send messages again; without it, pages only show.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    help=f"Ask visitors for the password in its first line. Environment: {PASSWORD_ENVIRONMENT} is the password itself.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    help="A name by which browsers may call it without a password, beside localhost; repeatable.",
)
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False), help="Serve HTTPS: a PEM file.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False), help="The certificate's key, a PEM file.")
def dashboard(
    name_servers: str,
    host: str,
    port: int,
    allow_changes: bool,
    password_file: Path | None,
    host_names: Sequence[str],
    certificate: str | None,
    key: str | None,
) -> None:
    """Show a cluster in the browser: brokers, topics, groups, messages, dead letters.

    Reads only, unless --allow-changes. Works with RocketMQ's own brokers, too. Ctrl-C ends it.
    """
    password = _password(password_file)
    if password is None and not is_loopback(host):
        raise click.UsageError(
            f"--host {host} is reached from other machines: give --password-file, or {PASSWORD_ENVIRONMENT} in the environment"
        )
    if password is not None and len(password) < PASSWORD_LEAST:
        raise click.UsageError(f"the password has fewer than {PASSWORD_LEAST} characters")
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key belong together")
    options: ClientOptions = {"credentials": credentials_given(), "route_wait_s": 0}
    dial = dialer_given()
    if dial is not None:
        options["dial"] = dial
    settings = DashboardSettings(password=password, allow_changes=allow_changes, hosts=frozenset(host_names))
    tls = None if certificate is None or key is None else _tls(certificate, key)
    trio.run(_main, name_servers, options, settings, _listening(host, port), tls)


def _tls(certificate: str, key: str) -> ssl.SSLContext | None:
    """Create the TLS context for HTTPS.

    Raises:
        click.UsageError: the files cannot be used.
    """
    config = Config()
    config.certfile, config.keyfile = certificate, key
    try:
        return config.create_ssl_context()
    except (OSError, ValueError) as error:
        raise click.UsageError(
            f"--certificate {certificate} and --key {key} cannot be used: {error}; both are PEM files, and belong together"
        ) from None


def _listening(host: str, port: int) -> socket.socket:
    """Create a listening socket.

    Raises:
        click.ClickException: the address cannot be used.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        raise click.ClickException(
            f"{host} port {port} cannot be listened on: {error.strerror or error}; stop what listens there, or give "
            "another --port"
        ) from None


async def _main(
    name_servers: str,
    options: ClientOptions,
    settings: DashboardSettings,
    listening: socket.socket,
    tls: ssl.SSLContext | None,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_client(name_servers, **options) as client:
            await serve_until(client, settings, listening, partial(anext, aiter(signals)), tls)


async def serve_until(
    client: Client,
    settings: DashboardSettings,
    listening: socket.socket,
    end: Callable[[], Awaitable[object]],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve the dashboard of a client, and print its address, until `end` returns."""
    board = Dashboard(client, settings)
    host, port = listening.getsockname()[:2]
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(board.run)
        async with trio.open_nursery() as serving:
            await serving.start(partial(serve, board, listener, end, tls=tls))
            with contextlib.suppress(OSError):  # the output is closed, as with `| head -0`: it serves nevertheless
                click.echo(
                    f"the dashboard is at {'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
                )
        nursery.cancel_scope.cancel()
