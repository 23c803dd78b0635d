"""What brokers ask of a client (broker-api.md §18, consumer.md §14; upstream ``ClientRemotingProcessor``).

Pull consumers answer the little that concerns them; other codes are answered with code 3 by the link.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from triomq._link import Handler, Link
from triomq._message import MessageQueue
from triomq_protocol.codes import VERSION, RequestCode, ResponseCode, version_description
from triomq_protocol.command import Command
from triomq_protocol.requests import (
    ConsumerRunningInfo,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusBody,
    GetConsumerStatusRequest,
    NotifyConsumerIdsChangedRequest,
    ResetOffsetRequest,
)

log = logging.getLogger("triomq.broker_requests")

Positions = Callable[[str], Mapping[MessageQueue, int]]
"""Topic -> where a consumer stands in its queues."""


class BrokerRequests:
    """Answers brokers on behalf of one client's consumers.

    Args:
        name_servers: tells the name servers' addresses.
    """

    def __init__(self, name_servers: Callable[[], list[str]]) -> None:
        self.consumers: dict[str, Positions] = {}
        """Consumer group -> its positions."""
        self.started_ms = 0
        """When the client opened, in ms since 1970."""
        self._name_servers = name_servers

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler, for the client's links."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
        }

    def _ids_changed(self, link: Link, command: Command) -> None:
        # A pull consumer takes the queues its caller gives it: there is nothing to share out anew.
        log.debug("%s: members of group %s changed", link.address, _group(command))

    def _reset_offset(self, link: Link, command: Command) -> None:
        header = command.header(ResetOffsetRequest)
        log.info("%s asks to reset group %s in topic %s; pull consumers keep their own positions",
                 link.address, header.group, header.topic)  # fmt: skip

    def _consumer_status(self, _link: Link, command: Command) -> Command:
        header = command.header(GetConsumerStatusRequest)
        positions = self.consumers.get(header.group)
        table = dict(positions(header.topic)) if positions is not None else {}
        return command.answer(0, body=GetConsumerStatusBody(message_queue_table=table, consumer_table={}).encode())

    def _running_info(self, _link: Link, command: Command) -> Command:
        header = command.header(GetConsumerRunningInfoRequest)
        if header.consumer_group not in self.consumers:
            remark = f"The Consumer Group <{header.consumer_group}> not exist in this consumer"
            return command.answer(ResponseCode.SYSTEM_ERROR, remark)
        info = ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in self._name_servers()),
                "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
                "PROP_CLIENT_VERSION": version_description(VERSION),
                "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
                "PROP_CONSUMEORDERLY": "false",
                "PROP_THREADPOOL_CORE_SIZE": "0",
            }
        )
        return command.answer(0, body=info.encode())


def _group(command: Command) -> str:
    return command.header(NotifyConsumerIdsChangedRequest).consumer_group
