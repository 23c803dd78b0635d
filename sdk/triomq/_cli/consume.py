"""``consume``: prints the messages of a topic as they come, with a group or without."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping

import click
import trio

from triomq import Client, LitePullConsumer, MessageQueue, QueueBounds, ReceivedMessage, StartFrom
from triomq._cli.options import (
    UNREAD,
    ask_about,
    body_text,
    check_outage,
    checked_queue,
    filter_of,
    json_option,
    moment,
    name_servers_option,
    noting_outage,
    offset_of,
    print_received,
    queue_of,
    row_of,
    time_of,
    until_signal,
    warn_of_outage,
    with_client,
)
from triomq.errors import BrokerNotFound, RouteNotFound
from triomq_command.running import printable
from triomq_protocol.names import TOOLS_GROUP

TAIL_GROUP = TOOLS_GROUP
"""The group without ``--group``: brokers always have it, and it commits nothing."""


END_S = 2.0
"""The time without a message after which a topic counts as read to its end, for ``--until-end``, in seconds."""


class StartingOffsets:
    """An offset store that only sets where to start, and keeps nothing."""

    def __init__(self, starts: Mapping[MessageQueue, int]) -> None:
        self._starts = starts

    async def read(self, queue: MessageQueue, /) -> int | None:
        """The offset to start at."""
        return self._starts.get(queue)

    async def commit(self, _offsets: Mapping[MessageQueue, int], /) -> None:
        """Do nothing."""


@click.command()
@click.argument("topic")
@name_servers_option
@click.option(
    "-g", "--group", help="Share the topic with this consumer group, and commit. Default: read only, commit nothing."
)
@click.option("--from", "start", metavar="earliest|latest|TIME|OFFSET",
              help="Where to start: TIME is 2026-11-21T12:00 or ms since 1970; with --group only if it has no offset. "
              "Default: latest; with --until-end earliest.")  # fmt: skip
@click.option("--tags", help="Only messages with these tags: a || b.")
@click.option("--sql", help="Only messages whose properties match this SQL92 expression.")
@click.option("--queue", "queue", metavar="BROKER:QUEUE", help="Only this queue; not with --group.")
@click.option("-m", "--max", "--count", "most", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--until-end", is_flag=True, help=f"Stop when nothing has come for {END_S:g} s.")
@click.option("--format", "template", metavar="TEXT",
              help="A line per message: '{stored} {broker}:{queue} {offset} {tags} {body}'.")  # fmt: skip
@json_option
def consume(
    topic: str,
    name_servers: str,
    group: str | None,
    start: str | None,
    tags: str | None,
    sql: str | None,
    queue: str | None,
    most: int | None,
    until_end: bool,
    template: str | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC as they come, until Ctrl-C.

    Fields of --format are topic, broker, queue, offset, message_id, stored, stored_ms, tags, keys, properties,
    reconsume_times and body.
    """
    if queue is not None and group is not None:
        raise click.UsageError("give either --queue or --group: a group's queues are shared out by its members")
    expression = filter_of(tags, sql)
    only = queue_of(topic, queue) if queue is not None else None
    if start is None:
        # From the latest offset on there is nothing until a message is sent.
        start = "earliest" if until_end else "latest"
    begin = _start_from(start) if group is not None else None
    since_ms = _since_ms(start)
    show = _printer(template, as_json=as_json)

    async def work(client: Client) -> None:
        if group is not None:
            assert begin is not None
            without_answer = await _check_there(client, topic, until_end=until_end)
            async with client.lite_pull_consumer(group, start_from=begin) as consumer:
                await consumer.subscribe(topic, expression)
                if until_end:
                    await _wait_for_queues(consumer)
                printed = await _print_all(
                    consumer, show, most, client.bounds if until_end else None, without_answer=without_answer
                )
                if until_end and not printed and not consumer.assignment:
                    raise click.ClickException(
                        f"this member of group {group} was given no queue of topic {topic}: other members have them all, or "
                        f"brokers refuse it (`triomq groups {group}` shows the members)"
                    )
            if not printed:
                _say_nothing_came(topic, f"for group {group}, which starts at {start} where it has no offset")
            check_outage(without_answer, incomplete=UNREAD)
            return
        async with client.pull_consumer(TAIL_GROUP) as looker:
            queues = await looker.fetch_queues(topic)
        if only is not None:
            queues = [checked_queue(only, queues)]
        without_answer = {}
        starts = await _starts(client.bounds, queues, start, without_answer)
        async with client.lite_pull_consumer(
            TAIL_GROUP, auto_commit=False, offset_store=StartingOffsets(starts)
        ) as consumer:
            await consumer.assign(list(starts), expression)
            printed = await _print_all(
                consumer,
                show,
                most,
                client.bounds if until_end else None,
                since_ms=since_ms,
                without_answer=without_answer,
            )
        if not printed:
            _say_nothing_came(topic, f"from {start} on")
        check_outage(without_answer, incomplete=UNREAD)

    until_signal(lambda: with_client(name_servers, work))


async def _check_there(client: Client, topic: str, *, until_end: bool) -> dict[str, str]:
    """Raise if a group's consumer would wait for servers silently, or take an outage for the topic's end.

    Returns:
        With `until_end` the brokers of the topic that do not answer, and why; others do.
    """
    without_answer: dict[str, str] = {}
    try:
        async with client.pull_consumer(TAIL_GROUP) as looker:
            queues = await looker.fetch_queues(topic)
    except RouteNotFound as error:
        if until_end or isinstance(error, BrokerNotFound):
            raise
        click.echo(f"waiting for topic {topic}: {error.reason}", err=True)
        return without_answer
    if until_end:
        await _starts(client.bounds, queues, "latest", without_answer)
    return without_answer


async def _wait_for_queues(consumer: LitePullConsumer) -> None:
    """Wait until the member has its first queues: those that it takes while messages are awaited prolong that."""
    with trio.move_on_after(END_S):
        while not consumer.assignment:  # noqa: ASYNC110 (no event: `on_assigned` comes before a queue counts)
            await trio.sleep(END_S / 20)


async def _print_all(
    consumer: LitePullConsumer,
    show: Callable[[ReceivedMessage], None],
    most: int | None,
    until_end: QueueBounds | None,
    *,
    since_ms: int = 0,
    without_answer: dict[str, str],
) -> int:
    """Print messages up to `most`, and with `until_end` until brokers but those without an answer have no more; returns
    how many were printed. Brokers that do not answer in the meantime are added to `without_answer`.

    Raises:
        click.ClickException: nothing comes from queues that have more, and no pull of theirs makes progress.
    """
    printed = 0
    unread: dict[MessageQueue, int] = {}
    tried_again: set[MessageQueue] = set()
    left = most if most is not None else sys.maxsize
    taken = consumer.assignment
    while left > 0:
        batch = await consumer.poll(END_S)
        # The last message before a time is the nearest to it if there is none after it.
        wanted = [message for message in batch if message.stored_ms >= since_ms]
        await _show_all(consumer, show, wanted[:left])
        printed += len(wanted[:left])
        left -= len(wanted)
        if until_end is not None and not batch:
            answered, before = len(without_answer), unread
            unread = await _unread(consumer, until_end, without_answer)
            had, taken = taken, consumer.assignment
            if len(without_answer) > answered or taken != had:
                continue  # other queues may have been read, or begun, in the meantime
            if not unread:
                return printed
            if unread == before:  # else a filter lets a queue pass without a message, perhaps for long
                if not await _try_again(consumer, until_end, unread.keys() - tried_again, without_answer):
                    raise click.ClickException(
                        f"not all was read: nothing came for {END_S:g} s from queues that have more: "
                        f"{', '.join(map(_name_of, unread))}; see the warnings above, and `triomq doctor`"
                    )
                tried_again |= unread.keys()
    if left < 0 and consumer.auto_commit:
        # The last answer had more messages than were printed: those are delivered again.
        last = batch[left - 1]
        await consumer.seek(last.queue, last.queue_offset + 1)
    return printed


async def _show_all(
    consumer: LitePullConsumer, show: Callable[[ReceivedMessage], None], messages: list[ReceivedMessage]
) -> None:
    for message in messages:
        try:
            show(message)
        except OSError:
            # The output's reader has closed it, as `head` does: the messages it got are consumed, the others are
            # delivered again.
            if consumer.auto_commit:
                await consumer.seek(message.queue, message.queue_offset)
            raise


async def _try_again(
    consumer: LitePullConsumer, bounds: QueueBounds, queues: Iterable[MessageQueue], without_answer: dict[str, str]
) -> bool:
    """Pull those of the queues again that are at their first message, and return whether there are any, or whether a broker
    has stopped to answer.

    Their positions may have been deleted: the consumer goes on at the first message only after a pause of ten seconds.
    """
    found = False
    for queue in queues:
        if queue.broker_name in without_answer:
            continue
        first = None
        with noting_outage(queue, without_answer):
            first = await bounds.min_offset(queue)
        if first is None:
            found = True  # the others may have been read
        elif queue in consumer.assignment and consumer.position(queue) <= first:
            await consumer.seek(queue, first)
            found = True
    return found


def _name_of(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


async def _unread(
    consumer: LitePullConsumer, bounds: QueueBounds, without_answer: dict[str, str]
) -> dict[MessageQueue, int]:
    """The queues that have messages which were not pulled yet -> their positions; brokers may refuse pulls, or not answer
    them. Brokers that do not answer here are added to `without_answer`."""
    found: dict[MessageQueue, int] = {}
    positions = {queue: consumer.position(queue) for queue in consumer.assignment}  # another member may take some soon

    async def ask(queue: MessageQueue) -> None:
        if positions[queue] < await bounds.max_offset(queue):
            found[queue] = positions[queue]

    await ask_about(positions, ask, without_answer)
    return {queue: found[queue] for queue in sorted(found) if queue.broker_name not in without_answer}


def _say_nothing_came(topic: str, start: str) -> None:
    click.echo(f"no message of topic {topic} came within {END_S:g} s, {start}", err=True)


def _printer(template: str | None, *, as_json: bool) -> Callable[[ReceivedMessage], None]:
    if template is None:
        return functools.partial(print_received, as_json=as_json)
    if as_json:
        raise click.UsageError("give either --format or --json")
    _filled_in(template, SAMPLE_ROW)

    def show(message: ReceivedMessage) -> None:
        row = row_of(message) | {"body": body_text(message), "stored": moment(message.stored_ms)}
        row["message_id"], row["tags"] = printable(message.message_id), printable(message.tags or "")
        row["properties"] = _Properties({name: printable(value) for name, value in message.properties.items()})
        click.echo(_filled_in(template, {name: "" if value is None else value for name, value in row.items()}))

    return show


class _Properties(dict[str, str]):
    """Properties of a message; a missing name is empty, since other messages may have it."""

    def __missing__(self, name: str) -> str:
        return ""


SAMPLE_ROW: Mapping[str, object] = {
    "topic": "", "broker": "", "queue": 0, "offset": 0, "message_id": "", "stored_ms": 0, "tags": "", "keys": "",
    "properties": _Properties(), "reconsume_times": 0, "body": "", "stored": "",
}  # fmt: skip
"""The values with which --format is tried before any broker is asked for messages: every field, with its type."""


def _filled_in(template: str, row: Mapping[str, object]) -> str:
    try:
        return template.format(**row)
    except (LookupError, ValueError, TypeError, AttributeError, MemoryError) as error:
        known = ", ".join(row)
        why = str(error) or "it has a width that is too large"  # a MemoryError has no text
        raise click.UsageError(f"--format {template!r} cannot be filled in: {why}; fields: {known}") from None


def _start_from(text: str) -> StartFrom:
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if offset_of(text) is not None:
        raise click.UsageError("an offset as --from needs --queue; a group starts at earliest, latest or a time")
    return time_of(text)


def _since_ms(start: str) -> int:
    is_time = start not in ("earliest", "latest") and offset_of(start) is None
    return time_of(start) if is_time else 0


async def _starts(
    bounds: QueueBounds, queues: list[MessageQueue], start: str, without_answer: dict[str, str]
) -> dict[MessageQueue, int]:
    """The offset at which each queue starts; those of brokers that do not answer are missing, and added with the reason.

    Raises:
        click.ClickException: no broker answers.
    """
    found: dict[MessageQueue, int] = {}

    async def ask(queue: MessageQueue) -> None:
        found[queue] = await _start(bounds, queue, start)

    await ask_about(queues, ask, without_answer)
    if not found:
        check_outage(without_answer, incomplete=UNREAD)
    warn_of_outage(without_answer, "its queues are not read")
    return found


async def _start(bounds: QueueBounds, queue: MessageQueue, start: str) -> int:
    if start == "earliest":
        return await bounds.min_offset(queue)
    if start == "latest":
        return await bounds.max_offset(queue)
    if (offset := offset_of(start)) is not None:
        return offset
    return await bounds.offset_by_time(queue, time_of(start))
