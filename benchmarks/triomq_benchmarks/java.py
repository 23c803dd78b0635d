"""The real RocketMQ 4.9.7 on this machine: finds Java and Maven, resolves the jars, compiles our small drivers.

Nothing of RocketMQ is shipped: Maven fetches the jars that `drivers/java/pom.xml` names. The class path is remembered
in a folder of the temporary directory, keyed by the pom, and compiled drivers likewise, keyed by their sources, so that
a second run starts at once. Servers are started in `targets.py`, load in `load.py`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

POM = Path(__file__).parent / "drivers" / "java" / "pom.xml"
RESOLVE_LIMIT_S = 240
COMPILE_LIMIT_S = 120

# RocketMQ 4.9 unmaps its files through internals that later Javas close by default.
OPEN_MODULES = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)

# The servers refuse to start without these files, the tools likewise.
LOGBACK_FILES = ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml")
LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{path}</file>
    <encoder><pattern>%d %p [%t] %c{{0}}: %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


class JavaUnavailableError(Exception):
    """Java or Maven is missing, or the jars cannot be had; the message says which, for a test's skip reason."""


def _cache(key: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"triomq-java-{os.getuid()}" / key
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _digest(paths: Sequence[Path], *extra: str) -> str:
    digest = hashlib.sha256("\0".join(extra).encode())
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(argv: Sequence[str], limit_s: float, what: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise JavaUnavailableError(f"{what} took longer than {limit_s:.0f} s") from error
    if done.returncode != 0:
        raise JavaUnavailableError(f"{what} failed: {(done.stdout + done.stderr).strip()[-800:]}")


@attrs.frozen
class Java:
    """A Java with RocketMQ's jars.

    Attributes:
        java: the `java` executable.
        javac: the compiler beside it.
        class_path: RocketMQ 4.9.7's jars, joined as Java wants them.
    """

    java: str
    javac: str
    class_path: str

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
        """The command line that runs `main_class` with everything it writes kept below `home`."""
        system = {
            "user.home": str(home),
            "rocketmq.home.dir": str(home),
            "rocketmq.client.logRoot": str(home / "logs"),
            "rocketmq.client.logLevel": "WARN",
            "java.net.preferIPv4Stack": "true",
            **(properties or {}),
        }
        path = self.class_path if classes is None else f"{classes}{os.pathsep}{self.class_path}"
        flags = [f"-D{name}={value}" for name, value in system.items()]
        return [self.java, f"-Xmx{heap}", *OPEN_MODULES, *options, *flags, "-cp", path, main_class, *arguments]

    def compile(self, sources: Sequence[Path]) -> Path:
        """Compile `sources` once and return the folder of their classes."""
        folder = _cache(f"classes-{_digest(sources, self.class_path)}")
        if (folder / "done").exists():
            return folder
        # Built beside and renamed file by file at the end would race with nobody that matters: the content is the same.
        _run(
            [self.javac, "-nowarn", "-Xlint:none", "-cp", self.class_path, "-d", str(folder), *map(str, sources)],
            COMPILE_LIMIT_S,
            "compiling the Java drivers",
        )
        (folder / "done").touch()
        return folder


def find_java() -> Java:
    """Find Java and RocketMQ's jars.

    Raises:
        JavaUnavailableError: with the reason.
    """
    found: dict[str, str] = {}
    for tool in ("java", "javac", "mvn"):
        at = shutil.which(tool)
        if at is None:
            raise JavaUnavailableError(f"{tool} is not installed")
        found[tool] = at
    return Java(java=found["java"], javac=found["javac"], class_path=_resolve(found["mvn"]))


def _resolve(mvn: str) -> str:
    remembered = _cache(f"jars-{_digest([POM])}") / "class_path"
    if remembered.exists():
        class_path = remembered.read_text().strip()
        if all(Path(jar).exists() for jar in class_path.split(os.pathsep)):
            return class_path
    fresh = remembered.with_suffix(f".{os.getpid()}")
    _run(
        [
            mvn, "--quiet", "--batch-mode", "--file", str(POM), "dependency:build-classpath",
            f"-Dmdep.outputFile={fresh}", f"-Dmdep.pathSeparator={os.pathsep}",
        ],
        RESOLVE_LIMIT_S,
        "resolving RocketMQ's jars with Maven",
    )  # fmt: skip
    fresh.replace(remembered)
    return remembered.read_text().strip()


def prepare_home(home: Path) -> Path:
    """Give a Java process its ROCKETMQ_HOME: the logback files it insists on, logging warnings into `home`/logs."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "logs").mkdir(exist_ok=True)
    for name in LOGBACK_FILES:
        log = home / "logs" / name.replace(".xml", ".log")
        (home / "conf" / name).write_text(LOGBACK.format(path=log))
    return home
