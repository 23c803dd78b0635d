"""The Java side's JSON: what its reader accepts, what its writer emits."""

from __future__ import annotations

import json
import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.errors import BodyError, ProtocolError
from triomq_protocol.java_text import join_surrogates
from triomq_protocol.requests import (
    BrokerData,
    ConsumerOffsetTable,
    ConsumeStats,
    GetConsumerStatusBody,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    OffsetWrapper,
    RegisterBrokerBody,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicRouteData,
)
from triomq_protocol.wire import fastjson
from triomq_protocol.wire.fastjson import (
    MAX_DEPTH,
    MAX_TOLERANT_BYTES,
    ObjectKey,
    dumps,
    dumps_in_slices,
    dumps_pretty,
    dumps_standard,
    java_double,
    java_map_order,
    loads,
    loads_tolerant,
    quote,
)

QUEUE = ObjectKey((("brokerName", "b"), ("queueId", 1), ("topic", "T")))
READER_CASES = [
    ('{"a":{0:"x",1:"y"}}', {"a": {0: "x", 1: "y"}}),
    ('{-3:1, "3":2}', {-3: 1, "3": 2}),
    ("{a:1,$b_2:'two'}", {"a": 1, "$b_2": "two"}),
    ('{{"topic":"T","brokerName":"b","queueId":1}:5}', {QUEUE: 5}),
    ('{{"topic":{"x":[1]}}:5}', {ObjectKey((("topic", ObjectKey((("x", (1,)),))),)): 5}),
    ("[1,2,]", [1, 2]),
    ('{"a":1,}', {"a": 1}),
    ("/* c */ {a: // d\n 1}\n// e", {"a": 1}),
    (r"'it\'s \x41 \u4e2d \/'", "it's A 中 /"),
    (r"{k:'\ud83d\ude00'}", {"k": "😀"}),
    ("[true,false,null,-1.5,1e3,+7]", [True, False, None, -1.5, 1000.0, 7]),
    ("[]", []),
    ("{}", {}),
    ("''", ""),
]


@pytest.mark.parametrize(("text", "value"), READER_CASES)
def test_what_java_reads(text: str, value: object) -> None:
    assert loads(text) == value
    assert loads_tolerant(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", "[", '"', "'", '"a', "{a}", "{a:}", "{a:1 b:2}", "[1 2]", "{} x", "[1]]", '"\\q"', '"\\u12"', "nul",
        "/* ", "{[1]:2}", "-", "{:1}", "\ufeff[", "[" * 1000, "{{" * 1000, "[1e999999999999]",
    ],
)  # fmt: skip
def test_texts_that_both_readers_refuse(text: str) -> None:
    with pytest.raises(BodyError):
        loads(text)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 2, 400, 600, 900])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_both_readers_have_one_limit_of_depth(levels: int, start: str, end: str) -> None:
    allowed = start * MAX_DEPTH + "1" + end * MAX_DEPTH
    assert dumps(loads(allowed)).decode() == allowed
    assert dumps(loads_tolerant(allowed)).decode() == allowed
    for read in (loads, loads_tolerant):
        with pytest.raises(BodyError, match="deep"):
            read(start * levels + "1" + end * levels)


def test_a_member_nested_deeply_is_refused() -> None:
    for levels in (400, 600, 900):
        with pytest.raises(BodyError, match="deep"):
            TopicConfig.decode(b'{"topicName":' + b"[" * levels + b"]" * levels + b"}")


def test_a_long_text_of_no_standard_json_is_refused_at_once() -> None:
    with pytest.raises(BodyError, match="limit"):
        loads(b"[" + b"1," * (MAX_TOLERANT_BYTES // 2) + b"'']")


def test_text_that_is_not_utf_8_does_not_make_a_document_unusual() -> None:
    assert loads(b'{"a":"' + b"\xb0\xa1" * MAX_TOLERANT_BYTES + b'"}') == {"a": "\ufffd\ufffd" * MAX_TOLERANT_BYTES}
    assert loads(b"{'a':'\xb0'}") == {"a": "\ufffd"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(-(1 << 31), 1 << 31), inner, max_size=4)
    ),
    max_leaves=20,
)


def sound(value: object) -> object:
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, list):
        return [sound(item) for item in value]
    if isinstance(value, dict):
        return {sound(key): sound(member) for key, member in value.items()}
    return value


@given(JSON)
def test_what_is_written_is_read(value: object) -> None:
    value = sound(value)
    assert loads(dumps(value)) == value
    assert loads_tolerant(dumps(value)) == value
    assert loads(dumps_pretty(value)) == value


@given(st.text(alphabet=st.sampled_from(list("{}[]\"':,\\/*0123e-.ab\ntrue \u2028\ud800")), max_size=60))
def test_noise_is_refused_by_our_own_error(text: str) -> None:
    for cls in (TopicRouteData, HeartbeatData, ResetOffsetBody, ConsumerOffsetTable):
        try:
            cls.decode(text.encode("utf-8", "replace"))
        except ProtocolError:
            continue


@given(st.binary(max_size=80))
def test_bytes_of_any_kind_are_refused_by_our_own_error(data: bytes) -> None:
    for decode in (
        loads,
        RegisterBrokerBody.decode,
        RegisterBrokerBody.decode_compressed,
        GetConsumerStatusBody.decode,
    ):
        try:
            decode(data)
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain/中😀", '"plain/中😀"'),
        ('"\\\b\f\n\r\t', '"\\"\\\\\\b\\f\\n\\r\\t"'),
        ("\x00\x01\x02\x0b\x1f\x7f\x9f\xa0", '"\\u0000\\u0001\\u0002\\u000B\\u001F\\u007F\\u009F\xa0"'),
        ("\u2028\u2029", '"\\u2028\\u2029"'),
        ("\ud83d\ude00\ud800x", '"😀?x"'),
    ],
)
def test_escapes(text: str, written: str) -> None:
    assert quote(text) == written


@given(st.text())
def test_quoted_text_is_json(text: str) -> None:
    assert json.loads(quote(text)) == join_surrogates(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (0.1, "0.1"), (1.0, "1.0"), (1e10, "1.0E10"), (1e-5, "1.0E-5"), (0.001, "0.001"),
        (123456789.125, "1.23456789125E8"), (9999999.0, "9999999.0"), (1e7, "1.0E7"), (-2.5e-7, "-2.5E-7"),
        (1e16, "1.0E16"), (1.5e300, "1.5E300"), (math.nan, "null"), (-math.inf, "null"),
    ],
)  # fmt: skip
def test_doubles(value: float, text: str) -> None:
    assert java_double(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_decoded_as_they_were_encoded(value: float) -> None:
    assert float(java_double(value)) == value


def test_standard_form_of_routes() -> None:
    route = TopicRouteData(
        broker_datas=[BrokerData(broker_addrs={10: "h:1", 2: "h:2"}, broker_name="bé", cluster="C/D")],
        filter_server_table={"z": [], "a": ["x"]},
        queue_datas=[],
    )
    assert route.encode_standard() == (
        b'{"brokerDatas":[{"brokerAddrs":{"2":"h:2","10":"h:1"},"brokerName":"b\\u00E9","cluster":"C\\/D"}]'
        b',"filterServerTable":{"a":["x"],"z":[]},"queueDatas":[]}'
    )
    assert TopicRouteData.decode(route.encode_standard()) == route
    assert dumps_standard({"k": "😀\x7f"}) == b'{"k":"\\uD83D\\uDE00\\u007F"}'


def test_pretty_form() -> None:
    table = {"a": {}, "list": [1, {"x": "y"}], "offsets": {0: 1, 3: 2}, "q": {MessageQueue("T", "b", 1): {"n": 1}}}
    assert dumps_pretty(table).decode() == (
        '{\n\t"a":{},\n\t"list":[\n\t\t1,\n\t\t{\n\t\t\t"x":"y"\n\t\t}\n\t],\n\t"offsets":{0:1,3:2\n\t},\n\t"q":{{\n'
        '\t\t\t"brokerName":"b",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T"\n\t\t}:{\n\t\t\t"n":1\n\t\t}\n\t}\n}'
    )


@given(
    st.builds(
        TopicConfig,
        topic_name=st.none()
        | st.text()
        | st.sampled_from(["%RETRY%G", "a,", ',"a', ":null", "a\\", "\x0b", "\x7f", "\ud800", "ü"]),
        topic_filter_type=st.text(),
        perm=st.integers(-(1 << 70), 1 << 70),
        order=st.booleans(),
    )
)
def test_a_flat_body_is_written_as_the_map_of_its_members(topic: TopicConfig) -> None:
    names = zip(topic.__struct_encode_fields__, topic.__struct_fields__, strict=True)
    members = {name: value for name, field in names if (value := getattr(topic, field)) is not None}
    for written, wanted in ((topic, members), ({"T": [topic]}, {"T": [members]})):
        assert dumps(written) == dumps(wanted) == in_slices(written)
        assert dumps_pretty(written) == dumps_pretty(wanted)


def in_slices(value: object) -> bytes:
    slices = dumps_in_slices(value)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return bytes(end.value)


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError):
        dumps(b"bytes")


def test_map_order_of_the_spec() -> None:
    assert java_map_order(["TAGS", "KEYS", "WAIT", "uk", "UNIQ_KEY"]) == ("uk", "KEYS", "UNIQ_KEY", "WAIT", "TAGS")
    many = [f"k{number}" for number in range(100)]
    assert sorted(java_map_order(many)) == sorted(many)


def test_the_order_of_long_names_is_not_kept() -> None:
    """Peers choose the names of brokers, whose orders 4,096 routes would keep."""
    fastjson._ordered.cache_clear()
    for number in range(5):
        long = [f"{number}.{place}{'b' * 200}" for place in range(32)]
        assert sorted(java_map_order(long)) == sorted(long)
        assert sorted(java_map_order([f"k{number}", "b", "a"])) == ["a", "b", f"k{number}"]
    assert fastjson._ordered.cache_info().currsize == 5


# ---------------------------------------------------------------- bodies the way Java reads them


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}',
        '{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":5}}',
        "{offsettable:{{'topic':'T','QUEUEID':'1',brokerName:'b'}:'5'}}",
    ],
)
def test_queues_as_keys(text: str) -> None:
    assert ResetOffsetBody.decode(text.encode()).offset_table == {MessageQueue("T", "b", 1): 5}


@pytest.mark.parametrize(
    "text", ['{"offsetTable":{"T@G":{0:7}}}', '{"offsetTable":{"T@G":{"0":7}}}', "{'offsetTable':{'T@G':{0:'7'}}}",
             '{"offsetTable":{"T@G":{"0":7.9}},"x":1}', '{"OFFSETTABLE":{"T@G":{0:7}}}'],
)  # fmt: skip
def test_numbers_as_keys(text: str) -> None:
    assert ConsumerOffsetTable.decode(text.encode()).offset_table == {"T@G": {0: 7}}


def test_a_key_inside_a_text_is_not_changed() -> None:
    table = ConsumerOffsetTable(offset_table={'a{1:"b,2:\\': {3: 4}})
    assert ConsumerOffsetTable.decode(table.encode()) == table


def test_a_text_without_end_is_refused_in_linear_time() -> None:
    data = b"{1:" + b'"\\' * 8000
    start = time.thread_time()
    with pytest.raises(BodyError):
        ConsumerOffsetTable.decode(data)
    assert time.thread_time() - start < 1  # milliseconds; quadratic work takes five seconds and more


def test_missing_null_unknown_and_oddly_typed_members() -> None:
    config = SubscriptionGroupConfig.decode(b'{"groupName":"g","retryMaxTimes":null,"new":1,"consumeEnable":"false"}')
    assert config == SubscriptionGroupConfig(group_name="g", consume_enable=False)
    assert TopicConfig.decode(b"{}") == TopicConfig()
    assert TopicList.decode(b'{"topicList":[1,"a"]}').topic_list == ["1", "a"]
    assert RegisterBrokerBody.decode(b'{"Topicconfigserializewrapper":{}}') == RegisterBrokerBody()
    lock = LockBatchRequestBody.decode(b'{"mqSet":[{"queueId":"3","topic":"T","brokerName":"b"}]}')
    assert lock.mq_set == [MessageQueue("T", "b", 3)]


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "0x10", "1.5", ".0", "--1", "9223372036854775808", "9" * 5000])
def test_text_that_java_reads_as_no_number_is_refused(text: str) -> None:
    with pytest.raises(BodyError, match="not an integer of 64 bits"):
        TopicConfig.decode(f'{{"perm":"{text}"}}'.encode())


@pytest.mark.parametrize(("text", "number"), [("1,0", 10), ("5.00", 5), ("+7", 7), ("007", 7), ("", 0), ("NULL", 0)])
def test_text_that_java_reads_as_a_number(text: str, number: int) -> None:
    assert TopicConfig.decode(f'{{"perm":"{text}"}}'.encode()).perm == number


@pytest.mark.parametrize("name", ["topicName", "TopicName", "topic_name", "TOPIC-NAME"])
def test_member_names_in_other_spellings(name: str) -> None:
    assert TopicConfig.decode(f'{{"{name}":"T"}}'.encode()) == TopicConfig(topic_name="T")


@pytest.mark.parametrize(
    "text", ["[]", "5", "null", '""', '{"topicConfigTable":[]}', '{"topicConfigTable":{"T":5}}', '{"dataVersion":{"counter":[]}}',
             '{"dataVersion":{"counter":"x"}}', '{"dataVersion":5}', '{"topicConfigTable":{"T":{"order":[]}}}'],
)  # fmt: skip
def test_bodies_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode(
            f'{{"topicConfigSerializeWrapper":{text}}}'.encode() if text[:1] == "{" else text.encode()
        )


def test_nested_structures() -> None:
    stats = ConsumeStats(consume_tps=1.5, offset_table={MessageQueue("T", "b", 0): OffsetWrapper(broker_offset=2)})
    assert ConsumeStats.decode(stats.encode()) == stats
    status = GetConsumerStatusBody(consumer_table={"c": {MessageQueue("T", "b", 0): 9}})
    assert (
        status.encode()
        == b'{"consumerTable":{"c":{{"brokerName":"b","queueId":0,"topic":"T"}:9}},"messageQueueTable":{}}'
    )
    assert GetConsumerStatusBody.decode(status.encode()) == status


@pytest.mark.parametrize("text", ['{"consumeTps":[]}', '{"offsetTable":{"x":1}}', '{"offsetTable":{1:{}}}'])
def test_statistics_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(BodyError):
        ConsumeStats.decode(text.encode())


def test_lists_must_be_lists() -> None:
    with pytest.raises(BodyError, match="list expected"):
        TopicList.decode(b'{"topicList":{"a":1}}')
    with pytest.raises(BodyError):
        SubscriptionGroupConfig.decode(b'{"consumeEnable":[]}')


@pytest.mark.parametrize("line", ["", "T", "T 1 1 6", "T 1 1 6 SINGLE_TAG x", "T one 1 6 SINGLE_TAG"])
def test_topic_lines_of_another_shape_are_refused(line: str) -> None:
    with pytest.raises(BodyError):
        TopicConfig.from_line(line)


def test_a_compressed_registration_that_inflates_without_end_is_refused() -> None:
    import zlib

    whole = RegisterBrokerBody(filter_server_list=["a"]).encode_compressed()
    with pytest.raises(BodyError, match="inflated"):
        RegisterBrokerBody.decode_compressed(zlib.compress(zlib.decompress(whole) + bytes(65 << 20), 9))
    for count in range(len(whole)):
        with pytest.raises(BodyError):
            RegisterBrokerBody.decode_compressed(whole[:count])


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}',
            "RegisterBrokerBody: topicConfigSerializeWrapper.topicConfigTable.perm: not an integer",
        ),
        (b'{"filterServerList":7}', "RegisterBrokerBody: filterServerList: list expected, got int '7'"),
    ],
)
def test_a_body_that_does_not_fit_names_the_member(text: bytes, where: str) -> None:
    with pytest.raises(BodyError, match=re.escape(where)):
        RegisterBrokerBody.decode(text)
