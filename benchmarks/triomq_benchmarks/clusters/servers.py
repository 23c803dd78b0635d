"""Single name servers and brokers as child processes, ours or the real 4.9.7, started from the same configuration.

Both kinds get a RocketMQ configuration file with the same keys, listen on free ports
of the loopback interface and keep everything below one folder. "Ready" is an answered request, not a printed line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from triomq_benchmarks.clusters.builds import cache_folder
from triomq_benchmarks.clusters.java import LOGBACK_FILE_5, LOGBACK_PROPERTY_5, Java, prepare_home
from triomq_benchmarks.clusters.processes import Child, kept_port, reserved_port
from triomq_benchmarks.clusters.server_state import ask_blocking
from triomq_protocol.codes import RequestCode, ResponseCode

NAMESRV_MAIN = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN = "org.apache.rocketmq.broker.BrokerStartup"


# 4.9 refuses requests that have waited 200 ms; while its JVM is cold, or the machine loaded, that would make every
# sample useless.
PATIENT = {"waitTimeMillsInSendQueue": 10_000}


_BROKER_PORTS = (-2, 1)
"""Distances of a broker's other ports from its main port: the second client port and replication."""


class Kind(StrEnum):
    """The implementation of a server."""

    OURS = "triomq"
    JAVA = "java"


class Server(Child):
    """A running name server or broker.

    Attributes:
        address: `127.0.0.1:port` at which it answers.
        first_answer_s: seconds from the start of the process to its first answer.
    """

    address: str
    first_answer_s: float


def _answers(address: str, code: int) -> bool:
    try:
        ask_blocking(address, code)
    except OSError:
        return False
    return True


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    """Write a RocketMQ configuration file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in settings.items()]
    path.write_text("".join(lines))
    return path


def _command(
    kind: Kind,
    role: str,
    config: Path,
    home: Path,
    java: Java | None,
    heap: str,
    properties: Mapping[str, str],
) -> list[str]:
    if kind is Kind.OURS:
        return [sys.executable, "-m", "triomq_server", role, "-c", str(config)]
    if java is None:
        raise ValueError("a Java server needs a Java")
    main = NAMESRV_MAIN if role == "namesrv" else BROKER_MAIN
    system = {LOGBACK_PROPERTY_5: str(home / "conf" / LOGBACK_FILE_5), **properties}
    return java.command(main, ["-c", str(config)], home=prepare_home(home), heap=heap, properties=system)


def _environment(kind: Kind) -> dict[str, str] | None:
    """The environment of a server: ours starts from byte code, like an installed package, even from a checkout."""
    if kind is Kind.OURS and os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache_folder("byte-code"))}
    return None


@contextmanager
def namesrv(
    kind: Kind,
    home: Path,
    *,
    java: Java | None = None,
    heap: str = "128m",
    settings: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a name server of the given kind; it is ready to serve, and `home` has all its files.

    Args:
        kind: ours or the real one.
        home: its folder, which may exist from an earlier run.
        java: needed for the real one.
        heap: the Java heap, as for `-Xmx`.
        settings: additional RocketMQ configuration keys.
        properties: additional Java system properties.
    """
    with reserved_port() as port:
        files = {"kvConfigPath": home / "kvConfig.json", "configStorePath": home / "namesrv.properties"}
        config = write_properties(home / "namesrv.conf", {"listenPort": port, **files, **(settings or {})})
        argv = _command(kind, "namesrv", config, home, java, heap, properties or {})
        with Server(f"{kind} name server", argv, home / "namesrv.out", env=_environment(kind)) as server:
            server.address = f"127.0.0.1:{port}"
            code = RequestCode.GET_BROKER_CLUSTER_INFO
            server.first_answer_s = server.wait_until(lambda: _answers(server.address, code))
            yield server


def broker_settings(name_servers: str, home: Path, port: int, extra: Mapping[str, object]) -> dict[str, object]:
    """The configuration of a small broker on the loopback interface."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH",
        "deleteWhen": "04",
        "fileReservedTime": 48,
        "namesrvAddr": name_servers,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": home / "store",
        # Scratch folders share their disk with other programs: only a nearly full one may stop the broker.
        "diskMaxUsedSpaceRatio": 95,
        "diskSpaceWarningLevelRatio": 0.99,
        "diskSpaceCleanForciblyRatio": 0.98,
        **extra,
    }


@contextmanager
def broker(
    kind: Kind,
    home: Path,
    name_servers: str,
    *,
    java: Java | None = None,
    heap: str = "256m",
    port: int | None = None,
    settings: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run a broker of the given kind, registered at `name_servers` and ready to serve; its store is `home`/store.

    The arguments are those of `namesrv`; `port` is the port to listen on, for a broker that restarts.
    """
    reserved = reserved_port(*_BROKER_PORTS) if port is None else kept_port(port, *_BROKER_PORTS)
    with reserved as port:
        config = write_properties(home / "broker.conf", broker_settings(name_servers, home, port, settings or {}))
        # In 4.9 these two are system properties only.
        system = {
            "rocketmq.broker.diskSpaceWarningLevelRatio": "0.99",
            "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.98",
            **(properties or {}),
        }
        argv = _command(kind, "broker", config, home, java, heap, system)
        with Server(f"{kind} broker", argv, home / "broker.out", env=_environment(kind)) as server:
            server.address = f"127.0.0.1:{port}"
            code = RequestCode.GET_BROKER_RUNTIME_INFO
            server.first_answer_s = server.wait_until(lambda: _answers(server.address, code))
            wait_for_route(server, name_servers.split(";"), server.address)
            yield server


def wait_for_route(server: Server, name_servers: list[str], broker_address: str) -> None:
    """Wait until every name server lists `broker_address`."""

    def listed() -> bool:
        for name_server in name_servers:
            try:
                answer = ask_blocking(name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
            except OSError:
                return False
            if answer.code != ResponseCode.SUCCESS or broker_address.encode() not in answer.body:
                return False
        return True

    server.wait_until(listed)
