"""Installs the wheel alone, in an empty environment per extra: what comes with it, and what importing it costs.

::

    python tests/packaging/extras_table.py [--wheel FILE] [EXTRA ...]

Builds the wheel of this checkout unless one is given, and prints a row per extra: packages, megabytes, and for each face
the CPU time of its import and the packages it imports that its extra does not ask for. It needs uv, or pip and build. The
extra `spark`, of some 850 MB, is installed only when it is named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[2]
FACES: Final[Mapping[str, Sequence[str]]] = {
    "": ("triomq", "triomq.aio", "triomq.blocking"),
    "server": ("triomq_server.broker.lifecycle",),
    "cli": ("triomq._cli.messages",),
    "testing": ("triomq_testing.plugin",),
    "dashboard": ("triomq_dashboard.command",),
    "bench": ("triomq_benchmarks.commands.runs.run",),
    "demo": ("triomq_benchmarks.demo.quickstart",),
    "compression": (),
    "taskiq": ("triomq_adapters.taskiq",),
    "celery": ("triomq_adapters.kombu",),
    "faststream": ("triomq_adapters.faststream",),
    "otel": ("triomq_adapters.opentelemetry",),
    "spark": ("pyspark_rocketmq",),
}
"""Extra -> what its users import; the first is not an extra."""

LARGE: Final = ("spark",)
RUNS: Final = 5
"""Imports of a face, of which the fastest counts."""

INVENTORY: Final = """
import json, os
from importlib.metadata import distributions
found = list(distributions())
size = sum(os.path.getsize(path) for each in found for file in each.files or () if os.path.isfile(path := each.locate_file(file)))
print(json.dumps({"packages": len(found), "size_bytes": size}))
"""

IMPORT: Final = """
import json, re, sys, time
begin = time.process_time()
__import__(sys.argv[1])
cpu_s = time.process_time() - begin
from importlib.metadata import distribution, packages_distributions, PackageNotFoundError
owners = packages_distributions()
normal = lambda name: re.sub("[-_.]+", "-", name).lower()
loaded = {normal(name) for module in list(sys.modules) if "." not in module for name in owners.get(module, ())}
asked, left = set(), [("triomq", frozenset(sys.argv[2:]))]
while left:
    name, extras = left.pop()
    if (name, extras) in asked:
        continue
    asked.add((name, extras))
    try:
        requires = distribution(name).requires or ()
    except PackageNotFoundError:
        continue
    for line in requires:
        marker = re.findall("extra *== *['\\"]([^'\\"]+)", line)
        if marker and not extras.intersection(marker):
            continue
        wanted, more = re.match(r"([\\w.-]+)(?: *\\[([^]]*)\\])?", line).groups()
        left.append((normal(wanted), frozenset(each.strip() for each in (more or "").split(",") if each)))
print(json.dumps({"cpu_s": cpu_s, "needless": sorted(loaded - {name for name, _ in asked})}))
"""


@attrs.frozen
class Face:
    """What importing a module costs.

    Attributes:
        module: which.
        cpu_ms: of the fastest import.
        needless: packages it imports that neither triomq nor its extra asks for.
    """

    module: str
    cpu_ms: float
    needless: Sequence[str]


@attrs.frozen
class Installed:
    """What came with an extra.

    Attributes:
        extra: which; empty for none.
        packages: how many, triomq included.
        size_bytes: of their files.
        faces: what its users import.
    """

    extra: str
    packages: int
    size_bytes: int
    faces: Sequence[Face]


def table(rows: Sequence[Installed]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| extra | packages | MB | import, CPU ms | imported without need |", "| --- | ---: | ---: | --- | --- |"]
    for row in rows:
        times = ", ".join(f"`{face.module}` {face.cpu_ms:.0f}" for face in row.faces)
        needless = ", ".join(sorted({name for face in row.faces for name in face.needless}))
        lines.append(f"| {row.extra or 'none'} | {row.packages} | {row.size_bytes / 1e6:.1f} | {times} | {needless} |")
    return "\n".join(lines)


def face_of(python: Path, module: str, extra: str) -> Face:
    """Import a module some times, each in a new process."""
    seen = [json.loads(_output(str(python), "-I", "-c", IMPORT, module, *[extra] * bool(extra))) for _ in range(RUNS)]
    return Face(module, min(each["cpu_s"] for each in seen) * 1000, seen[0]["needless"])


def installed(wheel: Path, extra: str) -> Installed:
    """Install the wheel with an extra in an empty environment, and look at it."""
    with tempfile.TemporaryDirectory(prefix="triomq-extra-") as folder:
        _output(sys.executable, "-m", "venv", "--without-pip", folder)
        python = Path(folder, "bin", "python")
        uv = shutil.which("uv")
        tool = [uv, "pip", "install", "-q", "--python"] if uv else [sys.executable, "-m", "pip", "-q", "--python"]
        _output(*tool, str(python), *([] if uv else ["install"]), f"{wheel}[{extra}]" if extra else str(wheel))
        faces = [face_of(python, module, extra) for module in FACES[extra]]
        return Installed(extra, faces=faces, **json.loads(_output(str(python), "-I", "-c", INVENTORY)))


def built(folder: str) -> Path:
    """The wheel of this checkout, built into a folder."""
    uv = shutil.which("uv")
    tool = [uv, "build"] if uv else [sys.executable, "-m", "build"]
    _output(*tool, "--wheel", "--out-dir", folder, str(ROOT))
    return next(Path(folder).glob("*.whl"))


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv[:4])} ... ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    """Print the table; ends with 1 when a face imports what it does not need."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="default: all but spark, and none")
    parser.add_argument("--wheel", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.extras) - FACES.keys():
        parser.error(f"there is no extra {', '.join(sorted(unknown))}; known: {', '.join(filter(None, FACES))}")
    with tempfile.TemporaryDirectory(prefix="triomq-wheel-") as folder:
        wheel = (arguments.wheel or built(folder)).resolve()
        sys.stdout.write(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB\n")
        rows = []
        for extra in arguments.extras or [extra for extra in FACES if extra not in LARGE]:
            rows.append(installed(wheel, extra))
            sys.stderr.write(f"{extra or 'none'}\n")
    sys.stdout.write(f"{table(rows)}\n")
    sys.exit(1 if any(face.needless for row in rows for face in row.faces) else 0)


if __name__ == "__main__":
    main()
