"""Monitors what a generator cannot see: the lag of each slave behind its master, and ended processes of the target."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

import trio

from triomq_benchmarks.clusters.server_state import NoAnswerError, ask
from triomq_benchmarks.figures.intervals import MONITOR, IntervalRow
from triomq_benchmarks.figures.run_result import ENDED, STOPPED, FaultInstant
from triomq_benchmarks.run.targets import ENDED_STATES, STOPPED_STATE, RunTarget, process_state
from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import BodyError
from triomq_protocol.requests.route import KVTable
from triomq_protocol.wire.command import Command

EVERY_S = 1.0
ANSWER_LIMIT_S = 0.8
PROCESSES_EVERY_S = 0.1
"""Interval of the checks whether processes exist."""


async def broker_facts(target: RunTarget, address: str) -> Mapping[str, str]:
    """A broker's runtime information; empty if it does not answer properly, or in time."""
    with trio.move_on_after(ANSWER_LIMIT_S):
        try:
            answer = await ask(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), target.options)
            if answer.code == ResponseCode.SUCCESS:
                return KVTable.decode(answer.body).table
        except (NoAnswerError, BodyError):
            return {}
    return {}


async def watch(target: RunTarget, origin: float, on_row: Callable[[IntervalRow], None]) -> None:
    """Report rows until cancelled; a second in which a set's master or all its slaves do not answer has no figure.

    Args:
        target: the cluster to ask.
        origin: start of the measured part, on trio's clock.
        on_row: takes the rows, of the worker `MONITOR`.
    """
    if not any(node.role == "slave" for node in target.nodes.values()):
        return
    while True:
        second = math.floor(trio.current_time() - origin)
        lag_bytes = await replication_lag_bytes(target)
        if lag_bytes is not None:
            on_row(IntervalRow(worker=MONITOR, second=second, replication_lag_bytes=lag_bytes))
        await trio.sleep_until(origin + second + EVERY_S + 0.5)


async def replication_lag_bytes(target: RunTarget) -> int | None:
    """The slowest slave's distance from its master's log, over all sets; None if no set answers."""
    ends: dict[str, int] = {}

    async def look(name: str, address: str) -> None:
        end = (await broker_facts(target, address)).get("commitLogMaxOffset")
        if end is not None:
            ends[name] = int(end)

    brokers = [node for node in target.nodes.values() if node.role != "namesrv"]
    # Slaves first: messages that the master takes meanwhile count as lag, never as the slave's lead.
    for role in ("slave", "master"):
        async with trio.open_nursery() as nursery:
            for node in brokers:
                if node.role == role:
                    nursery.start_soon(look, node.name, node.address)
    masters = {node.broker_name: ends[node.name] for node in brokers if node.role == "master" and node.name in ends}
    lags: defaultdict[str, int] = defaultdict(int)
    for node in brokers:
        if node.role == "slave" and node.name in ends and node.broker_name in masters:
            lags[node.broker_name] = max(lags[node.broker_name], masters[node.broker_name] - ends[node.name])
    return max(lags.values()) if lags else None


async def watch_processes(target: RunTarget, origin: float, on_end: Callable[[FaultInstant], None]) -> None:
    """Report each process of the target that ends or is stopped, also by a fault of the run, until cancelled.

    Args:
        target: the cluster; nothing is known of processes that are not ours.
        origin: start of the measured part, on trio's clock.
        on_end: takes the end of each process once, and each stop once it is over.
    """
    ended: set[int] = set()
    stopped: dict[str, float] = {}

    def goes_on(name: str) -> None:
        now = trio.current_time() - origin
        on_end(FaultInstant(what=STOPPED, node=name, second=stopped.pop(name), until=now))

    try:
        while True:
            for node in target.nodes.values():
                state = process_state(node.pid) if node.pid and node.pid not in ended else "S"
                if state in ENDED_STATES:
                    ended.add(node.pid)
                    on_end(FaultInstant(what=ENDED, node=node.name, second=trio.current_time() - origin))
                if state == STOPPED_STATE:
                    stopped.setdefault(node.name, trio.current_time() - origin)
                elif node.name in stopped:
                    goes_on(node.name)
            await trio.sleep(PROCESSES_EVERY_S)
    finally:
        for name in tuple(stopped):
            goes_on(name)
