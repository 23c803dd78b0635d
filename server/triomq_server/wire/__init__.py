"""Streams in and out: listen, dial, cut bytes into commands, call handlers, write their answers.

``serve`` runs a server, ``open_link`` dials one; both give handlers a ``Link``.
"""

from __future__ import annotations

from triomq_server.wire.burst import Burst
from triomq_server.wire.dial import open_link
from triomq_server.wire.handlers import Answer, Handlers, PlainHandler, WaitingHandler, ignored, not_supported
from triomq_server.wire.limits import Limits
from triomq_server.wire.link import AnswerTimeoutError, Link, LinkBusyError, LinkClosedError, LinkError
from triomq_server.wire.memory import MemoryNetwork
from triomq_server.wire.server import serve
from triomq_server.wire.tls import TlsMode, TlsSettings
from triomq_server.wire.transport import Dial, Listen, dial_tcp, listen_tcp

__all__ = [
    "Answer",
    "AnswerTimeoutError",
    "Burst",
    "Dial",
    "Handlers",
    "Limits",
    "Link",
    "LinkBusyError",
    "LinkClosedError",
    "LinkError",
    "Listen",
    "MemoryNetwork",
    "PlainHandler",
    "TlsMode",
    "TlsSettings",
    "WaitingHandler",
    "dial_tcp",
    "ignored",
    "listen_tcp",
    "not_supported",
    "open_link",
    "serve",
]
