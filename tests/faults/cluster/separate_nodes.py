"""Nodes that are started one by one, each with a configuration that may change: brokers of both implementations, ours
and the real 4.9.7."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio
from cluster_setting import Setting
from cutting_proxy import CuttingProxy
from process_nodes import MASTER, NAME_SERVER, READY_S, SETTINGS, SLAVES, NodeRegistry

from triomq_benchmarks.clusters.java import Java, prepare_home
from triomq_benchmarks.clusters.processes import reserved_port
from triomq_benchmarks.clusters.servers import BROKER_MAIN, Kind, broker_settings, write_properties
from triomq_protocol.codes import RequestCode
from triomq_protocol.wire.command import Command
from triomq_server.wire import LinkError, open_link

TIMEOUT_MS = "20000"
JAVA_SETTINGS = {
    # Overload is not under test.
    "waitTimeMillsInSendQueue": TIMEOUT_MS,
    "osPageCacheBusyTimeOutMills": TIMEOUT_MS,
    # A 4.9 broker registers at a new name server only in this interval.
    "registerNameServerPeriod": "10000",
}
JVM_PROPERTIES = {
    "rocketmq.broker.diskSpaceWarningLevelRatio": "0.99",
    "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.98",
}


@attrs.frozen
class Pair:
    """The implementations of the master and of the slaves."""

    master: Kind
    slave: Kind

    @classmethod
    def parsed(cls, text: str) -> Pair:
        """From `java/ours`."""
        kinds = {"ours": Kind.OURS, "java": Kind.JAVA}
        master, _, slave = text.partition("/")
        return cls(kinds[master], kinds[slave])

    def __str__(self) -> str:
        names = {Kind.OURS: "ours", Kind.JAVA: "java"}
        return f"{names[self.master]}/{names[self.slave]}"


OURS = Pair(Kind.OURS, Kind.OURS)


class SeparateNodes(NodeRegistry):
    """A name server of ours and a broker set of a pair.

    Attributes:
        kinds: implementation of each broker.
        settings: each broker's own settings; a change takes effect at its next start.
    """

    def __init__(
        self, pair: Pair, home: Path, setting: Setting, java: Java | None, nursery: trio.Nursery, ports: ExitStack
    ) -> None:
        super().__init__()
        self.home = home
        self.kinds = {NAME_SERVER: Kind.OURS, MASTER: pair.master}
        self.kinds |= dict.fromkeys(SLAVES[: setting.slaves], pair.slave)
        self.settings: dict[str, dict[str, str]] = {}
        self._java = java
        self._nursery = nursery
        self.addresses = {name: f"127.0.0.1:{ports.enter_context(reserved_port(-2, 1))}" for name in self.kinds}
        self.name_servers = self.addresses[NAME_SERVER]

    def store(self, name: str) -> str:
        return str(self.home / name / "store")

    def lose_disk(self, name: str) -> None:
        """Lose the disk; the node must be down."""
        shutil.rmtree(self.store(name))

    def output(self) -> str:
        """The end of what each node has printed."""
        logs = [*self.home.glob("*/node.out"), *self.home.glob("*/logs/*.log")]
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    async def start(self, name: str) -> None:
        home = self.home / name
        home.mkdir(exist_ok=True)
        with (home / "node.out").open("ab") as out:
            process = await trio.lowlevel.open_process(
                self._command(name, home),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=home,
                start_new_session=True,
            )
        self._nursery.start_soon(self._live, name, process)

    def _command(self, name: str, home: Path) -> list[str]:
        port = int(self.addresses[name].rpartition(":")[2])
        if name == NAME_SERVER:
            files = {"kvConfigPath": home / "kvConfig.json", "configStorePath": home / "namesrv.properties"}
            config = write_properties(home / "namesrv.conf", {"listenPort": port, "bindAddress": "127.0.0.1", **files})
            return [sys.executable, "-m", "triomq_server", "namesrv", "-c", str(config)]
        extra: Mapping[str, object] = SETTINGS | JAVA_SETTINGS | self.settings[name]
        config = write_properties(home / "broker.conf", broker_settings(self.name_servers, home, port, extra))
        if self.kinds[name] is Kind.OURS:
            return [sys.executable, "-m", "triomq_server", "broker", "-c", str(config)]
        assert self._java is not None
        return self._java.command(
            BROKER_MAIN,
            ["-c", str(config)],
            home=prepare_home(home),
            properties=JVM_PROPERTIES,
        )

    async def _live(self, name: str, process: trio.Process) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce, name, process)
                await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                self.ended(name, process.pid, await process.wait())
            self.notify()

    async def _announce(self, name: str, process: trio.Process) -> None:
        """Wait until a node answers, then report it ready."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO if name == NAME_SERVER else RequestCode.GET_BROKER_RUNTIME_INFO
        while True:
            try:
                with trio.fail_after(2):
                    async with open_link(self.addresses[name]) as link:
                        await link.request(Command.request(code), 2)
            except (OSError, LinkError, trio.TooSlowError):
                await trio.sleep(0.02)
            else:
                break
        self.ready(name, process.pid)
        self.notify()

    async def kill(self, name: str) -> None:
        """Send SIGKILL and wait for the exit."""
        if self.signal(name, signal.SIGKILL):
            await self.until(name, up=False)

    async def stop(self, name: str) -> None:
        """Shut ours down cleanly; kill Java's, whose clean shutdown takes seconds and tests nothing."""
        if self.kinds[name] is Kind.JAVA:
            await self.kill(name)
        elif self.signal(name, signal.SIGTERM):
            await self.until(name, up=False)


@asynccontextmanager
async def separate_nodes(
    pair: Pair, home: Path, setting: Setting, proxy: CuttingProxy, java: Java | None
) -> AsyncIterator[SeparateNodes]:
    """A running pair, whose slaves reach their master through the proxy."""
    with ExitStack() as ports:
        async with trio.open_nursery() as nursery:
            nodes = SeparateNodes(pair, home, setting, java, nursery, ports)
            proxy.lead_to(nodes.addresses[MASTER])
            flush = {"flushDiskType": "SYNC_FLUSH" if setting.flush else "ASYNC_FLUSH"}
            role = "SYNC_MASTER" if setting.synchronous else "ASYNC_MASTER"
            nodes.settings[MASTER] = {**flush, "brokerRole": role, "brokerId": "0"}
            for number, name in enumerate(SLAVES[: setting.slaves], 1):
                nodes.settings[name] = {
                    **flush,
                    "brokerRole": "SLAVE",
                    "brokerId": str(number),
                    "haMasterAddress": f"127.0.0.1:{proxy.port + 1}",
                }
            try:
                for name in nodes.kinds:
                    await nodes.start(name)
                    await nodes.until(name, up=True)
                yield nodes
            finally:
                nodes.stopping = True
                with trio.CancelScope(shield=True):
                    for name in reversed(nodes.kinds):
                        nodes.signal(name, signal.SIGCONT)
                        with trio.move_on_after(READY_S):
                            await nodes.stop(name)
                nursery.cancel_scope.cancel()
