"""Requests of our own that are signed, and the file that names their account."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from triomq_protocol.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests.route import GetRouteInfoRequest
from triomq_protocol.wire.command import Command
from triomq_server.acl.accounts import AclError
from triomq_server.acl.signing import ToolAccount, read_tool_account, signed_command, signing
from triomq_server.admin.members import Member
from triomq_server.admin.replication import state_of
from triomq_server.broker.admin.ha import CHANGE_ROLE, CUT_LOG, HA_STATUS
from triomq_server.commands import account as account_options
from triomq_server.commands import admin


def is_signed(command: Command, account: ToolAccount) -> bool:
    fields: dict[str, str | None] = dict(command.fields or {})
    given = fields.pop(SIGNATURE, None)
    named = fields.get(ACCESS_KEY) == account.access_key and fields.get(SECURITY_TOKEN) == account.security_token
    return named and given == signature(fields, command.body, account.secret_key)


def test_a_signed_command_keeps_its_fields_and_may_be_signed_again() -> None:
    account = ToolAccount("operator", "HUSH", "token")
    command = Command.request(105, GetRouteInfoRequest(topic="T"), body=b"body")
    for _ in range(2):
        assert is_signed(signed_command(command, account), account)
        assert (command.fields or {})["topic"] == "T"
    assert "HUSH" not in repr(account)


@pytest.mark.parametrize(
    ("text", "account"),
    [
        ("accessKey: rocketmq2\nsecretKey: 12345678\n", ToolAccount("rocketmq2", "12345678")),
        ("# x\n{secretKey: 'a b', accessKey: operator, other: 1}", ToolAccount("operator", "a b")),
    ],
)
def test_accounts_of_a_file(tmp_path: Path, text: str, account: ToolAccount) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text)
    assert read_tool_account(str(file)) == account


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "accessKey is missing"),
        ("accessKey: a", "secretKey is missing"),
        ("accessKey: a\nsecretKey: [HUSH]", "secretKey is missing, or neither"),
        ("accessKey: a\nsecretKey: true", "secretKey is missing, or neither"),
        ("accessKey: a\nsecretKey: ' '", "secretKey is missing, or neither"),
        ("accessKey: a\nsecretKey: 'HUSH", "is not YAML"),
    ],
)
def test_files_that_name_no_account(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(text)
    with pytest.raises(AclError, match=why) as caught:
        read_tool_account(str(file))
    assert "HUSH" not in str(caught.value)
    with pytest.raises(AclError, match="cannot be read: No such file"):
        read_tool_account(str(tmp_path / "none.yml"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Every command that `triomq admin` sends; the answers are refusals."""
    commands: list[Command] = []

    class Link:
        async def request(self, command: Command, _timeout_s: float) -> Command:
            commands.append(command)
            return command.answer(ResponseCode.SYSTEM_ERROR, "refused")

    @asynccontextmanager
    async def open_link(_address: str) -> AsyncIterator[Link]:
        yield Link()

    async def slave_to_cut(*_: object) -> str:
        return "127.0.0.1:2"

    monkeypatch.setattr(account_options, "opener_given", lambda: open_link)
    monkeypatch.setattr(admin, "slave_to_cut", slave_to_cut)
    for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN"):
        monkeypatch.delenv(f"ROCKETMQ_{name}", raising=False)
    return commands


COMMANDS = {
    "ha": RequestCode.GET_BROKER_CLUSTER_INFO,
    "role 127.0.0.1:2 slave": CHANGE_ROLE,
    "cut 127.0.0.1:2 --yes": CUT_LOG,
    "repair-store STORE --from 127.0.0.1:2": RequestCode.GET_BROKER_RUNTIME_INFO,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_admin_signs_what_it_sends(asked: list[Command], tmp_path: Path, name: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: from-file\nsecretKey: file-secret\n")
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").write_bytes(bytes(4096))  # the tables are missing
    command = name.replace("STORE", str(tmp_path / "store"))
    wanted = COMMANDS[name]
    keys = {"ROCKETMQ_ACCESS_KEY": "from-env", "ROCKETMQ_SECRET_KEY": "s", "ROCKETMQ_SECURITY_TOKEN": "t"}
    named = ["--credentials-file", str(file)]
    for more, environment, account in [
        ([], {}, None),
        ([], keys, ToolAccount("from-env", "s", "t")),
        (named, keys, ToolAccount("from-file", "file-secret")),
    ]:
        asked.clear()
        assert CliRunner().invoke(admin.admin, [*command.split(), *more], env=environment).exit_code == 1
        assert [each.code for each in asked] == [wanted]
        if account is None:
            assert SIGNATURE not in (asked[0].fields or {})
        else:
            assert is_signed(asked[0], account)


async def test_a_look_at_a_slave_is_signed(asked: list[Command]) -> None:
    account = ToolAccount("operator", "s")
    opener = account_options.opener_given()  # type: ignore[attr-defined]
    row = await state_of(Member("b", 0, "127.0.0.1:2"), signing(opener, account))
    assert row.error == "refused"
    assert [(each.code, is_signed(each, account)) for each in asked] == [(HA_STATUS, True)]


def test_half_an_account_is_a_mistake(asked: list[Command], tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: HUSH\n")
    for more, environment, what in [
        ([], {"ROCKETMQ_ACCESS_KEY": "a"}, "--secret-key (ROCKETMQ_SECRET_KEY) is missing"),
        ([], {"ROCKETMQ_SECRET_KEY": "HUSH"}, "--access-key (ROCKETMQ_ACCESS_KEY) is missing"),
        (["--credentials-file", str(file)], {}, "secretKey is missing"),
        (["--credentials-file", str(file), "--access-key", "a"], {}, "give either --credentials-file or keys"),
    ]:
        done = CliRunner().invoke(admin.admin, ["ha", *more], env=environment)
        text = click.unstyle(done.output)
        assert (done.exit_code, what in text, "HUSH" in text) == (2, True, False), text
    assert asked == []
