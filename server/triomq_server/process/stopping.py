"""Stops a server in order when a signal arrives, and only once.

`timeout`, shells and supervisors often send one signal twice, to the process and to its group. The second must not kill
a server that stops in order.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import trio


async def run_until_signal(work: Callable[[], Awaitable[None]], *numbers: int) -> None:
    """Run `work` until it ends, or cancel it at one of these signals and wait for its end; further signals change
    nothing.

    But a second Ctrl-C ends the process at once.
    """
    stopping = trio.CancelScope()

    async def watch(signals: AsyncIterator[int]) -> None:
        interrupts = 0
        async for number in signals:
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.raise_signal(signal.SIGINT)
            stopping.cancel()

    with trio.open_signal_receiver(*numbers) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            with stopping:
                await work()
            nursery.cancel_scope.cancel()
