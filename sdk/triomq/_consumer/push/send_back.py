"""Failed messages on their way back to the broker: to the group's retry topic, or its dead letters
(docs/protocol/consumer.md §10).

This client keeps a message until a broker has confirmed it.  Upstream:
``DefaultMQPushConsumerImpl.sendMessageBack``.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from triomq._cluster.broker_links import BrokerLinks
from triomq._consumer.group.process_queue import HeldMessage
from triomq._error_text import one_line
from triomq._message.log_fields import message_fields
from triomq._message.subscription import retry_topic
from triomq._producer.attempts.outgoing import Outgoing
from triomq._producer.sender import Sender
from triomq._transport.answers import checked
from triomq._transport.link import Link
from triomq.errors import MessageIllegal, MQError
from triomq_protocol.codes import RequestCode
from triomq_protocol.errors import ProtocolError
from triomq_protocol.properties import encode_properties
from triomq_protocol.record.layout import COMPRESSED, COMPRESSION_MASK
from triomq_protocol.requests import ConsumerSendMsgBackRequest
from triomq_protocol.wire.command import Command

log = logging.getLogger("triomq.consumer")

SEND_BACK_TIMEOUT_S: Final = 5.0
"""How long the broker may take (``consumerSendMessageBack`` of push consumers)."""

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry; every further one is one level later."""


class SendBack:
    """Sends messages of one group back.

    Args:
        group: consumer group.
        brokers: the links to the queues' masters.
        sender: sends copies if a broker does not accept a message back.
        max_times: how often a message is delivered again before it is a dead letter.
        unit_mode: whether the group belongs to a unit.
    """

    def __init__(
        self, group: str, brokers: BrokerLinks, sender: Sender, *, max_times: int, unit_mode: bool = False
    ) -> None:
        self._unit_mode = unit_mode
        self.max_times = max_times
        self._group = group
        self._brokers = brokers
        self._sender = sender

    async def send_back(self, message: HeldMessage, delay_level: int) -> bool:
        """Ask the message's broker to store it again for a later delivery; if it does not, send a copy.

        Args:
            message: the failed message.
            delay_level: 0: the broker decides; negative: dead letter at once.

        Returns:
            Whether a broker has confirmed it: only then may it be dropped here.
        """
        try:
            await self._ask(message, delay_level)
        except MQError as error:
            log.warning(
                "the broker did not take %r back, sending a copy: %s",
                message,
                error,
                extra=message_fields(message, self._group),
            )
        else:
            log.debug("%r was given back for a retry", message, extra=message_fields(message, self._group))
            return True
        return await self.send_copy(message, delay_level=FIRST_RETRY_LEVEL + message.reconsume_times)

    async def send_copy(self, message: HeldMessage, *, delay_level: int, times: int | None = None) -> bool:
        """Send a copy to the retry topic; the broker makes it a dead letter if it was sent too often.

        Args:
            message: the failed message.
            delay_level: sets when it is delivered again.
            times: how often it failed; by default once more than before.

        Returns:
            Whether it was stored.
        """
        try:
            await self._sender.deliver(self._copy(message, delay_level, times))
        except (MQError, ProtocolError) as error:
            log.warning("no copy of %r could be sent: %s", message, error, extra=message_fields(message, self._group))
            return False
        return True

    async def _ask(self, message: HeldMessage, delay_level: int) -> None:
        queue = message.queue
        link: Link = await self._brokers.of(queue)
        header = ConsumerSendMsgBackRequest(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=self._brokers.namespace.wrap(message.topic),
            unit_mode=self._unit_mode,
            max_reconsume_times=self.max_times,
            bname=queue.broker_name,
        )
        answer = await link.request(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header), SEND_BACK_TIMEOUT_S)
        # Any sender chooses the id.
        checked(answer, f"sending {one_line(message.message_id)} of {queue} back", link.address)

    def _copy(self, message: HeldMessage, delay_level: int, times: int | None) -> Outgoing:
        sender = self._sender
        properties = dict(message.properties)
        properties.pop("TRAN_MSG", None)
        times = message.reconsume_times + 1 if times is None else times
        properties |= {
            "RETRY_TOPIC": self._brokers.namespace.wrap(message.topic),
            "RECONSUME_TIME": str(times),
            "MAX_RECONSUME_TIMES": str(self.max_times),
            "DELAY": str(delay_level),
        }
        # Upstream intends to set it, but loses it (docs/protocol/consumer.md §10, Defect).
        properties.setdefault("ORIGIN_MESSAGE_ID", message.message_id)
        unique_key = properties.setdefault("UNIQ_KEY", message.message_id)
        out = Outgoing(
            retry_topic(self._group),
            message.record.body,
            encode_properties(properties),
            unique_key,
            message.born_ms,
            trio.current_time() + sender.settings.timeout_s,
        )
        if len(out.body) == 0:
            raise MessageIllegal("the message has no body")
        # The body is sent as it was stored, compressed or not.
        out.sys_flag = message.sys_flag & (COMPRESSED | COMPRESSION_MASK)
        out.flag = message.flag
        out.retry = (times, self.max_times)
        return out
