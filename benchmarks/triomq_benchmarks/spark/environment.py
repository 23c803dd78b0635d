"""Everything Spark needs around it: a Java it accepts, workers that run this interpreter, a quiet log, one session.

Spark itself comes as the package `pyspark`; it brings no Java, and its workers start `python3` from `PATH` unless set
otherwise. Both are set here, for the benchmark's engine, for the audit and for the tests. Nothing here imports pyspark
before it is needed, so that a machine without it can still ask what is missing.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from triomq_benchmarks.clusters.builds import ToolUnavailableError
from triomq_benchmarks.clusters.java import QUICK_JVM
from triomq_benchmarks.clusters.scratch import scratch_folder
from triomq_benchmarks.figures.machine import usable_cpus
from triomq_benchmarks.spark.class_archive import ClassArchive, find_class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
LOOPBACK = "127.0.0.1"
GET_JAVA = "Debian and Ubuntu: apt-get install openjdk-17-jre-headless; others: https://adoptium.net; or set JAVA_HOME"
GET_SPARK = "pip install 'triomq[spark]', with Python 3.11 to 3.14"
_JAVA_LIMIT_S = 30.0
_DYING_LIMIT_S = 10.0
"""How long a JVM may take to end after its session has been stopped from within."""
_OUT_OF_MEMORY = 52
"""Spark's exit status for it."""
_ARCHIVE_LIMIT_S = 180.0
"""A JVM takes 8 s to write its classes, and several times as long on a busy machine."""
SHORT_LIVED = " ".join(QUICK_JVM)
_REACH_LIMIT_S = 5.0

_LOCAL_MASTER = re.compile(r"local(?:\[(?P<slots>\d+|\*)(?:,\s*\d+)?\])?$")

# To standard error, as Spark's default does; `open_session` redirects it to a file.
_LOG4J = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex{{short}}
"""


def java_version(text: str) -> int | None:
    """The feature release in the output of `java -version`: 17 for 17.0.15, 8 for 1.8.0_402; None if it has none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def java_path(environment: Mapping[str, str] = os.environ) -> str | None:
    """The `java` that Spark's launcher will use, whatever it is: from `JAVA_HOME` if that is set, else from `PATH`."""
    home = environment.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))


def find_java(environment: Mapping[str, str] = os.environ) -> str:
    """The `java` that Spark's launcher will use: from `JAVA_HOME` if that is set, else from `PATH`.

    Raises:
        ToolUnavailableError: there is none, or it is older than 17; the message has the remedy.
    """
    home, java = environment.get("JAVA_HOME"), java_path(environment)
    if java is None:
        raise ToolUnavailableError(f"Spark needs Java {JAVA_MIN} or newer, and there is no java in PATH. {GET_JAVA}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        where = "JAVA_HOME points to" if home else "found"
        raise ToolUnavailableError(
            f"Spark needs Java {JAVA_MIN} or newer; {where} {java}, which does not run: {error}. {GET_JAVA}"
        ) from error
    version = java_version(done.stderr + done.stdout)
    if version is None or version < JAVA_MIN:
        raise ToolUnavailableError(
            f"Spark needs Java {JAVA_MIN} or newer, and {java} is {version or 'of unknown version'}. {GET_JAVA}"
        )
    return java


def check_spark(environment: Mapping[str, str] = os.environ) -> None:
    """Check that pyspark, pyarrow and Java are installed.

    Raises:
        ToolUnavailableError: one is missing; the message names it and the remedy, also for a test's skip reason.
    """
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise ToolUnavailableError(f"Spark runs need the Python package {' and '.join(missing)}: {GET_SPARK}")
    find_java(environment)


def local_slots(master: str) -> int | None:
    """The number of tasks that a master `local[N]` runs at once; None for a cluster, which has to be asked.

    Raises:
        ValueError: the text is not a master that Spark knows, or one without slots.
    """
    if found := _LOCAL_MASTER.match(master):
        slots = found["slots"]
        if slots == "*":
            return usable_cpus()
        if slots is not None and not int(slots):
            raise ValueError(f"{master} runs no task; give local[1] or more")
        return int(slots or 1)
    if re.match(r"(spark|k8s)://.+|yarn$|local-cluster\[", master):
        return None
    raise ValueError(
        f"{master!r} is not a Spark master; known are local[N], local[*], spark://host:port, yarn, k8s://host"
    )


def check_slots(master: str, workers: int | None) -> None:
    """Check a master by its name alone.

    Raises:
        ValueError: the text is not a master that Spark knows, or one of this machine with fewer slots than load
            generators.
    """
    slots = local_slots(master)
    if slots is not None and workers is not None and workers > slots:
        raise ValueError(too_few(master, slots, workers))


def check_reachable(master: str) -> None:
    """Check that a server listens at a `spark://host:port`: Spark itself tries for a minute and a half, and its error
    does not name the master. Of several masters one is enough; this check is left to Spark.

    Raises:
        ToolUnavailableError: no server does.
    """
    found = re.fullmatch(r"spark://([^:/,]+):(\d+)", master)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), _REACH_LIMIT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:  # no such port, no such name
        raise ToolUnavailableError(
            f"no Spark master answers at {master}: {error}. `triomq bench spark-cluster` starts one on this machine"
        ) from error


def too_few(master: str, slots: int, workers: int) -> str:
    """The error text for a master that runs fewer tasks than there are load generators."""
    remedy = (
        f"use local[{workers}]" if master.startswith("local") else "start more Spark workers, or give them more cores"
    )
    return f"{master} runs {slots} tasks at once, and {workers} load generators must run together: {remedy}, or ask for --workers {slots}"


def is_on_loopback(master: str) -> bool:
    """Whether everything of this master runs on this machine's loopback interface."""
    return master.startswith("local") or re.match(r"spark://(127\.|localhost\b)", master) is not None


def prepare_environment(master: str = "local[2]", environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that Spark reads at startup, unless the user has set them.

    Workers run this interpreter (`PYSPARK_PYTHON`, `PYSPARK_DRIVER_PYTHON`); on loopback Spark is set to use that
    interface (`SPARK_LOCAL_IP`), since it would otherwise look up the machine's name in the DNS. The folder of our data
    source is added to `PYTHONPATH` if it is missing on the path.
    """
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_on_loopback(master):
        environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    _show_data_source(environment)


def _show_data_source(environment: MutableMapping[str, str]) -> None:
    """Let Spark find `pyspark_rocketmq`, for which it searches only the folders of the path.

    An editable install may be found by an import hook instead, and then `format("rocketmq")` would be unknown.
    """
    spec = importlib.util.find_spec("pyspark_rocketmq")
    if spec is None or spec.origin is None:
        return
    folder = str(Path(spec.origin).parents[1])
    known = environment.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in sys.path and folder not in known:
        environment["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, known)])


def session_settings(
    master: str, folder: Path, level: str, *, short_lived: bool = False, archive: ClassArchive | None = None
) -> dict[str, str]:
    """The configuration of a self-contained session: no web page, no progress bar, scratch files in `folder`."""
    log = folder / "log4j2.properties"
    log.write_text(_LOG4J.format(level=level.lower()))
    settings = {
        "spark.log.level": level,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log.absolute().as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": "4",
    }
    if is_on_loopback(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        settings["spark.local.dir"] = str(folder)
        if short_lived:
            settings["spark.driver.extraJavaOptions"] += f" {SHORT_LIVED}"
            settings["spark.executor.extraJavaOptions"] = SHORT_LIVED
            if archive is not None:
                settings["spark.driver.extraJavaOptions"] += f" {archive.option}"
                if archive.part is None:
                    # Executors on this machine have the same class path. Only a driver writes the archive.
                    settings["spark.executor.extraJavaOptions"] += f" {archive.option}"
    return settings


@contextmanager
def open_session(
    master: str = "local[2]",
    *,
    name: str = "triomq",
    settings: Mapping[str, str] | None = None,
    level: str = "ERROR",
    short_lived: bool = False,
    archive: ClassArchive | None = None,
) -> Iterator[SparkSession]:
    """A Spark session while the block lasts; Spark allows one at a time per process.

    The caller keeps handling Ctrl-C: Spark's own handler, which it installs when it is started in the main thread, is
    removed.

    Args:
        master: `local[N]`, `spark://host:port` or any other master of Spark.
        name: the application's name on the cluster's pages.
        settings: additional Spark settings, which override ours.
        level: level of Spark's log: `ERROR`, `WARN`, `OFF` and so on.
        short_lived: on this machine, have JVMs that are ready soon rather than fast in the long run; not for measuring
                Spark.
        archive: archive of such a JVM's classes; `end_java` keeps a newly written one.

    Raises:
        ToolUnavailableError: pyspark or Java is missing, or no master answers; or the JVM ended during the block.
        ValueError: `master` is not a valid master.
    """
    check_spark()
    local_slots(master)
    check_reachable(master)
    prepare_environment(master)
    from pyspark.sql import SparkSession

    with scratch_folder("triomq-spark-") as folder:
        given = {
            "spark.master": master,
            "spark.app.name": name,
            **session_settings(master, Path(folder), level, short_lived=short_lived, archive=archive),
            **(settings or {}),
        }
        builder = SparkSession.builder
        for key, value in given.items():
            builder = builder.config(key, value)
        with _own_interrupts():
            _start_java(given, Path(folder) / "java.log")
            session = builder.getOrCreate()
        with quiet_interrupts():
            try:
                if not spark_looks_for_sources(spark_home()):
                    from pyspark_rocketmq import DefaultSource

                    session.dataSource.register(DefaultSource)
                yield session
            except Exception as error:
                # Py4J reports its end as a refused connection, or with an error that cannot be printed.
                if (end := java_end()) is not None:
                    raise ToolUnavailableError(end) from error
                raise
            finally:
                _stop(session)


def java_end() -> str | None:
    """Why the JVM of this process's sessions has ended, and the remedy if there is one; None if it runs."""
    from pyspark import SparkContext

    java = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - as in end_java
    if java is None:
        return None
    if _is_stopped():
        with suppress(subprocess.TimeoutExpired):
            java.wait(_DYING_LIMIT_S)
    status = java.poll()
    if status is None:
        return None
    if status == _OUT_OF_MEMORY:
        return "Spark's JVM ran out of memory; give it more, for instance export SPARK_DRIVER_MEMORY=4g (default: 1g)"
    return f"Spark's JVM ended {f'by signal {-status}' if status < 0 else f'with status {status}'}"


def _is_stopped() -> bool:
    """Whether the session has been stopped from within its JVM, or the JVM no longer answers."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - as in end_java
    try:
        return context is not None and bool(context._jsc.sc().isStopped())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - py4j and Java have no common error
        return True


def _stop(session: SparkSession) -> None:
    """Stop a session; if its JVM has ended, only what this process has of it."""
    if java_end() is None:
        session.stop()
        return
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore", RuntimeWarning)
        session.stop()


def _start_java(settings: Mapping[str, str], log: Path) -> None:
    """Start the JVM of this process's sessions, unless it runs; its output and its workers' is written to a file.

    Raises:
        ToolUnavailableError: it ended at once; the message quotes its output.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001 - as in end_java
        return
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with log.open("wb") as output:
        try:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": output})  # type: ignore[no-untyped-call,unused-ignore]
        except PySparkRuntimeError as error:
            said = log.read_text(errors="replace").strip()[-2000:]
            raise ToolUnavailableError(f"Spark's JVM ended before it was ready: {said or error}") from error
    context = SparkContext(conf=conf, gateway=gateway)
    # The thread of this server prints a stack if the JVM ends.
    context._accumulatorServer.handle_error = lambda *_arguments: None  # type: ignore[method-assign,unused-ignore]  # noqa: SLF001


def spark_home() -> Path:
    """Spark's installation folder."""
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def spark_looks_for_sources(home: Path) -> bool:
    """Whether Spark finds Python data sources by itself.

    It does so only if all entries of its own Python path exist, and one of them is the URL of a jar below `home`: a
    blank or a letter that URLs escape is `%20` there, and names no file.
    """
    return quote(str(home)) == str(home)


def class_archive() -> ClassArchive:
    """The archive for the Java and the Spark that a session would use; requires a successful `check_spark`.

    Raises:
        ToolUnavailableError: there is no folder for it.
    """
    return find_class_archive(java_path() or "java", spark_home())


def ready_class_archive() -> ClassArchive | None:
    """The archive of :func:`class_archive` if it has been written; else None."""
    try:
        found = class_archive()
    except ToolUnavailableError:
        return None
    return found if found.part is None else None


def end_java(archive: ClassArchive | None = None, *, in_order: bool = True) -> None:
    """End the JVM of this process's sessions, and wait for it; the next session starts another.

    Otherwise Spark leaves it running until this process ends, and some time longer.

    Args:
        archive: the archive with which the sessions were opened. Writing it takes the JVM some seconds.
        in_order: whether there is time for that.
    """
    from pyspark import SparkContext

    with SparkContext._lock:  # noqa: SLF001 - there is no public way; Spark's own tests take this one
        gateway = SparkContext._gateway  # noqa: SLF001
        if gateway is None:
            return
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    java = getattr(gateway, "proc", None)
    gateway.shutdown()
    if java is None:
        return
    is_writing = archive is not None and archive.part is not None
    if is_writing and not in_order:
        java.kill()
    # It ends when its input ends.
    java.stdin.close()
    try:
        in_order = java.wait(_ARCHIVE_LIMIT_S if is_writing else _JAVA_LIMIT_S) == 0 and in_order
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
        in_order = False
    if archive is not None and not (in_order and archive.take_written()):
        archive.drop_written()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restore the previous SIGINT handler afterwards; outside the main thread there is nothing to restore."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Keep Ctrl-C out of the log: py4j logs a traceback for each call to the JVM that it interrupts, and raises it too."""
    log = logging.getLogger()
    log.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        log.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))
