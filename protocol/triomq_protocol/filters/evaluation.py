"""Compiles the tree of an SQL92 filter to a function of a message's properties.

Properties are text, so the meaning of a comparison depends on the type of the other side; every surprising result is
RocketMQ's own (docs/protocol/store.md §16.2: `ComparisonExpression`, `LogicExpression`, `UnaryExpression`). Each node
becomes one closure, made once per expression.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import copysign, isnan
from typing import Any

import msgspec

from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.sql92 import (
    Compare,
    Constant,
    Equal,
    In,
    Logic,
    Long,
    Negative,
    Node,
    Not,
    Property,
    Value,
    is_boolean,
    parse,
)

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]

_INT = re.compile(r"[+-]?\d{1,40}\Z")
_DOUBLE = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<name>NaN|Infinity)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hexadecimal>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)\Z"
)
_NUMBER_CHARACTERS_MAX = 1024
"""A longer text is not a number, whatever it holds: RocketMQ reads any length, which takes 60 us at 30,000 digits."""
_BLANKS = "".join(map(chr, range(0x21)))  # what Java's trim() cuts
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class EvaluationError(LocalProtocolError):
    """A value is not what the comparison needs, text instead of a number for example: the message does not match."""


class Sql92Filter(msgspec.Struct, frozen=True):
    """A compiled expression.

    Attributes:
        expression: its text.
        evaluate: true, false or null (None) for the properties of a message; raises EvaluationError.
    """

    expression: str
    evaluate: Callable[[Properties], bool | None]

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is wanted: only if the expression is true; an error is not a
        match."""
        try:
            return self.evaluate(properties) is True
        except EvaluationError:
            return False


def compile_filter(expression: str) -> Sql92Filter:
    """Compile an expression. Raises Sql92Error."""
    return Sql92Filter(expression, _truth(parse(expression)))


# -- nodes to functions of a message's properties: partials, of which the garbage collector looks at one object each,
# where a closure has three


def _truth(node: Node) -> Callable[[Properties], bool | None]:
    """A node as operand of NOT, AND, OR, or as the whole: a property counts as false, whatever its text, and null if
    missing."""
    if isinstance(node, Property):
        return partial(_false_unless_missing, node.name)
    assert is_boolean(node)
    return _value(node)  # type: ignore[return-value] # is_boolean has checked that


def _value(node: Node) -> Evaluate:
    match node:
        case Constant(value):
            return partial(_constant, value)
        case Property(name):
            return partial(_property, name)
        case Negative(operand):
            return partial(_negative, _value(operand))
        case Not(operand):
            return partial(_not, _truth(operand))
        case Logic(conjunction, operands):
            return partial(_logic, tuple(_joined(operands, not conjunction)), not conjunction)
        case Equal(left, right):
            return _equal_closure(left, right)
        case Compare(sign, left, right):
            return _compare_closure(_SIGNS[sign], left, right)
        case In(name, values, negated):
            return partial(_in, name, values, negated)


def _false_unless_missing(name: str, properties: Properties) -> bool | None:
    return False if name in properties else None


def _constant(value: Value, _: Properties) -> Value:
    return value


def _property(name: str, properties: Properties) -> Value:
    return properties.get(name)


def _negative(operand: Evaluate, properties: Properties) -> Value:
    value = operand(properties)
    if type(value) in (int, float):
        return -value  # type: ignore[operator] # bool and str are other types
    return Long(-value) if isinstance(value, Long) else None


def _not(operand: Callable[[Properties], bool | None], properties: Properties) -> bool | None:
    value = operand(properties)
    return None if value is None else not value


def _logic(
    operands: tuple[Callable[[Properties], bool | None], ...], decisive: bool, properties: Properties
) -> bool | None:
    """AND is decided by a false operand, OR by a true one; later operands are not evaluated."""
    result: bool | None = not decisive
    for operand in operands:
        value = operand(properties)
        if value is decisive:
            return decisive
        if value is None:
            result = None
    return result


Test = tuple[str, str, Value]
"""A comparison operator, a property's name and the other operand."""

_FEWEST_TESTS = 4


def _joined(operands: Sequence[Node], decisive: bool) -> Iterator[Callable[[Properties], bool | None]]:
    """The operands of AND or OR; consecutive tests of properties are joined into one.

    The garbage collector visits each partial, but not tuples of texts and numbers.
    """
    with_tests = ((node, _test(node)) for node in operands)
    for _, group in groupby(with_tests, lambda pair: pair[1] is not None):
        some = list(group)
        tests = tuple(test for _, test in some if test is not None)
        if len(tests) >= _FEWEST_TESTS:
            yield partial(_tests, tests, decisive)
        else:
            yield from (_truth(node) for node, _ in some)


def _test(node: Node) -> Test | None:
    match node:
        case Equal(Property(name), Constant(value)):
            return "=", name, value
        case Compare(sign, Property(name), Constant(int(value))):
            return sign, name, value
    return None


def _tests(tests: tuple[Test, ...], decisive: bool, properties: Properties) -> bool | None:
    """What `_logic` makes of the tests."""
    result: bool | None = not decisive
    for sign, name, wanted in tests:
        if sign == "=":
            value = _are_equal(properties.get(name), wanted)
        else:
            value = _compare_to(_SIGNS[sign], name, wanted, properties)  # type: ignore[arg-type] # see _test
        if value is decisive:
            return decisive
        if value is None:
            result = None
    return result


def _in(name: str, values: frozenset[str], negated: bool, properties: Properties) -> bool | None:
    value = properties.get(name)
    return None if value is None else (value in values) is not negated


# -- equality


def _equal_closure(left: Node, right: Node) -> Evaluate:
    if isinstance(left, Property) and isinstance(right, Constant):
        name, value = left.name, right.value
        if value is None:
            return partial(_is_missing, name)
        if isinstance(value, str):
            return partial(_equal_to_text, name, value)
        return partial(_equal_to, name, value)
    return partial(_equal, _value(left), _value(right))


def _is_missing(name: str, properties: Properties) -> bool:
    return name not in properties


def _equal_to_text(name: str, value: str, properties: Properties) -> bool | None:
    return None if (text := properties.get(name)) is None else text == value


def _equal_to(name: str, value: Value, properties: Properties) -> bool | None:
    return _are_equal(properties.get(name), value)


def _equal(left: Evaluate, right: Evaluate, properties: Properties) -> bool | None:
    return _are_equal(left(properties), right(properties))


def _are_equal(a: Value, b: Value) -> bool | None:
    """Two nulls are equal; a null on the left makes null, one on the right false."""
    if a is None:
        return True if b is None else None
    if b is None:
        return False
    if isinstance(a, bool) or isinstance(b, bool):
        return _equal_to_boolean(a, b)
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    a, b = _numbers(a, b)
    if isinstance(a, float) or isinstance(b, float):
        return _order_of(float(a)) == _order_of(float(b))
    return a == b


def _equal_to_boolean(a: Value, b: Value) -> bool:
    if isinstance(a, bool) and isinstance(b, str):
        raise EvaluationError("a boolean on the left cannot be compared with text")
    if isinstance(a, str):
        a = len(a) == len("true") and a.lower() == "true"
    return isinstance(a, bool) and isinstance(b, bool) and a is b


# -- order


def _compare_closure(sign: Callable[[Any, Any], bool], left: Node, right: Node) -> Evaluate:
    if isinstance(left, Property) and isinstance(right, Constant) and isinstance(right.value, int):
        return partial(_compare_to, sign, left.name, right.value)  # by far the most usual one
    return partial(_compare, sign, _value(left), _value(right))


def _compare_to(sign: Callable[[Any, Any], bool], name: str, value: int, properties: Properties) -> bool | None:
    return None if (text := properties.get(name)) is None else sign(_number(text, value), value)


def _compare(sign: Callable[[Any, Any], bool], left: Evaluate, right: Evaluate, properties: Properties) -> bool | None:
    a = left(properties)
    if a is None:
        return None  # Java does not evaluate the other side then, which may fail
    b = right(properties)
    if b is None:
        return None
    assert not isinstance(a, bool) and not isinstance(b, bool)  # noqa: PT018 - the parser allows no boolean here
    if isinstance(a, str) and isinstance(b, str):
        return sign(_order_of(_double(a)), _order_of(_double(b)))
    a, b = _numbers(a, b)
    if isinstance(a, float) or isinstance(b, float):
        return sign(_order_of(float(a)), _order_of(float(b)))
    return sign(a, b)


def _order_of(value: float) -> tuple[bool, float, float]:
    """Java's total order of doubles: NaN equals itself and is the greatest, -0.0 comes before 0.0
    (`Double.compareTo`)."""
    return (True, 0.0, 0.0) if isnan(value) else (False, value, copysign(1.0, value))


# -- text compared with a number


def _numbers(a: str | float, b: str | float) -> tuple[float, float]:
    """Both sides as numbers; text is read as what the other side is. At least one side is a number."""
    if isinstance(a, str):
        assert not isinstance(b, str)
        return _number(a, b), b
    return a, _number(b, a) if isinstance(b, str) else b


def _number(text: str, like: float) -> float:
    if isinstance(like, float):
        return _double(text)
    if len(text) < 10 and text.isdecimal():
        return int(text)
    limit = 1 << 63 if isinstance(like, Long) else 1 << 31
    if _INT.match(text):
        value = int(text)
        if -limit <= value < limit:
            return value
    raise EvaluationError(f"{text[:64]!r} is not an integer of {limit.bit_length()} bits")


def _double(text: str) -> float:
    """`Double.valueOf`."""
    found = _DOUBLE.match(text.strip(_BLANKS)) if len(text) <= _NUMBER_CHARACTERS_MAX else None
    if found is None:
        raise EvaluationError(f"{text[:64]!r} is not a number")
    sign = -1.0 if found["sign"] == "-" else 1.0
    if found["name"] is not None:
        return float("nan") if found["name"] == "NaN" else sign * float("inf")
    if found["decimal"] is not None:
        return sign * float(found["decimal"])
    try:
        return sign * float.fromhex(found["hexadecimal"])
    except OverflowError:
        return sign * float("inf")
