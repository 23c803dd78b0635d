"""Calls into a loop that ends, or that their thread is interrupted in: each ends, and what it got is not lost."""

from __future__ import annotations

import contextlib
import threading

import trio

from triomq import errors
from triomq._blocking import loop_thread

WAIT_S = 30
"""Longer than anything here takes on a machine at a quarter of its speed."""


async def five():
    await trio.lowlevel.checkpoint()
    return 5


def test_a_call_that_comes_while_the_loop_ends_is_told_so():
    ending, queued = threading.Event(), threading.Event()
    generators, ended = [], []

    async def last():
        try:
            yield
        finally:
            # No task can be started any more, and what other threads queue is still called.
            ending.set()
            queued.wait(WAIT_S)

    @contextlib.asynccontextmanager
    async def session():
        generators.append(last())
        await anext(generators[0])
        yield

    class Token:
        def __init__(self, token):
            self.token = token

        def run_sync_soon(self, *job):
            self.token.run_sync_soon(*job)
            if ending.is_set():
                queued.set()

    def call():
        try:
            thread.call(five)
        except errors.ClientClosed as error:
            ended.append(error)

    thread = loop_thread.LoopThread(session, name="triomq")
    thread._token = Token(thread._token)
    closing = threading.Thread(target=thread.close)
    closing.start()
    assert ending.wait(WAIT_S)
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    calling.join(WAIT_S)
    closing.join(WAIT_S)
    assert len(ended) == 1
