"""The table of a broker's requests: which code is served by which function, and on which listener.

Unknown codes are answered as `AdminBrokerProcessor`, the default processor of 4.9, answers them.
"""

from __future__ import annotations

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_server.wire import Handlers, Link

from . import (
    admin_clients,
    admin_config,
    admin_consumption,
    admin_groups,
    admin_ha,
    admin_offsets,
    admin_runtime,
    admin_topics,
    client_requests,
    forwarding,
    offset_requests,
    pulling,
    queries,
    replies,
    send_back,
    sending,
)
from .service import Broker

_ROOMS = (
    sending,
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
    admin_runtime,
    admin_ha,
    forwarding,
)


def main_handlers(broker: Broker) -> Handlers:
    """What the main listener serves: everything."""
    handlers = Handlers(default=refuse_unknown)
    for room in _ROOMS:
        room.register(handlers, broker)
    return handlers


def fast_handlers(main: Handlers) -> Handlers:
    """What the fast listener (main port - 2) serves: everything but pulls, which wait there for nobody."""
    plain = {code: handler for code, handler in main.plain.items() if code != RequestCode.PULL_MESSAGE}
    return Handlers(plain=plain, waiting=dict(main.waiting), default=main.default)


def refuse_unknown(_link: Link, command: Command) -> Command:
    """A code that nobody serves here; the remark's leading blank is RocketMQ's."""
    return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
