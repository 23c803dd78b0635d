"""When a member is certain of its queues again after lost connections."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from triomq._consumer.group.rejoining import Rejoining

BROKER, NAME_SERVER = SimpleNamespace(address="127.0.0.1:10911"), SimpleNamespace(address="127.0.0.1:9876")


class Group:
    """The parts of a member that rejoining uses, and what it does with them."""

    def __init__(self) -> None:
        self.shares = True
        self.done: list[str] = []
        self.may_report = trio.Event()
        self.links = SimpleNamespace(lost=[], opened=[])
        self.rebalance = SimpleNamespace(rounds=7, wake=lambda: self.done.append("rebalance"))
        routes = SimpleNamespace(broker_addresses=lambda: {"a": {0: BROKER.address}})
        self.rejoining = Rejoining(
            routes,  # type: ignore[arg-type]
            self.links,  # type: ignore[arg-type]
            self.rebalance,  # type: ignore[arg-type]
            doubt=self.doubt,
            report=self.report,
        )

    def doubt(self) -> bool:
        self.done.append("doubt")
        return self.shares

    async def report(self) -> None:
        self.done.append("report")
        await self.may_report.wait()

    def lost(self, link: SimpleNamespace = BROKER) -> None:
        for call in self.links.lost:
            call(link)

    def opened(self, link: SimpleNamespace = BROKER) -> None:
        for call in self.links.opened:
            call(link)


@pytest.fixture
async def group(nursery, autojump_clock):
    made = Group()
    nursery.start_soon(made.rejoining.run)
    await trio.testing.wait_all_tasks_blocked()
    return made


async def test_certain_in_the_first_round_after_the_report(group):
    assert group.rejoining.is_certain
    group.lost()
    assert not group.rejoining.is_certain
    await trio.testing.wait_all_tasks_blocked()
    group.rebalance.rounds += 1
    assert not group.rejoining.is_certain
    group.may_report.set()
    await trio.testing.wait_all_tasks_blocked()
    assert group.done == ["doubt", "report", "rebalance"]
    assert not group.rejoining.is_certain  # the current round may have begun before
    group.rebalance.rounds += 1
    assert group.rejoining.is_certain


async def test_a_loss_during_the_report_is_reported_again(group):
    group.lost()
    await trio.testing.wait_all_tasks_blocked()
    group.lost()
    group.may_report.set()
    await trio.sleep(30)
    assert group.done == ["doubt", "report", "doubt", "report", "rebalance"]


async def test_a_broker_that_is_connected_again_is_reported_to_again(group):
    group.may_report.set()
    group.lost()
    await trio.sleep(30)
    group.opened()
    assert not group.rejoining.is_certain
    await trio.sleep(30)
    assert group.done == ["doubt", "report", "rebalance"] * 2
    group.opened()
    assert group.done == ["doubt", "report", "rebalance"] * 2


async def test_losses_that_concern_no_queue(group):
    group.lost(NAME_SERVER)
    group.opened(NAME_SERVER)
    assert group.done == []
    group.shares = False
    group.lost()
    await trio.testing.wait_all_tasks_blocked()
    assert group.done == ["doubt"]
    assert group.rejoining.is_certain


async def test_links_are_followed_until_the_end(group):
    group.rejoining.close()
    assert (group.links.lost, group.links.opened) == ([], [])
