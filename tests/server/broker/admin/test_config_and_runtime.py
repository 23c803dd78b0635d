"""The broker's settings, its statistics and its queues as operators see them (docs/protocol/broker-api.md §15, §16)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio
from memory_disk import MemoryDisk

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    BrokerStatsData,
    GetBrokerConfigResponse,
    KVTable,
    QueryConsumeQueueBody,
    QueryConsumeQueueRequest,
    ViewBrokerStatsDataRequest,
)
from triomq_protocol.wire.fastjson import loads
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker.admin.runtime import _bytes_text, _duration_text, sample_stats
from triomq_server.compiled import STATE
from triomq_server.config import BrokerConfig, BrokerRole, dump_properties, load_properties
from triomq_server.disk.config_files import ConfigFile

NOW_MS = 1_795_238_180_000

# -- 25, 26


async def settings(desk: Any) -> tuple[dict[str, str], dict[str, int]]:
    answer = await desk.ask(RequestCode.GET_BROKER_CONFIG)
    version = answer.header(GetBrokerConfigResponse).version
    lines = answer.body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines), json.loads(version)


async def test_settings_are_listed_with_a_version(desk: Any) -> None:
    values, version = await settings(desk)
    assert values["brokerName"] == "broker-a"
    assert values["flushDiskType"] == "ASYNC_FLUSH"
    assert values["aclEnable"] == "false"
    assert "haMasterAddress" not in values
    assert len(values) > 170
    assert version == {"counter": 0, "timestamp": NOW_MS}


async def test_settings_change_while_the_broker_runs(desk: Any, config: BrokerConfig) -> None:
    called: list[str] = []
    desk.broker.on_config_change.append(lambda: called.append("changed"))
    desk.clock.now_ms += 5
    body = b"# from an operator\nflushConsumerOffsetInterval=1000\nslaveReadEnable=true\nnoSuchKey=1\n"
    assert (await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
    values, version = await settings(desk)
    assert config.flush_consumer_offset_interval == 1000
    assert values["slaveReadEnable"] == "true"
    assert "noSuchKey" not in values
    assert version == {"counter": 1, "timestamp": NOW_MS + 5}
    assert called == ["changed"]


async def test_changed_settings_are_written_to_the_file_the_broker_was_started_with(desk: Any) -> None:
    disk = MemoryDisk()
    disk.make_directory("/conf")
    desk.broker.config_file = ConfigFile("/conf/broker.conf", disk)
    await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=north\n")
    written = load_properties(disk.read("/conf/broker.conf"))
    assert (written["regionId"], written["brokerName"]) == ("north", "broker-a")


@pytest.mark.parametrize(("log", "written"), [(None, None), ("/fast/log", "/fast/log")])
async def test_the_written_place_of_the_log_is_one_that_was_given(
    desk: Any, config: BrokerConfig, log: str | None, written: str | None
) -> None:
    """A store that is moved takes its log with it. RocketMQ writes no place either."""
    disk = MemoryDisk()
    disk.make_directory("/conf")
    desk.broker.config_file = ConfigFile("/conf/broker.conf", disk)
    config.store.store_path_commit_log = log or f"{config.store.store_path_root_dir}/commitlog"
    await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=north\n")
    assert load_properties(disk.read("/conf/broker.conf")).get("storePathCommitLog") == written
    assert (await settings(desk))[0]["storePathCommitLog"] == config.store.store_path_commit_log


async def test_settings_that_cannot_be_written_are_in_force_nevertheless(
    desk: Any, config: BrokerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    disk.make_directory("/conf")
    disk.write("/conf/broker.conf", b"regionId=south\n")

    def refuse(path: str, data: bytes, *, sync: bool = True) -> None:
        raise OSError(28, "No space left on device")

    disk.write = refuse  # type: ignore[method-assign]
    desk.broker.config_file = ConfigFile("/conf/broker.conf", disk)
    for _ in range(2):
        answer = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=north\n")
        assert answer.code == 1
        assert "No space left on device" in answer.remark
    assert config.region_id == "north"
    assert disk.read("/conf/broker.conf") == b"regionId=south\n"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "/conf/broker.conf cannot be written: [Errno 28] No space left on device; changed settings are in force until "
        "this broker stops; change one again once it can be written"
    )


async def test_another_permission_makes_the_broker_register_again(desk: Any) -> None:
    notified: list[Any] = []
    desk.broker.topics.on_change = notified.append
    before = desk.broker.topics.version.counter
    await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=north\n")
    assert notified == []
    await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")
    assert notified == [None]
    assert desk.broker.topics.version.counter == before + 1


@pytest.mark.parametrize(
    ("now", "wanted", "code"),
    [
        ("ASYNC_MASTER", b"SLAVE", 1),
        ("SLAVE", b"ASYNC_MASTER", 1),
        ("SLAVE", b"SYNC_MASTER", 1),
        ("ASYNC_MASTER", b"SYNC_MASTER", 0),
        ("SLAVE", b"SLAVE", 0),
    ],
)
async def test_settings_alone_make_no_master_and_no_slave(
    desk: Any, config: BrokerConfig, now: str, wanted: bytes, code: int
) -> None:
    config.store.broker_role = BrokerRole(now)
    answer = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=north\nbrokerRole=" + wanted + b"\n")
    assert answer.code == code
    if code:
        assert "triomq admin role" in answer.remark
        assert (config.store.broker_role, config.region_id) == (now, "DefaultRegion")
        assert (await settings(desk))[1]["counter"] == 0
    else:
        assert config.region_id == "north"
        assert config.store.broker_role == wanted.decode()


@pytest.mark.parametrize(
    "line",
    [
        "storePathRootDir=nope",
        "storePathRootDir=/tmp/a\\u0000b",
        "storePathCommitLog=elsewhere",
        "registerBrokerTimeoutMills=-1",
        "deleteCommitLogFilesInterval=-1",
        "deleteConsumeQueueFilesInterval=9223372036854775807",
        "flushIntervalCommitLog=0",
        "diskSpaceWarningLevelRatio=nan",
        "fileReservedTime=x",
        "slaveTimeout=" + "9" * 5000,
        "brokerRole=Slave",
        "brokerName=another",
        "listenPort=1",
        "mappedFileSizeCommitLog=1",
        "messageDelayLevel=never",
        "haHousekeepingInterval=5000",
        "maxIndexNum=3",
        "namesrvAddr=nowhere",
        "namesrvAddr=a:99999",
        "namesrvAddr=" + ";".join(f"10.0.0.1:{port}" for port in range(1000, 1100)),
        "regionId=a\\u0001b",
        "regionId=a\\nb",
        "regionId=" + "r" * 256,
        "regionId=\u00e9",
        "compat=4.9",
    ],
)
async def test_an_unusable_setting_changes_nothing(desk: Any, line: str) -> None:
    before = await settings(desk)
    answer = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"flushDelayOffsetInterval=77\n{line}\n".encode())
    assert answer.code == 1
    assert line.partition("=")[0] in answer.remark
    assert len(answer.remark) < 1000
    assert await settings(desk) == before


async def test_paths_and_ports_may_be_repeated_as_they_are(desk: Any) -> None:
    """A tool may send all the settings that it was given, with one of them changed."""
    values, _ = await settings(desk)
    body = dump_properties(values | {"flushDelayOffsetInterval": "77"}).encode()
    assert (await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
    assert (await settings(desk))[0] == values | {"flushDelayOffsetInterval": "77"}


async def test_settings_that_no_tool_would_send_are_not_read(desk: Any) -> None:
    answer = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"regionId=\\\n" * 10_000)
    assert answer.code == 1
    assert "at most 65536" in answer.remark


async def test_the_log_shows_changed_settings_on_one_line(desk: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "triomq_server"):
        body = b"slaveReadEnable=true\nx\\nERROR\\ forged=1\\nERROR forged too\ncolour=true\\nERROR forged\n"
        assert (await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
    assert any("slaveReadEnable=true" in record.getMessage() for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)


async def test_the_response_names_what_waits_for_the_next_start(desk: Any) -> None:
    answer = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxConnections=7\ntraceOn=false\n")
    assert (answer.code, answer.remark) == (0, "maxConnections=7 takes effect at the next start")


async def test_settings_that_are_no_settings(desk: Any) -> None:
    assert (await desk.ask(RequestCode.UPDATE_BROKER_CONFIG)).code == 0
    answer = await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"a=\\u12")
    assert (answer.code, answer.remark) == (1, "string2Properties error")
    assert (await settings(desk))[1]["counter"] == 0


# -- 50-54


@pytest.mark.parametrize(("code", "failure"), [(50, 209), (51, 210), (53, 211)])
async def test_accounts_cannot_be_changed_without_access_control(desk: Any, code: int, failure: int) -> None:
    assert (await desk.ask(code, fields={"accessKey": "abcdefgh"})).code == failure


async def test_accounts_cannot_be_listed_without_access_control(desk: Any, exchanges: Any) -> None:
    request, response = exchanges["52_client_to_master__oneway_0"]
    assert response is None
    assert await desk.frame(request) is None


# -- 28


async def runtime(desk: Any) -> dict[str, str]:
    return KVTable.decode((await desk.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table


async def test_runtime_info_has_the_recorded_keys(desk: Any, exchanges: Any) -> None:
    (recorded,) = FrameDecoder().feed(exchanges["28_client_to_master__0_0"][1])
    theirs = {
        re.sub("_store.*", "_/store/commitlog", key)
        for key in KVTable.decode(recorded.body).table
        if not key.startswith("scheduleMessageOffset_")  # one per level in use
    }
    ours = {key for key in await runtime(desk) if key.startswith("triomq")}
    of_5 = {"brokerActive", "getTransferredTps"}
    assert set(await runtime(desk)) - ours - of_5 == theirs


async def test_runtime_info_shows_what_connections_hold(desk: Any, client_link: Any) -> None:
    desk.broker.unsent.limit_bytes = 1000
    link = client_link()
    desk.broker.unsent.count(link, 700)
    desk.broker.incomplete_frames.count(link, 30)
    table = await runtime(desk)
    assert (table["triomqUnsentBytes"], table["triomqUnsentLimitBytes"], table["triomqUnsentClosedLinks"]) == (
        "700", "1000", "0"
    )  # fmt: skip
    assert table["triomqIncompleteFrameBytes"] == "30"


async def test_runtime_info_counts_traffic(desk: Any) -> None:
    stats = desk.broker.stats
    stats.sample(NOW_MS)
    stats.count_put("T", 50, 5000)
    stats.count_get("T", 0, "G", 30, 3000)
    stats.count_miss()
    for second in range(1, 11):
        stats.sample(NOW_MS + second * 1000)
    desk.clock.now_ms += 90_061_000
    table = await runtime(desk)
    assert table["msgPutTotalTodayNow"] == "50"
    assert table["msgGetTotalTodayNow"] == "30"
    assert table["putTps"] == "5.0  "
    assert table["getFoundTps"] == "0.1  "
    assert table["getMissTps"] == "0.1  "
    assert table["getTransferedTps"] == "3.0  "
    assert table["getTotalTps"] == "0.2 0.0 0.0"
    assert table["putMessageAverageSize"] == "100.0"
    assert table["putMessageSizeTotal"] == "5000"
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["bootTimestamp"] == str(NOW_MS)
    assert table["triomqCompiled"] == STATE


async def test_the_timer_samples_every_second_and_midnight_is_marked(
    desk: Any, autojump_clock: trio.testing.MockClock
) -> None:
    desk.broker.stats.count_put("T", 3, 300)
    desk.broker.stats.count_get("T", 0, "G", 2, 200)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sample_stats, desk.broker)
        await trio.sleep(10.5)
        desk.clock.now_ms += 86_400_000
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    table = await runtime(desk)
    assert (table["msgPutTotalTodayMorning"], table["msgGetTotalTodayMorning"]) == ("3", "2")
    assert table["putTps"] != "  "


async def test_runtime_info_shows_how_long_puts_and_gets_took(
    desk: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sample_stats, desk.broker)
        await trio.sleep(1.5)
        desk.broker.stats.count_put("T", 100, 300, calls=100)
        desk.broker.store.times.appended(0.0301, 10)
        desk.broker.store.times.read(0.004)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    table = await runtime(desk)
    assert table["putMessageDistributeTime"].startswith("[<=0ms]:90 [0~10ms]:0 [10~50ms]:10 [50~100ms]:0 ")
    assert (table["putMessageEntireTimeMax"], table["getMessageEntireTimeMax"]) == ("30", "4")
    assert (table["putLatency99"], table["putLatency999"]) == ("29.80", "29.80")


@pytest.mark.parametrize("step_ms", [-5 * 3_600_000, 5 * 3_600_000])
async def test_statistics_go_on_when_the_wall_clock_is_set(
    desk: Any, autojump_clock: trio.testing.MockClock, step_ms: int
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sample_stats, desk.broker)
        await trio.sleep(60.5)
        desk.clock.now_ms += step_ms
        for second in range(70):
            if second == 5:
                assert (await runtime(desk))["putTps"].split()[0] == "2.5"
            desk.broker.stats.count_put("T", 5, 500)
            desk.clock.now_ms += 1000
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    statistic = desk.broker.stats.statistic("TOPIC_PUT_NUMS", "T")
    assert (statistic.minute.sum, statistic.minute.tps) == (300, 5.0)
    assert (await runtime(desk))["putTps"].split() == ["5.0", "5.0"]


async def test_runtime_info_knows_the_log(desk: Any) -> None:
    desk.store("T", 0, 1000, 2000)
    table = await runtime(desk)
    assert table["commitLogMinOffset"] == "0"
    assert int(table["commitLogMaxOffset"]) == desk.broker.store.log_max_offset > 0
    assert table["remainHowManyDataToFlush"] == _bytes_text(int(table["commitLogMaxOffset"]))
    assert table["remainTransientStoreBufferNumbs"] == "2147483647"
    await desk.broker.store.flush()
    assert (await runtime(desk))["remainHowManyDataToFlush"] == "0 B"
    assert re.fullmatch(r"-?\d\.\d\d", table["commitLogDiskRatio"])
    assert re.fullmatch(r"Total : [\d.]+ \w*B, Free : [\d.]+ \w*B\.", table["commitLogDirCapacity"])


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3420, "3.3 KiB"),
        (1 << 20, "1.0 MiB"),
        (252 << 30, "252.0 GiB"),
    ],
)
def test_amounts_of_bytes_as_text(size: int, text: str) -> None:
    assert _bytes_text(size) == text


def test_a_duration_as_text() -> None:
    assert _duration_text(96_000) == "[ 0 days, 0 hours, 1 minutes, 36 seconds ]"


# -- 315


async def test_statistics_as_recorded(desk: Any, exchanges: Any) -> None:
    for _ in range(26):
        desk.broker.stats.count_put("TopicLive", 1, 100)
    desk.broker.stats.count_put("TopicLive", 3, 300)
    for second in range(1, 31):
        desk.broker.stats.sample(NOW_MS + second * 1000)
    request, response = exchanges["315_client_to_master__0_0"]
    assert await desk.frame(request) == response


async def test_statistics_of_nothing(desk: Any) -> None:
    header = ViewBrokerStatsDataRequest(stats_name="TOPIC_PUT_NUMS", stats_key="T")
    answer = await desk.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)
    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist")
    desk.broker.stats.count_put("T", 1, 1)
    answer = await desk.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)
    minute = BrokerStatsData.decode(answer.body).stats_minute
    assert minute is not None
    assert minute.sum == 0


# -- 321


async def entries(desk: Any, index: int, count: int = 10, group: str | None = None) -> Any:
    header = QueryConsumeQueueRequest(topic="TopicLive", queue_id=0, index=index, count=count, consumer_group=group)
    return await desk.ask(RequestCode.QUERY_CONSUME_QUEUE, header)


async def test_entries_of_a_consume_queue(desk: Any, exchanges: Any) -> None:
    answer = await entries(desk, 0)
    assert (answer.code, answer.remark) == (1, "0@TopicLive is not exist!")
    offsets = desk.store("TopicLive", 0, *range(1000, 8000, 1000))
    await desk.frame(exchanges["34_client_to_slave__0_0"][0])
    (answer,) = FrameDecoder().feed(await desk.frame(exchanges["321_client_to_master__0_0"][0]))
    (recorded,) = FrameDecoder().feed(exchanges["321_client_to_master__0_0"][1])
    ours, theirs = (QueryConsumeQueueBody.decode(body) for body in (answer.body, recorded.body))
    assert [entry.physic_offset for entry in ours.queue_data] == offsets[:3]
    # All else is as recorded, down to the bytes.
    for entry, their_entry in zip(ours.queue_data, theirs.queue_data, strict=True):
        entry.physic_offset, entry.physic_size = their_entry.physic_offset, their_entry.physic_size
    ours.subscription_data.sub_version = theirs.subscription_data.sub_version
    assert ours.encode() == recorded.body
    assert answer.remark == recorded.remark


async def test_entries_stop_at_the_end_and_groups_may_be_offline(desk: Any) -> None:
    desk.store("TopicLive", 0, 1000, 2000)
    answer = await entries(desk, 1, group="G")
    body = QueryConsumeQueueBody.decode(answer.body)
    assert len(body.queue_data) == 1
    assert body.filter_data == "G@TopicLive is not online!"
    assert "filterData" not in loads((await entries(desk, 1)).body)
    assert loads((await entries(desk, 1, group="")).body)["filterData"] == "@TopicLive is not online!"
    answer = await entries(desk, 2)
    assert (answer.code, answer.remark, answer.body) == (0, "Index 2 of 0@TopicLive is not exist!", b"")
