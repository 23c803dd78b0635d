"""Brokers at the name server: codes 103, 104 and 322, and the compressed registration."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_rules import BODY_RULES, HEADER_RULES, INT32, TEXTS, BodyClass, HeaderCase, bodies

from triomq_protocol.errors import BodyError
from triomq_protocol.requests import (
    DataVersion,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    TopicConfig,
    TopicConfigTable,
    UnRegisterBrokerRequest,
    registration_crc,
)

HEADERS = [
    HeaderCase(
        RegisterBrokerRequest,
        "brokerName* brokerAddr* clusterName* haServerAddr* brokerId*:int64 compressed:bool=False bodyCrc32>body_crc32:int32=0",
    ),
    HeaderCase(RegisterBrokerResponse, "haServerAddr masterAddr"),
    HeaderCase(UnRegisterBrokerRequest, "brokerName* brokerAddr* clusterName* brokerId*:int64"),
    HeaderCase(QueryDataVersionRequest, "brokerName* brokerAddr* clusterName* brokerId*:int64"),
    HeaderCase(QueryDataVersionResponse, "changed:bool"),
]
BODIES: list[BodyClass] = [DataVersion, TopicConfig, TopicConfigTable, RegisterBrokerBody]


@HEADER_RULES
@pytest.mark.parametrize("case", HEADERS, ids=str)
def test_headers(case: HeaderCase, rule: Callable[[HeaderCase], None]) -> None:
    rule(case)


@BODY_RULES
@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_bodies(cls: BodyClass, rule: Callable[[BodyClass], None]) -> None:
    rule(cls)


NAMES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters=" "), min_size=1, max_size=10)
CONFIGS = st.builds(
    TopicConfig, topic_name=NAMES, perm=INT32, read_queue_nums=INT32, write_queue_nums=INT32,
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
)  # fmt: skip


@settings(max_examples=40)
@given(
    st.lists(CONFIGS, max_size=4, unique_by=lambda config: config.topic_name),
    bodies(DataVersion),
    st.lists(TEXTS, max_size=3),
)
def test_the_compressed_form_is_decoded_as_it_was_encoded(
    configs: list[TopicConfig], version: DataVersion, servers: list[str]
) -> None:
    table = TopicConfigTable(
        data_version=version, topic_config_table={str(config.topic_name): config for config in configs}
    )
    body = RegisterBrokerBody(filter_server_list=servers, topic_config_serialize_wrapper=table)
    assert RegisterBrokerBody.decode_compressed(body.encode_compressed()) == body


def test_order_and_flag_do_not_travel_in_the_compressed_form() -> None:
    config = TopicConfig(topic_name="T", order=True, topic_sys_flag=3, perm=7, read_queue_nums=1, write_queue_nums=2)
    assert config.line() == "T 1 2 7 SINGLE_TAG"
    assert TopicConfig.from_line(config.line()) == TopicConfig(
        topic_name="T", perm=7, read_queue_nums=1, write_queue_nums=2
    )


@pytest.mark.parametrize("attributes", ["", "{}", "null", '{"+message.type":"DELAY","a":"b c"}'])
def test_lines_of_version_5_have_attributes(attributes: str) -> None:
    assert TopicConfig.from_line(f"T 4 4 6 SINGLE_TAG {attributes}") == TopicConfig.from_line("T 4 4 6 SINGLE_TAG")


def part(data: bytes, size: int | None = None) -> bytes:
    return (len(data) if size is None else size).to_bytes(4, "big", signed=True) + data


VERSION = part(b'{"counter":1,"timestamp":2}')
ONE = part(b"", 1) + part(b"T 4 4 6 SINGLE_TAG")
NONE = part(b"", 0)
SERVERS = part(b'["f"]')


def test_the_parts_of_the_compressed_form() -> None:
    body = RegisterBrokerBody.decode_compressed(zlib.compress(VERSION + ONE + SERVERS))
    assert body.filter_server_list == ["f"]
    assert body.topic_config_serialize_wrapper.data_version == DataVersion(counter=1, timestamp=2)
    assert list(body.topic_config_serialize_wrapper.topic_config_table) == ["T"]


@pytest.mark.parametrize(
    "inflated",
    [
        b"", VERSION, VERSION + ONE, VERSION + part(b"", 2) + part(b"T 4 4 6 SINGLE_TAG") + SERVERS,
        part(b"{}", -1) + NONE + SERVERS, part(b"{}", 1 << 30) + NONE + SERVERS, VERSION + part(b"", -1) + SERVERS,
        VERSION + part(b"", (1 << 31) - 1) + SERVERS, VERSION + NONE + part(b"[]", 3), VERSION + NONE + part(b"{}"),
        VERSION + NONE + part(b""), VERSION + NONE + part(b"null"), VERSION + NONE + part(b'"f"'), part(b"") + NONE + SERVERS,
        part(b"[]") + NONE + SERVERS, part(b'{"counter":[]}') + NONE + SERVERS, VERSION + part(b"", 1) + part(b"T 4 4 6") + SERVERS,
        VERSION + part(b"", 1) + part(b"T 4 x 6 SINGLE_TAG") + SERVERS, VERSION + part(b"", 1) + part(b"\xff\xff") + SERVERS,
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(inflated: bytes) -> None:
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode_compressed(zlib.compress(inflated))


@pytest.mark.parametrize(
    ("begin", "long", "why"),
    [
        (b"", b" " * 60_000_000, "60000000 bytes of a version; 0 to 4096 are possible"),
        (VERSION + part(b"", 1), b" " * 60_000_000, "60000000 bytes of a topic; 0 to 4096 are possible"),
        (VERSION + NONE, b"[" + b"1," * 4096 + b"1]", "8195 bytes of filter servers; 0 to 8192 are possible"),
    ],
)
def test_a_part_that_is_too_long_is_refused_before_it_is_inflated(begin: bytes, long: bytes, why: str) -> None:
    slices = RegisterBrokerBody.decode_compressed_in_slices(zlib.compress(begin + part(long) + NONE + SERVERS))
    next(slices)
    with pytest.raises(BodyError, match=why):
        next(slices)


def test_more_topics_than_a_name_server_takes_are_refused_before_one_is_read() -> None:
    many = zlib.compress(VERSION + part(b"", 500_001) + part(b"T 4 4 6 SINGLE_TAG") * 500_001 + SERVERS)
    slices = RegisterBrokerBody.decode_compressed_in_slices(many)
    next(slices)
    with pytest.raises(BodyError, match="500001 topics; 0 to 500000 are possible"):
        next(slices)


def test_what_follows_the_filter_servers_is_passed_over() -> None:
    more = zlib.compress(VERSION + ONE + SERVERS + part(b"{}") + bytes(1 << 20))
    slices = RegisterBrokerBody.decode_compressed_in_slices(more)
    count = sum(1 for _ in slices)
    assert count == 5, "a piece of 256 KiB in each"
    assert RegisterBrokerBody.decode_compressed(more).filter_server_list == ["f"]
    with pytest.raises(BodyError, match="incomplete"):
        RegisterBrokerBody.decode_compressed(more[:-1])


@pytest.mark.parametrize("count", range(len(VERSION + ONE + SERVERS)))
def test_an_inflated_form_that_ends_early_is_refused(count: int) -> None:
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode_compressed(zlib.compress((VERSION + ONE + SERVERS)[:count]))


@settings(max_examples=40)
@given(st.binary(max_size=60), st.booleans())
def test_noise_in_place_of_a_registration(noise: bytes, packed: bool) -> None:
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode_compressed(zlib.compress(noise) if packed else noise)


@given(st.binary(max_size=40))
def test_the_checksum_fits_an_int32_and_is_the_standard_one(body: bytes) -> None:
    assert registration_crc(body) == zlib.crc32(body) & 0x7FFFFFFF


def test_versions_are_values() -> None:
    first, second = DataVersion(counter=1, timestamp=2), DataVersion.decode(b'{"timestamp":"2","counter":1.0}')
    assert first == second
    assert len({first, second, DataVersion(counter=2, timestamp=2), DataVersion(counter=1, timestamp=3)}) == 3
    with pytest.raises(AttributeError):
        first.counter = 5  # type: ignore[misc]


def test_a_topic_takes_javas_defaults() -> None:
    assert TopicConfig.decode(b'{"topicName":"T"}').encode() == (
        b'{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
        b'"writeQueueNums":16}'
    )
