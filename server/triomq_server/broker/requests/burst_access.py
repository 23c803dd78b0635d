"""Decides which links may have requests handled by the compiled modules."""

from __future__ import annotations

from triomq_server.acl import RequestAccess
from triomq_server.broker.broker import Broker


def request_access(broker: Broker) -> RequestAccess | None:
    """Decides it; None without access control."""
    acl = broker.acl
    return None if acl is None else RequestAccess(lambda: acl.rules, compat_49=broker.config.store.compat_49)
