"""The table of subscription groups and subscriptionGroup.json (docs/protocol/broker-api.md §13,
docs/protocol/store.md §21-22)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from text_file import TextFile

from triomq_protocol.names import SYSTEM_GROUPS
from triomq_protocol.requests.admin import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq_protocol.requests.registration import DataVersion
from triomq_server.broker.tables.groups import GroupTable
from triomq_server.broker.tables.versioned_table import SMALL_TABLE
from triomq_server.config import BrokerConfig
from triomq_server.disk.config_files import ConfigFileDamaged


def table(file: TextFile | None = None, **settings: Any) -> GroupTable:
    config, _ = BrokerConfig.from_properties({key: str(value) for key, value in settings.items()})
    return GroupTable(config, file, lambda: 77)


def test_unknown_groups_are_made_on_first_use() -> None:
    file = TextFile()
    groups = table(file)
    assert groups.get("g") is None
    made = groups.find("g")
    assert made is not None
    assert made.retry_max_times == 16
    assert made.which_broker_when_consume_slowly == 1
    assert groups.find("g") is made
    assert groups.version == DataVersion(counter=1, timestamp=77)
    assert json.loads(file.text)["subscriptionGroupTable"]["g"]["retryQueueNums"] == 1


@pytest.mark.parametrize(
    ("group", "known"), [("g", False), ("CID_RMQ_SYS_TRANS", True), *((name, True) for name in SYSTEM_GROUPS)]
)
def test_without_auto_creation_only_system_groups_are_made(group: str, known: bool) -> None:
    assert (table(autoCreateSubscriptionGroup="false").find(group) is not None) == known


@pytest.mark.parametrize(
    "text",
    [b"[1]", b'{"subscriptionGroupTable":{"g":5}}', b'{"subscriptionGroupTable":7}', b'{"subscriptionGroupTabel":{}}'],
)
def test_a_file_of_another_shape_stops_the_start_with_its_name(text: bytes) -> None:
    with pytest.raises(ConfigFileDamaged, match=r"table\.json does not hold what it should: .* move it away"):
        table(TextFile(text)).load()


def test_a_file_of_rocketmq_5_is_read() -> None:
    """What it has added to versions and groups has no effect."""
    text = b"""{
        "dataVersion": {"counter": 323, "stateVersion": 0, "timestamp": 77}, "forbiddenTable": {},
        "subscriptionGroupTable": {"g": {
            "attributes": {}, "consumeMessageOrderly": false, "consumeTimeoutMinute": 15, "groupName": "g",
            "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0, "retryMaxTimes": 3, "unheardOf": 1
        }}
    }"""
    groups = table(TextFile(text))
    groups.load()
    assert groups.version == DataVersion(counter=323, timestamp=77)
    assert groups.table["g"].retry_max_times == 3


def test_no_group_is_made_without_a_name() -> None:
    assert table().find("") is None


def test_many_new_groups_together_are_one_write() -> None:
    file = TextFile()
    groups = table(file)
    with groups.saved_once():
        for number in range(100):
            groups.find(f"g{number}")
        assert file.saves == 0
    assert file.saves == 1
    assert "g99" in json.loads(file.text)["subscriptionGroupTable"]
    assert groups.version.counter == 100
    groups.find("later")
    assert file.saves == 2
    with groups.saved_once():
        groups.find("later")
    assert file.saves == 2


async def test_invented_groups_end_at_the_limit_and_an_administrators_do_not() -> None:
    groups = table(maxAutoCreatedGroups=20)
    for number in range(100):
        groups.find(f"g{number}")
    assert len(groups.table) == 20
    remark = groups.full_remark("g99")
    assert remark is not None
    assert "20 groups (maxAutoCreatedGroups)" in remark
    assert groups.find("g0") is not None
    groups.put(SubscriptionGroupConfig(group_name="g99"))
    assert groups.find("g99") is not None
    assert table().full_remark("g") is None


class BackgroundFile(TextFile):
    """A file whose writing in the background takes 0.3 s."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[float] = []

    async def in_background(self, chore: Callable[[], None]) -> None:
        self.begun.append(trio.current_time())
        await trio.sleep(0.3)
        chore()


async def test_an_invented_group_is_written_beside_the_requests_and_not_again_and_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    file = BackgroundFile()
    groups = table(file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(groups.write_changes)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(100):
            groups.find(f"g{number}")
            assert file.saves <= 4
            await trio.sleep(0.1)
        assert 3 <= file.saves <= 4
        await trio.sleep(5)
        assert "g99" in json.loads(file.text)["subscriptionGroupTable"]
        nursery.cancel_scope.cancel()


async def test_name_servers_learn_of_an_invented_group_before_a_thread_encodes_a_long_table(
    autojump_clock: trio.testing.MockClock,
) -> None:
    file = BackgroundFile()
    groups = table(file)
    for number in range(SMALL_TABLE):
        groups.find(f"g{number}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(groups.write_changes)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        groups.find("g")
        await trio.sleep(1)
        assert 0.01 < file.begun[0] - began < 0.1
        nursery.cancel_scope.cancel()


async def test_an_operators_change_waits_for_the_disk_and_the_loop_does_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    file = BackgroundFile()
    groups = table(file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(groups.write_changes)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            groups.put(SubscriptionGroupConfig(group_name=f"g{number}"))
            assert file.saves == number, "nothing is written within the loop"
            began = trio.current_time()
            await groups.saved()
            assert trio.current_time() - began == pytest.approx(0.3), "a change that is waited for makes no pause"
            assert f"g{number}" in json.loads(file.text)["subscriptionGroupTable"]
        nursery.cancel_scope.cancel()
    await groups.saved()


async def test_no_request_waits_for_a_failed_disk_or_an_ended_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    file = BackgroundFile()
    groups = table(file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(groups.write_changes)
        await trio.testing.wait_all_tasks_blocked()
        file.full = True
        groups.put(SubscriptionGroupConfig(group_name="g"))
        await groups.saved()
        assert groups.unsaved
        file.full = False
        groups.put(SubscriptionGroupConfig(group_name="h"))
        nursery.start_soon(groups.saved)
        nursery.cancel_scope.cancel()
    groups.persist_if_unsaved()
    assert {"g", "h"} <= json.loads(file.text)["subscriptionGroupTable"].keys()


def test_removal_counts_once() -> None:
    groups = table()
    groups.put(SubscriptionGroupConfig(group_name="g"))
    assert groups.remove("g")
    assert not groups.remove("g")
    assert groups.version.counter == 2


def test_a_slave_takes_the_masters_table_completely() -> None:
    groups = table()
    received = SubscriptionGroupTable(
        data_version=DataVersion(counter=3, timestamp=4),
        subscription_group_table={"g": SubscriptionGroupConfig(group_name="g", broker_id=5)},
    )
    assert groups.replace_all(received)
    assert list(groups.table) == ["g"]
    assert not groups.replace_all(received)


def test_what_a_slave_makes_itself_leaves_its_version_alone() -> None:
    groups = table(brokerRole="SLAVE", brokerId=1)
    assert groups.find("g") is not None
    assert groups.version == DataVersion(counter=0, timestamp=0)
    assert groups.replace_all(SubscriptionGroupTable(data_version=DataVersion(counter=0, timestamp=77)))
    assert groups.get("g") is None


def test_real_file_survives_load_and_save(vectors: Path) -> None:
    text = json.loads((vectors / "store-small.json").read_text())["configFiles"].get("subscriptionGroup.json")
    if text is None:
        pytest.skip("the recorded store has no such file")
    file = TextFile(text.encode())
    groups = table(file)
    groups.load()
    groups.persist()
    real = json.loads(text)
    ours = json.loads(file.text)
    assert ours["dataVersion"] == real["dataVersion"]
    assert {name: ours["subscriptionGroupTable"][name] for name in real["subscriptionGroupTable"]} == real[
        "subscriptionGroupTable"
    ]
    assert set(text.splitlines()) - set(file.text.decode().splitlines()) <= {"\t\t}", "\t\t},"}


@pytest.mark.parametrize("missing", [{}, {"groupName": "g", "retryMaxTimes": 3}])
def test_missing_members_default(missing: dict[str, object]) -> None:
    file = TextFile(json.dumps({"subscriptionGroupTable": {"g": {"groupName": "g", **missing}}}).encode())
    groups = table(file)
    groups.load()
    assert groups.table["g"].consume_enable
    assert groups.table["g"].retry_max_times == missing.get("retryMaxTimes", 16)
