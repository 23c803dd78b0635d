"""Log lines that clients cannot forge.

Names, remarks and settings come over the network. A line break in one would begin a line that looks like one of the
server's own; other control characters would change what a terminal shows.
"""

from __future__ import annotations

import logging
import unicodedata

_TRACEBACK_INDENT = "    "


class LineFormatter(logging.Formatter):
    """One line per record, with control characters escaped; the lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        """Format the record's line."""
        return escape_controls(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - the name in logging
        """Format a traceback with each line indented."""
        text = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join(_TRACEBACK_INDENT + escape_controls(line, kept="\t") for line in text.splitlines())


def escape_controls(text: str, *, kept: str = "") -> str:
    """Replace control characters, line and paragraph separators and lone surrogates by escapes."""
    if text.isprintable():
        return text
    return "".join(c if c in kept or not _is_control(c) else c.encode("unicode_escape").decode() for c in text)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
