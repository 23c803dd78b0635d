"""Every request code by every kind of account, asked of the real broker of 4.9.7 and of ours: the table of
`access_cases` is what they do."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from access_cases import ACCOUNTS, ASKERS, NOT_IN_JAVA, Asker, Case, cases

from triomq_benchmarks.clusters.servers import Kind
from triomq_protocol.acl import REFUSAL
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

LIMIT_S = 120
LAST_WORD_S = 5.0
"""How long a broker may take for an answer to a request that the table allows: some have none."""


def refused(address: str, by: Asker, asked: list[Case]) -> dict[str, str]:
    """The names of the requests that are refused, with the remarks."""
    host, _, port = address.rpartition(":")
    found: dict[str, str] = {}
    answered: set[int] = set()
    decoder = FrameDecoder()
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as link:
        for opaque, case in enumerate(asked):
            command = case.command(by)
            command.opaque = opaque
            link.sendall(command.encode())
        deadline = time.monotonic() + LIMIT_S
        link.settimeout(LAST_WORD_S)
        while len(answered) < len(asked) and time.monotonic() < deadline:
            try:
                data = link.recv(1 << 16)
            except TimeoutError:
                break
            assert data, "the broker closed the link"
            for answer in decoder.feed(data):
                if answer.is_response:
                    answered.add(answer.opaque)
                    if is_refusal(answer):
                        found[asked[answer.opaque].name] = str(answer.remark)
    return found


def is_refusal(answer: Command) -> bool:
    return answer.code == 1 and (answer.remark or "").startswith(REFUSAL)


@pytest.mark.parametrize(
    ("kind", "compat"), [(Kind.JAVA, ""), (Kind.OURS, "safe"), (Kind.OURS, "4.9")], ids=["java", "ours", "compat-4.9"]
)
def test_every_code_and_account(kind: Kind, compat: str, servers: Any, scratch: Path, capsys: Any) -> None:
    home = scratch / f"access-table-{kind}-{compat}"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings: dict[str, object] = {"aclEnable": True}
    if kind is Kind.OURS:
        settings |= {"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1", "compat": compat}
    # What changes roles or ends the broker is not sent to ours with a right account: it would do it.
    asked = [case for case in cases() if kind is Kind.JAVA or case.code not in (29_002, 29_003)]
    total = allowed = 0
    with (
        servers.namesrv(Kind.OURS, f"{home.name}-namesrv") as names,
        servers.broker(kind, home.name, names.address, settings) as broker,
    ):
        for asker in ASKERS:
            found = refused(broker.address, asker, asked)
            wanted = set()
            for case in asked:
                java = kind is Kind.JAVA or (compat == "4.9" and case.code not in NOT_IN_JAVA)
                if not asker.is_allowed(case.java_needs if java else case.needs):
                    wanted.add(case.name)
            assert set(found) == wanted, asker.name
            if asker.refused is not None:
                assert all(asker.refused in remark for remark in found.values())
            total += len(asked)
            allowed += len(asked) - len(found)
    with capsys.disabled():
        print(f"\naccess table, {kind} {compat}: {total} requests asked, {allowed} allowed, {total - allowed} refused")
