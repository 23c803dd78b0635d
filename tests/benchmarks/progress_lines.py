"""Lines of progress that a running benchmark prints."""

from __future__ import annotations

import re


def measured_s(line: str) -> int:
    """The measured seconds that a line shows, as ``2 of 60 s``; 0 for any other line.

    Wait for a number or more: on a busy machine a second may have no line.
    """
    shown = re.match(r"\s*(\d+) of \d+ s\b", line)
    return int(shown[1]) if shown else 0
