"""Bodies with hostile contents: what the typed readers refuse, and in which time."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress
from typing import ClassVar

import msgspec
import pytest

from triomq_protocol.errors import BodyError, BodyTooLongError
from triomq_protocol.requests import (
    ConsumerOffsetTable,
    MessageQueue,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    TopicList,
    TopicStatsTable,
)
from triomq_protocol.requests.admin import TopicOffset
from triomq_protocol.wire import body as body_module
from triomq_protocol.wire.body import Body, FrozenBody, QueueId, SmallKey
from triomq_protocol.wire.fastjson import MAX_DEPTH, SMALL_KEY_MOST, WIDE_KEYS_MOST, loads, loads_tolerant


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 300, 500, 900, 5000])
def test_deep_nesting_is_refused_in_standard_json_too(depth: int) -> None:
    """The parser of standard JSON allows a depth that Python code cannot walk."""
    for read in (loads, loads_tolerant):
        with pytest.raises(BodyError, match="nested too deeply"):
            read(nested(depth))
    with pytest.raises(BodyError):
        TopicList.decode(b'{"topicList":[' + nested(depth) + b"]}")


@pytest.mark.parametrize(
    "text",
    [nested(MAX_DEPTH + 1), b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH, b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH],
)
def test_both_readers_allow_the_same_depth(text: bytes) -> None:
    assert loads(text) == loads_tolerant(text)
    for read in (loads, loads_tolerant):
        with pytest.raises(BodyError, match="nested too deeply"):
            read(b"[" + text.replace(b"[]", b"[1]") + b"]")


@pytest.mark.parametrize("escape", [b'\\"', b"\\\\", b"\\n"])
def test_a_text_without_end_costs_linear_work(escape: bytes) -> None:
    """120 KB; a search that starts again after each escaped quote takes minutes."""
    start = time.perf_counter()
    with pytest.raises(BodyError, match="unterminated string"):
        ConsumerOffsetTable.decode(b'{"offsetTable":{"a":{1:"' + escape * 60_000)
    assert time.perf_counter() - start < 5


class Inner(FrozenBody, frozen=True):
    """A value in a body."""

    count: int = 0


class Sample(Body):
    """One member of each kind."""

    number: int = 7
    ratio: float = 0.5
    on: bool = False
    text: str = "x"
    maybe: int | None = None
    numbers: list[int] = msgspec.field(default_factory=list)
    by_name: dict[str, int] = msgspec.field(default_factory=dict)
    by_number: dict[int, str] = msgspec.field(default_factory=dict)
    by_inner: dict[Inner, int] = msgspec.field(default_factory=dict)
    pairs: list[tuple[str, int]] | None = None


@pytest.mark.parametrize(
    ("text", "member", "value"),
    [
        ('{"number":"12"}', "number", 12),
        ('{"number":12.9}', "number", 12),
        ('{"number":-12.9}', "number", -12),
        ('{"number":""}', "number", 0),
        ('{"number":"null"}', "number", 0),
        ('{"number":true}', "number", 1),
        ('{"number":null}', "number", 7),
        ('{"NUMBER":3}', "number", 3),
        ('{number:3}', "number", 3),
        ('{"ratio":"1.5"}', "ratio", 1.5),
        ('{"ratio":2}', "ratio", 2.0),
        ('{"on":"TRUE"}', "on", True),
        ('{"on":"y"}', "on", True),
        ('{"on":"no"}', "on", False),
        ('{"on":1}', "on", True),
        ('{"on":2}', "on", False),
        ('{"text":5}', "text", "5"),
        ('{"text":{"b":[1,true]}}', "text", '{"b":[1,true]}'),
        ('{"maybe":"5"}', "maybe", 5),
        ('{"maybe":null}', "maybe", None),
        ('{"numbers":["1",2,3.7]}', "numbers", [1, 2, 3]),
        ('{"byName":{1:2}}', "by_name", {"1": 2}),
        ('{"byName":{a:2,"b":"3"}}', "by_name", {"a": 2, "b": 3}),
        ('{"byName":"{\\"a\\":2}"}', "by_name", {"a": 2}),
        ('{"byNumber":{1:"a","2":"b"}}', "by_number", {1: "a", 2: "b"}),
        ('{"byNumber":{-1:null}}', "by_number", {-1: "null"}),
        ('{"byInner":{{"count":4}:5}}', "by_inner", {Inner(count=4): 5}),
        ('{"byInner":{{"COUNT":"4","x":1}:5}}', "by_inner", {Inner(count=4): 5}),
        ('{"byInner":{"{\\"count\\":4}":5}}', "by_inner", {Inner(count=4): 5}),
        ('{"pairs":[["a","1"],[2,3.7]]}', "pairs", [("a", 1), ("2", 3)]),
        ('{"pairs":[],"unknown":1}', "pairs", []),
        ('{"unknown":{"number":1}}', "number", 7),
        ('{"number":1,"number":2}', "number", 2),
        ('{"number":1,"Number":2}', "number", 2),
    ],
)  # fmt: skip
def test_members_are_cast_as_java_casts_them(text: str, member: str, value: object) -> None:
    decoded = getattr(Sample.decode(text.encode()), member)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"number":"x"}', "Sample: number: "),
        ('{"number":[]}', "Sample: number: number expected, got list"),
        ('{"number":NaN}', "Sample: number: "),
        ('{"number":1e999}', "Sample: number: "),
        ('{"number":"' + "9" * 5000 + '"}', "Sample: number: "),
        ('{"ratio":"x"}', "Sample: ratio: "),
        ('{"ratio":{}}', "Sample: ratio: number expected, got dict"),
        ('{"on":[]}', "Sample: on: true or false expected, got list"),
        ('{"on":0.5}', "Sample: on: true or false expected, got float"),
        ('{"numbers":{}}', "Sample: numbers: list expected, got dict"),
        ('{"numbers":[1,"x"]}', "Sample: numbers: "),
        ('{"byName":[]}', "Sample: byName: object expected, got list"),
        ('{"byName":"[1]"}', "Sample: byName: object expected, got list"),
        ('{"byNumber":{"x":"a"}}', "Sample: byNumber: "),
        ('{"byNumber":{1e400:"a"}}', "Sample: byNumber: "),
        ('{"pairs":[["a"]]}', "Sample: pairs: list of 2 expected, got list"),
        ('{"pairs":["ab"]}', "Sample: pairs: list of 2 expected, got str"),
        ('{"byInner":{7:1}}', "Sample: byInner: object expected, got int"),
        ('{"byInner":{{"count":[]}:1}}', "Sample: byInner.count: number expected, got tuple"),
        ("[1]", "Sample: the body is not a JSON object"),
        ("null", "Sample: the body is not a JSON object"),
    ],
)
def test_a_member_that_cannot_be_cast_is_named(text: str, where: str) -> None:
    with pytest.raises(BodyError) as caught:
        Sample.decode(text.encode())
    assert str(caught.value).startswith(where)


def test_a_text_in_a_key_that_is_no_json_is_refused() -> None:
    for text in ('{"offsetTable":{"T":5}}', '{"offsetTable":{"{":5}}', '{"offsetTable":{"":5}}'):
        with pytest.raises(BodyError):
            ResetOffsetBody.decode(text.encode())


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xfe", b"{\xff}", b'{"groupName":"\xff"'])
def test_bytes_that_are_no_text(data: bytes) -> None:
    with pytest.raises(BodyError):
        SubscriptionGroupConfig.decode(data)


def test_bytes_that_are_no_utf8_inside_a_text_become_replacement_characters() -> None:
    assert SubscriptionGroupConfig.decode(b'{"groupName":"a\xffb"}').group_name == "a\ufffdb"


def test_a_body_is_written_alphabetically_without_nulls() -> None:
    body = Sample(by_inner={Inner(count=2): 1}, by_number={3: "c", 1: "a"}, numbers=[1])
    assert body.encode() == (
        b'{"byInner":{{"count":2}:1},"byName":{},"byNumber":{3:"c",1:"a"},"number":7,"numbers":[1],"on":false'
        b',"ratio":0.5,"text":"x"}'
    )
    assert Sample.decode(body.encode()) == Sample.decode(body.encode_pretty()) == body


class Bounded(Body):
    """Limits at which a text can be written by hand."""

    tolerant_bytes: ClassVar[int] = 40
    most_bytes: ClassVar[int] = 60
    most_objects: ClassVar[int] = 4

    text: str = ""
    parts: list[Inner] = msgspec.field(default_factory=list)


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b'{"text":"' + b"x" * 49 + b'"}', Bounded(text="x" * 49)),  # 60 bytes of standard JSON
        (b"{text:'" + b"x" * 31 + b"'}", Bounded(text="x" * 31)),  # 40 bytes in the dialect
        (b'{"parts":[{},{},{}]}', Bounded(parts=[Inner()] * 3)),
        (b'{"text":"{{{"}', Bounded(text="{{{")),
    ],
)
def test_a_body_up_to_its_limits(data: bytes, body: Bounded) -> None:
    assert Bounded.decode(data) == body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"text":"' + b"x" * 50 + b'"}', "Bounded: 61 bytes; at most 60 are read"),
        (b"{text:'" + b"x" * 32 + b"'}", "Bounded: 41 bytes of non-standard JSON, the limit is 40"),
        (b'{"parts":[{},{},{},{}]}', "Bounded: 5 objects; at most 4 are read"),
        (b'{"text":"{{{{"}', "Bounded: 5 objects; at most 4 are read"),  # they are counted, not parsed
        (b"{{{{{", "Bounded: 5 objects; at most 4 are read"),
        (b"{{{{", "JSON: "),
    ],
)
def test_a_body_beyond_its_limits(data: bytes, message: str) -> None:
    with pytest.raises(BodyError) as caught:
        Bounded.decode(data)
    assert str(caught.value).startswith(message)


class Numbered(Body):
    """Keys and members with bounds."""

    queue: QueueId = 0
    by_key: dict[SmallKey, int] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize("number", [-(1 << 31), -1, 0, (1 << 31) - 1])
@pytest.mark.parametrize("form", ['{"queue":%d}', '{"queue":"%d"}', "{queue:%d}", '{"queue":%d.0,}'])
def test_queue_ids_up_to_their_bounds(number: int, form: str) -> None:
    assert Numbered.decode((form % number).encode()).queue == number


@pytest.mark.parametrize("number", [-(1 << 31) - 1, 1 << 31, 1 << 60])
@pytest.mark.parametrize("form", ['{"queue":%d}', '{"queue":"%d"}', "{queue:%d}"])
def test_queue_ids_beyond_their_bounds(number: int, form: str) -> None:
    with pytest.raises(BodyError) as caught:
        Numbered.decode((form % number).encode())
    assert str(caught.value) == f"Numbered: queue: {number} is out of range"


@pytest.mark.parametrize("form", ["{byKey:{%s}}", '{"byKey":{%s}}'])
def test_how_many_large_numbers_may_be_keys(form: str) -> None:
    small = [0, 1, SMALL_KEY_MOST]
    large = [-1, SMALL_KEY_MOST + 1, *range(1_000_000, 1_000_000 + WIDE_KEYS_MOST - 2)]

    def read(keys: list[int]) -> dict[int, int]:
        return Numbered.decode((form % ",".join(f"{key}:{key}" for key in keys)).encode()).by_key

    assert read(small + large) == {key: key for key in small + large}
    with pytest.raises(BodyError, match="numbers as keys"):
        read([*small, *large, -2])


class Outer(Body):
    """What a later version may add members to, at any depth."""

    tolerant_bytes: ClassVar[int] = 10

    one: Inner | None = None
    many: list[Inner] = msgspec.field(default_factory=list)
    named: dict[str, list[Inner]] = msgspec.field(default_factory=dict)
    count: int = 3


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('{"unknown":{"one":{}}}', Outer()),
        ('{"one":{"count":"5","unknown":[]}}', Outer(one=Inner(count=5))),
        ('{"one":null,"unknown":1}', Outer()),
        ('{"many":[{"count":1,"unknown":{}},{"unknown":null}]}', Outer(many=[Inner(count=1), Inner()])),
        ('{"named":{"a":[{"unknown":0,"count":"7"}],"b":[]}}', Outer(named={"a": [Inner(count=7)], "b": []})),
        ('{"count":"12","unknown":"x"}', Outer(count=12)),
    ],
)
def test_a_long_text_may_have_unknown_members_and_numbers_as_text(text: str, body: Outer) -> None:
    assert len(text) > Outer.tolerant_bytes
    read = Outer.decode(text.encode())
    assert read == body
    assert all(type(part) is Inner for part in [*read.many, *read.named.get("a", []), read.one or Inner()])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"COUNT":1,"count":"many"}', "Expected `int`, got `str` - at `$.count`"),
        ("{count:1,unknown:2}", "JSON is malformed"),
        ('{"many":{"count":1}}', "Expected `array`, got `object` - at `$.many`"),
        ('{"many":[{"count":[]}]}', "Expected `int`, got `array` - at `$.many[0].count`"),
    ],
)
def test_a_long_text_of_another_form_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BodyTooLongError) as caught:
        Outer.decode(text.encode())
    assert str(caught.value).startswith(f"Outer: {len(text)} bytes of non-standard JSON, the limit is 10: {reason}")
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (len(text), 10)


@pytest.mark.parametrize("broker", ["broker-a", "a,{b}:", "ü"])
def test_a_long_answer_may_have_objects_as_keys(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "ANSWER_TOLERANT_BYTES", 100)
    monkeypatch.setattr(TopicStatsTable, "tolerant_bytes", 100)
    table = {MessageQueue("T", broker, queue_id): TopicOffset(max_offset=queue_id) for queue_id in range(9)}
    body = TopicStatsTable(offset_table=table)
    assert TopicStatsTable.decode(body.encode()) == body
    with pytest.raises(BodyTooLongError):
        TopicStatsTable.decode(body.encode().replace(b'"minOffset"', b"minOffset"))


@pytest.mark.parametrize("piece", [b'"",', b"{}:0,", b"{}:{},", b"[],", b'"{}:",'])
def test_a_long_answer_of_tiny_pieces_takes_little_memory(piece: bytes) -> None:
    """A broker chooses what it answers: a list with an entry for each piece would take a hundred times the body."""
    size = body_module.ANSWER_TOLERANT_BYTES + 1
    begin = b'{"a":{' if piece.startswith(b"{") else b'{"a":['
    tracemalloc.start()
    try:
        with suppress(BodyTooLongError):
            TopicStatsTable.decode(begin + piece * (size // len(piece)) + b"{}:0}}")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * size


def test_numbers_as_keys_are_quoted_with_little_memory() -> None:
    text = b'{"a":[' + b'"",' * 300_000 + b'"{1:,2:"],3:[{-4:5}]}'
    tracemalloc.start()
    try:
        quoted = body_module._quote_numbers(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert quoted == text.replace(b"3:[{-4:", b'"3":[{"-4":')
    assert peak_bytes < 10 * len(text)


def test_a_long_request_with_objects_as_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicStatsTable, "tolerant_bytes", 100)
    table = {MessageQueue("T", "a", queue_id): TopicOffset() for queue_id in range(9)}
    with pytest.raises(BodyTooLongError):
        TopicStatsTable.decode(TopicStatsTable(offset_table=table).encode())


def test_texts_are_no_keys() -> None:
    text = b'{"a":"{\\"b\\":1}:,{\\"c\\":2}:","d":[{"e":1},{"f":2}],"g":",{}:"}'
    assert body_module._quote_objects(text) == text
    assert body_module._quote_objects(b'{{"a":1}:2,{"b":"{:"}:{"c":3}}') == (
        b'{"{\\"a\\":1}":2,"{\\"b\\":\\"{:\\"}":{"c":3}}'
    )
