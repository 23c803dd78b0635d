"""Reading the log of a running broker by log offset (READ_LOG)."""

from __future__ import annotations

from typing import Any

import pytest

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_server.broker.admin.ha import HaRuntimeInfo, SlaveState, ha_status, runtime_info_of
from triomq_server.config import BrokerConfig
from triomq_server.replication.log_copy import READ_LOG, READ_MOST_BYTES, ReadLogRequest


async def read(desk: Any, offset: int, most_bytes: int = 1 << 30, **more: Any) -> Any:
    return await desk.ask(READ_LOG, ReadLogRequest(offset=offset, most_bytes=most_bytes), **more)


async def test_the_log_can_be_read_from_any_byte_up_to_the_end_of_a_file(desk: Any) -> None:
    desk.fill("T", {0: range(1000, 1200)})
    for _ in range(30):
        desk.store("T", 0, 2000, body=b"x" * 4000)
    store = desk.broker.store
    assert store.log_max_offset > store.commitlog.segments.size
    log, answers = b"", 0
    while len(log) < store.log_max_offset:
        answer = await read(desk, len(log))
        assert answer.code == ResponseCode.SUCCESS
        log += answer.body
        answers += 1
    assert answers == len(store.commitlog.segments.items)
    assert log == b"".join(segment.buffer[:] for segment in store.commitlog.segments.items)[: store.log_max_offset]
    assert (await read(desk, 77, 5)).body == log[77:82]


@pytest.mark.parametrize(
    ("offset", "most_bytes"), [(-1, 10), (0, 0), (0, -5), (1 << 62, 10), (-(1 << 63), 1 << 62), (10_000_000, 1)]
)
async def test_bytes_that_are_not_there_are_refused(desk: Any, offset: int, most_bytes: int) -> None:
    desk.fill("T", {0: [1000]})
    answer = await read(desk, offset, most_bytes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "the log reaches from 0 to " in answer.remark


async def test_one_answer_is_bounded(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq_server.broker.admin.ha.READ_MOST_BYTES", 100)
    desk.fill("T", {0: [1000, 1001]})
    assert len((await read(desk, 0, READ_MOST_BYTES)).body) == 100


class TestSlaveAddresses:
    @pytest.fixture
    def config(self, config: BrokerConfig) -> BrokerConfig:
        config.store.ha_slave_addresses = "10.1.0.0/16"
        return config

    @pytest.mark.parametrize(("peer", "known"), [("10.1.2.3:50", True), ("10.2.2.3:50", False)])
    async def test_unlisted_peers_get_no_bytes(self, desk: Any, client_link: Any, peer: str, known: bool) -> None:
        desk.fill("T", {0: [1000]})
        answer = await read(desk, 0, link=client_link(peer))
        assert bool(answer.body) == known
        if not known:
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "is not among haSlaveAddresses" in answer.remark


async def test_a_master_alone_for_tools_of_rocketmq_5(desk: Any) -> None:
    desk.fill("T", {0: [1000]})
    info = HaRuntimeInfo.decode((await desk.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
    assert (info.master, info.master_commit_log_max_offset) == (True, desk.broker.store.log_max_offset)
    assert (info.ha_connection_info, info.in_sync_slave_nums) == ([], 0)


@pytest.mark.parametrize(
    ("acknowledged", "behind", "in_sync"), [(900, 100, True), (900, 1000, False), (-1, 100, False)]
)
async def test_a_slave_for_tools_of_rocketmq_5(
    desk: Any, config: BrokerConfig, acknowledged: int, behind: int, in_sync: bool
) -> None:
    config.store.ha_slave_fallbehind_max = 1000
    status = ha_status(desk.broker, 0.0)
    status.slaves = [
        SlaveState(
            peer="10.0.0.1:5",
            acknowledged=acknowledged,
            behind_bytes=behind,
            sent_bytes=0,
            silent_s=0,
            lost_position=False,
        )
    ]
    info = runtime_info_of(status, desk.broker, 0.0)
    (slave,) = info.ha_connection_info
    assert (slave.addr, slave.slave_ack_offset, slave.diff) == ("10.0.0.1:5", max(acknowledged, 0), behind)
    assert (slave.in_sync, info.in_sync_slave_nums) == (in_sync, int(in_sync))
