"""Refuses calls from other event loops: trio would run their tasks in the wrong one, or never."""

from __future__ import annotations

import os
import weakref
from threading import get_ident
from typing import Final, NoReturn

from triomq.errors import InvalidCall

_own_loops: weakref.WeakSet[OwnLoop] = weakref.WeakSet()
_PARENTS: Final = 0
"""In place of a thread's number: the loop belongs to the process that this one was forked from."""


class OwnLoop:
    """The loop in which something was opened, and the only one where it can be used.

    Attributes:
        thread: the thread it runs in; compared inline, with `threading.get_ident()`, as each request does so. A client
            ends with its loop, so another loop of this thread has none of its objects.
    """

    def __init__(self) -> None:
        self.thread = get_ident()
        _own_loops.add(self)

    def refuse(self) -> NoReturn:
        """Refuse a call from another loop.

        Raises:
            InvalidCall: always.
        """
        if self.thread == _PARENTS:
            raise InvalidCall(
                "this process is a fork, and the client was opened in its parent; open clients after the fork, or use "
                "triomq.blocking, whose clients open again in a child"
            )
        raise InvalidCall(
            "the client was opened in another thread's event loop and can only be used there; call it by "
            "trio.from_thread.run, open a client in each loop, or use triomq.blocking, whose clients serve all threads"
        )


def _forget_parents_loops() -> None:
    for each in list(_own_loops):
        each.thread = _PARENTS
    _own_loops.clear()


# The parent's peers would take bytes that a forked child sends in its parent's loop for the parent's.
os.register_at_fork(after_in_child=_forget_parents_loops)
