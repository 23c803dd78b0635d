"""Options: accepted values, and the errors for others."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from pyspark_rocketmq.clients import client_options
from pyspark_rocketmq.errors import BadColumns, BadOption
from pyspark_rocketmq.offsets import COMMITTED, EARLIEST, LATEST, QueueId
from pyspark_rocketmq.options import TlsSettings, read_options, write_options
from pyspark_rocketmq.rows.schema import READ_SCHEMA, check_read_schema, check_write_schema
from triomq import Credentials
from triomq.errors import InvalidCall

LEAST = {"namesrv": "127.0.0.1:9876", "topic": "T"}


def test_defaults() -> None:
    batch, stream = read_options(LEAST, streaming=False), read_options(LEAST, streaming=True)
    assert (batch.start.word, batch.end.word, stream.start.word) == (EARLIEST, LATEST, LATEST)
    assert batch.topics.names == ("T",)
    assert batch.fail_on_data_loss
    assert not batch.commits
    assert batch.preference == "suggested"
    assert batch.min_partitions is None


@pytest.mark.parametrize(("value", "preference"), [("2", 2), ("0", 0), ("SLAVE", "slave")])
def test_a_broker_id_is_a_read_preference(value: str, preference: str | int) -> None:
    assert read_options({**LEAST, "readPreference": value}, streaming=False).preference == preference


def test_names_and_words_are_case_insensitive() -> None:
    options = read_options(
        {
            **LEAST,
            "MINPARTITIONS": "4",
            "failondataloss": "FALSE",
            "readPreference": "preferSlave",
            "startingOffsets": "Latest",
        },
        streaming=False,
    )
    assert (options.min_partitions, options.fail_on_data_loss, options.preference) == (4, False, "prefer_slave")
    assert options.start.word == LATEST


def test_what_to_read() -> None:
    base = {"namesrv": "h:1"}
    assert read_options({**base, "subscribe": "A, B,A"}, streaming=True).topics.names == ("A", "B")
    assert read_options({**base, "subscribePattern": "a.*"}, streaming=True).topics.pattern == "a.*"
    assigned = read_options({**base, "assign": '{"T": {"b": [1]}}'}, streaming=True).topics.queues
    assert assigned == {QueueId("T", "b", 1)}


@pytest.mark.parametrize(
    ("option", "value", "included"),
    [
        ("topic", "T", "T0 T1"),
        ("subscribe", "T,TU", "T0 T1 TU0"),
        ("subscribePattern", "T.*", "T0 T1 TU0"),
        ("subscribePattern", "U", ""),
        ("assign", '{"T": {"b": [1]}}', "T1"),
    ],
)
def test_queues_that_options_include(option: str, value: str, included: str) -> None:
    topics = read_options({"namesrv": "h:1", option: value}, streaming=True).topics
    queues = [QueueId("T", "b", 0), QueueId("T", "b", 1), QueueId("TU", "b", 0)]
    assert " ".join(f"{each.topic}{each.queue_id}" for each in queues if topics.include(each)) == included


def test_places() -> None:
    text = '{"T": {"broker-a": {"0": 5}}}'
    options = read_options({**LEAST, "startingOffsets": text, "endingTimestamp": "1700000000000"}, streaming=False)
    assert options.start.by_queue == {QueueId("T", "broker-a", 0): 5}
    assert options.start.word == EARLIEST, "queues that are not named start at their first message"
    assert options.end.time_ms == 1_700_000_000_000
    committed = read_options({**LEAST, "startingOffsets": "committed", "consumerGroup": "g"}, streaming=True)
    assert committed.start.word == COMMITTED
    assert committed.commits


def test_times() -> None:
    options = read_options(
        {
            **LEAST,
            "startingOffsetsByTimestamp": '{"T": {"b": {"0": 5, "1": "1970-01-01T01:00:00.006+01:00"}}}',
            "endingTimestamp": "1970-01-01T00:00:01Z",
            "startingOffsetsByTimestampStrategy": "error",
        },
        streaming=False,
    )
    queues = [QueueId("T", "b", number) for number in range(3)]
    assert [options.start.time_of(queue) for queue in queues] == [5, 6, None]
    assert [options.end.time_of(queue) for queue in queues] == [1000, 1000, 1000]
    assert options.start.word == EARLIEST, "queues that are not named start at their first message"
    assert options.start.must_exist
    assert not read_options({**LEAST, "startingTimestamp": "5"}, streaming=False).start.must_exist


def test_waiting_for_messages() -> None:
    default = read_options({**LEAST, "minOffsetsPerTrigger": "9"}, streaming=True)
    assert (default.min_offsets, default.max_trigger_delay_s) == (9, 900)
    given = read_options(
        {**LEAST, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "9", "maxTriggerDelay": "30s"}, streaming=True
    )
    assert (given.min_offsets, given.max_offsets, given.max_trigger_delay_s) == (9, 9, 30)


def test_the_clients_settings_in_our_names_and_in_javas() -> None:
    options = write_options(
        {
            **LEAST,
            "rocketmq.heartbeat_every_s": "5",
            "rocketmq.instanceName": "x",
            "rocketmq.sendMsgTimeout": "4500",
            "rocketmq.maxMessageSize": "1000",
        }
    )
    assert dict(options.client.client) == {"heartbeat_every_s": 5.0, "instance_name": "x"}
    assert dict(options.client.producer) == {"send_timeout_s": 4.5, "max_body_bytes": 1000}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "T"}, "namesrv is missing"),
        ({}, "to a data source in Python: use CREATE TEMPORARY VIEW name USING rocketmq OPTIONS (...)"),
        ({**LEAST, "provider": "rocketmq"}, "instead of CREATE TABLE there is CREATE TEMPORARY VIEW"),
        ({**LEAST, "rocketmq.client_ip": "my host"}, "rocketmq.client_ip is 'my host', and must be an IP address"),
        ({**LEAST, "namesrv": "localhost"}, "namesrv: "),
        ({**LEAST, "namesrv": "127.0.0.1:99999"}, "namesrv: "),
        ({**LEAST, "consumerGroup": "a b"}, "consumerGroup: the group 'a b' has characters other than"),
        (
            {**LEAST, "rocketmq.heartbeat_every_s": "nan"},
            "rocketmq.heartbeat_every_s: heartbeat_every_s is nan, not a number of seconds",
        ),
        *(
            ({**LEAST, f"rocketmq.{name}": value}, f"rocketmq.{name.lower()} is '{value}', and {ours} may be 2592000")
            for name, ours in (
                ("heartbeat_every_s", "heartbeat_every_s"),
                ("refresh_every_s", "refresh_every_s"),
                ("heartbeatBrokerInterval", "heartbeat_every_s"),
                ("route_wait_s", "route_wait_s"),
                ("sendMsgTimeout", "send_timeout_s"),
            )
            for value in ("inf", "Infinity", "1e400", "99999999999")
        ),
        (
            {**LEAST, "rocketmq.pollNameServerInterval": "-1"},
            "rocketmq.pollnameserverinterval: refresh_every_s is -0.001, not a number of seconds above 0",
        ),
        ({**LEAST, "rocketmq.max_pending": "1.5"}, "rocketmq.max_pending is '1.5', and must be a whole number"),
        (
            {**LEAST, "rocketmq.max_pending": "0"},
            "rocketmq.max_pending: max_pending is 0, not a whole number of at least 1",
        ),
        ({"namesrv": "h:1", "subscribe": " , "}, "subscribe is ',', and names no topic"),
        ({"namesrv": "h:1"}, "exactly one of topic, subscribe, subscribePattern, assign"),
        ({**LEAST, "subscribe": "A"}, "given are topic, subscribe"),
        ({**LEAST, "startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({**LEAST, "kafka.bootstrap.servers": "x"}, "a read has no option 'kafka.bootstrap.servers'"),
        ({**LEAST, "path": "x"}, "a topic is not a path"),
        ({**LEAST, "startingOffsets": "newest"}, "startingOffsets is neither a known value nor JSON"),
        ({**LEAST, "startingOffsets": "committed"}, "needs the option consumerGroup"),
        ({**LEAST, "startingOffsets": "latest", "startingTimestamp": "1"}, "cannot be given together"),
        (
            {**LEAST, "startingOffsets": '{"T": {"b": {"0": 200}}}', "endingOffsets": '{"T": {"b": {"0": 100}}}'},
            "startingOffsets is 200 for queue 0 of topic T at b, after endingOffsets, 100",
        ),
        (
            {**LEAST, "startingTimestamp": "9", "endingTimestamp": "8"},
            "startingTimestamp 1970-01-01T00:00:00.009Z (9) is after endingTimestamp 1970-01-01T00:00:00.008Z (8)",
        ),
        (
            {**LEAST, "startingOffsetsByTimestamp": '{"T": {"b": {"0": 9}}}', "endingTimestamp": "8"},
            "the start of queue 0 of topic T at b, 1970-01-01T00:00:00.009Z (9), is after its end",
        ),
        (
            {**LEAST, "startingTimestamp": "9", "endingOffsetsByTimestamp": '{"T": {"b": {"0": 8}}}'},
            "is after its end, 1970-01-01T00:00:00.008Z (8)",
        ),
        (
            {**LEAST, "startingOffsetsByTimestamp": '{"T": {"b": {"0": 9}}}', "startingTimestamp": "9"},
            "startingTimestamp and startingOffsetsByTimestamp cannot be given together",
        ),
        ({**LEAST, "startingOffsetsByTimestamp": "latest"}, "startingOffsetsByTimestamp is neither"),
        ({**LEAST, "startingTimestamp": "2026-11-22T10:00:00"}, "which has no zone: append Z for UTC"),
        (
            {**LEAST, "startingTimestamp": "9", "startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy is 'earliest'",
        ),
        (
            {**LEAST, "startingOffsets": "latest", "startingOffsetsByTimestampStrategy": "error"},
            "has no effect without startingTimestamp or startingOffsetsByTimestamp",
        ),
        ({**LEAST, "endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({**LEAST, "startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'"),
        ({**LEAST, "minPartitions": "0"}, "minPartitions is '0', and must be a whole number from 1 on"),
        ({**LEAST, "minPartitions": "\u0663"}, "and must be a whole number from 1 on"),
        ({**LEAST, "minPartitions": "2147483648"}, "minPartitions is '2147483648', and may be 2147483647 at most"),
        ({**LEAST, "maxRecordsPerPartition": "1" * 5000}, "and may be 9223372036854775807 at most"),
        ({**LEAST, "readPreference": "1" * 5000}, "and may be 9223372036854775807 at most"),
        (
            {**LEAST, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger, 9, is above maxOffsetsPerTrigger, 8",
        ),
        ({**LEAST, "maxTriggerDelay": "1m"}, "maxTriggerDelay has no effect without minOffsetsPerTrigger"),
        (
            {**LEAST, "minOffsetsPerTrigger": "9", "maxTriggerDelay": "15"},
            "maxTriggerDelay is '15', which is not a duration",
        ),
        ({**LEAST, "failOnDataLoss": "yes"}, "failOnDataLoss is 'yes'"),
        ({**LEAST, "readPreference": "slaves"}, "did you mean slave?"),
        ({**LEAST, "readPreference": "-1"}, "or the id of a broker"),
        ({**LEAST, "tags": "a", "sql": "x > 1"}, "tags and sql"),
        ({**LEAST, "tags": " || "}, "tags: "),
        ({**LEAST, "tags": "price > 10"}, "the option sql takes SQL92"),
        ({**LEAST, "sql": "n >="}, "in 'n >='"),
        ({**LEAST, "topic": " "}, "topic is empty"),
        ({"namesrv": "h:1", "subscribePattern": "("}, "not a regular expression"),
        ({**LEAST, "rocketmq.hartbeat_every_s": "1"}, "did you mean rocketmq.heartbeat_every_s?"),
        ({**LEAST, "rocketmq.heartbeat_every_s": "soon"}, "must be a number"),
        ({**LEAST, "rocketmq.heartbeat_every_s": "\u0663"}, "must be a number"),
        ({**LEAST, "rocketmq.max_pending": "1_000"}, "must be a whole number"),
        ({**LEAST, "rocketmq.instance_name": " "}, "rocketmq.instance_name is empty"),
        (
            {**LEAST, "rocketmq.heartbeat_every_s": "5", "rocketmq.heartbeatBrokerInterval": "6000"},
            "rocketmq.heartbeat_every_s and rocketmq.heartbeatbrokerinterval are the same setting; give one of them",
        ),
        ({**LEAST, "startingOffsets": "[" * 100_000}, "startingOffsets is neither a known value nor JSON"),
        ({"namesrv": "h:1", "assign": "[" * 100_000}, "assign is not JSON"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption) as caught:
        read_options(options, streaming=False)
    assert says in str(caught.value)


def test_a_stream_has_no_end() -> None:
    for name, value in (("endingOffsets", "latest"), ("endingOffsetsByTimestamp", '{"T": {"b": {"0": 9}}}')):
        with pytest.raises(BadOption, match="availableNow"):
            read_options({**LEAST, name: value}, streaming=True)


def test_required_brokers() -> None:
    assert read_options(LEAST, streaming=False).required_brokers == frozenset()
    given = {**LEAST, "requiredBrokers": "broker-a , broker-b,"}
    assert read_options(given, streaming=False).required_brokers == {"broker-a", "broker-b"}
    with pytest.raises(BadOption, match="requiredBrokers is for batch reads"):
        read_options(given, streaming=True)
    with pytest.raises(BadOption, match="requiredBrokers is ',', and names no broker"):
        read_options({**LEAST, "requiredBrokers": ","}, streaming=False)
    assigned = {"namesrv": "h:1", "assign": '{"T": {"b": [0]}}', "requiredBrokers": "b"}
    with pytest.raises(BadOption, match="requiredBrokers has no effect with assign"):
        read_options(assigned, streaming=False)


def test_writes() -> None:
    options = write_options({"namesrv": "h:1", "acks": "replicated", "checkpointLocation": "/x"})
    assert options.replicated
    assert options.topic is None
    assert options.create_queues is None, "no topic is created unless that is asked for"
    assert write_options({"namesrv": "h:1", "createTopic": "true"}).create_queues == 8
    assert write_options({"namesrv": "h:1", "createTopic": "TRUE", "queues": "3"}).create_queues == 3
    with pytest.raises(BadOption, match="queues has no effect without createTopic=true"):
        write_options({"namesrv": "h:1", "queues": "3"})
    assert write_options({"namesrv": "h:1"}).decisions is None
    assert write_options({"namesrv": "h:1", "transactional": "true"}).decisions == "spark-sink-decisions"
    assert write_options({"namesrv": "h:1", "transactional": "true", "transactionTopic": "D"}).decisions == "D"
    with pytest.raises(BadOption, match="transactionTopic has no effect without transactional=true"):
        write_options({"namesrv": "h:1", "transactionTopic": "D"})
    for more in ({"transactionTopic": "T", "topic": "T"}, {"topic": "spark-sink-decisions"}):
        with pytest.raises(BadOption, match=f"the rows and the decisions both go to topic {more['topic']}"):
            write_options({"namesrv": "h:1", "transactional": "true", **more})
    for name, value in (("batchSize", "9"), ("acks", "replicated")):
        with pytest.raises(BadOption, match=f"{name} has no effect with transactional=true"):
            write_options({"namesrv": "h:1", "transactional": "true", name: value})
    assert write_options({"namesrv": "h:1"}).name is None
    assert write_options({"namesrv": "h:1", "writeName": "orders/7"}).name == "orders/7"
    for name in ("a\x01b", "a\nb", "é" * 128):
        with pytest.raises(BadOption, match=r"writeName is .* must be printable text of at most 255 bytes"):
            write_options({"namesrv": "h:1", "writeName": name})
    with pytest.raises(BadOption, match="did you mean replicated"):
        write_options({"namesrv": "h:1", "acks": "replicate"})
    with pytest.raises(BadOption, match="a write has no option 'startingoffsets'"):
        write_options({"namesrv": "h:1", "startingOffsets": "latest"})


KINDS = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "map": MapType(StringType(), StringType()),
}


def _schema(text: str) -> StructType:
    schema = StructType()
    for column in text.split(","):
        name, kind = column.split()
        schema.add(name, KINDS[kind])
    return schema


def test_columns_of_a_read() -> None:
    check_read_schema(READ_SCHEMA)
    check_read_schema(_schema("body binary,queue_offset bigint"))
    with pytest.raises(BadColumns, match=r"no column 'boddy'; did you mean body\?"):
        check_read_schema(_schema("boddy binary"))
    with pytest.raises(BadColumns, match="body is binary, not string"):
        check_read_schema(_schema("body string"))
    with pytest.raises(BadColumns, match="names the column body 2 times; name it once"):
        check_read_schema(_schema("body binary,tags string,body binary"))


@pytest.mark.parametrize("name", ["keys", "tags", "born_timestamp", "store_timestamp"])
def test_columns_that_may_be_null_are_not_read_as_others(name: str) -> None:
    # Spark would leave out tests for null, and fail at the first one.
    kind = READ_SCHEMA[name].dataType
    check_read_schema(StructType([StructField(name, kind), StructField("topic", StringType(), nullable=False)]))
    with pytest.raises(BadColumns, match=f"the column {name} is null where a message has none; leave out NOT NULL"):
        check_read_schema(StructType([StructField(name, kind, nullable=False)]))


def test_columns_of_a_write() -> None:
    check_write_schema(
        _schema("body string,tags string,keys string,sharding_key string,properties map,delay_level int"), "T"
    )
    check_write_schema(_schema("body binary,topic string"), None)
    with pytest.raises(BadColumns, match="no column body, only value"):
        check_write_schema(_schema("value string"), "T")
    with pytest.raises(BadColumns, match="no column 'key'; did you mean keys"):
        check_write_schema(_schema("body string,key string"), "T")
    with pytest.raises(BadColumns, match="body is int, and must be binary or string"):
        check_write_schema(_schema("body int"), "T")
    with pytest.raises(BadColumns, match="nothing says where"):
        check_write_schema(_schema("body string"), None)


SECRET = "s3cret-of-mine"


def test_an_account_and_tls_become_settings_of_the_client() -> None:
    account = {"accessKey": "spark-app", "secretKey": SECRET, "securityToken": SECRET}
    tls = {"tls": "true", "tlsCa": "ca.pem", "tlsCertificate": "c.pem", "tlsKeyPassword": SECRET}
    for options in (
        read_options({**LEAST, **account, **tls}, streaming=True),
        write_options({**LEAST, **account, **tls}),
    ):
        client = options.client
        assert client.credentials == Credentials("spark-app", SECRET, SECRET)
        assert client.tls == TlsSettings("ca.pem", "c.pem", key_password=SECRET)
        assert SECRET not in repr(options)
        assert pickle.loads(pickle.dumps(client)) == client, "tasks get them"
        assert hash(client) != hash(write_options(LEAST).client), "another account has a client of its own"
    assert write_options({**LEAST, "tls": "true", "tlsInsecure": "true"}).client.tls == TlsSettings(insecure=True)
    assert write_options(LEAST).client.tls is None


def test_an_account_is_read_from_its_file_where_a_client_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    settings = write_options({**LEAST, "credentialsFile": str(file)}).client
    with pytest.raises(InvalidCall, match=r"tools\.yml"):
        client_options(settings)
    file.write_text(f"accessKey: spark-app\nsecretKey: {SECRET}\n")
    assert client_options(settings)["credentials"] == Credentials("spark-app", SECRET)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"accessKey": "a"}, "secretKey is missing"),
        ({"secretKey": SECRET}, "accessKey is missing"),
        ({"securityToken": SECRET}, "accessKey is missing"),
        ({"accessKey": "a", "secretKey": SECRET, "credentialsFile": "f"}, "not both"),
        ({"secretKey": " "}, "secretKey is empty"),
        ({"seceretKey": SECRET}, "did you mean"),
        ({"tlsCa": "ca.pem"}, "no effect without tls=true"),
        ({"tls": "true", "tlsInsecure": "true", "tlsCa": "ca.pem"}, "verifies no server"),
        ({"tls": "true", "tlsKeyPassword": SECRET}, "give tlsCertificate too"),
        ({"tls": "yes"}, "it may be true, false"),
    ],
)
def test_accounts_and_tls_that_cannot_be(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption, match=says) as refused:
        write_options({**LEAST, **options})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"producerGroup": "a b"}, "producerGroup: the group 'a b' has characters other than"),
        ({"rocketmq.send_timeout_s": "0"}, "rocketmq.send_timeout_s: .* above 0"),
        ({"rocketmq.max_body_bytes": "0"}, "rocketmq.max_body_bytes: .* at least 1"),
    ],
)
def test_what_a_producer_would_refuse_is_refused_at_once(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption, match=says):
        write_options({**LEAST, **options})
    assert write_options({**LEAST, "rocketmq.compress_from_bytes": "0", "rocketmq.route_wait_s": "0"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"createTopic": "true", "queues": "65537"}, "queues is '65537', and may be 65536 at most"),
        ({"batchSize": "9" * 5000}, "batchSize is '99999"),
        ({"maxInFlight": str(1 << 31)}, "maxInFlight is '2147483648', and may be 2147483647 at most"),
        ({"writeName": "\ud800"}, "writeName is "),
    ],
)
def test_a_write_refuses_what_is_beyond_a_limit(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption, match=re.escape(says)):
        write_options({"namesrv": "h:1", "topic": "T", **options})


def test_zeros_in_front_of_a_number_count_for_nothing() -> None:
    read = read_options({**LEAST, "minPartitions": "0" * 5000 + "7", "readPreference": "00"}, streaming=False)
    assert (read.min_partitions, read.preference) == (7, 0)
