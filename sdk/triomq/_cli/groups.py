"""``groups``: consumer groups, their members and lag, and their settings at the brokers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import attrs
import click

from triomq import Client, MQError
from triomq._cli.group_progress import check_answers, check_known, number_text, show_progress
from triomq._cli.options import ask, check_can_ask, check_outage, json_option, name_servers_option, say, with_client
from triomq._half_done import with_places
from triomq._tasks.side_by_side import side_by_side
from triomq.admin import ConsumerConnection, GroupAdmin, GroupProgress, GroupSettings
from triomq.errors import AccessRefused, BrokerNotFound
from triomq_protocol.codes import version_description
from triomq_protocol.names import RETRY_PREFIX

GROUPS_AT_ONCE = 64
"""The most groups that are queried at the same time."""


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
    silent: dict[str, str] = {}

    async def ask_names() -> None:
        found = await client.groups.names(silent=silent)
        refused.update(found.refused)
        names.extend(name for name in found if with_system or not GroupAdmin.is_system_group(name))

    async def ask_outage() -> None:
        outage.update(await client.admin.without_master(silent=silent))

    await side_by_side(ask_names, ask_outage)
    known: dict[str, tuple[GroupProgress, ConsumerConnection | None, int | None]] = {}
    hidden: list[MQError] = []

    async def ask_group(name: str) -> None:
        known[name] = await _look_at(client, name, silent, hidden)

    # A limited number at a time: each query may wait for a broker that does not answer.
    for begin in range(0, len(names), GROUPS_AT_ONCE):
        await side_by_side(*(functools.partial(ask_group, name) for name in names[begin : begin + GROUPS_AT_ONCE]))
    if not as_json:
        click.echo(f"{'GROUP':<32} {'MEMBERS':>7} {'LAG':>12} {'MODEL':<13} TOPICS")
    for name in names:
        progress = known[name][0]
        _print_group(name, *known[name], as_json=as_json)
        refused |= progress.refused
        outage = progress.without_master | outage  # a broker may have ended meanwhile
    check_outage(outage, refused)
    if hidden:
        raise hidden[0]


async def _look_at(
    client: Client, name: str, silent: dict[str, str], hidden: list[MQError]
) -> tuple[GroupProgress, ConsumerConnection | None, int | None]:
    """A group's progress, its members online, and their number, None if unknown; see `silent` of `progress`.

    Args:
        hidden: gets the reason why the members are unknown.
    """
    found: list[GroupProgress] = []
    online: ConsumerConnection | None = None
    members: int | None = None

    async def ask_progress() -> None:
        found.append(await client.groups.progress(name, silent=silent))

    async def ask_members() -> None:
        nonlocal online, members
        try:
            online = await client.groups.members(name, silent=silent)
            members = len(online.members) if online else 0
        except (BrokerNotFound, AccessRefused) as error:
            hidden.append(error)

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
    say(row, f"{name:<32} {number_text(members):>7} {number_text(lag):>12} {model:<13} {shown}", as_json=as_json)


async def _show_group(client: Client, group: str, *, as_json: bool) -> None:
    silent: dict[str, str] = {}
    progress = await client.groups.progress(group, silent=silent)
    check_answers(progress)
    online: ConsumerConnection | None = None
    hidden: AccessRefused | BrokerNotFound | None = None
    try:
        online = await client.groups.members(group, silent=silent)
    except (AccessRefused, BrokerNotFound) as error:
        hidden = error
    if online is None and hidden is None and not progress:
        await check_known(client, group, silent=silent)
    if online is not None:
        _show_members(group, online, as_json=as_json)
    elif not as_json:
        click.echo("members: unknown" if hidden is not None else "no member is online")
    show_progress(group, progress, as_json=as_json)
    check_outage(progress.without_master, progress.refused)
    if hidden is not None:
        raise hidden


def _show_members(group: str, online: ConsumerConnection, *, as_json: bool) -> None:
    for each in sorted(online.connection_set, key=lambda each: each.client_id or ""):
        row = {
            "group": group,
            "member": each.client_id,
            "address": each.client_addr,
            "language": each.language,
            "version": version_description(each.version),
            "type": online.consume_type,
            "model": online.message_model,
        }
        text = f"member {each.client_id}  {each.client_addr}  {each.language}  {online.consume_type} {online.message_model}"
        say(row, text, as_json=as_json)
    for topic, data in sorted(online.subscription_table.items()):
        row = {"group": group, "topic": topic, "expression": data.sub_string, "kind": data.expression_type}
        say(row, f"subscribes {topic}: {data.sub_string} ({data.expression_type})", as_json=as_json)


async def _change_settings(client: Client, group: str, changes: Mapping[str, Any]) -> None:
    """Change settings set by set: settings that are not given stay as each set has them."""
    now = await client.groups.settings(group)
    unknown = now.unknown | now.of_slaves  # a slave may lack the latest change
    done: list[str] = []
    failures: dict[str, MQError] = {}
    for name in sorted(await client.admin.broker_sets()):
        try:
            if name in unknown:
                # Settings created from the defaults could replace others.
                raise BrokerNotFound(
                    f"nothing was changed on broker {name}, whose settings of group {group} are unknown: {unknown[name]}"
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
            await check_known(client, group)
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
        missing = "its settings are unknown" + (", or as a slave has them" if found.of_slaves else "")
        check_outage(found.unknown | found.of_slaves, incomplete=missing)

    with_client(name_servers, work, route_wait_s=0)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _delete_group(group: str, name_servers: str, *, yes: bool, as_json: bool) -> None:
    async def check(client: Client) -> None:
        await check_known(client, group)
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
