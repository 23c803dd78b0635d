"""Access control files: what they mean, and how those that mean nothing are refused."""

from __future__ import annotations

import pytest

from triomq_protocol.names import RETRY_PREFIX
from triomq_server.acl.accounts import MOST_BYTES, MOST_HOSTS, AccessRules, AclError, parse, rules_of
from triomq_server.acl.permissions import Need, Permission

WHOLE = b"""
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupA = DENY
- accessKey: rocketmq2
  secretKey: "12345678"
  whiteRemoteAddress: 192.168.1.*
  admin: true
dataVersion:
- counter: 3
  timestamp: 1795237055496
"""


def test_a_whole_file() -> None:
    rules = rules_of([("a.yml", parse("a.yml", WHOLE))])
    first, second = rules.accounts["RocketMQ"], rules.accounts["rocketmq2"]
    assert (first.secret_key, first.admin, second.admin) == ("12345678", False, True)
    assert first.permissions == {
        "topicA": Permission.DENY,
        "topicB": Permission.PUB | Permission.SUB,
        RETRY_PREFIX + "groupA": Permission.DENY,
    }
    assert (first.topic_default, first.group_default) == (Permission.DENY, Permission.SUB)
    assert (second.topic_default, second.group_default) == (Permission.DENY, Permission.DENY)
    assert [first.covers("192.168.1.7"), second.covers("192.168.1.7")] == [False, True]
    assert [covers("10.10.103.9") for covers in rules.white] == [True]
    assert "12345678" not in repr(rules)


@pytest.mark.parametrize(
    ("need", "allowed"),
    [
        (Need("topicA", Permission.SUB), False),
        (Need("topicB", Permission.PUB), True),
        (Need("topicZ", Permission.PUB), False),
        (Need(RETRY_PREFIX + "groupA", Permission.SUB), False),
        (Need(RETRY_PREFIX + "groupZ", Permission.SUB), True),
    ],
)
def test_own_permissions_before_defaults(need: Need, allowed: bool) -> None:
    rules = rules_of([("a.yml", parse("a.yml", WHOLE))])
    assert rules.accounts["RocketMQ"].allows(need) is allowed
    assert rules.accounts["rocketmq2"].allows(need) is True  # an administrator without permissions of its own


def test_an_administrator_with_permissions_of_its_own_has_only_these() -> None:
    text = b"accounts: [{accessKey: operator, secretKey: 12345678, admin: true, topicPerms: [t=SUB]}]"
    account = rules_of([("a.yml", parse("a.yml", text))]).accounts["operator"]
    assert account.allows(Need("t", Permission.SUB))
    assert not account.allows(Need("t", Permission.PUB))
    assert not account.allows(Need("other", Permission.SUB))


def test_the_first_place_of_an_access_key_counts() -> None:
    files = [
        (name, parse(name, b"accounts: [{accessKey: account, secretKey: %b}]" % secret))
        for name, secret in (("1.yml", b"secret-1"), ("2.yml", b"secret-2"))
    ]
    rules = rules_of(files)
    assert rules.accounts["account"].secret_key == "secret-1"
    assert rules.repeated == ("account",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"accounts: [", "a.yml, line 1 is not YAML"),
        (b"\xff\xfe\x00", "a.yml is not YAML"),
        (b"- 1", "is not a map"),
        (b"accounts: 5", "accounts is not a list of maps"),
        (b"accounts: [5]", "accounts is not a list of maps"),
        (b"accounts: [{accessKey: short, secretKey: 12345678}]", "account 1: accessKey needs more than 6 characters"),
        (b"accounts: [{accessKey: account, secretKey: SECRET}]", "account 1: secretKey needs more than 6 characters"),
        (b"accounts: [{accessKey: account}]", "secretKey needs more than 6"),
        (b"accounts: [{accessKey: account, secretKey: 2020-01-01}]", "secretKey is not text; put it in quotes"),
        (b"accounts: [{accessKey: account, secretKey: SECRET-1, admin: perhaps}]", "admin is neither true nor false"),
        (b"accounts: [{accessKey: account, secretKey: SECRET-1, admin: 1}]", "admin is neither true nor false"),
        (
            b"accounts: [{accessKey: account, secretKey: SECRET-1, topicPerms: t=PUB}]",
            "topicPerms is not a list of texts",
        ),
        (b"accounts: [{accessKey: account, secretKey: SECRET-1, topicPerms: [t]}]", "not name=PERMISSION"),
        (
            b"accounts: [{accessKey: account, secretKey: SECRET-1, defaultTopicPerm: ALL}]",
            "not PUB, SUB, PUB|SUB or DENY",
        ),
        (
            b"accounts: [{accessKey: account, secretKey: SECRET-1, whiteRemoteAddress: here}]",
            "'here' is not an IP address",
        ),
        (b"globalWhiteRemoteAddresses: 10.0.0.1", "globalWhiteRemoteAddresses is not a list of texts"),
        (b"globalWhiteRemoteAddresses: ['10.*']", "has not four components"),
        (b"accounts:\n- accessKey: ab\naccounts:", "line 3 is not YAML: a key is given twice in one map"),
        (b"accounts:\n- admin: true\n  admin: false", "line 3 is not YAML: a key is given twice in one map"),
        (b"a: &x [1]\nb: *x", "line 2 is not YAML: aliases are not possible"),
        (b"!!python/object/apply:os.system ['true']", "is not YAML"),
        (
            b"accounts:\n- accessKey: account\n  secretKey: !SECRET-1",
            "line 3 is not YAML: a tag that is not known; a text",
        ),
        (
            b"accounts:\n- accessKey: account\n  secretKey: !SECRET-1!2",
            "line 3 is not YAML: a tag that is not known; a text",
        ),
        (
            b"accounts:\n- accessKey: account\n  secretKey: !<SECRET-1>",
            "line 3 is not YAML: a tag that is not known; a text",
        ),
        (b"accounts: [{accessKey: account, secretKey: SECRET-1, admin: !!bool maybe}]", "is not YAML: KeyError"),
        (b"accounts: [{accessKey: account, secretKey: SECRET-1, admin: !!int ''}]", "is not YAML: IndexError"),
        (b"accounts: [{accessKey: account, secretKey: !!timestamp SECRET-1}]", "is not YAML: AttributeError"),
        (b"accounts:\n- secretKey: 0x" + b"f" * 5000, "line 2 is not YAML: a number of more than 1000 characters"),
        (b"accounts:\n- secretKey: 1" + b":1" * 5000, "line 2 is not YAML: a number of more than 1000 characters"),
        (b"dataVersion:\n- counter: 0x" + b"f" * 5000, "line 2 is not YAML: a number of more than 1000 characters"),
        (b"[" * 100_000, "line 1 is not YAML: more than 20 levels"),
        (b" " * (MOST_BYTES + 1), "at most 1048576 are possible"),
    ],
)
def test_a_file_that_cannot_be_used(text: bytes, problem: str) -> None:
    with pytest.raises(AclError) as refused:
        rules_of([("a.yml", parse("a.yml", text))])
    assert problem in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_a_file_that_describes_a_huge_value() -> None:
    """Nine aliases of nine aliases and so on: 3 GB, were they followed."""
    levels = [b"a0: &a0 [x]", *(b"a%d: &a%d [%b]" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 10))]
    with pytest.raises(AclError, match="line 2 is not YAML: aliases are not possible"):
        parse("a.yml", b"\n".join(levels))


def test_blanks_around_names_and_permissions() -> None:
    """As RocketMQ splits them; a blank inside a name stays, and no topic of that name can be made."""
    text = b"accounts: [{accessKey: account, secretKey: 12345678, topicPerms: [' a = PUB|SUB ', 'b c=SUB']}]"
    account = rules_of([("a.yml", parse("a.yml", text))]).accounts["account"]
    assert account.allows(Need("a", Permission.PUB))
    assert account.allows(Need("b c", Permission.SUB))
    assert not account.allows(Need("b", Permission.SUB))


def test_a_hundred_thousand_accounts() -> None:
    entries = [{"accessKey": f"account-{n}", "secretKey": f"secret-{n}"} for n in range(100_000)]
    rules = rules_of([("a.yml", {"accounts": entries}), ("b.yml", {"accounts": entries[:100]})])
    assert len(rules.accounts) == 100_000
    assert len(rules.repeated) == 100


def test_an_empty_file_admits_no_account() -> None:
    assert rules_of([("a.yml", parse("a.yml", b""))]).admits_nobody
    assert not rules_of([("a.yml", parse("a.yml", b"globalWhiteRemoteAddresses: ['::1']"))]).admits_nobody


def test_a_white_list_is_compared_with_an_address_once() -> None:
    compared: list[str] = []

    def covers(host: str) -> bool:
        compared.append(host)
        return host == "10.0.0.1"

    rules = AccessRules(white=[covers])
    for _ in range(3):
        assert rules.admits("10.0.0.1")
        assert not rules.admits("10.0.0.2")
    assert compared == ["10.0.0.1", "10.0.0.2"]
    for number in range(MOST_HOSTS):
        assert not rules.admits(f"fd00::{number:x}")
    assert len(rules._admitted) <= MOST_HOSTS
    assert rules.admits("10.0.0.1")
    assert rules == AccessRules(white=[covers])
