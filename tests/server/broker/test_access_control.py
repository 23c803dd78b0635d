"""A broker with access control: every request code is checked on both ports, before its handler."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from triomq_protocol.acl import sign
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from triomq_protocol.requests import GetBrokerAclConfigResponse
from triomq_protocol.wire.command import Command
from triomq_server.acl import guarded
from triomq_server.acl.accounts import MOST_BYTES, AclError
from triomq_server.acl.files import MOST_ALL_BYTES, SETTLE_S, WATCH_S
from triomq_server.config import BrokerConfig, ConfigError
from triomq_server.wire import Burst, Handlers

ACCOUNTS = """
# who may do what
accounts:
- {accessKey: account, secretKey: account-secret, topicPerms: [T1=PUB|SUB], groupPerms: [CG=SUB]}
- {accessKey: operator, secretKey: operator-secret, admin: true}
"""
PORTS = (10911, 10909)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    return tmp_path


@pytest.fixture
def settings(home: Path) -> dict[str, Any]:
    return {"aclEnable": "true", "rocketmqHome": home, "haSlaveAddresses": "127.0.0.1"}


def signed(command: Command, by: str = "account", secret: str | None = None) -> Command:
    fields = {str(name): value for name, value in command.field_pairs() or ()}
    command.extra = sign(fields, command.body, access_key=by, secret_key=secret or f"{by}-secret")
    return command


def request(code: int, by: str = "operator", **fields: str) -> Command:
    return signed(Command.request(code, fields=fields), by)


def refused(answer: Command) -> bool:
    return answer.code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith(
        "org.apache.rocketmq.acl.common.AclException: "
    )


async def test_sends_and_pulls_of_an_account(open_broker: Any, settings: dict[str, Any]) -> None:
    async with open_broker(**settings) as running:
        peer = await running.peer()
        assert (await peer.ask(signed(peer.put_request()))).code == 0
        assert (await peer.ask(signed(peer.put_request(serialize=1)))).code == 0
        pulled = await peer.ask(signed(peer.pull_request()))
        assert pulled.code == 0
        for command in (
            peer.put_request(),
            signed(peer.put_request("T2")),
            signed(peer.put_request(), secret="stolen secret"),
            signed(peer.pull_request(consumer_group="OTHER")),
        ):
            assert refused(await peer.ask(command))
        answer = await peer.ask(signed(peer.put_request("T2")))
        assert str(answer.remark).endswith("No default permission for topic:T2, PUB is missing for accessKey=account")
        body = len(pulled.body)
        assert len((await peer.ask(signed(peer.pull_request()))).body) == body  # nothing refused was stored


async def test_a_signature_is_for_what_was_signed_and_has_no_end(open_broker: Any, settings: dict[str, Any]) -> None:
    """As in 4.9, whose signatures have neither a time nor a number: who could read a request could send it again."""
    async with open_broker(**settings) as running:
        peer, other = await running.peer(), await running.peer()
        request = signed(peer.put_request())
        for link in (peer, peer, other):
            assert (await link.ask(request)).code == 0
        altered = signed(peer.put_request())
        altered.body += b"!"
        assert refused(await peer.ask(altered))
        for name, value in (("Signature", "x"), ("Signature", ""), ("AccessKey", "operator"), ("z", "1")):
            altered = signed(peer.put_request())
            altered.extra = {**altered.extra, name: value}
            assert refused(await peer.ask(altered)), name


async def test_no_code_is_reachable_without_a_signature(open_broker: Any, settings: dict[str, Any]) -> None:
    async with open_broker(**settings) as running:
        for port in PORTS:
            peer = await running.peer(port)
            for code in [*RequestCode, *range(29_000, 29_010), 0, 4711]:
                answer = await peer.ask(Command.request(code))
                assert refused(answer), code
                assert str(answer.remark).endswith("No accessKey is configured")
            await peer.send(Command.request(RequestCode.HEART_BEAT, oneway=True))
            opaque = await peer.send(Command.request(RequestCode.GET_BROKER_CONFIG))
            assert (await peer.receive()).opaque == opaque  # what is one-way has no answer


async def test_every_registered_handler_is_guarded(desk: Any) -> None:
    asked: list[int] = []

    def check(_host: str, command: Command) -> str:
        asked.append(command.code)
        return "no"

    main = desk.handlers
    behind = guarded(main, check)
    assert [behind.plain.keys(), behind.waiting.keys(), behind.sliced.keys()] == [
        main.plain.keys(), main.waiting.keys(), main.sliced.keys(),
    ]  # fmt: skip
    for table, original in (
        (behind.plain, main.plain), (behind.waiting, main.waiting), (behind.sliced, main.sliced),
    ):  # fmt: skip
        assert not {id(each) for each in table.values()} & {id(each) for each in original.values()}
    link: Any = SimpleNamespace(peer="[fd00::1]:7")
    for code, handler in behind.plain.items():
        assert refused(handler(link, Command.request(code)))
    for code, sliced in behind.sliced.items():
        with pytest.raises(StopIteration) as end:
            next(sliced(link, Command.request(code)))
        assert refused(end.value.value)
    assert refused(behind.default(link, Command.request(4711)))
    assert set(asked) == {*main.plain, *main.sliced, 4711}


async def test_files_are_read_again(open_broker: Any, settings: dict[str, Any], home: Path, caplog: Any) -> None:
    file = home / "conf" / "plain_acl.yml"
    async with open_broker(**settings) as running:
        peer = await running.peer()

        async def until(by: str, served: bool) -> None:
            while refused(await peer.ask(request(26, by))) is served:  # noqa: ASYNC110 - a file has no event
                await trio.sleep(WATCH_S)

        await until("account", served=True)
        file.write_text(ACCOUNTS.replace("account,", "visitor,").replace("account-", "visitor-"))
        await until("visitor", served=True)
        assert refused(await peer.ask(request(26, "account")))
        file.write_text("accounts: [")
        while "access control stays as it was" not in caplog.text:  # noqa: ASYNC110
            await trio.sleep(WATCH_S)
        assert not refused(await peer.ask(request(26, "visitor")))
        file.write_text(ACCOUNTS)
        await until("visitor", served=False)
        (home / "conf" / "acl" / "more").mkdir(parents=True)
        more = home / "conf" / "acl" / "more" / "guests.yaml"
        more.write_text("accounts: [{accessKey: visitor, secretKey: visitor-secret}]")
        await until("visitor", served=True)
        more.unlink()
        await until("visitor", served=False)
    assert "secret" not in caplog.text


async def test_a_file_that_is_being_written_is_not_in_force(
    open_broker: Any, settings: dict[str, Any], home: Path
) -> None:
    """Its beginning may be valid, with fewer accounts, and without the limits of the last one."""
    file = home / "conf" / "plain_acl.yml"
    head = "accounts:\n- {accessKey: operator, secretKey: operator-secret, admin: true}\n"
    account = "- accessKey: account\n  secretKey: account-secret\n  defaultTopicPerm: PUB\n"
    denied = "  topicPerms: [T1=DENY]\n"
    file.write_text(head + account + denied)
    async with open_broker(**settings) as running:
        peer = await running.peer()
        for number in range(30):
            for text in (head, head + account):
                file.write_text(f"{text}# {number}")
                await trio.sleep(0.8 * SETTLE_S)
                assert not refused(await peer.ask(request(26, "account")))
                assert refused(await peer.ask(signed(peer.put_request("T1"))))
        await trio.sleep(WATCH_S + 2 * SETTLE_S)
        assert not refused(await peer.ask(signed(peer.put_request("T1"))))


async def test_a_file_that_keeps_changing_is_reported(
    open_broker: Any, settings: dict[str, Any], home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that a program writes again and again."""
    file = home / "conf" / "plain_acl.yml"
    text = file.read_text() + "- {accessKey: latecomer, secretKey: latecomer-secret, admin: true}\n"
    async with open_broker(**settings) as running:
        for number in range(200):
            file.write_text(f"{text}# {number}")
            await trio.sleep(0.9 * SETTLE_S)
        assert caplog.text.count("access control stays as it was: for 30 s its files have not been the same") == 1
        peer = await running.peer()
        assert refused(await peer.ask(request(26, "latecomer")))
        await trio.sleep(WATCH_S + 2 * SETTLE_S)
        assert not refused(await peer.ask(request(26, "latecomer")))


@pytest.mark.parametrize(
    "text",
    ["accounts: [", "a: &x [1]\nb: [*x, *x]", " " * (MOST_BYTES + 1), "accounts: 5", "- 1", "[" * 100_000, "", None],
    ids=["no YAML", "aliases", "huge", "no accounts", "no map", "deep", "empty", "missing"],
)
async def test_a_bad_change_of_a_file_leaves_what_was_in_force(
    open_broker: Any, settings: dict[str, Any], home: Path, caplog: Any, text: str | None
) -> None:
    file = home / "conf" / "plain_acl.yml"
    async with open_broker(**settings) as running:
        peer = await running.peer()
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        with trio.fail_after(10 * WATCH_S):
            while "access control stays as it was" not in caplog.text:  # noqa: ASYNC110 - a file has no event
                await trio.sleep(WATCH_S)
        assert not refused(await peer.ask(request(26, "account")))
        assert refused(await peer.ask(request(17, "account")))
        assert refused(await peer.ask(Command.request(26)))
        await trio.sleep(10 * WATCH_S)
    assert caplog.text.count("access control stays as it was") == 1


@pytest.mark.parametrize("by_file", [True, False])
async def test_a_held_pull_ends_when_accounts_change(
    open_broker: Any, settings: dict[str, Any], home: Path, by_file: bool
) -> None:
    """Otherwise it would bring a message to an account that may no longer read the topic."""
    file = home / "conf" / "plain_acl.yml"
    async with open_broker(**settings) as running:
        reader, writer = await running.peer(), await running.peer()
        await writer.ask(signed(writer.put_request(), "operator"))
        pull = {"offset": 1, "sys_flag": PULL_SUBSCRIPTION | PULL_SUSPEND, "suspend_timeout_millis": 600_000}
        await reader.send(signed(reader.pull_request(**pull)))
        await trio.testing.wait_all_tasks_blocked()
        if by_file:
            file.write_text(ACCOUNTS.replace("T1=PUB|SUB", "T1=DENY"))
        else:
            fields = {"accessKey": "account", "secretKey": "account-secret", "topicPerms": "T1=DENY"}
            answer = await writer.ask(request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **fields))
            assert answer.code == ResponseCode.SUCCESS
        with trio.fail_after(10 * WATCH_S):
            ended = await reader.receive()
        assert ended.code == ResponseCode.PULL_NOT_FOUND
        await writer.ask(signed(writer.put_request(), "operator"))
        assert refused(await reader.ask(signed(reader.pull_request(**pull))))


async def test_all_files_together_have_a_limit(open_broker: Any, settings: dict[str, Any], home: Path) -> None:
    (home / "conf" / "acl").mkdir()
    for number in range(MOST_ALL_BYTES // MOST_BYTES + 1):
        (home / "conf" / "acl" / f"{number}.yml").write_text("# " + "x" * (MOST_BYTES - 2))
    limit = pytest.RaisesExc(AclError, match=f"more than {MOST_ALL_BYTES} bytes")
    with pytest.RaisesGroup(limit, flatten_subgroups=True):
        async with open_broker(**settings):
            raise AssertionError("it has started")


async def test_accounts_given_many_times_are_one_line(
    open_broker: Any, settings: dict[str, Any], home: Path, caplog: Any
) -> None:
    (home / "conf" / "acl").mkdir()
    twice = "".join(f"- {{accessKey: account-{n}, secretKey: some-secret}}\n" for n in range(50))
    for name in "ab":
        (home / "conf" / "acl" / f"{name}.yml").write_text("accounts:\n" + twice)
    async with open_broker(**settings):
        lines = [record.getMessage() for record in caplog.records if "more than once" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("50 accounts are given more than once")
    assert lines[0].endswith("and others")


async def test_accounts_are_changed_by_requests(open_broker: Any, settings: dict[str, Any], home: Path) -> None:
    file = home / "conf" / "plain_acl.yml"
    os.chmod(file, 0o640)
    create = {"accessKey": "visitor", "secretKey": "visitor-secret", "admin": "false", "topicPerms": "T1=PUB,T2=SUB"}
    async with open_broker(**settings) as running:
        peer = await running.peer()
        assert refused(await peer.ask(request(50, "account", **create)))
        assert (await peer.ask(request(50, **create))).code == 0
        assert file.stat().st_mode & 0o777 == 0o640
        assert not refused(await peer.ask(signed(peer.put_request(), "visitor")))
        assert refused(await peer.ask(signed(peer.put_request("T2"), "visitor")))
        listed = json.loads((await peer.ask(request(54))).body)
        assert [each["accessKey"] for each in listed["plainAccessConfigs"]] == ["account", "operator", "visitor"]
        assert listed["plainAccessConfigs"][2]["topicPerms"] == ["T1=PUB", "T2=SUB"]
        assert listed["globalWhiteAddrs"] == []
        version = (await peer.ask(request(52))).header(GetBrokerAclConfigResponse)
        assert json.loads(version.version or "")["counter"] == 1
        assert list(json.loads(version.all_acl_file_version or "")) == [str(file)]
        assert (version.broker_name, version.cluster_name) == ("broker-a", "C1")

        assert (await peer.ask(request(51, accessKey="visitor"))).code == 0
        assert refused(await peer.ask(signed(peer.put_request(), "visitor")))
        missing = await peer.ask(request(51, accessKey="visitor"))
        assert (missing.code, missing.remark) == (
            210, "The accesskey[visitor] corresponding to accessConfig has been deleted failed."
        )  # fmt: skip
        assert (await peer.ask(request(53, globalWhiteAddrs="127.0.0.1", aclFileFullPath=""))).code == 0
        assert (await peer.ask(Command.request(26))).code == 0
    async with open_broker(**settings) as running:
        assert (await (await running.peer()).ask(Command.request(26))).code == 0


@pytest.mark.parametrize(
    ("code", "fields", "failure", "remark"),
    [
        (
            50,
            {"accessKey": "new", "secretKey": "long-secret"},
            209,
            "The accessKey=new and its secretKey cannot be null",
        ),
        (50, {"accessKey": "visitor", "secretKey": "long-secret", "topicPerms": "a"}, 209, "not name=PERMISSION"),
        (
            50,
            {"accessKey": "visitor", "secretKey": "long-secret", "topicPerms": "a=ALL"},
            209,
            "permission error for a=ALL",
        ),
        (50, {"accessKey": "visitor", "secretKey": "long-secret", "defaultTopicPerm": "ALL"}, 209, "defaultTopicPerm"),
        (50, {"accessKey": "visitor", "secretKey": "long-secret", "whiteRemoteAddress": "x"}, 209, "not an IP address"),
        (51, {"accessKey": "nobody"}, 210, "The accesskey[nobody]"),
        # YAML gives a line break of Unicode back as a blank: the account would have another secret.
        (50, {"accessKey": "visitor", "secretKey": "long\x85secret"}, 209, "secretKey has a line break"),
        (50, {"accessKey": "visitor\n", "secretKey": "long-secret"}, 209, "accessKey has a line break"),
        (50, {"accessKey": "visitor", "secretKey": "long-secret", "topicPerms": "a\x1b=PUB"}, 209, "topicPerms has"),
        (53, {"globalWhiteAddrs": "10.0.0.1\x85", "aclFileFullPath": ""}, 211, "has a line break"),
        (53, {"globalWhiteAddrs": "10.*", "aclFileFullPath": ""}, 211, "has not four components"),
        (53, {"globalWhiteAddrs": "10.0.0.1", "aclFileFullPath": "/etc/passwd"}, 211, "has been updated failed"),
    ],
)
async def test_a_change_that_cannot_be_made_changes_nothing(
    open_broker: Any, settings: dict[str, Any], home: Path, code: int, fields: dict[str, str], failure: int, remark: str
) -> None:
    async with open_broker(**settings) as running:
        answer = await (await running.peer()).ask(request(code, **{"admin": "false", **fields}))
        assert answer.code == failure
        assert remark in str(answer.remark)
        assert "long-secret" not in str(answer.remark)
    assert (home / "conf" / "plain_acl.yml").read_text() == ACCOUNTS
    assert [path.name for path in (home / "conf").iterdir()] == ["plain_acl.yml"]


@pytest.mark.parametrize("text", [None, "", "accounts: [", "accounts: [{accessKey: a, secretKey: b}]"])
async def test_a_broker_without_usable_accounts_does_not_start(
    open_broker: Any, settings: dict[str, Any], home: Path, text: str | None
) -> None:
    file = home / "conf" / "plain_acl.yml"
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.RaisesGroup(AclError, allow_unwrapped=True, flatten_subgroups=True):
        async with open_broker(**settings):
            raise AssertionError("it has started")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rocketmqHome": ""}, "needs rocketmqHome"),
        ({"haSlaveAddresses": ""}, "needs haSlaveAddresses"),
    ],
)
def test_settings_that_would_leave_something_open(values: dict[str, str], problem: str) -> None:
    given = {"aclEnable": "true", "rocketmqHome": "/home", "haSlaveAddresses": "127.0.0.1"}
    BrokerConfig.from_properties(given)
    with pytest.raises(ConfigError, match=problem):
        BrokerConfig.from_properties(given | values)
    with pytest.raises(ConfigError, match="no setting has been changed"):
        BrokerConfig.from_properties(given)[0].update({"aclEnable": "false"})
    BrokerConfig.from_properties({"aclEnable": "true", "rocketmqHome": "/home", "compat": "4.9"})


def test_nothing_is_done_for_many_requests_without_a_check_of_each() -> None:
    unchecked, checked = (
        Burst(lambda _link, data: len(data), frozenset(), checks_access=each) for each in (False, True)
    )
    handlers = Handlers(bursts=[unchecked, checked])
    assert guarded(handlers, lambda _host, _command: None).bursts == [checked]
