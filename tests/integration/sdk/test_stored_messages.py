"""client.messages and `triomq message`: stored messages are found in every way, tracked, and consumed again."""

# ruff: noqa: ASYNC110 - what is waited for happens in the broker

from __future__ import annotations

import base64
import json

import pytest
import trio

import triomq
from triomq.errors import BrokerFault, GroupNotFound, InvalidCall, NotFound


@pytest.fixture
async def stored(client):
    """Topic T with ten messages in its first queue, and what the broker answered."""
    await client.admin.create_topic("T", queues=2)
    async with client.producer("fill") as producer:
        queue = (await producer.queues("T"))[0]
        return [
            await producer.send(
                triomq.Message("T", b"m%d" % n, tags="odd" if n % 2 else "even", keys=["all", f"k{n}"]), queue=queue
            )
            for n in range(10)
        ]


async def until_indexed(client, key, count):
    """The index follows the log."""
    with trio.fail_after(60):
        while len(found := await client.messages.by_key("T", key)) < count:
            await trio.sleep(0.02)
    return found


async def test_found_by_id_key_place_and_time(client, stored):
    third = stored[3]
    found = await client.messages.by_id(third.offset_message_id)
    assert (found.body, found.queue, found.queue_offset) == (b"m3", third.queue, 3)
    assert found.offset_message_id == third.offset_message_id
    everything = await until_indexed(client, "all", 10)
    assert [each.body for each in everything] == [b"m%d" % n for n in range(10)]
    assert [each.body for each in await client.messages.by_key("T", "k3")] == [b"m3"]
    assert await client.messages.by_key("T", "k") == []
    (found,) = await client.messages.by_unique_key("T", third.message_id)
    assert (found.body, found.queue) == (b"m3", third.queue)
    assert (await client.messages.at(third.queue, 3)).body == b"m3"
    with pytest.raises(NotFound, match="no message at offset 10; it has 0 up to, not including, 10"):
        await client.messages.at(third.queue, 10)
    await client.admin.create_topic("EMPTY", queues=1)
    (empty,) = await client.pull_consumer("empty").fetch_queues("EMPTY")
    with pytest.raises(NotFound, match="no message at offset 0; it is empty, its next offset is 0"):
        await client.messages.at(empty, 0)
    times = [each.stored_ms for each in everything]
    late = await client.messages.by_key("T", "all", start_ms=times[-1])
    assert [each.stored_ms for each in late] == [time for time in times if time >= times[-1]]
    early = await client.messages.by_key("T", "all", end_ms=times[0])
    assert [each.stored_ms for each in early] == [time for time in times if time <= times[0]]
    since = await client.messages.by_time(third.queue, times[5], max_messages=100)
    assert [each.stored_ms for each in since] == [time for time in times if time >= times[5]]
    assert await client.messages.by_time(third.queue, times[-1] + 60_000) == []
    assert len(await client.messages.by_time(third.queue, 0, max_messages=2)) == 2


async def test_what_is_no_id_or_not_stored(client, stored):
    with pytest.raises(InvalidCall, match=r"is not an offset message id, which .* by_unique_key"):
        await client.messages.by_id("soon")
    first = stored[0].offset_message_id
    for behind in (7, 1 << 40):
        offset = int(first[16:], 16) + behind
        with pytest.raises(NotFound, match="is not stored"):
            await client.messages.by_id(f"{first[:16]}{offset:016X}")
    assert await client.messages.by_unique_key("T", "unknown") == []
    with pytest.raises(InvalidCall, match="no blanks"):
        await client.messages.by_key("T", "a b")


async def test_only_brokers_of_the_cluster_are_asked(client, stored):
    """An id contains an address, and any client can invent one."""
    first = stored[0].offset_message_id
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        port = listener.socket.getsockname()[1]
        made_up = f"7F000001{port:08X}{first[16:]}"
        with pytest.raises(InvalidCall, match=f"address 127.0.0.1:{port}, which is that of no broker of this cluster"):
            await client.messages.by_id(made_up)
        with trio.move_on_after(0):
            await listener.accept()
            raise AssertionError("somebody has connected")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def accept():
                    async with await listener.accept():
                        pass

                with pytest.raises(triomq.MQError):
                    await client.messages.by_id(made_up, any_address=True)


async def test_tracks_and_consuming_again(client, cluster, stored):
    seen = []
    third = await client.messages.by_id(stored[3].offset_message_id)

    async def handle(message):
        await trio.lowlevel.checkpoint()
        seen.append((message.topic, message.body))
        if message.body == b"m9":
            raise ValueError("not this one")

    async with (
        client.push_consumer("G", start_from="earliest", drain_s=1) as consumer,
        client.pull_consumer("P") as puller,
    ):
        await consumer.subscribe("T", "even")
        puller.seek(third.queue, 1)
        await puller.commit(third.queue)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            with trio.fail_after(60):
                while len(seen) < 5:
                    await trio.sleep(0.02)
                # Members commit every 5 s.
                while True:
                    tracks = {each.group: each.track for each in await client.messages.tracks(third)}
                    if tracks.get("G") is triomq.admin.TrackType.CONSUMED_BUT_FILTERED:
                        break
                    await trio.sleep(0.1)
            assert tracks == {"G": triomq.admin.TrackType.CONSUMED_BUT_FILTERED, "P": triomq.admin.TrackType.PULL}
            second = await client.messages.by_id(stored[2].offset_message_id)
            assert {each.group: each.track.value for each in await client.messages.tracks(second)}["G"] == "CONSUMED"

            result = await client.messages.consume_directly(third, "G", client.client_id)
            assert result.consume_result == "CR_SUCCESS"
            assert seen[-1] == ("T", b"m3")
            ninth = await client.messages.by_id(stored[9].offset_message_id)
            result = await client.messages.consume_directly(ninth, "G", client.client_id)
            assert result.consume_result == "CR_THROW_EXCEPTION"
            with pytest.raises(BrokerFault, match="not online"):
                await client.messages.consume_directly(third, "G", "nobody")

            sent = await client.messages.resend(third, "G")
            assert (sent.queue.topic, sent.message_id) == ("%RETRY%G", third.message_id)
            with trio.fail_after(60):
                while seen[-1] != ("T", b"m3") or len(seen) < 8:
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    # Its members are gone now.
    with trio.fail_after(60):
        while (await client.messages.tracks(third))[0].track is not triomq.admin.TrackType.NOT_ONLINE:
            await trio.sleep(0.05)
    with pytest.raises(GroupNotFound, match="no broker knows the consumer group X"):
        await client.messages.resend(third, "X")


async def test_without_await(cluster):
    def work() -> bytes:
        with triomq.blocking.open_client(cluster.name_servers) as client:
            client.admin.create_topic("B")
            with client.producer("p") as producer:
                sent = producer.send(triomq.Message("B", b"x"))
            return client.messages.by_id(sent.offset_message_id).body

    assert await trio.to_thread.run_sync(work) == b"x"


async def test_the_command(call, client, stored):
    third = stored[3]
    code, out, err = await call("message", "id", third.offset_message_id)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "stored at          broker-a:0 offset 3" in lines
    assert "body               m3" in lines
    assert lines[-1] == "group              none consumes the topic"
    code, out, err = await call("message", "id", third.offset_message_id, "--json")
    row = json.loads(out)
    assert (code, row["body"], row["queue"], row["offset"]) == (0, "m3", 0, 3)
    assert row["physical_offset"] == int(third.offset_message_id[16:], 16)
    assert (row["broker"], row["tracks"], row["message_id"]) == ("broker-a", [], third.message_id)
    await until_indexed(client, "all", 10)
    for arguments, bodies in (
        (["unique-key", "T", third.message_id], ["m3"]),
        (["key", "T", "all"], [f"m{n}" for n in range(10)]),
        (["at", "T", "broker-a:0", "4"], ["m4"]),
        (["time", "T", "broker-a:0", "2020-01-01", "-m", "3"], ["m0", "m1", "m2"]),
    ):
        code, out, err = await call("message", *arguments, "--json")
        assert (code, err, [json.loads(line)["body"] for line in out.splitlines()]) == (0, "", bodies)


async def test_the_command_names_what_does_not_exist(call, stored):
    for arguments, what in (
        (["key", "T", "nokey"], "no message of topic T in that time has the key nokey"),
        (["unique-key", "T", "X"], "no message of topic T has the id X"),
        (["at", "T", "broker-a:0", "99"], "no message at offset 99"),
        (["time", "T", "broker-a:0", "2100-01-01"], "stored no message in that time"),
        (["key", "nowhere", "k"], "no route to topic nowhere"),
        (["resend", stored[0].offset_message_id, "X", "--yes"], "no broker knows the consumer group X"),
    ):
        code, out, err = await call("message", *arguments)
        assert (code, out) == (1, ""), err
        assert what in err
    code, _, err = await call("message", "resend", stored[0].offset_message_id, "G")
    assert (code, "give --yes" in err) == (2, True)


async def test_bytes_that_are_no_text(call, client):
    await client.admin.create_topic("T", queues=1)
    async with client.producer("fill") as producer:
        sent = await producer.send(triomq.Message("T", b"\xff\x00"))
    _, out, _ = await call("message", "id", sent.offset_message_id, "--json")
    row = json.loads(out)
    assert (row["body"], base64.b64decode(row["body_base64"])) == (None, b"\xff\x00")
