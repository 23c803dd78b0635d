"""consume, groups and offsets, as people and scripts meet them."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest
import trio

import triomq


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
async def filled(client):
    """Topic T with ten messages in its first queue; their numbers are bodies and property n."""
    await client.admin.create_topic("T", queues=2)
    async with client.producer("fill") as producer:
        queue = (await producer.queues("T"))[0]
        return [
            await producer.send(
                triomq.Message("T", b"m%d" % n, tags="odd" if n % 2 else "even", properties={"n": str(n)}), queue=queue
            )
            for n in range(10)
        ]


async def test_consume_prints_the_chosen_messages(run, call, filled):
    code, out, err = await run("consume", "T", "--from", "earliest", "--until-end")
    assert (code, out.split(), err) == (0, [f"m{n}" for n in range(10)], "")
    assert (await call("consume", "T", "--from", "earliest", "-m", "2", "--tags", "odd"))[1].split() == ["m1", "m3"]
    assert (await call("consume", "T", "--from", "7", "--queue", "broker-a:0", "--until-end"))[1].split() == [
        "m7", "m8", "m9",
    ]  # fmt: skip
    assert (await call("consume", "T", "--from", "latest", "--until-end"))[1] == ""
    (row,) = rows((await call("consume", "T", "--from", "earliest", "--count", "1", "--json"))[1])
    assert (row["broker"], row["queue"], row["offset"], row["tags"], row["body"]) == ("broker-a", 0, 0, "even", "m0")
    later = await call("consume", "T", "--from", str(row["stored_ms"] + 3_600_000), "--until-end")
    assert later[1] == ""
    _, out, _ = await call(
        "consume", "T", "--from", "2026-01-01", "-m", "1", "--format", "{broker}:{queue} {offset} {tags}"
    )
    assert out == "broker-a:0 0 even\n"
    # Nothing of it was committed.
    assert (await call("offsets", "show", "TOOLS_CONSUMER"))[0] == 1


async def test_a_filter_that_brokers_refuse_is_one_clear_line(call, filled):
    # SQL92 is off in brokers unless enablePropertyFilter is set.
    code, out, err = await call("consume", "T", "--from", "earliest", "--until-end", "--sql", "n > 6 AND n < 9")
    assert (code, out) == (1, "")
    assert "does not support consumer to filter" in err
    assert "`triomq broker --set enablePropertyFilter=true`" in err
    assert "another broker may do" not in err
    code, _, err = await call("pull", "T", "--sql", "n > 6")
    assert (code, "`triomq broker --set enablePropertyFilter=true`" in err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "T", "--from", "earliest", "--queue", "broker-a:77"],  # without --until-end it would go on forever
        ["consume", "T", "--from", "3", "--until-end", "--queue", "vm:0"],
        ["pull", "T", "--queue", "broker-a:77"],
        ["send", "T", "x", "--queue", "broker-a:77"],
        ["offsets", "reset", "G", "T", "0", "--queue", "broker-a:77", "--yes"],
    ],
)
async def test_a_queue_that_does_not_exist_is_answered_by_those_that_do(call, filled, arguments):
    code, out, err = await call(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("Error: topic T has no queue ")
    assert err.endswith(", only broker-a:0 to broker-a:1\n")


async def test_an_unknown_topic_names_the_commands_about_topics(call, cluster):
    for command in ("consume", "pull", "topics"):
        code, out, err = await call(command, "nowhere")
        assert (code, out) == (1, "")
        assert "`triomq topics TOPIC --create`" in err


async def test_groups_that_no_broker_knows(call, filled):
    for arguments in (
        ["groups", "X"],
        ["offsets", "show", "X"],
        ["offsets", "show", "X", "T"],
        ["offsets", "reset", "X", "T", "earliest", "--yes"],
    ):
        code, out, err = await call(*arguments)
        assert (code, out) == (1, "")
        assert "; `triomq groups` lists groups" in err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["consume", "T", "--from", "yesterday"], "no time like"),
        (["consume", "T", "--format", "{x}", "--from", "earliest"], "fields: topic"),
        (["consume", "T", "--format", "{body}", "--json"], "either --format or --json"),
        (["consume", "T", "-g", "G", "--queue", "broker-a:0"], "either --queue or --group"),
        (["consume", "T", "-g", "G", "--from", "5"], "needs --queue"),
        (["consume", "T", "--tags", "||"], "names no tag"),
        (["offsets", "reset", "G", "T", "soon"], "no time like"),
        (["offsets", "reset", "G", "T", "latest", "--queue", "broker-a:0"], "needs an OFFSET"),
    ],
)
async def test_mistakes_are_one_clear_line(call, filled, arguments, what):
    code, out, err = await call(*arguments)
    assert (code, out) == (2, "")
    assert what in err
    assert "Traceback" not in err


async def test_a_group_consumes_and_shows_its_lag(call, filled):
    assert (await call("consume", "T", "-g", "G", "--from", "earliest", "-m", "4"))[1].split() == [
        "m0",
        "m1",
        "m2",
        "m3",
    ]
    code, out, _ = await call("offsets", "show", "G", "T", "--json")
    assert code == 0
    assert [(row["queue"], row["committed"], row["end"], row["lag"]) for row in rows(out)] == [
        (0, 4, 10, 6), (1, 0, 0, 0),
    ]  # fmt: skip
    assert "lag in all" in (await call("offsets", "show", "G"))[1]
    assert (await call("consume", "T", "-g", "G", "--until-end"))[1].split() == [f"m{n}" for n in range(4, 10)]
    _, out, _ = await call("groups", "--json")
    (row,) = [row for row in rows(out) if row["group"] == "G"]
    assert (row["members"], row["lag"], row["topics"]) == (0, 0, ["T"])
    assert "no member is online" in (await call("groups", "G"))[1]
    code, _, err = await call("groups", "unknown-group")
    assert code == 1
    assert "no broker knows the consumer group unknown-group" in err


async def test_offsets_of_a_group_that_is_offline(call, filled):
    await call("consume", "T", "-g", "G", "--from", "earliest", "--until-end")
    code, out, err = await call("offsets", "reset", "G", "T", "earliest", "--json", "--yes")
    assert (code, err) == (0, "")
    assert {(row["queue"], row["offset"], row["how"]) for row in rows(out)} == {
        (0, 0, "set at its broker (no member is online)"), (1, 0, "set at its broker (no member is online)"),
    }  # fmt: skip
    _, out, _ = await call("offsets", "reset", "G", "T", "2", "--queue", "broker-a:0", "--yes")
    assert [line.split(maxsplit=3) for line in out.splitlines()] == [
        ["BROKER", "QUEUE", "OFFSET", "HOW"],
        ["broker-a", "0", "2", "set at its broker (no member is online)"],
    ]
    await call("offsets", "reset", "G", "T", "6", "--queue", "broker-a:0", "--yes")
    assert (await call("consume", "T", "-g", "G", "--until-end"))[1].split() == ["m6", "m7", "m8", "m9"]
    code, _, _ = await call("offsets", "reset", "to-come", "T", "3", "--queue", "broker-a:0", "--yes")
    assert code == 0
    assert (await call("consume", "T", "-g", "to-come", "--until-end"))[1].split()[0] == "m3"
    code, _, err = await call("offsets", "reset", "G", "T", "11", "--queue", "broker-a:0", "--yes")
    assert (code, "only 0 to 10" in err) == (1, True)
    await call("offsets", "reset", "G", "T", "2026-01-01T00:00", "--yes")
    assert len((await call("consume", "T", "-g", "G", "--until-end"))[1].split()) == 10
    await call("offsets", "reset", "G", "T", "earliest", "--yes")
    await call("offsets", "reset", "G", "T", "latest", "--yes")
    assert (await call("consume", "T", "-g", "G", "--until-end"))[1] == ""


@pytest.mark.slow
async def test_offsets_of_a_group_that_is_online(call, filled, client):
    seen = []

    async def handle(message):
        await trio.lowlevel.checkpoint()
        seen.append(message.body)

    async with client.push_consumer("G", start_from="earliest", drain_s=1) as consumer, trio.open_nursery() as nursery:
        await consumer.subscribe("T")
        nursery.start_soon(consumer.run, handle)
        with trio.fail_after(120):
            while len(seen) < 10:  # noqa: ASYNC110 - the handler is what is waited for
                await trio.sleep(0.1)
        code, out, _ = await call("groups", "G")
        assert code == 0
        assert f"member {client.client_id}" in out
        _, listed, _ = await call("groups", "--json")
        assert [row["members"] for row in rows(listed) if row["group"] == "G"] == [1]
        assert "subscribes T: * (TAG)" in out
        code, _, err = await call("offsets", "reset", "G", "T", "3", "--yes")
        assert (code, "has members online" in err) == (2, True)
        code, out, _ = await call("offsets", "reset", "G", "T", "earliest", "--yes")
        assert code == 0
        assert "its members were notified" in out
        # They take ten seconds, so that handlers under way can end.
        with trio.fail_after(120):
            while len(seen) < 20:  # noqa: ASYNC110
                await trio.sleep(0.1)
        consumer.drain()
    assert sorted(seen) == sorted([b"m%d" % n for n in range(10)] * 2)


async def test_an_interrupted_look_ends_silently(cluster, filled):
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "triomq", "consume", "T", "--from", "earliest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NAMESRV_ADDR": cluster.name_servers},
        # A shell's background jobs ignore SIGINT, and so would whatever they start.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    received = b""
    with trio.fail_after(120):
        while received.count(b"\n") < 10:
            received += await process.stdout.receive_some()
        process.send_signal(signal.SIGINT)
        said = b"".join([part async for part in process.stderr])
        assert (await process.wait(), said) == (130, b"")
        assert await process.stdout.receive_some() == b""
    await process.stdout.aclose()
    await process.stderr.aclose()


@pytest.mark.parametrize(
    ("number", "sigint"),
    [(signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)],
)
async def test_a_group_that_is_ended_has_committed_what_it_printed(cluster, filled, client, number, sigint):
    """Also in a background job of a script, which ignores SIGINT."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "triomq", "consume", "T", "--group", "G", "--from", "earliest"],
        stdout=subprocess.PIPE,
        env={**os.environ, "NAMESRV_ADDR": cluster.name_servers},
        preexec_fn=functools.partial(set_signals, sigint),
    )
    assert process.stdout is not None
    received = b""
    with trio.fail_after(120):
        while received.count(b"\n") < 10:
            received += await process.stdout.receive_some()
        # When this one comes the others count as consumed, since they were polled before it.
        async with client.producer("last") as producer:
            await producer.send(triomq.Message("T", b"last"), queue=filled[0].queue)
        while b"last" not in received:
            received += await process.stdout.receive_some()
        process.send_signal(number)
        assert await process.wait() == 128 + number
    await process.stdout.aclose()
    lag = (await client.groups.progress("G")).lag
    assert lag is not None
    assert lag <= 1


def set_signals(sigint):
    """In the child: a shell's background jobs ignore SIGINT, those of nohup SIGHUP, and so would whatever they start."""
    signal.signal(signal.SIGINT, sigint)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
