"""Operators' requests about the configuration: 25, 26 (docs/protocol/broker-api.md §15).

Upstream: AdminBrokerProcessor, Configuration.
"""

from __future__ import annotations

import logging

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.requests import DataVersion, GetBrokerConfigResponse
from triomq_protocol.wire.command import Command
from triomq_server.broker.broker import Broker
from triomq_server.config import (
    MOST_SETTINGS_BYTES,
    BrokerRole,
    ConfigError,
    PropertiesError,
    dump_properties,
    load_properties,
    printed,
)
from triomq_server.wire import Handlers, Link

WARNING_CHARACTERS = 2000
"""Length limit of logged settings that clients send."""


def register(handlers: Handlers, broker: Broker) -> None:
    """Put the functions of this module into the table of request codes."""
    configuration = Configuration(broker)
    handlers.plain[RequestCode.GET_BROKER_CONFIG] = configuration.answer_get
    handlers.waiting[RequestCode.UPDATE_BROKER_CONFIG] = configuration.answer_update


class Configuration:
    """The running broker's settings as operators see them, with a version that counts their changes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version = DataVersion(counter=0, timestamp=broker.clock())

    def answer_get(self, _link: Link, command: Command) -> Command:
        """26: every setting as a `key=value` line."""
        version = GetBrokerConfigResponse(version=self._version.encode().decode())
        return command.answer(header=version, body=printed(self._broker.config).encode())

    async def answer_update(self, link: Link, command: Command) -> Command:
        """25: change settings of the running broker, and its file if it was started with one.

        Unknown keys are ignored. What the broker reads once at its start does not react, as in 4.9. With a value that
        cannot be used, or for a path, a port or a name, which count from the start on, nothing is changed. A master
        becomes a slave, or a slave a master, by CHANGE_ROLE only.
        """
        if not command.body:
            return command.answer()
        if len(command.body) > MOST_SETTINGS_BYTES:
            remark = f"{len(command.body)} bytes of settings; at most {MOST_SETTINGS_BYTES} are possible"
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        try:
            values = load_properties(command.body)
        except PropertiesError:
            return command.answer(ResponseCode.SYSTEM_ERROR, "string2Properties error")
        role = values.get("brokerRole", "").strip()
        if role in list(BrokerRole) and (role == BrokerRole.SLAVE) != self._broker.is_slave:
            # RocketMQ takes it, and is neither then: a master that refuses messages, or a slave that adds its own to
            # the log that it copies.
            remark = (
                f"no setting has been changed: brokerRole={role} takes more than a setting, see `triomq admin role`"
            )
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        try:
            warnings = self._update(values, link.peer)
        except ConfigError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        try:
            await self._save()
        except OSError as error:
            remark = f"the settings are in force until the broker stops, but its file cannot be written: {error}"
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        return command.answer(remark="; ".join(warnings)[:WARNING_CHARACTERS] or None)

    def _update(self, values: dict[str, str], peer: str) -> list[str]:
        """Returns the warnings."""
        broker = self._broker
        warnings = broker.config.update(values)
        now = broker.config.to_properties()
        shown = ", ".join(f"{key}={now[key]}" for key in sorted(values) if key in now)
        log = broker.peer_log
        log.write(logging.INFO, peer, "%s changed settings: %s", peer, shown or "none of them is known")
        if warnings:
            log.write(logging.WARNING, peer, "settings from %s: %s", peer, "; ".join(warnings)[:WARNING_CHARACTERS])
        self._version = DataVersion(counter=self._version.counter + 1, timestamp=broker.clock())
        for changed in broker.on_config_change:
            changed()
        if "brokerPermission" in values:
            broker.topics.bump()  # its listener registers the broker again, so that routes show the new permission
        return warnings

    async def _save(self) -> None:
        """Write the whole configuration to its file without blocking the traffic: the disk may be slow."""
        config, file = self._broker.config, self._broker.config_file
        if file is not None:
            await file.save_change(
                lambda: dump_properties(config.to_file()).encode(),
                "changed settings are in force until this broker stops; change one again once it can be written",
            )
