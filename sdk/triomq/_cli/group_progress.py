"""A group's progress, and what its absence means."""

from __future__ import annotations

from collections.abc import Mapping

import click

from triomq import Client, MessageQueue
from triomq._cli.options import check_outage, progress_row, say
from triomq.admin import GroupProgress


def check_answers(progress: GroupProgress) -> None:
    """Raise if nothing is known, and a set without a master, or one that refuses the account, may be the cause."""
    if not progress:
        check_outage(progress.without_master, progress.refused)


async def check_known(client: Client, group: str, cure: str = "", *, silent: dict[str, str] | None = None) -> None:
    """Raise if no broker knows the group; `cure` ends the error's text. See `silent` of `GroupAdmin.names`."""
    silent = {} if silent is None else silent
    names = await client.groups.names(silent=silent)
    if group not in names:
        outage = await client.admin.without_master(silent=silent)
        check_outage(outage, names.refused, incomplete=f"whether it knows group {group} is unknown")
        raise click.ClickException(f"no broker knows the consumer group {group}; `triomq groups` lists groups{cure}")


def number_text(number: int | None) -> str:
    """A number that a broker may not have given."""
    return "unknown" if number is None else str(number)


def show_progress(
    group: str, progress: GroupProgress, owners: Mapping[MessageQueue, str] | None = None, *, as_json: bool
) -> None:
    """Print each queue's offsets and lag, with the member that consumes it if `owners` are given."""
    if progress and not as_json:
        last = "" if owners is None else "  OWNER"
        click.echo(f"{'TOPIC':<32} {'BROKER':<20} {'QUEUE':>5} {'COMMITTED':>12} {'END':>12} {'LAG':>12}{last}")
    for queue, offsets in progress.items():
        lag = progress.lag_of(queue)
        row = progress_row(group, queue, offsets, lag)
        text = (
            f"{queue.topic:<32} {queue.broker_name:<20} {queue.queue_id:>5} {offsets.consumer_offset:>12} "
            f"{offsets.broker_offset:>12} {number_text(lag):>12}"
        )
        if owners is not None:
            row["owner"] = owners.get(queue)
            text += f"  {owners.get(queue, '-')}"
        say(row, text, as_json=as_json)
    if progress and not as_json:
        click.echo(f"{'lag in all':<84} {number_text(progress.lag):>12}")
    if beyond := sum(each.consumer_offset > each.broker_offset for each in progress.values()):
        note = "is beyond the queue's end" if beyond == 1 else "are beyond the queues' ends"
        click.echo(
            f"{beyond} committed offset{'s'[: beyond != 1]} {note}: members go on at the end that a queue has when they "
            f"start; while none is online, `triomq offsets reset {group} TOPIC latest` sets it",
            err=True,
        )
