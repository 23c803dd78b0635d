"""What is wrong with the sets of brokers, and the remedy, in words. Pure."""

from __future__ import annotations

from triomq_server.admin.members import Member
from triomq_server.admin.replication import Row

_JUST_STARTED = "has just started and knows {whom} within 30 seconds"


def outage_text(rows: list[Row]) -> str:
    """The sets without a master, and the brokers that do not answer or refuse; empty if there are none.

    A promotion is advised only if no slave is connected to a master: a second master would split the set.
    """
    if not rows:
        return (
            f"no broker is registered: they are all down, or the name server {_JUST_STARTED.format(whom='them')} "
            "(`triomq broker` starts one)"
        )
    names = dict.fromkeys(row.member.name for row in rows)
    headed = {row.member.name for row in rows if row.member.broker_id == 0}
    headless = [name for name in names if name not in headed]
    followers = {name: _connected_slave(rows, name) for name in headless}
    lost = [f"broker {name}: no master is registered" for name in headless if followers[name] is None]
    alive = [
        f"broker {name}: its master runs, since slave {name}:{slave.broker_id} is connected to it, but is not registered"
        for name, slave in followers.items()
        if slave is not None
    ]
    silent = [row for row in rows if row.error]
    doubtful = {row.member.name for row in silent if row.may_run and not row.refused and row.member.broker_id == 0}
    gone = {row.member.name for row in silent if not row.may_run and row.member.broker_id == 0}
    silences = [_silence_text(row) for row in silent]
    advice = []
    if headless:
        advice.append(f"wait if the name server {_JUST_STARTED.format(whom='all brokers')}")
    if alive:
        advice.append("after that check the master's namesrvAddr and its log")
    if doubtful:
        advice.append(
            "look at the process and the log of a master that is silent: it may only hang, and a slave that is made the "
            "master meanwhile could give the set two masters; resume or restart it, or end it for good before you use "
            "`triomq admin role`"
        )
    if lost or gone:
        headless_sets = [name for name in names if name in gone or (name in followers and followers[name] is None)]
        which = f" of {', '.join(headless_sets)}" if doubtful else ""
        advice.append(f"start what is missing, or make a slave{which} the master: `triomq admin role`")
    elif any(row.member.broker_id != 0 and not row.refused for row in silent):
        advice.append("start what is missing")
    if any(row.refused for row in silent):
        advice.append(
            "a broker that refuses runs: with access control give the account of an administrator, --credentials-file FILE"
        )
    parts = [*lost, *alive, *silences]
    missing = f"{'; '.join(parts)} ({'; '.join(advice)})" if parts else ""
    return "; ".join(filter(None, [missing, contest_text(rows)]))


def _silence_text(row: Row) -> str:
    member = row.member
    where = f"{member.name}:{member.broker_id} at {member.address}"
    if row.refused:
        return f"{where} refuses to show its state"
    if member.broker_id == 0 and row.may_run:
        return f"{where} is registered as master but does not answer"
    return f"{where} does not answer"


def _connected_slave(rows: list[Row], name: str) -> Member | None:
    """The first slave of a set that is connected to a master; None if slaves may only be connected to each other, since
    a master that was made a slave keeps accepting their links."""
    states = [(row.member, row.status) for row in rows if row.member.name == name and row.status is not None]
    links = sum(len(status.slaves) for _, status in states if status.role == "SLAVE")
    found = [member for member, status in states if status.following is not None and status.following.connected]
    return found[0] if len(found) > links else None


def contest_text(rows: list[Row]) -> str:
    """The ids shared by two live brokers; empty if each has its own."""
    pairs = {
        (row.member.name, row.member.broker_id, *sorted((row.member.address, row.status.id_contested_by)))
        for row in rows
        if row.status is not None and row.status.id_contested_by is not None
    }
    if not pairs:
        return ""
    texts = [f"{name}:{number} is the id of {one} and of {other}" for name, number, one, other in sorted(pairs)]
    return (
        f"{'; '.join(texts)}: name servers list only the one that registered last "
        "(stop one, or give it another id: `triomq admin role HOST:PORT slave --id N`)"
    )
