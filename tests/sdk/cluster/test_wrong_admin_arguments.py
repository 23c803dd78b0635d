"""Administrative calls with arguments of the wrong type: a named error, nothing sent, and the client continues."""

from __future__ import annotations

from functools import partial

import pytest

import triomq
from triomq import errors

Q = triomq.MessageQueue("T", "broker-a", 0)
ACCOUNT = {"access_key": "accountant", "secret_key": "12345678"}

WRONG = {
    "admin": [
        ("create_topic", {"topic": "N", "perm": "rw"}),
        ("create_topic", {"topic": "N", "perm": True}),
        ("create_topic", {"topic": "N", "brokers": 1}),
        ("create_topic", {"topic": "N", "brokers": "broker-a"}),
        ("create_topic", {"topic": "N", "cluster": []}),
        ("delete_topic", {"topic": "N", "cluster": {}}),
    ],
    "groups": [
        ("create", {"group": "G", "settings": 1}),
        ("create", {"group": "G", "brokers": 1}),
        ("is_system_group", {"group": None}),
        ("progress", {"group": "G", "topic": 1}),
        ("clone_offsets", {"source": "G", "target": "H", "topic": 1}),
        ("running_info", {"group": 1, "client_id": "c"}),
        ("running_info", {"group": "G", "client_id": 1}),
        ("reset", {"group": "G", "topic": [], "time_ms": 0}),
        ("reset", {"group": "G", "topic": "T", "time_ms": "now"}),
        ("set_offsets", {"group": "G", "offsets": [Q]}),
        ("set_offsets", {"group": "G", "offsets": {"T": 1}}),
    ],
    "messages": [
        ("by_id", {"offset_message_id": None}),
        ("by_key", {"topic": "T", "key": 1}),
        ("by_key", {"topic": "T", "key": "k", "start_ms": "0"}),
        ("by_key", {"topic": "T", "key": "k", "end_ms": "0"}),
        ("by_unique_key", {"topic": "T", "key": 1}),
        ("trace", {"message_id": 1}),
        ("trace", {"message_id": "m", "trace_topic": []}),
        ("at", {"queue": 0, "offset": 0}),
        ("entries", {"queue": "T", "offset": 0}),
        ("page", {"queue": None, "offset": 0}),
        ("page", {"queue": Q, "offset": "0"}),
        ("page", {"queue": Q, "offset": 0, "max_messages": None}),
        ("by_time", {"queue": Q, "start_ms": 0, "end_ms": "0"}),
        ("tracks", {"message": "m"}),
        ("consume_directly", {"message": "m", "group": "G", "client_id": "c"}),
        ("resend", {"message": "m", "group": "G"}),
        ("send_copy", {"message": "m", "topic": "T"}),
    ],
    "dead_letters": [
        ("at", {"queue": 0, "offset": 0}),
        ("redrive", {"group": "G", "report": 1}),
    ],
    "servers": [
        ("address_of", {"broker": 1}),
        ("clean", {"broker": "broker-a", "what": []}),
        ("set_config", {"broker": "broker-a", "settings": None}),
        ("set_config", {"broker": "broker-a", "settings": {"a": 1}}),
        ("set_write_permission", {"broker_name": [], "allowed": True}),
        ("name_server_config", {"name_servers": [1]}),
        ("name_server_config", {"name_servers": "ns:9876"}),
        ("set_name_server_config", {"settings": {"a": "b"}, "name_servers": [1]}),
        ("kv_list", {"namespace": 1}),
        ("kv_get", {"namespace": 1, "key": "k"}),
        ("kv_get", {"namespace": "n", "key": 1}),
        ("kv_put", {"namespace": 1, "key": "k", "value": "v"}),
        ("kv_put", {"namespace": "n", "key": 1, "value": "v"}),
        ("kv_put", {"namespace": "n", "key": "k", "value": 1}),
        ("kv_put", {"namespace": "n", "key": "k", "value": "half \udcff"}),
        ("kv_delete", {"namespace": "n", "key": "half \udcff"}),
        ("kv_delete", {"namespace": 1, "key": "k"}),
        ("kv_delete", {"namespace": "n", "key": 1}),
    ],
    "accounts": [
        ("list", {"broker": 1}),
        ("put", {"account": "accountant"}),
        ("put", {"account": triomq.admin.Account(**{**ACCOUNT, "secret_key": 12345678})}),
        ("put", {"account": triomq.admin.Account(**ACCOUNT, topic_perms=["T"])}),
        ("put", {"account": triomq.admin.Account(**ACCOUNT, topic_perms={1: "PUB"})}),
        ("put", {"account": triomq.admin.Account(**ACCOUNT, default_topic_perm=[])}),
        ("put", {"account": triomq.admin.Account(**ACCOUNT, white_address=1)}),
        ("delete", {"access_key": 1}),
        ("delete", {"access_key": "accountant\udcff"}),
        ("put", {"account": triomq.admin.Account(**{**ACCOUNT, "secret_key": "secret of \udcff"})}),
        ("delete", {"access_key": "accountant", "brokers": "broker-a"}),
        ("set_white_list", {"addresses": "10.0.0.1"}),
        ("set_white_list", {"addresses": [1]}),
        ("set_white_list", {"addresses": [], "path": 1}),
    ],
    "doctor": [
        ("findings", {"limits": 1}),
        ("look", {"timeout_s": "1"}),
        ("look", {"progress": 1}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "method", "arguments"),
    [
        pytest.param(part, method, arguments, id=f"{part}-{method}-{number}")
        for part, calls in WRONG.items()
        for number, (method, arguments) in enumerate(calls)
    ],
)
async def test_arguments_of_wrong_types(autojump_clock, cluster, part, method, arguments):
    async with cluster.client() as client:
        call = partial(getattr(getattr(client, part), method), **arguments)
        with pytest.raises(errors.InvalidCall):
            await call()
        # By the look-ups of names alone, if anything was asked at all.
        assert not cluster.broker.seen
        assert await client.admin.topics() == ["T"]


async def test_an_address_of_a_wrong_type_does_not_end_the_client(autojump_clock, cluster):
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidCall, match="the address is int, not text"):
            await client._links.get(1)
        assert await client.admin.topics() == ["T"]
