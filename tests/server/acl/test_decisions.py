"""Refused requests by account: golden bytes that RocketMQ has checked, and tables of cases."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import pytest

from triomq_protocol.acl import ACCESS_KEY, SIGNATURE, sign, signature_of, values_to_sign
from triomq_protocol.codes import VERSION, RequestCode, SerializeType
from triomq_protocol.requests.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from triomq_protocol.requests.route import GetRouteInfoRequest
from triomq_protocol.wire.binary_header import encode_area, encode_binary_header
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_protocol.wire.lengths import frame_lengths
from triomq_server.acl import decisions
from triomq_server.acl.accounts import AccessRules, parse, rules_of
from triomq_server.acl.decisions import RequestAccess, refusal
from triomq_server.acl.permissions import ACCOUNT_CODES, ADMIN_CODES, OWN_ADMIN_CODES

FILE = b"""
accounts:
- {accessKey: account, secretKey: account-secret, defaultTopicPerm: DENY, defaultGroupPerm: DENY,
   topicPerms: [in=SUB, out=PUB, both=PUB|SUB], groupPerms: [readers=SUB]}
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: neighbour, secretKey: neighbour-secret, whiteRemoteAddress: 10.0.0.7}
globalWhiteRemoteAddresses: [10.0.1.*]
"""
SECRETS = {"account": "account-secret", "operator": "operator-secret", "neighbour": "neighbour-secret"}
HOST = "192.0.2.1"
RULES = rules_of([("a.yml", parse("a.yml", FILE))])


def received(command: Command) -> Command:
    (command,) = FrameDecoder().feed(command.encode())
    return command


def signed(
    code: int, fields: dict[str, str] | None = None, body: bytes = b"", by: str = "account", *, serialize: int = 0
) -> Command:
    extra = sign(fields or {}, body, access_key=by, secret_key=SECRETS[by])
    return received(Command.request(code, fields=extra, body=body, serialize=serialize))


GOLDEN = json.loads((Path(__file__).parents[2] / "vectors" / "acl.json").read_text())


@pytest.mark.parametrize(
    "case", [case for case in GOLDEN["cases"] if case["kind"] == "check"], ids=lambda c: c["about"]
)
def test_requests_that_rocketmq_has_checked(case: dict[str, Any]) -> None:
    rules = rules_of([("plain_acl.yml", parse("plain_acl.yml", GOLDEN["accountFile"].encode()))])
    (command,) = FrameDecoder().feed(bytes.fromhex(case["frameHex"]))
    for compat_49 in (False, True):
        why = refusal(rules, case["remoteAddress"].rpartition(":")[0], command, compat_49=compat_49)
        assert (why or "").startswith(case["message"] or "")
        assert (why is None) is (case["result"] == "allowed")


# What a client signs as null is not sent in JSON: RocketMQ refuses that one, too.
SIGNED = [case for case in GOLDEN["cases"] if case["kind"] == "sign" and "null" not in case["about"]]


@pytest.mark.parametrize("case", SIGNED, ids=lambda case: case["name"])
def test_requests_that_rocketmq_signed(case: dict[str, Any]) -> None:
    given = case["credentials"]
    account = attrs.evolve(RULES.accounts["operator"], access_key=given["accessKey"], secret_key=given["secretKey"])
    (command,) = FrameDecoder().feed(bytes.fromhex(case["frameHex"]))
    assert refusal(AccessRules({given["accessKey"]: account}), HOST, command) is None
    wrong = AccessRules({given["accessKey"]: attrs.evolve(account, secret_key="another")})
    assert "Check signature failed" in str(refusal(wrong, HOST, command))


READ_ELSEWHERE = [
    (code, topic, group, by, host)
    for code, groups in (
        (RequestCode.SEND_MESSAGE, [""]),
        (RequestCode.SEND_MESSAGE_V2, [""]),
        (RequestCode.SEND_BATCH_MESSAGE, [""]),
        (RequestCode.PULL_MESSAGE, ["readers", "others"]),
    )
    for group in groups
    for topic in ("in", "out", "both", "other", "RMQ_SYS_TRACE_TOPIC")
    for by in ("account", "operator", "neighbour")
    for host in (HOST, "10.0.0.7", "10.0.1.9")
]


@pytest.mark.parametrize("compat_49", [False, True])
def test_requests_that_are_read_elsewhere_are_decided_alike(compat_49: bool) -> None:
    access = RequestAccess(lambda: RULES, compat_49=compat_49)
    allowed_pulls = set()
    for code, topic, group, by, host in READ_ELSEWHERE * 2:  # the second time decisions are remembered
        fields = {"topic" if code in {RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE} else "b": topic}
        if group:
            fields["consumerGroup"] = group
        command = signed(code, fields, b"body", by)
        given = str(command.fields["Signature"]).encode()
        text = values_to_sign(dict(command.field_pairs() or ())) + b"body"
        allowed = access.is_open_to(host) or access.allows(host, by, given, text, code, topic, group)
        assert allowed is (refusal(RULES, host, command, compat_49=compat_49) is None), (code, topic, group, by, host)
        if allowed and group and by == "account" and host == HOST:
            allowed_pulls.add((topic, group))
        if not access.is_open_to(host) and not RULES.accounts[by].covers(host):
            assert not access.allows(host, by, given, text + b"!", code, topic, group)
            assert not access.allows(host, "nobody", given, text, code, topic, group)
    assert allowed_pulls == {("in", "readers"), ("both", "readers")}


def test_cached_decisions_end_with_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MOST_REMEMBERED", 2)
    rules = RULES
    access = RequestAccess(lambda: rules, compat_49=False)

    def allows(topic: str) -> bool:
        given = signature_of(b"text", "account-secret")
        return access.allows(HOST, "account", given, b"text", RequestCode.SEND_MESSAGE, topic, "")

    assert [allows(topic) for topic in ("out", "in", "both", "in", "out")] == [True, False, True, False, True]
    changed = FILE.replace(b"out=PUB", b"out=DENY").replace(b"in=SUB", b"in=PUB")
    rules = rules_of([("a.yml", parse("a.yml", changed))])
    assert [allows(topic) for topic in ("out", "in", "both", "in", "out")] == [False, True, True, True, False]
    rules = AccessRules()
    assert not allows("both")


def heartbeat(group: str, *topics: str) -> bytes:
    consumer = ConsumerData(
        group_name=group, subscription_data_set=[SubscriptionData(topic=t, sub_string="*") for t in topics]
    )
    return HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode()


C = RequestCode
CASES: list[tuple[int, dict[str, str], bytes, str | None, str | None]] = [
    # code, fields, body, what is missing, what is missing with compat=4.9
    (C.SEND_MESSAGE, {"topic": "out", "producerGroup": "p"}, b"", None, None),
    (C.SEND_MESSAGE, {"topic": "in", "producerGroup": "p"}, b"", "topic:in, PUB", "topic:in, PUB"),
    (C.SEND_MESSAGE, {"topic": "%RETRY%x", "producerGroup": "x"}, b"", "group:x, SUB", None),
    (C.SEND_MESSAGE, {"topic": "%RETRY%readers", "producerGroup": "readers"}, b"", None, None),
    (C.SEND_MESSAGE_V2, {"b": "both", "a": "p"}, b"", None, None),
    (C.SEND_MESSAGE_V2, {"b": "else", "a": "p"}, b"", "topic:else, PUB", "topic:else, PUB"),
    (C.SEND_MESSAGE_V2, {"b": "in", "topic": "out", "a": "p"}, b"", "topic:in, PUB", "topic:in, PUB"),
    (C.SEND_MESSAGE_V2, {"b": "%RETRY%x", "a": "x"}, b"", "group:x, SUB", "group:x, SUB"),
    (C.SEND_MESSAGE_V2, {"b": "%RETRY%x", "a": "readers"}, b"", "group:x, SUB", None),
    (C.SEND_MESSAGE_V2, {"b": "%RETRY%readers", "a": "x"}, b"", "group:x, SUB", "group:x, SUB"),
    (C.SEND_MESSAGE, {"topic": "%RETRY%x", "producerGroup": "readers"}, b"", "group:x, SUB", None),
    (C.SEND_REPLY_MESSAGE, {"topic": "in", "producerGroup": "p"}, b"", "topic:in, PUB", None),
    (C.SEND_REPLY_MESSAGE_V2, {"b": "in", "a": "p"}, b"", "topic:in, PUB", None),
    (C.SEND_REPLY_MESSAGE_V2, {"b": "%RETRY%x", "a": "readers"}, b"", "group:x, SUB", None),
    (C.SEND_REPLY_MESSAGE_V2, {"b": "out", "a": "p"}, b"", None, None),
    (C.SEND_REPLY_MESSAGE_V2, {"b": "DefaultCluster_REPLY_TOPIC", "a": "p"}, b"", None, None),
    (C.SEND_MESSAGE_V2, {"b": "RMQ_SYS_TRACE_TOPIC", "a": "p"}, b"", None, None),
    (C.SEND_BATCH_MESSAGE, {"b": "in", "a": "p"}, b"", "topic:in, PUB", None),
    (C.SEND_BATCH_MESSAGE, {"b": "out", "a": "p"}, b"", None, None),
    (C.CONSUMER_SEND_MSG_BACK, {"group": "readers"}, b"", None, None),
    (C.CONSUMER_SEND_MSG_BACK, {"group": "x"}, b"", "group:x, SUB", "group:x, SUB"),
    (C.PULL_MESSAGE, {"topic": "in", "consumerGroup": "readers"}, b"", None, None),
    (C.PULL_MESSAGE, {"topic": "out", "consumerGroup": "readers"}, b"", "topic:out, SUB", "topic:out, SUB"),
    (C.PULL_MESSAGE, {"topic": "in", "consumerGroup": "x"}, b"", "group:x, SUB", "group:x, SUB"),
    (C.PULL_MESSAGE, {"topic": "%RETRY%readers", "consumerGroup": "readers"}, b"", None, None),
    (C.PULL_MESSAGE, {"topic": "%RETRY%x", "consumerGroup": "readers"}, b"", "group:x, SUB", "group:x, SUB"),
    (C.PULL_MESSAGE, {"topic": "RMQ_SYS_TRACE_TOPIC", "consumerGroup": "readers"}, b"", "TRACE_TOPIC, SUB", "C, SUB"),
    (C.QUERY_MESSAGE, {"topic": "in"}, b"", None, None),
    (C.QUERY_MESSAGE, {"topic": "out"}, b"", "topic:out, SUB", "topic:out, SUB"),
    (C.HEART_BEAT, {}, heartbeat("readers", "in", "both"), None, None),
    (C.HEART_BEAT, {}, heartbeat("readers", "in", "out"), "topic:out, SUB", "topic:out, SUB"),
    (C.HEART_BEAT, {}, heartbeat("x", "in"), "group:x, SUB", "group:x, SUB"),
    (C.HEART_BEAT, {}, b"[", "body of the request cannot be read", "body of the request cannot be read"),
    (C.UNREGISTER_CLIENT, {"producerGroup": "p"}, b"", None, None),
    (C.UNREGISTER_CLIENT, {"consumerGroup": "x"}, b"", "group:x, SUB", "group:x, SUB"),
    (C.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"}, b"", None, None),
    (C.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "x"}, b"", "group:x, SUB", "group:x, SUB"),
    (C.UPDATE_CONSUMER_OFFSET, {"topic": "in", "consumerGroup": "readers"}, b"", None, None),
    (C.UPDATE_CONSUMER_OFFSET, {"topic": "out", "consumerGroup": "readers"}, b"", "topic:out, SUB", "topic:out, SUB"),
    (C.GET_MAX_OFFSET, {"topic": "else"}, b"", None, None),  # RocketMQ asks for a signature only
]


@pytest.mark.parametrize("serialize", [0, 1])
@pytest.mark.parametrize(("code", "fields", "body", "missing", "missing_49"), CASES)
def test_permissions_of_requests(
    code: int, fields: dict[str, str], body: bytes, missing: str | None, missing_49: str | None, serialize: int
) -> None:
    command = signed(code, fields, body, serialize=serialize)
    for compat_49, expected in ((False, missing), (True, missing_49)):
        why = refusal(RULES, HOST, command, compat_49=compat_49)
        assert (why is None) is (expected is None), why
        assert (expected or "") in (why or "")
    assert refusal(RULES, HOST, signed(code, fields, body, "operator", serialize=serialize)) in (None, why)


@pytest.mark.parametrize("code", [*RequestCode, *sorted(OWN_ADMIN_CODES), 4711])
def test_every_code_needs_a_signature_and_some_an_administrator(code: int) -> None:
    assert refusal(RULES, HOST, received(Command.request(code))) == "No accessKey is configured"
    unsigned = received(Command.request(code, fields={"AccessKey": "operator"}))
    assert refusal(RULES, HOST, unsigned) == "Check signature failed for accessKey=operator"
    for compat_49 in (False, True):
        why = refusal(RULES, HOST, signed(code, body=b"{}" if code == C.HEART_BEAT else b""), compat_49=compat_49)
        wanted = ADMIN_CODES | OWN_ADMIN_CODES | (frozenset() if compat_49 else ACCOUNT_CODES)
        expected = f"Need admin permission for request code={code:d}, but accessKey=account is not"
        assert why == (expected if code in wanted else None)
    assert refusal(RULES, HOST, signed(code, body=b"{}" if code == C.HEART_BEAT else b"", by="operator")) is None


@pytest.mark.parametrize(
    ("host", "fields", "why"),
    [
        ("10.0.1.9", {}, None),
        ("10.0.2.9", {}, "No accessKey is configured"),
        ("10.0.0.7", {"AccessKey": "neighbour"}, None),
        ("10.0.0.7", {"AccessKey": "account"}, "Check signature failed for accessKey=account"),
        ("10.0.0.8", {"AccessKey": "neighbour"}, "Check signature failed for accessKey=neighbour"),
        ("10.0.0.7", {"AccessKey": "nobody"}, "No acl config for nobody"),
        (
            "10.0.0.7",
            {"AccessKey": "account", "Signature": "\u00e4\ud800"},
            "Check signature failed for accessKey=account",
        ),
    ],
)
def test_white_lists_and_unknown_accounts(host: str, fields: dict[str, str], why: str | None) -> None:
    assert refusal(RULES, host, received(Command.request(C.GET_BROKER_CONFIG, fields=fields))) == why


def test_a_signature_covers_fields_and_body() -> None:
    fields = {"topic": "in", "consumerGroup": "readers"}
    extra = sign(fields, b"body", access_key="account", secret_key=SECRETS["account"])

    def why(fields: dict[str, str | None], body: bytes) -> str | None:
        return refusal(RULES, HOST, received(Command.request(C.PULL_MESSAGE, fields=fields, body=body)))

    assert why(extra, b"body") is None
    for altered in (extra | {"topic": "both"}, extra | {"new": "1"}, {k: v for k, v in extra.items() if k != "topic"}):
        assert why(altered, b"body") == "Check signature failed for accessKey=account"
    assert why(extra, b"Body") == "Check signature failed for accessKey=account"


@pytest.mark.parametrize("signed_too", [True, False])
def test_the_unique_key_mark_may_be_signed_or_not(signed_too: bool) -> None:
    mark = {"_UNIQUE_KEY_QUERY": "true"}
    fields = {"topic": "in", "key": "k"} | (mark if signed_too else {})
    extra = sign(fields, b"", access_key="account", secret_key=SECRETS["account"]) | mark
    assert refusal(RULES, HOST, received(Command.request(C.QUERY_MESSAGE, fields=extra))) is None


def test_a_body_is_signed_once_whatever_the_fields_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counted(signed: bytes, secret_key: str, body: bytes = b"") -> bytes:
        sizes.append(len(signed) + len(body))
        return signature_of(signed, secret_key, body)

    monkeypatch.setattr(decisions, "signature_of", counted)
    body = bytes(1 << 20)
    forged = {"topic": "in", "AccessKey": "account", "Signature": "forged", "_UNIQUE_KEY_QUERY": "true"}
    why = refusal(RULES, HOST, received(Command.request(C.QUERY_MESSAGE, fields=forged, body=body)))
    assert why == "Check signature failed for accessKey=account"
    assert [size for size in sizes if size > len(body)] == sizes[:1]


def test_a_large_body_is_not_copied_for_its_signature() -> None:
    body = bytes(8 << 20)
    command = received(
        Command.request(C.QUERY_MESSAGE, fields={"AccessKey": "account", "Signature": "forged"}, body=body)
    )
    tracemalloc.start()
    try:
        assert refusal(RULES, HOST, command) == "Check signature failed for accessKey=account"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("serialize", [0, 1])
def test_of_a_field_with_two_values_that_one_is_checked_that_is_served(serialize: int) -> None:
    fields = {"AAAAA": "else", "topic": "both"}
    frame = Command.request(C.QUERY_MESSAGE, fields=fields, serialize=serialize).encode().replace(b"AAAAA", b"topic")
    (command,) = FrameDecoder().feed(frame)
    served = command.header(GetRouteInfoRequest).topic
    assert refusal(RULES, "10.0.0.9", command) == "No accessKey is configured"
    assert dict(command.field_pairs() or ())["topic"] == served


def test_a_name_repeated_without_a_value_hides_it_from_the_check_and_from_the_handler() -> None:
    fields: dict[str, str | None] = {"topic": "other", ACCESS_KEY: "account"}
    signature = signature_of(values_to_sign(fields | {"topic": None}), SECRETS["account"]).decode()
    area = encode_area((fields | {SIGNATURE: signature}).items()) + b"\0\x05topic" + bytes(4)
    header = encode_binary_header(C.QUERY_MESSAGE, None, VERSION, 1, 0, None, area)
    (command,) = FrameDecoder().feed(frame_lengths(len(header), 0, SerializeType.ROCKETMQ) + header)
    assert refusal(RULES, HOST, command) is None  # as a request without a topic
    assert command.header(GetRouteInfoRequest).topic is None
    assert "topic" not in (command.fields or {})


def test_without_accounts_everything_is_refused() -> None:
    assert refusal(AccessRules(), HOST, signed(C.GET_BROKER_CONFIG)) == "No acl config for account"
