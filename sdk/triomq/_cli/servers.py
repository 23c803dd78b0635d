"""Commands about brokers and name servers: ``brokers`` and ``kv``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, cast

import click

from triomq import Client
from triomq._cli.options import ask, check_can_ask, json_option, name_servers_option, progress_row, say, with_client
from triomq_protocol.codes import version_description

_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.group()
def brokers() -> None:
    """Show brokers and change their settings.

    BROKER is NAME (the master of a set), NAME:ID or HOST:PORT, as `triomq cluster-status` shows them.
    """


@brokers.command("status")
@click.argument("broker")
@name_servers_option
@json_option
def status(broker: str, name_servers: str, as_json: bool) -> None:
    """Show the version, traffic and disk use that BROKER reports."""

    async def work(client: Client) -> None:
        _say_table(await client.servers.status(broker), as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@brokers.command("config")
@click.argument("broker")
@click.argument("keys", nargs=-1)
@name_servers_option
@json_option
def config(broker: str, keys: tuple[str, ...], name_servers: str, as_json: bool) -> None:
    """Show the settings of BROKER, or only those called KEYS."""

    async def work(client: Client) -> None:
        found = await client.servers.config(broker)
        unknown = [key for key in keys if key not in found]
        if unknown:
            raise click.ClickException(f"broker {broker} has no setting {', '.join(unknown)}")
        _say_table({key: found[key] for key in keys or found}, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@brokers.command("set")
@click.argument("broker")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@_yes_option
@name_servers_option
@json_option
def set_config(broker: str, settings: tuple[str, ...], yes: bool, name_servers: str, as_json: bool) -> None:
    """Change settings of BROKER while it runs; it keeps them in its file.

    A name that the broker does not have is an error, and nothing is changed then.
    """
    wanted = _settings_in(settings)
    _ask_first(f"sets {', '.join(settings)} at broker {broker}", yes=yes)

    async def work(client: Client) -> None:
        changed = await client.servers.set_config(broker, wanted)
        if not as_json and not changed:
            click.echo("the broker has these values already")
        elif changed:
            _say_table(changed, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@brokers.command("clean")
@click.argument("broker")
@click.argument("what", type=click.Choice(["queues", "topics", "log"]))
@_yes_option
@name_servers_option
@json_option
def clean(broker: str, what: str, yes: bool, name_servers: str, as_json: bool) -> None:
    """Have BROKER delete what it no longer needs, now.

    queues: consume queues of messages that have been deleted; topics: topics that nobody uses; log: expired log files.
    """
    _ask_first(f"has broker {broker} delete {what}", yes=yes)

    async def work(client: Client) -> None:
        await client.servers.clean(broker, cast("Literal['queues', 'topics', 'log']", what))
        say({"broker": broker, "cleaned": what}, f"broker {broker} cleans its {what}", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@brokers.command("producers")
@click.argument("broker")
@name_servers_option
@json_option
def producers(broker: str, name_servers: str, as_json: bool) -> None:
    """List the producers that are connected to BROKER."""

    async def work(client: Client) -> None:
        found = (await client.servers.producers(broker)).data
        if not any(found.values()) and not as_json:
            click.echo(f"no producer is connected to {broker}", err=True)
        for group, clients in sorted(found.items()):
            for each in clients:
                row = {
                    "group": group,
                    "client": each.client_id,
                    "address": each.remote_ip,
                    "language": each.language,
                    "version": version_description(each.version),
                    "updated_ms": each.last_update_timestamp,
                }
                say(row, f"{group:<32} {each.client_id:<40} {each.remote_ip}  {each.language}", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@brokers.command("consume-stats")
@click.argument("broker")
@click.option("--ordered", is_flag=True, help="Only topics with the setting `order`.")
@click.option(
    "--lag", "least", type=click.IntRange(0), default=0, show_default=True, help="Only queues with this lag or more."
)
@name_servers_option
@json_option
def consume_stats(broker: str, ordered: bool, least: int, name_servers: str, as_json: bool) -> None:
    """Show the progress of each group of BROKER, queue by queue."""

    async def work(client: Client) -> None:
        found = await client.servers.consume_stats(broker, ordered=ordered)
        if not as_json:
            click.echo(f"{'GROUP':<32} {'TOPIC':<32} {'QUEUE':>5} {'COMMITTED':>12} {'END':>12} {'LAG':>12}")
        total = 0
        for group, table in found.items():
            for queue, offsets in table.items():
                lag = offsets.broker_offset - offsets.consumer_offset
                total += lag
                if lag < least:
                    continue
                text = (
                    f"{group:<32} {queue.topic:<32} {queue.queue_id:>5} {offsets.consumer_offset:>12} "
                    f"{offsets.broker_offset:>12} {lag:>12}"
                )
                say(progress_row(group, queue, offsets, lag), text, as_json=as_json)
        if not as_json:
            click.echo(f"lag in all: {total}")

    with_client(name_servers, work, route_wait_s=0)


@brokers.command("write-permission")
@click.argument("name")
@click.argument("state", type=click.Choice(["on", "off"]))
@_yes_option
@name_servers_option
@json_option
def write_permission(name: str, state: str, yes: bool, name_servers: str, as_json: bool) -> None:
    """Remove the write permission of the topics of broker set NAME from the routes (off), or restore it (on).

    With off, producers send elsewhere within 30 s, and consumers read what there is: so a set is emptied before its
    maintenance.
    """
    _ask_first(f"turns the write permission of broker set {name} {state}", yes=yes)

    async def work(client: Client) -> None:
        for address, count in (await client.servers.set_write_permission(name, allowed=state == "on")).items():
            row = {"name_server": address, "broker": name, "state": state, "topics": count}
            say(row, f"{count} topics of {name} at name server {address}: {state}", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@click.group("name-servers")
def name_servers_command() -> None:
    """Show and change settings of name servers: of all, or of those given as --only HOST:PORT."""


_only_option = click.option(
    "--only", metavar="HOST:PORT", multiple=True, help="Only this name server; may be repeated. Default: all of -n."
)


@name_servers_command.command("config")
@click.argument("keys", nargs=-1)
@_only_option
@name_servers_option
@json_option
def name_server_config(keys: tuple[str, ...], only: tuple[str, ...], name_servers: str, as_json: bool) -> None:
    """Show the settings of the name servers, or only those called KEYS."""

    async def work(client: Client) -> None:
        for address, found in (await client.servers.name_server_config(name_servers=only or None)).items():
            unknown = [key for key in keys if key not in found]
            if unknown:
                raise click.ClickException(f"name server {address} has no setting {', '.join(unknown)}")
            _say_settings(address, {key: found[key] for key in keys or found}, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@name_servers_command.command("set")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@_only_option
@_yes_option
@name_servers_option
@json_option
def set_name_server_config(
    settings: tuple[str, ...], only: tuple[str, ...], yes: bool, name_servers: str, as_json: bool
) -> None:
    """Change settings of the name servers while they run; they keep them in their files.

    A name that a name server does not have is an error, and nothing is changed then.
    """
    wanted = _settings_in(settings)
    _ask_first(f"sets {', '.join(settings)} at {', '.join(only) or 'all name servers'}", yes=yes)

    async def work(client: Client) -> None:
        done = await client.servers.set_name_server_config(wanted, name_servers=only or None)
        for address, changed in done.items():
            if not as_json and not changed:
                click.echo(f"{address}: has these values already")
            _say_settings(address, changed, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@click.group()
def kv() -> None:
    """Show and change key-value pairs of the name servers, such as ORDER_TOPIC_CONFIG."""


@kv.command("get")
@click.argument("namespace")
@click.argument("key", required=False)
@name_servers_option
@json_option
def kv_get(namespace: str, key: str | None, name_servers: str, as_json: bool) -> None:
    """Show the value of KEY, or all pairs of NAMESPACE."""

    async def work(client: Client) -> None:
        if key is None:
            table = await client.servers.kv_list(namespace)
            if not table and not as_json:
                click.echo(f"namespace {namespace} has no keys", err=True)
            _say_table(table, as_json=as_json)
            return
        _say_table({key: await client.servers.kv_get(namespace, key)}, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@kv.command("put")
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
@name_servers_option
@json_option
def kv_put(namespace: str, key: str, value: str, name_servers: str, as_json: bool) -> None:
    """Set KEY at every name server."""

    async def work(client: Client) -> None:
        await client.servers.kv_put(namespace, key, value)
        _say_table({key: value}, as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@kv.command("delete")
@click.argument("namespace")
@click.argument("key")
@_yes_option
@name_servers_option
@json_option
def kv_delete(namespace: str, key: str, yes: bool, name_servers: str, as_json: bool) -> None:
    """Delete KEY at every name server."""
    _ask_first(f"deletes key {key} of namespace {namespace}", yes=yes)

    async def work(client: Client) -> None:
        await client.servers.kv_delete(namespace, key)
        say({"deleted": key}, f"deleted {key}", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


def _settings_in(settings: Iterable[str]) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"{text!r} is not KEY=VALUE")
        wanted[key] = value
    return wanted


def _say_settings(address: str, table: Mapping[str, str], *, as_json: bool) -> None:
    for key, value in sorted(table.items()):
        say({"name_server": address, "key": key, "value": value}, f"{address}: {key}={value}", as_json=as_json)


def _ask_first(what: str, *, yes: bool) -> None:
    if not yes:
        check_can_ask(what)
        ask(f"This {what}. Go on?", "Nothing was changed.")


def _say_table(table: dict[str, str], *, as_json: bool) -> None:
    for key, value in sorted(table.items()):
        say({"key": key, "value": value}, f"{key}={value}", as_json=as_json)
