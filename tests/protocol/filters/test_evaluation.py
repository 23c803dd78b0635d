"""SQL92 values: tables of operators and types (docs/protocol/store.md §16.2), and generated expressions against an
oracle."""

from __future__ import annotations

import gc
import math
from functools import reduce

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.evaluation import EvaluationError, Sql92Filter, compile_filter

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


def outcome(expression: str, **properties: str) -> object:
    try:
        return compile_filter(expression).evaluate(properties)
    except EvaluationError:
        return "error"


@pytest.mark.parametrize("text", ["4", "5", "6", "-5", "+5", "005"])
@pytest.mark.parametrize(
    ("sign", "truth"),
    [
        ("<", lambda value: value < 5), ("<=", lambda value: value <= 5), (">", lambda value: value > 5),
        (">=", lambda value: value >= 5), ("=", lambda value: value == 5), ("<>", lambda value: value != 5),
    ],
)  # fmt: skip
def test_every_operator_with_an_integer_on_either_side(sign: str, truth: object, text: str) -> None:
    assert callable(truth)
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
    expected = truth(int(text))
    assert outcome(f"a {sign} 5", a=text) is expected
    assert outcome(f"5 {mirrored} a", a=text) is expected
    assert outcome(f"a {sign} 5.0", a=text) is expected
    assert outcome(f"5e0 {mirrored} a", a=text) is expected


@pytest.mark.parametrize(
    ("literal", "text", "value"),
    [
        (INT32_MAX, str(INT32_MAX), True),
        (INT32_MAX, str(-INT32_MAX - 1), False),
        (INT32_MAX, str(INT32_MAX + 1), "error"),  # the literal fits into 32 bits, so the text must as well
        (INT32_MAX, str(-INT32_MAX - 2), "error"),
        (INT32_MAX + 1, str(INT32_MAX + 1), True),
        (INT32_MAX + 1, "5", False),
        (INT64_MAX, str(INT64_MAX), True),
        (INT64_MAX, str(INT64_MAX - 1), False),  # doubles could not distinguish these two
        (INT64_MAX, str(-INT64_MAX - 1), False),
        (INT64_MAX, str(INT64_MAX + 1), "error"),
        (INT64_MAX, str(-INT64_MAX - 2), "error"),
        (5, "9" * 5000, "error"),
        (5, "", "error"), (5, " 5", "error"), (5, "5 ", "error"), (5, "5.0", "error"), (5, "5L", "error"),
        (5, "0x5", "error"), (5, "1_0", "error"), (5, "--5", "error"), (5, "+", "error"), (5, "five", "error"),
    ],
)  # fmt: skip
def test_text_beside_an_integer_is_read_in_the_width_of_the_literal(literal: int, text: str, value: object) -> None:
    assert outcome(f"a = {literal}", a=text) == value
    assert outcome(f"{literal} = a", a=text) == value
    assert outcome(f"a >= {literal} AND a <= {literal}", a=text) == value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5", 1.5), (" 1.5\t", 1.5), ("15e-1", 1.5), ("1.5f", 1.5), ("1.5D", 1.5), ("+1.5", 1.5), ("0x1.8p0", 1.5),
        ("0X3P-1d", 1.5), (".5", 0.5), ("5.", 5.0), ("-.5e1", -5.0), ("Infinity", math.inf), ("-Infinity", -math.inf),
        ("1e400", math.inf), ("-1e400", -math.inf), ("1e-400", 0.0), ("0x1p2000", math.inf), ("-0x1p2000", -math.inf),
        ("4.9E-324", 5e-324), ("1.7976931348623157E308", 1.7976931348623157e308),
    ],
)  # fmt: skip
def test_text_beside_a_double_is_read_as_java_reads_doubles(text: str, number: float) -> None:
    for literal in (0.25, 1.5, 1e308, 5e-324):
        assert outcome(f"a < {literal!r}", a=text) is (number < literal)
        assert outcome(f"a >= {literal!r}", a=text) is (number >= literal)
        assert outcome(f"a = {literal!r}", a=text) is (number == literal)


@pytest.mark.parametrize(
    "text", ["", " ", "x", "1.5x", "1,5", "0x", "0x1", "0x1.8", "1e", "e5", "nan", "inf", "infinity", "1_0.5", "1.5 f", "1.5ff",
             "\xa01.5", "٥", "--1", "."],
)  # fmt: skip
def test_text_that_is_no_double(text: str) -> None:
    assert outcome("a > 1.5", a=text) == "error"
    assert outcome("a = 1.5", a=text) == "error"
    assert compile_filter("a > 1.5").matches({"a": text}) is False
    assert compile_filter("NOT (a > 1.5)").matches({"a": text}) is False


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a < b", True), ("b < a", False), ("a <= a", True), ("n > b", True), ("n >= n", True), ("n > n", False),
        ("minus < zero", True), ("minus >= zero", False), ("a < word", "error"), ("a < missing", None), ("missing < a", None),
        ("a BETWEEN a AND b", True), ("a NOT BETWEEN a AND b", False), ("b BETWEEN a AND 9", False), ("b BETWEEN 10 AND 10", True),
        ("missing BETWEEN 1 AND 2", None), ("missing NOT BETWEEN 1 AND 2", None), ("a BETWEEN missing AND 2", False),
        ("a BETWEEN missing AND 9", None), ("a NOT BETWEEN missing AND 2", True),
        ("a = b", False), ("a = a", True), ("five = a", False), ("a <> five", True), ("word = 'it''s'", True), ("word = 'it'", False),
        ("a = '5'", True), ("five = '5'", False), ("'5' = a", True), ("'' = a", False),
        ("yes = TRUE", True), ("word = FALSE", True), ("word = TRUE", False), ("TRUE = yes", "error"), ("missing = TRUE", None),
        ("TRUE = missing", False), ("a IN ('5')", True), ("a IN ('4', '6')", False), ("a NOT IN ('4','6')", True), ("five IN ('5')", False),
        ("word IN ('it''s')", True), ("missing IN ('5')", None), ("missing NOT IN ('5')", None), ("a IN ('5','5')", True),
        ("a IS NULL", False), ("a IS NOT NULL", True), ("missing IS NULL", True), ("missing IS NOT NULL", False),
        ("A IS NULL", True), ("(a > b) IS NULL", False), ("(missing > 1) IS NULL", True), ("-word IS NULL", True),
        ("a", False), ("missing", None), ("NOT a", True), ("NOT missing", None), ("a OR TRUE", True), ("missing AND FALSE", False),
    ],
)  # fmt: skip
def test_mixed_types(expression: str, value: object) -> None:
    got = outcome(
        expression, a="5", b="10", five="5.0", n="NaN", minus="-0.0", zero="0.0", word="it's", yes="True"
    )  # fmt: skip
    assert got is value or (value == "error" and got == "error")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a > -6", True), ("a > -5", False), ("a = -5", True), ("-5 = a", True), ("a < - -5", True), ("a = -5.0", True),
        ("a > -5.5", True), ("-4.5 > a", True), ("big = -3000000000", True), ("-3000000000 = big", True),
        ("big > -2147483648", False), ("big > -2147483647", "error"), ("big < - -3000000000", True), ("-a IS NULL", True),
        ("word = missing", False), ("word <> missing", True), ("a = missing", False), ("missing = word", None),
        ("1.5 < 2", True), ("2 < 1.5", False), ("2 > 1.5", True), ("2 = 2.0", True), ("3 = 2", False), ("'a' = 'a'", True),
        # Two whole numbers are compared exactly, one beside a double as a double.
        ("9007199254740993 = 9007199254740992.0", True), ("9007199254740993 > 9007199254740992.0", False),
        ("9007199254740993 > exact", True), ("exact < 9007199254740993", True), ("9007199254740993 = exact", False),
        ("9007199254740992 = exact", True), ("exact >= 9007199254740992.0", True),
        # NaN is greater than everything, and equal to itself only.
        ("n > 1.5", True), ("n <= 1.5", False), ("n = 1.5", False), ("n > infinite", True), ("infinite < n", True),
        ("infinite >= n", False), ("n <= n", True), ("infinite > 1.5", True), ("infinite = 1.5", False), ("n > 1", "error"),
    ],
)  # fmt: skip
def test_negative_large_and_odd_numbers(expression: str, value: object) -> None:
    got = outcome(
        expression, a="-5", big="-3000000000", word="x", exact="9007199254740992", n="NaN", infinite="Infinity"
    )  # fmt: skip
    assert got is value or (value == "error" and got == "error")


@pytest.mark.parametrize(
    ("expression", "text", "message"),
    [
        ("a > 5", "x" * 100, f"'{'x' * 64}' is not an integer of 32 bits"),
        ("a > 3000000000", "1.5", "'1.5' is not an integer of 64 bits"),
        ("a > 1.5", "y" * 100, f"'{'y' * 64}' is not a number"),
        ("a > b", "y", "'y' is not a number"),
        ("TRUE = a", "y", "a boolean on the left cannot be compared with text"),
    ],
)
def test_errors_of_values_that_cannot_be_compared(expression: str, text: str, message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        compile_filter(expression).evaluate({"a": text, "b": "1"})
    assert str(caught.value) == message
    assert compile_filter(expression).matches({"a": text, "b": "1"}) is False


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_behind_a_missing_value_nothing_is_compared_that_could_fail(sign: str) -> None:
    """A failure inside the right operand would make the whole expression an error; as 4.9.7 evaluates it."""
    assert outcome(f"a {sign} -(b = 1)", b="x") is None
    assert outcome(f"a {sign} -(b = 1) OR TRUE", b="x") is True
    assert outcome(f"b {sign} -(b = 1) OR TRUE", b="x") == "error"
    assert outcome("a = -(b = 1) OR TRUE", b="x") == "error"


THREE = {"TRUE": True, "FALSE": False, "NULL": None}


@pytest.mark.parametrize("left", THREE)
@pytest.mark.parametrize("right", THREE)
def test_three_valued_logic(left: str, right: str) -> None:
    a, b = THREE[left], THREE[right]
    both = False if False in (a, b) else None if None in (a, b) else True
    either = True if True in (a, b) else None if None in (a, b) else False
    assert outcome(f"{left} AND {right}") is both
    assert outcome(f"{left} OR {right}") is either
    assert outcome(f"NOT {left}") is (None if a is None else not a)
    assert compile_filter(f"{left} AND {right}").matches({}) is (both is True)


def test_operands_after_a_decision_are_not_evaluated() -> None:
    assert outcome("a > 1 OR word > 1", a="2", word="x") is True
    assert outcome("a > 5 AND word > 1", a="2", word="x") is False
    assert outcome("a > 5 OR word > 1", a="2", word="x") == "error"
    assert outcome("missing > 5 AND word > 1", word="x") == "error"  # null decides nothing


@pytest.mark.parametrize(
    ("expression", "grouped"),
    [
        ("TRUE OR TRUE AND FALSE", "TRUE OR (TRUE AND FALSE)"),
        ("FALSE AND FALSE OR TRUE", "(FALSE AND FALSE) OR TRUE"),
        ("NOT FALSE OR TRUE", "(NOT FALSE) OR TRUE"),
        ("NOT a = 5", "(NOT a) = 5"),
        ("a > 1 = TRUE", "(a > 1) = TRUE"),
        ("a = 5 = TRUE", "(a = 5) = TRUE"),
        ("a <> 5 IS NULL", "(a <> 5) IS NULL"),
        ("- a < 3", "(- a) < 3"),
        ("a BETWEEN 1 AND 6 AND FALSE", "(a BETWEEN 1 AND 6) AND FALSE"),
        ("a in ('5') or a is null and a > 9", "a IN ('5') OR ((a IS NULL) AND (a > 9))"),
        ("+ + a >= - - 5", "a >= (-(-5))"),
    ],
)
def test_precedence(expression: str, grouped: str) -> None:
    for properties in ({"a": "5"}, {"a": "-5"}, {"a": "x"}, {}):
        assert outcome(expression, **properties) == outcome(grouped, **properties)
    assert str(compile_filter(expression).expression) == expression


def test_the_filter_needs_the_value_true() -> None:
    wanted = compile_filter("a > 1")
    assert [wanted.matches(properties) for properties in ({"a": "2"}, {"a": "1"}, {}, {"a": "x"})] == [
        True, False, False, False,
    ]  # fmt: skip
    with pytest.raises(LocalProtocolError, match="'x' is not an integer of 32 bits"):
        wanted.evaluate({"a": "x"})
    with pytest.raises(LocalProtocolError, match="is not an integer of 64 bits"):
        compile_filter("a > 3000000000").evaluate({"a": "x"})


# Generated expressions: each carries its own value, computed without parser or closures, for fixed properties.

PROPERTIES = {"a": "5", "b": "-7", "word": "x", "quote": "it's"}


@attrs.frozen
class Sample:
    """The text of a boolean expression and the value it must have."""

    text: str
    value: bool | None


@st.composite
def comparisons(draw: st.DrawFn) -> Sample:
    name = draw(st.sampled_from(["a", "b", "gone"]))
    number = draw(st.integers(0, 10) | st.sampled_from([INT32_MAX, INT64_MAX]))
    left = int(PROPERTIES[name]) if name in PROPERTIES else None
    table = {
        "<": None if left is None else left < number, "<=": None if left is None else left <= number,
        ">": None if left is None else left > number, ">=": None if left is None else left >= number,
        "=": None if left is None else left == number, "<>": None if left is None else left != number,
    }  # fmt: skip
    sign = draw(st.sampled_from(sorted(table)))
    return Sample(f"{name}{sign} {number}", table[sign])


@st.composite
def ranges(draw: st.DrawFn) -> Sample:
    name, low = draw(st.sampled_from(["a", "b", "gone"])), draw(st.integers(0, 9))
    high, negated = draw(st.integers(low, 10)), draw(st.booleans())
    inside = None if name not in PROPERTIES else low <= int(PROPERTIES[name]) <= high
    text = f"{name} {'not ' * negated}between {low} And {high}"
    return Sample(text, inside if inside is None else inside is not negated)


@st.composite
def lists(draw: st.DrawFn) -> Sample:
    name = draw(st.sampled_from(["word", "quote", "gone"]))
    words, negated = draw(st.lists(st.sampled_from(["x", "it's", "", "'", "a b"]), min_size=1)), draw(st.booleans())
    quoted = " ,".join("'" + word.replace("'", "''") + "'" for word in words)
    found = None if name not in PROPERTIES else PROPERTIES[name] in words
    return Sample(f"{name} {'NOT ' * negated}IN({quoted})", found if found is None else found is not negated)


NULLS = st.builds(
    lambda name, negated: Sample(f"{name} is {'Not ' * negated}null", (name not in PROPERTIES) is not negated),
    st.sampled_from([*PROPERTIES, "gone", "A"]),
    st.booleans(),
)
CONSTANTS = st.sampled_from([Sample("TRUE", True), Sample("false", False), Sample("Null", None)])


def joined(word: str, decisive: bool, samples: list[Sample], blank: str) -> Sample:
    def step(result: bool | None, sample: Sample) -> bool | None:
        if result is decisive or sample.value is decisive:
            return decisive
        return None if None in (result, sample.value) else not decisive

    text = f"{blank}{word}{blank}".join(f"({sample.text})" for sample in samples)
    return Sample(text, reduce(step, samples[1:], samples[0].value))


def larger(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    blanks = st.sampled_from([" ", "\n", "\t \r\n", "/* AND ' */", "--x OR\n"])
    return st.one_of(
        st.builds(joined, st.just("AND"), st.just(False), st.lists(inner, min_size=2, max_size=4), blanks),
        st.builds(joined, st.just("OR"), st.just(True), st.lists(inner, min_size=2, max_size=4), blanks),
        inner.map(lambda s: Sample(f"NOT ({s.text})", None if s.value is None else not s.value)),
        inner.map(lambda s: Sample(f"({s.text}) IS NULL", s.value is None)),
        inner.map(lambda s: Sample(f"({s.text}) IS NOT NULL", s.value is not None)),
    )


@given(st.recursive(comparisons() | ranges() | lists() | NULLS | CONSTANTS, larger, max_leaves=8))
def test_generated_expressions_have_the_value_of_the_oracle(sample: Sample) -> None:
    wanted = compile_filter(sample.text)
    assert wanted.evaluate(PROPERTIES) is sample.value
    assert wanted.matches(PROPERTIES) is (sample.value is True)


TESTS = ["a={}", "a='{}'", "a<{}", "b>={}", "a=TRUE", "missing is null", "missing={}", "text<{}", "a<>{}", "b=1.{}"]


@given(
    st.lists(st.tuples(st.sampled_from(TESTS), st.integers(0, 9)), min_size=4, max_size=12),
    st.sampled_from([" and ", " or "]),
    st.sampled_from(["", "not "]),
)
def test_tests_that_are_joined_have_the_value_they_have_one_by_one(
    tests: list[tuple[str, int]], conjunction: str, negated: str
) -> None:
    texts = [form.format(number) for form, number in tests]
    properties = {"a": "5", "b": "1.5", "text": "true"}
    joined, one_by_one = (
        outcome(f"{negated}({conjunction.join(each)})", **properties)
        # An operand of another kind after each test, which does not change the value, and ends a run of tests.
        for each in (texts, [part for text in texts for part in (text, f"(not not ({text}))")])
    )
    assert joined == one_by_one


def collected_objects(text: str) -> tuple[Sql92Filter, int]:
    """A compiled filter, and how many objects it consists of at which the garbage collector looks."""
    gc.collect()
    gc.freeze()  # what is there does not count, nor does it afterwards
    compiled = compile_filter(text)
    gc.collect()
    left = {id(each): each for each in gc.get_objects()}
    # Other threads make objects, too: only those count that belong to the filter.
    found = [left.pop(id(compiled), compiled)]
    for each in found:
        found += [part for part in gc.get_referents(each) if left.pop(id(part), None) is not None]
    # Since Python 3.14 the collector looks at empty dicts, too, and a partial has one.
    return compiled, sum(each != {} for each in found)


@pytest.mark.parametrize("operand", ["a={}", "a='{}'", "a<{}"])
def test_joined_tests_are_no_objects_for_the_garbage_collector(operand: str) -> None:
    compiled, objects = collected_objects(" or ".join(operand.format(number) for number in range(300)))
    assert objects < 30
    assert compiled.matches({"a": "298"})


@pytest.mark.parametrize("operand", ["a={}", "a='{}'", "a<{}", "a is null and b={}", "a in ('{}')"])
def test_a_long_filter_is_few_objects_for_the_garbage_collector(operand: str) -> None:
    compiled, objects = collected_objects(" or ".join(operand.format(number) for number in range(300)))
    comparisons = 300 * (1 + operand.count(" and "))
    assert objects < 3 * comparisons + 50
    assert compiled.matches({"a": "zzz"}) is False
