"""The options of a client: their types, and the checks that a client makes before it starts."""

from __future__ import annotations

import random
import ssl
from typing import Final, TypedDict

from triomq._arguments.kinds import check_callback, check_methods, check_text
from triomq._arguments.numbers import check_count, check_seconds
from triomq._cluster.client_statistics import StatisticsSink
from triomq._cluster.identity import Clock, wall_ms
from triomq._transport.credentials import Credentials
from triomq._transport.dialing import Dialer, dial_tcp, tls_dialer
from triomq._transport.links import Backoff
from triomq.errors import InvalidCall

CLOCK_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that ``datetime`` supports."""


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of :func:`triomq.open_client`."""

    dial: Dialer
    tls: bool | ssl.SSLContext
    credentials: Credentials | None
    client_ip: str
    instance_name: str
    unit_name: str
    unit_mode: bool
    namespace: str
    trace: bool
    trace_topic: str
    default_topic: str
    default_topic_queues: int
    refresh_every_s: float
    heartbeat_every_s: float
    route_wait_s: float | None
    backoff: Backoff
    max_pending: int
    max_unsent_bytes: int
    max_header_bytes: int
    max_topics: int
    clock: Clock
    chance: random.Random
    statistics_sink: StatisticsSink | None
    statistics_every_s: float


def dialer_of(options: ClientOptions) -> Dialer:
    """The dialer of a client's connections.

    Raises:
        InvalidCall: `tls` has another type, or is given with `dial`.
    """
    dial, tls = options.get("dial"), options.get("tls", False)
    if not isinstance(tls, bool | ssl.SSLContext):
        raise InvalidCall(f"tls is True, False or an ssl.SSLContext, not a {type(tls).__name__}")
    if tls is False:
        return dial or dial_tcp
    if dial is not None:
        raise InvalidCall("give either tls or dial: a dialer makes its own connections")
    return tls_dialer() if tls is True else tls_dialer(tls)


def check_options(options: ClientOptions) -> None:
    """Refuse options that would fail much later, in a task whose failure ends the client.

    Raises:
        TypeError: there is no such option.
        InvalidCall: an option has another type, or is out of range.
    """
    unknown = options.keys() - ClientOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"open_client() has no argument {', '.join(sorted(unknown))}")
    _check_numbers_and_texts(options)
    _check_functions(options)
    for name, value, kind in (
        ("backoff", options.get("backoff"), Backoff),
        ("chance", options.get("chance"), random.Random),
    ):
        if value is not None and not isinstance(value, kind):
            raise InvalidCall(f"{name} is {type(value).__name__}, not {kind.__module__.split('.')[0]}.{kind.__name__}")
    credentials = options.get("credentials")
    if not isinstance(credentials, Credentials | None):
        # Its value is not shown: it may be a secret.
        raise InvalidCall(f"credentials is a {type(credentials).__name__}, not triomq.Credentials")


def _check_numbers_and_texts(options: ClientOptions) -> None:
    for name in ("refresh_every_s", "heartbeat_every_s", "statistics_every_s"):
        check_seconds(name, options.get(name, 1))
    for name in ("default_topic_queues", "max_pending", "max_unsent_bytes", "max_header_bytes", "max_topics"):
        check_count(name, options.get(name, 1), 1)
    for name in ("client_ip", "instance_name", "unit_name", "namespace", "default_topic"):
        if options.get(name) is not None:
            check_text(name, options.get(name))


def _check_functions(options: ClientOptions) -> None:
    check_callback("dial", options.get("dial"))
    check_callback("clock", options.get("clock"), plain=True)
    now_ms: object = options.get("clock", wall_ms)()
    if not isinstance(now_ms, int) or not 0 <= now_ms <= CLOCK_MAX_MS:
        raise InvalidCall(f"clock returned {now_ms!r}, not the ms since 1970 as an int")
    sink = options.get("statistics_sink")
    if sink is not None:
        check_methods("statistics_sink", sink, "take")
        check_callback("take of statistics_sink", sink.take, plain=True)
