"""`triomq brokers` and `triomq kv`: brokers' state and settings, name servers' pairs and write permissions."""

# ruff: noqa: ASYNC110 - what is waited for happens in the broker

from __future__ import annotations

import json

import trio

import triomq


def table(text):
    return {row["key"]: row["value"] for row in map(json.loads, text.splitlines())}


async def test_status_and_settings(call, cluster):
    code, out, err = await call("brokers", "status", "broker-a", "--json")
    assert (code, err, table(out)["brokerVersionDesc"]) == (0, "", "V4_9_7")
    code, out, _ = await call("brokers", "config", "broker-a:1", "brokerRole")
    assert (code, out) == (0, "brokerRole=SLAVE\n")
    code, out, _ = await call("brokers", "config", cluster["broker-a"].address, "--json")
    assert (code, table(out)["brokerRole"]) == (0, "ASYNC_MASTER")
    assert await call("brokers", "set", "broker-a", "fileReservedTime=48", "--yes") == (0, "fileReservedTime=48\n", "")
    assert (await call("brokers", "config", "broker-a", "fileReservedTime"))[1] == "fileReservedTime=48\n"
    for same in ("48", "048", "+48"):
        code, out, _ = await call("brokers", "set", "broker-a", f"fileReservedTime={same}", "--yes")
        assert (code, out) == (0, "the broker has these values already\n"), same


async def test_settings_that_take_effect_at_the_next_start(call, cluster, caplog):
    remark = "has the settings, and remarks: maxConnections=5000 takes effect at the next start"
    assert (await call("brokers", "set", "broker-a", "maxConnections=5000", "--yes"))[:2] == (
        0,
        "maxConnections=5000\n",
    )
    assert (await call("name-servers", "set", "maxConnections=5000", "--yes"))[0] == 0
    lines = [line for line in caplog.messages if remark in line]
    assert [line.split()[0] for line in lines] == [cluster["broker-a"].address, cluster.name_servers]


async def test_mistakes(call, cluster):
    for arguments, status, what in (
        (["brokers", "status", "vm"], 1, "broker vm is not registered; known: broker-a:0, broker-a:1"),
        (["brokers", "status", "broker-a:7"], 1, "broker broker-a:7 is not registered"),
        (["brokers", "status", "broker-a:" + "7" * 5000], 1, "is not registered"),
        (["brokers", "config", "broker-a", "nosuch"], 1, "has no setting nosuch"),
        (["brokers", "set", "broker-a", "fileReservedTimes=1", "--yes"], 2, "has no setting fileReservedTimes"),
        (["brokers", "set", "broker-a", "fileReservedTime=soon", "--yes"], 1, "fileReservedTime"),
        (["brokers", "set", "broker-a", "x", "--yes"], 2, "is not KEY=VALUE"),
        (["brokers", "set", "broker-a", "fileReservedTime=1"], 2, "give --yes"),
        (["brokers", "write-permission", "vm", "off", "--yes"], 1, "broker vm is not registered"),
        (["kv", "put", " ", "k", "v"], 2, "the namespace is blank"),
        (["kv", "put", "N", "", "v"], 2, "the key is blank"),
        (["message", "at", "TBW102", "broker-a:99", "0"], 1, "has no queue broker-a:99, only broker-a:0 to broker-a:7"),
        (["message", "time", "TBW102", "vm:0", "2026-01-01"], 1, "has no queue vm:0, only broker-a:0 to"),
        (["kv", "get", "N", "k"], 1, "key k of namespace N"),
    ):
        code, out, err = await call(*arguments)
        assert (code, out, what in err) == (status, "", True), (arguments, err)


async def test_pairs_write_permission_producers_and_cleaning(call, client, cluster):
    assert (await call("kv", "put", "ORDER_TOPIC_CONFIG", "T", "broker-a:4"))[0] == 0
    assert (await call("kv", "get", "ORDER_TOPIC_CONFIG", "T"))[1] == "T=broker-a:4\n"
    assert (await call("kv", "get", "ORDER_TOPIC_CONFIG"))[1] == "T=broker-a:4\n"
    assert (await call("kv", "delete", "ORDER_TOPIC_CONFIG", "T", "--yes"))[0] == 0
    assert (await call("kv", "get", "ORDER_TOPIC_CONFIG"))[1:] == ("", "namespace ORDER_TOPIC_CONFIG has no keys\n")
    assert (await call("brokers", "producers", "broker-a"))[1:] == ("", "no producer is connected to broker-a\n")

    await client.admin.create_topic("T")

    async def permissions():
        return {data.perm for data in (await client.admin.route("T")).queue_datas or []}

    assert (await call("brokers", "write-permission", "broker-a", "off", "--yes"))[0] == 0
    assert await permissions() == {4}
    # What name servers have removed is not stored in the topic.
    assert (await call("topics", "T", "--create", "--queues", "9"))[0] == 0
    assert await permissions() == {6}
    assert (await call("brokers", "write-permission", "broker-a", "off", "--yes"))[0] == 0
    assert (await call("brokers", "write-permission", "broker-a", "on", "--yes"))[0] == 0
    assert await permissions() == {6}

    async with (
        triomq.open_client(cluster.name_servers, heartbeat_every_s=0.1) as other,
        other.producer("fill") as producer,
    ):
        await producer.send(triomq.Message("T", b"x"))
        with trio.fail_after(60):
            while "fill" not in (await client.servers.producers("broker-a")).data:
                await trio.sleep(0.02)
        code, out, _ = await call("brokers", "producers", "broker-a", "--json")
        rows = [json.loads(line) for line in out.splitlines()]
        assert (code, [row["client"] for row in rows if row["group"] == "fill"]) == (0, [other.client_id])
    for what in ("queues", "topics", "log"):
        assert (await call("brokers", "clean", "broker-a", what, "--yes"))[0] == 0
