"""Lines that peers can cause (repeats.PeerLog)."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from triomq_server import repeats
from triomq_server.repeats import HOSTS_APART, LOG_EVERY_S, PeerLog, Repeats

_log = logging.getLogger("peers")


async def test_a_kind_of_line_is_written_once_for_a_host_and_then_with_a_count(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lines = PeerLog(_log)
    for port in range(1000):
        lines.write(logging.INFO, f"10.0.0.1:{port}", "closing %s: %s", f"10.0.0.1:{port}", "noise")
    lines.write(logging.INFO, "10.0.0.2:1", "closing %s: %s", "10.0.0.2:1", "noise")
    lines.write(logging.ERROR, "10.0.0.1:1", "%s lies", "10.0.0.1:1")
    assert caplog.messages == ["closing 10.0.0.1:0: noise", "closing 10.0.0.2:1: noise", "10.0.0.1:1 lies"]
    await trio.sleep(LOG_EVERY_S + 1)
    lines.write(logging.INFO, "10.0.0.1:7", "closing %s: %s", "10.0.0.1:7", "noise")
    assert caplog.messages[3:] == [
        "closing 10.0.0.1:7: noise (and 999 more like it since the last such line, of 10.0.0.1)"
    ]


async def test_many_hosts_share_their_lines(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    lines = PeerLog(_log)
    for host in range(10_000):
        lines.write(logging.WARNING, f"10.0.{host >> 8}.{host & 255}:5", "noise of %d", host)
    assert len(caplog.messages) == HOSTS_APART + 1


async def test_a_counted_line_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Repeats] = []

    class Counted(Repeats):
        def __init__(self) -> None:
            super().__init__()
            built.append(self)

    monkeypatch.setattr(repeats, "Repeats", Counted)
    lines = PeerLog(_log)
    for port in range(1000):
        lines.write(logging.INFO, f"10.0.0.1:{port}", "noise")
    assert len(built) == 1


async def test_failures_are_distinguished_by_their_kind_and_written_with_their_traceback(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    lines = PeerLog(_log)
    for _ in range(100):
        for error in (ValueError("a"), KeyError("b")):
            lines.write(logging.ERROR, "10.0.0.1:1", "failed: %s", error, kind=type(error), exc_info=error)
    assert caplog.messages == ["failed: a", "failed: 'b'"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError, KeyError]
