"""`triomq accounts` and `client.accounts`: what they send, what they print, what they refuse."""

from __future__ import annotations

import io
import json
import sys

import pytest
import trio

import triomq
from triomq import errors
from triomq._admin.topics import ADMIN_TIMEOUT_S
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import (
    ClusterAclConfig,
    CreateAccessConfigRequest,
    DataVersion,
    DeleteAccessConfigRequest,
    GetBrokerAclConfigResponse,
    PlainAccessConfig,
    UpdateGlobalWhiteAddrsConfigRequest,
)

PUT = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
DELETE = RequestCode.DELETE_ACL_CONFIG
VERSIONS = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
WHITE = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
LIST = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG

LISTED = ClusterAclConfig(
    global_white_addrs=["10.1.*.*"],
    plain_access_configs=[
        PlainAccessConfig(access_key="operator", secret_key="12345678", admin=True),
        PlainAccessConfig(
            access_key="bookings",
            secret_key="87654321",
            default_topic_perm="DENY",
            default_group_perm="SUB",
            topic_perms=["A=PUB|SUB", "B=SUB"],
            group_perms=[],
            white_remote_address="192.168.0.1",
        ),
    ],
)


def done(command):
    return command.answer(0)


def listing(command):
    return command.answer(0, body=LISTED.encode())


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("12345678\n")
    return str(path)


def test_accounts_are_listed_without_their_secrets(command_line):
    command_line.cluster.broker.script(LIST, listing)
    code, out, err = command_line("accounts", "list", "broker-a", "--json")
    assert (code, err) == (0, "")
    bookings, operator, white = map(json.loads, out.splitlines())
    assert bookings == {
        "access_key": "bookings",
        "admin": False,
        "white_address": "192.168.0.1",
        "default_topic_perm": "DENY",
        "default_group_perm": "SUB",
        "topic_perms": {"A": "PUB|SUB", "B": "SUB"},
        "group_perms": {},
    }
    assert (operator["access_key"], operator["admin"]) == ("operator", True)
    assert white == {"white_address": "10.1.*.*"}
    assert "8765" not in out


def test_accounts_are_listed_for_people(command_line):
    command_line.cluster.broker.script(LIST, listing, listing)
    assert command_line("accounts", "list", "broker-a")[1].splitlines() == [
        "account bookings  topics DENY  A=PUB|SUB  B=SUB  groups SUB  unsigned from 192.168.0.1",
        "account operator  admin  all topics and groups",
        "no signature is needed from 10.1.*.*",
    ]
    assert "secret 87654321" in command_line("accounts", "list", "broker-a", "--secrets")[1]


def test_an_account_is_set_at_every_broker(command_line, secret):
    cluster = command_line.cluster
    other = cluster.add_master("broker-b")
    for broker in (cluster.broker, other):
        broker.script(PUT, done)
    code, out, err = command_line(
        "accounts", "set", "bookings", "--secret-file", secret, "--topic", "A=PUB|SUB", "--topic", "B=SUB",
        "--default-group-perm", "SUB", "--yes",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert out == "".join(f"{one.address}: account bookings is set\n" for one in (cluster.broker, other))
    for broker in (cluster.broker, other):
        (request,) = broker.requests(PUT)
        assert request.header(CreateAccessConfigRequest) == CreateAccessConfigRequest(
            access_key="bookings", secret_key="12345678", default_group_perm="SUB", topic_perms="A=PUB|SUB,B=SUB"
        )


def test_what_one_broker_refuses_is_done_at_the_others(command_line):
    cluster = command_line.cluster
    other = cluster.add_master("broker-b")
    failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
    cluster.broker.script(DELETE, lambda command: command.answer(failed, "no such account"))
    other.script(DELETE, done)
    code, out, err = command_line("accounts", "delete", "bookings", "--yes")
    assert (code, out) == (1, "")
    assert "no such account" in err
    assert f"Done at {other.address}; not at {cluster.broker.address}." in err
    assert other.requests(DELETE)[0].header(DeleteAccessConfigRequest).access_key == "bookings"


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("10.1.2.{3,4}", "10.1.2.3,10.1.2.4"),
        ("fd00::{1, 2}", "fd00::1,fd00::2"),
        ("10.1.2.3,10.1.2.4", "10.1.2.3,10.1.2.4"),
        ("10.1.2.{3", "10.1.2.{3"),
        ("10.1.2.{3}4", "10.1.2.{3}4"),
    ],
)
def test_braces_of_a_white_list_are_not_sent(command_line, address, sent):
    """Brokers would divide them."""
    command_line.cluster.broker.script(WHITE, done)
    code, _, _ = command_line("accounts", "white-list", "10.9.9.9", address, "--yes")
    (request,) = command_line.cluster.broker.requests(WHITE)
    header = request.header(UpdateGlobalWhiteAddrsConfigRequest)
    assert (code, header.global_white_addrs) == (0, f"10.9.9.9,{sent}")


@pytest.mark.parametrize("addresses", [[], ["10.1.2.3", "10.1.*.*"]])
def test_the_white_list_is_replaced_at_one_broker(command_line, addresses):
    other = command_line.cluster.add_master("broker-b")
    other.script(WHITE, done)
    code, out, _ = command_line("accounts", "white-list", *addresses, "--broker", "broker-b", "--yes", "--json")
    assert (code, json.loads(out)["address"]) == (0, other.address)
    header = other.requests(WHITE)[0].header(UpdateGlobalWhiteAddrsConfigRequest)
    assert (header.global_white_addrs, header.acl_file_full_path) == (",".join(addresses), "")
    assert not command_line.cluster.broker.requests(WHITE)


def versions_of(all_files):
    header = GetBrokerAclConfigResponse(
        version=DataVersion(timestamp=5, counter=6).encode().decode(), all_acl_file_version=all_files, broker_name="b"
    )
    return lambda command: command.answer(0, header=header)


@pytest.mark.parametrize(
    ("all_files", "found"),
    [
        ('{"/conf/plain_acl.yml":{"counter":3,"timestamp":7}}', [("/conf/plain_acl.yml", 3, 7)]),
        (None, [("", 6, 5)]),
        ("{}", []),
    ],
)
def test_versions(command_line, all_files, found):
    command_line.cluster.broker.script(VERSIONS, versions_of(all_files))
    code, out, _ = command_line("accounts", "versions", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["path"], row["changes"], row["changed_ms"]) for row in rows] == found


def test_versions_of_other_brokers_are_shown_where_one_reports_none(command_line):
    cluster = command_line.cluster
    cluster.broker.script(VERSIONS, lambda command: command.answer(ResponseCode.SYSTEM_ERROR, "no"))
    cluster.add_master("broker-b").script(VERSIONS, versions_of('{"f":{"counter":1,"timestamp":7}}'))
    code, out, err = command_line("accounts", "versions", "--broker", "broker-a:0", "--broker", "broker-b")
    assert code == 1
    assert "f: 1 changes" in out
    assert "Not known of broker-a:0." in err


def test_brokers_that_do_not_answer_are_waited_for_at_the_same_time(command_line, secret):
    cluster = command_line.cluster
    silent = [cluster.broker, cluster.add_master("broker-b"), cluster.add_master("broker-c")]
    other = cluster.add_master("broker-d")
    for code in (VERSIONS, PUT):
        for broker in silent:
            broker.script(code, None)
    other.script(VERSIONS, versions_of('{"f":{"counter":1,"timestamp":7}}'))
    other.script(PUT, done)
    code, out, err = command_line("accounts", "versions")
    assert (code, out.split()[1]) == (1, other.address)
    assert f"Not known of {', '.join(broker.address for broker in silent)}." in err
    assert command_line.passed_s < 2 * ADMIN_TIMEOUT_S
    code, _, err = command_line("accounts", "set", "bookings", "--secret-file", secret, "--yes")
    assert code == 1
    assert f"Done at {other.address}; not at {', '.join(broker.address for broker in silent)}." in err
    assert command_line.passed_s < 2 * ADMIN_TIMEOUT_S


def test_a_broker_that_is_given_twice_is_asked_once(command_line):
    command_line.cluster.broker.script(DELETE, done)
    code, _, _ = command_line(
        "accounts", "delete", "bookings", "--broker", "broker-a", "--broker", "broker-a:0", "--yes"
    )
    assert code == 0
    assert len(command_line.cluster.broker.requests(DELETE)) == 1


@pytest.mark.parametrize("all_files", ["[", '{"f":3}', '"x"'])
async def test_versions_that_cannot_be_read_are_an_error(autojump_clock, cluster, all_files):
    cluster.broker.script(VERSIONS, versions_of(all_files))
    async with cluster.client() as client:
        with pytest.raises(errors.ProtocolViolation):
            await client.accounts.versions()


@pytest.mark.parametrize(("settings", "at_least_s", "at_most_s"), [
    (b"brokerName=broker-a\naclEnable=false\n", 0.5, 1),
    (b"brokerName=broker-a\naclEnable=true\n", 5, 6),
    (None, 5, 6),
])  # fmt: skip
def test_a_broker_without_access_control_is_named(command_line, settings, at_least_s, at_most_s):
    """It never answers, and is not waited for if it says that it has none."""
    broker = command_line.cluster.broker
    broker.script(LIST, None)
    broker.script(
        RequestCode.GET_BROKER_CONFIG,
        None if settings is None else lambda command: command.answer(0, body=settings),
    )
    code, out, err = command_line("accounts", "list", "broker-a")
    assert (code, out) == (1, "")
    assert "no answer in time; a broker without access control (aclEnable=false) never gives one" in err
    assert at_least_s <= command_line.passed_s < at_most_s


def test_the_accounts_of_a_busy_broker_are_waited_for(command_line):
    broker = command_line.cluster.broker
    broker.script(RequestCode.GET_BROKER_CONFIG, lambda command: command.answer(1, "busy"))

    async def later(command):
        await trio.sleep(4)
        return command.answer(0, body=b'{"globalWhiteAddrs":["10.1.2.3"],"plainAccessConfigs":[]}')

    broker.script(LIST, later)
    code, out, _ = command_line("accounts", "list", "broker-a")
    assert (code, "10.1.2.3" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["set", "bookings", "--yes"], "needs its secret (--secret-file)"),
        (["set", "bookings", "--secret-file", "SECRET"], "give --yes"),
        (["set", "bookings", "--secret-file", "SECRET", "--topic", "A", "--yes"], "is not NAME=PERM"),
        (["set", "bookings", "--secret-file", "SECRET", "--topic", "A=ALL", "--yes"], "none of DENY"),
        (["set", "bookings", "--secret-file", "/no/such", "--yes"], "--secret-file /no/such cannot be read"),
        (["set", "bookings", "--secret-file", sys.executable, "--yes"], "its first line is the secret"),
        (["set", "short", "--secret-file", "SECRET", "--yes"], "access_key has 5 characters"),
        (["delete", "bookings"], "give --yes"),
        (["white-list"], "give --yes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(command_line, monkeypatch, secret, arguments, text):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, out, err = command_line("accounts", *[secret if each == "SECRET" else each for each in arguments])
    assert (code, out) == (2, "")
    assert text in err
    assert not command_line.cluster.broker.requests(PUT)


def test_a_closed_standard_input_has_no_secret(command_line, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as after `<&-`
    code, out, err = command_line("accounts", "set", "bookings", "--secret-file", "-", "--yes")
    assert (code, out) == (2, "")
    assert "standard input is closed" in err
    assert not command_line.cluster.broker.requests(PUT)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret_key": None},
        {"secret_key": "123456"},
        {"default_topic_perm": "pub"},
        {"topic_perms": {"A,B": "PUB"}},
        {"group_perms": {"": "SUB"}},
    ],
)
async def test_accounts_that_cannot_be(autojump_clock, cluster, wrong):
    account = triomq.admin.Account(**{"access_key": "bookings", "secret_key": "12345678", **wrong})
    assert "12345678" not in repr(account)
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall):
            await client.accounts.put(account)
    assert not cluster.broker.requests(PUT)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("key", "answers", "deleted"), [("operator", "y\nn\n", 0), ("operator", "y\ny\n", 1), ("bookings", "y\n", 1)]
)
def test_the_only_operators_account_is_asked_about_twice(command_line, monkeypatch, key, answers, deleted):
    command_line.cluster.broker.script(LIST, listing)
    command_line.cluster.broker.script(DELETE, done)
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    code, out, _ = command_line("accounts", "delete", key)
    assert code == 1 - deleted
    assert ("is the only operator's account at broker-a-0:10911" in out) == (key == "operator")
    assert len(command_line.cluster.broker.requests(DELETE)) == deleted
