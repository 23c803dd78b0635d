"""The layout of a message record has one home: `triomq_protocol.record.layout`. No other module may restate it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from triomq_protocol.record import layout

ROOT = Path(__file__).parents[1]
HOME = ROOT / "protocol" / "triomq_protocol" / "record" / "layout.py"

OTHER_FORMATS = {
    "protocol/triomq_protocol/replication.py": "offset reports and transfer heads",
    "protocol/triomq_protocol/wire/binary_header.py": "binary headers",
    "protocol/triomq_protocol/wire/frame.py": "frame lengths",
    "protocol/triomq_protocol/wire/lengths.py": "frame lengths",
    "server/triomq_server/broker/tables/stats.py": "samples of counters",
    "server/triomq_server/store/consume_queue.py": "entries of consume queues",
    "server/triomq_server/store/files/checkpoint.py": "the checkpoint file",
    "server/triomq_server/store/index.py": "index files",
    "server/triomq_server/store/dispatch/key_hashes.py": "lanes of a hash",
    "benchmarks/triomq_benchmarks/spark/link.py": "frame lengths of the bench's own link",
    "benchmarks/triomq_benchmarks/drivers/prepared_frames.py": "frame lengths",
    "benchmarks/triomq_benchmarks/workload/bodies.py": "heads of generated bodies",
}
"""Who else may define Structs, and of what."""

MAGIC = {0xDAA320A7, 0xDAA320A7 - (1 << 32), 0xCBD43194, 0xCBD43194 - (1 << 32)}
"""The magic numbers, unsigned and signed; a negative one is the negation of a positive literal."""


def modules() -> Iterator[Path]:
    for package in ("protocol", "sdk", "server", "benchmarks"):
        yield from sorted((ROOT / package).rglob("*.py"))


def called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value != 0


def names_a_record_flag(node: ast.AST) -> bool:
    """`sys_flag` and `record.sys_flag`; the topic's is another one."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith("sys_flag") and "topic" not in name


def restatements(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and {node.value, -node.value} & MAGIC:
            yield f"line {node.lineno}: a magic number"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            sides = (node.left, node.right)
            if any(map(names_a_record_flag, sides)) and any(map(is_number, sides)):
                yield f"line {node.lineno}: a bit of sysFlag as a number"
        elif isinstance(node, ast.AugAssign) and names_a_record_flag(node.target) and is_number(node.value):
            yield f"line {node.lineno}: a bit of sysFlag as a number"
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                numbers = not isinstance(value, ast.Name | ast.Constant)
                if isinstance(key, ast.Constant) and key.value == "offsets" and numbers:
                    yield f"line {node.lineno}: offsets of a numpy type as numbers"


def defines_structs(tree: ast.AST) -> bool:
    """Whether a Struct is made, or a function of `struct` called with a format of its own."""
    for node in ast.walk(tree):
        if called(node) == "Struct":
            return True
        first = node.args[0] if isinstance(node, ast.Call) and node.args else None
        text = isinstance(first, ast.JoinedStr) or (isinstance(first, ast.Constant) and isinstance(first.value, str))
        if text and called(node) in ("pack", "unpack", "pack_into", "unpack_from", "calcsize"):
            return True
    return False


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
