"""Counters of traffic by topic, group, queue and broker, and their minute, hour and day figures.

Counting is plain integer addition on a `Counter` that the hot path looks up once per send or pull; everything else
(groups from queues, the broker from topics, rates) is calculated by `BrokerStats.sample`, which a timer calls every
second. Names and keys are those of request 315, docs/protocol/broker-api.md §15 (upstream: BrokerStatsManager,
StatsItem, StoreStatsService).
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from triomq_server.metrics.histogram import Histogram

MINUTE_STEP_MS = 10_000
HOUR_STEP_MS = 600_000
DAY_STEP_MS = 3_600_000
MINUTE_SAMPLES = 7
HOUR_SAMPLES = 7
DAY_SAMPLES = 25
"""A window keeps one sample more than it has steps: six of 10 s, six of 10 min, 24 of an hour."""

IDLE_LIMIT_MS = 2 * 86_400_000
"""A counter that has not moved for two days is dropped, so that short-lived names do not fill the memory."""

MOST_COUNTERS = 20_000
"""The most counters of one kind (by topic, by queue and group, by group). Beyond it, traffic of new names is counted
only in the broker's totals: clients choose the names."""

SAMPLES_AT_ONCE = 500
"""Counters that are sampled before other tasks have their turn."""


class Counter(msgspec.Struct, gc=False):
    """Messages, bytes and calls of one topic, group or queue since the broker started.

    The hot path adds to the integers directly; nothing else writes them. Tens of thousands live as long as the broker:
    they and their histories are hidden from the garbage collector, since each full collection would visit all of them.
    """

    messages: int = 0
    size_bytes: int = 0
    calls: int = 0
    latency_ms: int = 0
    """Sum over all calls of what request 315 calls the latency; only pulls add to it."""
    age_ms: int = 0
    """Sum over all calls of the age of the first message given out; only pulls add to it."""
    waits: int = 0
    """Sends that waited for disk or slave."""
    waited_us: int = 0
    """How long these waited, all together."""

    def add(self, other: Counter) -> None:
        """Add another counter's totals, as a group does with its queues."""
        self.messages += other.messages
        self.size_bytes += other.size_bytes
        self.calls += other.calls
        self.latency_ms += other.latency_ms
        self.age_ms += other.age_ms
        self.waits += other.waits
        self.waited_us += other.waited_us


class Figures(msgspec.Struct, frozen=True):
    """The values of one window of a statistic: request 315's `statsMinute`, `statsHour`, `statsDay`."""

    sum: int = 0
    tps: float = 0.0
    """Per second."""
    avgpt: float = 0.0
    """Average per call."""


class Statistic(msgspec.Struct, frozen=True):
    """One named statistic of one key."""

    minute: Figures
    hour: Figures
    day: Figures


_SAMPLE = struct.Struct("=5q")
"""Time in ms, then messages, size_bytes, latency_ms and calls of a counter at that time."""
_TIME = struct.Struct("=q")

MESSAGES, SIZE, LATENCY, CALLS = 1, 2, 3, 4
"""Positions in a sample."""


class History(msgspec.Struct, gc=False):
    """The samples of one counter for its three windows, each of them one run of bytes."""

    moved_ms: int
    """When a sample last differed from the one before."""
    minutes: bytes = b""
    hours: bytes = b""
    days: bytes = b""

    def sample(self, now_ms: int, counter: Counter, *, hour: bool, day: bool) -> None:
        """Take the ten-second sample, and the longer ones when it is their time."""
        taken = _SAMPLE.pack(now_ms, counter.messages, counter.size_bytes, counter.latency_ms, counter.calls)
        if self.minutes[_TIME.size - _SAMPLE.size :] != taken[_TIME.size :]:
            self.moved_ms = now_ms
        self.minutes = _appended(self.minutes, taken, MINUTE_STEP_MS, MINUTE_SAMPLES)
        if hour:
            self.hours = _appended(self.hours, taken, HOUR_STEP_MS, HOUR_SAMPLES)
        if day:
            self.days = _appended(self.days, taken, DAY_STEP_MS, DAY_SAMPLES)

    def statistic(self, field: int) -> Statistic:
        """The figures of one field (`MESSAGES`, `SIZE`, `LATENCY`).

        The hour stands at zero during a counter's first ten minutes and the day during its first hour, as in 4.9.
        """
        return Statistic(_figures(self.minutes, field), _figures(self.hours, field), _figures(self.days, field))


def _appended(samples: bytes, taken: bytes, step_ms: int, count: int) -> bytes:
    """Samples and a further one; the first one is preceded by a zero one step earlier, since counters start at zero.

    A full window in which nothing has moved is kept as its last sample alone: most counters of a broker stand still.
    """
    counted = taken[_TIME.size :]
    if not samples:
        samples = _SAMPLE.pack(_TIME.unpack_from(taken)[0] - step_ms, 0, 0, 0, 0)
    elif len(samples) == _SAMPLE.size:
        (last_ms,), stood_at = _TIME.unpack_from(samples), samples[_TIME.size :]
        if stood_at == counted:
            return taken
        samples = b"".join(_TIME.pack(last_ms - step_ms * back) + stood_at for back in range(count - 1, -1, -1))
    samples = (samples + taken)[-count * _SAMPLE.size :]
    if len(samples) == count * _SAMPLE.size and samples[_TIME.size : _SAMPLE.size] == counted:
        return taken
    return samples


def _is_queue(text: str) -> bool:
    """Whether it may be the number of a queue."""
    return text.isdecimal() and len(text) <= len(str(2**31))


def _figures(samples: bytes, field: int) -> Figures:
    if not samples:
        return Figures()
    first, last = _SAMPLE.unpack_from(samples), _SAMPLE.unpack_from(samples, len(samples) - _SAMPLE.size)
    total, calls, elapsed_ms = last[field] - first[field], last[CALLS] - first[CALLS], last[0] - first[0]
    return Figures(
        total,
        total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
        total / calls if calls > 0 else 0.0,
    )


class RateLog:
    """Totals once a second for ten minutes: the "10 s, 1 min, 10 min" figures of request 28."""

    SPANS_S = (10, 60, 600)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=max(self.SPANS_S) + 1)

    def sample(self, now_ms: int, total: int) -> None:
        """Take the sample of this second."""
        self._samples.append((now_ms, total))

    def rates(self) -> list[float | None]:
        """Per second over each span; None if the broker has not run that long."""
        found: list[float | None] = []
        for span_s in self.SPANS_S:
            if len(self._samples) <= span_s:
                found.append(None)
                continue
            then, now = self._samples[-1 - span_s], self._samples[-1]
            elapsed_ms = now[0] - then[0]
            found.append((now[1] - then[1]) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0)
        return found


class DayMarks:
    """Totals as they stood at the last two midnights of local time: `msgPutTotalTodayMorning` and its like."""

    def __init__(self) -> None:
        self._day: tuple[int, int] | None = None
        self.yesterday_morning = 0
        self.today_morning = 0

    def sample(self, now_ms: int, total: int) -> None:
        """Look whether a new day has begun."""
        local = time.localtime(now_ms / 1000)
        day = (local.tm_year, local.tm_yday)
        if self._day is not None and day != self._day:
            self.yesterday_morning, self.today_morning = self.today_morning, total
        self._day = day


class BrokerStats:
    """All counters of one broker.

    Args:
        cluster_name: the key under which the broker's own totals are kept.
        now_ms: when the broker started, wall clock in ms.
    """

    def __init__(self, cluster_name: str, now_ms: int) -> None:
        self.boot_ms = now_ms
        self.put_rate = RateLog()
        self.transferred_rate = RateLog()
        self.found_rate = RateLog()
        self.missed_rate = RateLog()
        self.put_marks = DayMarks()
        self.get_marks = DayMarks()
        self.put_failures = 0
        """Messages refused by the store; the send path adds to it."""
        self.gets_found = 0
        """Pulls answered with messages."""
        self.send_waits = Histogram()
        """How long sends waited for disk or slave."""
        self.gets_missed = 0
        """Pulls that found nothing."""
        self._cluster_name = cluster_name
        self._puts: dict[str, Counter] = {}
        self._queue_puts: dict[tuple[str, int], Counter] = {}
        self._gets: dict[tuple[str, int, str], Counter] = {}
        self._group_gets: dict[tuple[str, str], dict[int, Counter]] = {}
        self._send_backs: dict[tuple[str, str], Counter] = {}
        self._retired_puts = Counter()
        self._retired_gets = Counter()
        self._histories: dict[tuple[str, str], History] = {}
        self._next_minute_ms = now_ms + MINUTE_STEP_MS
        self._next_hour_ms = now_ms + HOUR_STEP_MS
        self._next_day_ms = now_ms + DAY_STEP_MS

    # -- counting: the hot path

    def put_counter(self, topic: str) -> Counter:
        """The counter of messages stored for a topic, created when new; the shared counter if there are too many."""
        counter = self._puts.get(topic)
        if counter is None:
            if len(self._puts) >= MOST_COUNTERS:
                return self._retired_puts
            counter = self._puts[topic] = Counter()
        return counter

    def get_counter(self, topic: str, queue_id: int, group: str) -> Counter:
        """The counter of messages given to a group from one queue, created when new; the shared counter if there are too
        many."""
        key = (topic, queue_id, group)
        counter = self._gets.get(key)
        if counter is None:
            if len(self._gets) >= MOST_COUNTERS:
                return self._retired_gets
            counter = self._gets[key] = Counter()
            self._group_gets.setdefault((topic, group), {})[queue_id] = counter
        return counter

    def count_put(self, topic: str, messages: int, size_bytes: int, calls: int = 1) -> None:
        """Messages of one send, or of more `calls`, were stored; `size_bytes` counts whole records."""
        counter = self._puts.get(topic) or self.put_counter(topic)
        counter.messages += messages
        counter.size_bytes += size_bytes
        counter.calls += calls

    def count_queue_put(self, topic: str, queue_id: int, messages: int, size_bytes: int) -> None:
        """The same by queue, which 4.9 keeps for the schedule topic only."""
        counter = self._queue_puts.setdefault((topic, queue_id), Counter())
        counter.messages += messages
        counter.size_bytes += size_bytes
        counter.calls += 1

    def count_get(
        self,
        topic: str,
        queue_id: int,
        group: str,
        messages: int,
        size_bytes: int,
        latency_ms: int = 0,
        age_ms: int = 0,
    ) -> None:
        """One pull was answered with messages.

        Args:
            topic: the pulled topic.
            queue_id: the pulled queue.
            group: the consumer group.
            messages: how many messages.
            size_bytes: bytes of their records.
            latency_ms: what request 315 calls the latency.
            age_ms: how long ago the first of them was stored.
        """
        counter = self._gets.get((topic, queue_id, group)) or self.get_counter(topic, queue_id, group)
        counter.messages += messages
        counter.size_bytes += size_bytes
        counter.latency_ms += latency_ms
        counter.age_ms += age_ms
        counter.calls += 1
        self.gets_found += 1

    def count_waits(self, topic: str, waited_s: float, sends: int) -> None:
        """So many sends have waited so long for disk or slave."""
        self.send_waits.observe(waited_s, sends)
        counter = self._puts.get(topic) or self.put_counter(topic)
        counter.waits += sends
        counter.waited_us += int(waited_s * 1_000_000) * sends

    def count_miss(self) -> None:
        """One pull found nothing."""
        self.gets_missed += 1

    def count_send_back(self, topic: str, group: str) -> None:
        """A consumer gave one message back for a later attempt."""
        counter = self._send_backs.get((topic, group))
        if counter is None:
            if len(self._send_backs) >= MOST_COUNTERS:
                return
            counter = self._send_backs[topic, group] = Counter()
        counter.messages += 1
        counter.calls += 1

    # -- reading

    def puts(self) -> list[tuple[str, Counter]]:
        """The counters of messages stored, by topic."""
        return list(self._puts.items())

    def gets(self) -> Iterator[tuple[str, str, Counter]]:
        """Topic, group and counts of messages given to the group, over all queues."""
        for (topic, group), counters in list(self._group_gets.items()):
            of_group = Counter()
            for counter in counters.values():
                of_group.add(counter)
            yield topic, group, of_group

    def send_backs(self) -> list[tuple[tuple[str, str], Counter]]:
        """The counters of messages given back, by topic and group."""
        return list(self._send_backs.items())

    @property
    def messages_put(self) -> int:
        """Messages stored since the start."""
        return self._retired_puts.messages + sum(counter.messages for counter in self._puts.values())

    @property
    def bytes_put(self) -> int:
        """Bytes of records stored since the start."""
        return self._retired_puts.size_bytes + sum(counter.size_bytes for counter in self._puts.values())

    @property
    def puts_made(self) -> int:
        """Requests since the start that stored messages."""
        return self._retired_puts.calls + sum(counter.calls for counter in self._puts.values())

    @property
    def messages_got(self) -> int:
        """Messages given to consumers since the start."""
        return self._retired_gets.messages + sum(counter.messages for counter in self._gets.values())

    def statistic(self, name: str, key: str) -> Statistic | None:
        """The figures of request 315; None where nothing was ever counted under this name and key."""
        if name == "GROUP_GET_LATENCY":
            queue_id, _, rest = key.partition("@")
            topic, _, group = rest.partition("@")
            return self._statistic("QUEUE_GET", f"{topic}@{queue_id}@{group}", LATENCY)
        if name.endswith("_NUMS"):
            return self._statistic(name.removesuffix("_NUMS"), key, MESSAGES)
        if name.endswith("_SIZE"):
            return self._statistic(name.removesuffix("_SIZE"), key, SIZE)
        return None

    def group_get_tps(self, topic: str, group: str) -> float:
        """Messages per second given to a group from a topic in the last minute."""
        found = self.statistic("GROUP_GET_NUMS", f"{topic}@{group}")
        return 0.0 if found is None else found.minute.tps

    # -- the timer

    def sample(self, now_ms: int) -> None:
        """Take whatever samples are due, all at once, while the wall clock is as it was set at the start."""
        for _ in self.sample_in_slices(now_ms, now_ms):
            pass

    def sample_in_slices(self, now_ms: int, wall_ms: int) -> Iterator[None]:
        """Take all samples that are due; called once a second. At each step other tasks may have their turn.

        Args:
            now_ms: the broker's start plus the time since then, by a clock that is never set.
            wall_ms: the wall clock, which determines when a day begins.
        """
        put, got = self.messages_put, self.messages_got
        self.put_rate.sample(now_ms, put)
        self.transferred_rate.sample(now_ms, got)
        self.found_rate.sample(now_ms, self.gets_found)
        self.missed_rate.sample(now_ms, self.gets_missed)
        self.put_marks.sample(wall_ms, put)
        self.get_marks.sample(wall_ms, got)
        if now_ms < self._next_minute_ms:
            return
        self._next_minute_ms += MINUTE_STEP_MS
        if self._next_minute_ms <= now_ms:  # the process slept
            self._next_minute_ms = now_ms + MINUTE_STEP_MS
        hour, day = now_ms >= self._next_hour_ms, now_ms >= self._next_day_ms
        if hour:
            self._next_hour_ms = now_ms + HOUR_STEP_MS
        if day:
            self._next_day_ms = now_ms + DAY_STEP_MS
        for number, (family, key, counter) in enumerate(self._families(), 1):
            history = self._histories.get((family, key))
            if history is None:
                history = self._histories[family, key] = History(now_ms)
            history.sample(now_ms, counter, hour=hour, day=day)
            if number % SAMPLES_AT_ONCE == 0:
                yield
        if hour:
            self._drop_idle(now_ms)

    def _statistic(self, family: str, key: str, field: int) -> Statistic | None:
        history = self._histories.get((family, key))
        if history is not None:
            return history.statistic(field)
        return Statistic(Figures(), Figures(), Figures()) if self._counted(family, key) else None

    def _counted(self, family: str, key: str) -> bool:
        """Whether there is such a counter, which may not have been sampled yet."""
        parts = key.split("@")
        match family, parts:
            case "TOPIC_PUT", [topic]:
                return topic in self._puts
            case "QUEUE_PUT", [topic, queue]:
                return _is_queue(queue) and (topic, int(queue)) in self._queue_puts
            case "QUEUE_GET", [topic, queue, group]:
                return _is_queue(queue) and (topic, int(queue), group) in self._gets
            case "GROUP_GET", [topic, group]:
                return (topic, group) in self._group_gets
            case "SNDBCK_PUT", [topic, group]:
                return (topic, group) in self._send_backs
            case "BROKER_PUT", _:
                return key == self._cluster_name and bool(self._puts or self._retired_puts.calls)
            case "BROKER_GET", _:
                return key == self._cluster_name and bool(self._gets or self._retired_gets.calls)
        return False

    def _families(self) -> Iterator[tuple[str, str, Counter]]:
        """Every counter under its name in 4.9, including sums. Counters may be added and removed in the meantime."""
        all_puts, all_gets = Counter(), Counter()
        all_puts.add(self._retired_puts)
        all_gets.add(self._retired_gets)
        for topic, counter in list(self._puts.items()):
            all_puts.add(counter)
            yield "TOPIC_PUT", topic, counter
        for (topic, queue_id), counter in list(self._queue_puts.items()):
            yield "QUEUE_PUT", f"{topic}@{queue_id}", counter
        for (topic, queue_id, group), counter in list(self._gets.items()):
            all_gets.add(counter)
            yield "QUEUE_GET", f"{topic}@{queue_id}@{group}", counter
        for (topic, group), counters in list(self._group_gets.items()):
            of_group = Counter()
            for counter in counters.values():
                of_group.add(counter)
            yield "GROUP_GET", f"{topic}@{group}", of_group
        for (topic, group), counter in list(self._send_backs.items()):
            yield "SNDBCK_PUT", f"{topic}@{group}", counter
        if all_puts.calls:
            yield "BROKER_PUT", self._cluster_name, all_puts
        if all_gets.calls:
            yield "BROKER_GET", self._cluster_name, all_gets

    def _drop_idle(self, now_ms: int) -> None:
        """Forget counters that have not changed for two days; the broker's totals keep their counts."""
        idle = {key for key, history in self._histories.items() if now_ms - history.moved_ms > IDLE_LIMIT_MS}
        if not idle:
            return
        for topic in [topic for topic in self._puts if ("TOPIC_PUT", topic) in idle]:
            self._retired_puts.add(self._puts.pop(topic))
        for topic, queue_id in [key for key in self._queue_puts if ("QUEUE_PUT", f"{key[0]}@{key[1]}") in idle]:
            del self._queue_puts[topic, queue_id]
        for of in [of for of in self._gets if ("QUEUE_GET", f"{of[0]}@{of[1]}@{of[2]}") in idle]:
            self._retired_gets.add(self._gets.pop(of))
            queues = self._group_gets[of[0], of[2]]
            del queues[of[1]]
            if not queues:
                del self._group_gets[of[0], of[2]]
        for pair in [pair for pair in self._send_backs if ("SNDBCK_PUT", f"{pair[0]}@{pair[1]}") in idle]:
            del self._send_backs[pair]
        for key in idle:
            del self._histories[key]
