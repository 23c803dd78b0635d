"""Requests of RocketMQ 5 that this broker does not serve, and why.

They are answered with code 3, as every unknown code; the reason is shown in the error of a tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_POP = "pop consumption needs a broker of RocketMQ 5; consumers that pull or push work here"
_LITE_TOPICS = "lite topics need a broker of RocketMQ 5"
_TIMER = "there is no timer wheel; messages have delay levels"
_ROCKSDB = "nothing is stored in RocksDB"
_CONTAINER = "this is not a broker container"
_CONTROLLER = "there is no controller; `triomq admin role` changes the role of a broker"
_COLD_DATA = "reads of old messages are not limited by group; slaves serve readers that lag"
_AUTH = "there are no users and ACLs of RocketMQ 5; accounts are in plain_acl.yml, see requests 50 to 54"
_SLAVES = "brokers of RocketMQ 5 cannot replicate with this broker"

_CODES: tuple[tuple[str, tuple[int, ...]], ...] = (
    (_POP, (200_050, 200_051, 200_052, 200_053, 200_054, 200_055, 200_056, 200_151, 400, 402)),
    (_LITE_TOPICS, tuple(range(200_070, 200_080))),
    (_TIMER, (60, 61, 370, 5001)),
    (_ROCKSDB, (354, 355)),
    ("groups are forbidden to read by consumeEnable (request 200), for all topics", (353,)),
    ("topics with a static number of queues need brokers of RocketMQ 5", (513,)),
    (_CONTAINER, (902, 903)),
    (_SLAVES, (905, 906, 908)),
    (_CONTROLLER, (*range(1001, 1014),)),
    (_COLD_DATA, (2001, 2002, 2003)),
    ("the commit log is read by the kernel's own strategy", (2004,)),
    (_AUTH, tuple(range(3001, 3011))),
)

UNSUPPORTED: Mapping[int, str] = MappingProxyType({code: reason for reason, codes in _CODES for code in codes})
"""By request code: why it is not served."""
