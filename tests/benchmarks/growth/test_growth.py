"""Growth: the stores that are written for it, and the command, as short as it can be."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from triomq_benchmarks.__main__ import bench
from triomq_benchmarks.clusters.processes import ChildError
from triomq_benchmarks.growth import points, stores
from triomq_benchmarks.growth.points import Point, Term
from triomq_protocol.record.view import RecordView


def test_the_files_of_a_long_log_take_no_space(tmp_path) -> None:
    stores.write_log(tmp_path, "bench", 3, file_bytes=1 << 24)
    files = sorted((tmp_path / "broker" / "store" / "commitlog").iterdir())
    assert [(file.name, file.stat().st_size) for file in files] == [(f"{n << 24:020}", 1 << 24) for n in range(3)]
    assert sum(file.stat().st_blocks * 512 for file in files) < 1 << 20
    for number, file in enumerate(files):
        record = RecordView(file.read_bytes())
        assert (record.topic, record.queue_offset, record.physical_offset) == ("bench", number, number << 24)


def test_a_broker_finds_what_was_written_for_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(points, "IDLE_S", 0.05)
    monkeypatch.setattr(points, "QUIET_AFTER_S", 0.05)
    terms = (Term("topics", (), (20,)), Term("groups", (), (20,)), Term("log-gib", (), (1,)))
    monkeypatch.setattr("triomq_benchmarks.commands.measurements.growth.TERMS", terms)
    done = CliRunner().invoke(
        bench, ["growth", "--quick", "--messages", "64", "--json", "--home", str(tmp_path)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)["points"]
    assert [(each["term"], each["count"]) for each in found] == [("topics", 20), ("groups", 20), ("log-gib", 1)]
    assert all(each["start_s"] > 0 and each["memory_bytes"] > 1 << 20 for each in found)

    def kept(point, *path):
        return tmp_path.joinpath(point, "broker", "store", *path)

    # What the broker wrote at its end, that is, what it had found.
    assert "idle-00019" in kept("topics-20", "config", "topics.json").read_text()
    assert "idle-00019" in kept("groups-20", "config", "subscriptionGroup.json").read_text()
    assert "bench@idle-00019" in kept("groups-20", "config", "consumerOffset.json").read_text()
    assert list(kept("log-gib-1", "consumequeue", "bench", "0").iterdir())


def test_memory_of_one_more_object(monkeypatch, tmp_path) -> None:
    measured = iter([(100, 0), (300, 20), (600, 50)])

    def measure(term, count, home, messages, base):
        memory, expected = next(measured)
        assert count == expected
        each = None if base is None else (memory - base.memory_bytes) / count
        return points.Point(term, count, 1.0, 0.0, memory, each, 0.1)

    monkeypatch.setattr(points, "measure_point", measure)
    found = points.measure_growth(
        [Term("links", (0, 20, 50), (0,))], tmp_path, messages=64, quick=False, progress=lambda _text: None
    )
    assert [point.each_bytes for point in found] == [None, 10.0, 10.0]


@pytest.mark.parametrize(
    ("error", "code", "cause"),
    [
        (ChildError("a broker ended"), 1, "Error: a broker ended\nWhat is shown was measured before."),
        (OSError("no space left"), 1, "Error: no space left\nWhat is shown was measured before."),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_was_measured_before_a_failure_is_shown(monkeypatch, error, code, cause) -> None:
    def measure_growth(*_args: object, **_options: object):
        yield Point("links", 500, 12.5, 0.5, 1 << 20, None, 0.25)
        raise error

    monkeypatch.setattr("triomq_benchmarks.commands.measurements.growth.measure_growth", measure_growth)
    shown = CliRunner().invoke(bench, ["growth"])
    assert shown.exit_code == code
    assert "12.5" in shown.stdout
    assert cause in shown.stderr
    output = json.loads(CliRunner().invoke(bench, ["growth", "--json"]).stdout)
    assert [each["count"] for each in output["points"]] == [500]
    assert output["failure"] == ("interrupted" if code == 130 else str(error))
