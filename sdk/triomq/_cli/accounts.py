"""Commands about access control: ``accounts``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from contextlib import suppress

import attrs
import click

from triomq import Client, MQError
from triomq._cli.options import ask, check_can_ask, json_option, moment, name_servers_option, say, with_client
from triomq._tasks.side_by_side import side_by_side
from triomq.admin import Account, AccountFile

_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
_brokers_option = click.option(
    "--broker", "brokers", metavar="BROKER", multiple=True,
    help="Only this broker: NAME (the master of a set), NAME:ID or HOST:PORT; may be repeated. Default: all that are "
    "registered, slaves too.",
)  # fmt: skip
_PERMISSION = click.Choice(["DENY", "PUB", "SUB", "PUB|SUB"])


@click.group()
def accounts() -> None:
    """Show and change the accounts of brokers with access control (aclEnable=true).

    Sign with an account that has admin=true.
    """


@accounts.command("list")
@click.argument("broker")
@click.option("--secrets", is_flag=True, help="Show the secrets, too.")
@name_servers_option
@json_option
def list_accounts(broker: str, secrets: bool, name_servers: str, as_json: bool) -> None:
    """Show the accounts and the global white list of BROKER: NAME (the master of a set), NAME:ID or HOST:PORT."""

    async def work(client: Client) -> None:
        found = await client.accounts.list(broker)
        for each in found.accounts:
            _say_account(each, secrets=secrets, as_json=as_json)
        for address in found.white_addresses:
            say({"white_address": address}, f"no signature is needed from {address}", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@accounts.command("set")
@click.argument("account_key", metavar="ACCESS_KEY")
@click.option(
    "--secret-file", metavar="FILE",
    help="The account's secret, the first line of FILE (-: standard input). Default: ask for it on the terminal.",
)  # fmt: skip
@click.option("--admin/--no-admin", default=False, help="Whether it may send operators' requests. Default: no.")
@click.option("--white-address", metavar="ADDRESS", help="Requests from there need no signature of this account.")
@click.option("--default-topic-perm", type=_PERMISSION, help="For topics without --topic.")
@click.option("--default-group-perm", type=_PERMISSION, help="For groups without --group.")
@click.option("--topic", "topics", metavar="NAME=PERM", multiple=True, help="For one topic; may be repeated.")
@click.option("--group", "groups", metavar="NAME=PERM", multiple=True, help="For one group; may be repeated.")
@_brokers_option
@_yes_option
@name_servers_option
@json_option
def set_account(
    account_key: str,
    secret_file: str | None,
    admin: bool,
    white_address: str | None,
    default_topic_perm: str | None,
    default_group_perm: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    brokers: tuple[str, ...],
    yes: bool,
    name_servers: str,
    as_json: bool,
) -> None:
    """Add account ACCESS_KEY, or change it where it exists.

    Permissions that are not given stay as they are. PERM is DENY, PUB, SUB or PUB|SUB.
    """
    topic_perms, group_perms = _permissions(topics), _permissions(groups)
    if not yes or secret_file is None:
        check_can_ask(f"changes account {account_key}" + (" and needs its secret (--secret-file)" * (not secret_file)))
    account = Account(
        access_key=account_key,
        secret_key=_secret(secret_file),
        admin=admin,
        white_address=white_address,
        default_topic_perm=default_topic_perm,
        default_group_perm=default_group_perm,
        topic_perms=topic_perms,
        group_perms=group_perms,
    )
    if not yes:
        ask(f"Set account {account_key} at {_places(brokers)}?", "Nothing was changed.")

    async def work(client: Client) -> None:
        done = await client.accounts.put(account, brokers=brokers or None)
        _say_done(done, f"account {account_key} is set", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@accounts.command("delete")
@click.argument("account_key", metavar="ACCESS_KEY")
@_brokers_option
@_yes_option
@name_servers_option
@json_option
def delete_account(account_key: str, brokers: tuple[str, ...], yes: bool, name_servers: str, as_json: bool) -> None:
    """Delete account ACCESS_KEY: requests that it signs are refused from then on."""
    if not yes:
        check_can_ask(f"deletes account {account_key}")
        ask(f"Delete account {account_key} at {_places(brokers)}?", "Nothing was deleted.")
        only: list[str] = []

        async def look(client: Client) -> None:
            only.extend(await _where_only_operator(client, account_key, brokers))

        with_client(name_servers, look, route_wait_s=0)
        if only:
            ask(
                f"{account_key} is the only operator's account at {', '.join(only)}, where then nobody can change accounts "
                "any more but in the file. Delete it all the same?",
                "Nothing was deleted.",
            )

    async def work(client: Client) -> None:
        done = await client.accounts.delete(account_key, brokers=brokers or None)
        _say_done(done, f"account {account_key} is deleted", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@accounts.command("white-list")
@click.argument("addresses", metavar="[ADDRESS...]", nargs=-1)
@click.option("--path", metavar="FILE", help="The file, on the brokers' machines. Default: plain_acl.yml.")
@_brokers_option
@_yes_option
@name_servers_option
@json_option
def white_list(
    addresses: tuple[str, ...], path: str | None, brokers: tuple[str, ...], yes: bool, name_servers: str, as_json: bool
) -> None:
    """Replace the global white list by ADDRESSES, or empty it: requests from there need no signature at all.

    ADDRESS is like 10.1.2.3, 10.1.*.* or 10.1.2.{3,4}. `triomq accounts list` shows the list that there is.
    """
    what = f"the global white list by {', '.join(addresses)}" if addresses else "the global white list by an empty one"
    if not yes:
        check_can_ask(f"replaces {what}")
        ask(f"Replace {what} at {_places(brokers)}?", "Nothing was changed.")

    async def work(client: Client) -> None:
        done = await client.accounts.set_white_list(addresses, brokers=brokers or None, path=path)
        _say_done(done, "the global white list is set", as_json=as_json)

    with_client(name_servers, work, route_wait_s=0)


@accounts.command("versions")
@_brokers_option
@name_servers_option
@json_option
def versions(brokers: tuple[str, ...], name_servers: str, as_json: bool) -> None:
    """Show the versions of the brokers' access control files."""

    async def work(client: Client) -> None:
        sets = {} if brokers else await client.admin.broker_sets()
        wanted = list(dict.fromkeys(brokers)) or [
            address for _, addresses in sorted(sets.items()) for address in addresses.values()
        ]
        if not wanted:
            await client.accounts.versions()  # raises if no broker is registered
        found: dict[str, Sequence[AccountFile]] = {}
        failures: dict[str, MQError] = {}

        async def ask_broker(broker: str) -> None:
            try:
                found[broker] = await client.accounts.versions(brokers=[broker])
            except MQError as error:
                failures[broker] = error

        # A broker without access control never answers, and must not delay the others.
        await side_by_side(*(functools.partial(ask_broker, broker) for broker in wanted))
        for each in (each for broker in wanted for each in found.get(broker, ())):
            text = f"{each.broker:<20} {each.address:<21} {each.path}: {each.changes} changes"
            text += f", the last at {moment(each.changed_ms)}" if each.changed_ms else ""
            say(attrs.asdict(each), text, as_json=as_json)
        if failures:
            lacking = [broker for broker in wanted if broker in failures]
            failures[lacking[0]].add_note(f"Not known of {', '.join(lacking)}.")
            raise failures[lacking[0]]

    with_client(name_servers, work, route_wait_s=0)


async def _where_only_operator(client: Client, account_key: str, brokers: Sequence[str]) -> list[str]:
    """The brokers on which this is the only account with admin; those that do not answer are left out."""
    sets = {} if brokers else await client.admin.broker_sets()
    wanted = brokers or [address for _, addresses in sorted(sets.items()) for address in addresses.values()]
    operators: dict[str, list[str]] = {}

    async def ask_broker(broker: str) -> None:
        with suppress(MQError):  # the deletion reports the error
            found = await client.accounts.list(broker)
            operators[broker] = [each.access_key for each in found.accounts if each.admin]

    await side_by_side(*(functools.partial(ask_broker, broker) for broker in wanted))
    return [broker for broker in wanted if operators.get(broker) == [account_key]]


def _say_account(account: Account, *, secrets: bool, as_json: bool) -> None:
    row: dict[str, object] = {
        "access_key": account.access_key,
        "admin": account.admin,
        "white_address": account.white_address,
        "default_topic_perm": account.default_topic_perm,
        "default_group_perm": account.default_group_perm,
        "topic_perms": dict(account.topic_perms or {}),
        "group_perms": dict(account.group_perms or {}),
    }
    if secrets:
        row["secret_key"] = account.secret_key
    parts = [f"account {account.access_key}", "admin" * account.admin, f"secret {account.secret_key}" * secrets]
    if account.admin and not account.topic_perms and not account.group_perms:
        # Its default permissions only matter next to others.
        parts.append("all topics and groups")
    else:
        parts.append(f"topics {account.default_topic_perm or 'DENY'}")
        parts += [f"{name}={perm}" for name, perm in (account.topic_perms or {}).items()]
        parts.append(f"groups {account.default_group_perm or 'DENY'}")
        parts += [f"{name}={perm}" for name, perm in (account.group_perms or {}).items()]
    parts.append(f"unsigned from {account.white_address}" if account.white_address else "")
    say(row, "  ".join(filter(None, parts)), as_json=as_json)


def _say_done(addresses: Sequence[str], what: str, *, as_json: bool) -> None:
    for address in addresses:
        say({"address": address, "done": what}, f"{address}: {what}", as_json=as_json)


def _places(brokers: Sequence[str]) -> str:
    return ", ".join(brokers) if brokers else "all brokers"


def _permissions(items: Sequence[str]) -> dict[str, str] | None:
    found = {}
    for item in items:
        name, equals, perm = item.rpartition("=")
        if not name or not equals:
            raise click.UsageError(f"{item!r} is not NAME=PERM, such as TopicA=PUB|SUB")
        found[name] = perm
    return found or None


def _secret(file: str | None) -> str:
    if file is None:
        return str(click.prompt("Secret of the account", hide_input=True, confirmation_prompt=True))
    if file == "-" and sys.stdin is None:
        raise click.UsageError("standard input is closed, and --secret-file - reads the secret from it")
    try:
        text = sys.stdin.read(4096) if file == "-" else _beginning(file)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--secret-file {file} cannot be read: {error}; its first line is the secret") from None
    return text.partition("\n")[0].strip()


def _beginning(file: str) -> str:
    with open(file, encoding="utf-8") as opened:
        return opened.read(4096)
