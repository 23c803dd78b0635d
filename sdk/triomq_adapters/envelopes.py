"""Conversion of Kombu's messages and queue names to RocketMQ's, and the times at which Celery's tasks are due.

A body is a line of JSON with everything except Kombu's body, followed by Kombu's body unchanged: a pickled or
compressed task does not grow.
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
    """A Kombu name, escaped to be a legal topic name: ``a.b`` becomes ``a%2Eb``."""
    return _ILLEGAL.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)


def plain_text(value: object) -> str | None:
    """A task's name or id, if it can be a message's tag or key; else None."""
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else None


def pack(message: Mapping[str, Any]) -> bytes:
    """Encode a Kombu message as the body of a RocketMQ message."""
    rest = dict(message)
    body = rest.pop("body")
    head: str = dumps(rest)
    return b"%b\n%b" % (head.encode(), body.encode() if isinstance(body, str) else bytes(body))


def unpack(data: bytes) -> dict[str, Any]:
    """Decode the Kombu message in the body of a RocketMQ message.

    Raises:
        ValueError: the body is not a Kombu message.
    """
    head, _, body = data.partition(b"\n")
    try:
        message = loads(head.decode())
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except Exception as error:  # Kombu converts values to the types that they name, with errors of any kind
        raise ValueError(f"its first line is not JSON of Kombu: {error!r}") from error
    match message:
        case {"headers": dict(), "properties": {"delivery_info": dict()}}:
            return {**message, "body": body}
    raise ValueError("its first line has no headers and properties of Kombu")


def routing_key(message: Mapping[str, Any]) -> str:
    """The key by which bindings select the message."""
    return str(message["properties"]["delivery_info"].get("routing_key") or "")


def eta_ms(message: Mapping[str, Any]) -> int | None:
    """When a Celery task is due, in ms since 1970; None: at once."""
    eta = message["headers"].get("eta")
    try:
        due = datetime.fromisoformat(eta) if isinstance(eta, str) else None
    except ValueError:
        return None  # the worker logs it
    if due is None:
        return None
    return round((due if due.tzinfo else due.replace(tzinfo=UTC)).timestamp() * 1000)
