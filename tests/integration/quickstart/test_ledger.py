"""The quickstart's judge: it must notice each way in which a message can go wrong."""

from triomq_benchmarks.ledger import Ledger, Verdict, digest


def filled(count: int = 3) -> Ledger:
    ledger = Ledger()
    for offset in range(count):
        ledger.acknowledge("q", offset, digest(b"%d" % offset))
    return ledger


def received(ledger: Ledger, *bodies: bytes | None) -> Verdict:
    for offset, body in enumerate(bodies):
        if body is not None:
            ledger.receive("q", offset, digest(body))
    return ledger.verdict()


def test_all_is_well() -> None:
    verdict = received(filled(), b"0", b"1", b"2")
    assert verdict == Verdict(acknowledged=3, received=3, missing=0, differing=0, repeated=0, unknown=0)
    assert verdict.clean


def test_missing_in_the_middle_and_at_the_end() -> None:
    assert received(filled(), b"0", None, b"2").missing == 1
    assert received(filled(), b"0", b"1").missing == 1
    assert not received(filled(), b"0", b"1").clean


def test_another_body() -> None:
    assert received(filled(), b"0", b"X", b"2").differing == 1
    assert received(filled(2), b"1", b"0").differing == 2


def test_twice() -> None:
    ledger = filled()
    ledger.receive("q", 0, digest(b"0"))
    verdict = received(ledger, b"0", b"1", b"2")
    assert (verdict.repeated, verdict.received, verdict.clean) == (1, 4, False)


def test_something_nobody_sent() -> None:
    assert received(filled(), b"0", b"1", b"2", b"3").unknown == 1
    ledger = filled()
    ledger.receive("another queue", 0, digest(b"0"))
    assert received(ledger, b"0", b"1", b"2").unknown == 1


def test_one_place_given_away_twice_is_a_loss() -> None:
    ledger = filled()
    ledger.acknowledge("q", 1, digest(b"the other one"))
    verdict = received(ledger, b"0", b"1", b"2")
    assert (verdict.acknowledged, verdict.missing) == (4, 1)


def test_ends() -> None:
    assert filled(7).ends() == {"q": 7}
