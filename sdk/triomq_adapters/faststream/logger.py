"""The logger of a broker's lines."""

from __future__ import annotations

import logging
from typing import Any

from faststream._internal.logger import DefaultLoggerStorage
from faststream._internal.logger.logging import get_broker_logger

_MESSAGE_ID_CHARACTERS = 32
"""Characters of an id in the log; ids of one process differ at their ends."""


class LoggerStorage(DefaultLoggerStorage):
    """Gives a broker its logger, whose lines begin with topic, group and message id."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Do nothing: columns are not aligned."""

    def set_level(self, level: int) -> None:
        """Set the level of lines."""
        self._level = level

    def get_logger(self, *, context: Any) -> Any:
        """The logger; it is created by the first call."""
        found = self._get_logger_ref()
        if found is None:
            found = get_broker_logger(
                name="rocketmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=_MESSAGE_ID_CHARACTERS,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)s - %(message)s",
                context=context,
                log_level=getattr(self, "_level", logging.INFO),
            )
            self._logger_ref.add(found)
        return found
