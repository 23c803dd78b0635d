"""The table of request codes: the function that serves each code, and on which listener.

A new code is added to one of the modules that are listed here. Unknown codes are answered as by `AdminBrokerProcessor`,
the default processor of 4.9.
"""

from __future__ import annotations

from triomq_protocol.codes import ResponseCode
from triomq_protocol.wire.command import Command
from triomq_server.broker.admin import access as admin_access
from triomq_server.broker.admin import clients as admin_clients
from triomq_server.broker.admin import config as admin_config
from triomq_server.broker.admin import consumption as admin_consumption
from triomq_server.broker.admin import forwarding
from triomq_server.broker.admin import groups as admin_groups
from triomq_server.broker.admin import ha as admin_ha
from triomq_server.broker.admin import offsets as admin_offsets
from triomq_server.broker.admin import runtime as admin_runtime
from triomq_server.broker.admin import topics as admin_topics
from triomq_server.broker.broker import Broker
from triomq_server.broker.requests import clients as client_requests
from triomq_server.broker.requests import offsets as offset_requests
from triomq_server.broker.requests import pull as pulling
from triomq_server.broker.requests import queries
from triomq_server.broker.requests.sending import replies, send, send_back
from triomq_server.broker.requests.sending import transactions as transaction_requests
from triomq_server.broker.roles.roles import Roles
from triomq_server.broker.transactions.open_transactions import OpenTransactions
from triomq_server.broker.unsupported import UNSUPPORTED
from triomq_server.wire import Handlers, Link

_MODULES = (
    send,
    pulling,
    offset_requests,
    client_requests,
    queries,
    replies,
    send_back,
    admin_topics,
    admin_groups,
    admin_clients,
    admin_consumption,
    admin_offsets,
    admin_config,
    admin_access,
    admin_runtime,
    forwarding,
)


def main_handlers(broker: Broker, roles: Roles, transactions: OpenTransactions) -> Handlers:
    """The handlers of the main listener: all of them."""
    handlers = Handlers(default=refuse_unknown)
    for module in _MODULES:
        module.register(handlers, broker)
    admin_ha.register(handlers, broker, roles)
    transaction_requests.register(handlers, broker, transactions)
    return handlers


def fast_handlers(main: Handlers) -> Handlers:
    """The handlers of the fast listener (main port - 2): all but pulls, which may be held."""
    return Handlers(
        plain={code: handler for code, handler in main.plain.items() if code not in pulling.PULL_CODES},
        waiting=dict(main.waiting),
        sliced=dict(main.sliced),
        default=main.default,
        bursts=[burst for burst in main.bursts if pulling.PULL_CODES.isdisjoint(burst.codes)],
    )


def refuse_unknown(_link: Link, command: Command) -> Command:
    """Answer a code without a handler; the remark's leading blank is RocketMQ's, the reason for codes of RocketMQ 5 is
    ours."""
    reason = UNSUPPORTED.get(command.code)
    remark = f" request type {command.code} not supported" + (f": {reason}" if reason else "")
    return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
