"""Refusals of requests: `RefusedError` with the answer's code and remark, and remarks shared by several handlers."""

from __future__ import annotations

from collections.abc import Iterable

from triomq_protocol.codes import ResponseCode
from triomq_server.config import BrokerConfig

SLAVE_REMARK = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
"""How a slave refuses changes of its topics and groups, which are copies of its master's."""


INT32_MOST = 2**31 - 1
INT64_MOST = 2**63 - 1
"""A number of a table beyond these could be read by no slave, name server or tool of Java."""


def range_remark(numbers: Iterable[tuple[str, int, int, int]]) -> str | None:
    """Names the first number that is out of its range; None if there is none.

    Args:
        numbers: name, value, least and largest possible value of each.
    """
    for field, value, least, most in numbers:
        if not least <= value <= most:
            return f"{field} {value} is out of range, {least} to {most} are possible"
    return None


class RefusedError(Exception):
    """A request is refused; its handler turns this into the answer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark


def check_transactions(config: BrokerConfig) -> None:
    """Refuse a half message if the settings do not allow them (`rejectTransactionMessage`)."""
    if config.reject_transaction_message:
        remark = f"the broker[{config.broker_ip1}] sending transaction message is forbidden"
        raise RefusedError(ResponseCode.NO_PERMISSION, remark)
