"""Hooks that fail for each message: one traceback and some lines in ten seconds, and not one for each message."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

import triomq
from triomq._message import hooks
from triomq._message.repeated_failures import LINES_MAX, PERIOD_S

MESSAGES = 100
MESSAGE: Any = SimpleNamespace()


class Failing:
    """Every kind of hook."""

    def _fail(self, *_: object) -> Any:
        raise ValueError("no")

    before_send = after_send = before_pull = after_pull = before_consume = after_consume = around_consume = wants = (
        _fail
    )


class Slotted(Failing):
    """Without weak references."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


class Manager:
    """Fails at the end of its block."""

    def around_consume(self, _context: object) -> Any:
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise ValueError("no")


def around(hook: Any) -> None:
    consume = hooks.ConsumeHooks("G", [hook])
    with consume.around(hooks.ConsumeContext("G", ())):
        pass


SEND = hooks.SendContext("G", triomq.Message("T", b"x"), "id")
PULL = hooks.PullContext("G", triomq.MessageQueue("T", "broker-a", 0), 0)
CALLS: dict[str, Any] = {
    "before_send": lambda hook: hooks.call_before_send([hook], SEND),
    "after_send": lambda hook: hooks.call_after_send([hook], SEND, None),
    "before_pull": lambda hook: hooks.call_before_pull([hook], PULL),
    "after_pull": lambda hook: hooks.call_after_pull([hook], PULL, triomq.MQError("no")),
    "consume": lambda hook: hooks.ConsumeHooks("G", [hook]).begin(()),
    "around": around,
    "wants": lambda hook: hooks.wanted_messages([hook], "G", [MESSAGE]),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock for the log."""
    found = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(hooks, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_hook_that_always_fails(call: Any, clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    hook = Failing()
    for _ in range(MESSAGES):
        call(hook)
    assert len(errors(caplog)) == LINES_MAX
    assert [bool(record.exc_info) for record in errors(caplog)] == [True] + [False] * (LINES_MAX - 1)
    caplog.clear()
    clock.now_s += PERIOD_S
    call(hook)
    (record,) = errors(caplog)
    assert record.exc_info
    assert f"(and {MESSAGES - LINES_MAX} more failures like it" in record.getMessage()


def test_a_wrapper_that_fails_at_the_end(clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    hook = Manager()
    for _ in range(MESSAGES):
        around(hook)
    assert len(errors(caplog)) == LINES_MAX


def test_a_filter_that_returns_nothing(clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    hook: Any = SimpleNamespace(wants=lambda *_: None)
    assert hooks.wanted_messages([hook], "G", [MESSAGE] * MESSAGES) == [MESSAGE] * MESSAGES
    assert len(errors(caplog)) == LINES_MAX
    assert "returned None" in caplog.text


def test_each_hook_is_reported(clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Also those of one class, and those that cannot be the key of a dictionary."""
    first, second, slotted = Failing(), Failing(), Slotted()
    for _ in range(MESSAGES):
        hooks.call_before_send([first, second, slotted], SEND)
    assert sum(bool(record.exc_info) for record in errors(caplog)) >= 2
    for hook in (first, second, slotted):
        assert repr(hook) in caplog.text
