"""Stops a server in order when a signal arrives, and only once.

`timeout`, shells and supervisors often send one signal twice, to the process and to its group. The second must not kill
a server that stops in order.
"""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from triomq_server.process.collections import collect_in_turns

_log = logging.getLogger(__name__)


async def run_until_signal(work: Callable[[], Awaitable[None]], *numbers: int) -> None:
    """Run `work` until it ends, or cancel it at one of these signals and wait for its end.

    Further signals change nothing, but a second Ctrl-C ends the process at once. The log names the signal, and states
    when everything has stopped. Meanwhile full garbage collections run in separate turns of the loop.
    """
    stopping = trio.CancelScope()

    async def watch(signals: AsyncIterator[int]) -> None:
        interrupts = 0
        async for number in signals:
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            if not stopping.cancel_called:
                _log.info("stopping cleanly, on %s", signal.Signals(number).name)
            stopping.cancel()

    with trio.open_signal_receiver(*numbers) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            nursery.start_soon(collect_in_turns)
            with stopping:
                await work()
            if stopping.cancel_called:
                _log.info("stopped")
            nursery.cancel_scope.cancel()
