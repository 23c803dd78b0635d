"""Reads the YAML of access control files: plain values only, and errors that do not show the text.

Importing the YAML library takes a tenth of a broker's start, so this module is imported only when there is a file to
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

MOST_DEPTH = 20
"""Levels of lists and maps inside each other; accounts need five."""


class YamlError(Exception):
    """A text cannot be read; names the reason and the line, not the text around it, which may be a secret."""


class _Loader(yaml.SafeLoader):
    """Plain values only, each key once; without aliases, by which a small file can describe a huge value, and of limited
    depth."""

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
        # YAML forbids it, and the library keeps the last: a second `accounts:` would silently remove the first.
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem="a key is given twice in one map", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(data: bytes) -> Any:
    """The value of a text. Raises YamlError."""
    try:
        return yaml.load(data, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise YamlError(f"{where} is not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise YamlError(f" is not YAML: {type(error).__name__}") from None


def dump(content: Mapping[str, Any]) -> bytes:
    """The text of a table, a line for each of its values."""
    return yaml.safe_dump(content, default_flow_style=False, allow_unicode=True, sort_keys=False).encode()
