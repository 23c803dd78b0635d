"""The metrics of a whole broker and a name server, scraped and read by Prometheus' own parser."""

from __future__ import annotations

import itertools
import json
import random
import re
from importlib.resources import files
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from loop_lines import lines_of_slices
from memory_disk import MemoryDisk
from memory_network import MemoryNetwork
from prometheus_client.parser import text_string_to_metric_families

from triomq_protocol.codes import RequestCode
from triomq_protocol.requests import ConsumerData, HeartbeatData
from triomq_protocol.wire.command import Command
from triomq_server.broker import metrics as broker_metrics
from triomq_server.config import NamesrvConfig
from triomq_server.metrics import server_metrics
from triomq_server.metrics.text import ROWS_PER_LOOK, SLICE_S, Family, TextWriter
from triomq_server.namesrv import metrics as namesrv_metrics
from triomq_server.namesrv import serve_namesrv
from triomq_server.wire import to_the_end


def families(*modules: ModuleType) -> dict[str, Family]:
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Family)]
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


Samples = dict[str, dict[tuple[str, ...], float]]


async def scrape(network: MemoryNetwork, port: int = 9000) -> Samples:
    stream = await network.dial(f"127.0.0.1:{port}")
    await stream.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
    data = b""
    while more := await stream.receive_some():
        data += more
    return parsed(data.partition(b"\r\n\r\n")[2].decode())


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def test_what_a_broker_counts(open_broker: Any) -> None:
    update = {"consumerGroup": 'C"G\n', "topic": "T1", "queueId": "0", "commitOffset": "1"}
    async with open_broker(metricsPort="9000") as broker:
        peer = await broker.peer()
        for _ in range(3):
            await peer.put()
        await peer.pull()
        await peer.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields=update))
        await peer.ask(Command.request(77777))
        found = await scrape(broker.network)
        assert found["triomq_topic_messages_in_total"]["T1",] == 3
        assert found["triomq_topic_bytes_in_total"]["T1",] > 0
        assert sum(found["triomq_group_messages_out_total"].values()) == 3
        assert found["triomq_messages_out_total"][()] == 3
        assert found["triomq_group_lag_messages"]["T1", 'C"G\n', "0"] == 2
        assert found["triomq_group_lag_sum_messages"]['C"G\n',] == 2
        assert found["triomq_connections"][()] == 1
        assert found["triomq_errors_total"]["-1", "3"] == 1
        assert found["triomq_receive_duration_seconds_count"][()] >= 6
        assert found["triomq_requests_total"]["15",] == 1
        assert found["triomq_requests_total"]["-1",] == 1
        assert found["triomq_group_pull_age_seconds_count"] == {("T1", "CG"): 1}
        assert found["triomq_log_end_bytes"][()] > 0


async def test_unknown_codes_that_a_client_answers_are_counted_together(open_broker: Any) -> None:
    codes = [1, 207, 7, -5, 12345, 2**31 - 1]
    ask = {"consumerGroup": "CG", "clientId": "c", "jstackEnable": "false"}
    beat = HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(group_name="CG")])
    async with open_broker(metricsPort="9000") as broker:
        member, tool = await broker.peer(), await broker.peer()
        await member.ask(Command.request(RequestCode.HEART_BEAT, body=beat.encode()))
        for code in codes:
            await tool.send(Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=ask))
            while (asked := await member.receive()).code != RequestCode.GET_CONSUMER_RUNNING_INFO:
                pass
            await member.stream.send_all(asked.answer(code).encode())
            assert (await tool.receive()).code == code
        found = await scrape(broker.network)
        assert found["triomq_errors_total"] == {("307", "-1"): 4, ("307", "1"): 1, ("307", "207"): 1}


async def test_sends_that_wait_for_the_disk_are_timed(open_broker: Any) -> None:
    async with open_broker(metricsPort="9000", flushDiskType="SYNC_FLUSH") as broker:
        peer = await broker.peer()
        await peer.put()
        found = await scrape(broker.network)
        assert found["triomq_send_wait_seconds_count"][()] == 1
        assert found["triomq_topic_send_wait_seconds_count"] == {("T1",): 1}
        assert found["triomq_topic_send_wait_seconds_sum"]["T1",] == pytest.approx(
            found["triomq_send_wait_seconds_sum"][()], abs=1e-6
        )
        assert found["triomq_flush_duration_seconds_count"][()] >= 1


@pytest.mark.parametrize("compiled", [False, True])
async def test_sends_are_counted_by_code_and_the_age_of_what_is_pulled(open_broker: Any, compiled: bool) -> None:
    """Plain sends of one receive, done by the compiled module where there is one, and those that Python does."""
    async with open_broker(metricsPort="9000", **({} if compiled else {"flushDiskType": "SYNC_FLUSH"})) as broker:
        peer = await broker.peer()
        for _ in range(3):
            await peer.put()
        await trio.sleep(7)
        await peer.pull()
        found = await scrape(broker.network)
        assert (
            sum(
                found["triomq_requests_total"][code,]
                for code in ("10", "310")
                if (code,) in found["triomq_requests_total"]
            )
            == 3
        )
        assert found["triomq_requests_total"]["11",] == 1
        ages = found["triomq_group_pull_age_seconds_sum"]
        assert list(ages.values()) == [pytest.approx(7, abs=0.5)]
        assert ("triomq_topic_send_wait_seconds_count" in found) is not compiled


async def test_no_port_unless_asked(open_broker: Any) -> None:
    async with open_broker() as broker:
        with pytest.raises(OSError):
            await scrape(broker.network)


async def test_what_a_name_server_counts() -> None:
    network = MemoryNetwork()
    config = NamesrvConfig(
        kv_config_path="/kv", config_store_path="/c", metrics_port=9001, listen_port=9876, bind_address="127.0.0.1"
    )
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[str]) -> None:
            await serve_namesrv(config, listen=network.listen, disk=MemoryDisk(), task_status=task_status)

        await nursery.start(serve)
        found = await scrape(network, 9001)
        assert found["triomq_namesrv_brokers"][()] == 0
        assert found["triomq_connections"][()] == 0
        names = set(families(namesrv_metrics, server_metrics))
        shown = {re.sub("_(bucket|sum|count)$", "", name) for name in found}
        assert shown <= names
        nursery.cancel_scope.cancel()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    names = families(broker_metrics, server_metrics)
    dashboard = json.loads((files("triomq_server.metrics") / "dashboard.json").read_text())
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            used = re.findall(r"\b(?:triomq|process)_\w+", target["expr"])
            assert used, panel["title"]
            plain = {re.sub("_(bucket|sum|count)$", "", name) if name not in names else name for name in used}
            assert plain <= set(names), panel["title"]
            labels = {label for name in plain for label in names[name].labels} | {"instance", "le"}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]
            asked |= plain
    missing = set(names) - asked
    assert len(missing) < len(names) / 2


async def test_thousands_of_topics_do_not_stop_the_loop(desk: Any) -> None:
    """100,000 queues with a lag: others have their turn whenever 2 ms have passed."""
    broker = desk.broker
    for number in range(25_000):
        broker.offsets.table[f"T{number}@G{number % 100}"] = dict.fromkeys(range(4), 1)
        broker.stats.put_counter(f"T{number}")
    looks = itertools.count()
    writer = TextWriter(lambda: next(looks) * SLICE_S)
    steps = sum(1 for _ in broker_metrics.write_metrics(broker, writer))
    assert steps > 100_000 / ROWS_PER_LOOK / 3
    text = b"".join(writer.finish()).decode()
    assert text.count("triomq_group_lag_messages{") == 100_000
    assert text.count("triomq_group_lag_sum_messages{") == 100


async def test_too_many_queues_are_shown_by_group(desk: Any) -> None:
    broker = desk.broker
    for number in range(2100):
        broker.offsets.table[f"T{number}@G"] = dict.fromkeys(range(100), 1)
    writer = TextWriter()
    for _ in broker_metrics.write_metrics(broker, writer):
        pass
    found = parsed(b"".join(writer.finish()).decode())
    assert "triomq_group_lag_messages" not in found
    assert found["triomq_group_lag_sum_messages"] == {("G",): 0}


@attrs.frozen
class Queue:
    min_offset: int
    max_offset: int


@pytest.mark.parametrize("seed", range(20))
def test_the_lag_of_a_group_is_that_of_its_queues(seed: int) -> None:
    """Whatever offsets are committed: below the start, beyond the end, of queues that are not there."""
    chance = random.Random(seed)
    queues = {}
    for topic in "ab":
        for queue_id in range(chance.randint(0, 4)):
            start = chance.choice((0, 0, 10))
            queues[topic, queue_id] = Queue(start, start + chance.choice((0, 5, 50)))
    table = {}
    for number in range(30):
        values = {
            queue_id: chance.choice((0, 0, 5, 10, 12, 70))
            for queue_id in chance.sample(range(5), chance.choice((0, 1, 4, 4, 5)))
        }
        if chance.random() < 0.5:
            values = dict(sorted(values.items()))
        table[f"{chance.choice('ab')}@G{number % 7}"] = values
    broker: Any = SimpleNamespace(
        offsets=SimpleNamespace(table=table), store=SimpleNamespace(consume_queues=SimpleNamespace(table=queues))
    )
    expected: dict[str, int] = {}
    for key, offsets in table.items():
        topic, _, group = key.partition("@")
        expected.setdefault(group, 0)
        for queue_id, offset in offsets.items():
            queue = queues.get((topic, queue_id), Queue(0, 0))
            expected[group] += max(queue.max_offset - max(offset, queue.min_offset), 0)
    sums: dict[str, int] = {}
    to_the_end(broker_metrics._add_lags(broker, [*table.items(), ("a@deleted", {})], sums))
    assert sums.pop("deleted") == 0
    assert sums == expected


@pytest.mark.parametrize("offset", [5, 50])
@pytest.mark.parametrize("topics", [1, 512])
def test_lags_of_many_queues_are_worked_out_in_slices(offset: int, topics: int) -> None:
    queues = {(f"t{topic}", queue_id): Queue(0, 10) for topic in range(topics) for queue_id in range(256)}
    broker: Any = SimpleNamespace(store=SimpleNamespace(consume_queues=SimpleNamespace(table=queues)))
    pairs = [(f"t{number % topics}@G{number}", dict.fromkeys(range(256), offset)) for number in range(512)]
    sums: dict[str, int] = {}
    assert max(lines_of_slices(broker_metrics._add_lags(broker, pairs, sums))) < 60_000
    assert set(sums.values()) == {max(10 - offset, 0) * 256}


@pytest.mark.parametrize(
    ("deleted", "added"),
    [
        ((), ()),
        ((), ("new@G",)),
        (("T0@G", "T1@G"), ()),
        (("T3000@G",), ()),
        (("T511@G",), ()),  # the last of the first step
        (("T5@G", "T4999@G"), ("new@G", "newer@G")),
    ],
)
def test_keys_that_come_and_go_during_a_scrape_add_no_other_twice(
    deleted: tuple[str, ...], added: tuple[str, ...]
) -> None:
    table = {f"T{number}@G": {0: number} for number in range(5000)}
    steps = broker_metrics._pairs(table)
    first = next(steps)
    assert first is not None
    seen = [key for key, _ in first]
    assert len(seen) == broker_metrics.KEYS_PER_STEP == 512
    for key in deleted:
        del table[key]
    table.update({key: {0: 1} for key in added})
    for part in steps:
        if part is None:
            seen.clear()
        else:
            assert len(part) <= broker_metrics.KEYS_PER_STEP
            seen += [key for key, _ in part]
    assert set(table) <= set(seen)
    assert len(seen) == len(set(seen))


def test_sums_begin_again_when_the_place_in_the_table_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "MOST_LAG_ROWS", 10)
    table = {f"T{number}@G": {0: 0} for number in range(2048)}
    queues = {(f"T{number}", 0): Queue(0, 1) for number in range(2048)}
    broker: Any = SimpleNamespace(
        offsets=SimpleNamespace(table=table), store=SimpleNamespace(consume_queues=SimpleNamespace(table=queues))
    )
    writer = TextWriter()
    for step, _ in enumerate(broker_metrics._write_lag(writer, broker)):
        if not step:
            del table["T511@G"]
    found = parsed(b"".join(writer.finish()).decode())
    assert found["triomq_group_lag_sum_messages"] == {("G",): 2047}
