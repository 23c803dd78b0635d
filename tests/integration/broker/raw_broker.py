"""A broker as a process, spoken to in bytes: what these tests say of it does not depend on this project's code."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 240


@contextmanager
def started_broker(store: Path, *settings: str, before: Sequence[str] = ()) -> Iterator[int]:
    """A broker on a free port for as long as the block lasts.

    Args:
        store: where its files go.
        settings: RocketMQ's, `KEY=VALUE`.
        before: a command that starts the broker's command.
    """
    options = [part for setting in ("brokerIP1=127.0.0.1", *settings) for part in ("--set", setting)]
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "triomq_server", "broker", "--port", "0", "--store", str(store), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)\]", process.stdout.readline())
        assert found, "the broker did not start"
        yield int(found[1])
    finally:
        process.kill()
        process.communicate()


def frame(header: bytes, body: bytes = b"") -> bytes:
    """A request as it travels, with a JSON header."""
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def header(code: int, **fields: object) -> bytes:
    """The header of a request."""
    texts = {name: str(value) for name, value in fields.items()}
    return json.dumps(
        {"code": code, "language": "JAVA", "version": 399, "opaque": 1, "flag": 0, "extFields": texts}
    ).encode()


def ask(port: int, request: bytes) -> tuple[dict[str, object], bytes]:
    """Header and body of the answer to one request."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as link:
        link.sendall(request)
        return receive(link)


def receive(link: socket.socket) -> tuple[dict[str, object], bytes]:
    """Header and body of the next frame."""
    with link.makefile("rb") as stream:
        length = int.from_bytes(stream.read(4), "big")
        data = stream.read(length)
    end = 4 + int.from_bytes(data[1:4], "big")
    return json.loads(data[4:end]), data[end:]
