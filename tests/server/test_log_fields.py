"""Fields of servers' log records: those of one peer, broker set or transaction name it, by names of the how-to's table."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest

import triomq_server
from triomq_server.repeats import PeerLog

ROOT = Path(triomq_server.__file__).parent
TABLE = Path(__file__).parents[2] / "docs/how-to/logging.md"
ABOUT_ONE = {
    "broker/registration.py": {"address"},
    "broker/requests/sending/transactions.py": {"address", "group", "message_id"},
    "broker/roles/returning.py": {"address", "broker"},
    "broker/roles/roles.py": {"address", "broker"},
    "broker/transactions/check_back.py": {"group"},
    "replication/master.py": {"address"},
    "replication/slave.py": {"address"},
    "repeats.py": {"address"},
}
"""Modules whose records are about one peer, broker set or transaction -> the fields they use."""


def fields_in(path: Path) -> list[set[str]]:
    """The fields of each record of a module that has some."""
    extras = [
        keyword.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict)
    ]
    return [{key.value for key in each.keys if isinstance(key, ast.Constant)} for each in extras]


def test_fields_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| (`.+?) \|", TABLE.read_text(), re.MULTILINE)
    known = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"topic", "message_id", "address"} <= known
    for path in ROOT.rglob("*.py"):
        for fields in fields_in(path):
            assert fields <= known, path


@pytest.mark.parametrize("name", ABOUT_ONE)
def test_modules_name_what_their_records_are_about(name: str) -> None:
    assert set().union(*fields_in(ROOT / name)) == ABOUT_ONE[name]


async def test_lines_of_peers_have_their_address(autojump_clock: object, caplog: pytest.LogCaptureFixture) -> None:
    log = PeerLog(logging.getLogger("triomq_server.test"))
    log.write(logging.WARNING, "10.0.0.5:4711", "request of %s failed", "10.0.0.5:4711")
    assert [record.__dict__["address"] for record in caplog.records] == ["10.0.0.5:4711"]
