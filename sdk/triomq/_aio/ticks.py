"""Runs trio's loop inside an asyncio loop, a tick at a time.

trio's own guest mode waits for sockets in a thread, which costs two thread switches per wait.  If asyncio can watch the
epoll object of trio's loop, no thread is needed; otherwise trio's own mode is used.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - here trio meets it
import math
import queue
from collections.abc import Awaitable, Callable
from typing import Any, Final

import outcome
import sniffio
import trio

from triomq.errors import InvalidCall

TICKS_AT_ONCE: Final = 4
"""The most ticks without a round of the asyncio loop in between, which takes as long as a short tick."""

TIMER_MAX_S: Final = 3600.0
"""The longest time for which a timer is set; when it ends, the loop checks again."""

NEEDED: Final = ("runner", "unrolled_run_gen", "unrolled_run_next_send", "done_callback")
"""Attributes that a guest run of trio needs to be ticked from here; if a version of trio lacks any, its own mode is
used."""


class Ticks:
    """One trio run within an asyncio loop.

    Args:
        loop: the asyncio loop, which is running.
        main: the function that trio runs.
        ended: called in the loop when it has returned or failed.

    Raises:
        InvalidCall: another trio loop runs in this thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        main: Callable[[], Awaitable[None]],
        ended: Callable[[outcome.Outcome[None]], object],
    ) -> None:
        self._loop = loop
        self._ended = ended
        self._over = False
        self._next: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        """The next functions to run; kept outside the loop, which drops its own list when closed."""
        self._guest: Any = None
        """trio's state of the run, if its ticks are run here."""
        self._waits = False
        """Whether the next tick waits for I/O, a time or :meth:`wake`."""
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        """The time of the timer. uvloop's handle of a call that is due at once does not have it."""
        self._descriptor = -1
        try:
            trio.lowlevel.start_guest_run(
                main,
                run_sync_soon_threadsafe=self._soon_from_thread,
                run_sync_soon_not_threadsafe=self._first_tick,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
            )
        except RuntimeError as error:
            raise InvalidCall(
                f"no client can be opened here: a trio loop runs in this thread already ({error})"
            ) from error

    def wake(self) -> None:
        """Schedule a tick soon, for a task that is about to be started or woken; called in the loop's thread.

        trio would wake itself, by a byte through a socket.
        """
        if self._waits:
            self._stop_waiting()
            self._guest.unrolled_run_next_send = outcome.Value([])
            self._soon(self._tick)

    def finish(self) -> None:
        """Run the remaining ticks at once, after the asyncio loop was closed."""
        self.wake()
        while not self._over:
            self._next.get()()

    def _done(self, end: outcome.Outcome[None]) -> None:
        self._over = True
        self._ended(end)

    # --- scheduling --------------------------------------------------------------------------------------------

    def _soon(self, run: Callable[[], object]) -> None:
        self._next.put(run)
        if not self._loop.is_closed():
            self._loop.call_soon(self._run_next)

    def _soon_from_thread(self, run: Callable[[], object]) -> None:
        self._next.put(run)
        try:
            self._loop.call_soon_threadsafe(self._run_next)
        except RuntimeError:  # closed
            pass

    def _run_next(self) -> None:
        self._next.get_nowait()()

    def _first_tick(self, tick: Callable[[], object]) -> None:
        """Take over the ticks if possible; otherwise run trio's own, this one and all that follow."""
        guest = getattr(tick, "__self__", None)
        if self._guest is None and all(hasattr(guest, name) for name in NEEDED) and self._watch(guest):
            self._guest = guest
            tick = self._tick
        self._soon(tick)

    def _watch(self, guest: Any) -> bool:
        """Have the asyncio loop watch the object that trio's loop waits on."""
        waits_on = getattr(getattr(guest.runner, "io_manager", None), "_epoll", None)
        if waits_on is None or not hasattr(guest.runner, "runq"):
            return False
        self._descriptor = waits_on.fileno()
        try:
            self._loop.add_reader(self._descriptor, self._look)
        except NotImplementedError:  # Windows' default loop
            return False
        return True

    # --- ticks -------------------------------------------------------------------------------------------------

    def _stop_waiting(self) -> None:
        self._waits = False
        self._guest.runner.guest_tick_scheduled = True

    def _look(self) -> None:
        """Run a tick: a socket is ready, or a timer has expired."""
        if self._waits:
            self._stop_waiting()
            self._guest.unrolled_run_next_send = self._events(0)
            self._tick()

    def _events(self, timeout_s: float) -> outcome.Outcome[Any]:
        events: outcome.Outcome[Any] = outcome.capture(self._guest.runner.io_manager.get_events, timeout_s)
        return events

    def _tick(self) -> None:
        """Do the same as trio's own tick, but without the thread."""
        guest = self._guest
        library, sniffio.thread_local.name = sniffio.thread_local.name, "trio"
        timeout_s = 0.0
        try:
            for _ in range(TICKS_AT_ONCE):
                timeout_s = guest.unrolled_run_next_send.send(guest.unrolled_run_gen)
                if not guest.runner.runq:
                    break
                # Tasks are ready: they run first, incoming data is checked after them.
                guest.unrolled_run_next_send = outcome.Value([])
        except StopIteration:
            self._unwatch()
            guest.done_callback(guest.runner.main_task_outcome)
            return
        except trio.TrioInternalError as error:
            self._unwatch()
            guest.done_callback(outcome.Error(error))
            return
        finally:
            sniffio.thread_local.name = library
        if timeout_s > 0 and not self._loop.is_closed():
            # The asyncio loop next checks whether data has already arrived.
            self._wait(timeout_s)
            return
        guest.unrolled_run_next_send = self._events(max(0.0, min(timeout_s, TIMER_MAX_S)))
        guest.runner.guest_tick_scheduled = True
        self._soon(self._tick)

    def _wait(self, timeout_s: float) -> None:
        self._guest.runner.guest_tick_scheduled = False
        self._waits = True
        if math.isinf(timeout_s):
            return
        due = self._loop.time() + min(timeout_s, TIMER_MAX_S)
        # A timer that is due earlier stays: it costs one check, while a new one for each wait would cost more.
        if self._timer is None or due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._due = self._loop.call_at(due, self._timer_ended), due

    def _timer_ended(self) -> None:
        self._timer = None
        self._look()

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
