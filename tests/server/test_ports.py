"""The ports of servers for which none are given."""

import errno
import socket

import pytest

from triomq_server import ports
from triomq_server.ports import free_ports, reserved_ports


def test_ports_are_far_enough_apart_for_a_brokers_three() -> None:
    found = free_ports(50)
    assert len({near for port in found for near in (port - 2, port, port + 1)}) == 150
    with pytest.raises(OSError, match=r"no 100000 free ports on 127\.0\.0\.1 between 15000 and 32000"):
        free_ports(100_000)


def test_each_call_chooses_others() -> None:
    assert set(free_ports(20)) != set(free_ports(20))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("distance", [-2, 0, 1])
def test_a_port_is_free_when_all_three_are(monkeypatch: pytest.MonkeyPatch, host: str, distance: int) -> None:
    (port,) = free_ports(1, host)
    monkeypatch.setattr(ports, "_FREE", range(port, port + 1))
    assert free_ports(1, host) == [port]
    with socket.socket() as taken:
        taken.bind((host, port + distance))
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_reserved_ports_are_free_for_servers_only(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    (port,) = free_ports(1, host)
    monkeypatch.setattr(ports, "_FREE", range(port, port + 1))
    with reserved_ports(1, host) as found:
        assert found == [port]
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1, host)
        for _ in range(2):  # a server, and the same one started again
            for near in (port - 2, port, port + 1):
                socket.create_server((host, near)).close()
    assert free_ports(1, host) == [port]


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.EMFILE, "Too many open files"), (errno.EADDRNOTAVAIL, "Cannot assign requested address")],
)
def test_what_holds_for_all_ports_is_named_at_once(monkeypatch: pytest.MonkeyPatch, number: int, text: str) -> None:
    tries = []

    def fail(*_: object, **__: object) -> None:
        tries.append(1)
        raise OSError(number, text)

    monkeypatch.setattr(ports, "_probe", fail)
    with pytest.raises(OSError, match=rf"no port on 127\.0\.0\.1 can be used: {text}") as raised:
        free_ports(1)
    assert raised.value.errno == number
    assert len(tries) == 1
