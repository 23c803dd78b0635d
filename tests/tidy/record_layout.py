"""Finds code that restates the layout of a message record."""

from __future__ import annotations

import ast
from collections.abc import Iterator

MAGIC = {0xDAA320A7, 0xDAA320A7 - (1 << 32), 0xCBD43194, 0xCBD43194 - (1 << 32)}
"""The magic numbers, unsigned and signed; a negative one is the negation of a positive literal."""


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
