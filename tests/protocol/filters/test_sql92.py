"""SQL92 filters: every case that the real filter module answered, and what no input may do."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from triomq_protocol.filters import sql92
from triomq_protocol.filters.evaluation import EvaluationError, compile_filter
from triomq_protocol.filters.sql92 import DEPTH_MAX, OPERANDS_MAX, TEXT_MAX, Sql92Error, parse

NAME = "filter_sql92.json"


@cache
def property_sets(folder: Path) -> dict[str, dict[str, str]]:
    document = json.loads((folder / NAME).read_text(encoding="utf-8"))
    return {one["name"]: one["properties"] for one in document["propertySets"]}


def outcome(expression: str, properties: dict[str, str]) -> object:
    try:
        return compile_filter(expression).evaluate(properties)
    except EvaluationError:
        return "error"


@pytest.mark.vectors(NAME, "cases")
def test_recorded_cases(case: dict[str, Any], equal: Callable[[object, object], None], vector_folder: Path) -> None:
    if not case["compiles"]:
        with pytest.raises(Sql92Error):
            parse(case["expression"])
        equal(case.get("results"), None)
        return
    for name, properties in property_sets(vector_folder).items():
        equal(outcome(case["expression"], properties), case["results"][name])
        equal(compile_filter(case["expression"]).matches(properties), case["results"][name] is True)


# Each line was answered by the filter module of 4.9.7: an expression, and its value for these properties.
ASKED = {"a": "5", "b": "10", "c": "-3", "big": "3000000000", "text": "abc", "yes": "tRuE", "n": "NaN", "z": "-0.0"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("5 = zzz", False),
        ("zzz = 5", None),
        ("zzz = zzz", True),
        ("5 <> zzz", True),
        ("'x' = (a = b)", True),
        ("(a = b) = 'x'", "error"),
        ("1 = TRUE", False),
        ("yes = TRUE", True),
        ("TRUE = -a", False),
        ("-TRUE IS NULL", True),
        ("a > -NULL", None),
        ("a BETWEEN -1 AND -2", False),
        ("a NOT BETWEEN 10 AND 1", True),
        ("big = 2147483648", False),
        ("big = 2147483647", "error"),
        ("big = -2147483648", False),
        ("big = 5L", "error"),
        ("n > 5.5", True),
        ("z < 0.1", True),
        ("a = 5 b ;", True),
        ("a = 5 --x\nAND b = 11", False),
        ("a = 5 /* ** / */ AND b = 10", True),
        ("+a in ('5')", True),
        ("NOT NOT a", False),
        ("NULL OR TRUE", True),
        ("FALSE AND text = 5", False),
        ("text = 5 AND FALSE", "error"),
    ],
)
def test_odd_values(expression: str, value: object) -> None:
    assert outcome(expression, ASKED) == value


@pytest.mark.parametrize(
    "expression",
    [
        "TRUE = 'true'",
        "NULL = NULL",
        "1",
        "-TRUE",
        "NOT 1",
        "a NOT b",
        "a > (b > 1)",
        "-a in ('5')",
        "a BETWEEN 5 AND 1.5",
        "a BETWEEN TRUE AND TRUE",
        "a = 9223372036854775808",
        "a > 1e-400",
        "a = 5 ; b",
        "a = 'x''",
        "a.b = 5",
        "a\u00a0= 5",
    ],
)
def test_not_compilable(expression: str) -> None:
    with pytest.raises(Sql92Error):
        parse(expression)


ANY_OPERAND = "integer, float, text, name, TRUE, FALSE, NULL, ("


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("a = 5 ? b", "no token begins at character 7: '? b'"),
        ("a && b", "no token begins at character 3: '&& b'"),
        ('a = "x"', "no token begins at character 5: '\"x\"'"),
        ("a = 'x''", 'no token begins at character 8: "\'"'),
        ("? " + "y" * 50, "no token begins at character 1: '? " + "y" * 18 + "'"),
        ("", f"'the end' at character 1; one of {ANY_OPERAND} is expected there"),
        ("   ", f"'the end' at character 4; one of {ANY_OPERAND} is expected there"),
        ("a >", f"'the end' at character 4; one of {ANY_OPERAND} is expected there"),
        ("a == 5", f"'=' at character 4; one of {ANY_OPERAND} is expected there"),
        ("is null", f"'is' at character 1; one of {ANY_OPERAND} is expected there"),
        ("a IS 5", "'5' at character 6; one of NULL is expected there"),
        ("a NOT 5", "'5' at character 7; one of BETWEEN, IN is expected there"),
        ("a BETWEEN 1 OR 2", "'OR' at character 13; one of AND is expected there"),
        ("(a = 5", "'the end' at character 7; one of ) is expected there"),
        ("a IN 'x'", "\"'x'\" at character 6; one of ( is expected there"),
        ("a IN (5)", "'5' at character 7; one of text is expected there"),
        ("a IN ('x'", "'the end' at character 10; one of ,, ) is expected there"),
        ("1", "Expression will not result in a boolean value: 1"),
        ("a OR 'it''s'", "Expression will not result in a boolean value: 'it''s'"),
        ("-a", "Expression will not result in a boolean value: (- a)"),
        ("NOT 1.5", "Expression will not result in a boolean value: 1.5"),
        ("NULL = 5", "'NULL' cannot be compared; use IS NULL"),
        ("a <> NULL", "'NULL' cannot be compared; use IS NULL"),
        ("TRUE = 5", "'TRUE' cannot be compared with '5'"),
        ("FALSE = 'x'", "'FALSE' cannot be compared with ''x''"),
        ("a > TRUE", "Value 'TRUE' cannot be compared by >"),
        ("NULL <= 5", "Value 'NULL' cannot be compared by <="),
        ("'x' < a", "Value ''x'' cannot be compared by <"),
        ("a < b < c", "Value '(a < b)' cannot be compared by <"),
        ("a BETWEEN 'a' AND 'b'", "Value ''a'' cannot be compared by >="),
        ("a BETWEEN 1 AND 'b'", "Value ''b'' cannot be compared by <="),
        ("a NOT BETWEEN TRUE AND 5", "Value 'TRUE' cannot be compared by <"),
        ("a BETWEEN 5 AND 1.5", "BETWEEN 5 AND 1.5: the left value must not be the larger one"),
        ("-a IN ('5')", "IN needs a property on its left, not (- a)"),
        ("a = 9223372036854775808", "9223372036854775808 does not fit into 64 bits"),
        ("a = 99999999999999999999L", "99999999999999999999L does not fit into 64 bits"),
        ("a > 1e400", "1e400 is greater than 1.7976931348623157E308"),
        ("a > 1e-400", "1e-400 is less than 4.9E-324"),
        ("a > 0.0", "0.0 is less than 4.9E-324"),
        ("x" * (TEXT_MAX + 1), "the expression has 16385 characters; 16384 is the limit"),
        ("(" * DEPTH_MAX + "a", "the expression is nested deeper than 100"),
        ("a OR " * OPERANDS_MAX + "a", "the expression has more than 1024 names, literals, brackets and signs"),
    ],
    ids=lambda text: text[:20],
)
def test_the_error_names_what_is_wrong_and_where(expression: str, message: str) -> None:
    with pytest.raises(Sql92Error) as caught:
        parse(expression)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("expression", "tree"),
    [
        ("a", "a"),
        ("$x_1 = 0", "($x_1 = 0)"),
        ("a IS NULL", "(a = NULL)"),
        ("a is Not null", "(NOT (a = NULL))"),
        ("a <> 'it''s'", "(NOT (a = 'it''s'))"),
        ("a BETWEEN 1 AND 1", "((a >= 1) && (a <= 1))"),
        ("a NOT BETWEEN 2 AND 1", "((a < 2) || (a > 1))"),
        ("a IN ('y', 'x', 'y')", "a IN ( x, y )"),
        ("a NOT IN ('x')", "a NOT IN ( x )"),
        ("a=1 or b=2 or c=3 and d=4", "((a = 1) || (b = 2) || ((c = 3) && (d = 4)))"),
        ("(a or b) and (c or d)", "((a || b) && (c || d))"),
        ("not a = 5", "((NOT a) = 5)"),
        ("NOT NOT a", "(NOT (NOT a))"),
        ("- + - 5 < a", "((- (- 5)) < a)"),
        ("+a >= 5L", "(a >= 5)"),
        ("a = 1.50 = TRUE <> NULL_ IS NULL", "((NOT (((a = 1.5) = TRUE) = NULL_)) = NULL)"),
        ("a = .5e1 OR FALSE OR NULL", "((a = 5.0) || FALSE || NULL)"),
        ("a = 5 b", "(a = 5)"),
        ("a = 9223372036854775807", "(a = 9223372036854775807)"),
    ],
)
def test_trees_of_expressions(expression: str, tree: str) -> None:
    assert str(parse(expression)) == tree


@pytest.mark.parametrize(
    ("number", "is_long"),
    [("0", False), ("5L", False), ("2147483647", False), ("2147483647l", False), ("2147483648", True),
     ("9223372036854775807", True)],
)  # fmt: skip
def test_only_a_literal_of_more_than_32_bits_is_long(number: str, is_long: bool) -> None:
    found = parse(f"a = {number}")
    assert isinstance(found, sql92.Equal)
    assert isinstance(found.right, sql92.Constant)
    assert isinstance(found.right.value, sql92.Long) is is_long
    assert found.right.value == int(number.rstrip("lL"))


@pytest.mark.parametrize(
    ("part", "times"),
    [
        ("(" * 20 + "a" + ")" * 20, 10),
        ("NOT " * 20 + "a", 10),
        ("-" + " -" * 20 + "1 < a", 10),
        ("+" * 20 + "1 < a", 10),
        ("a" + " IS NULL" * 20, 10),
        ("a" + " = TRUE" * 20, 10),
        ("a < 5", 150),
        ("a IN ('x')", 150),
        ("a NOT BETWEEN 1 AND 2", 150),
    ],
)
def test_operands_side_by_side_add_no_depth_to_each_other(part: str, times: int) -> None:
    assert str(parse(" OR ".join([part] * times))).count(" || ") >= times - 1


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "(" * 5000 + "a" + ")" * 5000,
        "NOT " * 4000 + "a",
        "-" * 10_000 + "5 = a",
        "a" + " = a" * 4000,
        "a" + " < 5" * 4000,
        "a IN (" + "'x'," * 100_000,
        "9" * 16_000,
        "1e" + "9" * 16_000,
        "a = '" + "x" * TEXT_MAX,
        " OR ".join(["a=1"] * (OPERANDS_MAX // 2 + 1)),
        " OR ".join(["(" * 9 + "a" + ")" * 9] * (OPERANDS_MAX // 10 + 1)),
        " OR ".join(["- + - + 1 < a"] * (OPERANDS_MAX // 6 + 1)),
        " OR ".join(["NOT NOT NOT a"] * (OPERANDS_MAX // 4 + 1)),
    ],
)
def test_too_long_or_too_deep(text: str) -> None:
    with pytest.raises(Sql92Error):
        compile_filter(text)


def test_a_line_end_is_not_looked_for_at_every_minus(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Counting:
        def match(self, text: str, at: int) -> re.Match[str] | None:
            looked.append(at)
            return pattern.match(text, at)

    pattern = sql92._TOKEN
    monkeypatch.setattr(sql92, "_TOKEN", Counting())
    minuses = " OR ".join(["-" * 20 + "1 < a"] * 45)
    assert outcome(minuses, {"a": "2"}) is True
    assert looked == []
    assert outcome(f"a = 5 -- {minuses}\n OR {minuses}", {"a": "2"}) is True
    assert len(looked) < 10


def test_as_deep_and_as_long_as_allowed() -> None:
    depth = DEPTH_MAX - 2
    assert outcome("(" * depth + "a = 5" + ")" * depth, {"a": "5"}) is True
    many = " OR ".join(f"a={number}" for number in range(OPERANDS_MAX // 2))
    assert outcome(many, {"a": str(OPERANDS_MAX // 2 - 1)}) is True
    assert outcome(many, {"a": str(OPERANDS_MAX // 2)}) is False


def test_a_very_long_text_is_no_number_and_no_truth() -> None:
    assert outcome("a > 1.5", {"a": "2" + "0" * 1000}) is True
    for expression in ("a > 1.5", "a > b", "a = 1.5"):
        with pytest.raises(EvaluationError, match="is not a number"):
            compile_filter(expression).evaluate({"a": "2" + "0" * 1100, "b": "1"})
    assert outcome("a = TRUE", {"a": "tRuE"}) is True
    assert outcome("a = TRUE", {"a": "true" * 1000}) is False


def test_no_text_breaks_the_compiler() -> None:
    """For every text there is a filter or a Sql92Error, and a filter always has an answer."""
    chance = random.Random(5)
    text = "a b 5 -3 2147483648 5.5 'x' '5' TRUE NULL ( ) NOT - + = <> < AND OR IS IN BETWEEN , ; /* -- ''"
    words = [*text.split(), "\n"]
    compiled = 0
    for _ in range(20_000):
        text = " ".join(chance.choices(words, k=chance.randint(1, 10)))
        try:
            found = compile_filter(text)
        except Sql92Error:
            continue
        compiled += 1
        assert outcome(text, {"a": "5", "b": "x"}) in (True, False, None, "error")
        assert found.matches({}) in (True, False)
    assert compiled > 100
