"""Refusals of requests: `RefusedError` with the answer's code and remark, and remarks shared by several handlers."""

from __future__ import annotations

from triomq_protocol.codes import ResponseCode
from triomq_server.config import BrokerConfig

SLAVE_REMARK = "Can't modify topic or subscription group from slave broker, please execute it from master broker."
"""How a slave refuses changes of its topics and groups, which are copies of its master's."""


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
