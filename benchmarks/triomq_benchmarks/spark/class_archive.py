"""An archive of Spark's classes that one JVM writes for the next, which then need not read and verify them again.

A session loads some ten thousand classes, which takes a third of a short run. A JVM can write those that it has loaded to
a file when it ends (`-XX:ArchiveClassesAtExit`, JEP 350); another one of the same kind and class path maps that file, and
one of another kind leaves it alone. The file has nearly 200 MB, and is in the temporary directory.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from triomq_benchmarks.clusters.builds import cache_folder, digest, version_of


@attrs.frozen
class ClassArchive:
    """The archive that a JVM uses or writes.

    Attributes:
        path: its path.
        part: the path at which the JVM writes it; None if it already exists.
    """

    path: Path
    part: Path | None

    @property
    def option(self) -> str:
        """The JVM's option, in the format of Spark's settings: a path with a blank is quoted."""
        return (
            f'"-XX:SharedArchiveFile={self.path}"' if self.part is None else f'"-XX:ArchiveClassesAtExit={self.part}"'
        )

    def take_written(self) -> bool:
        """After the JVM's orderly end: make its archive available to later ones; returns whether it has written one."""
        if self.part is None or not self.part.is_file():
            return False
        self.part.replace(self.path)
        return True

    def drop_written(self) -> None:
        """After any other end: remove what the JVM has written."""
        if self.part is not None:
            self.part.unlink(missing_ok=True)


def find_class_archive(java: str, spark_home: Path) -> ClassArchive:
    """The archive for a JVM and a Spark; one that is still to be written if there is none.

    Args:
        java: the executable.
        spark_home: Spark's installation folder.
    """
    jars = spark_home / "jars"
    path = cache_folder("spark-classes") / f"{digest([], *map(version_of, (Path(java).resolve(), jars)))}.jsa"
    return ClassArchive(path, None if path.is_file() else path.with_suffix(f".{os.getpid()}"))
