"""What can go wrong in the data source, beside the SDK's own errors; every text names the cause and the cure.

Spark shows an error of a Python data source as text, so these classes matter less to callers than their messages do.
"""

# ruff: noqa: N818 - named after the state the query is in, as the SDK's are
from __future__ import annotations

import difflib
from collections.abc import Iterable


class SourceError(Exception):
    """The root of what this package raises itself."""


class BadOption(SourceError, ValueError):
    """An option is unknown, contradicts another one, or has a value that cannot be used; change the query."""


class BadColumns(SourceError, ValueError):
    """The columns asked for, or given to be written, are not those of the data source; change the query."""


class DataLoss(SourceError):
    """Rows that the query was promised are gone from the brokers; `failOnDataLoss=false` goes on without them."""


class BrokerBehind(SourceError):
    """No broker that may be asked holds rows that the master has acknowledged, also not within the time limit."""


class WriteFailed(SourceError):
    """Rows of a task were not acknowledged; the task may be run again, and then sends all its rows again."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` when something known is written nearly so, else nothing."""
    by_folded = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[found[0]]}?" if found else ""
