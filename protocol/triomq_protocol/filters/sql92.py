"""Parses SQL92 filter expressions to a tree, which `evaluation` compiles to a function of a message's properties.

The grammar is that of RocketMQ's filter module (docs/protocol/store.md §16.2), with its peculiarities: text after a
complete expression is ignored, but the next token must be valid; a comment to the end of the line needs a line end; a
sign is an operator and not part of a number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from triomq_protocol.errors import LocalProtocolError

TEXT_MAX = 16_384
"""Maximum length of an expression in characters. RocketMQ has no limit; compiling this much takes up to 20 ms."""
DEPTH_MAX = 100
"""Maximum nesting of brackets, signs and comparisons. RocketMQ's parser overflows its stack at a much greater depth."""
OPERANDS_MAX = 1024
"""Maximum number of names, literals, brackets, signs and NOTs; texts in the list of an IN do not count. RocketMQ has no
limit; with this many, a message takes up to 1.5 ms and compiling 10 ms."""

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class Sql92Error(LocalProtocolError):
    """The expression cannot be compiled: it is not valid SQL92, or compares values that cannot be compared. The text
    gives position and reason."""


class Long(int):
    """An integer literal that does not fit into 32 bits: text compared with it is parsed as 64 bits."""

    __slots__ = ()


Value = str | bool | int | float | None
"""What an expression may be: text, truth, a number, or null."""


class Constant(msgspec.Struct, frozen=True):
    """A literal."""

    value: Value

    def __str__(self) -> str:
        if self.value is None or isinstance(self.value, bool):
            return {None: "NULL", True: "TRUE", False: "FALSE"}[self.value]
        return "'" + self.value.replace("'", "''") + "'" if isinstance(self.value, str) else str(self.value)


class Property(msgspec.Struct, frozen=True):
    """A message property, by name; names are case-sensitive."""

    name: str

    def __str__(self) -> str:
        return self.name


class Negative(msgspec.Struct, frozen=True):
    """Unary minus; never folded, so that the checks do not take `-5` for a literal, as in Java's `UnaryExpression`."""

    operand: Node

    def __str__(self) -> str:
        return f"(- {self.operand})"


class Not(msgspec.Struct, frozen=True):
    """Logical negation, of a boolean or a property."""

    operand: Node

    def __str__(self) -> str:
        return f"(NOT {self.operand})"


class Logic(msgspec.Struct, frozen=True):
    """`AND` or `OR` of two and more operands, from left to right."""

    conjunction: bool
    operands: tuple[Node, ...]

    def __str__(self) -> str:
        return "(" + (" && " if self.conjunction else " || ").join(map(str, self.operands)) + ")"


class Equal(msgspec.Struct, frozen=True):
    """`=`, and `IS NULL` with a null on the right."""

    left: Node
    right: Node

    def __str__(self) -> str:
        return f"({self.left} = {self.right})"


class Compare(msgspec.Struct, frozen=True):
    """One of `<`, `<=`, `>`, `>=`."""

    operator: str
    left: Node
    right: Node

    def __str__(self) -> str:
        return f"({self.left} {self.operator} {self.right})"


class In(msgspec.Struct, frozen=True):
    """A property's text is (or is not) one of a list."""

    name: str
    values: frozenset[str]
    negated: bool

    def __str__(self) -> str:
        return f"{self.name} {'NOT ' * self.negated}IN ( {', '.join(sorted(self.values))} )"


Node = Constant | Property | Negative | Not | Logic | Equal | Compare | In


def parse(text: str) -> Node:
    """The tree of an expression whose value is a boolean, or a property (which then counts as one).

    Raises:
        Sql92Error: it cannot be compiled, or is longer or deeper than TEXT_MAX, DEPTH_MAX and OPERANDS_MAX allow.
    """
    if len(text) > TEXT_MAX:
        raise Sql92Error(f"the expression has {len(text)} characters; {TEXT_MAX} is the limit")
    return _boolean(_Parser(text).disjunction())


# -- tokens

_LINE_COMMENT = r"|--[^\n\r]*[\n\r]"
_OTHER_BLANKS = r"[ \t\n\r\f]+|/\*(?:[^*]|\*+[^*/])*\*+/"
_NO_BLANK = (
    r"|(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>[1-9][0-9]*[lL]?|0)"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<text>'(?:[^']|'')*')"
    r"|(?P<sign><>|<=|>=|[=<>(),+\-])"
)
_TOKEN = re.compile(f"(?P<blank>(?:{_OTHER_BLANKS}{_LINE_COMMENT})+){_NO_BLANK}")
_TOKEN_OF_LAST_LINE = re.compile(f"(?P<blank>(?:{_OTHER_BLANKS})+){_NO_BLANK}")
"""Without comments to the end of a line, which would be looked for at every minus: quadratic in a row of them."""
_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
_TRUTH: dict[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}
_COMPARISONS = frozenset({"<", "<=", ">", ">="})


class _Token(NamedTuple):
    kind: str  # float, integer, name, text, end; a sign or a keyword is its own kind
    text: str
    at: int


class _Parser:
    """Reads one token ahead and no further, as the reference does: an unknown character after that is never read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._last_line = max(text.rfind("\n"), text.rfind("\r")) + 1
        self._at = 0
        self._depth = 0
        self._operands = 0
        self._next: _Token | None = None

    # -- tokens

    def _peek(self) -> str:
        if self._next is None:
            self._next = self._read()
        return self._next.kind

    def _read(self) -> _Token:
        while True:
            at = self._at
            found = (_TOKEN if at < self._last_line else _TOKEN_OF_LAST_LINE).match(self._text, at)
            if found is None:
                if at == len(self._text):
                    return _Token("end", "the end", at)
                raise Sql92Error(f"no token begins at character {at + 1}: {self._text[at : at + 20]!r}")
            self._at = found.end()
            kind, word = found.lastgroup or "", found[0]
            if kind == "blank":
                continue
            if kind == "sign":
                kind = word
            elif kind == "name" and (upper := word.upper()) in _KEYWORDS:
                kind = upper
            return _Token(kind, word, at)

    def _take(self, *kinds: str) -> _Token:
        """The next token, which must be of one of these kinds."""
        if self._peek() not in kinds:
            raise self._unexpected(*kinds)
        token = self._next
        assert token is not None
        self._next = None
        return token

    def _accept(self, kind: str) -> bool:
        if self._peek() != kind:
            return False
        self._next = None
        return True

    def _unexpected(self, *wanted: str) -> Sql92Error:
        token = self._next
        assert token is not None
        return Sql92Error(f"{token.text!r} at character {token.at + 1}; one of {', '.join(wanted)} is expected there")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Sql92Error(f"the expression is nested deeper than {DEPTH_MAX}")

    # -- grammar, one method per level

    def disjunction(self) -> Node:
        return self._logic("OR", conjunction=False)

    def _logic(self, word: str, *, conjunction: bool) -> Node:
        operands = [self._operand(conjunction=conjunction)]
        while self._accept(word):
            operands.append(self._operand(conjunction=conjunction))
        return operands[0] if len(operands) == 1 else Logic(conjunction, tuple(map(_boolean, operands)))

    def _operand(self, *, conjunction: bool) -> Node:
        return self._equality() if conjunction else self._logic("AND", conjunction=True)

    def _equality(self) -> Node:
        left, depth = self._comparison(), self._depth
        while (kind := self._peek()) in ("=", "<>", "IS"):
            self._deeper()  # a chain of these is a left-deep tree
            self._take(kind)
            if kind == "IS":
                negated = self._accept("NOT")
                self._take("NULL")
                left = Equal(left, Constant(None))
            else:
                negated = kind == "<>"
                left = _checked_equal(left, self._comparison())
            if negated:
                left = Not(left)
        self._depth = depth
        return left

    def _comparison(self) -> Node:
        left, depth = self._unary(), self._depth
        while (kind := self._peek()) in _COMPARISONS or kind in ("BETWEEN", "IN", "NOT"):
            self._deeper()
            self._take(kind)
            if kind in _COMPARISONS:
                left = _checked_compare(kind, left, self._unary())
                continue
            negated = kind == "NOT"
            if negated:
                kind = self._take("BETWEEN", "IN").kind
            left = self._in(left, negated=negated) if kind == "IN" else self._between(left, negated=negated)
        self._depth = depth
        return left

    def _between(self, value: Node, *, negated: bool) -> Node:
        low = self._unary()
        self._take("AND")
        high = self._unary()
        if negated:
            return Logic(False, (_checked_compare("<", value, low), _checked_compare(">", value, high)))
        both = Logic(True, (_checked_compare(">=", value, low), _checked_compare("<=", value, high)))
        if isinstance(low, Constant) and isinstance(high, Constant):
            least, most = low.value, high.value
            assert isinstance(least, int | float) and isinstance(most, int | float)  # noqa: PT018 - checked just now
            if least > most:
                raise Sql92Error(f"BETWEEN {least} AND {most}: the left value must not be the larger one")
        return both

    def _in(self, value: Node, *, negated: bool) -> Node:
        self._take("(")
        values = [self._string()]
        while self._take(",", ")").kind == ",":
            values.append(self._string())
        if not isinstance(value, Property):
            raise Sql92Error(f"IN needs a property on its left, not {value}")
        return In(value.name, frozenset(values), negated)

    def _unary(self) -> Node:
        kind, depth = self._peek(), self._depth
        self._deeper()
        self._operands += 1
        if self._operands > OPERANDS_MAX:
            raise Sql92Error(f"the expression has more than {OPERANDS_MAX} names, literals, brackets and signs")
        if kind == "+":
            self._take(kind)
            found = self._unary()
        elif kind == "-":
            self._take(kind)
            found = Negative(self._unary())
        elif kind == "NOT":
            self._take(kind)
            found = Not(_boolean(self._unary()))
        else:
            found = self._primary()
        self._depth = depth
        return found

    def _primary(self) -> Node:
        token = self._take("integer", "float", "text", "name", "TRUE", "FALSE", "NULL", "(")
        kind, word = token.kind, token.text
        if kind == "(":
            found = self.disjunction()
            self._take(")")
            return found
        if kind == "name":
            return Property(word)
        if kind == "text":
            return Constant(_unquoted(word))
        if kind in _TRUTH:
            return Constant(_TRUTH[kind])
        return Constant(_integer(word) if kind == "integer" else _float(word))

    def _string(self) -> str:
        return _unquoted(self._take("text").text)


def _unquoted(word: str) -> str:
    return word[1:-1].replace("''", "'")


def _integer(word: str) -> int:
    digits = word.rstrip("lL")
    value = int(digits) if len(digits) <= 19 else _INT64_MAX + 1
    if value > _INT64_MAX:
        raise Sql92Error(f"{word} does not fit into 64 bits")
    return value if value <= _INT32_MAX else Long(value)


def _float(word: str) -> float:
    value = float(word)
    if value == float("inf"):
        raise Sql92Error(f"{word} is greater than 1.7976931348623157E308")
    if value == 0.0:
        raise Sql92Error(f"{word} is less than 4.9E-324")  # so no literal is 0.0: write 0
    return value


# -- which operands are allowed where


def is_boolean(node: Node) -> bool:
    """Whether a node's value is a boolean or null."""
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, Not | Logic | Equal | Compare | In)


def _boolean(node: Node) -> Node:
    if not is_boolean(node) and not isinstance(node, Property):
        raise Sql92Error(f"Expression will not result in a boolean value: {node}")
    return node


def _checked_equal(left: Node, right: Node) -> Node:
    for node in (left, right):
        if isinstance(node, Constant) and node.value is None:
            raise Sql92Error("'NULL' cannot be compared; use IS NULL")
    literals = isinstance(left, Constant) and isinstance(right, Constant)
    if literals and is_boolean(left) and not is_boolean(right):
        raise Sql92Error(f"'{left}' cannot be compared with '{right}'")
    return Equal(left, right)


def _checked_compare(operator: str, left: Node, right: Node) -> Node:
    for node in (left, right):
        number = not isinstance(node, Constant) or type(node.value) in (int, Long, float)
        if not number or is_boolean(node):
            raise Sql92Error(f"Value '{node}' cannot be compared by {operator}")
    return Compare(operator, left, right)
