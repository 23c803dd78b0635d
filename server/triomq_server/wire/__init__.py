"""A server's connections: listen, dial, decode commands, call handlers, write their answers.

``serve`` runs a server, ``open_link`` dials one; both give handlers a ``Link``.
"""

from __future__ import annotations

from triomq_server.wire.dial import Asking, OpenLink, open_link
from triomq_server.wire.handlers import (
    Answer,
    Burst,
    Handlers,
    PlainHandler,
    SlicedHandler,
    Slices,
    WaitingHandler,
    ignored,
    in_turns,
    not_supported,
    to_the_end,
)
from triomq_server.wire.hub import WRITE_BYTES
from triomq_server.wire.limits.budget import Budget, WaitingBytes, counted_host
from triomq_server.wire.limits.limits import Limits, incomplete_budget, unsent_budget
from triomq_server.wire.limits.traffic import Traffic
from triomq_server.wire.link import AnswerTimeoutError, Link, LinkBusyError, LinkClosedError, LinkError
from triomq_server.wire.server import serve
from triomq_server.wire.tls.certificates import Certificates
from triomq_server.wire.tls.handshakes import TlsMode, TlsSettings, accept_tls, tls_dial
from triomq_server.wire.transport import Dial, Listen, dial_tcp, error_text, failure_reason, listen_tcp
from triomq_server.wire.write_batch import WriteBatch

__all__ = [
    "WRITE_BYTES",
    "Answer",
    "AnswerTimeoutError",
    "Asking",
    "Budget",
    "Burst",
    "Certificates",
    "Dial",
    "Handlers",
    "Limits",
    "Link",
    "LinkBusyError",
    "LinkClosedError",
    "LinkError",
    "Listen",
    "OpenLink",
    "PlainHandler",
    "SlicedHandler",
    "Slices",
    "TlsMode",
    "TlsSettings",
    "Traffic",
    "WaitingBytes",
    "WaitingHandler",
    "WriteBatch",
    "accept_tls",
    "counted_host",
    "dial_tcp",
    "error_text",
    "failure_reason",
    "ignored",
    "in_turns",
    "incomplete_budget",
    "listen_tcp",
    "not_supported",
    "open_link",
    "serve",
    "tls_dial",
    "to_the_end",
    "unsent_budget",
]
