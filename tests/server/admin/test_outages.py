"""The output of `triomq admin ha` about slaves, and about sets in an outage."""

from __future__ import annotations

import pytest

from triomq_server.admin.members import Member
from triomq_server.admin.outages import outage_text
from triomq_server.admin.replication import Row, _hidden, slave_state
from triomq_server.broker.admin.ha import FollowingState, HaStatus, SlaveState
from triomq_server.commands.admin import _print_replication


def slave(relation: str, end: int = 100, *, connected: bool = True) -> Row:
    following = FollowingState(
        connected=connected, relation=relation, common_end=-1, master_end=end, received_bytes=0, metadata_rounds=0
    )
    status = HaStatus(
        broker_name="a", broker_id=1, role="SLAVE", address="127.0.0.1:2", log_begin=0, log_end=end, flushed=end,
        acknowledged=end, slaves=[], refused=[], following=following,
    )  # fmt: skip
    return Row(Member("a", 1, "127.0.0.1:2"), status, 0, end)


def master(end: int = 100, error: str | None = None, *, may_run: bool = False, name: str = "a") -> Row:
    return Row(Member(name, 0, "127.0.0.1:1"), None, 0, end, error, may_run)


@pytest.mark.parametrize(
    ("row", "others", "state"),
    [
        (slave("CLEAN"), [master()], "CLEAN"),
        (slave("CLEAN"), [master(120)], "BEHIND 20"),
        (slave("CLEAN"), [master(90)], "CLEAN"),
        (slave("AHEAD"), [master()], "AHEAD"),
        (slave("CLEAN", connected=False), [], "UNKNOWN"),
        (slave("BEHIND", connected=False), [master(error="refused")], "UNKNOWN"),
        (slave("DIVERGED", connected=False), [], "DIVERGED"),
        (master(), [slave("CLEAN")], ""),
        (master(error="refused"), [], "?"),
    ],
)
def test_a_slave_without_its_master_is_not_called_clean(row: Row, others: list[Row], state: str) -> None:
    assert slave_state(row, [row, *others]) == state


def test_an_outage_is_named() -> None:
    assert outage_text([master(), slave("CLEAN")]) == ""
    lost = outage_text([slave("CLEAN", connected=False)])
    assert lost.startswith("broker a: no master is registered (")
    assert "make a slave the master: `triomq admin role`" in lost
    assert outage_text([]).startswith("no broker is registered")
    assert "a:0 at 127.0.0.1:1 does not answer" in outage_text([master(error="refused"), slave("CLEAN")])


def test_no_promotion_is_advised_while_a_slave_is_connected_to_its_master() -> None:
    text = outage_text([slave("CLEAN")])
    assert text.startswith("broker a: its master runs, since slave a:1 is connected to it, but is not registered (")
    assert "admin role" not in text


def test_a_slave_connected_to_a_demoted_master_does_not_prove_a_master() -> None:
    link = SlaveState(
        peer="127.0.0.1:3", acknowledged=100, behind_bytes=0, sent_bytes=0, silent_s=0.0, lost_position=False
    )
    demoted = slave("CLEAN", connected=False)
    assert demoted.status is not None
    demoted.status.slaves.append(link)
    text = outage_text([demoted, slave("CLEAN")])
    assert text.startswith("broker a: no master is registered (")
    assert "make a slave the master: `triomq admin role`" in text
    assert "its master runs" in outage_text([demoted, slave("CLEAN"), slave("CLEAN")]), "one has another master"


def test_a_master_that_may_only_hang_is_looked_at_before_a_slave_is_promoted() -> None:
    hanging = master(error="it does not answer within 5 s", may_run=True)
    text = outage_text([hanging, slave("CLEAN", connected=False)])
    assert text.startswith("a:0 at 127.0.0.1:1 is registered as master but does not answer (")
    assert "could give the set two masters" in text
    assert "make a slave" not in text
    both = outage_text([hanging, slave("CLEAN", connected=False), master(error="refused", name="b")])
    assert "could give the set two masters" in both
    assert both.endswith("make a slave of b the master: `triomq admin role`)")


def test_a_slave_that_does_not_answer_is_no_reason_to_promote_one() -> None:
    text = outage_text([master(), Row(Member("a", 1, "127.0.0.1:2"), None, error="refused")])
    assert text == "a:1 at 127.0.0.1:2 does not answer (start what is missing)"


@pytest.mark.parametrize("rows", [[], [slave("CLEAN")], [slave("CLEAN", connected=False)]])
def test_a_name_server_that_has_just_started_is_named_as_a_cause(rows: list[Row]) -> None:
    text = outage_text(rows)
    assert "the name server has just started" in text
    assert "within 30 seconds" in text


def test_two_brokers_with_one_id_are_named_and_the_hidden_one_is_asked() -> None:
    contested = slave("CLEAN")
    assert contested.status is not None
    contested.status.id_contested_by = "127.0.0.1:3"
    assert _hidden([master(), slave("CLEAN")]) == []
    assert _hidden([master(), contested]) == [Member("a", 1, "127.0.0.1:3")]
    other = Row(Member("a", 1, "127.0.0.1:3"), None, 0, 100)
    assert _hidden([master(), contested, other]) == []
    text = outage_text([master(), contested, other])
    assert text.startswith("a:1 is the id of 127.0.0.1:2 and of 127.0.0.1:3: name servers list only the one")


@pytest.mark.parametrize("number", [0, 1])
def test_a_broker_that_refuses_is_neither_restarted_nor_replaced(number: int) -> None:
    refusing = Row(
        Member("a", number, "127.0.0.1:1"), None, error="No accessKey is configured", may_run=True, refused=True
    )
    others = [slave("CLEAN")] if number == 0 else [master()]
    text = outage_text([refusing, *others])
    assert text.startswith(f"a:{number} at 127.0.0.1:1 refuses to show its state (a broker that refuses runs: ")
    assert "--credentials-file" in text
    for advice in ("does not answer", "hang", "admin role", "start what is missing"):
        assert advice not in text


def test_names_and_errors_of_others_are_printed_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Any client may register any name, and remarks are the brokers'."""
    _print_replication([master(error="refused\nb  0\x1b[2J", name="x\nb\x07")])
    _, line, note = capsys.readouterr().out.splitlines()
    assert line.split()[:3] == ["x\\x0ab\\x07", "0", "127.0.0.1:1"]
    assert note == "127.0.0.1:1: refused\\x0ab  0\\x1b[2J"
