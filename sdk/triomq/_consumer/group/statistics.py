"""A consumer's counters per topic, and the rates it reports to operators (docs/protocol/consumer.md §14.2).

Upstream: ``ConsumerStatsManager``.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from triomq._cluster.counters import Counters, TopicCalls
from triomq_protocol.requests import ConsumeStatus

SAMPLE_EVERY_S: Final = 10.0
"""How often the counters are sampled."""

SAMPLES_PER_MINUTE: Final = 6
SAMPLES_PER_HOUR: Final = 360


class ConsumerStatistics:
    """The counters of one consumer, by topic, and their samples of the last hour.

    Args:
        group: its group.
        counters: the client's counters, which may include those of an earlier consumer of the group.
    """

    def __init__(self, group: str, counters: Counters) -> None:
        self.topics: dict[str, TopicCalls] = {}
        self._group = group
        self._counters = counters
        self._before: dict[str, TopicCalls] = {}
        self._samples: deque[dict[str, TopicCalls]] = deque(maxlen=SAMPLES_PER_HOUR)

    def of(self, topic: str) -> TopicCalls:
        """A topic's counters."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = self._counters.of_calls(self._group, topic)
            self._before[topic] = found.copy()
        return found

    @trio.lowlevel.enable_ki_protection
    async def keep_sampling(self) -> None:
        """Sample the counters until cancelled."""
        while True:
            self.sample()
            await trio.sleep(SAMPLE_EVERY_S)

    def sample(self) -> None:
        """Sample the counters now."""
        self._samples.append({topic: counters.copy() for topic, counters in self.topics.items()})

    def status(self, topic: str) -> ConsumeStatus:
        """Rates of the last minute; the time per message of the last hour if nothing was handled in it."""
        now = self.of(topic)
        minute, seconds = self._since(topic, SAMPLES_PER_MINUTE)
        hour, _ = self._since(topic, SAMPLES_PER_HOUR)
        handled = now.ok + now.failed - minute.ok - minute.failed
        then = minute if handled else hour
        handled = handled or now.ok + now.failed - hour.ok - hour.failed
        pulls = now.pulls - minute.pulls
        return ConsumeStatus(
            consume_failed_msgs=now.failed - hour.failed,
            consume_failed_tps=(now.failed - minute.failed) / seconds,
            consume_ok_tps=(now.ok - minute.ok) / seconds,
            consume_rt=(now.handling_s - then.handling_s) * 1000 / handled if handled else 0.0,
            pull_rt=(now.pulling_s - minute.pulling_s) * 1000 / pulls if pulls else 0.0,
            pull_tps=(now.pulled - minute.pulled) / seconds,
        )

    def _since(self, topic: str, samples: int) -> tuple[TopicCalls, float]:
        """The counters a number of samples ago, or the oldest available, and how many seconds ago that was."""
        if not self._samples:
            return self._before[topic], SAMPLE_EVERY_S
        back = min(samples, len(self._samples))
        return self._samples[-back].get(topic) or self._before[topic], back * SAMPLE_EVERY_S
