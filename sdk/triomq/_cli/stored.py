"""Commands about stored messages: ``message``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
import msgspec

from triomq import Client, MessageQueue, MQError, ReceivedMessage
from triomq._cli.options import (
    ask,
    body_text,
    check_can_ask,
    check_outage,
    checked_queue,
    json_option,
    moment,
    name_servers_option,
    queue_of,
    row_of,
    say,
    time_of,
    with_client,
)
from triomq.admin import ConsumeMessageDirectlyResult, MessageTrack, TraceKind, TraceRecord
from triomq.errors import BrokerNotFound, RouteNotFound
from triomq_command.running import printable_line
from triomq_protocol.names import TOOLS_GROUP, TRACE_TOPIC
from triomq_protocol.trace import ConsumeOutcome

T = TypeVar("T", bound=Callable[..., Any])

INCOMPLETE = "what it has of them is missing above"
"""The effect of an outage on a search."""

NAME_WIDTH = 18

_tracks_option = click.option(
    "--tracks/--no-tracks", default=None, help="Whether to ask which groups have consumed it. Default: for one message."
)


def _looking(command: T) -> T:
    """Add the options of every command that shows messages."""
    for option in reversed((name_servers_option, _tracks_option, json_option)):
        command = option(command)
    return command


@click.group()
def message() -> None:
    """Find stored messages, show who consumed them, have them consumed again."""


@message.command("id")
@click.argument("message_id", metavar="OFFSET_ID")
@click.option("--any-address", is_flag=True, help="Ask at the id's address even if no name server knows it.")
@_looking
def by_id(message_id: str, any_address: bool, name_servers: str, tracks: bool | None, as_json: bool) -> None:
    """Show the message of a broker's id, which has the broker's address and the place in its log.

    `triomq send --json` prints it as offset_message_id, mqadmin as OffsetID. An address that is that of no broker of the
    cluster is not asked: the id may be made up.
    """

    async def work(client: Client) -> None:
        found = await client.messages.by_id(message_id, any_address=any_address)
        await _show(client, [found], tracks=tracks, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@message.command("unique-key")
@click.argument("topic")
@click.argument("key", metavar="MESSAGE_ID")
@_looking
def by_unique_key(topic: str, key: str, name_servers: str, tracks: bool | None, as_json: bool) -> None:
    """Show the messages of TOPIC with the id that their sender gave.

    `triomq send` prints it as message id; clients show it as msgId.
    """

    async def work(client: Client) -> None:
        found = await client.messages.by_unique_key(topic, key)
        _check_found(found, f"no message of topic {topic} has the id {key}")
        await _show(client, found, tracks=tracks, as_json=as_json)
        check_outage(found.without_answer, incomplete=INCOMPLETE)

    with_client(name_servers, work, route_wait_s=0)


@message.command("key")
@click.argument("topic")
@click.argument("key")
@click.option(
    "--from", "start", metavar="TIME", help="Only messages stored then or later: 2026-11-21T12:00 or ms since 1970."
)
@click.option("--until", metavar="TIME", help="Only messages stored until then.")
@click.option("-m", "--max", "most", type=click.IntRange(1, 64), default=64, show_default=True,
              help="At most so many of each broker, the newest ones.")  # fmt: skip
@_looking
def by_key(
    topic: str, key: str, start: str | None, until: str | None, most: int, name_servers: str, tracks: bool | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the messages of TOPIC with an index key."""
    start_ms = 0 if start is None else time_of(start, or_place=False)
    end_ms = None if until is None else time_of(until, or_place=False)

    async def work(client: Client) -> None:
        found = await client.messages.by_key(topic, key, start_ms=start_ms, end_ms=end_ms, max_messages=most)
        _check_found(found, f"no message of topic {topic} in that time has the key {key}")
        await _show(client, found, tracks=tracks, as_json=as_json)
        check_outage(found.without_answer, incomplete=INCOMPLETE)

    with_client(name_servers, work, route_wait_s=0)


@message.command("trace")
@click.argument("message_id", metavar="MESSAGE_ID")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Where traces go.")
@name_servers_option
@json_option
def trace(message_id: str, trace_topic: str, name_servers: str, as_json: bool) -> None:
    """Show what producers and consumers have recorded about a message.

    MESSAGE_ID is the id that its sender gave. Only clients whose traces are on record them.
    """

    async def work(client: Client) -> None:
        try:
            found = await client.messages.trace(message_id, trace_topic=trace_topic)
        except BrokerNotFound:
            raise
        except RouteNotFound as error:
            raise click.ClickException(
                f"there is no topic {trace_topic}, so nothing has been traced. Clients write traces if their trace is on; the "
                f"topic comes with traceTopicEnable=true in a broker's file, or by `triomq topics {trace_topic} --create`"
            ) from error
        if not found:
            raise click.ClickException(
                f"topic {trace_topic} has no trace of the message {message_id}; producers and consumers write one if their "
                "trace is on, some seconds later"
            )
        if not as_json:
            click.echo(f"{'TIME':<29} {'WHAT':<14} {'GROUP':<24} {'TOOK':>8} RESULT")
        for each in found:
            say(msgspec.to_builtins(each), _trace_text(each), as_json=as_json)
        check_outage(found.without_answer, incomplete=INCOMPLETE)

    with_client(name_servers, work, route_wait_s=0)


def _trace_text(record: TraceRecord) -> str:
    took = "" if record.cost_ms is None else f"{record.cost_ms} ms"
    if record.kind is TraceKind.SENT:
        result = f"{'stored' if record.success else 'not stored safely'} at {record.store_host}, topic {record.topic}"
    elif record.kind is TraceKind.CONSUMING:
        result = f"retry {record.retry_times}" if record.retry_times else ""
    elif record.kind is TraceKind.CONSUMED:
        result = "consumed" if record.success else _OUTCOMES.get(record.outcome or 0, "failed")
    else:
        result = f"{record.state}{', asked by the broker' if record.from_check else ''}"
    when = moment(record.time_ms) if record.time_ms else ""
    return f"{when:<29} {_TRACED[record.kind]:<14} {record.group or '':<24} {took:>8} {result}".rstrip()


_TRACED = {
    TraceKind.SENT: "sent",
    TraceKind.CONSUMING: "given out",
    TraceKind.CONSUMED: "handled",
    TraceKind.TRANSACTION_END: "transaction",
}

_OUTCOMES = {
    ConsumeOutcome.TIMEOUT.value: "the handler took too long",
    ConsumeOutcome.EXCEPTION.value: "the handler raised",
    ConsumeOutcome.FAILED.value: "to come again",
}


@message.command("at")
@click.argument("topic")
@click.argument("queue", metavar="BROKER:QUEUE")
@click.argument("offset", type=click.IntRange(0))
@_looking
def at_offset(topic: str, queue: str, offset: int, name_servers: str, tracks: bool | None, as_json: bool) -> None:
    """Show the message of TOPIC at an OFFSET of a queue."""
    place = queue_of(topic, queue)

    async def work(client: Client) -> None:
        await _check_queue(client, place)
        await _show(client, [await client.messages.at(place, offset)], tracks=tracks, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@message.command("entries")
@click.argument("topic")
@click.argument("queue", metavar="BROKER:QUEUE")
@click.argument("offset", type=click.IntRange(0))
@click.option(
    "-m", "--max", "most", type=click.IntRange(1, 1024), default=10, show_default=True, help="At most so many."
)
@name_servers_option
@json_option
def entries(topic: str, queue: str, offset: int, most: int, name_servers: str, as_json: bool) -> None:
    """Show the entries of a consume queue of TOPIC from OFFSET on: where each message is in the log of its broker."""
    place = queue_of(topic, queue)

    async def work(client: Client) -> None:
        found = await client.messages.entries(place, offset, max_entries=most)
        if not as_json:
            click.echo(f"{'OFFSET':>12} {'PHYSICAL OFFSET':>20} {'BYTES':>9} {'TAGS CODE':>20}")
        for each in found:
            text = f"{each.offset:>12} {each.physical_offset:>20} {each.size_bytes:>9} {each.tags_code:>20}"
            row = {
                "topic": topic,
                "broker": place.broker_name,
                "queue": place.queue_id,
                "offset": each.offset,
                "physical_offset": each.physical_offset,
                "size_bytes": each.size_bytes,
                "tags_code": each.tags_code,
            }
            say(row, text, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@message.command("time")
@click.argument("topic")
@click.argument("queue", metavar="BROKER:QUEUE")
@click.argument("start", metavar="TIME")
@click.option("--until", metavar="TIME", help="Only messages stored until then.")
@click.option("-m", "--max", "most", type=click.IntRange(1), default=1, show_default=True, help="At most so many.")
@_looking
def by_time(
    topic: str, queue: str, start: str, until: str | None, most: int, name_servers: str, tracks: bool | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the messages of TOPIC that a queue stored from a TIME on."""
    place = queue_of(topic, queue)
    start_ms, end_ms = time_of(start, or_place=False), None if until is None else time_of(until, or_place=False)

    async def work(client: Client) -> None:
        await _check_queue(client, place)
        found = await client.messages.by_time(place, start_ms, end_ms=end_ms, max_messages=most)
        _check_found(found, f"queue {queue} of topic {topic} stored no message in that time")
        await _show(client, found, tracks=tracks, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


async def _check_queue(client: Client, queue: MessageQueue) -> None:
    """Refuse a queue that its topic does not have; the error names those it has."""
    async with client.pull_consumer(TOOLS_GROUP) as looker:
        checked_queue(queue, await looker.fetch_queues(queue.topic))


@message.command("resend")
@click.argument("message_id", metavar="ID")
@click.argument("group")
@click.option("--topic", help="ID is the id that the sender gave a message of this topic. Default: a broker's id.")
@click.option("--client", "client_id", metavar="CLIENT_ID",
              help="Let this member consume it now, and show what its handler did. Default: a copy goes to the retry topic.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@name_servers_option
@json_option
def resend(
    message_id: str, group: str, topic: str | None, client_id: str | None, name_servers: str, yes: bool, as_json: bool
) -> None:
    """Have GROUP alone consume a message again.

    A copy goes to the group's retry topic, so that one of its members gets it, or --client names the member.
    """

    async def find(client: Client) -> ReceivedMessage:
        if topic is None:
            return await client.messages.by_id(message_id)
        found = await client.messages.by_unique_key(topic, message_id)
        _check_found(found, f"no message of topic {topic} has the id {message_id}")
        return found[0]

    async def look(client: Client) -> None:
        await find(client)

    async def work(client: Client) -> None:
        stored = await find(client)
        if client_id is not None:
            _say_consumed(await client.messages.consume_directly(stored, group, client_id), as_json=as_json)
            return
        sent = await client.messages.resend(stored, group)
        row = {
            "group": group,
            "status": sent.status.name,
            "message_id": sent.message_id,
            "offset_message_id": sent.offset_message_id,
            "topic": sent.queue.topic,
            "broker": sent.queue.broker_name,
            "queue": sent.queue.queue_id,
            "offset": sent.queue_offset,
        }
        where = f"{sent.queue.topic} {sent.queue.broker_name}:{sent.queue.queue_id} offset {sent.queue_offset}"
        say(row, f"{sent.status.name} a copy of {message_id} to {where}", as_json=as_json)

    if not yes:
        to = f"member {client_id} of group {group}" if client_id else f"group {group}"
        check_can_ask(f"has {to} consume message {message_id} again")
        with_client(name_servers, look, route_wait_s=0)
        ask(f"Have {to} consume message {message_id} again?", "Nothing was sent.")
    with_client(name_servers, work, route_wait_s=0)


def _check_found(found: Iterable[ReceivedMessage], what: str) -> None:
    if not found:
        raise MQError(f"{what}; it was never stored, or its log file has been deleted since")


async def _show(client: Client, found: list[ReceivedMessage], *, tracks: bool | None, as_json: bool) -> None:
    for number, each in enumerate(found):
        wanted = len(found) == 1 if tracks is None else tracks
        known: list[MessageTrack] | None = None
        unknown: MQError | None = None
        try:
            if wanted and each.queue.broker_name:
                known = await client.messages.tracks(each)
        except MQError as error:
            unknown = error  # raised when the message is printed
        if number and not as_json:
            click.echo()
        if as_json:
            say(stored_row(each, known), "", as_json=True)
        else:
            _print_stored(each, known)
        if unknown is not None:
            raise unknown


def stored_row(stored: ReceivedMessage, tracks: list[MessageTrack] | None = None) -> dict[str, object]:
    """A stored message as a JSON object: its content, its position, and the groups that consumed it."""
    host, port = stored.store_host
    born_host, born_port = stored.born_host
    row = row_of(stored) | {
        "offset_message_id": stored.offset_message_id,
        "physical_offset": stored.physical_offset,
        "store_host": f"{host}:{port}",
        "born_ms": stored.born_ms,
        "born_host": f"{born_host}:{born_port}",
        "sys_flag": stored.sys_flag,
        "flag": stored.flag,
    }
    if tracks is not None:
        row["tracks"] = [{"group": each.group, "track": each.track.value, "reason": each.reason} for each in tracks]
    return row


def _print_stored(stored: ReceivedMessage, tracks: list[MessageTrack] | None) -> None:
    row = stored_row(stored)
    queue = stored.queue
    where = f"{queue.broker_name}:{queue.queue_id}" if queue.broker_name else f"queue {queue.queue_id}"
    lines = {
        "message id": stored.message_id,
        "offset id": stored.offset_message_id,
        "topic": stored.topic,
        "tag": stored.tags or "",
        "keys": " ".join(stored.keys),
        "stored at": f"{where} offset {stored.queue_offset}",
        "broker": f"{row['store_host']} physical offset {stored.physical_offset}",
        "stored": moment(stored.stored_ms),
        "born": f"{moment(stored.born_ms)} at {row['born_host']}",
        "reconsume times": str(stored.reconsume_times),
    }
    for name, text in lines.items():
        click.echo(printable_line(f"{name:<{NAME_WIDTH}} {text}").rstrip())
    for name, value in sorted(stored.properties.items()):
        click.echo(printable_line(f"{'property':<{NAME_WIDTH}} {name}={value}"))
    click.echo(f"{'body':<{NAME_WIDTH}} {body_text(stored)}")
    if tracks is not None:
        for track in tracks:
            reason = f" ({track.reason})" if track.reason else ""
            click.echo(printable_line(f"{'group':<{NAME_WIDTH}} {track.group} {track.track.value}{reason}"))
        if not tracks:
            click.echo(f"{'group':<{NAME_WIDTH}} none consumes the topic")


def _say_consumed(result: ConsumeMessageDirectlyResult, *, as_json: bool) -> None:
    row = {
        "result": result.consume_result,
        "remark": result.remark,
        "spent_ms": result.spent_time_mills,
        "ordered": result.order,
        "auto_commit": result.auto_commit,
    }
    remark = f": {result.remark}" if result.remark else ""
    say(row, f"{result.consume_result} after {result.spent_time_mills} ms{remark}", as_json=as_json)
    if result.consume_result not in ("CR_SUCCESS", "CR_COMMIT"):
        click.get_current_context().exit(1)
