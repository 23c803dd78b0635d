"""Errors of the data source in addition to the SDK's; every text names the cause and the remedy.

Spark shows an error of a Python data source as text, so callers depend on the messages more than on these classes.
"""

# ruff: noqa: N818 - named after the state the query is in, as in the SDK
from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from triomq import MQError

_log = logging.getLogger(__name__)

_IN_OPTIONS: Final = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (
            r"open_client\(credentials=triomq\.Credentials\(\w+, \w+\)\), or --credentials-file FILE to a command",
            "the options accessKey and secretKey, or credentialsFile",
        ),
        (r"open_client\(credentials=\.\.\.\)", "the options accessKey and secretKey, or credentialsFile"),
        (r"open_client\(tls=True\), or --tls\b", "the option tls=true"),
        (r"give that as ca \(--tls-ca\)", "give that in the option tlsCa"),
        (r"give check_host_name=False \(--tls-any-host-name\)", "set the option tlsCheckHostName=false"),
        (r"give certificate and key \(--tls-cert, --tls-key\)", "give the options tlsCertificate and tlsKey"),
        (r"\bca=(?=['\"])", "tlsCa="),
        (r"\bcertificate=(?=['\"])", "tlsCertificate="),
        (r"\bkey_password\b", "the option tlsKeyPassword"),
        (r"`route_wait_s` of open_client", "the option rocketmq.route_wait_s"),
    )
)
"""The SDK's names of the options of the data source."""


class SourceError(Exception):
    """Base class of the errors that this package raises."""


class BadOption(SourceError, ValueError):
    """An option is unknown, contradicts another one, or has an invalid value; change the query."""


class BadColumns(SourceError, ValueError):
    """The columns to read or to write are not those of the data source; change the query."""


class DataLoss(SourceError):
    """Rows that the query must read are no longer on the brokers; `failOnDataLoss=false` skips them."""


class BrokerBehind(SourceError):
    """No broker that may be queried had the rows that the master acknowledged, within the time limit."""


class BrokersAway(SourceError):
    """A topic has no queues at a broker that `requiredBrokers` names; wait for the broker, or leave it out."""


class WriteFailed(SourceError):
    """Rows of a task were not acknowledged; the task may be run again, and then sends all its rows again."""


class ShortStack:
    """A block whose errors reach Spark without their stack.

    Spark shows an error as the text of its stack, with the reason last. Errors of this package and of the SDK state
    their reason themselves and lose the stack, which is logged at level DEBUG. The SDK's advice then names options of
    the data source.
    """

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        """Leave the block."""
        if isinstance(error, SourceError | MQError):
            _log.debug("%s", error, exc_info=error)
            _name_options(error)
            raise error.with_traceback(None) from None


def in_options(text: str) -> str:
    """A text of the SDK, with options of the data source in place of arguments and command options."""
    for pattern, ours in _IN_OPTIONS:
        text = pattern.sub(ours, text)
    return text


def _name_options(error: SourceError | MQError) -> None:
    if isinstance(error, SourceError):
        error.args = tuple(in_options(each) if isinstance(each, str) else each for each in error.args)
        return
    error.what, error.advice = in_options(error.what), in_options(error.advice)
    for attempt in error.attempts:
        _name_options(attempt.error)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if a known name is similar, else an empty text."""
    by_folded = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[found[0]]}?" if found else ""
