"""Signed requests: an account from anywhere, and no request of a client that leaves without a signature."""

from __future__ import annotations

import contextlib
import io
import logging
import pydoc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from consumer_broker import record_of

import triomq
from triomq import errors
from triomq._transport.signing import signed_frame
from triomq_protocol.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature
from triomq_protocol.codes import RequestCode
from triomq_protocol.properties import encode_properties
from triomq_protocol.record.view import RecordView
from triomq_protocol.requests.pull import encode_pull_request
from triomq_protocol.requests.send import encode_send_request_v2
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder

SECRET = "the secret itself"
ACCOUNT = triomq.Credentials("orders-app", SECRET)


def unsigned(nodes: Any, account: triomq.Credentials = ACCOUNT) -> list[int]:
    """The codes of all requests without the account's valid signature."""
    return [
        command.code
        for node in nodes
        for command in node.seen
        if not command.is_response and not is_signed(command, account)
    ]


def is_signed(command: Command, account: triomq.Credentials) -> bool:
    fields: dict[str, str | None] = dict(command.fields or {})
    given = fields.pop(SIGNATURE, None)
    return (
        fields.get(ACCESS_KEY) == account.access_key
        and fields.get(SECURITY_TOKEN) == account.security_token
        and given == signature(fields, command.body, account.secret_key)
    )


# --- no request without a signature -----------------------------------------------------------------------------------


async def _send(client: Any, cluster: Any) -> None:
    producer = client.producer("G")
    await producer.send(triomq.Message("T", b"plain"))
    await producer.send(triomq.Message("T", b"z" * 10_000))  # compressed: not from the template
    await producer.send_oneway(triomq.Message("T", b"one-way"))
    await producer.send_batch([triomq.Message("T", b"1"), triomq.Message("T", b"2")])
    done = trio.Event()
    await producer.send(triomq.Message("T", b"called back"), callback=lambda *_: done.set())
    await producer.flush()
    assert len(cluster.broker.bodies("T")) == 6
    assert done.is_set()


async def _transactions(client: Any, cluster: Any) -> None:
    producer = client.producer("TG", transactions=lambda _: triomq.TransactionState.COMMIT)
    async with producer.transaction(triomq.Message("T", b"pay")):
        pass


async def _replies(client: Any, cluster: Any) -> None:
    properties = {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "CLUSTER": "C"}
    record = record_of(
        "T", 0, b"ping", encode_properties(properties).encode(), queue_offset=0, physical_offset=0, times=0
    )
    cluster.name_server.add_route("C_REPLY_TOPIC", cluster.broker)
    cluster.broker.script(RequestCode.SEND_REPLY_MESSAGE_V2, cluster.broker.send)
    producer = client.producer("RG")
    await producer.reply(triomq.ReceivedMessage(RecordView(record), triomq.MessageQueue("T", "broker-a", 0)), b"pong")
    with pytest.raises(errors.ReplyTimeout):
        await producer.request(triomq.Message("T", b"nobody answers"), 0.5)


async def _pull(client: Any, cluster: Any) -> None:
    cluster.broker.store("T", 0, b"there")
    async with client.pull_consumer("PULL") as consumer:
        queue = triomq.MessageQueue("T", "broker-a", 0)
        assert (await consumer.pull(queue, 0)).messages
        await consumer.commit(queue, 1)


async def _push(client: Any, cluster: Any) -> None:
    cluster.broker.store("T", 1, b"to be retried")
    for group, ordered in (("PUSH", False), ("ORDERED", True)):
        handled = trio.Event()

        async def handle(delivery: Any, handled: trio.Event = handled, ordered: bool = ordered) -> Any:
            handled.set()
            if not ordered:
                raise ValueError("sent back")

        async with client.push_consumer(group, ordered=ordered, start_from="earliest") as consumer:
            await consumer.subscribe("T", "*" if ordered else triomq.Sql("a = 1"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                with trio.move_on_after(120):
                    await handled.wait()
                    await trio.sleep(60)
                nursery.cancel_scope.cancel()


async def _lite(client: Any, cluster: Any) -> None:
    async with client.lite_pull_consumer("LITE") as consumer:
        await consumer.subscribe("T")
        with trio.move_on_after(40):
            await consumer.poll(30)
            await consumer.commit()
            await trio.sleep(30)


async def _administer(client: Any, cluster: Any) -> None:
    queue = triomq.MessageQueue("T", "broker-a", 0)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.admin.create_topic("New"), lambda: client.admin.delete_topic("New"),
        client.admin.topics, client.admin.cluster_info, lambda: client.admin.route("T"),
        lambda: client.admin.topic_stats("T"), client.admin.without_master, client.admin.contested_ids,
        client.groups.names, lambda: client.groups.members("PUSH"), lambda: client.groups.progress("PUSH"),
        lambda: client.groups.running_info("PUSH", client.client_id), lambda: client.groups.reset("PUSH", "T", 0),
        lambda: client.groups.set_offsets("PUSH", {queue: 0}), lambda: client.bounds.min_offset(queue),
        lambda: client.bounds.max_offset(queue), lambda: client.bounds.offset_by_time(queue, 5),
        lambda: client.bounds.earliest_stored_ms(queue),
    ]  # fmt: skip
    for call in calls:
        with contextlib.suppress(errors.MQError):  # the scripted broker serves some of them only
            await call()


NEEDED = {
    RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.END_TRANSACTION, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT,
    RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ, RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_TOPIC_STATS_INFO, RequestCode.CHECK_CLIENT_CONFIG,
}  # fmt: skip
"""What the features below must have asked for; a new request of the client belongs here."""


@pytest.mark.parametrize("account", [ACCOUNT, triomq.Credentials("temporary", SECRET, "a token")], ids=["key", "token"])
async def test_no_request_of_any_feature_is_sent_unsigned(autojump_clock, group_cluster, account):
    cluster = group_cluster
    cluster.broker.consumers.sql = lambda *_: True
    async with cluster.client(credentials=account) as client:
        for use in (_send, _transactions, _replies, _pull, _push, _lite, _administer):
            await use(client, cluster)
    nodes = cluster.network.nodes.values()
    assert unsigned(nodes, account) == []
    assert NEEDED - {command.code for node in nodes for command in node.seen} == set()


async def test_without_credentials_nothing_is_signed(autojump_clock, cluster):
    async with cluster.client() as client:
        await client.producer("G").send(triomq.Message("T", b"plain"))
    seen = [command for node in cluster.network.nodes.values() for command in node.seen]
    assert len(seen) == len(unsigned(cluster.network.nodes.values()))
    assert not any({ACCESS_KEY, SIGNATURE} & set(command.fields or {}) for command in seen)


async def test_answers_are_not_signed(autojump_clock, cluster):
    async with cluster.client(credentials=ACCOUNT) as client:
        await client.producer("G").send(triomq.Message("T", b"plain"))
        known = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=5)
        for request in (known, Command.request(9999, opaque=6)):
            await cluster.broker.push_to(cluster.broker.streams[-1], request)
        with trio.fail_after(60):
            while len(answers := [each for each in cluster.broker.seen if each.is_response]) < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
    assert {answer.opaque for answer in answers} == {5, 6}
    assert not any({ACCESS_KEY, SIGNATURE} & set(answer.fields or {}) for answer in answers)


# --- one frame --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        encode_send_request_v2(
            7, producer_group="G", topic="T", queue_id=1, sys_flag=0, born_timestamp=5, flag=0, properties="a\x01\u4e16\x02",
            body=b"\x00body", oneway=True,
        ),
        encode_pull_request(
            8, consumer_group="G", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0, commit_offset=0,
            suspend_timeout_millis=0,
        ),
        Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, opaque=9).encode(),  # no fields at all
        Command.request(1, fields={"z": "last", "key": "k"}).encode(),
    ],
)  # fmt: skip
def test_a_signature_changes_nothing_else(frame: bytes) -> None:
    (before,), (after,) = FrameDecoder().feed(frame), FrameDecoder().feed(signed_frame(frame, ACCOUNT))
    fields = dict(after.fields or {})
    given = fields.pop(SIGNATURE)
    assert given == signature(fields, after.body, SECRET)
    assert fields == {**(before.fields or {}), ACCESS_KEY: "orders-app"}
    assert [after.code, after.flag, after.opaque, after.version, after.language, after.body] == [
        before.code, before.flag, before.opaque, before.version, before.language, before.body
    ]  # fmt: skip


# --- an account from anywhere -----------------------------------------------------------------------------------------


def test_the_secret_is_in_no_text() -> None:
    account = triomq.Credentials("orders-app", SECRET, "the token itself")
    assert repr(account) == str(account) == "Credentials(access_key='orders-app')"


async def test_the_secret_is_in_no_log_line(autojump_clock, caplog, cluster):
    caplog.set_level(logging.DEBUG)
    cluster.broker.script(RequestCode.SEND_MESSAGE_V2, lambda command: command.answer(1, "no"))
    async with cluster.client(credentials=ACCOUNT) as client:
        with pytest.raises(errors.BrokerFault) as caught:
            await client.producer("G", retry=triomq.plugins.Retries(1)).send(triomq.Message("T", b"plain"))
    assert SECRET not in caplog.text
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "values", [("", "s"), ("a", " "), (None, "s"), ("a", None), ("a", "s", ""), (1, "s"), ("a", b"the secret")]
)
def test_values_that_cannot_be_used(values: Any) -> None:
    with pytest.raises(errors.InvalidCall) as caught:
        triomq.Credentials(*values)
    assert "the secret" not in str(caught.value)


async def test_what_is_no_account_is_refused_without_being_shown(cluster):
    with pytest.raises(errors.InvalidCall, match=r"credentials is a tuple, not triomq\.Credentials"):
        async with cluster.client(credentials=("orders-app", SECRET)):
            pass


def test_from_the_environment(monkeypatch: Any) -> None:
    variables = {"ROCKETMQ_ACCESS_KEY": "app-name", "ROCKETMQ_SECRET_KEY": SECRET}
    assert triomq.Credentials.from_environment(variables) == triomq.Credentials("app-name", SECRET)
    with_token = {**variables, "ROCKETMQ_SECURITY_TOKEN": "t"}
    assert triomq.Credentials.from_environment(with_token) == triomq.Credentials("app-name", SECRET, "t")
    for name in variables:
        with pytest.raises(errors.InvalidCall, match=f"the environment variable {name} is not set"):
            triomq.Credentials.from_environment({**variables, name: ""})
        monkeypatch.setenv(name, variables[name])
    assert triomq.Credentials.from_environment().secret_key == SECRET


def test_help_shows_no_environment(monkeypatch):
    """Pages that are generated from signatures do not show them either."""
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", SECRET)
    shown = io.StringIO()
    pydoc.Helper(output=shown).help(triomq.Credentials)
    assert "from_environment(variables" in shown.getvalue()
    assert SECRET not in shown.getvalue()


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("accessKey: rocketmq2\nsecretKey: 12345678\n", ("rocketmq2", "12345678")),
        (
            "\ufeff# of the operator\r\n---\r\n\r\nsecretKey: 'a b#c'   # quoted\r\naccessKey: \"x: y\"\r\n",
            ("x: y", "a b#c"),
        ),
        ("accessKey:  a-1.b_2/c+d=@ # plain\nsecretKey:\tzz", ("a-1.b_2/c+d=@", "zz")),
        ("accessKey: '0123'\nsecretKey: 'true'", ("0123", "true")),
    ],
)
def test_from_a_file(tmp_path: Path, text: str, keys: tuple[str, str]) -> None:
    file = tmp_path / "tools.yml"
    file.write_bytes(text.encode())
    assert triomq.Credentials.from_file(file) == triomq.Credentials(*keys)
    assert triomq.Credentials.from_file(str(file)) == triomq.Credentials(*keys)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no accessKey and no secretKey"),
        ("accessKey: a", "has no secretKey"),
        ("accessKey: a\nsecretKey:\n", "secretKey in line 2 is empty"),
        ("accessKey: a\nsecretKey: # none", "secretKey in line 2 is empty"),
        ("accessKey: a\nsecretKey: ''", "secretKey in line 2 is empty"),
        ("accessKey: a\nsecretKey: HUSH1\nsecretKey: HUSH2", "line 3 gives secretKey again"),
        ("accessKey: a\nsecretKey: HUSH\nnamesrvAddr: HUSH", "line 3 is neither"),
        ("accessKey=a\nsecretKey=HUSH", "line 1 is neither"),
        (" accessKey: a\n secretKey: HUSH", "line 1 is neither"),
        ("accessKey: a\nsecretKey:HUSH", "line 2 is neither"),
        ("accessKey: a\nsecretKey: |\n  HUSH", "in quotes"),
        ("accessKey: a\nsecretKey: &x HUSH", "in quotes"),
        ("accessKey: a\nsecretKey: HUSH and more", "in quotes"),
        ('accessKey: a\nsecretKey: "HU\\u0053H"', "in quotes"),
        ("accessKey: a\nsecretKey: 'it''s HUSH'", "in quotes"),
        ("accessKey: a\nsecretKey: 'HUSH", "in quotes"),
        ("accessKey: a\nsecretKey: 0123", "in quotes"),
        ("accessKey: a\nsecretKey: 1e9", "in quotes"),
        ("accessKey: a\nsecretKey: 0x1F", "in quotes"),
        ("accessKey: a\nsecretKey: True", "in quotes"),
        ("accessKey: a\nsecretKey: 2026-11-22", "in quotes"),
        ("#" * 70_000, "more than 65536 bytes"),
        (b"accessKey: \xff", "it is not UTF-8"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str | bytes, why: str) -> None:
    file = tmp_path / "tools.yml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(errors.InvalidCall, match=why) as caught:
        triomq.Credentials.from_file(file)
    assert "tools.yml" in str(caught.value)
    assert "HUSH" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidCall, match="cannot be read: No such file"):
        triomq.Credentials.from_file(tmp_path / "none.yml")
    with pytest.raises(errors.InvalidCall, match="cannot be read: embedded null byte"):
        triomq.Credentials.from_file("a\0b")
