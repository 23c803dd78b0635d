"""Reports changes at several brokers that only some of them have made."""

from __future__ import annotations

from collections.abc import Collection

from triomq.errors import MQError


def with_places(error: MQError, done: Collection[str], lacking: Collection[str]) -> MQError:
    """The error of a change, with a note that names the brokers that made it; no note if only one was asked.

    Args:
        error: why one of them has not made it.
        done: the brokers that have made it.
        lacking: the brokers that have not made it, or have not reported it.
    """
    if len(done) + len(lacking) > 1:
        error.add_note(f"Done at {', '.join(done) or 'no broker'}; not at {', '.join(lacking)}.")
    return error
