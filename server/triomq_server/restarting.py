"""Tasks that end only with their server: one that fails is logged and started again.

Without that, an error in any of them ends the process, or worse, only the task: nothing would be flushed or expired any
more, unnoticed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from triomq_server.pauses import Pauses

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Upper bound of the pause before a restart, which doubles with each failure. After a run of this length it starts
short again."""

_log = logging.getLogger(__name__)


async def restarted(task: Callable[[], Awaitable[object]]) -> NoReturn:
    """Run a task that should never end; when it raises or returns, log it, pause, and start it again.

    Args:
        task: an async function; work left unfinished by a failure must not hinder the next run.
    """
    pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        started = trio.current_time()
        failure: Exception | None = None
        try:
            await task()
        except Exception as error:  # noqa: BLE001 - whatever the error, the server's other tasks continue
            failure = error
        if trio.current_time() - started >= LONGEST_PAUSE_S:
            pauses.reset()
        pause_s = pauses.next_s()
        how = "ended" if failure is None else "failed"
        _log.error("the task %s has %s; it starts again in %.0f s", _name(task), how, pause_s, exc_info=failure)
        await trio.sleep(pause_s)


def _name(task: Callable[[], Awaitable[object]]) -> str:
    """The function's name, without the arguments of a partial."""
    function = getattr(task, "func", task)
    return str(getattr(function, "__qualname__", function))
