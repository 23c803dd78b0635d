"""Which ids of a broker set are taken: by the brokers that are registered, and by those that only are away."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from memory_disk import MemoryDisk

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
        # Its own former ids are nobody else's.
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


async def test_ids_outlive_the_process() -> None:
    disk = MemoryDisk()
    members = SetMembers("me", ConfigFile(PATH, disk))
    members.load()
    members.note({0: "me", 1: "a"})
    await members.save()
    again = SetMembers("me", ConfigFile(PATH, disk))
    again.load()
    assert again.free_id({}) == 2


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"ids": {"a": "one"}}', b'{"ids": 5}'])
def test_a_damaged_file_prevents_no_start(text: bytes) -> None:
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
