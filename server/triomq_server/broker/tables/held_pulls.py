"""Pulls that found nothing and wait for a message: held by queue, woken by arrivals, answered at their deadline.

There is no task per pull, only one dictionary per queue, one heap of deadlines and one task that sleeps until the first
of them. It answers to `PullRequestHoldService` and `NotifyMessageArrivingListener`; rules:
docs/protocol/broker-api.md §5.4.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import trio

from triomq_protocol.wire.command import Command
from triomq_server.store import Arrival, TagMatcher
from triomq_server.wire import Link

K = TypeVar("K", bound=Hashable)

SCAN_S = 5.0
"""How often 4.9 scans held pulls; on its slaves nothing else wakes readers."""


LEAST_SHARE = 1000
"""Pulls that any one link, and any one host, may have held."""

BYTES_PER_PLACE = 1024
"""A held pull keeps its request, whose fields and body may be long: it counts as one more pull for each this many
bytes."""

AT_ONCE = 200
"""Pulls that are run again before other tasks have their turn."""

FEW = 64
"""Pulls of a queue that an arrival checks in any case."""
LOOKED_AT_ONCE = 4096
"""Pulls of queues with more than a FEW that arrivals check before other tasks get their turn; a pull counts once for
each tag that has arrived."""

TAGS_MOST = 256
"""Different tags that have arrived in a queue and that its pulls are compared with: with more of them, to run all of its
pulls again takes less time."""

DROPPED_AT_ONCE = 1000
"""Pulls of closed links that are forgotten before other tasks have their turn."""

TURN_S = 0.01
"""Time after which other tasks have their turn: filters of messages may be long."""


EXAMINED_AT_ONCE = 256
"""Records that a held pull examines per arrival."""


class HeldPull:
    """One held pull.

    Attributes:
        link, command: the client's link, and its request.
        topic, queue_id, offset: the place to read from.
        matcher: its filter; None: every message.
        places: the number of ordinary pulls it counts as.
        deadline: time at which it is answered in any case, on trio's clock.
        examines: whether its filter reads the records themselves.
        examined: its filter has examined records up to this queue offset, without a match.
        examine_to: there are records to examine up to this queue offset.
        waits: false once it has been run again or dropped.
        woken: it is about to be run again, and further arrivals do not wake it.
    """

    __slots__ = (
        "command",
        "deadline",
        "examine_to",
        "examined",
        "examines",
        "link",
        "matcher",
        "number",
        "offset",
        "places",
        "queue_id",
        "topic",
        "waits",
        "woken",
    )

    def __init__(
        self,
        link: Link,
        command: Command,
        topic: str,
        queue_id: int,
        offset: int,
        matcher: TagMatcher | None,
        deadline: float,
    ) -> None:
        self.link = link
        self.command = command
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.matcher = matcher
        self.deadline = deadline
        self.waits = True
        self.woken = False
        self.examines = False
        self.examined = self.examine_to = offset
        self.number = 0
        self.places = 1 + command.received_bytes // BYTES_PER_PLACE


class HeldPulls:
    """All held pulls of a broker.

    Args:
        limit: the most pulls held at once, counted in places; one link may use a tenth of them, one client's host a
            half, but at least 1000 each, so that no reader takes the places of the others.
        host_of: the key by which a link's host is counted.
        scan_s: None (the safe rule): deadlines are exact. A number: deadlines are checked only at this interval, as in
            RocketMQ 4.9.
        queue_end: the end of a queue; with it each scan also wakes pulls that have missed an arrival, as slaves of 4.9
            do.
        record_of: the record at an offset of a queue, for filters that read records.
        now: a clock in seconds, for TURN_S.
    """

    def __init__(
        self,
        *,
        limit: int,
        scan_s: float | None = None,
        queue_end: Callable[[str, int], int] | None = None,
        record_of: Callable[[str, int, int], memoryview | None] = lambda *_: None,
        host_of: Callable[[Link], Hashable] = lambda link: link,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.resume: Callable[[HeldPull], None] = _ignore
        """Runs a pull again and sends its answer; must not wait and must not hold again. Set by `requests.pull`."""
        self._limit = limit
        self._host_of = host_of
        self._hosts: Counter[Hashable] = Counter()
        self._later: deque[HeldPull] = deque()
        """Woken, but not yet run again: one message may wake thousands."""
        self._to_examine: deque[HeldPull] = deque()
        """Pulls whose filters have to examine new records."""
        self._now = now
        self._spent_s = 0.0  # since the task of `run` had its last turn
        self._scan_s = scan_s
        self._queue_end = queue_end
        self._record_of = record_of
        self.queues: dict[tuple[str, int], dict[int, HeldPull]] = {}
        """The held pulls of each queue that has any."""
        self._links: dict[Link, dict[int, HeldPull]] = {}
        self._places_of_links: Counter[Link] = Counter()
        self._places = 0
        self._held: dict[int, HeldPull] = {}
        # Without the pulls themselves, whose requests may be long: an entry stays until its deadline.
        self._deadlines: list[tuple[float, int]] = []
        self._next_number = 0
        self._dropped: dict[Link, None] = {}
        """Closed links that still have pulls."""
        self._drops_left = DROPPED_AT_ONCE
        self._arrivals: dict[tuple[str, int], dict[int | None, int]] = {}
        """Arrivals in queues with very many pulls that have not been checked yet: the tags' codes, None for any, and the
        last `next_offset` of each."""
        self._walk: tuple[dict[int | None, int], Iterator[int]] | None = None
        """The current work: the arrivals of a queue, and the numbers of its pulls."""
        self._looks_left = LOOKED_AT_ONCE
        self._earlier = trio.Event()
        self.waiting = 0
        """How many pulls are held now."""

    def hold(self, held: HeldPull) -> bool:
        """Hold a pull until a message comes for it or its deadline passes; false if there are too many already."""
        limit, link, host = self._limit, held.link, self._host_of(held.link)
        more = held.places - 1
        if (
            self._places + more >= limit
            or self._places_of_links[link] + more >= max(limit // 10, LEAST_SHARE)
            or self._hosts[host] + more >= max(limit // 2, LEAST_SHARE)
        ):
            return False
        self._places += held.places
        self._places_of_links[link] += held.places
        self._hosts[host] += held.places
        number = held.number = self._next_number
        self._next_number = number + 1
        self.queues.setdefault((held.topic, held.queue_id), {})[number] = held
        self._links.setdefault(link, {})[number] = self._held[number] = held
        if not self._deadlines or held.deadline < self._deadlines[0][0]:
            self._earlier.set()
        heapq.heappush(self._deadlines, (held.deadline, number))
        self.waiting += 1
        return True

    def arrived(self, arrival: Arrival) -> None:
        """A message has become readable: run again every pull of its queue that may want it; very many in turns."""
        key = arrival.topic, arrival.queue_id
        queue = self.queues.get(key)
        if queue is None:
            return
        code, next_offset = arrival.tags_code, arrival.next_offset
        if len(queue) > FEW:
            self._earlier.set()
            if len(queue) > self._looks_left or key in self._arrivals:
                codes = self._arrivals.setdefault(key, {})
                if len(codes) >= TAGS_MOST and code not in codes:
                    next_offset = max(next_offset, *codes.values())
                    codes.clear()
                    code = None
                codes[code] = max(next_offset, codes.get(code, 0))
                self._look()
                return
            self._looks_left -= len(queue)
        woken = [held for held in queue.values() if self._wakes(held, code, next_offset)]
        if self._to_examine:
            self._earlier.set()
        self._wake(woken)

    def wake_link(self, link: Link) -> None:
        """Run all pulls of a link again: its group has another subscription, which may want what they have passed over."""
        self._wake(list(self._links.get(link, {}).values()))

    def wake_all(self) -> None:
        """Run all pulls again, in turns: those that find nothing are answered, so that their readers ask again."""
        self._wake(list(self._held.values()))

    def _wakes(self, held: HeldPull, code: int | None, next_offset: int) -> bool:
        """Whether a message makes a pull run again; one whose filter looks into messages does so later."""
        if held.woken or held.offset >= next_offset:
            return False
        if code is not None and held.matcher is not None and not held.matcher.by_consume_queue(code):
            return False
        if not held.examines:
            return True
        if held.examine_to <= held.examined:
            self._to_examine.append(held)
        held.examine_to = max(held.examine_to, next_offset)
        return False

    def _look(self) -> None:
        """Look at pulls of queues with very many of them, until the turn is over."""
        while self._looks_left > 0:
            if self._walk is None:
                if not self._arrivals:
                    return
                key = next(iter(self._arrivals))
                self._walk = self._arrivals.pop(key), iter(tuple(self.queues.get(key, ())))
            codes, numbers = self._walk
            woken = []
            for number in numbers:
                held = self._held.get(number)
                if held is not None:
                    self._looks_left -= len(codes)
                    if any(self._wakes(held, code, next_offset) for code, next_offset in codes.items()):
                        woken.append(held)
                if self._looks_left <= 0:
                    break
            else:
                self._walk = None
            self._wake(woken)

    def _examine(self) -> None:
        """Let filters examine new records until the turn is over, and wake the pulls whose filters match."""
        ends = self._now() + TURN_S
        woken = []
        while self._to_examine and self._now() <= ends:
            held = self._to_examine[0]
            if held.waits and held.examine_to - held.examined <= EXAMINED_AT_ONCE:
                assert held.matcher is not None
                record = self._record_of(held.topic, held.queue_id, held.examined)
                held.examined += 1
                if record is None or not held.matcher.by_commitlog(record):
                    if held.examined >= held.examine_to:
                        self._to_examine.popleft()
                    continue
            # Otherwise the pull itself examines a limited number of records.
            self._to_examine.popleft()
            woken.append(held)
        self._wake(woken)

    def drop_link(self, link: Link) -> None:
        """Forget the pulls of a closed link: some now, and very many in turns."""
        if link in self._links:
            self._dropped[link] = None
            self._drop()
            self._earlier.set()

    def _drop(self) -> None:
        """Forget pulls of closed links, until the turn is over."""
        while self._dropped and self._drops_left:
            link = next(iter(self._dropped))
            for held in list(islice(self._links.get(link, {}).values(), self._drops_left)):
                self._forget(held)
                self._drops_left -= 1
            if link not in self._links:
                del self._dropped[link]

    async def run(self) -> None:
        """Answer pulls whose time has come, until cancelled."""
        while True:
            if self._has_work:
                await trio.lowlevel.checkpoint()
                self._spent_s = 0.0
                self._drops_left = DROPPED_AT_ONCE
                self._looks_left = LOOKED_AT_ONCE
                self._drop()
                self._look()
                self._examine()
                self._run_later()
                continue
            if self._scan_s is not None:
                with trio.move_on_after(self._scan_s):
                    self._earlier = trio.Event()
                    while not self._has_work:
                        await self._earlier.wait()
                        self._earlier = trio.Event()
                    continue
                self._wake_missed()
            else:
                self._earlier = trio.Event()
                first = self._deadlines[0][0] if self._deadlines else float("inf")
                with trio.move_on_at(first):
                    await self._earlier.wait()
            self._wake_expired(trio.current_time())

    @property
    def _has_work(self) -> bool:
        """Whether a turn has left something, or has to be counted as over."""
        counted = self._drops_left < DROPPED_AT_ONCE or self._looks_left < LOOKED_AT_ONCE
        return bool(self._later or self._to_examine or self._arrivals or self._walk or counted)

    def _wake_expired(self, now: float) -> None:
        due: list[HeldPull] = []
        heap = self._deadlines
        while heap and (heap[0][0] <= now or heap[0][1] not in self._held):
            held = self._held.get(heapq.heappop(heap)[1])
            if held is not None:
                due.append(held)
        self._wake(due)

    def _wake_missed(self) -> None:
        """Wake pulls that have missed an arrival: a 4.9 slave is not informed of arrivals."""
        if self._queue_end is None:
            return
        for (topic, queue_id), queue in list(self.queues.items()):
            end = self._queue_end(topic, queue_id)
            self._wake([held for held in queue.values() if held.offset < end])

    def _wake(self, pulls: Sequence[HeldPull]) -> None:
        others_first = bool(self._later)
        for held in pulls:
            if not held.woken:  # a client may wake its pulls again and again before they run
                held.woken = True
                self._later.append(held)
        if not others_first:
            self._run_later()

    def _run_later(self) -> None:
        """Run woken pulls again, up to the limit of one turn."""
        for _ in range(AT_ONCE):
            if not self._later or self._spent_s > TURN_S:
                break
            held = self._later.popleft()
            if not held.waits:
                continue  # an answer sent just before has closed this one's link
            self._forget(held)
            if not held.link.closed:
                begun = self._now()
                self.resume(held)
                self._spent_s += self._now() - begun
        if self._later:
            self._earlier.set()

    def _forget(self, held: HeldPull) -> None:
        held.waits = False
        self._places -= held.places
        _take(self._hosts, self._host_of(held.link), held.places)
        _take(self._places_of_links, held.link, held.places)
        self.waiting -= 1
        _remove(self.queues, (held.topic, held.queue_id), held.number)
        _remove(self._links, held.link, held.number)
        del self._held[held.number]
        # The heap keeps forgotten pulls until their deadline; when most of it is forgotten, rebuild it.
        if len(self._deadlines) > 2 * self.waiting + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._held]
            heapq.heapify(self._deadlines)


def _take(counts: Counter[K], key: K, places: int) -> None:
    """Give places back, and an empty count out of the table."""
    counts[key] -= places
    if not counts[key]:
        del counts[key]


def _remove(table: dict[K, dict[int, HeldPull]], key: K, number: int) -> None:
    """Take one pull out of its bucket, and an empty bucket out of the table."""
    bucket = table[key]
    del bucket[number]
    if not bucket:
        del table[key]


def _ignore(held: HeldPull) -> None:
    """Do nothing: the default of `HeldPulls.resume`."""
