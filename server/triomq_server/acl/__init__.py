"""Access control of a broker: accounts, their permissions, and the check of every request.

It answers to RocketMQ's `PlainAccessValidator` and `PlainPermissionManager` (docs/protocol/remoting.md §11.2). All
decisions are pure functions; only `files` reads and writes.
"""

from __future__ import annotations

from triomq_server.acl.accounts import AclError
from triomq_server.acl.decisions import RequestAccess, refusal
from triomq_server.acl.edits import entry_of
from triomq_server.acl.files import AclFiles
from triomq_server.acl.guard import guarded

__all__ = ["AclError", "AclFiles", "RequestAccess", "entry_of", "guarded", "refusal"]
