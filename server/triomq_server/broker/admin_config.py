"""Operators' requests about the configuration: 25, 26, and the access control of 50-54 (broker-api.md §15, §16).

Upstream: AdminBrokerProcessor, Configuration. Access control itself is not part of this broker; its requests are
answered as a 4.9 broker with `aclEnable=false` answers them.
"""

from __future__ import annotations

import logging
from functools import partial

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.command import Command
from triomq_protocol.requests import DataVersion, GetBrokerConfigResponse
from triomq_server.config import PropertiesError, dump_properties, load_properties, printed
from triomq_server.wire import Handlers, Link

from .service import Broker

NO_ACCESS_CONTROL_REMARK = "access control is off on this broker (aclEnable=false)"

_log = logging.getLogger(__name__)


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    configuration = Configuration(broker)
    handlers.plain[RequestCode.GET_BROKER_CONFIG] = configuration.answer_get
    handlers.plain[RequestCode.UPDATE_BROKER_CONFIG] = configuration.answer_update
    for code, failure in (
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED),
        (RequestCode.DELETE_ACL_CONFIG, ResponseCode.DELETE_ACL_CONFIG_FAILED),
        (RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED),
    ):
        handlers.plain[code] = partial(refuse_access_control, failure)
    handlers.plain[RequestCode.GET_BROKER_CLUSTER_ACL_INFO] = ignore_access_control
    handlers.plain[RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG] = ignore_access_control


class Configuration:
    """The running broker's settings as operators see them, with a version that counts their changes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version = DataVersion(counter=0, timestamp=broker.clock())

    def answer_get(self, _link: Link, command: Command) -> Command:
        """26: every setting as a `key=value` line."""
        version = GetBrokerConfigResponse(version=self._version.encode().decode())
        return command.answer(header=version, body=printed(self._broker.config).encode())

    def answer_update(self, link: Link, command: Command) -> Command:
        """25: change settings of the running broker, and its file if it was started with one.

        Unknown keys are ignored. What the broker reads once at its start does not react, as in 4.9.
        """
        if not command.body:
            return command.answer()
        try:
            values = load_properties(command.body)
        except PropertiesError:
            return command.answer(ResponseCode.SYSTEM_ERROR, "string2Properties error")
        self._update(values, link.peer)
        return command.answer()

    def _update(self, values: dict[str, str], peer: str) -> None:
        broker = self._broker
        warnings = broker.config.update(values)
        _log.info("%s changed settings: %s", peer, ", ".join(f"{key}={value}" for key, value in sorted(values.items())))
        for warning in warnings:
            _log.warning("settings from %s: %s", peer, warning)
        self._version = DataVersion(counter=self._version.counter + 1, timestamp=broker.clock())
        if broker.config_file is not None:
            broker.config_file.save(dump_properties(broker.config.to_properties()).encode())
        for changed in broker.on_config_change:
            changed()
        if "brokerPermission" in values:
            broker.topics.bump()  # its listener registers the broker anew, so that routes show the new permission


def refuse_access_control(failure: ResponseCode, _link: Link, command: Command) -> Command:
    """50, 51, 53: change accounts or the global white list, which needs access control to be on."""
    return command.answer(failure, NO_ACCESS_CONTROL_REMARK)


def ignore_access_control(link: Link, command: Command) -> None:
    """52, 54: without access control 4.9 never answers these, and its tools wait for their timeout."""
