"""Commands about dead letters: ``dlq``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal

import click

from triomq import Client, MQError
from triomq._cli.group_progress import check_known, number_text
from triomq._cli.options import (
    AS_A_SLAVE,
    ask,
    body_text,
    check_can_ask,
    check_outage,
    checked_queue,
    json_option,
    moment,
    name_servers_option,
    queue_of,
    say,
    warn_of_outage,
    with_client,
)
from triomq._cli.stored import stored_row
from triomq._tasks.side_by_side import side_by_side
from triomq.admin import DeadLetter, Redriven
from triomq_command.running import printable_line
from triomq_protocol.names import DLQ_PREFIX, RETRY_PREFIX

PROGRESS_EVERY = 1000
"""The number of messages after which a redrive reports its progress."""

GROUPS_AT_ONCE = 64
"""The most groups whose dead letters are counted at the same time."""

NOT_COUNTED = "its dead letters are not counted"
"""The effect of an outage on a redrive that is planned."""


@click.group()
def dlq() -> None:
    """Show the dead letters of a consumer group, and redrive them."""


@dlq.command("list")
@click.argument("group", required=False)
@click.option("-m", "--max", "most", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@click.option("--new", is_flag=True, help="Only those that no redrive has passed.")
@name_servers_option
@json_option
def list_letters(group: str | None, most: int, new: bool, name_servers: str, as_json: bool) -> None:
    """List the dead letters of GROUP; without GROUP, the groups that have some."""

    async def work(client: Client) -> None:
        if group is None:
            await _list_groups(client, as_json=as_json)
            return
        await _check_group(client, group)
        letters = await client.dead_letters.read(group, limit=most, again=not new)
        if not letters:
            nothing = "no dead letters" if not new else "no dead letters that no redrive has passed"
            click.echo(f"group {group} has {nothing}", err=True)
        elif not as_json:
            click.echo(f"{'QUEUE':<20} {'OFFSET':>8} {'STORED':<29} {'RETRIES':>7} {'REDRIVEN':<8} ORIGIN")
        for letter in letters:
            message = letter.message
            place = f"{message.queue.broker_name}:{message.queue_id}"
            text = (
                f"{place:<20} {message.queue_offset:>8} {moment(message.stored_ms):<29} {message.reconsume_times:>7} "
                f"{'yes' if letter.redriven else 'no':<8} {letter.origin_topic or 'unknown'} {message.message_id}"
            )
            say(_row(letter), text, as_json=as_json)
        check_outage(letters.without_answer, incomplete="its dead letters are missing above")
        total = await client.dead_letters.count(group, again=not new)
        if total > len(letters):
            click.echo(f"{len(letters)} of {total} dead letters; --max shows more", err=True)

    with_client(name_servers, work, route_wait_s=0)


@dlq.command("show")
@click.argument("group")
@click.argument("queue", metavar="BROKER:QUEUE")
@click.argument("offset", type=click.IntRange(0))
@name_servers_option
@json_option
def show_letter(group: str, queue: str, offset: int, name_servers: str, as_json: bool) -> None:
    """Show the dead letter of GROUP at an OFFSET of a queue, as `triomq dlq list` prints them."""
    place = queue_of(DLQ_PREFIX + group, queue)

    async def work(client: Client) -> None:
        await _check_group(client, group)
        queues = await client.dead_letters.queues(group)
        if not queues:
            raise click.ClickException(f"group {group} has no dead letters")
        checked_queue(place, queues)
        letter = await client.dead_letters.at(place, offset)
        message = letter.message
        row = _row(letter)
        lines = {
            "message id": message.message_id,
            "origin topic": letter.origin_topic or "unknown",
            "origin id": letter.origin_message_id,
            "reason": letter.reason,
            "stored": moment(message.stored_ms),
            "broker": f"{row['store_host']} physical offset {message.physical_offset}",
            "tag": message.tags or "",
            "keys": " ".join(message.keys),
            "redriven": "yes" if letter.redriven else "no",
        }
        if as_json:
            say(row, "", as_json=True)
            return
        for name, text in lines.items():
            click.echo(printable_line(f"{name:<18} {text}").rstrip())
        for name, value in sorted(message.properties.items()):
            click.echo(printable_line(f"{'property':<18} {name}={value}"))
        click.echo(f"{'body':<18} {body_text(message)}")

    with_client(name_servers, work, route_wait_s=0)


@dlq.command("redrive")
@click.argument("group")
@click.option("--to", type=click.Choice(["origin", "group"]), default="origin", show_default=True,
              help="origin: the topic they come from, for all of its groups; group: the retry topic of GROUP, for it alone.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--again", is_flag=True, help="Those that were redriven before, too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent where.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@name_servers_option
@json_option
def redrive(
    group: str, to: str, limit: int | None, again: bool, dry_run: bool, yes: bool, name_servers: str, as_json: bool
) -> None:
    """Send the dead letters of GROUP again, oldest first.

    They stay in the dead letter topic; brokers note which were sent, and the next redrive goes on behind them, also when
    this one is interrupted. --json prints each message that was sent.
    """
    redriving = _Redrive(group, "group" if to == "group" else "origin", limit, again, as_json)
    if dry_run:
        with_client(name_servers, redriving.show_plan, route_wait_s=0)
        return
    if not yes:
        check_can_ask(f"sends dead letters of group {group} again")
        with_client(name_servers, redriving.look, route_wait_s=0)
        warn_of_outage(redriving.without_answer, NOT_COUNTED)
        if redriving.waiting:
            where = "the topics they come from" if to == "origin" else f"group {group}"
            ask(f"Send {redriving.waiting} dead letters of group {group} to {where}?", "Nothing was sent.")
    try:
        with_client(name_servers, redriving.run)
    finally:
        redriving.say_sum()


class _Redrive:
    """The plan and the progress of one `triomq dlq redrive`."""

    def __init__(
        self, group: str, to: Literal["origin", "group"], limit: int | None, again: bool, as_json: bool
    ) -> None:
        self.waiting = 0
        self.without_answer: dict[str, str] = {}
        self._group = group
        self._to = to
        self._limit = limit
        self._again = again
        self._as_json = as_json
        self._sent: Counter[str] = Counter()

    async def look(self, client: Client) -> None:
        """Count the letters to be sent. Raises ClickException if there may be some only at brokers that do not answer."""
        await _check_group(client, self._group)
        waiting = await client.dead_letters.count(self._group, again=self._again, without_answer=self.without_answer)
        self.waiting = waiting if self._limit is None else min(waiting, self._limit)
        if not waiting:
            self._check_all_counted()

    def _check_all_counted(self) -> None:
        check_outage(self.without_answer, incomplete=NOT_COUNTED)

    async def show_plan(self, client: Client) -> None:
        """Print how many would be sent where."""
        await self.look(client)
        letters: Sequence[DeadLetter] = ()
        if self.waiting:
            letters = await client.dead_letters.read(self._group, limit=self.waiting, again=self._again)
        where = Counter(self._aim(letter) for letter in letters)
        for topic, number in sorted(where.items()):
            row = {"group": self._group, "topic": topic, "messages": number}
            say(row, f"{number} would go to {topic}", as_json=self._as_json)
        if not where and not self._as_json:
            click.echo(f"group {self._group} has no dead letters to redrive")
        self._check_all_counted()

    def _aim(self, letter: DeadLetter) -> str:
        if self._to == "group":
            return RETRY_PREFIX + self._group
        return letter.origin_topic or "no topic: it is not known (--to group)"

    async def run(self, client: Client) -> None:
        """Send the letters."""
        await _check_group(client, self._group)
        await client.dead_letters.redrive(
            self._group, to=self._to, limit=self._limit, again=self._again, report=self._report
        )

    def _report(self, redriven: Redriven) -> None:
        queue, result = redriven.letter.message.queue, redriven.result
        self._sent[result.queue.topic] += 1
        if not self._as_json:
            if not self._sent.total() % PROGRESS_EVERY:
                click.echo(f"{self._sent.total()} sent", err=True)
            return
        row = {
            "group": self._group,
            "message_id": result.message_id,
            "from_broker": queue.broker_name,
            "from_queue": queue.queue_id,
            "from_offset": redriven.letter.message.queue_offset,
            "topic": result.queue.topic,
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset,
            "status": result.status.name,
        }
        say(row, "", as_json=True)

    def say_sum(self) -> None:
        """Print how many were sent, even after an error."""
        if self._as_json:
            return
        for topic, number in sorted(self._sent.items()):
            click.echo(f"{number} sent to {topic}")
        if not self._sent:
            click.echo("no dead letter was sent")


async def _list_groups(client: Client, *, as_json: bool) -> None:
    groups = [name.removeprefix(DLQ_PREFIX) for name in await client.admin.topics() if name.startswith(DLQ_PREFIX)]
    counts: dict[str, tuple[int | None, int | None]] = {}
    failures: list[MQError] = []
    silent: dict[str, str] = {}

    async def look(group: str) -> None:
        try:
            counts[group] = (
                await client.dead_letters.count(group, again=True, silent=silent),
                await client.dead_letters.count(group, silent=silent),
            )  # fmt: skip
        except MQError as error:
            counts[group] = None, None  # the others are listed
            failures.append(error)

    for begin in range(0, len(groups), GROUPS_AT_ONCE):
        await side_by_side(*(partial(look, group) for group in groups[begin : begin + GROUPS_AT_ONCE]))
    found = [group for group in groups if counts[group][0] != 0]
    if found and not as_json:
        click.echo(f"{'GROUP':<32} {'DEAD':>8} {'NOT REDRIVEN':>12}")
    for group in found:
        total, new = counts[group]
        row = {"group": group, "dead": total, "not_redriven": new}
        say(row, f"{group:<32} {number_text(total):>8} {number_text(new):>12}", as_json=as_json)
    check_outage(await client.admin.without_master(), incomplete=AS_A_SLAVE)
    if failures:
        raise failures[0]
    if not found:
        click.echo("no group has dead letters", err=True)


async def _check_group(client: Client, group: str) -> None:
    if not await client.dead_letters.queues(group):
        await check_known(client, group)


def _row(letter: DeadLetter) -> dict[str, object]:
    return stored_row(letter.message) | {
        "origin_topic": letter.origin_topic,
        "origin_message_id": letter.origin_message_id,
        "reason": letter.reason,
        "redriven": letter.redriven,
    }
