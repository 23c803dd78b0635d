"""The progress of groups, their subscriptions, and copying offsets (docs/protocol/broker-api.md §14)."""

from __future__ import annotations

from typing import Any

import pytest
from loop_lines import lines_of_slices

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import (
    CloneGroupOffsetRequest,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumeStatsInBrokerRequest,
    GetConsumeStatsRequest,
    MessageQueue,
    QueryConsumeTimeSpanBody,
    QueryConsumeTimeSpanRequest,
    QueryCorrectionOffsetBody,
    QueryCorrectionOffsetRequest,
    SubscriptionGroupConfig,
    TopicConfig,
)
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.broker.admin import offsets as offset_admin
from triomq_server.config import BrokerConfig

NOW_MS = 1_795_238_180_000
LIVE = ((0, 7, 1795238155663), (1, 10, 1795238155762), (2, 6, 1795238155774), (3, 6, 1795238154945))


def add_topic(desk: Any, name: str, queues: int, **more: Any) -> None:
    desk.broker.topics.put(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **more))


def make_live(desk: Any) -> None:
    """The topic of the recordings, read to its end by CG_live."""
    add_topic(desk, "TopicLive", 4)
    desk.fill("TopicLive", {queue_id: range(end - count + 1, end + 1) for queue_id, count, end in LIVE})
    for queue_id, count, _ in LIVE:
        desk.broker.offsets.commit("CG_live", "TopicLive", queue_id, count)


async def test_consume_stats_are_the_recorded_ones(desk: Any, exchanges: Any) -> None:
    make_live(desk)
    add_topic(desk, "%RETRY%CG_live", 1)
    desk.store("%RETRY%CG_live", 0, 1795238155877)
    desk.broker.offsets.commit("CG_live", "%RETRY%CG_live", 0, 1)
    # 23 messages within the 30 s that the statistics had run.
    desk.broker.stats.count_get("TopicLive", 0, "CG_live", 22, 1)
    desk.broker.stats.count_get("%RETRY%CG_live", 0, "CG_live", 1, 1)
    for second in range(1, 31):
        desk.broker.stats.sample(NOW_MS + second * 1000)
    request, response = exchanges["208_client_to_master__0_0"]
    assert await desk.frame(request) == response


async def test_tools_of_rocketmq_5_get_an_offset_of_what_has_been_pulled(desk: Any) -> None:
    make_live(desk)
    header = GetConsumeStatsRequest(consumer_group="CG_live", topic="TopicLive")
    for version, expected in ((411, [None] * 4), (513, [7, 10, 6, 6])):
        answer = await desk.ask(RequestCode.GET_CONSUME_STATS, header, version=version)
        offsets = ConsumeStats.decode(answer.body).offset_table.values()
        assert [offset.pull_offset for offset in offsets] == expected


async def stats_of(desk: Any, group: str, topic: str | None = None) -> ConsumeStats:
    header = GetConsumeStatsRequest(consumer_group=group, topic=topic)
    return ConsumeStats.decode((await desk.ask(RequestCode.GET_CONSUME_STATS, header)).body)


async def test_consume_stats_skip_removed_and_unsubscribed_topics(desk: Any, exchanges: Any) -> None:
    make_live(desk)
    add_topic(desk, "Other", 1)
    desk.broker.offsets.commit("CG_live", "Other", 0, 1)
    desk.broker.offsets.commit("CG_live", "Deleted", 0, 1)
    assert {queue.topic for queue in (await stats_of(desk, "CG_live")).offset_table} == {"TopicLive", "Other"}
    await desk.frame(exchanges["34_client_to_master__0_1"][0])  # online, it subscribes TopicLive and its retry topic
    assert {queue.topic for queue in (await stats_of(desk, "CG_live")).offset_table} == {"TopicLive"}
    assert (await stats_of(desk, "CG_live", "Other")).offset_table == {}
    assert (await stats_of(desk, "CG_unknown")).offset_table == {}


async def test_a_queue_never_read_counts_from_zero(desk: Any) -> None:
    add_topic(desk, "T", 2)
    desk.store("T", 1, 1000, 2000)
    desk.broker.offsets.commit("G", "T", 0, 0)
    offset = (await stats_of(desk, "G")).offset_table[MessageQueue("T", "broker-a", 1)]
    assert (offset.broker_offset, offset.consumer_offset, offset.last_timestamp) == (2, 0, 0)


async def test_stats_of_all_groups(desk: Any) -> None:
    add_topic(desk, "T", 1)
    add_topic(desk, "Ordered", 1, order=True)
    desk.store("T", 0, 1000, 2000, 3000)
    desk.store("Ordered", 0, 1000)
    desk.broker.groups.find("G")
    desk.broker.offsets.commit("G", "T", 0, 1)
    desk.broker.offsets.commit("G", "Ordered", 0, 0)

    async def ask(order: bool) -> tuple[dict[str, list[str]], int]:
        answer = await desk.ask(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerRequest(is_order=order))
        body = ConsumeStatsList.decode(answer.body)
        assert body.broker_addr == "127.0.0.1:21510"
        topics = {
            group: [queue.topic for stats in entries for queue in stats.offset_table]
            for entry in body.consume_stats_list
            for group, entries in entry.items()
        }
        return topics, body.total_diff

    topics, diff = await ask(order=False)
    assert topics["G"] == ["T", "Ordered"]
    assert topics["TOOLS_CONSUMER"] == []
    assert diff == 3
    topics, diff = await ask(order=True)
    assert (topics["G"], diff) == (["Ordered"], 1)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": ""}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H", "topic": "", "offline": "true"}),
    ],
)
async def test_many_topics_of_few_queues_are_processed_in_slices(
    desk: Any, client_link: Any, code: int, fields: dict[str, str]
) -> None:
    desk.broker.groups.find("G")
    desk.broker.groups.find("H")
    with desk.broker.topics.saved_once():
        for number in range(1000):
            add_topic(desk, f"T{number}", 8)
            for queue_id in range(8):
                desk.broker.offsets.commit("G", f"T{number}", queue_id, 1)
    slices = lines_of_slices(desk.handlers.sliced[code](client_link(), Command.request(code, fields=fields)))
    assert max(slices) < 80_000


async def test_removed_groups_and_topics_are_skipped_in_slices(desk: Any, client_link: Any) -> None:
    for number in range(4000):
        desk.broker.offsets.commit("G", f"Gone{number}", 0, 1)
    fields = {"consumerGroup": "G", "topic": ""}
    command = Command.request(RequestCode.GET_CONSUME_STATS, fields=fields)
    assert len(lines_of_slices(desk.handlers.sliced[command.code](client_link(), command))) > 4000 / 256


async def test_time_spans_are_the_recorded_ones(desk: Any, exchanges: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_time_zone(monkeypatch)
    add_topic(desk, "TopicLive", 4)
    first_ms = (1795238152352, 1795238154190, 1795238154244, 1795238149323)
    times: dict[int, list[int]] = {}
    for (queue_id, count, last_ms), begin_ms in zip(LIVE, first_ms, strict=True):
        times[queue_id] = [begin_ms, *[begin_ms + 1 + n for n in range(count - 2)], last_ms]
        desk.broker.offsets.commit("CG_live", "TopicLive", queue_id, count)
    desk.fill("TopicLive", times)
    request, response = exchanges["303_client_to_master__0_0"]
    assert await desk.frame(request) == response


def make_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recordings were made in UTC; the answer's texts are local time."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


async def test_time_span_of_a_group_that_lags(desk: Any) -> None:
    add_topic(desk, "T", 1)
    desk.store("T", 0, NOW_MS - 5000, NOW_MS - 3000, NOW_MS - 1000)
    header = QueryConsumeTimeSpanRequest(topic="T", group="G")

    async def span() -> tuple[int, int, int, int]:
        answer = await desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        (found,) = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
        return found.min_time_stamp, found.max_time_stamp, found.consume_time_stamp, found.delay_time

    assert await span() == (NOW_MS - 5000, NOW_MS - 1000, NOW_MS - 5000, 5000)
    desk.broker.offsets.commit("G", "T", 0, 2)
    assert await span() == (NOW_MS - 5000, NOW_MS - 1000, NOW_MS - 3000, 1000)
    desk.broker.offsets.commit("G", "T", 0, 3)
    assert await span() == (NOW_MS - 5000, NOW_MS - 1000, NOW_MS - 1000, 0)


@pytest.mark.parametrize(("compat", "empty", "negative"), [("safe", 0, 5000), ("4.9", NOW_MS + 1, NOW_MS + 1)])
async def test_how_late_4_9_takes_a_group_without_a_next_message(
    desk: Any, config: BrokerConfig, compat: str, empty: int, negative: int
) -> None:
    config.store.compat = compat
    add_topic(desk, "T", 2)
    desk.store("T", 1, NOW_MS - 5000)
    desk.broker.offsets.commit("G", "T", 1, -5)
    answer = await desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequest(topic="T", group="G"))
    spans = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
    assert [span.delay_time for span in spans] == [empty, negative]


async def test_time_span_of_an_empty_and_of_an_unknown_topic(desk: Any) -> None:
    add_topic(desk, "T", 1)
    answer = await desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequest(topic="T", group="G"))
    (span,) = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
    assert (span.min_time_stamp, span.max_time_stamp, span.delay_time) == (-1, -1, 0)
    answer = await desk.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequest(topic="No", group="G"))
    assert (answer.code, answer.remark) == (17, "topic[No] not exist")


async def test_groups_of_a_topic_are_online_ones_and_those_with_offsets(desk: Any, exchanges: Any) -> None:
    await desk.frame(exchanges["34_client_to_master__0_1"][0])
    desk.broker.offsets.commit("CG_sql", "TopicLive", 0, 1)
    request, response = exchanges["300_client_to_master__0_0"]
    assert await desk.frame(request) == response


# -- comparing and copying offsets


async def corrections(desk: Any, filtered: str | None = None) -> dict[int, int]:
    header = QueryCorrectionOffsetRequest(filter_groups=filtered, compare_group="X", topic="T")
    answer = await desk.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
    return QueryCorrectionOffsetBody.decode(answer.body).correction_offsets


async def test_the_smallest_offset_of_all_groups(desk: Any) -> None:
    for group, queue_id, offset in (("A", 0, 7), ("B", 0, 4), ("A", 1, 2), ("B", 2, -1)):
        desk.broker.offsets.commit(group, "T", queue_id, offset)
    desk.broker.offsets.commit("C", "Other", 0, 1)
    assert await corrections(desk) == {0: 4, 1: 2}


@pytest.mark.parametrize(("compat", "left"), [("safe", 4), ("4.9", -1)])
async def test_groups_left_aside_keep_their_offsets_unless_4_9_is_asked_for(
    desk: Any, config: BrokerConfig, compat: str, left: int
) -> None:
    config.store.compat = compat
    desk.broker.offsets.commit("A", "T", 0, 7)
    desk.broker.offsets.commit("B", "T", 0, 4)
    desk.broker.offsets.commit("B", "Other", 0, 4)
    assert await corrections(desk, "B,C") == {0: 7}
    assert desk.broker.offsets.query("B", "T", 0) == left
    assert desk.broker.offsets.query("B", "Other", 0) == left


async def clone(desk: Any, topic: str | None, *, offline: bool = False) -> int:
    header = CloneGroupOffsetRequest(src_group="CG_live", dest_group="Copy", topic=topic, offline=offline)
    answer = await desk.ask(RequestCode.CLONE_GROUP_OFFSET, header)
    assert answer.code == 0
    return int(desk.broker.offsets.query("Copy", "TopicLive", 0))


async def test_offsets_are_copied_by_topic(desk: Any, exchanges: Any) -> None:
    make_live(desk)
    request, response = exchanges["314_client_to_master__0_0"]
    assert await desk.frame(request) == response
    assert await clone(desk, "TopicLive") == 7


@pytest.mark.parametrize(("compat", "copied"), [("safe", 7), ("4.9", -1)])
async def test_without_a_topic_all_are_copied(desk: Any, config: BrokerConfig, compat: str, copied: int) -> None:
    config.store.compat = compat
    make_live(desk)
    assert await clone(desk, None) == copied


@pytest.mark.parametrize(("offline", "copied"), [(False, -1), (True, 7)])
async def test_an_online_source_has_to_subscribe_the_topic(
    desk: Any, exchanges: Any, offline: bool, copied: int
) -> None:
    make_live(desk)
    await desk.frame(exchanges["34_client_to_master__0_1"][0])
    del desk.broker.clients.consumers["CG_live"].subscriptions["TopicLive"]
    assert await clone(desk, "TopicLive", offline=offline) == copied


@pytest.mark.parametrize("name", ["", "a b", "x@y", "g" * 256])
async def test_offsets_are_not_copied_to_what_cannot_be_a_group(desk: Any, name: str) -> None:
    make_live(desk)
    header = CloneGroupOffsetRequest(src_group="CG_live", dest_group=name, topic="TopicLive", offline=True)
    answer = await desk.ask(RequestCode.CLONE_GROUP_OFFSET, header)
    assert (answer.code, "group" in answer.remark) == (1, True)
    assert desk.broker.offsets.query(name, "TopicLive", 0) == -1


async def test_offsets_are_copied_to_a_known_group_whatever_its_name(desk: Any) -> None:
    # RocketMQ's brokers make groups with any name when an operator asks for them.
    make_live(desk)
    desk.broker.groups.table["a b"] = SubscriptionGroupConfig(group_name="a b")
    header = CloneGroupOffsetRequest(src_group="CG_live", dest_group="a b", topic="TopicLive", offline=True)
    assert (await desk.ask(RequestCode.CLONE_GROUP_OFFSET, header)).code == 0
    assert desk.broker.offsets.query("a b", "TopicLive", 0) == 7


async def test_copies_for_unknown_groups_are_limited(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_live(desk)
    queues = len(desk.broker.offsets.queues("CG_live", "TopicLive"))
    monkeypatch.setattr(offset_admin, "MOST_UNEXPECTED", 2 * queues)

    async def copy(group: str) -> int:
        header = CloneGroupOffsetRequest(src_group="CG_live", dest_group=group, topic="TopicLive", offline=True)
        return int((await desk.ask(RequestCode.CLONE_GROUP_OFFSET, header)).code)

    assert [await copy(group) for group in ("A", "B", "A", "C")] == [0, 0, 0, 26]
    desk.broker.groups.find("C")
    assert await copy("C") == 0


async def test_total_of_a_lagging_group_in_the_recorded_form(desk: Any, exchanges: Any) -> None:
    """Every entry of the recorded 317 decodes to what our own encoder writes again."""
    (recorded,) = FrameDecoder().feed(exchanges["317_client_to_master__0_0"][1])
    body = ConsumeStatsList.decode(recorded.body)
    assert body.encode() == recorded.body
    assert body.total_diff == 6
