"""Groups' settings, clones of offsets, topics' permission and order, and traces by `triomq`, and at the brokers."""

# ruff: noqa: ASYNC110 - what is waited for happens in the broker

from __future__ import annotations

import json

import pytest
import trio

import triomq


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


async def send(client, topic, count):
    async with client.producer("fill") as producer:
        queues = await producer.queues(topic)
        for number in range(count):
            await producer.send(triomq.Message(topic, b"%d" % number), queue=queues[number % len(queues)])


async def commit_all(client, group, topic):
    async with client.pull_consumer(group) as consumer:
        for queue in await consumer.fetch_queues(topic):
            await consumer.commit(queue, await consumer.max_offset(queue))


async def test_settings_of_a_group(call, client):
    code, out, err = await call("groups", "G", "--create", "--max-retries", "3", "--no-broadcast", "--json")
    (row,) = rows(out)
    assert (code, err) == (0, "")
    assert (row["broker"], row["max_retries"], row["broadcast"], row["consume"]) == ("broker-a", 3, False, True)
    # What is not given stays.
    assert (await call("groups", "G", "--create", "--no-consume"))[0] == 0
    assert await client.groups.settings("G") == {
        "broker-a": triomq.admin.GroupSettings(max_retries=3, broadcast=False, consume=False)
    }
    code, out, _ = await call("groups", "G", "--settings")
    assert (code, out.splitlines()[1].split()) == (0, ["broker-a", "no", "no", "3", "1", "1", "yes"])

    await client.admin.create_topic("T")
    await send(client, "T", 1)
    async with client.pull_consumer("G") as consumer:
        queues = await consumer.fetch_queues("T")
        with pytest.raises(triomq.MQError, match=r"subscription group no permission"):
            await consumer.pull(queues[0], 0)


async def test_deleting_a_group(call, client):
    await client.admin.create_topic("T")
    await send(client, "T", 4)
    await client.groups.create("G")
    await commit_all(client, "G", "T")
    async with client.lite_pull_consumer("G") as consumer:
        await consumer.subscribe("T")
        code, out, err = await call("groups", "G", "--delete", "--yes")
        assert (code, out) == (2, "")
        assert "has members online" in err
    assert (await call("groups", "G", "--delete"))[2].count("give --yes") == 1
    assert await call("groups", "G", "--delete", "--yes") == (0, "deleted G\n", "")
    assert "G" not in await client.groups.names()
    code, _, err = await call("groups", "G", "--delete", "--yes")
    assert (code, "no broker knows the consumer group G" in err) == (1, True)
    await client.groups.create("G")
    assert not await client.groups.progress("G")
    with pytest.raises(triomq.MQError, match="system group"):
        await client.groups.delete("TOOLS_CONSUMER")


async def test_a_group_without_an_offset_in_a_queue_is_reset(call, client):
    await client.admin.create_topic("T", queues=3)
    await send(client, "T", 6)
    await client.groups.create("G")
    queues = [triomq.MessageQueue("T", "broker-a", number) for number in range(3)]
    await client.groups.set_offsets("G", {queues[0]: 2})
    code, out, err = await call("offsets", "reset", "G", "T", "latest", "--yes", "--json")
    assert (code, err) == (0, "")
    assert [(row["queue"], row["offset"]) for row in rows(out)] == [(0, 2), (1, 2), (2, 2)]
    # The topic gets queues while no member is online; later while a member is, which has not committed.
    await client.admin.create_topic("T", queues=5)
    assert [each.online for each in await client.groups.reset("G", "T", 0)] == [False] * 5
    await client.admin.create_topic("T", queues=6)
    async with client.lite_pull_consumer("G", auto_commit=False) as consumer:
        await consumer.subscribe("T")
        assert await consumer.poll()
        done = await client.groups.reset("G", "T", client.groups.END)
        assert [(each.queue.queue_id, each.offset, each.online) for each in done] == [
            (number, 2 if number < 3 else 0, True) for number in range(6)
        ]
    # A group that no broker knows is none that is new to a queue.
    with pytest.raises(triomq.MQError, match="consumer group <typo> not exist"):
        await client.groups.reset("typo", "T", 0)


async def test_cloning_offsets(call, client):
    await client.admin.create_topic("T", queues=2)
    await send(client, "T", 6)
    await client.groups.create("OLD")
    await client.groups.create("NEW")
    code, _, err = await call("offsets", "clone", "OLD", "NEW", "--yes")
    assert (code, "group OLD has no offsets to clone: it has never committed any" in err) == (1, True)
    await commit_all(client, "OLD", "T")
    code, out, _ = await call("offsets", "clone", "OLD", "NEW", "--dry-run", "--json")
    assert (code, [(row["queue"], row["offset"], row["how"]) for row in rows(out)]) == (
        0,
        [(0, 3, "would be set"), (1, 3, "would be set")],
    )
    assert not await client.groups.progress("NEW")
    assert (await call("offsets", "clone", "OLD", "NEW", "T", "--yes"))[0] == 0
    assert (await client.groups.progress("NEW")).lag == 0
    assert await client.groups.clone_offsets("OLD", "NEW", "T") == await client.groups.offsets_to_clone("OLD", "NEW")
    # In a topic that only the target has consumed, nothing is set back.
    await client.admin.create_topic("U", queues=1)
    await send(client, "U", 2)
    await commit_all(client, "NEW", "U")
    code, _, err = await call("offsets", "clone", "OLD", "NEW", "U", "--yes")
    assert (code, "group OLD has no offsets in topic U" in err) == (1, True)
    assert (await client.groups.progress("NEW", "U")).lag == 0
    code, _, err = await call("offsets", "clone", "OLD", "OLD", "--yes")
    assert (code, "both the group whose offsets are taken" in err) == (2, True)


async def test_permission_and_order_of_a_topic(call, client):
    async def shown(until):
        with trio.fail_after(60):
            while (found := (await client.admin.route("T")).queue_datas[0]) and not until(found):
                await trio.sleep(0.05)
        return found

    assert (await call("topics", "T", "--create", "--queues", "3"))[0] == 0
    assert (await call("topics", "T", "--create", "--perm", "4"))[0] == 0
    found = await shown(lambda data: data.perm == 4)
    assert (found.read_queue_nums, found.write_queue_nums) == (3, 3)  # as before
    code, _, err = await call("topics", "T", "--create", "--perm", "6", "--order")
    assert (code, "triomq name-servers set orderMessageEnable=true --yes" in err) == (0, True)
    assert (await shown(lambda data: data.perm == 6)).read_queue_nums == 3
    assert await client.servers.kv_get("ORDER_TOPIC_CONFIG", "T") == "broker-a:3"
    assert (await client.admin.route("T")).order_topic_conf is None
    assert (await call("name-servers", "set", "orderMessageEnable=true", "--yes"))[0] == 0
    code, _, err = await call("topics", "T", "--create", "--order")
    assert (code, "Warning" in err) == (0, False)
    assert (await client.admin.route("T")).order_topic_conf == "broker-a:3"
    assert (await call("topics", "T", "--create", "--no-order"))[0] == 0
    with pytest.raises(triomq.MQError):
        await client.servers.kv_get("ORDER_TOPIC_CONFIG", "T")
    code, _, err = await call("topics", "T", "--perm", "4")
    assert (code, "--perm belongs to --create" in err) == (2, True)


async def test_the_trace_of_a_message(call, cluster, client):
    code, out, err = await call("message", "trace", "nosuch")
    assert (code, out) == (1, "")
    assert "there is no topic RMQ_SYS_TRACE_TOPIC, so nothing has been traced" in err
    await client.admin.create_topic("T")
    async with triomq.open_client(cluster.name_servers, trace=True) as traced:
        async with traced.producer("P") as producer:
            sent = await producer.send(triomq.Message("T", b"x", keys="k"))
        async with traced.push_consumer("G", start_from="earliest") as consumer:
            await consumer.subscribe("T")
            async with await anext(consumer):
                pass
    # Closing the client has sent what it had written down.
    code, out, err = await call("message", "trace", sent.message_id, "--json")
    assert (code, err) == (0, "")
    assert [(row["kind"], row["group"], row["success"]) for row in rows(out)] == [
        ("Pub", "P", True), ("SubBefore", "G", None), ("SubAfter", "G", True),
    ]  # fmt: skip
    code, out, _ = await call("message", "trace", sent.message_id)
    assert (code, len(out.splitlines()), "topic T" in out) == (0, 4, True)
    code, _, err = await call("message", "trace", "nosuch")
    assert (code, "has no trace of the message nosuch" in err) == (1, True)


async def test_messages_that_are_no_traces_hide_none(call, client):
    await client.admin.create_topic("MINE")
    record = "SubBefore\x01%s\x01R\x01G\x01r\x01id-1\x010\x01k\x02"
    bodies = [
        b"\xff\x00",
        (record % ("9" * 5000)).encode(),
        b"\x02" * 2**20 + (record % 3).encode(),
        (record % 4).encode(),
    ]
    async with client.producer("anybody") as producer:
        for body in bodies:
            await producer.send(triomq.Message("MINE", body, keys="id-1"))
    with trio.fail_after(60):
        while len(await client.messages.by_key("MINE", "id-1")) < len(bodies):
            await trio.sleep(0.05)
    code, out, err = await call("message", "trace", "id-1", "--trace-topic", "MINE", "--json")
    assert (code, err) == (0, "")
    assert [(row["group"], row["time_ms"]) for row in rows(out)] == [("G", None), ("G", 4)]
