"""Runs a scenario against a target through a driver process, and collects the driver's figures and the broker's CPU time.

A driver (`drivers/java/LoadDriver.java`, `sdk_send_driver.py`) is one process per client; it stays for the whole run, so
that a JVM is warm and a Python process has its clients open. CPU time of the broker is read from `/proc` right before
and after the driver's command; the driver measures its own around the load, for all threads, without the time to sum up
the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import attrs

from triomq_benchmarks.clusters.builds import DRIVERS, go_driver_command, node_driver_command
from triomq_benchmarks.clusters.cluster import SingleBroker
from triomq_benchmarks.clusters.java import Java, prepare_home
from triomq_benchmarks.clusters.processes import Driver
from triomq_benchmarks.drivers.scenarios import Scenario

# Extra time for a driver beyond its given time: filling sockets, connecting 64 clients, the last answers.
GRACE_S = 60.0
LONGEST_S = 30.0
"""Upper bound for extending a sample that waits for a first message."""
TOPIC = "bench"
QUEUES = 4
BROKER_NAME = "broker-a"


@attrs.frozen
class Sample:
    """One run of one scenario.

    Attributes:
        messages: number of messages sent with success, or pulled.
        seconds: duration measured by the driver, from first request to last answer.
        failures: number of answers other than success.
        p50_us: median time of one request in microseconds.
        p99_us: its 99th percentile.
        broker_cpu_s: CPU seconds of the broker process.
        client_cpu_s: CPU seconds of the driver process during the load, measured by itself.
    """

    messages: int
    seconds: float
    failures: int
    p50_us: float
    p99_us: float
    broker_cpu_s: float
    client_cpu_s: float

    @property
    def per_s(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def broker_us(self) -> float:
        """Microseconds of the broker's CPU per message."""
        return self.broker_cpu_s / self.messages * 1e6 if self.messages else 0.0

    @property
    def client_us(self) -> float:
        """Microseconds of the client's CPU per message."""
        return self.client_cpu_s / self.messages * 1e6 if self.messages else 0.0


class LoadError(Exception):
    """A sample in which sends or pulls failed, so that its figures have no meaning."""


@attrs.frozen
class Load:
    """A client that can put load on a target.

    Attributes:
        name: `raw`, `java-client`, `triomq`, `client-go` or `ali-ons`.
        client: its name in the driver's commands.
        driver: the process.
    """

    name: str
    client: str
    driver: Driver

    def run(self, target: SingleBroker, scenario: Scenario, body_bytes: int, seconds: float) -> Sample:
        """Run `scenario` once; longer, if the machine is so busy that no message was answered.

        Raises:
            LoadError: a send or pull failed.
            ChildError: the driver died or hangs.
        """
        target.ensure_topic(topic(body_bytes), QUEUES)
        while True:
            sample, first_failure = self._sample(target, scenario, body_bytes, seconds)
            if sample.messages and not sample.failures:
                return sample
            seconds *= 4
            if sample.failures or not 0 < seconds <= LONGEST_S:
                raise LoadError(
                    f"{self.name} on {target.kind}, {scenario.name}: {sample.failures} failures, "
                    f"{sample.messages} messages, first: {first_failure}"
                )

    def _sample(
        self, target: SingleBroker, scenario: Scenario, body_bytes: int, seconds: float
    ) -> tuple[Sample, object]:
        command = {
            **scenario.command(body_bytes, seconds),
            "client": self.client,
            "nameServers": target.namesrv.address,
            "broker": target.broker.address,
            "brokerName": BROKER_NAME,
            "topic": topic(body_bytes),
            "queues": QUEUES,
            "sendFirst": True,  # only client-go reads this
        }
        before = target.broker.cpu_s()
        answer = self.driver.call(command, seconds + GRACE_S)
        return _sample(answer, target.broker.cpu_s() - before), answer.get("firstFailure")


def topic(body_bytes: int) -> str:
    """The topic for one body size: a drain of it pulls only bodies of that size."""
    return f"{TOPIC}-{body_bytes}"


def _sample(answer: Mapping[str, object], broker_cpu_s: float) -> Sample:
    return Sample(
        messages=cast("int", answer["messages"]),
        seconds=cast("float", answer["seconds"]),
        failures=cast("int", answer["failures"]),
        p50_us=cast("float", answer["p50Us"]),
        p99_us=cast("float", answer["p99Us"]),
        broker_cpu_s=broker_cpu_s,
        client_cpu_s=cast("float", answer["cpuSeconds"]),
    )


@contextmanager
def java_driver(java: Java, home: Path) -> Iterator[Driver]:
    """The process behind the loads `raw` and `java-client`, and of the Java client's consumers. Raises
    ToolUnavailableError."""
    sources = sorted((DRIVERS / "java").glob("*.java"))
    argv = java.command(
        "LoadDriver",
        home=prepare_home(home),
        heap="1g",
        options=("-XX:MaxDirectMemorySize=512m",),
        classes=java.compile(sources),
    )
    with Driver("Java driver", argv, home / "driver.out") as driver:
        yield driver


@contextmanager
def sdk_driver(home: Path) -> Iterator[Driver]:
    """The process behind the load `triomq`: our SDK."""
    argv = [sys.executable, "-m", "triomq_benchmarks.drivers.sdk_send_driver"]
    with Driver("SDK driver", argv, home / "sdk_driver.out") as driver:
        yield driver


@contextmanager
def go_driver(home: Path) -> Iterator[Driver]:
    """The process behind the load `client-go`. Raises ToolUnavailableError."""
    with Driver("client-go driver", go_driver_command(), home / "go_driver.out") as driver:
        yield driver


@contextmanager
def node_driver(home: Path) -> Iterator[Driver]:
    """The process behind the load `ali-ons`. Raises ToolUnavailableError."""
    with Driver("ali-ons driver", node_driver_command(), home / "node_driver.out") as driver:
        yield driver
