"""Commands about the cluster's brokers and topics: ``topics`` and ``cluster-status``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import click
import trio
from click.core import ParameterSource

from triomq import Client
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
from triomq._tasks.side_by_side import side_by_side
from triomq.admin import TopicRouteData, TopicSettings, TopicTraffic
from triomq.errors import BrokerNotFound, MQError, ProtocolViolation, RouteNotFound
from triomq_protocol.flags import perm_text
from triomq_protocol.names import (
    DLQ_PREFIX,
    MASTER_ID,
    ORDER_TOPIC_CONFIG,
    RETRY_PREFIX,
    is_system_topic,
)

QUEUES = 8
"""The number of queues of a new topic, per broker."""

ROUTES_AT_ONCE = 16
"""The most queries for routes at one time."""

TOPICS_AT_ONCE = 16
"""The most topics whose traffic is queried at one time."""

ORDER_SETTING: Final = "orderMessageEnable"
"""A setting of name servers; without it a name server does not send an ordered topic's queues to clients."""


@attrs.frozen
class Wanted:
    """The wanted settings of a topic; None: unchanged.

    Args:
        queues: the number of queues per broker.
        perm: 4 read, 2 write, 6 both.
        order: whether producers use exactly its queues, including those of brokers that are down.
    """

    queues: int | None
    perm: int | None
    order: bool | None


def _queues_text(read: int, write: int) -> str:
    return str(read) if read == write else f"{read}/{write}"


@click.command()
@click.argument("topic", required=False)
@name_servers_option
@click.option("--create", is_flag=True, help="Create TOPIC, or change its number of queues.")
@click.option("--delete", is_flag=True, help="Delete TOPIC with its messages.")
@click.option(
    "--queues", type=click.IntRange(1), help=f"Queues per broker, with --create. Default: unchanged, or {QUEUES}."
)
@click.option("--perm", type=click.Choice(["2", "4", "6"]),
              help="Permission, with --create: 6 read and write, 4 read only, 2 write only. Default: unchanged, or 6.")  # fmt: skip
@click.option("--order/--no-order", default=None,
              help="With --create: producers use exactly these queues, also of brokers that are away. It has an effect only where name servers have orderMessageEnable=true.")  # fmt: skip
@click.option("--all", "with_system", is_flag=True, help="The system's own topics and retry topics, too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before messages become unreadable.")
@json_option
def topics(
    topic: str | None, name_servers: str, create: bool, delete: bool, queues: int | None, perm: str | None,
    order: bool | None, with_system: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """List all topics, or show, create or delete TOPIC.

    --create of a TOPIC that exists changes what is given, on every broker. --delete, and --create with fewer queues than
    TOPIC has, ask first.
    """
    if (create or delete) and not topic:
        raise click.UsageError("--create and --delete need a TOPIC")
    if create and delete:
        raise click.UsageError("give either --create or --delete")
    given = {"--queues": queues, "--perm": perm, "--order": order}
    if not create and any(value is not None for value in given.values()):
        name = next(name for name, value in given.items() if value is not None)
        raise click.UsageError(f"{name} belongs to --create; --delete deletes TOPIC with all of its queues")
    if topic is None:
        with_client(
            name_servers, lambda client: _list_topics(client, with_system=with_system, as_json=as_json), route_wait_s=0
        )
        return
    if delete:
        _delete(topic, name_servers, yes=yes, as_json=as_json)
        return
    if create:
        _create(topic, Wanted(queues, int(perm) if perm else None, order), name_servers, yes=yes)
    with_client(
        name_servers,
        lambda client: _show_topic(client, topic, as_json=as_json),
        # A topic that has just been created will soon be registered.
        route_wait_s=None if create else 0,
    )


# --- changes of topics ---------------------------------------------------------------------------------------------


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


def _create(topic: str, wanted: Wanted, name_servers: str, *, yes: bool) -> None:
    """Create a topic, or change it; asks first if some of its queues could no longer be read."""
    queues = wanted.queues
    without_answer: dict[str, str] = {}
    if not yes and queues is not None:
        existing = _settings_now(topic, name_servers, without_answer)
        fewer = any(each.read_queues > queues or each.write_queues > queues for each in existing.values())
        if fewer:
            change = f"topic {topic} ({_where(existing)}) to {queues} queues per broker"
            check_can_ask(f"reduces {change}; messages in the others can no longer be read")
            ask(f"Reduce {change}? Messages in the others can no longer be read.", "Nothing was changed.")

    async def work(client: Client) -> None:
        brokers = None
        if without_answer:  # those would take as long again
            registered = (await client.admin.cluster_info()).broker_addr_table or {}
            brokers = sorted(registered.keys() - without_answer.keys()) or None
        await client.admin.create_topic(topic, queues=queues, perm=wanted.perm, brokers=brokers)
        if brokers:
            there = f"topic {topic} is on {', '.join(brokers)} now, and not on the others; create it again then"
            check_outage(without_answer, incomplete=there)
        if wanted.order is not None:
            await _set_order(client, topic, wanted, name_servers)

    with_client(name_servers, work, route_wait_s=0)


async def _set_order(client: Client, topic: str, wanted: Wanted, name_servers: str) -> None:
    """Record at the name servers which queues an ordered topic has, or that it is not ordered."""
    if not wanted.order:
        await client.servers.kv_delete(ORDER_TOPIC_CONFIG, topic)
        return
    try:
        existing = _settings(await client.admin.route(topic))
    except RouteNotFound:
        click.echo(f"Warning: no name server knows topic {topic} yet: give --order once more in a moment", err=True)
        return
    # The brokers register the change a moment later, so the wanted settings are used here.
    parts = [f"{name}:{wanted.queues or each.write_queues}" for name, each in sorted(existing.items())]
    await client.servers.kv_put(ORDER_TOPIC_CONFIG, topic, ";".join(parts))
    given = click.get_current_context().get_parameter_source("name_servers") is ParameterSource.COMMANDLINE
    cure = f"triomq name-servers set {ORDER_SETTING}=true --yes" + (f" -n {shlex.quote(name_servers)}" if given else "")
    try:
        warning = order_warning(await client.servers.name_server_config(), cure)
    except MQError as error:
        warning = (
            f"whether name servers have {ORDER_SETTING}=true, without which --order has no effect, is unknown: {error}"
        )
    if warning is not None:
        click.echo(f"Warning: {warning}", err=True)


def order_warning(settings: Mapping[str, Mapping[str, str]], cure: str) -> str | None:
    """The warning to print if --order has no effect; None if it has one.

    Args:
        settings: name server -> its settings.
        cure: the command that changes that.
    """
    off = [address for address, there in settings.items() if there.get(ORDER_SETTING, "").lower() != "true"]
    if not off:
        return None
    return (
        f"--order has no effect as long as {ORDER_SETTING} is not true at name server {', '.join(off)}: producers use the "
        f"queues of the brokers that are there, and a key may move to another queue when a broker comes or goes (`{cure}`)"
    )


def _settings_now(
    topic: str, name_servers: str, without_answer: dict[str, str] | None = None
) -> Mapping[str, TopicSettings]:
    """A topic's settings by broker set; empty if no name server knows it.

    With `without_answer` the masters are asked too, and those that do not answer are added to it, with the reason.
    """
    found: dict[str, TopicSettings] = {}

    async def look(client: Client) -> None:
        try:
            found.update(_settings(await client.admin.route(topic)))
        except BrokerNotFound:
            raise  # an outage: it is not known whether the topic exists
        except RouteNotFound:
            pass
        except ProtocolViolation:  # it has too many queues for clients, and can be deleted or changed nevertheless
            found.update(await client.admin.topic_settings(topic))
        if without_answer is not None:

            async def look_at_masters() -> None:
                found.update(await client.admin.topic_settings(topic))

            async def look_for_outage() -> None:
                with suppress(BrokerNotFound):  # the change fails, too
                    without_answer.update(await client.admin.without_master())

            await side_by_side(look_at_masters, look_for_outage)

    with_client(name_servers, look, route_wait_s=0)
    return found


def _settings(route: TopicRouteData) -> dict[str, TopicSettings]:
    return {
        data.broker_name or "": TopicSettings(data.read_queue_nums, data.write_queue_nums, data.perm)
        for data in route.queue_datas or []
    }


def _where(settings: Mapping[str, TopicSettings]) -> str:
    return ", ".join(
        f"{_queues_text(each.read_queues, each.write_queues)} queues {perm_text(each.perm)} on {name}"
        for name, each in sorted(settings.items())
    )


# --- commands that show topics -------------------------------------------------------------------------------------


async def _list_topics(client: Client, *, with_system: bool, as_json: bool) -> None:
    names = await client.admin.topics()
    if not with_system:
        info = await client.admin.cluster_info()
        # Brokers create a topic with the name of each cluster and each broker set.
        of_servers = {*(info.broker_addr_table or {}), *(info.cluster_addr_table or {})}
        names = [
            name for name in names if not (is_system_topic(name) or name in of_servers or name.startswith(RETRY_PREFIX))
        ]
    found: dict[str, dict[str, TopicSettings]] = {}
    limit = trio.CapacityLimiter(ROUTES_AT_ONCE)

    async def look(name: str) -> None:
        async with limit:
            try:
                found[name] = _settings(await client.admin.route(name))
            except RouteNotFound:
                found[name] = {}  # deleted since the list was created

    await side_by_side(*(partial(look, name) for name in names))
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
    check_outage(stats.without_master, stats.refused, incomplete=AS_A_SLAVE)


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


@click.command()
@click.argument("topic", required=False)
@name_servers_option
@click.option("--active", is_flag=True, help="Only topics into which messages came within the last day.")
@json_option
def traffic(topic: str | None, name_servers: str, active: bool, as_json: bool) -> None:
    """Show how many messages come into TOPIC, or into all topics, and how many each group takes.

    Brokers sum up by the minute: the first figures come a minute or two after the first message.
    """

    outage: dict[str, str] = {}
    silent: dict[str, str] = {}
    failures: list[BrokerNotFound] = []

    def show(found: Iterable[TopicTraffic]) -> None:
        for each in found:
            outage.update(each.without_master)
            if each.in_day or not active:
                row = attrs.asdict(each, filter=lambda field, _: field.name != "without_master")
                say(row, _traffic_line(each), as_json=as_json)

    async def work(client: Client) -> None:
        names = [] if topic else await _users_topics(client)
        if not as_json:
            click.echo(
                f"{'TOPIC':<32} {'GROUP':<32} {'LAG':>12} {'IN/S':>10} {'OUT/S':>10} {'IN/DAY':>12} {'OUT/DAY':>12}"
            )
        if topic:
            show(await client.groups.traffic(topic))
        for begin in range(0, len(names), TOPICS_AT_ONCE):
            await _traffic_of(client, names[begin : begin + TOPICS_AT_ONCE], show, silent, failures)
        if not topic:
            outage.update(await client.admin.without_master(silent=silent))
        check_outage(outage, incomplete="its messages are not counted, or its part of the lag is unknown")
        if failures:
            raise failures[0]

    with_client(name_servers, work, route_wait_s=0)


async def _traffic_of(
    client: Client,
    names: Sequence[str],
    show: Callable[[Iterable[TopicTraffic]], None],
    silent: dict[str, str],
    failures: list[BrokerNotFound],
) -> None:
    """Show the traffic of several topics; adds the brokers that do not answer, which are not asked again, to `silent`, and
    the errors of topics that only such brokers have to `failures`."""
    found: dict[str, list[TopicTraffic]] = {}

    async def ask_topic(name: str) -> None:
        try:
            found[name] = await client.groups.traffic(name, silent=silent)
        except BrokerNotFound as error:
            failures.append(error)
        except RouteNotFound:
            pass  # it has been deleted meanwhile

    try:
        await side_by_side(*(partial(ask_topic, name) for name in names))
    finally:
        show([each for name in names for each in found.get(name, ())])


async def _users_topics(client: Client) -> list[str]:
    return [name for name in await client.admin.topics() if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]


def _traffic_line(traffic: TopicTraffic) -> str:
    lag = "unknown" if traffic.lag is None else traffic.lag
    return (
        f"{traffic.topic:<32} {traffic.group or '-':<32} {lag:>12} {traffic.in_per_s:>10.2f} "
        f"{traffic.out_per_s:>10.2f} {traffic.in_day:>12} {traffic.out_day:>12}"
    )
