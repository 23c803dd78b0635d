"""JVMs that start quickly: two hundred of them start in a run of this suite, and none of them is measured.

They get options for a short life, and the classes that they need ready to be mapped.
Nearly half of what a start costs is the loading of classes. One broker writes those that it has loaded to a file when it
ends (`-XX:ArchiveClassesAtExit`, JEP 350), and all later JVMs map that file. Few start with the jars of 5.5.0, whose
broker takes long to write one.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from triomq_benchmarks.clusters.builds import building, cache_folder, digest, version_of
from triomq_benchmarks.clusters.java import QUICK_JVM, Java
from triomq_benchmarks.clusters.servers import Kind, broker, namesrv

# The jars are what Maven has fetched and checked, so their byte code is not verified again. Most of what is compiled
# after few calls never earns that back.
QUICK_START = (
    *QUICK_JVM,
    "-XX:CompileThresholdScaling=5",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
WRITE_LIMIT_S = 120


def with_class_archive(java: Java) -> Java:
    """The same Java with an archive of RocketMQ's classes, which the first process that asks lets a broker write.

    A Java that cannot write one is returned as it is.
    """
    folder = cache_folder(f"java-classes-{digest([], java.class_path, version_of(Path(java.java).resolve()))}")
    archive = folder / "rocketmq.jsa"
    with building(folder):
        if not archive.exists():
            _write(java, archive)
    return attrs.evolve(java, archive=archive) if archive.exists() else java


def _write(java: Java, archive: Path) -> None:
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    options = (*java.options, "-XX:+IgnoreUnrecognizedVMOptions", f"-XX:ArchiveClassesAtExit={part}")
    writing = attrs.evolve(java, options=options)
    with TemporaryDirectory() as name:
        home = Path(name)
        with (
            namesrv(Kind.JAVA, home / "namesrv", java=java) as names,
            broker(Kind.JAVA, home / "broker", names.address, java=writing) as serving,
        ):
            serving.stop(WRITE_LIMIT_S)
    if part.exists():
        part.replace(archive)
