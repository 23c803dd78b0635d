"""The options of a read and of a write: checked and converted to types. Pure.

Names and meanings are in docs/reference/spark.md. Names are case-insensitive, as in Spark.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final

import attrs

from pyspark_rocketmq.errors import BadOption, nearest
from pyspark_rocketmq.filters import tags_of
from pyspark_rocketmq.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Offsets,
    QueueId,
    parse_assignment,
    parse_offsets,
    parse_times,
)
from pyspark_rocketmq.times import duration_s_of, time_ms_of, time_text
from triomq import Credentials
from triomq._companions import check_count, check_group, check_seconds, provider_for
from triomq.errors import InvalidCall
from triomq_protocol.filters.evaluation import compile_filter
from triomq_protocol.filters.sql92 import Sql92Error

CLIENT_PREFIX: Final = "rocketmq."
DEFAULT_READ_GROUP: Final = "spark-source"
DEFAULT_WRITE_GROUP: Final = "spark-sink"
DEFAULT_DECISIONS: Final = "spark-sink-decisions"
WRITE_NAME_BYTES: Final = 255
"""The most bytes of the option `writeName`."""

DEFAULT_QUEUES: Final = 8
"""The default of the SDK's `Admin.create_topic`."""
DEFAULT_TRIGGER_DELAY_S: Final = 900.0
"""The default of Spark's Kafka source."""

MOST_QUEUES: Final = 65536
"""The limit of the SDK's `Admin.create_topic`."""

MOST_SECONDS: Final = 30 * 86_400
"""The longest duration of a client's setting. Without a limit a query would wait forever, and send no heartbeat."""

_INT: Final = (1 << 31) - 1
_LONG: Final = (1 << 63) - 1
"""The highest numbers of Spark's types."""

_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark itself handles and passes on."""

_NO_CATALOG: Final = "Spark does not pass the options of a table in its catalog on to a data source in Python"
_VIEW: Final = "CREATE TEMPORARY VIEW name USING rocketmq OPTIONS (...), or load() and createOrReplaceTempView()"

_CLIENT: Final[dict[str, Callable[[str], Any]]] = {
    "client_ip": str,
    "instance_name": str,
    "unit_name": str,
    "refresh_every_s": float,
    "heartbeat_every_s": float,
    "max_pending": int,
    "max_unsent_bytes": int,
    "max_header_bytes": int,
    "max_topics": int,
    "route_wait_s": float,
}
_PRODUCER: Final[dict[str, Callable[[str], Any]]] = {
    "send_timeout_s": float,
    "max_body_bytes": int,
    "compress_from_bytes": int,
}
_JAVA: Final[dict[str, tuple[str, float]]] = {
    "clientip": ("client_ip", 0),
    "instancename": ("instance_name", 0),
    "unitname": ("unit_name", 0),
    "pollnameserverinterval": ("refresh_every_s", 1000),
    "heartbeatbrokerinterval": ("heartbeat_every_s", 1000),
    "sendmsgtimeout": ("send_timeout_s", 1000),
    "maxmessagesize": ("max_body_bytes", 1),
    "compressmsgbodyoverhowmuch": ("compress_from_bytes", 1),
}
"""Java's name -> our name, and the divisor of the value (0: it is text)."""


@attrs.frozen
class TlsSettings:
    """How servers are verified, and the client's certificate: arguments of `triomq.plugins.tls_dialer`.

    Files are read where a client is opened, on the driver and on the workers.

    Args:
        ca: PEM file with the authorities to trust; None: those of the system.
        certificate: PEM file with the client's certificate.
        key: PEM file with its private key; None: it is in the same file.
        key_password: the key's password.
        check_host_name: whether a server's certificate must have its name.
        insecure: True if servers are not verified.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = attrs.field(default=None, repr=False)
    check_host_name: bool = True
    insecure: bool = False


@attrs.frozen
class ClientSettings:
    """The settings with which a client is opened. Their text contains no secret.

    Args:
        name_servers: `host:port;host:port`.
        client: arguments of `triomq.open_client`.
        producer: arguments of `Client.producer`.
        credentials: the account that signs requests; None: they are not signed.
        credentials_file: the path of a file with that account; read where a client is opened.
        tls: the settings of TLS; None: plain TCP.
    """

    name_servers: str
    client: tuple[tuple[str, Any], ...] = ()
    producer: tuple[tuple[str, Any], ...] = ()
    credentials: Credentials | None = None
    credentials_file: str | None = None
    tls: TlsSettings | None = None


@attrs.frozen
class Topics:
    """The topics or queues to read; exactly one of these is given.

    Args:
        names: these topics.
        pattern: topics whose whole name matches.
        queues: these queues.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    queues: frozenset[QueueId] | None = None

    def include(self, queue: QueueId) -> bool:
        """Whether a queue is read, if it exists."""
        if self.queues is not None:
            return queue in self.queues
        if self.pattern is not None:
            return re.fullmatch(self.pattern, queue.topic) is not None
        return queue.topic in self.names


@attrs.frozen
class Place:
    """Where reading starts or ends.

    Args:
        word: `EARLIEST`, `LATEST` or `COMMITTED`, for every queue without its own offset or time.
        offsets: the offsets of single queues.
        time_ms: the first message stored then or later, in ms since 1970; `word` is then ignored.
        times: the same for single queues.
        must_exist: whether a queue without such a message is an error; otherwise it is its end.
    """

    word: int
    offsets: tuple[tuple[QueueId, int], ...] = ()
    time_ms: int | None = None
    times: tuple[tuple[QueueId, int], ...] = ()
    must_exist: bool = False

    @property
    def by_queue(self) -> Offsets:
        """The single queues' offsets."""
        return dict(self.offsets)

    def time_of(self, queue: QueueId) -> int | None:
        """The time that is given for a queue, in ms since 1970."""
        return self.time_ms if self.time_ms is not None else dict(self.times).get(queue)


@attrs.frozen
class ReadOptions:
    """The options of a read.

    Args:
        client: see :class:`ClientSettings`.
        topics: the topics or queues to read.
        start: where to start.
        end: where to end; batches only.
        tags: the selected tags; None for all rows, including those without a tag.
        sql: an SQL92 expression for the broker.
        min_partitions: the least number of tasks.
        max_partition_rows: the most offsets per task.
        max_offsets: the most offsets per trigger.
        max_bytes: the approximate limit of bytes per trigger.
        min_offsets: the number of offsets that a trigger waits for; None: it reads what is available.
        max_trigger_delay_s: how long it waits at most, in seconds.
        fail_on_data_loss: whether rows that no longer exist fail the query.
        group: the consumer group that pulls.
        commits: whether its offsets are committed.
        preference: a value of `triomq.ReadPreference`, or the id of the only broker to query in each set.
        required_brokers: the names of broker sets where each topic must have queues; batches only.
    """

    client: ClientSettings
    topics: Topics
    start: Place
    end: Place
    tags: frozenset[str] | None
    sql: str | None
    min_partitions: int | None
    max_partition_rows: int | None
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_trigger_delay_s: float
    fail_on_data_loss: bool
    group: str
    commits: bool
    preference: str | int
    required_brokers: frozenset[str] = frozenset()


@attrs.frozen
class WriteOptions:
    """The options of a write.

    Args:
        client: see :class:`ClientSettings`.
        topic: the topic of rows that do not name one.
        group: the producer group.
        batch_rows: the number of rows in one request.
        in_flight: the most requests of a task in flight.
        replicated: whether a slave must have every row before a task ends.
        create_queues: the number of queues on every master of a missing topic that is created; None: none is created.
        decisions: the topic that records which triggers are committed; None: the write is not transactional.
        name: the prefix of the keys of a batch's rows; None: each batch has its own name.
    """

    client: ClientSettings
    topic: str | None
    group: str
    batch_rows: int
    in_flight: int
    replicated: bool
    create_queues: int | None
    decisions: str | None = None
    name: str | None = None


_PREFERENCES: Final = {"suggested": "suggested", "master": "master", "slave": "slave", "preferslave": "prefer_slave"}
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_TRUTH: Final = {"true": True, "false": False}
_TLS: Final = ("tlsCa", "tlsCertificate", "tlsKey", "tlsKeyPassword", "tlsCheckHostName", "tlsInsecure")
_SHARED: Final = ("namesrv", "topic", "accessKey", "secretKey", "securityToken", "credentialsFile", "tls", *_TLS)
_READ: Final = (
    *_SHARED, "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "tags", "sql", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "failOnDataLoss",
    "consumerGroup", "readPreference", "requiredBrokers",
)  # fmt: skip
_WRITE: Final = (
    *_SHARED, "producerGroup", "batchSize", "maxInFlight", "acks", "createTopic", "queues", "transactional",
    "transactionTopic", "writeName",
)  # fmt: skip


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a read.

    Args:
        options: as Spark passes them.
        streaming: whether it is a streaming read.

    Raises:
        BadOption: one is unknown, missing, contradicts another or has an invalid value.
    """
    given = _Given(options, _READ, "a read")
    sql, tags = given.text("sql"), given.text("tags")
    if sql is not None and tags is not None:
        raise BadOption("tags and sql cannot be given both; sql can test the tag: TAGS = 'a'")
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if given.text(name) is not None:
                raise BadOption(
                    f"{name} is for batch reads; a streaming read has no end (trigger(availableNow=True) has)"
                )
        if given.text("requiredBrokers") is not None:
            raise BadOption(
                "requiredBrokers is for batch reads; a streaming read keeps the place of a queue that is away, and "
                "reads on when it is back"
            )
    group = _group(given, "consumerGroup")
    start = _place(given, "starting", LATEST if streaming else EARLIEST)
    end = _place(given, "ending", LATEST)
    _check_order(start, end)
    if start.word == COMMITTED and group is None:
        raise BadOption("startingOffsets=committed needs the option consumerGroup, whose offsets are meant")
    least, most = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise BadOption(f"minOffsetsPerTrigger, {least}, is above maxOffsetsPerTrigger, {most}")
    delay_s = given.duration("maxTriggerDelay")
    if delay_s is not None and least is None:
        raise BadOption("maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return ReadOptions(
        client=_client(given),
        topics=_topics(given),
        start=start,
        end=end,
        tags=_tags(tags),
        sql=_checked_sql(sql),
        min_partitions=given.number("minPartitions", _INT),
        max_partition_rows=given.number("maxRecordsPerPartition"),
        max_offsets=most,
        max_bytes=given.number("maxBytesPerTrigger"),
        min_offsets=least,
        max_trigger_delay_s=delay_s if delay_s is not None else DEFAULT_TRIGGER_DELAY_S,
        fail_on_data_loss=given.choice("failOnDataLoss", _TRUTH, True),
        group=group if group is not None else DEFAULT_READ_GROUP,
        commits=group is not None,
        preference=_preference(given),
        required_brokers=_required_brokers(given),
    )


def _listed(value: str) -> list[str]:
    """The values of an option, separated by commas."""
    return [each.strip() for each in value.split(",") if each.strip()]


def _required_brokers(given: _Given) -> frozenset[str]:
    value = given.text("requiredBrokers")
    if value is None:
        return frozenset()
    if given.text("assign") is not None:
        raise BadOption("requiredBrokers has no effect with assign: every queue that assign names must be there")
    names = frozenset(_listed(value))
    if not names:
        raise BadOption(f"requiredBrokers is {value!r}, and names no broker; the form is broker-a, broker-b")
    return names


def _preference(given: _Given) -> str | int:
    value = given.text("readPreference") or ""
    if value.isascii() and value.isdecimal():
        return _at_most("readPreference", value, _LONG)
    preference: str = given.choice("readPreference", _PREFERENCES, "suggested", "or the id of a broker")
    return preference


def _at_most(name: str, digits: str, most: int) -> int:
    """Convert digits to a number; Python itself does not convert thousands of digits."""
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(most)) or int(significant) > most:
        raise BadOption(f"{name} is {reprlib.repr(digits)}, and may be {most} at most")
    return int(significant)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write.

    Raises:
        BadOption: one is unknown, missing or has an invalid value.
    """
    given = _Given(options, _WRITE, "a write")
    creates, queues = given.choice("createTopic", _TRUTH, False), given.number("queues", MOST_QUEUES)
    if queues is not None and not creates:
        raise BadOption("queues has no effect without createTopic=true; a topic that exists keeps its queues")
    return WriteOptions(
        client=_client(given),
        topic=given.text("topic"),
        group=_group(given, "producerGroup") or DEFAULT_WRITE_GROUP,
        batch_rows=given.number("batchSize", _INT) or 512,
        in_flight=given.number("maxInFlight", _INT) or 16,
        replicated=given.choice("acks", {"stored": False, "replicated": True}, False),
        create_queues=(queues or DEFAULT_QUEUES) if creates else None,
        decisions=_decisions(given),
        name=_write_name(given),
    )


def _write_name(given: _Given) -> str | None:
    name = given.text("writeName")
    if name is not None and (not name.isprintable() or len(name.encode()) > WRITE_NAME_BYTES):
        raise BadOption(
            f"writeName is {name!r}, and must be printable text of at most {WRITE_NAME_BYTES} bytes: each message holds it"
        )
    return name


def _decisions(given: _Given) -> str | None:
    """The topic of the decisions of a transactional write."""
    topic, target = given.text("transactionTopic"), given.text("topic")
    if not given.choice("transactional", _TRUTH, False):
        if topic is not None:
            raise BadOption("transactionTopic has no effect without transactional=true")
        return None
    if given.text("acks") is not None:
        raise BadOption("acks has no effect with transactional=true; replicate synchronously on the brokers instead")
    if given.text("batchSize") is not None:
        raise BadOption("batchSize has no effect with transactional=true: brokers take no batch in a transaction")
    if target == (topic or DEFAULT_DECISIONS):
        raise BadOption(
            f"the rows and the decisions both go to topic {target}, whose consumers would get both; "
            "give another topic or transactionTopic"
        )
    return topic or DEFAULT_DECISIONS


class _Given:
    """Options by name, whatever their case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        folded = {name.lower() for name in known}
        for name in self._values:
            if name in folded or name in _OF_SPARK or name.startswith(CLIENT_PREFIX):
                continue
            if name == "provider":
                raise BadOption(f"{_NO_CATALOG}; instead of CREATE TABLE there is {_VIEW}")
            if name == "path":
                raise BadOption("a topic is not a path: give load() and save() no argument, and the option topic")
            raise BadOption(f"{what} has no option {name!r}{nearest(name, known)}; it has {', '.join(known)}")

    @property
    def is_any(self) -> bool:
        """Whether there are any options."""
        return bool(self._values)

    def text(self, name: str) -> str | None:
        """An option's value; None if it is not given."""
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise BadOption(f"{name} is empty; leave it out, or give it a value")
        return value.strip() if value is not None else None

    def number(self, name: str, most: int = _LONG) -> int | None:
        """A whole number from 1 to `most`."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal() and value.strip("0")):
            raise BadOption(f"{name} is {value!r}, and must be a whole number from 1 on")
        return _at_most(name, value, most)

    def moment(self, name: str) -> int | None:
        """A point in time, in ms since 1970."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return time_ms_of(value)
        except ValueError as error:
            raise BadOption(f"{name} is {value!r}, {error}") from None

    def duration(self, name: str) -> float | None:
        """A duration in seconds."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return duration_s_of(value)
        except ValueError as error:
            raise BadOption(f"{name} is {value!r}, {error}") from None

    def choice(self, name: str, known: Mapping[str, Any], default: Any, others: str = "") -> Any:
        """The value of an option with a fixed set of names; `others` describes what else it may be."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in known:
            raise BadOption(
                f"{name} is {value!r}{nearest(value, known)}; it may be {', '.join(known)} {others}".rstrip()
            )
        return known[value.lower()]

    def of_client(self) -> dict[str, str]:
        """The options that start with `rocketmq.`, without that prefix."""
        return {
            name[len(CLIENT_PREFIX) :]: self.text(name) or "" for name in self._values if name.startswith(CLIENT_PREFIX)
        }


@contextmanager
def _refused(option: str) -> Iterator[None]:
    """A block in which the SDK's refusals become errors of an option."""
    try:
        yield
    except InvalidCall as error:
        raise BadOption(f"{option}: {error}") from None


def _group(given: _Given, option: str) -> str | None:
    """The name of a consumer or producer group."""
    group = given.text(option)
    if group is not None:
        with _refused(option):
            check_group(group)
    return group


def _client(given: _Given) -> ClientSettings:
    name_servers = given.text("namesrv")
    if name_servers is None:
        of_catalog = "" if given.is_any else f". {_NO_CATALOG}: use {_VIEW}"
        raise BadOption(f"the option namesrv is missing: the name servers' addresses, like 127.0.0.1:9876{of_catalog}")
    with _refused("namesrv"):
        provider_for(name_servers)
    client: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    named: dict[str, str] = {}
    for name, value in given.of_client().items():
        ours, divisor = _JAVA.get(name, (name, 0))
        table, target = (_CLIENT, client) if ours in _CLIENT else (_PRODUCER, producer)
        if ours not in table:
            known = [CLIENT_PREFIX + each for each in (*_CLIENT, *_PRODUCER, *_JAVA)]
            raise BadOption(
                f"the client has no setting {CLIENT_PREFIX + name!r}{nearest(CLIENT_PREFIX + name, known)}; "
                f"it has {', '.join((*_CLIENT, *_PRODUCER))}"
            )
        if (other := named.setdefault(ours, name)) != name:
            raise BadOption(f"{CLIENT_PREFIX}{other} and {CLIENT_PREFIX}{name} are the same setting; give one of them")
        kind = table[ours]
        target[ours] = _setting(CLIENT_PREFIX + name, value, kind, divisor)
        if ours == "client_ip":
            try:
                ip_address(value)
            except ValueError:
                raise BadOption(f"{CLIENT_PREFIX}{name} is {value!r}, and must be an IP address") from None
        with _refused(CLIENT_PREFIX + name):
            if kind is float:
                check_seconds(ours, target[ours], zero=ours == "route_wait_s")
                if target[ours] > MOST_SECONDS:
                    raise BadOption(
                        f"{CLIENT_PREFIX}{name} is {value!r}, and {ours} may be {MOST_SECONDS} seconds (30 days) at most"
                    )
            elif kind is int:
                check_count(ours, target[ours], 0 if ours == "compress_from_bytes" else 1)
    return ClientSettings(
        name_servers,
        tuple(sorted(client.items())),
        tuple(sorted(producer.items())),
        _credentials(given),
        given.text("credentialsFile"),
        _tls(given),
    )


def _setting(option: str, value: str, kind: Callable[[str], Any], divisor: float) -> Any:
    """The value of one of the client's settings, in our unit."""
    # Python also accepts digits of other scripts, and underscores.
    text = value if kind is str or (value.isascii() and "_" not in value) else ""
    try:
        return kind(str(float(text) / divisor)) if divisor > 1 else kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise BadOption(f"{option} is {value!r}, and must be {wanted}") from None


def _credentials(given: _Given) -> Credentials | None:
    """The account whose keys are given."""
    access_key, secret_key, token = (given.text(name) for name in ("accessKey", "secretKey", "securityToken"))
    if access_key is None and secret_key is None and token is None:
        return None
    if given.text("credentialsFile") is not None:
        raise BadOption("give either credentialsFile or accessKey and secretKey, not both")
    if access_key is None or secret_key is None:
        missing = "accessKey" if access_key is None else "secretKey"
        raise BadOption(f"the option {missing} is missing: an account has both accessKey and secretKey")
    return Credentials(access_key, secret_key, token)


def _tls(given: _Given) -> TlsSettings | None:
    if not given.choice("tls", _TRUTH, False):
        for name in _TLS:
            if given.text(name) is not None:
                raise BadOption(f"{name} has no effect without tls=true")
        return None
    ca, certificate, key, password = (given.text(name) for name in _TLS[:4])
    insecure, checks_names = given.choice("tlsInsecure", _TRUTH, False), given.choice("tlsCheckHostName", _TRUTH, True)
    if insecure and (ca is not None or given.text("tlsCheckHostName") is not None):
        raise BadOption("tlsInsecure=true verifies no server; leave out tlsCa and tlsCheckHostName, or tlsInsecure")
    if certificate is None and (key is not None or password is not None):
        raise BadOption("tlsKey and tlsKeyPassword belong to a certificate; give tlsCertificate too")
    return TlsSettings(ca, certificate, key, password, checks_names, insecure)


def _topics(given: _Given) -> Topics:
    names = ("topic", "subscribe", "subscribePattern", "assign")
    present = [name for name in names if given.text(name) is not None]
    if len(present) != 1:
        raise BadOption(
            f"exactly one of {', '.join(names)} must say what to read; "
            f"given {'are ' + ', '.join(present) if present else 'is none'}"
        )
    value = given.text(present[0]) or ""
    if present[0] == "assign":
        return Topics(queues=parse_assignment(value))
    if present[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise BadOption(f"subscribePattern {value!r} is not a regular expression: {error}") from None
        return Topics(pattern=value)
    topics = [value] if present[0] == "topic" else _listed(value)
    if not topics:
        raise BadOption(f"{present[0]} is {value!r}, and names no topic; the form is a, b")
    return Topics(names=tuple(dict.fromkeys(topics)))


def _place(given: _Given, which: str, default: int) -> Place:
    names = (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp")
    present = [name for name in names if given.text(name) is not None]
    if len(present) > 1:
        raise BadOption(f"{' and '.join(present)} cannot be given together")
    must_exist = False
    if which == "starting":
        must_exist = given.choice(_STRATEGY, {"error": True, "latest": False}, False)
        if given.text(_STRATEGY) is not None and present not in ([names[1]], [names[2]]):
            raise BadOption(f"{_STRATEGY} has no effect without {names[1]} or {names[2]}")
    if not present:
        return Place(default)
    value = given.text(present[0]) or ""
    others = EARLIEST if which == "starting" else LATEST
    if present[0] == names[1]:
        return Place(default, time_ms=given.moment(names[1]), must_exist=must_exist)
    if present[0] == names[2]:
        return Place(others, times=tuple(parse_times(names[2], value).items()), must_exist=must_exist)
    words = {"earliest": EARLIEST, "latest": LATEST, "committed": COMMITTED}
    word = words.get(value.lower())
    if word is None:
        return Place(others, tuple(parse_offsets(names[0], value).items()))
    if which == "ending" and word != LATEST:
        raise BadOption(f"endingOffsets is {value!r}; it may be latest, or JSON")
    return Place(word)


def _check_order(start: Place, end: Place) -> None:
    if start.time_ms is not None and end.time_ms is not None and start.time_ms > end.time_ms:
        raise BadOption(
            f"startingTimestamp {time_text(start.time_ms)} is after endingTimestamp {time_text(end.time_ms)}"
        )
    for queue in sorted({queue for queue, _ in (*start.times, *end.times)}):
        first_ms, end_ms = start.time_of(queue), end.time_of(queue)
        if first_ms is not None and end_ms is not None and first_ms > end_ms:
            raise BadOption(f"the start of {queue}, {time_text(first_ms)}, is after its end, {time_text(end_ms)}")
    ends = end.by_queue
    for queue, first in start.offsets:
        if first > ends.get(queue, first) >= 0:
            raise BadOption(f"startingOffsets is {first} for {queue}, after endingOffsets, {ends[queue]}")


def _checked_sql(expression: str | None) -> str | None:
    """Check that an SQL92 expression compiles: a broker that cannot compile one logs that and sends every message."""
    if expression is not None:
        try:
            compile_filter(expression)
        except Sql92Error as error:
            raise BadOption(f"sql: {error}, in {expression!r}") from None
    return expression


def _tags(expression: str | None) -> frozenset[str] | None:
    try:
        return tags_of(expression)
    except ValueError as error:
        raise BadOption(f"tags: {error}; the form is a || b, and the option sql takes SQL92 expressions") from None
