"""Ctrl-C, SIGTERM and SIGHUP in a command that must end processes in order: they call a function, and raise nothing."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from triomq_command.ending_signals import ending_signals


@asynccontextmanager
async def on_interrupt(action: Callable[[], None]) -> AsyncIterator[None]:
    """Call `action` for each SIGINT and SIGTERM and the first SIGHUP, for as long as the block lasts; what the block
    raises comes out plain."""

    async def listen(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*ending_signals()) as signals:
            task_status.started()
            hung_up = False
            async for number in signals:
                # The kernel and the shell both signal a closed terminal: this is not a second request.
                if not (number == signal.SIGHUP and hung_up):
                    action()
                hung_up = hung_up or number == signal.SIGHUP

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- raised below, plain, once the listener has ended
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
