"""The programs in `java/`, which use the real client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from triomq_benchmarks.clusters.java import Java, prepare_home

PROGRAMS = Path(__file__).parent / "java"


def client_command(
    java: Java,
    main_class: str,
    arguments: Sequence[str] = (),
    *,
    home: Path,
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """The command line of one of them, compiled, with everything it writes kept below `home`."""
    classes = java.compile(sorted(PROGRAMS.glob("*.java")))
    return java.command(main_class, arguments, home=prepare_home(home), classes=classes, properties=properties)
