"""Commands about the cluster's brokers and topics: ``topics`` and ``cluster-status``."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import click
import trio

from triomq import Client, TopicRouteData
from triomq._cli.options import (
    AS_A_SLAVE,
    ask,
    check_can_ask,
    check_contests,
    check_outage,
    json_option,
    name_servers_option,
    say,
    with_client,
)
from triomq.errors import RouteNotFound
from triomq_protocol.flags import perm_text
from triomq_protocol.names import MASTER_ID, REPLY_TOPIC_SUFFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

ROUTES_AT_ONCE = 16
"""Questions for routes that are under way at one time."""


@attrs.frozen
class TopicSettings:
    """A topic on one broker set, as its route says."""

    read_queues: int
    write_queues: int
    perm: int

    def __str__(self) -> str:
        return f"{_queues_text(self.read_queues, self.write_queues)} queues {perm_text(self.perm)}"


def _queues_text(read: int, write: int) -> str:
    return str(read) if read == write else f"{read}/{write}"


@click.command()
@click.argument("topic", required=False)
@name_servers_option
@click.option("--create", is_flag=True, help="Create TOPIC, or change its number of queues.")
@click.option("--delete", is_flag=True, help="Delete TOPIC with its messages.")
@click.option(
    "--queues", type=click.IntRange(1), default=8, show_default=True, help="Queues per broker, with --create."
)
@click.option("--all", "with_system", is_flag=True, help="The system's own topics and retry topics, too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before messages become unreadable.")
@json_option
def topics(
    topic: str | None, name_servers: str, create: bool, delete: bool, queues: int, with_system: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """List all topics, or show, create or delete TOPIC.

    --delete, and --create with fewer queues than TOPIC has, ask first.
    """
    if (create or delete) and not topic:
        raise click.UsageError("--create and --delete need a TOPIC")
    if create and delete:
        raise click.UsageError("give either --create or --delete")
    if delete and click.get_current_context().get_parameter_source("queues") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--queues belongs to --create; --delete deletes TOPIC with all of its queues")
    if topic is None:
        with_client(
            name_servers, lambda client: _list_topics(client, with_system=with_system, as_json=as_json), route_wait_s=0
        )
        return
    if delete:
        _delete(topic, name_servers, yes=yes, as_json=as_json)
        return
    if create:
        _create(topic, queues, name_servers, yes=yes)
    with_client(
        name_servers,
        lambda client: _show_topic(client, topic, as_json=as_json),
        # A topic that has just been created is about to be announced.
        route_wait_s=None if create else 0,
    )


# --- what changes topics -------------------------------------------------------------------------------------------


def _delete(topic: str, name_servers: str, *, yes: bool, as_json: bool) -> None:
    if not yes:
        check_can_ask(f"deletes topic {topic} and its messages")
    existing = _settings_now(topic, name_servers)
    if not existing:
        raise click.ClickException(f"there is no topic {topic}; `triomq topics` lists topics")
    if not yes:
        ask(f"Delete topic {topic} and its messages ({_where(existing)})?", "Nothing was deleted.")

    async def work(client: Client) -> None:
        await client.admin.delete_topic(topic)
        say({"deleted": topic}, f"deleted {topic}", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


def _create(topic: str, queues: int, name_servers: str, *, yes: bool) -> None:
    """Create a topic. One that has more queues somewhere is changed after a question: those can no longer be read."""
    existing = _settings_now(topic, name_servers)
    if not yes and any(each.read_queues > queues or each.write_queues > queues for each in existing.values()):
        change = f"topic {topic} ({_where(existing)}) to {queues} queues per broker"
        check_can_ask(f"reduces {change}; messages in the others can no longer be read")
        ask(f"Reduce {change}? Messages in the others can no longer be read.", "Nothing was changed.")

    async def work(client: Client) -> None:
        await client.admin.create_topic(topic, queues=queues)

    with_client(name_servers, work, route_wait_s=0)


def _settings_now(topic: str, name_servers: str) -> Mapping[str, TopicSettings]:
    """A topic's settings by broker set; empty when no name server knows it."""
    found: dict[str, TopicSettings] = {}

    async def look(client: Client) -> None:
        try:
            found.update(_settings(await client.admin.route(topic)))
        except RouteNotFound:
            pass

    with_client(name_servers, look, route_wait_s=0)
    return found


def _settings(route: TopicRouteData) -> dict[str, TopicSettings]:
    return {
        data.broker_name or "": TopicSettings(data.read_queue_nums, data.write_queue_nums, data.perm)
        for data in route.queue_datas or []
    }


def _where(settings: Mapping[str, TopicSettings]) -> str:
    return ", ".join(f"{each} on {name}" for name, each in sorted(settings.items()))


# --- what shows them -----------------------------------------------------------------------------------------------


async def _list_topics(client: Client, *, with_system: bool, as_json: bool) -> None:
    names = await client.admin.topics()
    if not with_system:
        info = await client.admin.cluster_info()
        # Brokers create a topic with the name of each cluster and each broker set.
        system = {*SYSTEM_TOPICS, *(info.broker_addr_table or {}), *(info.cluster_addr_table or {})}
        names = [name for name in names if name not in system and not _is_internal(name)]
    found: dict[str, dict[str, TopicSettings]] = {}
    limit = trio.CapacityLimiter(ROUTES_AT_ONCE)

    async def look(name: str) -> None:
        async with limit:
            try:
                found[name] = _settings(await client.admin.route(name))
            except RouteNotFound:
                found[name] = {}  # deleted since the list was made

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(look, name)
    width = max([*map(len, names), 5])
    if not as_json:
        click.echo(f"{'TOPIC':<{width}}  {'QUEUES':>7}  PERM  BROKERS")
    for name in names:
        brokers = found[name]
        perms = sorted({perm_text(each.perm) for each in brokers.values()})
        read = sum(each.read_queues for each in brokers.values())
        write = sum(each.write_queues for each in brokers.values())
        row = {"topic": name, "read_queues": read, "write_queues": write, "perm": perms, "brokers": sorted(brokers)}
        text = f"{name:<{width}}  {_queues_text(read, write):>7}  {','.join(perms):<4}  {' '.join(sorted(brokers))}"
        say(row, text.rstrip(), as_json=as_json)
    check_outage(await client.admin.without_master(), incomplete=AS_A_SLAVE)


def _is_internal(topic: str) -> bool:
    return topic.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX)) or topic.endswith(REPLY_TOPIC_SUFFIX)


async def _show_topic(client: Client, topic: str, *, as_json: bool) -> None:
    settings = _settings(await client.admin.route(topic))
    stats = await client.admin.topic_stats(topic)
    if not as_json:
        click.echo(f"{'BROKER':<20} {'QUEUE':>5} {'FIRST':>12} {'END':>12}  PERM")
    for queue, bounds in sorted(stats.offset_table.items()):
        known = settings.get(queue.broker_name)
        perm = perm_text(known.perm) if known is not None else ""
        row = {
            "topic": topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "min_offset": bounds.min_offset,
            "max_offset": bounds.max_offset,
            "updated_ms": bounds.last_update_timestamp,
            "perm": perm,
        }
        ends = f"{bounds.min_offset:>12} {bounds.max_offset:>12}"
        say(row, f"{queue.broker_name:<20} {queue.queue_id:>5} {ends}  {perm}", as_json=as_json)
    check_outage(stats.without_master, incomplete=AS_A_SLAVE)


# --- brokers -------------------------------------------------------------------------------------------------------


@click.command("cluster-status")
@name_servers_option
@json_option
def cluster_status(name_servers: str, as_json: bool) -> None:
    """Show clusters, brokers and their addresses."""

    async def work(client: Client) -> None:
        info = await client.admin.cluster_info()
        brokers = info.broker_addr_table or {}
        for cluster, names in sorted((info.cluster_addr_table or {}).items()):
            for name in sorted(names):
                addresses = brokers[name].broker_addrs or {} if name in brokers else {}
                for broker_id, address in sorted(addresses.items()):
                    row = {"cluster": cluster, "broker": name, "id": broker_id, "address": address}
                    role = "master" if broker_id == MASTER_ID else "slave"
                    say(row, f"{cluster:<20} {name:<20} {broker_id:>3} {role:<6} {address}", as_json=as_json)
        check_outage(await client.admin.without_master(), incomplete="", lists_brokers=True)
        check_contests(await client.admin.contested_ids())

    with_client(name_servers, work, route_wait_s=0)
