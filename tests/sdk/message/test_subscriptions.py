"""Subscriptions to a topic, as users write them and as they are sent."""

from __future__ import annotations

import pytest

import triomq
from triomq import errors
from triomq._message.subscription import make_subscription, next_version_ms, tags_taken


@pytest.mark.parametrize(
    ("expression", "text", "tags"),
    [
        (None, "*", set()),
        ("", "*", set()),
        ("*", "*", set()),
        ("a || b", "a || b", {"a", "b"}),
        ("* || a", "* || a", {"*", "a"}),
    ],
)
def test_tags(expression, text, tags):
    subscription = make_subscription("T", expression, 5)
    assert (subscription.expression, subscription.kind, subscription.version_ms) == (text, "TAG", 5)
    assert subscription.exact_tags == tags
    assert subscription.filters_by_tag


def test_subscription_data_as_it_is_sent():
    data = make_subscription("T", "TagA || 标签", 7).data()
    assert (data.sub_string, data.expression_type, data.sub_version) == ("TagA || 标签", "TAG", 7)
    assert (set(data.tags_set), set(data.code_set)) == ({"TagA", "标签"}, {2598919, 857175})
    sql = make_subscription("T", triomq.Sql("a > 5"), 7)
    assert not sql.filters_by_tag
    assert not sql.exact_tags
    assert (sql.data().sub_string, sql.data().expression_type, sql.data().tags_set) == ("a > 5", "SQL92", [])
    filtered = make_subscription("T", triomq.plugins.ClassFilter("org.example.Filter"), 7).data()
    assert (filtered.class_filter_mode, filtered.sub_string, filtered.tags_set) == (True, "org.example.Filter", [])


@pytest.mark.parametrize(
    ("now_ms", "last_ms", "version_ms"),
    [(100, 0, 100), (100, 99, 100), (100, 100, 101), (50, 100, 101), (200, 100, 200)],
)
def test_versions_only_grow(now_ms, last_ms, version_ms):
    assert next_version_ms(now_ms, last_ms) == version_ms


@pytest.mark.parametrize(
    ("asked", "announced", "tags"),
    [
        ("a", None, {"a"}),
        ("a", "a", {"a"}),
        ("a", "b || c", {"a", "b", "c"}),
        ("*", "b", set()),
        ("a", "*", set()),
        ("a", triomq.Sql("n > 5"), set()),
        ("*", None, set()),
    ],
)
def test_what_is_taken_of_a_pull_that_was_held_meanwhile(asked, announced, tags):
    newer = None if announced is None else make_subscription("T", announced, 6)
    assert tags_taken(make_subscription("T", asked, 5), newer) == tags


@pytest.mark.parametrize(
    "expression", ["||", " || ", "a && b", "a || b&&c", triomq.Sql(""), triomq.Sql(" \n"), 5, b"a", ["a"]]
)
def test_what_cannot_be_used(expression):
    with pytest.raises(errors.InvalidCall):
        make_subscription("T", expression, 0)


@pytest.mark.parametrize(
    "expression",
    [
        "price > 10 AND region = 'EU'",
        "TAGS IN ('a', 'b')",
        "a IS NULL",
        "a IS NOT NULL",
        "NOT a",
        "a = 1",
        "a='x'",
        "a<1",
        "a>=1",
        "a || b>5",
        "price BETWEEN 1 AND 5",
        "flag IN (1, 2)",
        "(a = 1) OR b",
    ],
)
def test_an_sql_expression_is_not_taken_for_a_tag(expression):
    with pytest.raises(errors.InvalidCall, match=r"not a list of tags.*triomq\.Sql\('\.\.\.'\).*sql='\.\.\.'"):
        make_subscription("T", expression, 0)


@pytest.mark.parametrize(
    "tag",
    ["eu-west", "a/b", "a.b", "a:b", "a|b", "5", "100%", "@x", "a,b", "标签", "New York", "it's", "f(x)", "IN", "OR", "k=v",
     "rock and roll", "MADE IN"],
)  # fmt: skip
def test_what_tags_are_made_of(tag):
    assert make_subscription("T", f"{tag} || other", 0).exact_tags == {tag, "other"}
