"""Taken ids of a broker set: those of registered brokers, and of brokers that are only offline."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from memory_disk import MemoryDisk

from triomq_server.broker import set_members
from triomq_server.broker.set_members import MOST_MEMBERS, SetMembers
from triomq_server.disk.config_files import ConfigFile

PATH = "/store/triomq/setMembers.json"


@pytest.mark.parametrize(
    ("seen", "listed", "free", "holder_of_1"),
    [
        ([], {}, 1, None),
        ([], {0: "me", 1: "a"}, 2, "a"),
        ([{0: "me", 1: "a"}], {0: "me"}, 2, "a"),
        ([{0: "me", 1: "a", 2: "b"}], {0: "me", 2: "b"}, 3, "a"),
        # One that is listed with another id has the former one no longer.
        ([{0: "me", 1: "a"}], {0: "a"}, 1, None),
        ([{0: "me", 1: "a"}, {0: "a", 2: "me"}], {}, 1, None),
        # Its own former ids belong to no other broker.
        ([{0: "a", 1: "me"}], {0: "a"}, 1, None),
        # A broker that has taken the id counts before the one that had it.
        ([{1: "a"}, {1: "b"}], {1: "b"}, 2, "b"),
    ],
)
def test_ids(seen: list[Mapping[int, str]], listed: Mapping[int, str], free: int, holder_of_1: str | None) -> None:
    members = SetMembers("me")
    for each in seen:
        members.note(each)
    assert members.free_id(listed) == free
    assert members.holder(1, listed) == holder_of_1


async def test_ids_are_kept_over_a_restart() -> None:
    disk = MemoryDisk()
    members = SetMembers("me", ConfigFile(PATH, disk))
    members.load()
    members.note({0: "me", 1: "a"})
    await members.save()
    again = SetMembers("me", ConfigFile(PATH, disk))
    again.load()
    assert again.free_id({}) == 2


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"ids": {"a": "one"}}', b'{"ids": 5}'])
def test_a_damaged_file_does_not_prevent_a_start(text: bytes) -> None:
    disk = MemoryDisk()
    disk.write(PATH, text)
    members = SetMembers("me", ConfigFile(PATH, disk))
    members.load()
    assert members.ids == {}


def test_a_name_server_fills_no_memory() -> None:
    members = SetMembers("me")
    for number in range(3 * MOST_MEMBERS):
        members.note({number: f"a{number}"})
    assert len(members.ids) == MOST_MEMBERS


async def test_brokers_that_are_registered_by_name_have_the_addresses_of_their_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection to the HA port shows an address, never a name."""
    names = {"one:10911": frozenset({"10.0.0.1", "fd00::1"})}

    async def look_up(address: str) -> frozenset[str]:
        return names.get(address, frozenset())

    monkeypatch.setattr(set_members, "ips_of", look_up)
    listed = {1: "one:10911", 2: "two:10911", 3: "0:0:0:0:0:0:0:1:10911", 4: "10.0.0.4:10911"}
    members = SetMembers("me")
    members.note(listed)
    assert members.hosts() == {"::1", "10.0.0.4"}
    await members.look_up(listed.values())
    assert members.hosts() == {"::1", "10.0.0.1", "fd00::1", "10.0.0.4"}
    names.clear()
    await members.look_up(listed.values())
    assert "10.0.0.1" in members.hosts(), "the name service is away"
    members.note({5: "10.0.0.5:10911"})
    assert "10.0.0.5" in members.hosts()


def test_hosts_are_read_from_addresses_only_when_these_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone can connect to the HA port, and each connection asks; name servers may list hundreds of addresses."""
    read: list[str] = []
    monkeypatch.setattr(set_members, "literal_ip", read.append)
    members = SetMembers("me")
    listed = {number: f"10.0.0.{number}:10911" for number in range(1, 200)}
    for _ in range(10):
        members.note(listed)
        members.hosts()
    assert read == list(listed.values())
