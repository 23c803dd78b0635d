"""Every request code by every kind of account, against the table of `access_cases`, and the page that shows it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from access_cases import ACCOUNTS, ASKERS, HOST, NOT_IN_JAVA, Case, cases

from triomq_protocol.wire.command import Command
from triomq_server.acl import guarded, refusal
from triomq_server.acl.accounts import AccessRules, parse, rules_of
from triomq_server.wire import Handlers

RULES = rules_of([("plain_acl.yml", parse("plain_acl.yml", ACCOUNTS.encode()))])
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "access-control.md"
BEGIN = "<!-- begin of the table -->\n"


def check(rules: AccessRules, compat_49: bool, host: str, command: Command) -> str | None:
    return refusal(rules, host, command, compat_49=compat_49)


def served(_link: Any, command: Command) -> Command:
    return command.answer()


def answers(handlers: Handlers, command: Command) -> Command:
    """Of the broker's guard, with handlers that do nothing but answer."""
    link: Any = SimpleNamespace(peer=f"{HOST}:40000")
    handler: Any = handlers.plain.get(command.code, handlers.default)
    return handler(link, command)  # type: ignore[no-any-return]


@pytest.mark.parametrize("compat_49", [False, True], ids=["safe", "compat-4.9"])
async def test_every_code_and_account(desk: Any, compat_49: bool) -> None:
    main = desk.handlers
    codes = frozenset(map(int, (*main.plain, *main.waiting, *main.sliced)))
    behind = guarded(Handlers(plain=dict.fromkeys(codes, served), default=served), partial(check, RULES, compat_49))
    asked = 0
    for case in cases(codes):
        # With compat=4.9, requests that 4.9.7 knows need what they need there.
        keeps = case.code in NOT_IN_JAVA or not compat_49
        needs = case.needs if keeps else case.java_needs
        for asker in ASKERS:
            answer = answers(behind, case.command(asker))
            allowed = asker.is_allowed(needs)
            assert (answer.code == 0) is allowed, (case.name, asker.name, answer.remark)
            if asker.refused is not None:
                assert str(answer.remark).endswith(asker.refused), (case.name, asker.name)
            asked += 1
    assert asked > 1000


async def test_the_codes_of_the_table_are_those_of_the_broker(desk: Any) -> None:
    main = desk.handlers
    assert {*main.plain, *main.waiting, *main.sliced} <= {case.code for case in cases()}


def test_a_white_address_needs_nothing() -> None:
    rules = rules_of([("plain_acl.yml", {"globalWhiteRemoteAddresses": [HOST]})])
    for case in cases():
        assert refusal(rules, HOST, case.command(ASKERS[0])) is None
        assert refusal(rules, "127.0.0.2", case.command(ASKERS[0])) == "No accessKey is configured"


def row(case: Case) -> str:
    cells = ["allowed" if asker.is_allowed(case.needs) else "refused" for asker in ASKERS]
    java = "not known" if case.code in NOT_IN_JAVA else "every account"
    return "| " + " | ".join([case.name, *cells, "" if case.needs == case.java_needs else java]) + " |\n"


def table(codes: set[int]) -> str:
    head = ["request", *(asker.name for asker in ASKERS), "in 4.9.7, if it differs"]
    shown = [case for case in cases() if case.code in codes]
    return "".join([f"| {' | '.join(head)} |\n", "|" + " --- |" * len(head) + "\n", *map(row, shown)])


async def test_the_page_shows_the_table(desk: Any) -> None:
    """To write it again: replace what follows the mark by the expected text of the failure."""
    main = desk.handlers
    shown = PAGE.read_text().partition(BEGIN)[2]
    assert shown == "\n" + table({*main.plain, *main.waiting, *main.sliced, 4711})
