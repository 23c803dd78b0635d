"""``offsets``: shows, moves and copies the offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

import click

from triomq import Client, MessageQueue, MQError, QueueBounds
from triomq._cli.group_progress import check_answers, check_known, show_progress
from triomq._cli.options import (
    ask,
    check_can_ask,
    check_outage,
    checked_queue,
    json_option,
    name_servers_option,
    offset_of,
    queue_of,
    say,
    time_of,
    with_client,
)
from triomq.admin import GroupAdmin
from triomq.errors import NotFound

NOTIFIED = "its members were notified"
SET = "set at its broker"
SET_OFFLINE = "set at its broker (no member is online)"


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
        silent: dict[str, str] = {}
        progress = await client.groups.progress(group, topic, silent=silent)
        check_answers(progress)
        if topic:
            # Asked about a topic, brokers answer with zeros for a group that they do not know.
            await check_known(client, group, silent=silent)
        if not progress:
            what = f"group {group} has no offsets" + (f" in topic {topic}" if topic else "")
            raise click.ClickException(f"{what}; `triomq groups` lists groups")
        owners: Mapping[MessageQueue, str] | None = None
        if with_owners:
            try:
                owners = await client.groups.owners(group, silent=silent)
            except NotFound:
                owners = {}  # no member is online
        show_progress(group, progress, owners, as_json=as_json)
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
    offset = offset_of(to)
    if queue is not None and offset is None:
        raise click.UsageError("--queue needs an OFFSET; a time, earliest and latest are for all queues of the topic")
    time_ms = _reset_time_ms(to) if offset is None else None
    only = queue_of(topic, queue) if queue is not None else None

    async def check(client: Client, silent: dict[str, str] | None = None) -> list[MessageQueue]:
        queues = await _queues(client, topic)
        if only is not None:
            queues = [checked_queue(only, queues)]
        # A wrong name would look like success.
        if not new_group and offset is None:
            await check_known(client, group, "; give --new-group to set where its first start begins", silent=silent)
        return queues

    async def work(client: Client) -> None:
        silent: dict[str, str] = {}
        queues = await check(client, silent)
        if time_ms is not None:
            done = await client.groups.reset(group, topic, time_ms, new_group=new_group, silent=silent)
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
            await check_known(client, source)
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
