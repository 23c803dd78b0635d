"""A workload as a value, checked as a whole.  `files.py` reads it from TOML and YAML.

All quantities are in the unit their name ends with; `settings` gives all of them, defaults included, for results.
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from triomq_benchmarks.workload.quantities import duration_s, rate_per_s

HEAD_BYTES = 24
"""Each body starts with the message's number and intended time (`bodies.py`), so it cannot be shorter."""

BODY_MAX_BYTES = 4 * 1024 * 1024
"""The largest body that producers send, as stock brokers store it (``maxMessageSize``)."""

PAYLOADS_MAX_BYTES = 4 * 2**30
"""Maximum of the generated bodies of all producers together, which are kept in memory during a run."""

_OBJECT_BYTES = 64
"""What Python needs for a body in addition to its bytes, about."""

TAG_WEIGHT_MAX = 1e9
"""Maximum weight of a tag; weights are relative to each other."""

MASTERS_MAX = 26
"""Maximum number of broker sets of a started cluster, which are named after the letters."""


class WorkloadError(Exception):
    """A workload cannot be run as written; the message names the key, the cause and the remedy."""


class SendMode(enum.StrEnum):
    """How producers send."""

    SYNC = "sync"
    """One message at a time per producer: `await producer.send(message)`."""
    ASYNC = "async"
    """Concurrent awaited sends, each in a separate task."""
    CALLBACK = "callback"
    """`await producer.send(message, callback)`."""
    ONEWAY = "oneway"
    """No answer is sent; there is no latency to an acknowledgement, only to the consumer."""


class Loop(enum.StrEnum):
    """What determines the time of the next send."""

    OPEN = "open"
    """A timetable fixed in advance: a slow answer delays no later message, and latency counts from the timetable."""
    CLOSED = "closed"
    """Answers: a fixed number of sends is always in flight. Measures throughput, but percentiles hide stalls."""


class Arrivals(enum.StrEnum):
    """The timetable of an open loop."""

    CONSTANT = "constant"
    POISSON = "poisson"
    RAMP = "ramp"
    STEP = "step"


class ConsumeMode(enum.StrEnum):
    """How consumers read."""

    PULL = "pull"
    """`consumer.pull`, with each queue read by one consumer and positions kept by the generator."""
    PUSH = "push"
    """A push consumer of the SDK, with queues assigned by rebalancing."""
    NONE = "none"


class Keys(enum.StrEnum):
    """The keys of messages."""

    NONE = "none"
    UNIQUE = "unique"
    ROUND_ROBIN = "round-robin"
    RANDOM = "random"


class Compression(enum.StrEnum):
    """The producer's compression of bodies."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


class FaultKind(enum.StrEnum):
    """A fault of a node."""

    KILL = "kill"
    """SIGKILL, without a restart."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after `for_s`: the process exists, but does not answer."""
    RESTART = "restart"
    """SIGKILL, and a new start on the same files and port after `for_s`."""
    CUT = "cut"
    """All its links break, and new ones too for `for_s`; the process keeps running."""


@attrs.frozen
class Fault:
    """A fault injected into a node, for example `pause master at 10 s for 2 s`.

    Attributes:
        kind: the kind of fault.
        node: `master`, `slave`, `namesrv`, or a node's name (`broker-a`, `broker-a-s`).
        at_s: seconds since the measured part began.
        for_s: seconds until it is undone; 0 for a kill.
    """

    kind: FaultKind
    node: str
    at_s: float
    for_s: float = 0.0

    def __str__(self) -> str:
        ending = f" for {self.for_s:g} s" if self.for_s else ""
        return f"{self.kind} {self.node} at {self.at_s:g} s{ending}"

    _TEXT: ClassVar = re.compile(r"(?P<kind>\w+)\s+(?P<node>[\w.-]+)\s+at\s+(?P<at>.+?)(?:\s+for\s+(?P<length>.+))?\Z")
    _LENGTHS_S: ClassVar = {FaultKind.KILL: 0.0, FaultKind.PAUSE: 2.0, FaultKind.RESTART: 1.0, FaultKind.CUT: 2.0}

    @classmethod
    def parse(cls, text: object) -> Fault:
        """Read `KIND NODE at TIME [for TIME]`. Raises WorkloadError."""
        match = cls._TEXT.match(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise WorkloadError(
                f'{text!r} is not a fault; write it like "kill master at 10 s" or "pause slave at 5 s for 2 s"'
            )
        try:
            kind = FaultKind(match["kind"].lower())
        except ValueError:
            raise WorkloadError(f"{match['kind']!r} is not a fault; there are {', '.join(FaultKind)}") from None
        length = match["length"]
        if length and kind is FaultKind.KILL:
            raise WorkloadError(f"{text!r}: what is killed stays down; for a while it is `restart`")
        return cls(kind, match["node"], duration_s(match["at"]), duration_s(length) if length else cls._LENGTHS_S[kind])


_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
}  # fmt: skip


@attrs.frozen
class Threshold:
    """A value that a run must reach, for example `p99_ms < 50`, `rate >= 950`, `intended_to_consumed.p99_ms < 100`.

    Attributes:
        measure: one of `MEASURES`; a percentile follows its histogram's name if that is not `intended_to_ack`.
        symbol: `<`, `<=`, `>`, `>=` or `==`.
        limit: in the measure's unit.
    """

    measure: str
    symbol: str
    limit: float

    _TEXT: ClassVar = re.compile(r"([\w.]+)\s*(<=|>=|==|<|>)\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\Z")

    def __str__(self) -> str:
        return f"{self.measure} {self.symbol} {self.limit:.15g}"

    def holds(self, measured: float) -> bool:
        """Whether a measured value meets the threshold."""
        return _OPERATORS[self.symbol](measured, self.limit)

    @classmethod
    def parse(cls, text: object) -> Threshold:
        """Read `MEASURE OPERATOR NUMBER`. Raises WorkloadError."""
        match = cls._TEXT.match(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise WorkloadError(f'{text!r} is not a threshold; write it like "p99_ms < 50" or "errors == 0"')
        if match[1] not in MEASURES:
            raise WorkloadError(f"{match[1]!r} is not a measure; there are {', '.join(MEASURES)}")
        return cls(match[1], match[2], float(match[3]))


PERCENTILES = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "p9999_ms", "max_ms", "mean_ms")
MEASURES = (
    *PERCENTILES,
    *(
        f"{histogram}.{percentile}"
        for histogram in ("intended_to_ack", "actual_to_ack", "lateness", "intended_to_consumed")
        for percentile in PERCENTILES
    ),
    "rate", "consume_rate", "errors", "unsent", "backlog", "caught_up_s", "held_s", "drained_s", "from_master", "from_slave",
)  # fmt: skip


@attrs.frozen
class Step:
    """A stretch of a timetable with steps: `500/s for 5 s`."""

    rate_per_s: float
    for_s: float

    @classmethod
    def parse(cls, text: object) -> Step:
        """Read `RATE for DURATION`. Raises WorkloadError."""
        rate, word, length = text.partition(" for ") if isinstance(text, str) else ("", "", "")
        if not word:
            raise WorkloadError(f'{text!r} is not a step; write it like "500/s for 5 s"')
        return cls(rate_per_s(rate), duration_s(length))


@attrs.frozen
class SlowConsumer:
    """Consumers held back for a while: `50/s until 8 s`; the rate is that of all consumers of a group together."""

    rate_per_s: float
    until_s: float

    @classmethod
    def parse(cls, text: object) -> SlowConsumer:
        """Read `RATE until TIME`. Raises WorkloadError."""
        rate, word, until = text.partition(" until ") if isinstance(text, str) else ("", "", "")
        if not word:
            raise WorkloadError(f'{text!r} does not give the rate of slow consumers; write it like "50/s until 8 s"')
        return cls(rate_per_s(rate), duration_s(until))


@attrs.frozen(kw_only=True)
class ClusterShape:
    """The shape of a cluster that is started for a run.

    Attributes:
        masters: number of broker sets.
        slaves: number of slaves of each master.
        sync_replication: whether sends wait for a slave.
        memory_bytes: memory size that the brokers assume (readers may lag by 40 % of it); None: the machine's.
        settings: additional keys of RocketMQ's configuration.
    """

    masters: int = 1
    slaves: int = 0
    sync_replication: bool = False
    memory_bytes: int | None = None
    settings: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Workload:
    """A load and its target. `docs/how-to/measure.md` describes each key.

    Attributes:
        name: the workload's name.
        description: one line.
        topics: number of topics made for the run.
        topic_names: topics to use instead, in order; they must exist unless `create_topics`.
        create_topics: whether topics that do not exist are created.
        queues_per_topic: number of queues on each master.
        body_bytes: size of a body, its head included.
        payload_file: bodies are this file's content after the head, instead of generated text.
        random_share: share of random bytes in generated bodies; the rest is easy to compress.
        payload_pool: number of different generated bodies.
        tags: tag -> weight; empty: no tags.
        keys: the keys of messages.
        compression: compression of bodies, whatever their size.
        ordered_share: share of messages whose queue is chosen by the hash of one of 1,000 ordering keys.
        send_mode: how producers send.
        batch: messages per request (sync and async only).
        loop: open or closed.
        in_flight: maximum number of one producer's unanswered sends.
        producers: number of producers per topic.
        rate_per_s: messages of all producers together; for a ramp, at its start; ignored in a closed loop.
        rate_to_per_s: the rate at the end of a ramp.
        steps: the steps of arrivals in steps.
        arrivals: the timetable.
        send_timeout_s: timeout of one send with all its attempts.
        consume: how consumers read.
        groups: consumer groups, each of which reads everything (subscriptionsPerTopic).
        consumers: number of consumers per group.
        pull_batch: maximum number of messages per pull.
        read_preference: the brokers from which consumers pull.
        slow_consumer: consumers held back for a while.
        backlog_bytes: size of bodies sent before the run, for consumers to start from.
        duration_s: length of the measured part.
        warm_up_s: length of the warm-up before it.
        drain_s: maximum time for consumers and for answers after the last send.
        lateness_limit_ms: permitted delay of a message by the generator itself.
        late_allowed: share of messages that may exceed it; a run with more does not count.
        errors_allowed: share of sends that may fail.
        repeats_allowed: share of messages that may be consumed again, because a send with a late answer was repeated.
        thresholds: values that the run must reach.
        faults: the faults to inject.
        cluster: the cluster to start.
        ignored: keys of the file without meaning here, with the reason.
    """

    name: str
    description: str = ""
    topics: int = 1
    topic_names: tuple[str, ...] = ()
    create_topics: bool = False
    queues_per_topic: int = 4
    body_bytes: int = 1024
    payload_file: str | None = None
    random_share: float = 0.5
    payload_pool: int = 64
    tags: Mapping[str, float] = attrs.field(factory=dict)
    keys: Keys = Keys.NONE
    compression: Compression = Compression.NONE
    ordered_share: float = 0.0
    send_mode: SendMode = SendMode.CALLBACK
    batch: int = 1
    loop: Loop = Loop.OPEN
    in_flight: int = 1024
    producers: int = 1
    rate_per_s: float = 1000.0
    rate_to_per_s: float | None = None
    steps: tuple[Step, ...] = ()
    arrivals: Arrivals = Arrivals.CONSTANT
    send_timeout_s: float = 3.0
    consume: ConsumeMode = ConsumeMode.PULL
    groups: int = 1
    consumers: int = 1
    pull_batch: int = 32
    read_preference: str = "suggested"
    slow_consumer: SlowConsumer | None = None
    backlog_bytes: int = 0
    duration_s: float = 20.0
    warm_up_s: float = 3.0
    drain_s: float = 10.0
    lateness_limit_ms: float = 10.0
    late_allowed: float = 0.01
    errors_allowed: float = 0.0
    repeats_allowed: float = 0.0
    thresholds: tuple[Threshold, ...] = ()
    faults: tuple[Fault, ...] = ()
    cluster: ClusterShape = attrs.field(factory=ClusterShape)
    ignored: Mapping[str, str] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for wrong, text in self._rules():
            if wrong:
                raise WorkloadError(f"workload {self.name}: {text}")

    def _rules(self) -> list[tuple[bool, str]]:
        """The contradictions between settings, with the remedy."""
        closed, stepped = self.loop is Loop.CLOSED, self.arrivals is Arrivals.STEP
        consuming = self.consume is not ConsumeMode.NONE
        positive = (
            "topics", "queues_per_topic", "batch", "in_flight", "producers", "groups", "consumers", "pull_batch",
            "payload_pool", "send_timeout_s",
        )  # fmt: skip
        late = [str(fault) for fault in self.faults if fault.at_s >= self.duration_s]
        return [
            *((getattr(self, name) <= 0, f"{name} must be at least 1") for name in positive),
            (self.duration_s < 1, "the measured part (duration) must be at least 1 s"),
            (
                self.body_bytes < HEAD_BYTES,
                f"a body of {self.body_bytes} bytes is too small: each carries {HEAD_BYTES} bytes that say when it was meant to be sent",
            ),
            (
                self.body_bytes > BODY_MAX_BYTES,
                f"a body of {self.body_bytes} bytes is too large: producers send at most {BODY_MAX_BYTES} (4 MiB)",
            ),
            (
                self.payload_file is None and self.payload_pool * (self.body_bytes + _OBJECT_BYTES) * self.producer_count > PAYLOADS_MAX_BYTES,
                f"the payloads of all producers would take more than {PAYLOADS_MAX_BYTES >> 30} GiB of memory; set fewer payloads, or a smaller body",
            ),
            (not closed and not stepped and self.rate_per_s <= 0, "an open loop needs a rate; for as fast as it goes take loop = \"closed\" or --find-max-rate"),
            ((self.arrivals is Arrivals.RAMP) != (self.rate_to_per_s is not None), "a ramp needs rate and rate_to, and only a ramp has rate_to"),
            (stepped != bool(self.steps), 'arrivals in steps need steps = ["500/s for 5 s", ...], and only they have them'),
            (closed and self.arrivals is not Arrivals.CONSTANT, "a closed loop has no timetable; leave out arrivals"),
            (
                self.batch > 1 and self.send_mode not in {SendMode.SYNC, SendMode.ASYNC},
                "batches are sent with send = \"sync\" or \"async\"",
            ),
            (self.batch > 1 and self.ordered_share > 0, "a batch lies in one queue; leave out ordered"),
            (self.backlog_bytes > 0 and not consuming, "a backlog is there to be consumed; set consume"),
            (self.slow_consumer is not None and not consuming, "slow_consumer needs consumers; set consume"),
            (self.consume is ConsumeMode.PULL and self.consumers > self.queues_per_topic * self.cluster.masters * self.topic_count,
             "there are more consumers than queues; some would have nothing to do"),
            (not all(0 <= weight <= TAG_WEIGHT_MAX for weight in self.tags.values()) or (bool(self.tags) and not sum(self.tags.values())),
             f"weights of tags are numbers from 0 to {TAG_WEIGHT_MAX:g}, and one is positive"),
            (len(set(self.topic_names)) < len(self.topic_names), "topic_names has a topic twice; its messages would count twice"),
            (self.warm_up_s < 0 or self.backlog_bytes < 0, "warm-up and backlog are not negative"),
            (
                not 1 <= self.cluster.masters <= MASTERS_MAX or self.cluster.slaves < 0,
                f"a cluster has at least 1 master, at most {MASTERS_MAX}, and not less than 0 slaves",
            ),
            (bool(late), f"the fault {', '.join(late)} comes after the end of the run"),
            (self.read_preference not in READ_PREFERENCES, f"read_preference is one of {', '.join(READ_PREFERENCES)}"),
        ]  # fmt: skip

    @property
    def topic_count(self) -> int:
        """Number of topics in use, made or given."""
        return len(self.topic_names) or self.topics

    @property
    def producer_count(self) -> int:
        """Number of producers."""
        return self.producers * self.topic_count

    @property
    def intended_rate_per_s(self) -> float:
        """The mean rate of the measured part's timetable; 0 for a closed loop."""
        if self.loop is Loop.CLOSED:
            return 0.0
        if self.steps:
            return sum(step.rate_per_s * step.for_s for step in self.steps) / sum(step.for_s for step in self.steps)
        return (self.rate_per_s + self.rate_to_per_s) / 2 if self.rate_to_per_s is not None else self.rate_per_s

    def settings(self) -> dict[str, object]:
        """Every setting as plain data, defaults included."""

        def plain(_inst: object, _field: object, value: object) -> object:
            if isinstance(value, Fault | Threshold):
                return str(value)
            if isinstance(value, tuple):
                return [str(each) if isinstance(each, Fault | Threshold) else each for each in value]
            return str(value) if isinstance(value, enum.StrEnum) else value

        return attrs.asdict(self, value_serializer=plain)


READ_PREFERENCES = ("suggested", "master", "slave", "prefer_slave")
