"""The reference for catch-up: a file sent over loopback with `sendfile` alone, to a reader that does nothing with
it.

The reader is a separate process, as a slave is. For comparison it can write the bytes to a file, through a buffer or
inside the kernel: no slave that keeps the bytes can be faster than that.
"""

from __future__ import annotations

import enum
import fcntl
import os
import socket
import sys
import time
from pathlib import Path

from triomq_benchmarks.clusters.processes import Child

READ_BYTES = 1 << 20
COPY_BYTES = 256 << 10
"""Small enough to be copied from the processor's cache."""
LIMIT_S = 30.0


class Keep(enum.StrEnum):
    """How the reader stores the bytes."""

    NOTHING = "nothing"
    WRITE = "write"
    SPLICE = "splice"


def send_file(path: Path, size: int, log: Path, into: Path, keep: Keep) -> float:
    """Send the first `size` bytes of `path` to a child; returns the seconds from the first byte to its report of all.

    Args:
        path: the file to send.
        size: number of bytes to send.
        log: the file for the child's output.
        into: the file for the bytes that the child reads, which is replaced; not if it keeps nothing.
        keep: how the child stores them.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        port = listener.getsockname()[1]
        argv = [sys.executable, "-m", "triomq_benchmarks.ha.loopback", str(port), str(size), str(into), keep]
        with Child("loopback reader", argv, log):
            link, _ = listener.accept()
            with link, path.open("rb") as file:
                link.settimeout(LIMIT_S)
                link.recv(1)
                begin = time.perf_counter()
                sent = 0
                # With a timeout Python makes the socket non-blocking; sendfile on a blocking one is the barest loop.
                link.setblocking(True)
                while sent < size:
                    sent += os.sendfile(link.fileno(), file.fileno(), sent, size - sent)
                link.settimeout(LIMIT_S)
                link.recv(1)
                return time.perf_counter() - begin


def read_all(port: int, size: int, into: Path, keep: Keep) -> None:
    """The child: report that it is ready, read `size` bytes, and report that it has them."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as link:
        link.settimeout(None)
        link.sendall(b"r")
        if keep is Keep.NOTHING:
            buffer = memoryview(bytearray(READ_BYTES))
            got = 0
            while got < size and (count := link.recv_into(buffer)):
                got += count
        else:
            with into.open("w+b") as file:
                file.truncate(size)
                (_write if keep is Keep.WRITE else _splice)(link, file.fileno(), size)
        link.sendall(b"d")


def _write(link: socket.socket, file: int, size: int) -> None:
    buffer = memoryview(bytearray(COPY_BYTES))
    got = 0
    while got < size and (count := link.recv_into(buffer)):
        os.pwrite(file, buffer[:count], got)
        got += count


def _splice(link: socket.socket, file: int, size: int) -> None:
    reading_end, entry = os.pipe()
    fcntl.fcntl(entry, fcntl.F_SETPIPE_SZ, READ_BYTES)
    got = 0
    while got < size and (count := os.splice(link.fileno(), entry, READ_BYTES)):
        while count:
            moved = os.splice(reading_end, file, count, offset_dst=got)
            got += moved
            count -= moved


if __name__ == "__main__":
    read_all(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Keep(sys.argv[4]))
