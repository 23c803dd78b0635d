"""The archive for `spark.submit.pyFiles`: everything except compiled modules is imported from a zip file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ZIPPED = (
    "triomq", "triomq_protocol", "pyspark_rocketmq", "trio", "attr", "attrs", "cachetools", "tenacity", "outcome",
    "sniffio", "sortedcontainers", "idna",
)  # fmt: skip
INSTALLED = ("msgspec", "pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "six.py")
"""What workers have: Spark's own dependencies, and what is compiled."""

PROGRAM = """
import sys
archive, installed = sys.argv[1:]
sys.path[:0] = [archive, installed]
import pyspark_rocketmq.source
from pyspark.sql.types import BinaryType, StructType
from pyspark_rocketmq.read.stream_reader import StreamReader
from pyspark_rocketmq.write.writer import BatchWriter
import triomq.blocking
outside = [
    name for name, module in sys.modules.items()
    if name.split(".")[0] in ("triomq", "triomq_protocol", "pyspark_rocketmq", "trio", "attr", "cachetools", "tenacity")
    and not (getattr(module, "__file__", None) or archive).startswith(archive)
]
source = pyspark_rocketmq.DefaultSource({"namesrv": "127.0.0.1:9876", "topic": "T"})
source.writer(StructType().add("body", BinaryType()), False)
print(outside, "isal" in sys.modules, len(source.schema()))
"""


def _place(name: str) -> Path | None:
    spec = importlib.util.find_spec(name.removesuffix(".py"))
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin) if name.endswith(".py") else Path(spec.origin).parent


def test_the_source_is_imported_from_a_zip_file(tmp_path: Path) -> None:
    archive, installed = tmp_path / "triomq.zip", tmp_path / "installed"
    with zipfile.ZipFile(archive, "w") as made:
        for name in ZIPPED:
            folder = _place(name)
            assert folder is not None, name
            for path in folder.rglob("*.py"):
                made.write(path, Path(name) / path.relative_to(folder))
    installed.mkdir()
    for name in INSTALLED:
        place = _place(name)
        if place is not None:
            (installed / name).symlink_to(place)
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(archive), str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] False 13\n"
