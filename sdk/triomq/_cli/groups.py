"""Commands about consuming: ``consume``, ``groups`` and ``offsets``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import attrs
import click

from triomq import Client, LitePullConsumer, MessageQueue, MQError, QueueBounds, ReceivedMessage, StartFrom
from triomq._cli.options import (
    MS_FROM,
    ask,
    body_text,
    check_can_ask,
    check_outage,
    checked_queue,
    filter_of,
    json_option,
    moment,
    name_servers_option,
    print_received,
    printable,
    progress_row,
    queue_of,
    row_of,
    say,
    time_of,
    with_client,
)
from triomq._half_done import with_places
from triomq._side_by_side import side_by_side
from triomq.admin import ConsumerConnection, GroupAdmin, GroupProgress, GroupSettings
from triomq.errors import AccessRefused, BrokerNotFound, NotFound, RouteNotFound
from triomq_protocol.names import RETRY_PREFIX, TOOLS_GROUP

NOTIFIED = "its members were notified"
SET = "set at its broker"
SET_OFFLINE = "set at its broker (no member is online)"

TAIL_GROUP = TOOLS_GROUP
"""The group without ``--group``: brokers always have it, and it commits nothing."""

GROUPS_AT_ONCE = 64
"""The most groups that are queried at the same time."""

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


# --- consume ---------------------------------------------------------------------------------------------------------


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
    if queue and group:
        raise click.UsageError("give either --queue or --group: a group's queues are shared out by its members")
    expression = filter_of(tags, sql)
    only = queue_of(topic, queue) if queue else None
    if start is None:
        # From the latest offset on there is nothing until a message is sent.
        start = "earliest" if until_end else "latest"
    begin = _start_from(start) if group else None
    since_ms = _since_ms(start)
    show = _printer(template, as_json=as_json)

    async def work(client: Client) -> None:
        if group:
            assert begin is not None
            await _check_there(client, topic, until_end=until_end)
            async with client.lite_pull_consumer(group, start_from=begin) as consumer:
                await consumer.subscribe(topic, expression)
                printed = await _print_all(consumer, show, most, until_end=until_end)
            if not printed:
                _say_nothing_came(topic, f"for group {group}, which starts at {start} where it has no offset")
            return
        async with client.pull_consumer(TAIL_GROUP) as looker:
            queues = await looker.fetch_queues(topic)
        if only is not None:
            queues = [checked_queue(only, queues)]
        starts = await _starts(client.bounds, queues, start)
        async with client.lite_pull_consumer(
            TAIL_GROUP, auto_commit=False, offset_store=StartingOffsets(starts)
        ) as consumer:
            await consumer.assign(queues, expression)
            printed = await _print_all(consumer, show, most, until_end=until_end, since_ms=since_ms)
        if not printed:
            _say_nothing_came(topic, f"from {start} on")

    with_client(name_servers, work)


async def _check_there(client: Client, topic: str, *, until_end: bool) -> None:
    """Raise if a group's consumer would wait for servers silently, or take an outage for the topic's end."""
    try:
        async with client.pull_consumer(TAIL_GROUP) as looker:
            queues = await looker.fetch_queues(topic)
    except RouteNotFound as error:
        if until_end or isinstance(error, BrokerNotFound):
            raise
        click.echo(f"waiting for topic {topic}: {error.reason}", err=True)
        return
    if until_end:
        await _starts(client.bounds, queues, "latest")


async def _print_all(
    consumer: LitePullConsumer,
    show: Callable[[ReceivedMessage], None],
    most: int | None,
    *,
    until_end: bool,
    since_ms: int = 0,
) -> int:
    """Print messages until there are no more, or up to `most`; returns how many were printed."""
    printed = 0
    left = most if most is not None else sys.maxsize
    while left > 0:
        batch = await consumer.poll(END_S)
        # The last message before a time is the nearest to it if there is none after it.
        wanted = [message for message in batch if message.stored_ms >= since_ms]
        for message in wanted[:left]:
            try:
                show(message)
            except OSError:
                # The output's reader has closed it, as `head` does: the messages it got are consumed, the others are
                # delivered again.
                if consumer.auto_commit:
                    await consumer.seek(message.queue, message.queue_offset)
                raise
        printed += len(wanted[:left])
        left -= len(wanted)
        if not batch and until_end:
            return printed
    if left < 0 and consumer.auto_commit:
        # The last answer had more messages than were printed: those are delivered again.
        last = batch[left - 1]
        await consumer.seek(last.queue, last.queue_offset + 1)
    return printed


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
        row["tags"] = printable(message.tags or "")
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
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        known = ", ".join(row)
        raise click.UsageError(f"--format {template!r} cannot be filled in: {error}; fields: {known}") from None


def _start_from(text: str) -> StartFrom:
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if text.isdecimal() and int(text) < MS_FROM:
        raise click.UsageError("an offset as --from needs --queue; a group starts at earliest, latest or a time")
    return time_of(text)


def _since_ms(start: str) -> int:
    is_time = start not in ("earliest", "latest") and not (start.isdecimal() and int(start) < MS_FROM)
    return time_of(start) if is_time else 0


async def _starts(bounds: QueueBounds, queues: list[MessageQueue], start: str) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for queue in queues:
        if start == "earliest":
            found[queue] = await bounds.min_offset(queue)
        elif start == "latest":
            found[queue] = await bounds.max_offset(queue)
        elif start.isdecimal() and int(start) < MS_FROM:
            found[queue] = int(start)
        else:
            found[queue] = await bounds.offset_by_time(queue, time_of(start))
    return found


# --- groups ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("group", required=False)
@name_servers_option
@click.option("--all", "with_system", is_flag=True, help="The system's own groups, too.")
@click.option("--create", is_flag=True, help="Create GROUP, or change the settings that are given.")
@click.option("--delete", is_flag=True, help="Delete GROUP with its offsets and its retry topic; dead letters stay.")
@click.option("--consume/--no-consume", default=None, help="Whether its members may pull.")
@click.option("--broadcast/--no-broadcast", default=None, help="Whether its members may pull in broadcasting mode.")
@click.option("--retry-queues", type=click.IntRange(0), help="Queues of its retry topic.")
@click.option(
    "--max-retries", type=click.IntRange(0), help="How often a message is delivered again before it is a dead letter."
)
@click.option("--broker-when-slow", type=click.IntRange(0), metavar="ID", help="Id of the broker for members that lag.")
@click.option("--notify/--no-notify", "notify_members", default=None,
              help="Whether members are notified when others join or leave.")  # fmt: skip
@click.option("--settings", "show_settings", is_flag=True, help="Show the settings of GROUP on each broker set.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def groups(
    group: str | None,
    name_servers: str,
    with_system: bool,
    create: bool,
    delete: bool,
    show_settings: bool,
    yes: bool,
    as_json: bool,
    **changes: bool | int | None,
) -> None:
    """List consumer groups with members and lag, or show one GROUP: members, subscriptions, lag by queue.

    --create, --delete and --settings are about GROUP's settings at the brokers; members that are online are not stopped by
    any but --no-consume.
    """
    if create + delete + show_settings > 1:
        raise click.UsageError("give one of --create, --delete and --settings")
    if (create or delete or show_settings) and group is None:
        raise click.UsageError("--create, --delete and --settings need a GROUP")
    given = {name: value for name, value in changes.items() if value is not None}
    if given and not create:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} belongs to --create")
    if group is not None and delete:
        _delete_group(group, name_servers, yes=yes, as_json=as_json)
        return
    if group is not None and (create or show_settings):
        _settings_of(group, name_servers, given if create else None, as_json=as_json)
        return

    async def work(client: Client) -> None:
        if group is not None:
            await _show_group(client, group, as_json=as_json)
            return
        await _list_groups(client, with_system=with_system, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


async def _list_groups(client: Client, *, with_system: bool, as_json: bool) -> None:
    names: list[str] = []
    outage: dict[str, str] = {}
    refused: dict[str, str] = {}

    async def ask_names() -> None:
        found = await client.groups.names()
        refused.update(found.refused)
        names.extend(name for name in found if with_system or not GroupAdmin.is_system_group(name))

    async def ask_outage() -> None:
        outage.update(await client.admin.without_master())

    await side_by_side(ask_names, ask_outage)
    known: dict[str, tuple[GroupProgress, ConsumerConnection | None, int | None]] = {}

    async def ask_group(name: str) -> None:
        known[name] = await _look_at(client, name)

    # A limited number at a time: each query may wait for a broker that does not answer.
    for begin in range(0, len(names), GROUPS_AT_ONCE):
        await side_by_side(*(functools.partial(ask_group, name) for name in names[begin : begin + GROUPS_AT_ONCE]))
    if not as_json:
        click.echo(f"{'GROUP':<32} {'MEMBERS':>7} {'LAG':>12} {'MODEL':<13} TOPICS")
    for name in names:
        _print_group(name, *known[name], as_json=as_json)
        refused |= known[name][0].refused
    check_outage(outage, refused)


async def _look_at(client: Client, name: str) -> tuple[GroupProgress, ConsumerConnection | None, int | None]:
    """A group's progress, its members online, and their number, None if unknown."""
    found: list[GroupProgress] = []
    online: ConsumerConnection | None = None
    members: int | None = None

    async def ask_progress() -> None:
        found.append(await client.groups.progress(name))

    async def ask_members() -> None:
        nonlocal online, members
        with suppress(BrokerNotFound, AccessRefused):
            online = await client.groups.members(name)
            members = len(online.connection_set) if online else 0

    await side_by_side(ask_progress, ask_members)
    return found[0], online, members


def _print_group(
    name: str, progress: GroupProgress, online: ConsumerConnection | None, members: int | None, *, as_json: bool
) -> None:
    topics = sorted({queue.topic for queue in progress} | set(online.subscription_table if online else ()))
    model = (online.message_model or "") if online else ""
    lag = progress.lag
    row = {
        "group": name,
        "members": members,
        "lag": lag,
        "model": model,
        "topics": topics,
        "without_master": sorted(progress.without_master),
        "refused": sorted(progress.refused),
    }
    shown = " ".join(topic for topic in topics if not topic.startswith(RETRY_PREFIX))
    say(row, f"{name:<32} {_known(members):>7} {_known(lag):>12} {model:<13} {shown}", as_json=as_json)


async def _show_group(client: Client, group: str, *, as_json: bool) -> None:
    progress = await client.groups.progress(group)
    check_answers(progress)
    online: ConsumerConnection | None = None
    hidden: AccessRefused | None = None
    try:
        online = await client.groups.members(group)
    except AccessRefused as error:
        hidden = error
    if online is None and hidden is None and not progress:
        await _check_known(client, group)
    if online is not None:
        _show_members(group, online, as_json=as_json)
    elif not as_json:
        click.echo("members: unknown" if hidden is not None else "no member is online")
    _show_progress(group, progress, as_json=as_json)
    check_outage(progress.without_master, progress.refused)
    if hidden is not None:
        raise hidden


def check_answers(progress: GroupProgress) -> None:
    """Raise if nothing is known, and a set without a master, or one that refuses the account, may be the cause."""
    if not progress:
        check_outage(progress.without_master, progress.refused)


async def _check_known(client: Client, group: str, cure: str = "") -> None:
    names = await client.groups.names()
    if group not in names:
        check_outage(await client.admin.without_master(), names.refused)
        raise click.ClickException(f"no broker knows the consumer group {group}; `triomq groups` lists groups{cure}")


def _show_members(group: str, online: ConsumerConnection, *, as_json: bool) -> None:
    for each in sorted(online.connection_set, key=lambda each: each.client_id or ""):
        row = {
            "group": group,
            "member": each.client_id,
            "address": each.client_addr,
            "language": each.language,
            "version": each.version,
            "type": online.consume_type,
            "model": online.message_model,
        }
        text = f"member {each.client_id}  {each.client_addr}  {each.language}  {online.consume_type} {online.message_model}"
        say(row, text, as_json=as_json)
    for topic, data in sorted(online.subscription_table.items()):
        row = {"group": group, "topic": topic, "expression": data.sub_string, "kind": data.expression_type}
        say(row, f"subscribes {topic}: {data.sub_string} ({data.expression_type})", as_json=as_json)


def _known(number: int | None) -> str:
    return "unknown" if number is None else str(number)


def _show_progress(
    group: str, progress: GroupProgress, owners: Mapping[MessageQueue, str] | None = None, *, as_json: bool
) -> None:
    if progress and not as_json:
        last = "" if owners is None else "  OWNER"
        click.echo(f"{'TOPIC':<32} {'BROKER':<20} {'QUEUE':>5} {'COMMITTED':>12} {'END':>12} {'LAG':>12}{last}")
    for queue, offsets in progress.items():
        lag = progress.lag_of(queue)
        row = progress_row(group, queue, offsets, lag)
        text = (
            f"{queue.topic:<32} {queue.broker_name:<20} {queue.queue_id:>5} {offsets.consumer_offset:>12} "
            f"{offsets.broker_offset:>12} {_known(lag):>12}"
        )
        if owners is not None:
            row["owner"] = owners.get(queue)
            text += f"  {owners.get(queue, '-')}"
        say(row, text, as_json=as_json)
    if progress and not as_json:
        click.echo(f"{'lag in all':<84} {_known(progress.lag):>12}")
    if beyond := sum(each.consumer_offset > each.broker_offset for each in progress.values()):
        note = "is beyond the queue's end" if beyond == 1 else "are beyond the queues' ends"
        click.echo(
            f"{beyond} committed offset{'s'[: beyond != 1]} {note}: members go on at the end that a queue has when they "
            f"start; while none is online, `triomq offsets reset {group} TOPIC latest` sets it",
            err=True,
        )


# --- settings of groups ----------------------------------------------------------------------------------------------


async def _change_settings(client: Client, group: str, changes: Mapping[str, Any]) -> None:
    """Change settings set by set: settings that are not given stay as each set has them."""
    now = await client.groups.settings(group)
    done: list[str] = []
    failures: dict[str, MQError] = {}
    for name in sorted(await client.admin.broker_sets()):
        try:
            if name in now.unknown:
                # Settings created from the defaults could replace others.
                raise BrokerNotFound(
                    f"nothing was changed on broker {name}, whose settings of group {group} are unknown: {now.unknown[name]}"
                )
            changed = attrs.evolve(now.get(name, GroupSettings()), **changes)
            if changed != now.get(name):
                await client.groups.create(group, changed, brokers=[name])
            done.append(name)
        except MQError as error:
            failures[name] = error  # the other sets still get it
    if failures:
        raise with_places(next(iter(failures.values())), done, list(failures))


def _settings_of(group: str, name_servers: str, changes: dict[str, Any] | None, *, as_json: bool) -> None:
    """Show a group's settings; with `changes`, even empty ones, create it or change them first."""

    async def work(client: Client) -> None:
        if changes is not None:
            await _change_settings(client, group, changes)
        found = await client.groups.settings(group)
        if not found:
            await _check_known(client, group)
        if not as_json:
            click.echo(
                f"{'BROKER':<20} {'CONSUME':<7} {'BROADCAST':<9} {'RETRIES':>7} {'RETRY QUEUES':>12} {'IF SLOW':>7} NOTIFY"
            )
        for name, each in sorted(found.items()):
            row = {"group": group, "broker": name} | attrs.asdict(each)
            text = (
                f"{name:<20} {_yes(each.consume):<7} {_yes(each.broadcast):<9} {each.max_retries:>7} {each.retry_queues:>12} "
                f"{each.broker_when_slow:>7} {_yes(each.notify_members)}"
            )
            say(row, text, as_json=as_json)
        check_outage(found.unknown, incomplete="its settings are unknown")

    with_client(name_servers, work, route_wait_s=0)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _delete_group(group: str, name_servers: str, *, yes: bool, as_json: bool) -> None:
    async def check(client: Client) -> None:
        await _check_known(client, group)
        await client.groups.check_offline(group)

    async def work(client: Client) -> None:
        await check(client)
        await client.groups.delete(group, force=True)
        say({"deleted": group}, f"deleted {group}", as_json=as_json)

    if not yes:
        check_can_ask(f"deletes group {group} with its offsets")
        with_client(name_servers, check, route_wait_s=0)
        ask(f"Delete group {group} with its offsets and its retry topic?", "Nothing was deleted.")
    with_client(name_servers, work, route_wait_s=0)


# --- offsets ---------------------------------------------------------------------------------------------------------


@click.group()
def offsets() -> None:
    """Show or move the offsets of a consumer group."""


@offsets.command("show")
@click.argument("group")
@click.argument("topic", required=False)
@click.option("--owners", "with_owners", is_flag=True, help="Ask the members, too, which of them consumes which queue.")
@name_servers_option
@json_option
def show_offsets(group: str, topic: str | None, with_owners: bool, name_servers: str, as_json: bool) -> None:
    """Show the progress of GROUP in each queue, of all topics or of TOPIC."""

    async def work(client: Client) -> None:
        progress = await client.groups.progress(group, topic)
        check_answers(progress)
        if topic:
            # Asked about a topic, brokers answer with zeros for a group that they do not know.
            await _check_known(client, group)
        if not progress:
            what = f"group {group} has no offsets" + (f" in topic {topic}" if topic else "")
            raise click.ClickException(f"{what}; `triomq groups` lists groups")
        owners: Mapping[MessageQueue, str] | None = None
        if with_owners:
            try:
                owners = await client.groups.owners(group)
            except NotFound:
                owners = {}  # no member is online
        _show_progress(group, progress, owners, as_json=as_json)
        check_outage(progress.without_master, progress.refused)

    with_client(name_servers, work, route_wait_s=0)


@offsets.command("reset")
@click.argument("group")
@click.argument("topic")
@click.argument("to", metavar="earliest|latest|TIME|OFFSET")
@name_servers_option
@click.option("--queue", "queue", metavar="BROKER:QUEUE", help="Only this queue, with an OFFSET.")
@click.option("--force", is_flag=True, help="Set an OFFSET although members are online; they may overwrite it.")
@click.option("--new-group", is_flag=True, help="Also if no broker knows GROUP yet: set where its first start begins.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def reset_offsets(
    group: str,
    topic: str,
    to: str,
    name_servers: str,
    queue: str | None,
    force: bool,
    new_group: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move GROUP in TOPIC to its earliest or latest message, to a TIME, or to an OFFSET.

    Members that are online are notified and go there within about ten seconds; where none is, the brokers' offsets are
    set. TIME is 2026-11-21T12:00 or ms since 1970. An OFFSET can only be set while no member is online.
    """
    offset = int(to) if to.isdecimal() and int(to) < MS_FROM else None
    if queue is not None and offset is None:
        raise click.UsageError("--queue needs an OFFSET; a time, earliest and latest are for all queues of the topic")
    time_ms = _reset_time_ms(to) if offset is None else None
    only = queue_of(topic, queue) if queue else None

    async def check(client: Client) -> list[MessageQueue]:
        queues = await _queues(client, topic)
        if only is not None:
            queues = [checked_queue(only, queues)]
        # A wrong name would look like success.
        if not new_group and offset is None:
            await _check_known(client, group, "; give --new-group to set where its first start begins")
        return queues

    async def work(client: Client) -> None:
        queues = await check(client)
        if time_ms is not None:
            done = await client.groups.reset(group, topic, time_ms, new_group=new_group)
            moved = [(each.queue, each.offset, NOTIFIED if each.online else SET_OFFLINE) for each in done]
        else:
            assert offset is not None
            moved = await _set(client, group, dict.fromkeys(queues, offset), force=force)
        _say_reset(group, moved, as_json=as_json)

    if not yes:
        _ask_to_move(f"group {group} in topic {topic} to {to}", name_servers, check)
    with_client(name_servers, work)


@offsets.command("clone")
@click.argument("source")
@click.argument("target")
@click.argument("topic", required=False)
@name_servers_option
@click.option("--dry-run", is_flag=True, help="Show what would be set, and set nothing.")
@click.option(
    "--force", is_flag=True, help="Set offsets although members of TARGET are online; they may overwrite them."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def clone_offsets(
    source: str, target: str, topic: str | None, name_servers: str, dry_run: bool, force: bool, yes: bool, as_json: bool
) -> None:
    """Set group TARGET to where group SOURCE is, in all topics or in TOPIC.

    No member of TARGET may be online. The retry topic of SOURCE is left out.
    """

    async def check(client: Client) -> dict[MessageQueue, int]:
        found = await client.groups.offsets_to_clone(source, target, topic)
        if not found:
            await _check_known(client, source)
            if topic:
                raise click.ClickException(
                    f"group {source} has no offsets in topic {topic}; `triomq offsets show {source}` shows those of its topics"
                )
            raise click.ClickException(f"group {source} has no offsets to clone: it has never committed any")
        if not force and not dry_run:
            await client.groups.check_offline(target)
        return found

    async def work(client: Client) -> None:
        found = await check(client)
        if not dry_run:
            await client.groups.set_offsets(target, found, force=True)
        how = "would be set" if dry_run else SET
        if not as_json:
            click.echo(f"{'TOPIC':<32} {'BROKER':<20} {'QUEUE':>5} {'OFFSET':>12}  HOW")
        for queue, offset in found.items():
            row = {
                "group": target,
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "offset": offset,
                "how": how,
            }
            say(
                row,
                f"{queue.topic:<32} {queue.broker_name:<20} {queue.queue_id:>5} {offset:>12}  {how}",
                as_json=as_json,
            )

    if not yes and not dry_run:
        _ask_to_move(f"group {target} to where group {source} is", name_servers, check)
    with_client(name_servers, work)


def _reset_time_ms(to: str) -> int:
    special = {"earliest": 0, "latest": GroupAdmin.END}.get(to)
    return special if special is not None else time_of(to)


def _ask_to_move(what: str, name_servers: str, check: Callable[[Client], Awaitable[object]]) -> None:
    """Ask on the terminal, after a check that there are offsets to move."""

    async def look(client: Client) -> None:
        await check(client)

    check_can_ask(f"moves {what}")
    with_client(name_servers, look)
    ask(f"Move {what}?", "Nothing was moved.")


async def _set(
    client: Client, group: str, wanted: Mapping[MessageQueue, int], *, force: bool
) -> list[tuple[MessageQueue, int, str]]:
    if not force:
        await client.groups.check_offline(group)
    inside = {queue: await _inside(client.bounds, queue, offset) for queue, offset in wanted.items()}
    await client.groups.set_offsets(group, inside, force=True)
    # With --force it is not known whether members are online.
    return [(queue, offset, SET if force else SET_OFFLINE) for queue, offset in inside.items()]


async def _queues(client: Client, topic: str) -> list[MessageQueue]:
    route = await client.admin.route(topic)
    return [
        MessageQueue(topic, data.broker_name or "", number)
        for data in route.queue_datas or []
        for number in range(data.read_queue_nums)
    ]


async def _inside(bounds: QueueBounds, queue: MessageQueue, offset: int) -> int:
    low, high = await bounds.min_offset(queue), await bounds.max_offset(queue)
    if not low <= offset <= high:
        raise MQError(f"{queue} has no offset {offset}, only {low} to {high}")
    return offset


def _say_reset(group: str, moved: Iterable[tuple[MessageQueue, int, str]], *, as_json: bool) -> None:
    if not as_json:
        click.echo(f"{'BROKER':<20} {'QUEUE':>5} {'OFFSET':>12}  HOW")
    for queue, offset, how in moved:
        row = {
            "group": group,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": offset,
            "how": how,
        }
        say(row, f"{queue.broker_name:<20} {queue.queue_id:>5} {offset:>12}  {how}", as_json=as_json)
