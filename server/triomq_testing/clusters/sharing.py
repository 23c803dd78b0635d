"""One cluster for all workers of a run of `pytest-xdist`, run by the controller's process once a worker asks for it.

Only small modules of the standard library are imported here until then: every controller imports this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading

_BACKLOG = 128


class SharedCluster:
    """Listens for workers, and runs a cluster for them if any asks.

    Attributes:
        url: the URL for workers, with a secret.
    """

    def __init__(self) -> None:
        self._listening = socket.socket()
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen(_BACKLOG)
        self._secret = os.urandom(16).hex()
        self.url: str = f"http://127.0.0.1:{self._listening.getsockname()[1]}/{self._secret}"
        self._ended, self._end = os.pipe()
        # A daemon, so that a controller that fails can end.
        self._thread = threading.Thread(target=self._run, name="triomq-testing-shared", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the cluster, remove its files, and end the thread; called when all workers have ended."""
        os.close(self._end)
        self._thread.join()
        os.close(self._ended)

    def _run(self) -> None:
        with self._listening:
            if not self._wait_asked():
                return
            try:
                from triomq_testing.clusters.servers import Servers

                with Servers() as servers, servers.open_shared(self._listening, self._secret):
                    select.select([self._ended], [], [])
            except Exception as error:  # noqa: BLE001 - the workers get it
                self._refuse(f"the cluster of this run failed: {type(error).__name__}: {error}")

    def _wait_asked(self) -> bool:
        """Wait, and return whether a worker asks; False at the end of the run."""
        ready, _, _ = select.select([self._listening.fileno(), self._ended], [], [])
        return self._ended not in ready

    def _refuse(self, text: str) -> None:
        body = json.dumps({"error": text}).encode()
        while self._wait_asked():
            # A worker that has ended meanwhile needs no answer.
            with contextlib.suppress(OSError), self._listening.accept()[0] as asking:
                asking.recv(65536)
                asking.sendall(b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n\r\n" + body)
