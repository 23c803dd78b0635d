"""Every request code by every kind of account, asked of the real broker of 4.9.7 and of ours: the table of
`access_cases` is what they do."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from access_cases import ACCOUNTS, ASKERS, FIELDS, NOT_IN_JAVA, Asker, Case, cases

from triomq_benchmarks.clusters.servers import Kind
from triomq_protocol.acl import REFUSAL
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

LIMIT_S = 120
CODES = 1 << 15
AT_ONCE = 512
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


def not_refused(address: str, codes: range) -> dict[int, str]:
    """The codes that are served without a signature, with the remark; what is not answered counts as served."""
    host, _, port = address.rpartition(":")
    found = dict.fromkeys(codes, "no answer")
    decoder = FrameDecoder()
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as link:
        for first in range(codes.start, codes.stop, AT_ONCE):
            some = range(first, min(first + AT_ONCE, codes.stop))
            frames = (Command.request(code, fields=dict(FIELDS), opaque=code).encode() for code in some)
            link.sendall(b"".join(frames))
            waiting = set(some)
            link.settimeout(LAST_WORD_S)
            while waiting:
                try:
                    data = link.recv(1 << 16)
                except TimeoutError:
                    break
                assert data, "the broker closed the link"
                for answer in decoder.feed(data):
                    waiting.discard(answer.opaque)
                    if is_refusal(answer):
                        found.pop(answer.opaque, None)
                    else:
                        found[answer.opaque] = f"code {answer.code}: {answer.remark}"
    return found


@pytest.mark.parametrize("kind", [Kind.JAVA, Kind.OURS])
def test_no_code_is_served_without_a_signature(kind: Kind, servers: Any, scratch: Path, capsys: Any) -> None:
    """All that fit into a header of 16 bits, on both ports of the broker."""
    home = scratch / f"access-scan-{kind}"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings: dict[str, object] = {"aclEnable": True}
    if kind is Kind.OURS:
        settings |= {"rocketmqHome": home, "haSlaveAddresses": "127.0.0.1"}
    with (
        servers.namesrv(Kind.OURS, f"{home.name}-namesrv") as names,
        servers.broker(kind, home.name, names.address, settings) as broker,
    ):
        host, _, port = broker.address.rpartition(":")
        for address in (broker.address, f"{host}:{int(port) - 2}"):
            assert not_refused(address, range(CODES)) == {}, address
    with capsys.disabled():
        print(f"\naccess scan, {kind}: {CODES} codes on each of 2 ports without a signature, 0 served")


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
