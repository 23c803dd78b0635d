"""Commands to a running cluster of processes, by a socket in its directory: one line in, one JSON line back.

`triomq admin node restart broker-a --directory DIR` is the client; the cluster's parent has no event loop, so the server
is a set of callbacks of its selector.
"""

import errno
import json
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "control"
"""The name of the socket in the cluster's directory."""

VERBS = ("start", "stop", "restart", "kill", "pause", "resume")

ANSWER_LIMIT_S = 60.0
"""Timeout of a command: a stop may take 15 s, and a start has to recover the store."""

_LINE_BYTES = 256
_CONNECTIONS = 8
"""Maximum number of commands that wait for their end at one time."""

Event = dict[str, object]


class ControlError(Exception):
    """The command could not be sent or carried out; the text names the cause and the remedy."""


class ControlSocket:
    """The cluster's end of the control socket.

    Args:
        directory: the cluster's directory.
        selector: calls the socket's callbacks.
        run_command: carries out a verb on a node, and later calls `end_command` with the event that ends it.

    Raises:
        ControlError: the socket cannot be made, or a cluster already runs in this directory.
    """

    def __init__(
        self, directory: Path, selector: selectors.BaseSelector, run_command: Callable[[list[str]], None]
    ) -> None:
        self._path = directory / NAME
        self._selector = selector
        self._run_command = run_command
        self._waiting: dict[socket.socket, str] = {}
        self._reading: dict[socket.socket, bytes] = {}
        if self._path.is_socket():
            if _is_served(directory):
                raise ControlError(f"a cluster runs in {directory} already; stop it, or choose another directory")
            self._path.unlink()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            with _short_path(directory) as path:
                self._listener.bind(path)
        except OSError as error:
            self._listener.close()
            cure = (
                "something else has this name: move it away"
                if error.errno == errno.EADDRINUSE
                else f"{error.strerror}: choose a directory on a file system that has sockets"
            )
            raise ControlError(f"the cluster's socket {self._path} cannot be made, {cure}") from error
        self._path.chmod(0o600)
        self._listener.listen(_CONNECTIONS)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def end_command(self, event: Event) -> None:
        """Answer all callers that wait for the event's node."""
        name = event.get("name")
        for link in [link for link, node in self._waiting.items() if node == name]:
            del self._waiting[link]
            _answer(link, event)

    def close_in_child(self) -> None:
        """Close a forked node's copies of the sockets."""
        for each in (self._listener, *self._reading, *self._waiting):
            each.close()

    def close(self) -> None:
        """Stop accepting commands."""
        for each in list(self._reading):
            self._drop(each)
        for link in self._waiting:
            _answer(link, {"event": "error", "error": "the cluster stops"})
        self._waiting.clear()
        self._selector.unregister(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        link.setblocking(False)
        if len(self._reading) + len(self._waiting) >= _CONNECTIONS:
            _answer(link, {"event": "error", "error": "too many commands at one time"})
            return
        self._reading[link] = b""
        self._selector.register(link, selectors.EVENT_READ, lambda: self._read(link))

    def _read(self, link: socket.socket) -> None:
        try:
            data = link.recv(_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        text = self._reading[link] + data
        if not data or len(text) > _LINE_BYTES:
            self._drop(link)
            return
        self._reading[link] = text
        if not text.endswith(b"\n"):
            return
        del self._reading[link]
        self._selector.unregister(link)
        words = words_of(text)
        self._waiting[link] = words[1] if len(words) == 2 else ""
        self._run_command(words)

    def _drop(self, link: socket.socket) -> None:
        del self._reading[link]
        self._selector.unregister(link)
        link.close()


def words_of(line: bytes) -> list[str]:
    """The verb of a command and the name of its node, which may have blanks: that is no node's, and an error."""
    return line.decode(errors="replace").strip().split(maxsplit=1)


def give_command(directory: Path, verb: str, name: str) -> Event:
    """Let a cluster's parent start, stop, restart, kill, pause or resume a node; returns the command's last event.

    Raises:
        ControlError: no cluster runs there, or the command failed.
    """
    try:
        with socket.socket(socket.AF_UNIX) as link, _short_path(directory) as path:
            link.settimeout(ANSWER_LIMIT_S)
            link.connect(path)
            link.sendall(f"{verb} {name}\n".encode())
            with link.makefile("rb") as answers:
                line = answers.readline()
    except TimeoutError:
        raise ControlError(f"the cluster did not answer in {ANSWER_LIMIT_S:g} s") from None
    except OSError as error:
        raise ControlError(
            f"no cluster runs in {directory}: {error.strerror}; give the directory that `triomq cluster` prints"
        ) from error
    if not line:
        raise ControlError("the cluster ended")
    event: Event = json.loads(line)
    if event["event"] == "error":
        raise ControlError(str(event["error"]))
    return event


def _answer(link: socket.socket, event: Event) -> None:
    try:
        link.sendall(json.dumps(event).encode() + b"\n")
    except OSError:
        pass  # the client has disconnected
    link.close()


def _is_served(directory: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, _short_path(directory) as path:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


@contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """The socket's path, kept below a system's limit of about 100 bytes by an open directory."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/{NAME}" if os.path.isdir("/proc/self/fd") else str(directory / NAME)
    finally:
        os.close(opened)
