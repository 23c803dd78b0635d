"""The yardstick of catch-up: a file sent over loopback with nothing but `sendfile`, to a reader that does nothing with it.

The reader is a process of its own, as a slave is. For comparison it can put what it reads into a file, mapped like a log
file: no slave that keeps the bytes can be faster than that.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from pathlib import Path

from .processes import Child

READ_BYTES = 1 << 20
LIMIT_S = 30.0


def send_file(path: Path, size: int, log: Path, into: Path | None = None) -> float:
    """Send the first `size` bytes of `path` to a child; seconds from the first byte to the child's word that it has all.

    Args:
      path: what is sent.
      size: how much of it.
      log: what the child prints goes here.
      into: the child writes what it reads into this file, made anew and mapped.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        port = listener.getsockname()[1]
        argv = [sys.executable, "-m", "triomq_benchmarks.ha_loopback", str(port), str(size), str(into or "")]
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


def read_all(port: int, size: int, into: Path | None) -> None:
    """The child: say that we are there, read `size` bytes, say that we have them."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as link:
        if into is None:
            buffer = memoryview(bytearray(READ_BYTES))
            link.sendall(b"r")
            got = 0
            while got < size and (count := link.recv_into(buffer)):
                got += count
        else:
            with into.open("w+b") as file:
                file.truncate(size)
                with mmap.mmap(file.fileno(), size) as mapped, memoryview(mapped) as log:
                    link.sendall(b"r")
                    got = 0
                    while got < size and (count := link.recv_into(log[got : got + READ_BYTES])):
                        got += count
        link.sendall(b"d")


if __name__ == "__main__":
    read_all(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3] else None)
