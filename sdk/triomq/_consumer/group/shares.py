"""Decides which queues a member should have, which it takes and gives up, and when that is worked out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import attrs

from triomq._consumer.group.allocate import AllocateStrategy, sorted_members, sorted_queues
from triomq._message.message import MessageQueue, check_queue
from triomq.errors import InvalidCall

RETRY_AFTER_S: Final = 1.0
"""The pause before a round that left something undone is repeated: a refused lock, an unknown start, a running
handler."""

UNLISTED_MAX_S: Final = 5.0
"""The longest pause before a round is repeated in which no broker listed the members of a topic's group. A broker that
can be reached again, but does not notify its members of changes, is noticed after that time."""


@attrs.frozen
class Moves:
    """The changes of one round to one topic.

    Args:
        revoke: owned queues to give up, in order.
        assign: queues to take, in order.
    """

    revoke: tuple[MessageQueue, ...]
    assign: tuple[MessageQueue, ...]


def plan_moves(
    owned: Collection[MessageQueue], share: Collection[MessageQueue], stuck: Collection[MessageQueue] = ()
) -> Moves:
    """Decide which queues to take and which to give up.

    Args:
        owned: the topic's queues that are ours now.
        share: the queues that should be ours.
        stuck: owned queues that must be taken again.
    """
    wanted = set(share)
    revoke = sorted_queues({queue for queue in owned if queue not in wanted or queue in set(stuck)})
    kept = set(owned) - set(revoke)
    return Moves(tuple(revoke), tuple(sorted_queues(wanted - kept)))


def pause_after_round(
    every_s: float,
    *,
    done: bool,
    now: float,
    missing_since: Iterable[float],
    unlisted_since: Iterable[float] = (),
) -> float:
    """The seconds until the next round.

    Args:
        every_s: seconds between two rounds.
        done: whether the last round left nothing undone except what follows.
        now: the time.
        missing_since: since when subscribed topics have been unknown. One that is created is found about as long
            after that as it had been missing.
        unlisted_since: since when no broker of a topic has listed the members of the group.
    """
    if not done:
        return min(RETRY_AFTER_S, every_s)
    pauses_s = [now - at for at in missing_since]
    pauses_s += [min(now - at, UNLISTED_MAX_S) for at in unlisted_since]
    return min(max(RETRY_AFTER_S, min(pauses_s, default=every_s)), every_s)


@attrs.frozen
class Share:
    """The outcome of computing this member's share of one topic.

    Args:
        queues: the queues that should be ours; None: leave everything as it is.
        is_member: whether we were in the list of members.
        failure: the error of the strategy, if it failed.
    """

    queues: tuple[MessageQueue, ...] | None
    is_member: bool = True
    failure: Exception | None = attrs.field(default=None, eq=False)


def work_out_share(
    client_id: str,
    queues: Collection[MessageQueue] | None,
    members: Collection[str] | None,
    strategy: AllocateStrategy,
    *,
    was_absent: bool,
) -> Share:
    """This member's share of one topic of a clustering group.

    Args:
        client_id: this member's client id.
        queues: the topic's queues; None or empty if they are not known.
        members: the group's client ids; None or empty if they are not known.
        strategy: assigns queues to members.
        was_absent: whether we were already missing in the last list of members.

    A list without us means that the broker has not received our heartbeat: the first time, everything stays; the second
    time our queues are given up, as Java does at once.  In neither case is a queue taken.

    A member that is listed twice counts once: it is nearly always one member, by its old link and by its new one, and a
    second share would have no consumer.
    """
    if not queues or not members:
        return Share(None)
    if client_id not in members:
        return Share(() if was_absent else None, is_member=False)
    try:
        # Inside the try block: a user's generator runs only now.
        share = tuple(strategy(client_id, sorted_queues(queues), sorted_members(set(members))))
        _check_share(share, {queue.topic for queue in queues})
    except Exception as error:  # noqa: BLE001 - a strategy may be the user's own; the caller logs it
        return Share(None, failure=error)
    return Share(share)


def duplicate_ids(members: Collection[str]) -> list[str]:
    """The client ids that are listed more than once."""
    return sorted(each for each, count in Counter(members).items() if count > 1)


def _check_share(share: Sequence[MessageQueue], topics: Collection[str]) -> None:
    """Raise :class:`InvalidCall` unless all are queues of these topics; their brokers may be down."""
    for queue in share:
        check_queue(queue)
        if queue.topic not in topics:
            raise InvalidCall(f"it returned {queue}, which was not among the queues that it was given")
