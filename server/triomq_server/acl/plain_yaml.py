"""Reads the YAML of access control files: plain values only, and errors that do not show the text.

Importing the YAML library takes a tenth of a broker's start, so this module is imported only when there is a file to
read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

MOST_DEPTH = 20
"""Maximum nesting of lists and maps; accounts need five levels."""

MOST_DIGITS = 1000
"""Maximum length of a number: Python makes no text of very large ones, and YAML's numbers to base 60 take quadratic time."""

_TAG = re.compile(r".* tag .*", re.DOTALL)
_TAG_PROBLEM = "a tag that is not known; a text that begins with ! needs quotes"
"""What the library says about a tag shows it, and a secret that begins with `!` is read as one."""


class YamlError(Exception):
    """A text cannot be read; the error has the reason and the line, but not the text, which may be a secret."""


class _Loader(yaml.SafeLoader):
    """Accepts plain values only, each key once, and a limited depth. Aliases are refused: with them a small file can
    describe a huge value."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not possible", problem_mark=event.start_mark)
        if self.depth == MOST_DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_DEPTH} levels", problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        # YAML forbids duplicates, but the library keeps the last: a second `accounts:` would silently hide the first.
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem="a key is given twice in one map", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MOST_DIGITS:
            problem = f"a number of more than {MOST_DIGITS} characters; a text needs quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def load(data: bytes) -> Any:
    """Parse a text. Raises YamlError."""
    try:
        return yaml.load(data, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise YamlError(f"{where} is not YAML: {_TAG.sub(_TAG_PROBLEM, error.problem or '')}") from None
    except Exception as error:  # noqa: BLE001 (the library raises KeyError, IndexError and more at values with wrong tags)
        raise YamlError(f" is not YAML: {type(error).__name__}") from None


class _Dumper(yaml.SafeDumper):
    """Puts quotes around texts which Java's library reads as numbers, too: a secret of digits and an `e`."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*[eE][-+]?[0-9]+|\.[0-9_]+(?:[eE][-+]?[0-9]+)?)\Z"),
    list("-+.0123456789"),
)


def dump(content: Mapping[str, Any]) -> bytes:
    """Write a table as text, one line per value."""
    text: str = yaml.dump(content, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)
    return text.encode()
