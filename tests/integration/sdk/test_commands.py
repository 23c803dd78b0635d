"""The command line as people and scripts meet it."""

from __future__ import annotations

import fcntl
import json
import shlex
import signal
import subprocess
import sys
import termios
from functools import partial

import pytest
import trio

import triomq
from triomq._cli.messages import _lines

TRIOMQ = [sys.executable, "-m", "triomq"]


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


async def test_send_and_pull(run, call):
    code, out, err = await run("send", "T", "hello wörld", "--tags", "a", "--keys", "k1 k2", "-p", "u=v", "--json")
    assert (code, err) == (0, "")
    (sent,) = rows(out)
    assert sent["status"] == "SEND_OK"
    code, out, err = await run(
        "send", "T", "-", "--queue", f"{sent['broker']}:{sent['queue']}", stdin=b"two\n\nthree\n"
    )
    assert (code, err) == (0, "1 empty line not sent: a message has at least one byte\n")
    assert out.count("SEND_OK") == 2
    code, out, err = await run("pull", "T", "--json")
    assert (code, err) == (0, "")
    pulled = rows(out)
    assert [row["body"] for row in pulled] == ["hello wörld", "two", "three"]
    assert pulled[0]["message_id"] == sent["message_id"]
    assert (pulled[0]["tags"], pulled[0]["keys"], pulled[0]["properties"]["u"]) == ("a", ["k1", "k2"], "v")
    assert (await call("pull", "T", "-m", "1"))[1] == "hello wörld\n"
    assert (await call("pull", "T", "--tags", "a"))[1] == "hello wörld\n"
    assert (await call("pull", "T", "--from", "latest"))[1] == ""
    assert (await call("pull", "T", "--from", "committed", "--commit", "-m", "2"))[1] == "hello wörld\ntwo\n"
    assert (await call("pull", "T", "--from", "committed"))[1] == "three\n"


async def test_files_and_bytes_that_are_no_text(run, call, tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(b"\x89PNG\n\xff\n")
    assert (await call("send", "T", "--file", str(path)))[0] == 0
    assert (await run("send", "T", "--file", "-", stdin=b"two\n\nlines\n"))[0] == 0
    assert (await call("send", "T", "\\xff"))[0] == 0
    for command in (["pull", "T"], ["consume", "T", "--from", "earliest", "--until-end"]):
        found = {(row["body"], row.get("body_base64")) for row in rows((await call(*command, "--json"))[1])}
        assert found == {(None, "iVBORwr/Cg=="), ("two\n\nlines\n", None), ("\\xff", None)}
    path.write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    code, out, err = await call("send", "T", "--file", str(path))
    assert (code, out) == (1, "")
    assert "more than 4194304" in err
    code, out, err = await run("send", "T", "--file", str(tmp_path / "nowhere"))
    assert (code, out) == (1, "")
    assert "No such file" in err


async def test_topics_and_cluster(call):
    code, out, err = await call("topics", "made", "--create", "--queues", "2", "--json")
    assert (code, err) == (0, "")
    assert [(row["queue"], row["max_offset"]) for row in rows(out)] == [(0, 0), (1, 0)]
    assert "made" in (await call("topics"))[1].split()
    assert (await call("topics", "made", "--delete", "--yes"))[0] == 0
    assert "made" not in (await call("topics"))[1].split()
    code, out, _ = await call("cluster-status", "--json")
    assert code == 0
    assert [(row["broker"], row["id"]) for row in rows(out)] == [("broker-a", 0), ("broker-a", 1)]


async def test_topics_are_listed_with_a_header_queues_and_rights(call, client):
    await client.admin.create_topic("orders", queues=2)
    await client.admin.create_topic("archive", read_queues=4, write_queues=2, perm=4)
    code, out, _ = await call("topics")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["TOPIC", "QUEUES", "PERM", "BROKERS"],
        ["archive", "4/2", "R--", "broker-a"],
        ["orders", "2", "RW-", "broker-a"],
    ]
    (row,) = [row for row in rows((await call("topics", "--json"))[1]) if row["topic"] == "archive"]
    assert row == {"topic": "archive", "read_queues": 4, "write_queues": 2, "perm": ["R--"], "brokers": ["broker-a"]}
    assert {"TBW102", "broker-a", "orders"} <= {
        row["topic"] for row in rows((await call("topics", "--all", "--json"))[1])
    }
    header, first, second = (await call("topics", "orders"))[1].splitlines()
    assert header.split() == ["BROKER", "QUEUE", "FIRST", "END", "PERM"]
    assert [first.split(), second.split()] == [["broker-a", each, "0", "0", "RW-"] for each in ("0", "1")]


async def test_a_topic_is_deleted_only_with_yes_and_only_if_there_is_one(call, client):
    await client.admin.create_topic("orders", queues=4)
    code, out, err = await call("topics", "orders", "--delete")
    assert (code, out) == (2, "")
    assert "deletes topic orders and its messages, and there is no terminal to ask on: give --yes" in err
    code, out, err = await call("topics", "orders", "--create", "--queues", "2")
    assert (code, out) == (2, "")
    assert "reduces topic orders (4 queues RW- on broker-a) to 2 queues per broker" in err
    assert [each.write_queue_nums for each in (await client.admin.route("orders")).queue_datas] == [4]
    code, out, err = await call("topics", "nope", "--delete", "--yes")
    assert (code, out) == (1, "")
    assert "there is no topic nope" in err
    assert (await call("topics", "orders", "--create", "--queues", "2", "--yes"))[0] == 0
    assert (await call("topics", "orders", "--delete", "--yes"))[:2] == (0, "deleted orders\n")


async def test_a_topic_of_a_broker_set_without_master_is_not_deleted(call, client, cluster):
    await client.admin.create_topic("orders")
    await cluster["broker-a"].stop()
    code, out, err = await call("topics", "orders", "--delete", "--yes")
    assert (code, out) == (1, "")
    assert "no master of broker-a is registered" in err


async def test_an_unknown_topic_is_one_clear_line(call):
    code, out, err = await call("pull", "nowhere")
    assert (code, out) == (1, "")
    assert "no route to topic nowhere" in err
    assert "Traceback" not in err


async def test_ctrl_c_ends_a_pull_quietly(call, cluster):
    assert (await call("send", "T", "one"))[0] == 0
    process = await trio.lowlevel.open_process(
        [*TRIOMQ, "pull", "T", "--follow", "-n", cluster.name_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background jobs ignore SIGINT, and so would whatever they start.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    with trio.fail_after(120):
        assert await process.stdout.receive_some() == b"one\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        # click ends the line that ^C stands in.
        assert (await process.stderr.receive_some()).strip() == b""
    await process.stdout.aclose()
    await process.stderr.aclose()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_pull_that_commits_what_it_has_printed(call, cluster, number):
    for body in ("one", "two"):
        assert (await call("send", "T", body, "--queue", "broker-a:0"))[0] == 0
    process = await trio.lowlevel.open_process(
        [*TRIOMQ, "pull", "T", "-g", "G", "--follow", "--commit", "-n", cluster.name_servers],
        stdout=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    with trio.fail_after(120):
        out = b""
        while b"two\n" not in out:
            out += await process.stdout.receive_some()
        process.send_signal(number)
        assert await process.wait() == 128 + number
    await process.stdout.aclose()
    # The signal may arrive before the second one counts as printed.
    assert (await call("pull", "T", "-g", "G", "--from", "committed"))[1] in ("", "two\n")


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--file", "-"]])
async def test_ctrl_c_ends_a_send_that_waits_for_standard_input(cluster, arguments):
    process = await trio.lowlevel.open_process(
        [*TRIOMQ, "send", "T", *arguments, "-n", cluster.name_servers],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    with trio.fail_after(120):
        await process.stdin.send_all(b"begun")
        unread = 1
        while unread:
            await trio.sleep(0.01)
            unread = int.from_bytes(fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert (await process.stderr.receive_some()).strip() == b""
    await process.stdin.aclose()
    await process.stderr.aclose()


def test_lines_that_come_in_pieces():
    assert list(_lines([b"a\nb", b"c", b"\r\n\n", b"last"])) == [b"a", b"bc\r", b"", b"last"]
    assert list(_lines([b"a\n"])) == [b"a"]
    assert list(_lines([])) == []


@pytest.mark.parametrize("errors", ["", "2>&-"])
async def test_a_reader_that_leaves_early_is_no_error(call, cluster, errors):
    lines = b"".join(b"%d\n" % number for number in range(3000))
    assert (await call("send", "T", stdin=lines))[0] == 0
    pull = f"{shlex.quote(sys.executable)} -m triomq pull T -n {shlex.quote(cluster.name_servers)} {errors}"
    shell = f"({pull}; echo $? >&2) | head -1"
    done = await trio.run_process(["sh", "-c", shell], capture_stdout=True, capture_stderr=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == b"1\n"  # the status alone


async def test_the_offsets_of_a_group_that_is_not_there_yet(call, client):
    async with client.producer("fill") as producer:
        for number in range(12):
            await producer.send(triomq.Message("T", b"m%d" % number))
    code, out, err = await call("offsets", "reset", "new", "T", "latest", "--yes")
    assert (code, out) == (1, "")
    assert "no broker knows the consumer group new" in err
    assert "give --new-group" in err
    code, out, err = await call("offsets", "reset", "new", "T", "latest", "--yes", "--new-group", "--json")
    assert (code, err) == (0, "")
    assert sum(row["offset"] for row in rows(out)) == 12
    code, out, err = await call("consume", "T", "--until-end", "-g", "new", "--from", "earliest")
    assert (code, out) == (0, "")
