"""How many messages come into a topic, and how many each group pulls, by the counters of its masters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from triomq._admin.broker_sets import Silent, outage_text
from triomq._admin.group_results import GroupProgress, TopicTraffic
from triomq._admin.long_bodies import body_of
from triomq._admin.masters import ask_broker, masters_of
from triomq._cluster.routes import Routes
from triomq._tasks.side_by_side import side_by_side
from triomq._transport.links import NO_ANSWER, Links
from triomq.errors import BrokerFault, BrokerNotFound, LinkLost
from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    BrokerStatsData,
    GroupList,
    QueryTopicConsumeByWhoRequest,
    ViewBrokerStatsDataRequest,
)
from triomq_protocol.wire.command import Command


class AskProgress(Protocol):
    """The progress of a group in one topic."""

    async def __call__(self, group: str, topic: str, *, silent: Silent) -> GroupProgress: ...


class TrafficCounters:
    """Asks the masters of a topic for their counters; see :meth:`GroupAdmin.traffic`.

    Args:
        routes: the client's routes.
        links: the links to brokers.
        progress: asks for a group's progress.
    """

    def __init__(self, routes: Routes, links: Links, *, progress: AskProgress) -> None:
        self._routes = routes
        self._wrap = routes.namespace.wrap
        self._links = links
        self._progress = progress

    async def of(self, topic: str, silent: Silent) -> list[TopicTraffic]:
        """The rates of a topic and of each group that consumes it."""
        missing: Silent = {}  # of this topic; others may find more masters that are silent, whose figures are known here
        masters, lacking = await masters_of(self._routes, topic)
        wrapped = self._wrap(topic)
        groups: set[str] = set()
        arrived = [0.0, 0]

        async def look(address: str) -> None:
            groups.update(await self._groups_of(topic, address))
            await self._add_traffic(arrived, address, "TOPIC_PUT_NUMS", wrapped)

        await self._ask_masters(masters, silent, missing, look)
        without_master = dict.fromkeys(lacking, "no master is registered") | _unanswered(masters, missing)
        if not set(masters.values()) - missing.keys():
            raise BrokerNotFound(f"the traffic of topic {topic} is unknown: {outage_text(without_master)}")
        found = []
        for group in sorted(groups):
            taken = [0.0, 0]
            add = partial(self._add_traffic, taken, name="GROUP_GET_NUMS", key=f"{wrapped}@{group}")
            await self._ask_masters(masters, silent, missing, add)
            without_master |= _unanswered(masters, missing)
            name = self._routes.namespace.unwrap(group)
            progress = await self._progress(name, topic, silent=silent)
            unknown = {**progress.without_master, **progress.refused, **without_master}
            found.append(
                TopicTraffic(
                    topic=topic, group=name, lag=None if unknown else progress.lag, in_per_s=arrived[0],
                    in_day=int(arrived[1]), out_per_s=taken[0], out_day=int(taken[1]), without_master=unknown,
                )
            )  # fmt: skip
        if found:
            return found
        return [TopicTraffic(topic=topic, in_per_s=arrived[0], in_day=int(arrived[1]), without_master=without_master)]

    async def _ask_masters(
        self, masters: Mapping[str, str], silent: Silent, missing: Silent, ask: Callable[[str], Awaitable[None]]
    ) -> None:
        """Call `ask` with the address of each master that is neither `silent` nor `missing`, all at once.

        Those that do not answer are added to `missing`, and to `silent` unless only the connection was lost.
        """
        missing |= {address: silent[address] for address in masters.values() if address in silent}

        async def ask_one(address: str) -> None:
            try:
                await ask(address)
            except NO_ANSWER as error:
                missing[address] = error.remark or error.what
                if not isinstance(error, LinkLost):
                    silent[address] = missing[address]

        await side_by_side(*(partial(ask_one, address) for address in masters.values() if address not in missing))

    async def _groups_of(self, topic: str, address: str) -> list[str]:
        """The groups of a topic at one broker, named as there."""
        header = QueryTopicConsumeByWhoRequest(topic=self._wrap(topic))
        request = Command.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        answer = await ask_broker(self._links, address, request, f"the groups of topic {topic}")
        return (await body_of(GroupList, answer, address)).group_list

    async def _add_traffic(self, total: list[float], address: str, name: str, key: str) -> None:
        """Add one broker's rate and daily number; a broker that has counted nothing reports no such counter."""
        header = ViewBrokerStatsDataRequest(stats_name=name, stats_key=key)
        try:
            answer = await ask_broker(
                self._links,
                address,
                Command.request(RequestCode.VIEW_BROKER_STATS_DATA, header),
                f"the counter {name} {key}",
            )
        except BrokerFault:
            return
        stats = await body_of(BrokerStatsData, answer, address)
        minute, hour, day = stats.stats_minute, stats.stats_hour, stats.stats_day
        total[0] += minute.tps if minute is not None else 0.0
        total[1] += next((each.sum for each in (day, hour, minute) if each is not None and each.sum), 0)


def _unanswered(masters: Mapping[str, str], missing: Silent) -> dict[str, str]:
    """The sets whose masters did not answer: broker name -> why."""
    return {
        name: f"the master {address} does not answer: {missing[address]}"
        for name, address in masters.items()
        if address in missing
    }
