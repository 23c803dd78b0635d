"""Numbers of the protocol: unique, in their ranges, with the names of the versions."""

from __future__ import annotations

import enum

import pytest

from triomq_protocol import errors, flags
from triomq_protocol.codes import VERSION, LanguageCode, RequestCode, ResponseCode, SerializeType, version_description
from triomq_protocol.filters.evaluation import EvaluationError
from triomq_protocol.filters.sql92 import Sql92Error


@pytest.mark.parametrize(
    ("number", "name"),
    [(407, "V4_9_7"), (406, "V4_9_7_SNAPSHOT"), (213, "V4_0_0"), (212, "V4_0_0_SNAPSHOT"), (233, "V4_1_0"),
     (401, "V4_9_4"), (411, "V4_9_9"), (413, "V5_0_0"), (611, "V5_9_9"), (612, "HIGHER_VERSION"), (9999, "HIGHER_VERSION"),
     (121, "V3_4_9"), (62, "V3_1_8_SNAPSHOT")],
)  # fmt: skip
def test_versions(number: int, name: str) -> None:
    assert version_description(number) == name


def test_codes() -> None:
    assert RequestCode.SEND_MESSAGE_V2 == 310
    assert ResponseCode.CONSUMER_NOT_ONLINE == 206
    assert LanguageCode.RUST == 12


@pytest.mark.parametrize(
    ("perm", "text"),
    [
        (0, "---"),
        (1, "--X"),
        (2, "-W-"),
        (3, "-WX"),
        (4, "R--"),
        (5, "R-X"),
        (6, "RW-"),
        (7, "RWX"),
        (8, "---"),  # priority, which nothing uses
        (14, "RW-"),
        (-1, "RWX"),
    ],
)
def test_permissions_as_text(perm: int, text: str) -> None:
    assert flags.perm_text(perm) == text


@pytest.mark.parametrize("codes", [RequestCode, ResponseCode, LanguageCode, SerializeType])
def test_every_number_has_one_name(codes: type[enum.IntEnum]) -> None:
    assert len(codes.__members__) == len({int(code) for code in codes})
    assert all(codes[code.name] is codes(int(code)) for code in codes)
    assert list(codes) == sorted(codes)


def test_numbers_fit_their_fields_on_the_wire() -> None:
    assert all(0 <= code < 1 << 15 for code in [*RequestCode, *ResponseCode])  # int16 in a binary header
    assert [int(code) for code in LanguageCode] == list(range(13))
    assert [int(code) for code in SerializeType] == [0, 1]


@pytest.mark.parametrize("codes", [RequestCode, ResponseCode, LanguageCode])
@pytest.mark.parametrize("number", [-1, 9999, 1 << 31])
def test_numbers_without_a_name(codes: type[enum.IntEnum], number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        codes(number)


def test_the_version_that_is_written() -> None:
    assert version_description(VERSION) == "V4_9_7"
    names = [version_description(number) for number in range(613)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (errors.HeaderError("topic", "is missing"), "header field 'topic' is missing", errors.ProtocolError),
        (errors.BodyError("TopicList", "5 bytes"), "TopicList: 5 bytes", errors.ProtocolError),
        (errors.LocalProtocolError("x"), "x", errors.ProtocolError),
        (errors.RemoteProtocolError("x"), "x", errors.ProtocolError),
        (Sql92Error("x"), "x", errors.LocalProtocolError),
        (EvaluationError("x"), "x", errors.LocalProtocolError),
    ],
)
def test_errors_have_one_root(error: Exception, text: str, kind: type[Exception]) -> None:
    assert str(error) == text
    assert isinstance(error, kind)
    assert isinstance(error, errors.ProtocolError)


def test_the_flags_of_a_field_do_not_overlap() -> None:
    for prefix in ("PULL_", "PERM_", "TOPIC_"):
        values = [value for name, value in vars(flags).items() if name.startswith(prefix)]
        assert sum(values) == (1 << len(values)) - 1
    assert (flags.RESPONSE, flags.ONEWAY) == (1, 2)
