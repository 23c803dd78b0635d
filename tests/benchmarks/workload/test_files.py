"""Workload files: ours, YAML's, OpenMessaging's; nothing unknown, nothing contradictory is let through."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from triomq_benchmarks.workload.bodies import read_payload
from triomq_benchmarks.workload.files import (
    IGNORED_KEYS,
    KEYS,
    OPENMESSAGING_KEYS,
    load_workload,
    ready_workloads,
    workload_from,
)
from triomq_benchmarks.workload.workload import (
    MEASURES,
    Arrivals,
    Fault,
    FaultKind,
    Keys,
    Loop,
    SendMode,
    SlowConsumer,
    Step,
    Threshold,
    Workload,
    WorkloadError,
)

OPENMESSAGING = """
name: 1-topic-16-partitions-1kb
topics: 1
partitionsPerTopic: 16
messageSize: 1024
useRandomizedPayloads: true
randomBytesRatio: 0.5
randomizedPayloadPoolSize: 100
subscriptionsPerTopic: 2
consumerPerSubscription: 3
producersPerTopic: 4
producerRate: 50000
consumerBacklogSizeGB: 0
keyDistributor: "KEY_ROUND_ROBIN"
testDurationMinutes: 15
warmupDurationMinutes: 1
backlogDrainRatio: 1.0
"""


def test_an_openmessaging_workload_runs_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "omb.yaml"
    path.write_text(OPENMESSAGING)
    workload, folder = load_workload(str(path))
    assert folder == tmp_path
    assert workload.name == "1-topic-16-partitions-1kb"
    assert (workload.queues_per_topic, workload.body_bytes, workload.random_share) == (16, 1024, 0.5)
    assert (workload.groups, workload.consumers, workload.producers) == (2, 3, 4)
    assert (workload.rate_per_s, workload.duration_s, workload.warm_up_s) == (50_000, 900, 60)
    assert workload.keys is Keys.ROUND_ROBIN
    assert set(workload.ignored) == {"useRandomizedPayloads", "backlogDrainRatio"}
    assert "pool of generated payloads" in workload.ignored["useRandomizedPayloads"]


def test_our_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        rate = "100/s"
        arrivals = "step"
        steps = ["500/s for 5 s", "1000/s for 15 s"]
        tags = { new = 3, old = 1 }
        send = "async"
        batch = 8
        slow_consumer = "50/s until 8 s"
        faults = ["pause slave at 5 s for 500 ms", "kill broker-a at 10 s"]
        thresholds = "intended_to_consumed.p999_ms <= 12.5"
        [cluster]
        slaves = 1
        memory = "64 MiB"
        settings = { slaveReadEnable = true }
        """
    )
    workload, _ = load_workload(str(path))
    assert workload.name == "mine"
    assert workload.steps == (Step(500, 5), Step(1000, 15))
    assert workload.intended_rate_per_s == pytest.approx((2500 + 15000) / 20)
    assert workload.tags == {"new": 3, "old": 1}
    assert workload.send_mode is SendMode.ASYNC
    assert workload.slow_consumer == SlowConsumer(50, 8)
    assert workload.faults == (
        Fault(FaultKind.PAUSE, "slave", 5, 0.5),
        Fault(FaultKind.KILL, "broker-a", 10, 0),
    )
    assert workload.thresholds == (Threshold("intended_to_consumed.p999_ms", "<=", 12.5),)
    assert workload.cluster.memory_bytes == 64 << 20
    assert workload.cluster.settings == {"slaveReadEnable": "true"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rat": "5/s"}, "unknown key rat: did you mean rate?"),
        ({"producersPerTopc": 3}, "did you mean producersPerTopic?"),
        ({"cluster": {"slave": 1}}, "did you mean cluster.slaves?"),
        ({"xyzzy": 1}, "unknown key xyzzy: there are name, "),
        ({"duration": 20}, 'duration: 20 is a duration without its unit; write it like "20 s"'),
        ({"body": "1 s"}, "'s' is not a unit of a size"),
        ({"producerRate": 0}, "--find-max-rate"),
        ({"producerRate": 0}, "--set loop=closed --set producerRate=1000"),
        ({"duration": "20 s", "testDurationMinutes": 1}, "duration and testDurationMinutes mean the same"),
        ({"send": "fast"}, "'fast' is none of sync, async, callback, oneway"),
        ({"faults": "explode master at 3 s"}, "'explode' is not a fault"),
        ({"faults": "kill master"}, "is not a fault; write it like"),
        ({"faults": "kill master at 3 s for 2 s"}, "what is killed stays down"),
        ({"faults": "kill master at 99 s"}, "comes after the end of the run"),
        ({"thresholds": ["p98_ms < 3"]}, "'p98_ms' is not a measure"),
        ({"thresholds": ["p99_ms below 3"]}, "is not a threshold"),
        ({"topics": "many"}, "'many' is not a whole number"),
        ({"topics": 0}, "topics must be at least 1"),
        ({"body": "23 bytes"}, "a body of 23 bytes is too small"),
        ({"body": "4097 KiB"}, "a body of 4195328 bytes is too large: producers send at most 4194304"),
        ({"payloads": 2**40}, "would take more than 4 GiB of memory; set fewer payloads"),
        ({"body": "4 MiB", "producers": 40}, "would take more than 4 GiB of memory"),
        ({"arrivals": "ramp"}, "a ramp needs rate and rate_to"),
        ({"rate_to": "5/s"}, "only a ramp has rate_to"),
        ({"arrivals": "step"}, "arrivals in steps need steps"),
        ({"loop": "closed", "arrivals": "poisson"}, "a closed loop has no timetable"),
        ({"rate": 0}, "an open loop needs a rate"),
        ({"batch": 4}, 'batches are sent with send = "sync" or "async"'),
        ({"consumers": 5, "queues": 4}, "more consumers than queues"),
        ({"consume": "none", "backlog": "1 MiB"}, "a backlog is there to be consumed"),
        ({"read_preference": "nearest"}, "read_preference is one of"),
        ({"tags": {"a": -1}}, "weights of tags"),
        ({"tags": {"a": math.nan, "b": 1}}, "weights of tags are numbers from 0 to 1e+09"),
        ({"tags": {"a": math.inf}}, "weights of tags"),
        ({"tags": {"a": 10**400}}, "weights of tags"),
        ({"thresholds": ["p99_ms < 1.2.3"]}, "is not a threshold"),
        ({"thresholds": ["p99_ms < ."]}, "is not a threshold"),
        ({"warmupDurationMinutes": -1}, "warm-up and backlog are not negative"),
        ({"consumerBacklogSizeGB": -1}, "warm-up and backlog are not negative"),
        ({"topic_names": ["a", "b", "a"]}, "topic_names has a topic twice"),
        ({"cluster": {"slaves": -1}}, "at least 1 master"),
        ({"consume": "none", "cluster": {"masters": 0}}, "at least 1 master"),
        ({"cluster": {"masters": 27}}, "at most 26"),
        ({"steps": ["500/s"]}, "is not a step"),
        ({"slow_consumer": "slow"}, "does not give the rate of slow consumers"),
        ({"cluster": 3}, "is not a table"),
        ({"keyDistributor": ["NO_KEY"]}, "['NO_KEY'] is none of NO_KEY, KEY_ROUND_ROBIN"),
        ({"producerRate": 10**400}, "it is not a finite number"),
        ({"consumerBacklogSizeGB": math.inf}, "it is not a finite number"),
        ({"testDurationMinutes": math.nan}, "it is not a finite number"),
        ({"body": "9" * 400 + " GiB"}, "is too large"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_remedy(values: dict[str, object], says: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        workload_from(values, "mine.toml")
    assert says in str(caught.value)
    assert "mine" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.toml", "rate = ", "is not TOML"),
        ("a.yaml", "rate: [", "is not YAML"),
        ("a.yaml", "- 1", "has no keys"),
        ("a.json", "{}", "a workload is a .toml or a .yaml file"),
        ("missing.toml", None, "cannot be read"),
        ("a.toml", "\xff", "is not text in UTF-8"),
        ("a.yaml", "\xff", "is not text in UTF-8"),
        ("a.toml", "x = " + "[" * 20_000, "is not TOML"),
        ("a.yaml", "[" * 20_000, "is not YAML"),
        ("a.toml", "rate = " + "9" * 5000, "is not TOML"),
        ("a.yaml", "rate: " + "9" * 5000, "is not YAML"),
        ("a.yaml", "rate: !!bool maybe", "is not YAML"),
        ("a.yaml", "rate: !!int ''", "is not YAML"),
    ],
)
def test_files_that_are_no_workloads(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, "latin-1")
    with pytest.raises(WorkloadError, match=says):
        load_workload(str(tmp_path / name))


def test_a_ready_workload_that_is_not_there() -> None:
    with pytest.raises(WorkloadError, match=r"did you mean quick\?"):
        load_workload("quik")


def test_changes_from_the_command_line() -> None:
    workload, _ = load_workload("quick", ["rate=2000/s", 'duration="5 s"', "cluster.slaves=1", "testDurationMinutes=2"])
    assert workload.rate_per_s == 2000
    assert workload.duration_s == 120
    assert workload.cluster.slaves == 1
    with pytest.raises(WorkloadError, match="write it like --set rate=2000/s"):
        load_workload("quick", ["rate"])
    with pytest.raises(WorkloadError, match="rate: "):
        load_workload("quick", ["rate=" + "9" * 5000])
    with pytest.raises(WorkloadError, match=r"--set rate.x: rate is 5, and not a table"):
        load_workload("quick", ["rate=5", "rate.x=1"])


def test_the_ready_workloads() -> None:
    ready = ready_workloads()
    assert set(ready) == {"quick", "send-latency", "throughput", "slow-consumer", "failover", "backlog-drain"}
    for name, workload in ready.items():
        assert workload.name == name
        assert workload.description
        assert workload.thresholds
    assert ready["quick"].duration_s + ready["quick"].warm_up_s == 20
    assert ready["throughput"].loop is Loop.CLOSED
    assert ready["send-latency"].arrivals is Arrivals.POISSON
    assert ready["slow-consumer"].cluster.slaves == 1


def test_every_key_leads_to_a_setting_and_back() -> None:
    fields = {field for field, _ in KEYS.values()}
    assert fields <= set(Workload(name="x").settings())
    settings = Workload(name="x", thresholds=(Threshold.parse("p99_ms < 50"),)).settings()
    assert msgspec.json.decode(msgspec.json.encode(settings))["thresholds"] == ["p99_ms < 50"]
    assert "p99_ms" in MEASURES


def test_payload_files(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes(100))
    assert len(read_payload(Workload(name="x", payload_file="body"), tmp_path)) == 100
    (tmp_path / "tiny").write_bytes(bytes(10))
    with pytest.raises(WorkloadError, match="has 10 bytes"):
        read_payload(Workload(name="x", payload_file="tiny"), tmp_path)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_payload(Workload(name="x", payload_file="gone"), tmp_path)


PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "measure.md").read_text()


def test_the_documented_workload_is_one(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(PAGE.split("```toml\n")[1].split("```")[0])
    workload, _ = load_workload(str(tmp_path / "orders.toml"))
    assert workload.cluster.masters == 2
    assert len(workload.faults) == 2


def test_every_key_is_documented() -> None:
    table = PAGE.split("| key | meaning, default |")[1].split("Durations, sizes")[0]
    assert [key for key in KEYS if f"`{key}`" not in table and key not in {"name", "description"}] == []
    assert [key for key in (*OPENMESSAGING_KEYS, *IGNORED_KEYS) if f"`{key}`" not in PAGE] == []
    assert [measure for measure in MEASURES if "." not in measure and f"`{measure}`" not in PAGE] == []
