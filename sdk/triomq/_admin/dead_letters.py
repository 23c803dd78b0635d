"""Lists the dead letters of a group, and sends them again.

RocketMQ keeps them in the topic ``%DLQ%GROUP`` (docs/protocol/messages.md §10) and has no command for them.  Brokers
keep the progress of a redrive as offsets of the group :data:`REDRIVE_GROUP`, so that the next one continues from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import attrs
import trio

from triomq._admin.broker_sets import outage_text
from triomq._admin.group_settings import GroupSettings, config_of
from triomq._admin.groups import GroupAdmin
from triomq._admin.messages import PAGE, Found, MessageAdmin, next_page, origin_topic
from triomq._admin.topics import ADMIN_TIMEOUT_S
from triomq._arguments.kinds import check_callback
from triomq._arguments.numbers import check_count
from triomq._cluster.broker_links import BrokerLinks
from triomq._cluster.broker_offsets import BrokerOffsets
from triomq._cluster.queue_bounds import QueueBounds
from triomq._cluster.routes import Routes
from triomq._constructors import NoPublicConstructor
from triomq._error_text import shown
from triomq._message.message import MessageQueue, check_group
from triomq._message.received import ReceivedMessage
from triomq._message.send_result import SendResult
from triomq._message.subscription import retry_topic
from triomq._transport.answers import checked
from triomq._transport.links import NO_ANSWER
from triomq.errors import (
    BrokerNotFound,
    GroupNotFound,
    InvalidCall,
    MQError,
    NotFound,
    RouteNotFound,
    TopicNotFound,
)
from triomq_protocol.codes import RequestCode
from triomq_protocol.names import DLQ_PREFIX, ORIGIN_MESSAGE_ID
from triomq_protocol.wire.command import Command

REDRIVE_GROUP: Final = "triomq_redrive"
"""Its offset in a queue of dead letters is that of the first one that has not been redriven."""

COMMIT_S: Final = 5.0
"""How long a cancelled redrive may take to record its progress."""

OUT_OF_REACH: Final = (*NO_ANSWER, BrokerNotFound)
"""Errors of a queue whose broker does not answer; the queues of other brokers are read."""

RedriveTo = Literal["origin", "group"]
"""The topic a message was first sent to, for all of its groups; or only the group whose dead letter it is."""


@attrs.frozen
class DeadLetter:
    """A dead letter: a message that a group gave up on.

    Args:
        message: the message as stored in the dead letter topic.
        origin_topic: the topic it was first sent to; None if the message does not name it.
        origin_message_id: the broker's id of the original message, or its sender's id.
        redriven: whether a redrive has passed it.
    """

    message: ReceivedMessage
    origin_topic: str | None
    origin_message_id: str
    redriven: bool

    @property
    def reason(self) -> str:
        """Why it is a dead letter, as far as brokers record that."""
        times = self.message.reconsume_times
        if times == 0:
            return "sent to the dead letters by a producer"
        return f"failed, or took too long, {times} time{'s'[: times != 1]}"


@attrs.frozen
class Redriven:
    """One dead letter that was sent again.

    Args:
        letter: the dead letter.
        result: the result of sending the copy.
    """

    letter: DeadLetter
    result: SendResult


class DeadLetterAdmin(metaclass=NoPublicConstructor):
    """Reads the dead letters of groups, and sends them again; ``client.dead_letters``."""

    def __init__(
        self, groups: GroupAdmin, messages: MessageAdmin, routes: Routes, brokers: BrokerLinks, bounds: QueueBounds
    ) -> None:
        self._groups = groups
        self._messages = messages
        self._routes = routes
        self._brokers = brokers
        self._bounds = bounds
        self._progress = BrokerOffsets(REDRIVE_GROUP, brokers)

    async def queues(self, group: str) -> list[MessageQueue]:
        """The queues of a group's dead letters, one per broker set; empty if the group has never had any.

        Raises:
            BrokerNotFound: no master is registered, so that it is not known whether there are any.
            MQError: no name server answers.
        """
        check_group(group)
        try:
            route = await self._routes.for_subscribing(DLQ_PREFIX + group)
        except BrokerNotFound:
            raise
        except (RouteNotFound, TopicNotFound):
            return []
        return list(route.subscribe_queues)

    async def count(
        self,
        group: str,
        *,
        again: bool = False,
        without_answer: dict[str, str] | None = None,
        silent: dict[str, str] | None = None,
    ) -> int:
        """The number of dead letters that a redrive would send: those that none has passed, or with `again` all.

        Args:
            group: the group's name.
            again: whether to include those that a redrive has passed.
            without_answer: the broker sets that do not answer are added to it, with the reason, and those of the others
                are counted; by default one that does not answer is an error.
            silent: broker name -> why it does not answer. Such a broker is not asked, and those that do not answer now are
                added: calls with the same dict wait only once for each.
        """
        total = 0
        silent = {} if silent is None else silent
        for queue in await self.queues(group):
            name = queue.broker_name
            try:
                if name in silent:
                    raise BrokerNotFound(
                        f"dead letters of group {group} are unknown: {outage_text({name: silent[name]})}"
                    )
                total += max(0, await self._bounds.max_offset(queue) - await self._begin(queue, again=again))
            except OUT_OF_REACH as error:
                silent.setdefault(name, error.reason)
                if without_answer is None:
                    raise
                without_answer[name] = silent[name]
        return total

    async def read(self, group: str, *, limit: int = 100, again: bool = True) -> Found[DeadLetter]:
        """The group's dead letters, oldest first in each queue, and the broker sets that do not answer.

        Args:
            group: the group's name.
            limit: the most letters to return.
            again: whether to include those that a redrive has passed.

        Raises:
            BrokerNotFound: nothing was found, and a broker set did not answer.
        """
        check_count("limit", limit, 1)
        found = Found[DeadLetter]((), {})

        async def take(letter: DeadLetter) -> bool:
            found.append(letter)
            return len(found) < limit

        for queue in await self.queues(group):
            if len(found) < limit:
                try:
                    await self._walk(queue, take, again=again)
                except OUT_OF_REACH as error:
                    found.without_answer[queue.broker_name] = error.reason
        if not found and found.without_answer:
            raise BrokerNotFound(f"dead letters of group {group} are unknown: {outage_text(found.without_answer)}")
        return found

    async def at(self, queue: MessageQueue, offset: int) -> DeadLetter:
        """The dead letter at an offset of one of the group's :meth:`queues`.

        Raises:
            NotFound: the queue has no such offset, or no longer.
        """
        return _letter(await self._messages.at(queue, offset), await self._begin(queue, again=False))

    async def redrive(
        self,
        group: str,
        *,
        to: RedriveTo = "origin",
        limit: int | None = None,
        again: bool = False,
        report: Callable[[Redriven], object] | None = None,
    ) -> int:
        """Send the group's dead letters again, oldest first in each queue; they stay where they are.

        Each is sent, and then recorded as redriven at its broker. A redrive that fails or is cancelled records its
        progress; the next one continues there. After a crash between the two, at most 32 messages of a queue are sent
        twice, and none is lost.

        Args:
            group: the group's name.
            to: ``"origin"``: to the topic that they come from, so that all groups of it get them; ``"group"``: to the
                group's retry topic, so that it alone does.
            limit: the most letters to send.
            again: whether to include those that were redriven before.
            report: called with each message that was sent; its exception ends the redrive.

        Returns:
            The number of letters sent.

        Raises:
            NotFound: a message does not name the topic it comes from; ``to="group"`` does not need it.
            MQError: a message could not be sent, and those before it were; or a broker of dead letters does not answer,
                and those of the others were sent.
        """
        _check_redrive(to, limit)
        check_callback("report", report, plain=True)
        sent = 0

        sending = False
        """Whether an error is that of a send, or of `report`."""

        async def send(letter: DeadLetter) -> SendResult:
            nonlocal sending
            sending = True
            return await self._send(letter, group, to)

        def note_sent(letter: DeadLetter, result: SendResult) -> bool:
            nonlocal sent, sending
            sent += 1
            if report is not None:
                report(Redriven(letter, result))
            sending = False
            return limit is None or sent < limit

        failure: MQError | None = None
        for queue in await self.queues(group):
            if sent == limit:
                break
            try:
                await self._redrive_queue(queue, send, note_sent, again=again)
            except OUT_OF_REACH as error:
                if sending:
                    raise
                failure = error
        if failure is not None:
            raise failure
        return sent

    async def _redrive_queue(
        self,
        queue: MessageQueue,
        send: Callable[[DeadLetter], Awaitable[SendResult]],
        note_sent: Callable[[DeadLetter, SendResult], bool],
        *,
        again: bool,
    ) -> None:
        noted = await self._begin(queue, again=False)
        done = await self._begin(queue, again=again)
        can_note = False

        async def note() -> None:
            nonlocal noted
            # Letters that were redriven before stay redriven.
            if done > noted:
                await self._note(queue, done)
                noted = done

        async def step(letter: DeadLetter) -> bool:
            nonlocal done, can_note
            if not can_note:  # without a record the next redrive would send it again
                await self._note(queue, noted)
                can_note = True
            result = await send(letter)
            done = letter.message.queue_offset + 1
            go_on = note_sent(letter, result)  # after `done`: the user's report may fail, and the letter has been sent
            if done - noted >= PAGE:
                await note()
            return go_on

        try:
            await self._walk(queue, step, again=again)
        finally:
            with trio.move_on_after(COMMIT_S, shield=True):
                await note()

    async def _note(self, queue: MessageQueue, offset: int) -> None:
        """Commit the progress of the redrive."""
        try:
            await self._progress.commit({queue: offset})
        except GroupNotFound:  # RocketMQ 5 keeps offsets only of groups that it knows
            link = await self._brokers.of(queue, only_master=True)
            body = config_of(REDRIVE_GROUP, GroupSettings()).encode()
            request = Command.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            answer = await link.request(request, ADMIN_TIMEOUT_S)
            checked(answer, f"creating group {REDRIVE_GROUP}, which notes how far the redrive is", link.address)
            await self._progress.commit({queue: offset})

    async def _walk(self, queue: MessageQueue, take: Callable[[DeadLetter], Awaitable[bool]], *, again: bool) -> None:
        """Give the letters of one queue to `take`, until it returns False or the queue ends."""
        passed = await self._begin(queue, again=False)
        offset = await self._begin(queue, again=again)
        end = await self._bounds.max_offset(queue)
        while offset < end:
            page, following = await next_page(self._messages, queue, offset)
            for message in page:
                if message.queue_offset >= end:
                    return  # it died meanwhile, perhaps because it was redriven just now
                if not await take(_letter(message, passed)):
                    return
            if following <= offset:
                return
            offset = following

    async def _begin(self, queue: MessageQueue, *, again: bool) -> int:
        first = await self._bounds.min_offset(queue)
        return first if again else max(first, await self._progress.read(queue) or 0)

    async def _send(self, letter: DeadLetter, group: str, to: RedriveTo) -> SendResult:
        message = letter.message
        if to == "group":
            return await self._messages.send_copy(message, retry_topic(group), group=group)
        if letter.origin_topic is None:
            raise NotFound(
                f"{message.message_id} at offset {message.queue_offset} of {message.queue} does not say which topic it "
                'comes from; redrive it to the group (to="group", --to group)'
            )
        return await self._messages.send_copy(message, letter.origin_topic)


def _check_redrive(to: object, limit: object) -> None:
    if to not in ("origin", "group"):
        raise InvalidCall(f'to is {shown(to)}, neither "origin" nor "group"')
    if limit is not None:
        check_count("limit", limit, 1)


def _letter(message: ReceivedMessage, passed: int) -> DeadLetter:
    first_id = message.properties.get(ORIGIN_MESSAGE_ID, message.message_id)
    return DeadLetter(message, origin_topic(message), first_id, message.queue_offset < passed)
