"""Real Java 4.9.7 servers and clients beside ours, and 5.5.0 where the name ends with `_5`.

Every test of this suite is marked `interop` and skipped, with the reason, where Java or Maven is missing or the jars
cannot be downloaded. Servers run for a whole module unless a test needs to stop one, and not for the session: an idle
JVM takes some hundredths of a core, and after half a minute has cost more than its start did. Servers with the same
settings are for all modules whose tests follow each other. Tests use different topic names.
"""

from __future__ import annotations

import base64
import ctypes
import json
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import attrs
import pytest
from class_archive import QUICK_START, with_class_archive
from java_clients import client_command

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.java import Java, find_java
from triomq_benchmarks.clusters.processes import Child, Driver, DriverError
from triomq_benchmarks.clusters.servers import PATIENT, Kind, Server, broker, namesrv

T = TypeVar("T")
HERE = Path(__file__).parent
CALL_LIMIT_S = 120

# Small files: several are filled by a test, and a started broker does not reserve gigabytes.
SMALL_STORE = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "flushConsumerOffsetInterval": 500,
    "maxMessageSize": 1 << 22,
}
# A Java broker creates a topic at its first check of half messages, a minute after its start.
NO_TRANSACTION_CHECKS = {"transactionCheckInterval": 3_600_000}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.slow)


JAVA_5 = "java5"
"""Parameter of tests that run on servers of 5.5.0, too."""
SETTINGS_5 = {
    "enablePropertyFilter": "true",
    "messageDelayLevel": " ".join(["1s"] * 18),
    "defaultTopicQueueNums": 4,
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 5000,
    "transactionCheckMax": 100,
}
"""Of the brokers for and of 5.5.0, which all tests of a module share.

5.5.0 notes ends of transactions every three seconds, and must not ask about them earlier.
"""
QUIET_5 = {
    "mappedFileSizeTimerLog": 1 << 20,
    "timerFlushIntervalMs": 3_600_000,
    "transactionMetricFlushInterval": 500,
    **NO_TRANSACTION_CHECKS,
}
"""Of all brokers of 5.5.0, so that idle ones take no processor time.

At each flush of its timer wheel, by default every second, it goes through slots for a week: a twelfth of a core. Until
it first writes figures about transactions, by default ten seconds after its start, a thread asks for the time in a
loop without a pause.
"""
FULL_FOR_5 = 0.88
"""The used part of a partition from which on no store of 5.5.0 is put there: it refuses sends from 0.9 on, whatever
its settings say. 4.9.7 and ours can be set to go on."""
MEMORY_FOR_5 = Path("/dev/shm")
ROOM_FOR_5 = 2 << 30
"""Bytes that its stores may need: two log files of the default size, of which little is written."""

EITHER = "either"
WITH_EITHER = {"test_java_client", "test_namespaces", "test_operators_sdk", "test_request_reply", "test_sdk"}
"""Modules whose tests run on `either`, whose servers they share."""
ONE_SET_OF_SERVERS = {"test_clients_5", "test_other_clients", "test_replication"}
ONE_SET_PER_KIND = {
    "test_group_operators",
    "test_mixed",
    "test_mixed_groups",
    "test_push_java",
    "test_push_sdk",
    "test_trace",
    "test_transactions_sdk",
}
"""Modules whose tests share servers through a fixture. Each test of the others starts its own."""
ONE_SET_PER_VERSION = {"test_mqadmin"}
"""Modules whose tests share what one version of the real software did."""


def worker_group(node_id: str) -> str:
    """Tests of one group share servers and run in one worker."""
    module = Path(node_id.partition("::")[0]).stem
    if JAVA_5 in re.split(r"[\[\]-]", node_id):
        return JAVA_5
    if module in ONE_SET_OF_SERVERS:
        return module
    if module in ONE_SET_PER_KIND | WITH_EITHER and (kind := re.search(rf"[\[-]({'|'.join(Kind)})[\]-]", node_id)):
        return f"{EITHER if module in WITH_EITHER else module}-{kind[1]}"
    if module in ONE_SET_PER_VERSION and (version := re.search(r"\[(\d+\.\d+\.\d+)\]", node_id)):
        return f"{module}-{version[1]}"
    return node_id


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several workers: one that starts a JVM should not start it for a single test of twelve.

    xdist's own `loadgroup` writes the group into the node id, which pytest 9.2 no longer lets it do.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByServers(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return worker_group(nodeid)

    return ByServers(config, log)


@attrs.frozen
class Sample:
    """A message to be sent by either side, and to be received unchanged."""

    body: bytes
    tags: str | None = None
    keys: str | None = None
    flag: int = 0
    properties: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    delay_level: int = 0

    def for_java(self) -> dict[str, object]:
        fields: dict[str, object] = {"body": base64.b64encode(self.body).decode(), "flag": self.flag}
        if self.delay_level:
            fields["delay"] = self.delay_level
        if self.tags is not None:
            fields["tags"] = self.tags
        if self.keys is not None:
            fields["keys"] = self.keys
        fields["properties"] = dict(self.properties)
        return fields


def samples(count: int, seed: int = 7, largest_bytes: int = 1500) -> list[Sample]:
    """`count` different messages, the same for the same seed; two tags, a key each, some with user properties."""
    chance = random.Random(seed)
    return [
        Sample(
            body=b"%d:" % index + chance.randbytes(chance.randrange(1, largest_bytes)),
            tags="AB"[index % 2],
            keys=f"key-{seed}-{index}",
            flag=index,
            properties={"colour": "grün", "number": str(index)} if index % 3 == 0 else {},
        )
        for index in range(count)
    ]


@attrs.frozen
class Seen:
    """A message as a Java client received it."""

    body: bytes
    tags: str | None
    keys: str | None
    flag: int
    msg_id: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_host: str
    store_host: str
    properties: Mapping[str, str]

    def sample(self) -> Sample:
        own = {name: value for name, value in self.properties.items() if name in {"colour", "number"}}
        return Sample(self.body, self.tags, self.keys, self.flag, own)


def _seen(message: Mapping[str, Any]) -> Seen:
    return Seen(
        body=base64.b64decode(message["body"]),
        tags=message.get("tags"),
        keys=message.get("keys"),
        flag=message["flag"],
        msg_id=message["msgId"],
        queue_id=message["queueId"],
        queue_offset=message["queueOffset"],
        physical_offset=message["commitLogOffset"],
        sys_flag=message["sysFlag"],
        born_host=message["bornHost"],
        store_host=message["storeHost"],
        # The client adds the bounds of the queue as they were at the moment of the pull.
        properties={k: v for k, v in message["properties"].items() if k not in {"MIN_OFFSET", "MAX_OFFSET"}},
    )


def eventually(ask: Callable[[], T], good: Callable[[T], bool], limit_s: float = CALL_LIMIT_S) -> T:
    """Repeat a query until its answer is good; after the limit return or raise the last answer or error."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            answer = ask()
        except DriverError:
            if time.monotonic() > deadline:
                raise
        else:
            if good(answer) or time.monotonic() > deadline:
                return answer
        time.sleep(0.1)


class JavaClient:
    """The real client and admin tool in one JVM; every call has a limit."""

    eventually = staticmethod(eventually)

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def _call(self, op: str, servers: str, **fields: object) -> dict[str, Any]:
        return self.driver.call({"op": op, "nameServers": servers, **fields}, CALL_LIMIT_S)

    def send(
        self, servers: str, topic: str, messages: Sequence[Sample], mode: str = "sync", namespace: str | None = None
    ) -> list[dict[str, Any]]:
        bodies = [one.for_java() for one in messages]
        found = self._call("send", servers, topic=topic, mode=mode, messages=bodies, namespace=namespace)
        return list(found["results"])

    def pull(self, servers: str, topic: str, tags: str = "*", group: str = "java_consumer") -> list[Seen]:
        return [_seen(one) for one in self._call("pull", servers, topic=topic, tags=tags, group=group)["messages"]]

    def pull_all(self, servers: str, topic: str, count: int) -> list[Seen]:
        """Pull until `count` messages have arrived: one-way sends, new topics and consume queues are visible with a
        delay."""
        return eventually(lambda: self.pull(servers, topic), lambda seen: len(seen) >= count)

    def query(self, servers: str, topic: str, key: str, maximum: int = 32) -> list[Seen]:
        return [_seen(one) for one in self._call("query", servers, topic=topic, key=key, max=maximum)["messages"]]

    def query_until_found(self, servers: str, topic: str, key: str) -> list[Seen]:
        """Query until something is found: the index follows the log."""
        return eventually(lambda: self.query(servers, topic, key), lambda seen: len(seen) > 0)

    def view(self, servers: str, topic: str, message_id: str) -> Seen:
        return _seen(self._call("view", servers, topic=topic, id=message_id)["messages"][0])

    def offsets(self, servers: str, topic: str, time_ms: int, group: str = "java_consumer") -> list[dict[str, Any]]:
        return list(self._call("offsets", servers, topic=topic, time=time_ms, group=group)["queues"])

    def commit(self, servers: str, topic: str, offset: int, group: str) -> None:
        self._call("commit", servers, topic=topic, offset=offset, group=group)

    def admin(self, servers: str, *arguments: str, limit_s: float = 0) -> str:
        """One mqadmin command line, and what it printed; with a limit for commands that never end."""
        command = {"op": "admin", "arguments": [*arguments, "-n", servers], "limitMs": int(limit_s * 1000)}
        return str(self.driver.call(command, CALL_LIMIT_S)["output"])

    def status(self, servers: str, topic: str, group: str, client: str = "") -> dict[str, dict[str, int]]:
        """Client id to queue id to offset, as the members of an online group have them in memory."""
        return dict(self._call("status", servers, topic=topic, group=group, client=client)["clients"])

    def transact(self, servers: str, group: str, topic: str, bodies: Sequence[str], check: str) -> list[str]:
        """Send half messages; each gets the state that its body begins with; returns their ids.

        The producer stays open until `close`, and answers every check with `check`; when that is UNKNOW, it is closed
        at once.
        """
        return list(self._call("transact", servers, group=group, topic=topic, bodies=bodies, check=check)["ids"])

    def request(self, servers: str, topic: str, body: bytes, timeout_ms: int = 60_000) -> Seen:
        """Send a request and wait for the reply to it; raises DriverError if none comes in time."""
        encoded = base64.b64encode(body).decode()
        found = self._call("request", servers, topic=topic, body=encoded, timeout=timeout_ms)
        return _seen(found["messages"][0])

    def lite(self, servers: str, topic: str, group: str, count: int, tags: str = "*") -> list[Seen]:
        """What a lite pull consumer gets, until there are so many."""
        found = self._call("lite", servers, topic=topic, group=group, count=count, tags=tags)
        return [_seen(one) for one in found["messages"]]

    def share(self, servers: str, topic: str, group: str, instance: str) -> list[int]:
        """The queues that a member pulls which divides a topic with its group; it stays until `close`."""
        return list(self._call("share", servers, topic=topic, group=group, instance=instance)["queues"])

    def close(self, servers: str) -> None:
        """Close the clients of servers that are about to stop."""
        self._call("close", servers)


@pytest.fixture(scope="session")
def java() -> Java:
    try:
        return with_class_archive(find_java(options=QUICK_START))
    except ToolUnavailableError as error:
        pytest.skip(f"RocketMQ 4.9.7 is not available: {error}")


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="session")
def java_5() -> Java:
    try:
        return find_java("5.5.0", QUICK_START)
    except ToolUnavailableError as error:
        pytest.skip(f"RocketMQ 5.5.0 is not available: {error}")


def _java_client(java: Java, home: Path, serialization: str, properties: Mapping[str, str] | None = None) -> Driver:
    system = {"rocketmq.serialize.type": serialization, **(properties or {})}
    argv = client_command(java, "InteropClient", home=home, properties=system)
    return Driver(f"Java client ({serialization})", argv, home / "client.out")


FreshClient = Callable[..., AbstractContextManager[JavaClient]]


@pytest.fixture(scope="session")
def fresh_java_client(java: Java, scratch: Path) -> FreshClient:
    """Starts one more Java client: some admin commands cache, within a process, the first cluster that they used.

    Its arguments are a name, and further Java system properties.
    """
    return _client_starter(java, scratch)


@pytest.fixture(scope="session")
def fresh_java_client_5(java_5: Java, scratch: Path) -> FreshClient:
    """The same of 5.5.0."""
    return _client_starter(java_5, scratch)


def _client_starter(java: Java, scratch: Path) -> FreshClient:
    @contextmanager
    def start(name: str, properties: Mapping[str, str] | None = None) -> Iterator[JavaClient]:
        with _java_client(java, scratch / name, "JSON", properties) as driver:
            yield JavaClient(driver)

    return start


@pytest.fixture(scope="session")
def open_clients() -> list[JavaClient]:
    """The session's Java clients that have been started."""
    return []


@pytest.fixture(scope="session")
def java_client_5(java_5: Java, scratch: Path, open_clients: list[JavaClient]) -> Iterator[JavaClient]:
    """The Java client of 5.5.0 as it is by default."""
    yield from _noted(_java_client(java_5, scratch / "client-5", "JSON"), open_clients)


@pytest.fixture(scope="session")
def java_client(java: Java, scratch: Path, open_clients: list[JavaClient]) -> Iterator[JavaClient]:
    """The Java client with JSON headers, its default."""
    yield from _noted(_java_client(java, scratch / "client-json", "JSON"), open_clients)


@pytest.fixture(scope="session")
def binary_java_client(java: Java, scratch: Path, open_clients: list[JavaClient]) -> Iterator[JavaClient]:
    """The Java client with headers in RocketMQ's binary form."""
    yield from _noted(_java_client(java, scratch / "client-binary", "ROCKETMQ"), open_clients)


def _noted(started: Driver, open_clients: list[JavaClient]) -> Iterator[JavaClient]:
    with started as driver:
        client = JavaClient(driver)
        open_clients.append(client)
        yield client
        open_clients.remove(client)


class PushMember(Child):
    """A push consumer in a process of its own, `PushConsumer.java` or `push_member.py`, whose options are ours with
    dashes.

    Everything it reports is in `events()`; `stop` shuts it down cleanly, `kill` is like a crash.
    """

    def __init__(self, name: str, argv: Sequence[str], log: Path) -> None:
        super().__init__(name, argv, log)
        self._events: list[dict[str, Any]] = []
        self._read_bytes = 0

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events that it has reported, all or of one kind: started, message, queues, stopping, stopped."""
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        self._events += [json.loads(line) for line in whole.split(b"\n") if line.startswith(b'{"event"')]
        return [event for event in self._events if kind is None or event["event"] == kind]

    def messages(self) -> list[dict[str, Any]]:
        """Its deliveries, failed ones too."""
        return self.events("message")

    def bodies(self, *, success: bool = True) -> list[str]:
        """The bodies of its deliveries that succeeded (or failed)."""
        return [event["body"] for event in self.messages() if event["success"] is success]

    def queues(self) -> list[str]:
        """`topic@broker@queue` of what it owns now, retry topics left out."""
        reported = self.events("queues")
        return [name for name in (reported[-1]["queues"] if reported else []) if not name.startswith("%")]

    @property
    def client_id(self) -> str:
        return str(self.events("started")[0]["client"])

    def wait_for(self, good: Callable[[], bool], limit_s: float = CALL_LIMIT_S) -> None:
        """Wait until a condition holds; raises ChildError with the child's output if it does not in time."""
        deadline = time.monotonic() + limit_s
        while not good():
            if not self.alive or time.monotonic() > deadline:
                raise self.failure("did not get that far")
            time.sleep(0.02)

    def wait_for_messages(self, count: int, limit_s: float = CALL_LIMIT_S) -> list[dict[str, Any]]:
        """Wait until it has consumed so many messages successfully; returns all deliveries."""
        self.wait_for(lambda: len(self.bodies()) >= count, limit_s)
        return self.messages()


StartPush = Callable[..., AbstractContextManager[PushMember]]


@contextmanager
def _running(name: str, argv: Sequence[str], log: Path) -> Iterator[PushMember]:
    with PushMember(name, argv, log) as member:
        try:
            member.wait_until(lambda: bool(member.events("started")), pause_s=0.05)
            yield member
        finally:
            if member.alive:
                member.kill()  # a clean shutdown takes a second or more; tests that need one call stop


def _as_arguments(options: Mapping[str, object]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.strip('_').replace('_', '-')}", str(value))]


@pytest.fixture(scope="session")
def java_push(java: Java, scratch: Path) -> StartPush:
    """Starts a Java push consumer: `java_push(target.namesrv.address, "group", "topic", ordered="true", from_="last")`.

    With the `home` of an earlier one (its `log.parent`) it finds that one's local offsets.
    """
    return _push_starter(java, scratch, "push")


@pytest.fixture(scope="session")
def java_push_5(java_5: Java, scratch: Path) -> StartPush:
    """The same of 5.5.0."""
    return _push_starter(java_5, scratch, "push-5")


def _push_starter(java: Java, scratch: Path, name: str) -> StartPush:
    counter = count(1)

    def start(
        name_servers: str,
        group: str,
        topic: str,
        *,
        home: Path | None = None,
        properties: Mapping[str, str] | None = None,
        **options: object,
    ) -> AbstractContextManager[PushMember]:
        number = next(counter)
        home = home or scratch / f"{name}-{number}"
        given = {
            "name_servers": name_servers,
            "group": group,
            "topic": topic,
            "instance": f"{name}-{number}",
            **options,
        }
        argv = client_command(java, "PushConsumer", _as_arguments(given), home=home, properties=properties)
        return _running(f"Java {name} consumer {number}", argv, home / f"{name}-{number}.out")

    return start


@pytest.fixture(scope="session")
def python_push(scratch: Path) -> StartPush:
    """Starts one of our push consumers in a process of its own, as `java_push` does a Java one; see
    `push_member.py`."""
    counter = count(1)

    def start(name_servers: str, group: str, topic: str, **options: object) -> AbstractContextManager[PushMember]:
        name = f"our-push-{next(counter)}"
        given = {"name_servers": name_servers, "group": group, "topic": topic, "instance": name, **options}
        argv = [sys.executable, str(HERE / "push_member.py"), *_as_arguments(given)]
        return _running(name, argv, scratch / f"{name}.out")

    return start


_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 10_000_000


@contextmanager
def _timers_of(kind: Kind) -> Iterator[None]:
    """Timers of a Java server that is started in the block fire up to ten milliseconds late.

    Its broker has threads that sleep a millisecond at a time, which takes half of its processor time when it is idle.
    A process inherits the value from the thread that starts it.
    """
    if kind is not Kind.JAVA or sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, 0, 0, 0, 0)  # the default


class Servers:
    """Starts servers of both implementations below a folder, with stores of small files.

    At the end of its block a Java server is killed: its clean shutdown takes seconds. A test that needs one calls
    `stop`. Before a name server ends, the session's Java clients leave it. They would go on asking, every 30 s, and
    another test's server may listen on its port then: a 4.9 master counts eight bytes of any request on its replication
    port as the report of a slave that has everything.
    """

    def __init__(
        self,
        java: Java,
        scratch: Path,
        clients: list[JavaClient],
        java_brokers: Mapping[str, object] = NO_TRANSACTION_CHECKS,
    ) -> None:
        self.scratch = scratch
        self._clients = clients
        self._java_brokers = java_brokers
        self._namesrv = partial(namesrv, java=java)
        self._broker = partial(broker, java=java)

    @contextmanager
    def namesrv(
        self,
        kind: Kind,
        name: str,
        settings: Mapping[str, object] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Iterator[Server]:
        starting = self._namesrv(kind, self.scratch / name, settings=settings, properties=properties)
        with _until_done(kind, starting) as server:
            try:
                yield server
            finally:
                for client in self._clients:
                    client.close(server.address)

    @contextmanager
    def broker(
        self,
        kind: Kind,
        name: str,
        name_servers: str,
        settings: Mapping[str, object] | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Iterator[Server]:
        own = self._java_brokers if kind is Kind.JAVA else {}
        merged = {**PATIENT, **SMALL_STORE, **own, **(settings or {})}
        home = self.scratch / name
        starting = self._broker(kind, home, name_servers, settings=merged, port=port, properties=properties)
        with _until_done(kind, starting) as server:
            yield server


@contextmanager
def _until_done(kind: Kind, starting: AbstractContextManager[Server]) -> Iterator[Server]:
    with ExitStack() as stack:
        with _timers_of(kind):
            server = stack.enter_context(starting)
        try:
            yield server
        finally:
            if kind is Kind.JAVA:
                server.kill()


@pytest.fixture(scope="session")
def servers(java: Java, scratch: Path, open_clients: list[JavaClient]) -> Servers:
    return Servers(java, scratch, open_clients)


def _has_room_for_5(folder: Path) -> bool:
    usage = shutil.disk_usage(folder)
    return usage.used <= FULL_FOR_5 * (usage.used + usage.free) and usage.free > ROOM_FOR_5


@pytest.fixture(scope="session")
def servers_5(java_5: Java, scratch: Path, open_clients: list[JavaClient], shared: SharedServers) -> Iterator[Servers]:
    """Servers of 5.5.0, as `Kind.JAVA`: in memory where the disk is too full for them."""
    if _has_room_for_5(scratch):
        yield Servers(java_5, scratch / "5", open_clients, QUIET_5)
    elif MEMORY_FOR_5.is_dir() and _has_room_for_5(MEMORY_FOR_5):
        with TemporaryDirectory(prefix="triomq-5-", dir=MEMORY_FOR_5) as folder:
            yield Servers(java_5, Path(folder), open_clients, QUIET_5)
            shared.end_before()  # before their folder is removed
    else:
        pytest.fail(f"RocketMQ 5.5.0 refuses sends on a disk that is 90 % full, as that of {scratch}: set TMPDIR")


def _target(
    servers: Servers, kind: Kind, stack: ExitStack, settings: Mapping[str, object] | None = None, name: str = ""
) -> SingleBroker:
    names = stack.enter_context(servers.namesrv(kind, f"{kind}{name}-namesrv"))
    serving = stack.enter_context(servers.broker(kind, f"{kind}{name}-broker", names.address, settings))
    return SingleBroker(kind, names, serving)


ServersOf = Callable[..., AbstractContextManager[SingleBroker]]


@pytest.fixture(scope="module")
def servers_of(request: pytest.FixtureRequest) -> ServersOf:
    """Starts a name server and a broker for the tests of a module. Its arguments are those of `_target`."""

    @contextmanager
    def start(
        servers: Servers, kind: Kind, settings: Mapping[str, object] | None = None, name: str = ""
    ) -> Iterator[SingleBroker]:
        with ExitStack() as stack:
            yield _target(servers, kind, stack, settings, f"{name}-{request.path.stem}")

    return start


class SharedServers:
    """Servers for all modules whose tests of a group follow each other: their start costs more than they do meanwhile.

    They run until the next test is of another module and another group, so that they are rarely idle.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[SingleBroker, ExitStack]] = {}
        self._starts = count(1)

    def started(
        self, group: str, servers: Servers, kind: Kind, settings: Mapping[str, object] | None = None
    ) -> SingleBroker:
        if group not in self._running:
            with ExitStack() as stack:
                target = _target(servers, kind, stack, settings, f"-{next(self._starts)}")
                self._running[group] = target, stack.pop_all()
        return self._running[group][0]

    def end_before(self, group: str = "") -> None:
        """End all but those of a group."""
        for ended in [each for each in self._running if each != group]:
            self._running.pop(ended)[1].close()


SHARED = pytest.StashKey[SharedServers]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if SHARED in item.config.stash and (nextitem is None or nextitem.path != item.path):
        item.config.stash[SHARED].end_before(worker_group(nextitem.nodeid) if nextitem else "")


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Iterator[SharedServers]:
    started = pytestconfig.stash[SHARED] = SharedServers()
    yield started
    started.end_before()


@pytest.fixture(scope="module")
def ours(servers: Servers, shared: SharedServers) -> SingleBroker:
    """Our name server and our broker."""
    return shared.started(f"{EITHER}-{Kind.OURS}", servers, Kind.OURS)


@pytest.fixture(scope="module")
def javas(servers: Servers, shared: SharedServers) -> SingleBroker:
    """The real name server and the real broker."""
    return shared.started(f"{EITHER}-{Kind.JAVA}", servers, Kind.JAVA)


@pytest.fixture(scope="module")
def javas_5(servers_5: Servers, shared: SharedServers) -> SingleBroker:
    """The name server and the broker of 5.5.0."""
    return shared.started(JAVA_5, servers_5, Kind.JAVA, SETTINGS_5)


@pytest.fixture(scope="module")
def ours_for_5(servers: Servers, servers_of: ServersOf) -> Iterator[SingleBroker]:
    """Our name server and our broker with the settings of `javas_5`."""
    with servers_of(servers, Kind.OURS, SETTINGS_5, "-for-5") as target:
        yield target


@pytest.fixture(params=[Kind.OURS, Kind.JAVA])
def either(request: pytest.FixtureRequest) -> SingleBroker:
    """A cluster of each implementation: what holds on ours must hold on the real one, or the test itself is wrong.

    Modules that run on 5.5.0, too, give the parameters themselves.
    """
    name = {Kind.OURS: "ours", Kind.JAVA: "javas", JAVA_5: "javas_5"}[request.param]
    return request.getfixturevalue(name)  # type: ignore[no-any-return]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"T-{plain}"[:100].rstrip("-")


@pytest.fixture(scope="session")
def make_samples() -> Any:
    """The function that makes messages; folders of tests import nothing from each other."""
    return samples


@pytest.fixture(scope="session")
def make_sample() -> type[Sample]:
    return Sample
