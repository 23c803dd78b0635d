"""Lines that peers can cause, and the requests of brokers that cause them."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import memory_stream_pair

from triomq._cluster.broker_requests import BrokerRequests
from triomq._transport.link import Link
from triomq._transport.peer_log import LOG_EVERY_S, PEERS_APART, TEXT_CHARS_MAX, PeerLog
from triomq_protocol.wire.command import Command

LOG = logging.getLogger("triomq.links")


class NameServers:
    addresses = ("ns:1",)


class Consumer:
    """A consumer of a group that fails whatever it is asked."""

    def positions_of(self, topic):
        raise ZeroDivisionError

    running_info = reset = consume_directly = positions_of

    def wake(self):
        pass


@pytest.fixture
def link():
    requests = BrokerRequests(lambda *_: None, NameServers(), 0)
    requests.consumers["G"] = Consumer()
    ours, _ = memory_stream_pair()
    return Link("10.0.0.1:1", ours, handlers=requests.handlers())


async def test_a_kind_of_line_is_written_once_for_a_peer_and_then_with_a_count(autojump_clock, caplog):
    lines = PeerLog(LOG)
    for _ in range(1000):
        lines.write(logging.WARNING, "a:1", "sends %s", "noise", kind=1)
    lines.write(logging.WARNING, "b:1", "sends %s", "noise", kind=1)
    lines.write(logging.WARNING, "a:1", "sends %s", "noise", kind=2)
    assert caplog.messages == ["a:1 sends noise", "b:1 sends noise", "a:1 sends noise"]
    await trio.sleep(LOG_EVERY_S + 1)
    lines.write(logging.WARNING, "a:1", "sends %s", "more", kind=1)
    assert caplog.messages[3:] == ["a:1 sends more (and 999 more like it since the last such line)"]


async def test_many_peers_share_their_lines(autojump_clock, caplog):
    lines = PeerLog(LOG)
    for number in range(10_000):
        lines.write(logging.WARNING, f"host:{number}", "sends noise")
    assert len(caplog.messages) == PEERS_APART + 1
    assert len(lines._counted) == PEERS_APART + 1


async def test_a_line_is_short_and_one_line(caplog):
    PeerLog(LOG).write(logging.WARNING, "a:1", "sends %s", "x\nERROR forged" + "y" * 10_000)
    assert caplog.messages[0].startswith("a:1 sends x?ERROR forged")
    assert len(caplog.messages[0]) == len("a:1 ") + TEXT_CHARS_MAX


@pytest.mark.parametrize("code", [39, 220, 221, 307, 309, 326, 40])
async def test_requests_that_lack_their_fields_are_one_line_without_traceback(link, caplog, code):
    for opaque in range(500):
        link._take(Command(code, opaque=opaque))
        link._take(Command(code, extra={"producerGroup": "\n", "commitLogOffset": "x" * 5000}, opaque=opaque))
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert lines[0].getMessage().startswith(f"10.0.0.1:1 sent a request {code} that cannot be used: header field")
    assert lines[0].exc_info is None


async def test_checks_and_resets_with_odd_bodies_are_one_line_each(link, caplog):
    check = {"commitLogOffset": "1", "tranStateTableOffset": "1"}
    reset = {"topic": "T", "group": "G", "timestamp": "1", "isForce": "true"}
    for opaque in range(500):
        link._take(Command(39, extra=check, body=bytes(opaque), opaque=opaque))
        link._take(Command(220, extra=reset, body=b"[" * opaque, opaque=opaque))
    assert len(caplog.records) == 2
    assert [record.exc_info for record in caplog.records] == [None, None]
    assert "asks about a transaction, and sends no message" in caplog.messages[0]
    assert "sent a request 220 that cannot be used" in caplog.messages[1]


async def test_a_group_that_is_not_ours_is_one_line(link, caplog):
    caplog.set_level(logging.INFO)
    for opaque in range(500):
        link._take(Command(220, extra={"topic": "T", "group": f"H{opaque}", "timestamp": "1"}, opaque=opaque))
    assert caplog.messages == ["10.0.0.1:1 asks to reset group H0, which is not ours"]


async def test_an_error_of_ours_keeps_its_traceback(link, caplog):
    for opaque in range(500):
        link._take(Command(221, extra={"topic": "T", "group": "G"}, opaque=opaque))
    (line,) = caplog.records
    assert line.getMessage() == "10.0.0.1:1 sent a request 221 that failed here"
    assert line.exc_info[0] is ZeroDivisionError
