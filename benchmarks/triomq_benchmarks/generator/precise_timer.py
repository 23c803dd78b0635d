"""Waits until an instant, with a precision of some ten microseconds.

A loop's own sleep ends on whole milliseconds, the unit of `epoll_wait`: at 1,000 messages a second everything would be
late.  A `timerfd` becomes readable on time.  If there is none, the loop's sleep is used.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import trio

SleepUntil = Callable[[float], Awaitable[None]]
"""Waits until an instant of trio's clock."""

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class PreciseTimer:
    """One timer, for one task at a time; a context manager that closes it."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._setting = _Itimerspec()
        self._pointer = ctypes.byref(self._setting)
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)

    async def sleep_until(self, instant: float) -> None:
        """Wait until `instant` of trio's clock; always a checkpoint."""
        left_ns = int((instant - trio.current_time()) * 1e9)
        if left_ns <= 0:
            await trio.lowlevel.checkpoint()
            return
        if self._descriptor < 0:
            await trio.sleep_until(instant)
            return
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(left_ns, 1_000_000_000)
        self._libc.timerfd_settime(self._descriptor, 0, self._pointer, None)
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, 8)

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
