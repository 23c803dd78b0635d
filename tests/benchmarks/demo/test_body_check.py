"""The quickstart's body check: it must detect every fault of a message."""

from triomq_benchmarks.demo.body_check import BodyCheck, Comparison, digest


def filled(count: int = 3) -> BodyCheck:
    check = BodyCheck()
    for offset in range(count):
        check.acknowledge("q", offset, digest(b"%d" % offset))
    return check


def received(check: BodyCheck, *bodies: bytes | None) -> Comparison:
    for offset, body in enumerate(bodies):
        if body is not None:
            check.receive("q", offset, digest(body))
    return check.compare()


def test_all_is_well() -> None:
    comparison = received(filled(), b"0", b"1", b"2")
    assert comparison == Comparison(acknowledged=3, received=3, missing=0, differing=0, repeated=0, unknown=0)
    assert comparison.clean


def test_missing_in_the_middle_and_at_the_end() -> None:
    assert received(filled(), b"0", None, b"2").missing == 1
    assert received(filled(), b"0", b"1").missing == 1
    assert not received(filled(), b"0", b"1").clean


def test_another_body() -> None:
    assert received(filled(), b"0", b"X", b"2").differing == 1
    assert received(filled(2), b"1", b"0").differing == 2


def test_a_message_received_twice_is_counted() -> None:
    check = filled()
    check.receive("q", 0, digest(b"0"))
    comparison = received(check, b"0", b"1", b"2")
    assert (comparison.repeated, comparison.received, comparison.clean) == (1, 4, False)


def test_a_message_that_was_not_sent() -> None:
    assert received(filled(), b"0", b"1", b"2", b"3").unknown == 1
    check = filled()
    check.receive("another queue", 0, digest(b"0"))
    assert received(check, b"0", b"1", b"2").unknown == 1


def test_an_offset_assigned_twice_is_a_loss() -> None:
    check = filled()
    check.acknowledge("q", 1, digest(b"the other one"))
    comparison = received(check, b"0", b"1", b"2")
    assert (comparison.acknowledged, comparison.missing) == (4, 1)


def test_ends() -> None:
    assert filled(7).ends() == {"q": 7}
