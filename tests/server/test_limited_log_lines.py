"""Log lines that clients can cause are limited: `PeerLog` and `Repeats` write each kind now and then.

Every line that a module which serves clients writes otherwise is listed here, with the reason why clients cannot cause
as many as they like.
"""

from __future__ import annotations

import ast
from pathlib import Path

import triomq_server

ROOT = Path(triomq_server.__file__).parent
SERVING = (
    "wire",
    "broker/requests",
    "broker/admin",
    "broker/schedule.py",
    "broker/tables",
    "broker/transactions",
    "namesrv",
    "replication/master.py",
)
LEVELS = {"info", "warning", "error", "exception", "critical", "log"}

_REPEATS = "counted by Repeats"
_ACCOUNTS = "an administrator's signed request; every change of accounts has to be in the log"
UNLIMITED = {
    "broker/admin/access.py:delete_account": _ACCOUNTS,
    "broker/admin/access.py:put_account": _ACCOUNTS,
    "broker/admin/access.py:put_white": _ACCOUNTS,
    "broker/requests/sending/answers.py:_LateSends.add": _REPEATS,
    "broker/requests/sending/transactions.py:Ending.end": _REPEATS,
    "broker/requests/sending/transactions.py:Ending._commit": "the store refused a record just after it had taken one",
    "broker/schedule.py:Schedule._copy": _REPEATS,
    "broker/schedule.py:Schedule._deliver_repaired": "at the start, of damage on the disk",
    "broker/schedule.py:Schedule._note_damage": _REPEATS,
    "broker/schedule.py:Schedule._note_refusal": "once, until a message is stored",
    "broker/tables/consumer_filters.py:ConsumerFilters._compile": _REPEATS,
    "broker/tables/consumer_filters.py:ConsumerFilters.load": "at the start",
    "broker/tables/offsets/committed.py:OffsetTable._note_refused": _REPEATS,
    "broker/tables/groups.py:GroupTable.find": _REPEATS,
    "broker/tables/topics.py:TopicTable.full_remark": _REPEATS,
    "broker/transactions/check_back.py:CheckBack._append": _REPEATS,
    "broker/transactions/check_back.py:CheckBack._check": _REPEATS,
    "broker/transactions/check_back.py:CheckBack._discard": _REPEATS,
    "broker/transactions/check_back.py:CheckBack._give_up": _REPEATS,
    "broker/transactions/check_back.py:CheckBack._handle": _REPEATS,
    "broker/transactions/check_back.py:CheckBack._save": "the disk refuses, once in a round",
    "broker/transactions/open_transactions.py:OpenTransactions.record": "damage on the disk",
    "namesrv/handlers.py:NameServer.expire": "one line in a scan, every ten seconds",
    "namesrv/lifecycle.py:serve_namesrv": "once",
    "replication/master.py:HaMaster._refuse_stranger": "once a minute",
    "wire/limits/budget.py:Budget._free": _REPEATS,
    "wire/tls/certificates.py:Certificates._note_expiry": "at the start, when certificates change, and once a day",
    "wire/tls/certificates.py:Certificates._take": "a change of the server's own files",
    "wire/tls/certificates.py:Certificates.load": "once",
    "wire/server.py:_Entrance._note_closed": _REPEATS,
    "wire/server.py:_accept_forever": "once, until a connection is accepted again",
}


def test_lines_that_clients_can_cause_are_limited() -> None:
    found = {line for part in SERVING for path in _modules(ROOT / part) for line in _lines(path)}
    assert found == set(UNLIMITED)
    assert all(UNLIMITED.values())


def _modules(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _lines(path: Path) -> set[str]:
    """The functions of a module that write to its logger directly."""
    found: set[str] = set()

    def walk(node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "_log"
            and node.func.attr in LEVELS
        ):
            found.add(f"{path.relative_to(ROOT).as_posix()}:{'.'.join(names)}")
        for child in ast.iter_child_nodes(node):
            walk(child, names)

    walk(ast.parse(path.read_text()), ())
    return found
