"""client.dead_letters and `triomq dlq`: what a group gave up is listed, and sent again, none lost."""

# ruff: noqa: ASYNC110 - what is waited for happens in the broker

from __future__ import annotations

import json

import pytest
import trio

import triomq
from triomq._admin.dead_letters import REDRIVE_GROUP
from triomq.errors import ConnectFailed, GroupNotFound, NotFound, PermissionDenied

LETTERS = 40


async def consume(client, group, topic, handle, until, **options):
    """Run a push consumer until a condition holds."""
    async with client.push_consumer(group, start_from="earliest", drain_s=1, **options) as consumer:
        await consumer.subscribe(topic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            with trio.fail_after(60):
                while not await until():
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()


@pytest.fixture
async def dead(client):
    """Group G gave up all messages of topic T."""
    await client.admin.create_topic("T", queues=1)
    async with client.producer("fill") as producer:
        for n in range(LETTERS):
            await producer.send(triomq.Message("T", b"m%d" % n, tags="t", keys=f"k{n}", properties={"n": str(n)}))

    async def refuse(message):
        await trio.lowlevel.checkpoint()
        raise ValueError("never")

    async def all_dead():
        return await client.dead_letters.count("G") == LETTERS

    retries = triomq.ConsumeRetries(max_times=0)
    await consume(client, "G", "T", refuse, all_dead, retries=retries)


async def test_dead_letters_are_listed(client, dead):
    letters = await client.dead_letters.read("G", limit=3)
    # They are sent back side by side.
    assert all(letter.message.body.startswith(b"m") for letter in letters)
    assert [letter.message.queue_offset for letter in letters] == [0, 1, 2]
    assert {(letter.origin_topic, letter.redriven) for letter in letters} == {("T", False)}
    assert (letters[0].message.tags, letters[0].message.topic) == ("t", "%DLQ%G")
    assert await client.dead_letters.count("nobody") == 0
    assert await client.dead_letters.read("nobody") == []
    assert (await client.dead_letters.at(letters[1].message.queue, 1)).message.body == letters[1].message.body
    origin = await client.messages.by_id(letters[0].origin_message_id)
    assert (origin.topic, origin.body) == ("T", letters[0].message.body)


async def test_redrive_to_the_origin_continues_where_it_was(client, dead):
    seen = []
    assert await client.dead_letters.redrive("G", limit=5, report=seen.append) == 5
    assert {each.result.queue.topic for each in seen} == {"T"}
    assert [each.letter.message.queue_offset for each in seen] == list(range(5))
    assert await client.dead_letters.count("G") == LETTERS - 5
    assert [letter.redriven for letter in await client.dead_letters.read("G", limit=6)] == [True] * 5 + [False]
    assert len(await client.dead_letters.read("G", limit=100, again=False)) == LETTERS - 5
    assert await client.dead_letters.redrive("G") == LETTERS - 5
    assert await client.dead_letters.redrive("G") == 0
    assert await client.dead_letters.redrive("G", again=True, limit=2) == 2
    # Nothing that was redriven counts as new again.
    assert await client.dead_letters.count("G") == 0
    async with client.pull_consumer("P") as consumer:
        (queue,) = await consumer.fetch_queues("T")
        found = []
        while len(found) < 2 * LETTERS + 2:
            found += list(await consumer.pull(queue, len(found)))
    copies = found[LETTERS : 2 * LETTERS]
    assert sorted(copy.body for copy in copies) == sorted(original.body for original in found[:LETTERS])
    originals = {original.body: original for original in found[:LETTERS]}
    for copy in copies:
        original = originals[copy.body]
        assert (copy.message_id, copy.keys, copy.tags) == (original.message_id, original.keys, original.tags)
        assert copy.properties["n"] == original.properties["n"]
        assert "RETRY_TOPIC" not in copy.properties
        assert copy.reconsume_times == 0


async def test_redrive_to_the_group_alone(client, dead):
    assert await client.dead_letters.redrive("G", to="group") == LETTERS
    seen = []

    async def handle(message):
        await trio.lowlevel.checkpoint()
        seen.append((message.topic, message.body, message.reconsume_times))

    async def all_seen():
        await trio.lowlevel.checkpoint()
        return len(seen) == LETTERS

    await consume(client, "G", "T", handle, all_seen)
    assert sorted(seen) == sorted(("T", b"m%d" % n, 0) for n in range(LETTERS))


async def test_what_was_sent_is_noted_when_a_redrive_ends_early(client, dead, monkeypatch):
    send_copy = client.messages.send_copy
    sent = []

    async def fail_later(message, topic, **options):
        if len(sent) == 7:
            raise ConnectFailed("gone", address="nowhere:1")
        sent.append(message.body)
        return await send_copy(message, topic, **options)

    monkeypatch.setattr(client.messages, "send_copy", fail_later)
    with pytest.raises(ConnectFailed):
        await client.dead_letters.redrive("G")
    assert await client.dead_letters.count("G") == LETTERS - 7
    monkeypatch.setattr(client.messages, "send_copy", send_copy)
    with trio.CancelScope() as scope:
        reported = []

        def report(redriven):
            reported.append(redriven)
            if len(reported) == 3:
                scope.cancel()

        await client.dead_letters.redrive("G", report=report)
    assert scope.cancelled_caught
    assert await client.dead_letters.count("G") == LETTERS - 10
    assert await client.dead_letters.redrive("G") == LETTERS - 10


async def test_what_was_sent_is_noted_when_the_report_fails(client, dead):
    """As when the output of `triomq dlq redrive` is closed."""
    reported = []

    def report(redriven):
        reported.append(redriven)
        if len(reported) == 3:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await client.dead_letters.redrive("G", report=report)
    assert await client.dead_letters.count("G") == LETTERS - 3


async def test_a_redrive_that_cannot_record_its_progress_sends_nothing(client, dead, monkeypatch):
    async def refuse(_offsets):
        await trio.lowlevel.checkpoint()
        raise PermissionDenied("committing offset 0 of group triomq_redrive")

    sent = []
    monkeypatch.setattr(client.dead_letters._progress, "commit", refuse)
    with pytest.raises(PermissionDenied):
        await client.dead_letters.redrive("G", report=sent.append)
    assert sent == []


async def test_the_group_for_progress_is_created_where_a_broker_requires_it(client, dead, monkeypatch):
    commit = client.dead_letters._progress.commit

    async def demand(offsets):
        if not await client.groups.settings(REDRIVE_GROUP):
            raise GroupNotFound("committing an offset")
        await commit(offsets)

    monkeypatch.setattr(client.dead_letters._progress, "commit", demand)
    assert await client.dead_letters.redrive("G", limit=2) == 2
    assert list(await client.groups.settings(REDRIVE_GROUP)) == ["broker-a"]
    assert await client.dead_letters.count("G") == LETTERS - 2


async def test_a_dead_letter_without_its_origin(client):
    async with client.producer("fill") as producer:
        await producer.send(triomq.Message("%DLQ%H", b"x"))
    with pytest.raises(NotFound, match="redrive it to the group"):
        await client.dead_letters.redrive("H")
    assert await client.dead_letters.count("H") == 1


async def test_the_command(call, dead):
    code, out, err = await call("dlq", "list")
    assert (code, out.splitlines()[1].split(), err) == (0, ["G", str(LETTERS), str(LETTERS)], "")
    code, out, err = await call("dlq", "list", "G", "-m", "2")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err == f"2 of {LETTERS} dead letters; --max shows more\n"
    code, out, _ = await call("dlq", "list", "G", "-m", "1", "--json")
    row = json.loads(out)
    assert (row["origin_topic"], row["reason"], row["redriven"]) == ("T", "failed, or took too long, 1 time", False)
    code, out, _ = await call("dlq", "show", "G", "broker-a:0", "0")
    assert (code, "origin topic       T" in out.splitlines()) == (0, True)
    code, out, _ = await call("dlq", "redrive", "G", "--dry-run", "--limit", "3")
    assert (code, out) == (0, "3 would go to T\n")
    code, _, err = await call("dlq", "redrive", "G")
    assert (code, "give --yes" in err) == (2, True)
    code, out, err = await call("dlq", "redrive", "G", "--limit", "3", "--yes")
    assert (code, out, err) == (0, "3 sent to T\n", "")
    code, out, _ = await call("dlq", "redrive", "G", "--to", "group", "--yes", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, [row["from_offset"] for row in rows]) == (0, list(range(3, LETTERS)))
    assert {row["topic"] for row in rows} == {"%RETRY%G"}
    code, out, _ = await call("dlq", "redrive", "G", "--yes")
    assert (code, out) == (0, "no dead letter was sent\n")
    code, _, err = await call("dlq", "redrive", "X", "--yes")
    assert (code, "no broker knows the consumer group X" in err) == (1, True)


async def test_a_group_without_dead_letters_is_reported(call, client):
    code, out, err = await call("dlq", "list")
    assert (code, out, err) == (0, "", "no group has dead letters\n")
    await client.groups.create("G", triomq.admin.GroupSettings())
    for options in ([], ["--json"], ["--new"]):
        code, out, err = await call("dlq", "list", "G", *options)
        assert (code, out, err.startswith("group G has no dead letters")) == (0, "", True)
    assert await call("dlq", "show", "G", "broker-a:0", "0") == (1, "", "Error: group G has no dead letters\n")
