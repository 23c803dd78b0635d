"""Connection: pairing, limits, the end of a link; two of them joined back to back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq_protocol.command import Command
from triomq_protocol.connection import Connection
from triomq_protocol.errors import LocalProtocolError, RemoteProtocolError
from triomq_protocol.events import RequestReceived, ResponseReceived, StrayResponse


def test_an_answer_finds_its_waiter() -> None:
    client, broker = Connection(), Connection()
    frame = client.send_request(Command.request(105, fields={"topic": "T"}), "waiter")
    (event,) = broker.receive_data(frame)
    assert isinstance(event, RequestReceived)
    assert client.pending == 1
    (answer,) = client.receive_data(broker.send_response(event.command.answer(17, "no")))
    assert isinstance(answer, ResponseReceived)
    assert (answer.waiter, answer.command.code, client.pending) == ("waiter", 17, 0)


def test_both_ends_may_use_the_same_number() -> None:
    client, broker = Connection(), Connection()
    asked = client.send_request(Command.request(11), "pull")
    told = broker.send_request(Command.request(307), "info")
    (from_broker,), (from_client,) = client.receive_data(told), broker.receive_data(asked)
    assert isinstance(from_broker, RequestReceived)
    assert isinstance(from_client, RequestReceived)
    assert from_broker.command.opaque == from_client.command.opaque
    (answer,) = broker.receive_data(client.send_response(from_broker.command.answer()))
    assert isinstance(answer, ResponseReceived)
    assert answer.waiter == "info"
    assert (client.pending, broker.pending) == (1, 0)


def test_one_way_requests_wait_for_nothing() -> None:
    client = Connection()
    client.send_request(Command.request(40, oneway=True), "nobody")
    assert client.pending == 0


def test_late_unknown_and_repeated_answers_are_stray() -> None:
    client = Connection()
    command = Command.request(1)
    client.send_request(command, "w")
    assert client.forget(command.opaque) == "w"
    assert client.forget(command.opaque) is None
    answer = command.answer().encode()
    assert all(isinstance(event, StrayResponse) for event in client.receive_data(answer * 2))


def test_an_answer_without_opaque_finds_nobody() -> None:
    client = Connection()
    client.send_request(Command.request(1), "w")
    header = b'{"code":0,"flag":1}'
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    (event,) = client.receive_data(frame)
    assert isinstance(event, StrayResponse)
    assert client.pending == 1


def test_requests_have_a_limit() -> None:
    client = Connection(max_pending=2)
    client.register("a")
    opaque = client.register("b")
    with pytest.raises(LocalProtocolError, match="2 requests"):
        client.register("c")
    client.forget(opaque)
    client.register("c")


def test_numbers_wrap_and_skip_those_in_use() -> None:
    client = Connection()
    first = client.register("old")
    client._last_opaque = 0x7FFFFFFF
    assert client.register("new") == first + 1
    assert client.pending == 2


def test_a_request_that_does_not_fit_leaves_nobody_waiting() -> None:
    client = Connection()
    with pytest.raises(LocalProtocolError):
        client.send_request(Command.request(1, fields={"k": "x" * (1 << 24)}), "w")
    assert client.pending == 0


def test_kinds_are_not_mixed_up() -> None:
    client = Connection()
    with pytest.raises(LocalProtocolError):
        client.send_request(Command.request(1).answer())
    with pytest.raises(LocalProtocolError):
        client.send_response(Command.request(1))


@pytest.mark.parametrize("end", ["receive_eof", "fail"])
def test_the_end_hands_back_who_waits(end: str) -> None:
    client = Connection()
    for waiter in ("a", "b"):
        client.send_request(Command.request(1), waiter)
    assert getattr(client, end)() == ["a", "b"]
    assert getattr(client, end)() == []
    assert client.closed
    with pytest.raises(LocalProtocolError):
        client.send_request(Command.request(1))
    with pytest.raises(LocalProtocolError):
        client.send_response(Command.request(1).answer())
    assert client.receive_data(Command.request(1).encode()) == []


def test_what_stands_in_front_of_broken_input_is_heard() -> None:
    peer = Connection()
    (request,) = peer.receive_data(Command.request(1).encode() + b"\xff\xff\xff\xff")
    assert isinstance(request, RequestReceived)
    assert peer.fault is not None


def test_broken_input_is_told() -> None:
    with pytest.raises(RemoteProtocolError):
        Connection(max_frame_bytes=100).receive_data(b"\x00\x00\x01\x00")


@given(st.lists(st.integers(0, 9), max_size=10), st.randoms())
def test_answers_in_any_order(codes: list[int], order: object) -> None:
    client, broker = Connection(), Connection()
    frames = [client.send_request(Command.request(100, body=bytes([code])), code) for code in codes]
    asked = broker.receive_data(b"".join(frames))
    order.shuffle(asked)  # type: ignore[attr-defined]
    answers = b"".join(broker.send_response(event.command.answer(event.command.body[0])) for event in asked)
    got = client.receive_data(answers)
    assert all(isinstance(event, ResponseReceived) and event.waiter == event.command.code for event in got)
    assert client.pending == 0
