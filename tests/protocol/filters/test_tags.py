"""Tag subscriptions and the tags code of an entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.tags import check_tags, parse_subscription, read_tags, tags_code
from triomq_protocol.java_text import java_hash


@pytest.mark.parametrize("text", [None, "", "*"])
def test_a_subscription_to_all(text: str | None) -> None:
    wanted = parse_subscription(text)
    assert (wanted.expression, wanted.tags, wanted.codes) == ("*", (), frozenset())
    assert wanted.matches_tag(None)


def test_a_subscription_to_some() -> None:
    wanted = parse_subscription(" TagA ||\tTagB||TagA||")
    assert wanted.tags == ("TagA", "TagB")
    assert wanted.codes == {2598919, 2598920}
    assert wanted.matches_tag("TagB")
    assert not wanted.matches_tag("TagC")
    assert not wanted.matches_tag(None)
    assert parse_subscription("polygenelubricants").codes == {-2147483648}
    for text in ("||", " || ", " "):
        with pytest.raises(LocalProtocolError):
            parse_subscription(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A", ("A",)), ("A||B", ("A", "B")), (" A || B ", ("A", "B")), ("A||||B||", ("A", "B")), ("B||A||B", ("B", "A")),
        ("A|B", ("A|B",)), ("A|||B", ("A", "|B")), ("A B", ("A B",)), ("*||A", ("*", "A")), ("**", ("**",)), (" * ", ("*",)),
        ("\x00A\x1f||\x20B", ("A", "B")), ("\xa0A", ("\xa0A",)), ("世界||😀", ("世界", "😀")), ("a||A", ("a", "A")),
    ],
)  # fmt: skip
def test_how_a_subscription_is_split(text: str, wanted: tuple[str, ...]) -> None:
    found = parse_subscription(text)
    assert found.expression == text
    assert found.tags == wanted
    assert found.codes == {java_hash(tag) for tag in wanted}
    assert all(found.matches_tag(tag) for tag in wanted)
    assert not any(found.matches_tag(tag) for tag in (None, "", "other", text + "x"))


@given(st.lists(st.text(st.sampled_from("aB%_世"), min_size=1, max_size=5), min_size=1, max_size=6))
def test_every_tag_of_a_subscription_is_wanted_once(wanted: list[str]) -> None:
    found = parse_subscription(" || ".join(wanted))
    assert found.tags == tuple(dict.fromkeys(wanted))
    assert {tags_code(tag) for tag in wanted} == found.codes


def test_tags_of_one_hash_are_distinguished_by_their_text() -> None:
    found = parse_subscription("Aa")
    assert tags_code("Aa") == tags_code("BB") == 2112
    assert tags_code("BB") in found.codes
    assert found.matches_tag("Aa")
    assert not found.matches_tag("BB")
    assert parse_subscription("Aa||BB").codes == {2112}
    assert parse_subscription("Aa||BB").tags == ("Aa", "BB")


@pytest.mark.parametrize(
    ("tags", "code"),
    [(None, 0), ("", 0), ("TagA", 2598919), ("世界", 649718), ("😀", 1772899), ("polygenelubricants", -2147483648)],
)
def test_known_tags_codes(tags: str | None, code: int) -> None:
    assert tags_code(tags) == tags_code(tags) == code


def test_many_and_long_tags_have_their_codes() -> None:
    for number in range(5000):
        assert tags_code(f"tag-{number}") == java_hash(f"tag-{number}")
    assert tags_code("t" * 1000) == java_hash("t" * 1000)


@pytest.mark.parametrize("text", ["||", " || ", " ", "\x00||\x1f"])
def test_a_subscription_without_a_tag_is_named(text: str) -> None:
    for read in (read_tags, parse_subscription, check_tags):
        with pytest.raises(LocalProtocolError) as caught:
            read(text)
        assert str(caught.value) == f"subscription {text!r} names no tag"


@pytest.mark.parametrize("text", ["A && B", "A&&B", "A || B && C", "&&"])
def test_and_between_tags_is_a_mistake_that_brokers_accept(text: str) -> None:
    assert parse_subscription(text).expression == text
    with pytest.raises(LocalProtocolError, match="a message has one tag; only \\|\\| joins tags"):
        check_tags(text)


@pytest.mark.parametrize(
    "text",
    [
        "a > 5", "a<5", "a >= 5", "a <> 'x'", "a = 5", "a= 5", "a =5", "a='x'", 'a="x"', "a IS NULL", "a IN ('x')",
        "a BETWEEN 1 AND 5", "a = 1 OR b = 2", "a AND b", "(a) OR b", "'a' AND b", "NOT a", "x || NOT a", "x || a > 5",
        "a\tIS\tNULL",
    ],
)  # fmt: skip
def test_sql_in_the_place_of_tags_is_a_mistake_that_brokers_accept(text: str) -> None:
    assert parse_subscription(text).expression == text
    with pytest.raises(
        LocalProtocolError, match=r"is not a list of tags like 'a \|\| b', but reads like an SQL92 expression"
    ):
        check_tags(text)


@pytest.mark.parametrize(
    "text",
    [
        None, "", "*", "A", "A || B", "A B", "a=5", "key=value || other", "it's", '"A"', "IS", "NOT", "AND || OR", "a and b",
        "NOTHING a", "a ORB b", "IN a", "A & B", "A | B", "世界 || 😀", "a ISx b",
    ],
)  # fmt: skip
def test_plain_tags_may_have_blanks_quotes_and_equals_signs(text: str | None) -> None:
    assert check_tags(text) == parse_subscription(text) == read_tags(text)
