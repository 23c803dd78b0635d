"""Masters and slaves of either kind, in every pairing: how they are configured, named and watched from outside.

Whether bytes have arrived at a slave is read from its log file, which both kinds keep in the same form, so that watching
costs the watched nothing and is the same for both.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.route import KVTable

from .java import Java
from .processes import Child, ChildError, free_port
from .targets import Kind, Server, ask, broker

WATCH_PAUSE_S = 0.0005
START_ATTEMPTS = 3
LOG_END_ATTEMPTS, LOG_END_PAUSE_S = 40, 0.05
CATCH_UP_LIMIT_S = 60.0
QUEUES = 4
"""As many as a topic gets that is made by its first message."""
QUEUE_UNIT_BYTES = 20
HEARTBEAT_MS = 1000
"""A 4.9 slave reports for the first time after this interval, not at its connect; the default is 5 s."""


@attrs.frozen
class Pairing:
    """Whose master, whose slave."""

    master: Kind
    slave: Kind

    @property
    def name(self) -> str:
        """For tables."""
        return f"{_WHOSE[self.master]} → {_WHOSE[self.slave]}"


_WHOSE = {Kind.OURS: "ours", Kind.JAVA: "Java"}
OURS_TO_OURS = Pairing(Kind.OURS, Kind.OURS)
JAVA_TO_JAVA = Pairing(Kind.JAVA, Kind.JAVA)
PAIRINGS = (JAVA_TO_JAVA, OURS_TO_OURS, Pairing(Kind.OURS, Kind.JAVA), Pairing(Kind.JAVA, Kind.OURS))


def role_settings(file_bytes: int, **extra: object) -> dict[str, object]:
    """The configuration that a master and its slaves share; log files of `file_bytes`."""
    return {
        "mappedFileSizeCommitLog": file_bytes,
        "haSendHeartbeatInterval": HEARTBEAT_MS,
        "maxMessageSize": 1 << 22,
        # Java turns sends away that had to wait for a core: what counts here is how long they take.
        "osPageCacheBusyTimeOutMills": 10_000,
        "waitTimeMillsInSendQueue": 10_000,
        "slaveTimeout": 10_000,
        **extra,
    }


@contextmanager
def master(
    kind: Kind, home: Path, name_servers: str, java: Java, settings: dict[str, object], name: str
) -> Iterator[Server]:
    """A master of broker name `name`."""
    role = {"brokerRole": "ASYNC_MASTER", **settings, "brokerName": name}
    with _broker(kind, home, name_servers, java, role) as server:
        yield server


@contextmanager
def slave(
    kind: Kind, home: Path, name_servers: str, java: Java, settings: dict[str, object], name: str, of: Server
) -> Iterator[Server]:
    """A slave that follows the master `of`."""
    host, _, port = of.address.rpartition(":")
    role = {
        **settings,
        "brokerName": name,
        "brokerRole": "SLAVE",
        "brokerId": 1,
        # A Java slave that has to ask for the address first waits five seconds between looks.
        "haMasterAddress": f"{host}:{int(port) + 1}",
    }
    with _broker(kind, home, name_servers, java, role) as server:
        yield server


@contextmanager
def _broker(kind: Kind, home: Path, name_servers: str, java: Java, settings: dict[str, object]) -> Iterator[Server]:
    with ExitStack() as stack:
        for attempt in range(START_ATTEMPTS):
            try:
                server = stack.enter_context(
                    broker(kind, home, name_servers, java=java, heap="1g", port=free_port(-2, 1), settings=settings)
                )
                break
            except ChildError as error:
                # Somebody's outgoing connection took the port between the look and the bind.
                if "in use" not in str(error) or attempt == START_ATTEMPTS - 1:
                    raise
        try:
            yield server
        finally:
            # An orderly stop of Java's takes seconds and shows nothing here.
            server.kill()


def log_end(address: str) -> int:
    """Where a broker's log ends.

    A Java broker fails to say, now and then, while its statistics are empty: it is asked again for two seconds.

    Raises:
      OSError: it does not answer, or not with that.
    """
    for _ in range(LOG_END_ATTEMPTS):
        answer = ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code == ResponseCode.SUCCESS:
            return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
        time.sleep(LOG_END_PAUSE_S)
    raise OSError(f"{address} does not say where its log ends: code {answer.code}, {answer.remark}")


def first_log_file(home: Path) -> Path:
    """The log file of a broker that has only one."""
    return home / "store" / "commitlog" / f"{0:020d}"


def queue_ends(address: str, topic: str) -> list[int]:
    """How many messages a broker has in each of the topic's queues.

    Raises:
      OSError: it does not answer, or not with that.
    """
    ends = []
    for queue_id in range(QUEUES):
        answer = ask(address, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
        if answer.code != ResponseCode.SUCCESS:
            raise OSError(f"{address} does not say where queue {queue_id} ends: code {answer.code}, {answer.remark}")
        ends.append(int((answer.fields or {})["offset"]))
    return ends


class QueueWatch:
    """Sees messages become readable at a slave, in the first files of a topic's consume queues, which both kinds keep alike."""

    def __init__(self, home: Path, topic: str, child: Child) -> None:
        self._folder = home / "store" / "consumequeue" / topic
        self._child = child

    def wait(self, ends: list[int]) -> float:
        """Wait until each queue has as many entries; when that was seen (`perf_counter`).

        Raises:
          ChildError: that took too long, or the slave died.
        """
        deadline = time.perf_counter() + CATCH_UP_LIMIT_S
        for queue_id, end in enumerate(ends):
            file = self._folder / str(queue_id) / f"{0:020d}"
            at = end * QUEUE_UNIT_BYTES
            while end and not (file.exists() and file.stat().st_size >= at):
                pause(self._child, deadline)
            if not end:
                continue
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as seen:
                while not any(seen[at - 12 : at - 8]):  # the size of the message that the last entry is about
                    pause(self._child, deadline)
        return time.perf_counter()


def pause(child: Child, deadline: float) -> None:
    """Wait a moment before looking again. Raises ChildError: the time is up, or the child died."""
    if time.perf_counter() > deadline or not child.alive:
        raise ChildError(f"{child.failure('did not catch up in time')}")
    time.sleep(WATCH_PAUSE_S)


class LogWatch:
    """Sees bytes arrive in a slave's only log file: no record starts or ends with a zero byte here."""

    def __init__(self, file: Path, child: Child) -> None:
        self._file = file
        self._child = child

    def wait(self, begin: int, end: int) -> tuple[float, float]:
        """Wait until the log reaches `end`; when the bytes at `begin` and before `end` were first seen (`perf_counter`).

        Raises:
          ChildError: that took too long, or the slave died.
        """
        deadline = time.perf_counter() + CATCH_UP_LIMIT_S
        while not (self._file.exists() and self._file.stat().st_size >= end):
            pause(self._child, deadline)
        with self._file.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as seen:
            # The first four bytes of a record are its size, the lowest of them may be zero: look at its magic number.
            while not seen[begin + 7]:
                pause(self._child, deadline)
            first = time.perf_counter()
            while not seen[end - 1]:
                pause(self._child, deadline)
            return first, time.perf_counter()
