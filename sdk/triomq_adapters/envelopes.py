"""Kombu's messages and queues as RocketMQ's: the bytes of a body, names, and when a task of Celery is due.

A body is a line of JSON, which has everything but Kombu's body, and Kombu's body as it is: a pickled task or a compressed
one does not grow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kombu.utils.json import dumps, loads

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_PLAIN = re.compile(r"[\w.:@-]+", re.ASCII)


def legal_name(name: str) -> str:
    """A name of Kombu's, escaped to be a topic's: ``a.b`` is ``a%2Eb``."""
    return _ILLEGAL.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def plain_text(value: object) -> str | None:
    """A task's name or id, if a message's tag or key can be like that."""
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else None


def pack(message: Mapping[str, Any]) -> bytes:
    """The body of the RocketMQ message of a message of Kombu."""
    rest = dict(message)
    body = rest.pop("body")
    head: str = dumps(rest)
    return b"%b\n%b" % (head.encode(), body.encode() if isinstance(body, str) else bytes(body))


def unpack(data: bytes) -> dict[str, Any]:
    """The message of Kombu in the body of one of RocketMQ.

    Raises:
        ValueError: it is none.
    """
    head, _, body = data.partition(b"\n")
    try:
        message = loads(head.decode())
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    match message:
        case {"headers": dict(), "properties": {"delivery_info": dict()}}:
            return {**message, "body": body}
    raise ValueError("its first line has no headers and properties of Kombu")


def routing_key(message: Mapping[str, Any]) -> str:
    """The key by which bindings select the message."""
    return str(message["properties"]["delivery_info"].get("routing_key") or "")


def eta_ms(message: Mapping[str, Any]) -> int | None:
    """When a task of Celery is due, in ms since 1970; None: at once."""
    eta = message["headers"].get("eta")
    try:
        due = datetime.fromisoformat(eta) if isinstance(eta, str) else None
    except ValueError:
        return None  # the worker logs it
    if due is None:
        return None
    return round((due if due.tzinfo else due.replace(tzinfo=UTC)).timestamp() * 1000)
