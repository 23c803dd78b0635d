"""The real RocketMQ, 4.9.7 by default: finds Java and Maven, resolves jars, compiles drivers.

Maven fetches the jars that `drivers/java/pom.xml` names; the class path and compiled drivers are cached by `builds.py`.
Servers are started in `servers.py`, load by `drivers/`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from triomq_benchmarks.clusters.builds import DRIVERS, building, built, cache_folder, digest, find_tool, run_tool

POM = DRIVERS / "java" / "pom.xml"
VERSION = "4.9.7"
"""The version in the POM."""

QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dtls.server.mode=disabled")
"""Options for a JVM that runs for minutes and whose speed is not measured: it would never recover the cost of the
second compiler and the parallel collector, half of its processor time. With them, RocketMQ's servers make no RSA key
for TLS, which takes two thirds of their start."""

# RocketMQ 4.9 unmaps its files through internals that later Javas close by default.
OPEN_MODULES = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)

# The servers and the tools refuse to start without these files.
LOGBACK_FILES = ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml")
# RocketMQ 5 reads the file that a system property names, with its own copy of logback. Without it, each start reads
# hundreds of lines, and everything is logged.
LOGBACK_FILE_5 = "rmq.logback.xml"
LOGBACK_PROPERTY_5 = "rmq.logback.configurationFile"
LOGBACK = """<configuration>
  <appender name="file" class="{package}ch.qos.logback.core.FileAppender">
    <file>{path}</file>
    <encoder><pattern>%d %p [%t] %c{{0}}: %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


@attrs.frozen
class Java:
    """A Java with RocketMQ's jars.

    Attributes:
        javac: the compiler in the same folder.
        class_path: RocketMQ's jars, joined as Java requires.
        archive: classes of these jars as written by another JVM, for a quick start.
        options: options of every JVM that it starts.
    """

    java: str
    javac: str
    class_path: str
    archive: Path | None = None
    options: Sequence[str] = ()

    def command(
        self,
        main_class: str,
        arguments: Sequence[str] = (),
        *,
        home: Path,
        heap: str = "256m",
        options: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        classes: Path | None = None,
    ) -> list[str]:
        """The command line that runs `main_class` with all its files kept below `home`."""
        system = {
            "user.home": str(home),
            "rocketmq.home.dir": str(home),
            "rocketmq.client.logRoot": str(home / "logs"),
            "rocketmq.client.logLevel": "WARN",
            "java.net.preferIPv4Stack": "true",
            **(properties or {}),
        }
        # An archive is only for class paths that start with its own.
        path = self.class_path if classes is None else f"{self.class_path}{os.pathsep}{classes}"
        flags = [f"-D{name}={value}" for name, value in system.items()]
        if self.archive is not None:
            flags.append(f"-XX:SharedArchiveFile={self.archive}")
        options = (*OPEN_MODULES, *self.options, *options)
        return [self.java, f"-Xmx{heap}", *options, *flags, "-cp", path, main_class, *arguments]

    def compile(self, sources: Sequence[Path]) -> Path:
        """Compile `sources` once and return the folder of their classes."""
        folder = cache_folder(f"classes-{digest(sources, self.class_path)}")
        argv = [self.javac, "-nowarn", "-Xlint:none", "-cp", self.class_path, "-d", str(folder), *map(str, sources)]
        return built(folder, argv, "compiling the Java drivers")


def find_java(version: str = VERSION, options: Sequence[str] = ()) -> Java:
    """Find Java and the jars of a version of RocketMQ.

    Raises:
        ToolUnavailableError: they are not available; the message has the reason.
    """
    java, javac, mvn = find_tool("java"), find_tool("javac"), find_tool("mvn")
    return Java(java=java, javac=javac, class_path=_resolve(mvn, version), options=options)


def _resolve(mvn: str, version: str) -> str:
    folder = cache_folder(f"jars-{digest([POM], version)}")
    with building(folder):
        return _class_path(mvn, version, folder / "class_path")


def _class_path(mvn: str, version: str, remembered: Path) -> str:
    if remembered.exists():
        class_path = remembered.read_text().strip()
        if all(Path(jar).exists() for jar in class_path.split(os.pathsep)):
            return class_path
    fresh = remembered.with_suffix(".fresh")
    argv = [mvn, "--quiet", "--batch-mode", "--file", str(POM), "dependency:build-classpath"]
    argv += [f"-Drocketmq.version={version}", f"-Dmdep.outputFile={fresh}", f"-Dmdep.pathSeparator={os.pathsep}"]
    run_tool(argv, "resolving RocketMQ's jars with Maven")
    fresh.replace(remembered)
    return remembered.read_text().strip()


def prepare_home(home: Path) -> Path:
    """Set up a Java process's ROCKETMQ_HOME: the logback files that it needs, with warnings logged to `home`/logs."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "logs").mkdir(exist_ok=True)
    for name in (*LOGBACK_FILES, LOGBACK_FILE_5):
        log = home / "logs" / name.replace(".xml", ".log")
        package = "org.apache.rocketmq.logging." if name == LOGBACK_FILE_5 else ""
        (home / "conf" / name).write_text(LOGBACK.format(path=log, package=package))
    return home
