"""Shared parts of the commands: options, output, and their client."""

from __future__ import annotations

import base64
import codecs
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any, TypeVar

import click
import trio

from triomq import Client, ClientOptions, Credentials, MessageQueue, ReceivedMessage, Sql, open_client
from triomq._cli.tls import dialer_given
from triomq._error_text import shown
from triomq._tasks.exception_groups import open_plain_nursery
from triomq.admin import OffsetWrapper
from triomq.errors import BrokerNotFound, ConnectFailed, LinkLost, RequestTimeout
from triomq_command.connection_options import account_given, with_connection_options
from triomq_command.ending_signals import interrupted_by_signals
from triomq_command.running import has_terminal, printable, printable_line
from triomq_protocol.errors import LocalProtocolError
from triomq_protocol.filters.sql92 import Sql92Error, parse
from triomq_protocol.filters.tags import check_tags

T = TypeVar("T", bound=Callable[..., Any])

MS_FROM = 100_000_000_000
"""Bare numbers from here on are times in ms since 1970 (this one is in 1973), smaller ones are offsets."""

MS_DIGITS_MOST = 18
"""The most digits of a time in ms that fits into the 63 bits of a request."""

_name_servers_option = click.option(
    "-n",
    "--name-servers",
    "--namesrv-addr",
    "name_servers",
    envvar="NAMESRV_ADDR",
    default="127.0.0.1:9876",
    show_default=True,
    help="Name servers, host:port;host:port; either spelling. Environment: NAMESRV_ADDR.",
)


def name_servers_option(command: T) -> T:
    """Add the options of every command that connects to servers: their addresses, the account, and TLS."""
    return _name_servers_option(with_connection_options(command))


def credentials_given() -> Credentials | None:
    """The account given to the running command; a file takes precedence over the environment.

    Raises:
        click.UsageError: a key is missing, or keys and a file are given as arguments.
        InvalidCall: the file cannot be used.
    """
    given = account_given()
    if given is None:
        return None
    if given.file is not None:
        return Credentials.from_file(given.file)
    return Credentials(given.access_key, given.secret_key, given.security_token)


def positive(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    """Check an option that must be greater than 0."""
    if not value > 0:  # nor nan
        raise click.BadParameter(f"{value} is not greater than 0")
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for machines.")


def queue_of(topic: str, text: str) -> MessageQueue:
    """The queue of ``BROKER:QUEUE``."""
    name, _, digits = text.rpartition(":")
    if not name or not _is_number(digits):
        raise click.UsageError(f"{shown(text)} is not BROKER:QUEUE, such as broker-a:0")
    return MessageQueue(topic, name, int(digits))


def offset_of(text: str) -> int | None:
    """The offset that a text is, which may also be a time; None if it is none. Larger numbers are times in ms."""
    return int(text) if _is_number(text) and int(text) < MS_FROM else None


def _is_number(text: str) -> bool:
    # `int` fails for thousands of digits, and for some characters that `isdigit` accepts.
    return text.isascii() and text.isdecimal() and len(text) <= MS_DIGITS_MOST


def checked_queue(queue: MessageQueue, queues: Iterable[MessageQueue]) -> MessageQueue:
    """Return the queue if its topic has it.

    Brokers answer a pull of any other with a fault that may also be temporary, and a consumer would retry forever.

    Raises:
        click.ClickException: the topic does not have it; the text names those it has.
    """
    found = sorted(queues)
    if queue in found:
        return queue
    if not found:
        raise click.ClickException(f"topic {queue.topic} has no queue that can be read")
    by_broker: dict[str, list[int]] = {}
    for each in found:
        by_broker.setdefault(each.broker_name, []).append(each.queue_id)
    known = [f"{name}:{ids[0]}" + (f" to {name}:{ids[-1]}" if len(ids) > 1 else "") for name, ids in by_broker.items()]
    raise click.ClickException(
        f"topic {queue.topic} has no queue {queue.broker_name}:{queue.queue_id}, only {', '.join(known)}"
    )


def filter_of(tags: str | None, sql: str | None) -> str | Sql:
    """The filter of --tags and --sql, checked before anything is sent; without both, all messages match.

    Raises:
        click.UsageError: both are given, --tags names no tag, or the SQL92 expression cannot be parsed.
    """
    if sql is None:
        if tags is None:
            return "*"
        try:
            check_tags(tags)
        except LocalProtocolError as error:
            raise click.UsageError(f"the tags cannot be used: {error}; give an SQL92 expression as --sql") from None
        return tags
    if tags is not None:
        raise click.UsageError("give either --tags or --sql; an expression can test the tag: TAGS = 'a'")
    if not sql.strip():
        raise click.UsageError("the SQL92 expression is empty; leave --sql out for every message")
    try:
        parse(sql)
    except Sql92Error as error:
        raise click.UsageError(f"the SQL92 expression {sql!r} cannot be used: {error}") from None
    return Sql(sql)


def time_of(text: str, *, or_place: bool = True) -> int:
    """Parse a time to ms since 1970: ``2026-11-21T12:00``, with a zone or in local time, or the milliseconds.

    Args:
        or_place: whether the option also takes the words for places, which the error then names.

    Raises:
        click.UsageError: it has neither form.
    """
    if _is_number(text) and int(text) >= MS_FROM:
        return int(text)
    # From 20 digits on, Python takes the first eight for a date, and the others for a time.
    is_date = not text.isdecimal() or len(text) == len("20261121")
    try:
        return int(datetime.fromisoformat(text if is_date else "").astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):  # also for a time in the year 1 or 9999 that cannot be converted to UTC
        places = "neither earliest nor latest, " if or_place else ""
        raise click.UsageError(
            f"{shown(text)} is {places}no time like 2026-11-21T12:00 or 2026-11-21T12:00+01:00, nor milliseconds since 1970, "
            f"which are at least {MS_FROM}"
        ) from None


def moment(time_ms: int) -> str:
    """A time as readable text, with its zone; one outside the calendar, which any sender may write, stays a number."""
    try:
        return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def body_text(message: ReceivedMessage) -> str:
    """A message's body as readable text; bytes that are not UTF-8 become escapes, as do control characters."""
    return printable(message.body.decode("utf-8", "backslashreplace"))


def row_of(message: ReceivedMessage) -> dict[str, object]:
    """A message as a JSON object; a body that is not UTF-8 is in `body_base64`, and `body` is then None."""
    row: dict[str, object] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "stored_ms": message.stored_ms,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "reconsume_times": message.reconsume_times,
    }
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body"] = None
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def progress_row(group: str, queue: MessageQueue, offsets: OffsetWrapper, lag: int | None) -> dict[str, object]:
    """A group's progress in one queue as a JSON object; a lag of None is unknown."""
    return {
        "group": group,
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "committed": offsets.consumer_offset,
        "end": offsets.broker_offset,
        "lag": lag,
        "consumed_ms": offsets.last_timestamp,
    }


def print_received(message: ReceivedMessage, *, as_json: bool) -> None:
    """Print a message's body, or the whole message as JSON."""
    if as_json:
        say(row_of(message), "", as_json=True)
    else:
        click.echo(body_text(message))


def say(row: Mapping[str, object], text: str, *, as_json: bool) -> None:
    """Print one line of text, or of JSON."""
    click.echo(json.dumps(row, ensure_ascii=not _writes_utf_8()) if as_json else printable_line(text))


def _writes_utf_8() -> bool:
    """Whether the output's encoding is UTF-8; JSON in any other encoding is invalid, and so must be escaped."""
    encoding = getattr(sys.stdout, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name == "utf-8"


AS_A_SLAVE = "what belongs to it is missing above, or as a slave knows it"
"""The effect of an outage on a table."""


def check_outage(
    without_master: Mapping[str, str],
    refused: Mapping[str, str] = {},
    *,
    incomplete: str = f"{AS_A_SLAVE}, and its lag is unknown",
    lists_brokers: bool = False,
) -> None:
    """End the command with status 1 if the printed output is incomplete.

    Args:
        without_master: broker name -> why its master did not answer.
        refused: broker name -> which broker refuses the account, why, and what to do.
        incomplete: the effect on the table; empty if there is none.
        lists_brokers: whether the table lists the registered brokers.

    Raises:
        click.ClickException: there is such a set.
    """
    refusals = "; ".join(f"broker {name}: {why}" for name, why in sorted(refused.items()))
    if refused:
        refusals += "; what it has is missing"
    if without_master:
        sets = "; ".join(f"broker {name}: {why}" for name, why in sorted(without_master.items()))
        cure = "start what is missing; restart what hangs: it takes connections and does not answer"
        if not lists_brokers:
            cure = f"`triomq cluster-status` lists the brokers that are registered; {cure}"
        raise click.ClickException("; ".join(filter(None, [refusals, sets, incomplete])) + f" ({cure})")
    if refused:
        raise click.ClickException(refusals)


QUEUES_AT_ONCE = 32
"""The most queues about which one broker is asked at the same time."""

UNREAD = "its messages are missing above"
"""The effect of an outage on the messages of a topic."""


@contextmanager
def noting_outage(queue: MessageQueue, without_answer: dict[str, str]) -> Iterator[None]:
    """End the block where the queue's broker does not answer, and add the broker and why: queues of others are read."""
    try:
        yield
    except (BrokerNotFound, ConnectFailed, LinkLost, RequestTimeout) as error:
        without_answer[queue.broker_name] = error.reason


async def ask_about(
    queues: Iterable[MessageQueue],
    ask: Callable[[MessageQueue], Awaitable[None]],
    without_answer: dict[str, str],
) -> None:
    """Call `ask` with each queue, several at a time for each broker: a topic can have tens of thousands of queues.

    Queues of brokers that do not answer are left out; those brokers are added to `without_answer`, with the reason.
    """
    by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        by_broker[queue.broker_name].append(queue)

    async def ask_rest(left: Iterator[MessageQueue]) -> None:
        for queue in left:
            if queue.broker_name in without_answer:
                return
            with noting_outage(queue, without_answer):
                await ask(queue)

    async with open_plain_nursery() as nursery:
        for theirs in by_broker.values():
            left = iter(theirs)
            for _ in range(min(QUEUES_AT_ONCE, len(theirs))):
                nursery.start_soon(ask_rest, left)


def warn_of_outage(without_answer: Mapping[str, str], effect: str) -> None:
    """Name the brokers that do not answer on standard error; the command goes on."""
    for broker, why in sorted(without_answer.items()):
        click.echo(printable_line(f"broker {broker}: {why}; {effect}"), err=True)


def check_contests(contested: Mapping[str, str]) -> None:
    """End the command with status 1 if brokers hide each other, since they have the same id.

    Args:
        contested: a broker's address -> that of the other broker.

    Raises:
        click.ClickException: there are such brokers.
    """
    pairs = sorted({(min(pair), max(pair)) for pair in contested.items()})
    if pairs:
        texts = "; ".join(f"{one} and {other} have the same name and id" for one, other in pairs)
        raise click.ClickException(
            f"{texts}: name servers list only the one that registered last (stop one, or give it another id: "
            "`triomq admin role HOST:PORT slave --id N`)"
        )


def with_client(
    name_servers: str, work: Callable[[Client], Awaitable[None]], *, route_wait_s: float | None = None
) -> None:
    """Run an async function with an open client, with the account given to the command.

    Args:
        name_servers: the option's value.
        work: the function.
        route_wait_s: as for :func:`triomq.open_client`; 0 for commands that show the current state, including outages.
    """

    dial = dialer_given()
    options: ClientOptions = {"credentials": credentials_given(), "route_wait_s": route_wait_s}
    if dial is not None:
        options["dial"] = dial

    async def main() -> None:
        async with open_client(name_servers, **options) as client:
            await work(client)

    trio.run(main)


def until_signal(run: Callable[[], None]) -> None:
    """Run a function that commits what it has done when SIGTERM or SIGHUP arrives, as after Ctrl-C."""
    # Only the main thread can handle signals. A shell's background jobs ignore SIGINT, and that must not change.
    is_main = threading.current_thread() is threading.main_thread()
    with interrupted_by_signals(keep_ignoring=True) if is_main else nullcontext():
        run()


def check_can_ask(what: str) -> None:
    """Refuse to continue if there is no terminal to ask on; with ``--yes`` a command does not call this.

    Args:
        what: what the command does, after "this".
    """
    if not has_terminal():
        raise click.UsageError(f"this {what}, and there is no terminal to ask on: give --yes")


def ask(question: str, undone: str) -> None:
    """Ask on the terminal; "no" ends the command with status 1, after a line that nothing was done."""
    if not click.confirm(question):
        click.echo(undone, err=True)
        click.get_current_context().exit(1)
