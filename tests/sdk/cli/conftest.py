"""A command line whose client talks to brokers on memory streams, on a virtual clock."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from triomq._cli import messages, options


class CommandLine:
    """Runs commands; `passed_s` is how long the last one took on the virtual clock."""

    def __init__(self, cluster, capsys):
        self.cluster = cluster
        self.passed_s = 0.0
        self._capsys = capsys

    def __call__(self, *arguments):
        self.passed_s = 0.0
        code = messages.run(list(arguments))
        out, err = self._capsys.readouterr()
        return code, out, err

    def open_client(self, _name_servers, **more):
        return self.cluster.client(**more)


@pytest.fixture
def command_line(system_cluster, capsys, monkeypatch):
    system_cluster.broker.consumers.serves_groups = True
    line = CommandLine(system_cluster, capsys)
    plain_run = trio.run

    def run(work):
        clock = trio.testing.MockClock(autojump_threshold=0)

        async def timed():
            started = clock.current_time()
            try:
                return await work()
            finally:
                line.passed_s += clock.current_time() - started

        return plain_run(timed, clock=clock)

    monkeypatch.setattr(trio, "run", run)
    monkeypatch.setattr(options, "open_client", line.open_client)
    return line
