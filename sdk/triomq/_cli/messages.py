"""Commands of ``triomq``; other packages add theirs with the entry-point group ``triomq.commands``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec
import trio

from triomq import Client, Message, MessageQueue, MQError, PullConsumer, PullStatus, SendResult
from triomq._cli.accounts import accounts
from triomq._cli.consume import consume
from triomq._cli.dead_letters import dlq
from triomq._cli.doctor import doctor
from triomq._cli.groups import groups
from triomq._cli.offsets import offsets
from triomq._cli.options import (
    UNREAD,
    ask_about,
    check_outage,
    checked_queue,
    filter_of,
    json_option,
    name_servers_option,
    noting_outage,
    positive,
    print_received,
    queue_of,
    say,
    until_signal,
    with_client,
)
from triomq._cli.servers import brokers, kv, name_servers_command
from triomq._cli.stored import message as message_command
from triomq._cli.topics import cluster_status, topics, traffic
from triomq._tasks.side_by_side import side_by_side
from triomq.errors import InvalidCall
from triomq_command.garbage import importing
from triomq_command.overview import must_print
from triomq_command.running import QuietGroup, exit_code_of, printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FILE_MAX_BYTES = 4 * 1024 * 1024
"""The largest body that a stock broker stores."""

COMMIT_S = 5.0
"""How long an interrupted pull may take to commit its offsets, in seconds."""

_PIECE_BYTES = 65_536
"""The bytes read at a time from standard input."""

EXTRAS = {
    "namesrv": "server",
    "broker": "server",
    "cluster": "server",
    "admin": "server",
    "run": "testing",
    "clock": "testing",
    "faults": "testing",
    "dashboard": "dashboard",
    "quickstart": "demo",
    "demo": "demo",
    "bench": "bench",
}
"""What to install for a command of another package that cannot be loaded."""


class Commands(QuietGroup):
    """A group that also finds commands of other packages, and imports them when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the client's own commands, then of the others, each sorted by name."""
        own = super().list_commands(ctx)
        return own + sorted(set(_found()) - set(own))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; if its package lacks a dependency, the command reports that when run."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        entry = _found().get(cmd_name)
        if entry is None:
            return None
        try:
            with importing():
                command = entry.load()
        except (ImportError, AttributeError) as error:
            return _missing(cmd_name, entry, error)
        return command if isinstance(command, click.Command) else None


def _found() -> dict[str, EntryPoint]:
    # Here: the import and the search in all installed packages take a tenth of the time of a command.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="triomq.commands")}


def _missing(name: str, entry: EntryPoint, error: Exception) -> click.Command:
    extra = EXTRAS.get(name, "all")
    install = f"pip install 'triomq[{extra}]'"
    hint = f"{name} cannot be loaded from {entry.value}: {error}; try {install}"
    short = f"cannot be loaded; try {install}"
    lacks = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if name in EXTRAS and lacks and not lacks.startswith("triomq_"):
        # This is no error: users who want no benchmarks do not install their dependencies.
        hint = f"{name} needs the package {lacks}, which the extra {extra} installs: {install}"
        short = f"not installed: {install}"

    @click.command(name, help=hint, short_help=short, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def say(arguments: tuple[str, ...]) -> None:  # noqa: ARG001 - the answer is the same for all arguments
        raise click.ClickException(hint)

    return say


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="triomq")
def triomq() -> None:
    """RocketMQ 4.9 without Java: send, pull, look at topics, run name servers and brokers."""


@triomq.command()
@click.argument("topic")
@click.argument("body", required=False)
@name_servers_option
@click.option("--file", "file", metavar="PATH", help="Send this file's bytes as one message; - for standard input.")
@click.option("-g", "--group", default="triomq-cli", show_default=True, help="Producer group.")
@click.option("--tags", help="Tag to filter by.")
@click.option("--keys", help="Index keys, separated by blanks: 'a b' is two keys. A key has no blanks.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="User property; repeatable.")
@click.option("--queue", "queue", metavar="BROKER:QUEUE", help="The queue it must go to.")
@click.option("--delay", "delay_level", type=click.IntRange(0, 18), default=0, help="Delay level, 1-18.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    callback=positive,
    default=3.0,
    show_default=True,
    help="Seconds per message.",
)
@json_option
def send(
    topic: str,
    body: str | None,
    name_servers: str,
    file: str | None,
    group: str,
    tags: str | None,
    keys: str | None,
    properties: tuple[str, ...],
    queue: str | None,
    delay_level: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send BODY to TOPIC; without BODY, or with -, every line of standard input is a message.

    Lines lose their end, and empty ones are not sent; --file sends any bytes as they are.
    """
    if file is not None and body is not None:
        raise click.UsageError("give either BODY or --file")
    table = dict(_pair(text) for text in properties)
    sample = Message(topic, b"-", tags, (keys or "").split(), table or None, delay_level=delay_level)
    sample.check()
    target = queue_of(topic, queue) if queue is not None else None

    async def work(client: Client) -> None:
        async with client.producer(group, send_timeout_s=timeout_s) as producer:
            if target is not None:
                checked_queue(target, await producer.queues(topic))
            bodies = _bodies(body) if file is None else _whole(file)
            # In a thread: standard input may be a terminal, and meanwhile the client has heartbeats to send.
            while (data := await trio.to_thread.run_sync(next, bodies, None, abandon_on_cancel=True)) is not None:
                message = msgspec.structs.replace(sample, body=data)
                _print_sent(await producer.send(message, queue=target), as_json=as_json)

    with_client(name_servers, work)


@triomq.command()
@click.argument("topic")
@name_servers_option
@click.option("-g", "--group", default="triomq-cli-pull", show_default=True, help="Consumer group.")
@click.option("--from", "start", type=click.Choice(["earliest", "latest", "committed"]), default="earliest", show_default=True,
              help="Where to start in each queue.")  # fmt: skip
@click.option("--offset", type=click.IntRange(0), help="Start at this offset instead.")
@click.option("--tags", help="Only messages with these tags: a || b.")
@click.option("--sql", help="Only messages whose properties match this SQL92 expression.")
@click.option("--queue", "queue", metavar="BROKER:QUEUE", help="Only this queue.")
@click.option("-m", "--max", "max_messages", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("-f", "--follow", is_flag=True, help="Wait for further messages; stop with Ctrl-C.")
@click.option("--commit", is_flag=True, help="Commit the group's offsets at the end, also after Ctrl-C.")
@json_option
def pull(
    topic: str,
    name_servers: str,
    group: str,
    start: str,
    offset: int | None,
    tags: str | None,
    sql: str | None,
    queue: str | None,
    max_messages: int | None,
    follow: bool,
    commit: bool,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC."""
    filter_of(tags, sql)
    only = queue_of(topic, queue) if queue is not None else None

    async def work(client: Client) -> None:
        async with client.pull_consumer(group) as consumer:
            queues = await consumer.fetch_queues(topic)
            if only is not None:
                queues = [checked_queue(only, queues)]
            without_answer: dict[str, str] = {}
            await ask_about(queues, partial(_seek, consumer, start=start, offset=offset), without_answer)
            printed: dict[MessageQueue, int] = {}
            drain = partial(_drain, consumer, queues, tags, sql, printed, without_answer, as_json=as_json)
            try:
                left = await drain(max_messages if max_messages is not None else sys.maxsize)
                while follow and left > 0:
                    await trio.sleep(0.2)
                    left = await drain(left)
            except BaseException:
                # Ctrl-C, a reader that closes the output, an outage: what was printed is consumed.
                with trio.move_on_after(COMMIT_S, shield=True) as scope:
                    await _commit(consumer, printed if commit else {})
                if scope.cancelled_caught:
                    click.echo(f"not all offsets of group {group} were committed within {COMMIT_S:g} s", err=True)
                raise
            await _commit(consumer, printed if commit else {})

    until_signal(lambda: with_client(name_servers, work))


async def _seek(consumer: PullConsumer, queue: MessageQueue, *, start: str, offset: int | None) -> None:
    if offset is not None:
        consumer.seek(queue, offset)
    elif start == "earliest":
        consumer.seek(queue, await consumer.min_offset(queue))
    elif start == "latest":
        consumer.seek(queue, await consumer.max_offset(queue))


async def _drain(
    consumer: PullConsumer,
    queues: Iterable[MessageQueue],
    tags: str | None,
    sql: str | None,
    printed: dict[MessageQueue, int],
    without_answer: dict[str, str],
    left: int,
    *,
    as_json: bool,
) -> int:
    """Print the messages of the queues up to `left`, and note the offsets behind them in `printed`.

    Returns:
        How many of `left` were not there.

    Raises:
        click.ClickException: brokers do not answer; the queues of the others have been printed.
    """
    for queue in queues:
        if queue.broker_name in without_answer:
            continue
        with noting_outage(queue, without_answer):
            while left > 0:
                result = await consumer.pull(queue, tags=tags, sql=sql, max_messages=min(32, left))
                for message in result:
                    print_received(message, as_json=as_json)
                    printed[queue] = message.queue_offset + 1
                printed[queue] = result.next_offset
                left -= len(result)
                if result.status is PullStatus.NO_NEW_MESSAGE:
                    break
    check_outage(without_answer, incomplete=UNREAD)
    return left


async def _commit(consumer: PullConsumer, offsets: Mapping[MessageQueue, int]) -> None:
    await side_by_side(*(partial(consumer.commit, queue, offset) for queue, offset in offsets.items()))


def _bodies(body: str | None) -> Iterator[bytes]:
    if body is not None and body != "-":
        yield body.encode("utf-8", "surrogateescape")
        return
    empty = 0
    for line in _lines(_standard_input()):
        text = line.rstrip(b"\r\n")
        if text:
            yield text
        else:
            empty += 1
    if empty:
        click.echo(f"{empty} empty line{'s'[: empty != 1]} not sent: a message has at least one byte", err=True)


def _whole(file: str) -> Iterator[bytes]:
    """The bytes of a file, or of standard input, as one message; a file that is too large is not read further."""
    if file != "-":
        with open(file, "rb") as stream:
            yield stream.read(FILE_MAX_BYTES + 1)
        return
    found = bytearray()
    for piece in _standard_input():
        found += piece
        if len(found) > FILE_MAX_BYTES:
            break
    yield bytes(found[: FILE_MAX_BYTES + 1])


def _standard_input() -> Iterator[bytes]:
    """Read standard input piece by piece.

    The interpreter's buffer is not used: Ctrl-C leaves the thread that waits here behind, and the interpreter would
    abort at its end because that thread holds the buffer's lock.
    """
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; give a BODY, or --file")
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a program has replaced it
        yield sys.stdin.buffer.read()
        return
    while piece := os.read(descriptor, _PIECE_BYTES):
        yield piece


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in pieces of a text, without their line feeds; the last line may lack one.

    A line that is longer than brokers store ends the text, and is given as far as it was read: the send refuses it.
    """
    begun: list[bytes] = []
    size = 0
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            yield b"".join([*begun, end])
            begun.clear()
            size = 0
        begun.append(rest)
        size += len(rest)
        if size > FILE_MAX_BYTES + 1:  # one more: a carriage return at the end is cut off
            break
    if last := b"".join(begun):
        yield last


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


def _print_sent(result: SendResult, *, as_json: bool) -> None:
    queue = result.queue
    row = {
        "status": result.status.name,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": result.queue_offset,
    }
    text = f"{result.status.name} {result.message_id} {queue.broker_name}:{queue.queue_id} offset {result.queue_offset}"
    say(row, text, as_json=as_json)


for _command in (
    consume,
    groups,
    offsets,
    topics,
    message_command,
    dlq,
    cluster_status,
    doctor,
    brokers,
    kv,
    name_servers_command,
    accounts,
    traffic,
):
    triomq.add_command(_command)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 done, 1 it could not be done, 2 wrong usage, 130 interrupted.
    """
    words = sys.argv[1:] if arguments is None else arguments
    return exit_code_of(lambda: _run(arguments), must_print=must_print(words))


def _run(arguments: list[str] | None) -> object:
    try:
        return triomq.main(arguments, prog_name="triomq", standalone_mode=False)
    except InvalidCall as error:
        click.echo(f"Error: {error}", err=True)
        return 2
    except MQError as error:
        # Its text has brokers' remarks, and names that other clients have chosen.
        click.echo(printable("\n".join([f"Error: {error}", *getattr(error, "__notes__", [])])), err=True)
        return 1
