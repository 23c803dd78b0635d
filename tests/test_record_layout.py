"""The layout of a message record has one home: `triomq_protocol.record.layout`. No other module may restate it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from record_layout import defines_structs, restatements

from triomq_protocol.record import layout

ROOT = Path(__file__).parents[1]
HOME = ROOT / "protocol" / "triomq_protocol" / "record" / "layout.py"

OTHER_FORMATS = {
    "protocol/triomq_protocol/replication.py": "offset reports and transfer heads",
    "protocol/triomq_protocol/wire/binary_header.py": "binary headers",
    "protocol/triomq_protocol/wire/frame.py": "frame lengths",
    "protocol/triomq_protocol/wire/lengths.py": "frame lengths",
    "server/triomq_server/broker/tables/stats.py": "samples of counters",
    "server/triomq_server/store/entry_layout.py": "entries of consume queues",
    "server/triomq_server/store/files/checkpoint.py": "the checkpoint file",
    "server/triomq_server/store/index.py": "index files",
    "server/triomq_server/store/dispatch/key_hashes.py": "lanes of a hash",
    "benchmarks/triomq_benchmarks/spark/link.py": "frame lengths of the bench's own link",
    "benchmarks/triomq_benchmarks/drivers/prepared_frames.py": "frame lengths",
    "benchmarks/triomq_benchmarks/workload/bodies.py": "heads of generated bodies",
}
"""Who else may define Structs, and of what."""


def modules() -> Iterator[Path]:
    for package in ("protocol", "sdk", "server", "benchmarks"):
        yield from sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", [p for p in modules() if p != HOME], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_knows_the_bytes_of_a_record(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert list(restatements(tree)) == []
    if str(path.relative_to(ROOT)) not in OTHER_FORMATS:
        assert not defines_structs(tree), "Structs of a record belong into record/layout.py; others are listed here"


def test_the_list_of_other_formats_is_true() -> None:
    for name in OTHER_FORMATS:
        assert defines_structs(ast.parse((ROOT / name).read_text())), name


@pytest.mark.parametrize(
    "code",
    [
        "if sys_flag & 0x10: pass",
        "flags = record.sys_flag & ~0x30",
        "record.sys_flag |= 0x3C",
        "good = magic == -626843481",
        "good = magic == 0xCBD43194",
        "kind = np.dtype({'names': ['size'], 'offsets': [0]})",
    ],
)
def test_restatements_are_seen(code: str) -> None:
    assert list(restatements(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["HEAD = struct.Struct('>ii')", "size = Struct(f'>{n}s')", "struct.unpack_from('>i', b)"]
)
def test_structs_are_seen(code: str) -> None:
    assert defines_structs(ast.parse(code))


def test_every_name_of_the_layout_has_a_reader() -> None:
    names = {name for name in vars(layout) if name[0] not in "_@" and name not in ("Struct", "Final", "calcsize")}
    read = set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(node.id)
    assert names - read == set()
