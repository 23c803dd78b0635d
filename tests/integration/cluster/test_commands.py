"""The servers' command line as operators meet it: ready lines, clean stops, exit codes, one clear line for each
mistake."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from process_tree import alive

from triomq_benchmarks.clusters.processes import reserved_port

SERVER = [sys.executable, "-m", "triomq_server"]
LIMIT_S = 120

Call = Callable[..., subprocess.CompletedProcess[str]]
"""As `run`, in this process."""


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SERVER, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | (env or {}),
        check=False,
    )


@contextmanager
def started(
    *arguments: str, stdin: int = subprocess.DEVNULL, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*SERVER, *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stopped_by(process: subprocess.Popen[str], number: int) -> tuple[int, str, str]:
    process.send_signal(number)
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, errors


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while left := alive(set(pids)):
        assert time.monotonic() < deadline, f"still there: {sorted(left)}"
        time.sleep(0.02)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port(-2, 1) as reserved:
        yield reserved


@pytest.fixture(autouse=True)
def _hang_up_as_by_default() -> Iterator[None]:
    """These tests may run under `nohup`, and processes inherit that it is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_name_server_serves_and_stops(tmp_path: Path, port: int, number: int) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\nsomethingElse=1\n")
    with started("namesrv", "-c", str(file)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("The Name Server boot success. serializeType=JSON")
        socket.create_connection(("127.0.0.1", port)).close()
        code, _, errors = stopped_by(process, number)
    assert code == 0
    assert "unknown key somethingElse; it is ignored" in errors
    assert "Traceback" not in errors
    assert f"stopping cleanly, on {signal.Signals(number).name}" in errors
    assert errors.endswith("triomq_server.process.stopping: stopped\n")


def test_servers_listen_on_the_host_that_is_given(call: Call, tmp_path: Path, port: int) -> None:
    for command in (
        ["namesrv", "--set", f"kvConfigPath={tmp_path}/kv.json"],
        ["broker", "--store", str(tmp_path / "store"), "--log-level", "warning"],
    ):
        with started(*command, "--host", "127.0.0.1", "--port", str(port), "--json") as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["address"] == f"127.0.0.1:{port}"
            # Were it bound to all addresses, another one of the loopback's would be taken.
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.2", port))
            assert stopped_by(process, signal.SIGTERM)[0] == 0
    printed = call("broker", "-p", "--host", "127.0.0.1").stdout
    assert "brokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n" in printed


@pytest.mark.parametrize(
    ("command", "setting"),
    [("broker", "brokerIP1={}"), ("namesrv", "bindAddress={}"), ("broker", "metricsBindAddress={}")],
)
@pytest.mark.parametrize("host", ["a..b", 64 * "a"])
def test_a_host_that_has_no_possible_name_is_one_line(
    call: Call, tmp_path: Path, command: str, setting: str, host: str
) -> None:
    more = ["--store", str(tmp_path), "--set", "metricsPort=15999"] if command == "broker" else []
    ended = call(command, "--port", "0", "--set", setting.format(host), *more)
    assert ended.returncode == 1
    (line,) = (line for line in ended.stderr.splitlines() if "WARNING" not in line)
    assert f"Error: '{host}' is not a host name" in line or f"at {host}: '{host}' is not a host name" in line
    assert host in line


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("config/consumerOffset.json.tmp", "{store}/config/consumerOffset.json: [Errno 21] Is a directory: "),
        ("checkpoint.tmp", "the store in {store}: [Errno 21] Is a directory: "),
    ],
)
def test_a_stop_that_cannot_write_has_failed(name: str, what: str, tmp_path: Path, port: int) -> None:
    arguments = ["--port", str(port), "--host", "127.0.0.1", "--store", str(tmp_path), "--log-level", "error"]
    with started("broker", *arguments) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / name).mkdir(parents=True)
        code, _, errors = stopped_by(process, signal.SIGTERM)
    assert code == 1
    last = errors.splitlines()[-1]
    assert last.startswith("Error: stopped, but the disk has not taken everything: ")
    assert f"{what.format(store=tmp_path)}'{tmp_path / name}'" in last
    assert "See that it has space" in last
    assert "Traceback" not in errors


def test_broker_serves_and_stops_in_order(tmp_path: Path, port: int) -> None:
    arguments = ["--port", str(port), "--set", "brokerIP1=127.0.0.1", "--set", "brokerName=b", "--store", str(tmp_path)]
    with started("broker", *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.match(rf"The broker\[b, 127.0.0.1:{port}\] boot success\. serializeType=JSON", line)
        assert (tmp_path / "abort").exists()
        code, _, errors = stopped_by(process, signal.SIGTERM)
    assert code == 0
    assert "Traceback" not in errors
    assert not (tmp_path / "abort").exists()


def test_files_that_are_named_without_a_directory_are_written(call: Call, tmp_path: Path, port: int) -> None:
    file = tmp_path / "s.conf"
    file.write_text(f"listenPort={port}\nbrokerIP1=127.0.0.1\nstorePathRootDir={tmp_path}/store\n")
    with started("broker", "-c", "s.conf", "--json", cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        changed = call("admin", "role", f"127.0.0.1:{port}", "sync-master")
        assert stopped_by(process, signal.SIGTERM)[0] == 0
    assert (changed.returncode, changed.stderr) == (0, "")
    assert f"takes this role from {file}." in changed.stdout
    assert "brokerRole=SYNC_MASTER" in file.read_text()
    printed = call("namesrv", "-p", "--set", "kvConfigPath=kv.json", "--set", "configStorePath=ns.conf").stdout
    assert f"kvConfigPath={Path.cwd()}/kv.json\n" in printed
    assert f"configStorePath={Path.cwd()}/ns.conf\n" in printed


def send_and_repeat(process: subprocess.Popen[str], first: int) -> None:
    """Send a signal, and then SIGTERM again and again while the process stops."""
    process.send_signal(first)
    for _ in range(20):
        time.sleep(0.001)
        process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sent_twice_still_stops_in_order(tmp_path: Path, port: int, first: int) -> None:
    """`timeout` sends it to the process, and then to its group."""
    arguments = ["--port", str(port), "--set", "brokerIP1=127.0.0.1", "--store", str(tmp_path)]
    with started("broker", *arguments) as process:
        assert process.stdout is not None
        process.stdout.readline()
        send_and_repeat(process, first)
        code, _, errors = stopped_by(process, signal.SIGTERM)
    assert code in (0, -signal.SIGTERM), "the last one may come when everything is done"
    assert "Traceback" not in errors
    assert not (tmp_path / "abort").exists()


def test_a_broker_under_nohup_outlives_its_terminal(tmp_path: Path, port: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with started("broker", "--host", "127.0.0.1", "--port", str(port), "--store", str(tmp_path)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        code, _, errors = stopped_by(process, signal.SIGTERM)
    assert code == 0
    assert "stopping cleanly, on SIGTERM" in errors


def test_a_cluster_whose_terminal_is_closed_stops_in_order(tmp_path: Path) -> None:
    """The whole group gets the signal: all processes of the cluster."""
    with started("cluster", "--json", "--slaves", "0", "--directory", str(tmp_path)) as process:
        assert process.stdout is not None
        pids = [node["pid"] for node in json.loads(process.stdout.readline())["nodes"]]
        for pid in pids:
            os.kill(pid, signal.SIGHUP)
        code, out, errors = stopped_by(process, signal.SIGHUP)
    assert code == 0
    assert [event["status"] for event in map(json.loads, out.splitlines()) if event["event"] == "ended"] == [0, 0]
    assert errors == ""
    assert not (tmp_path / "broker-a/abort").exists()


def test_ready_line_for_machines(tmp_path: Path) -> None:
    with started("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path}/kv.json", "--json") as process:
        assert process.stdout is not None
        event = json.loads(process.stdout.readline())
    assert event["event"] == "ready"
    assert event["pid"] == process.pid
    assert event["ready_s"] < LIMIT_S


@contextmanager
def without_reader(kind: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A server whose standard output takes no line."""
    command = [*SERVER, *arguments]
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    if kind == "closed":  # the shell's own way: Popen has none
        command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    elif kind == "full":
        os.close(write_fd)
        write_fd = os.open("/dev/full", os.O_WRONLY)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=write_fd, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    os.close(write_fd)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


NO_OUTPUT = pytest.mark.parametrize(
    "kind",
    [
        "closed",
        "unread",
        pytest.param("full", marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")),
    ],
)
CANNOT_WRITE = "standard output cannot be written, and gets no more lines: "


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("broker", "-p"), ("namesrv", "-p"), ("--help",)])
def test_settings_that_cannot_be_printed_are_one_error_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*SERVER, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "--port", "0", "--store", "store"),
        ("namesrv", "--port", "0", "--set", "kvConfigPath=kv.json"),
        ("cluster", "--directory", "files"),
    ],
)
def test_a_relative_path_in_a_directory_that_is_gone(arguments: tuple[str, ...], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    # Popen would change to the directory after its removal.
    command = ["/bin/sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *SERVER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode in (1, 2)
    assert done.stderr.splitlines()[-1].endswith(
        "the current directory has been removed: change to another one (cd), then start again"
    )
    assert "Traceback" not in done.stderr


@NO_OUTPUT
@pytest.mark.parametrize("name", ["broker", "namesrv"])
def test_a_server_serves_though_nobody_reads_its_ready_line(name: str, kind: str, tmp_path: Path, port: int) -> None:
    files = ("--store", str(tmp_path)) if name == "broker" else ("--set", f"kvConfigPath={tmp_path}/kv.json")
    with without_reader(kind, name, "--host", "127.0.0.1", "--port", str(port), *files) as process:
        assert process.stderr is not None
        last = " at 127.0.0.1" if kind == "closed" and name == "broker" else CANNOT_WRITE
        last = " listens on " if kind == "closed" and name == "namesrv" else last
        lines = []
        while not lines or last not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], f"it has ended: {lines}"
        socket.create_connection(("127.0.0.1", port)).close()
        code, _, errors = stopped_by(process, signal.SIGTERM)
    assert code == 0
    assert errors.endswith("triomq_server.process.stopping: stopped\n")


@NO_OUTPUT
def test_a_cluster_runs_though_nobody_reads_what_it_prints(kind: str, tmp_path: Path) -> None:
    arguments = ("cluster", "--slaves", "0", "--directory", str(tmp_path / "files"), "--control")
    with without_reader(kind, *arguments) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("stop nobody\n")  # answered on standard error
        seen = ""
        while "no node is called 'nobody'" not in seen or (kind != "closed" and CANNOT_WRITE not in seen):
            line = process.stderr.readline()
            assert line, f"it has ended: {seen}"
            seen += line
        code, _, errors = stopped_by(process, signal.SIGTERM)
    assert code == 0
    # Without an output nothing says when it is ready.
    assert errors in ("", "Stopped before the cluster was ready\n" if kind == "closed" else "")


def test_settings_are_printed(call: Call) -> None:
    everything = call("broker", "-p", "-n", "127.0.0.1:1;127.0.0.1:2", "--set", "brokerName=me")
    important = call("broker", "-m", "--set", "brokerName=me", env={"NAMESRV_ADDR": "127.0.0.1:3"})
    assert everything.returncode == important.returncode == 0
    assert "brokerName=me\n" in everything.stdout
    assert "namesrvAddr=127.0.0.1:1;127.0.0.1:2\n" in everything.stdout
    assert "haTransferBatchSize=262144\n" in everything.stdout
    assert "namesrvAddr=127.0.0.1:3\n" in important.stdout
    assert "haTransferBatchSize" not in important.stdout
    assert "kvConfigPath=" in call("namesrv", "-p").stdout


def test_warnings_come_with_the_printed_settings() -> None:
    printed = run("broker", "-p", "--set", "colour=blue")
    assert "unknown key colour; it is ignored" in printed.stderr
    assert "WARNING" not in printed.stdout


def test_keys_without_effect_are_printed_with_the_reason(call: Call) -> None:
    everything = call("broker", "-p", "--set", "enableLmq=true")
    important = run("broker", "-m", "--set", "enableLmq=true")
    assert "# enableLmq has no effect: there are no light message queues" in everything.stdout
    assert "# enableLmq has no effect: there are no light message queues" in important.stdout
    assert "useTLS" not in important.stdout
    assert "tls.server.mode=permissive" in important.stdout
    assert "enableLmq=true has no effect: there are no light message queues" in important.stderr


@pytest.mark.parametrize("command", [[], ["namesrv"], ["broker"], ["cluster"]])
def test_help(call: Call, command: list[str]) -> None:
    result = call(*command, "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["broker", "-c", "", "-m"], 2, "Invalid value for '-c' / '--config': it is empty; give a file"),
        (["namesrv", "-c", "", "-m"], 2, "Invalid value for '-c' / '--config': it is empty; give a file"),
        (["broker", "-c", "/nowhere/broker.conf"], 2, "configuration file /nowhere/broker.conf: No such file"),
        (["broker", "-n", "127.0.0.1"], 2, "namesrvAddr=127.0.0.1: '127.0.0.1' is not host:port"),
        (["broker", "--set", "brokerRole=SLAVE"], 2, "brokerRole=SLAVE needs a brokerId greater than 0"),
        (["broker", "--set", "brokerRole"], 2, "'brokerRole' is not KEY=VALUE"),
        (["broker", "--port", "99999"], 2, "99999 is not in the range"),
        (["broker", "--port", "1"], 2, "listenPort=1: the ports listenPort - 2 and listenPort + 1 are needed too"),
        (["broker", "--port", "65535"], 2, "it must lie between 3 and 65534"),
        (["broker", "--port", "0", "--set", "brokerIP1=no host"], 1, "a host name cannot be resolved; check brokerIP1"),
        (["broker", "--store", "/proc/nowhere"], 1, "/proc/nowhere"),
        (
            ["broker", "--set", "tls.server.certPath=a.pem"],
            2,
            "tls.server.certPath is set and tls.server.keyPath is not",
        ),
        (["namesrv", "--set", "tls.config.file=/nowhere"], 2, "tls.config.file=/nowhere: there is no such file"),
        (["broker", "-p", "--set", "aclEnable=true"], 2, "aclEnable=true needs rocketmqHome"),
        (["broker", "--strict", "--set", "colour=blue"], 2, "bad configuration: unknown key colour"),
        (["namesrv", "--set", "listenPort=x"], 2, "listenPort=x: not a whole number"),
        (["namesrv", "--strict", "--set", "colour=blue"], 2, "bad configuration: unknown key colour"),
        (["cluster", "--base-port", "65530"], 2, "3 nodes from port 65530 on need the ports 65528 to 65539"),
        (["cluster", "--set", "flushDiskTyp=SYNC_FLUSH"], 2, "unknown key flushDiskTyp (did you mean flushDiskType?)"),
        (["broker", "--set", "=5"], 2, "'=5' is not KEY=VALUE"),
        (["admin", "ha", "-n", ""], 2, "no name server is given"),
        (["admin", "ha", "-n", "127.0.0.1"], 2, "'127.0.0.1' is not host:port"),
        (["admin", "ha", "-n", "http://127.0.0.1:1"], 1, "127.0.0.1:1: all attempts to connect"),
        (
            ["admin", "role", "broker-a:0", "slave", "--id", str(2**63)],
            2,
            "is not in the range 1<=x<=9223372036854775807",
        ),
        (["cluster", "--strict", "--set", "colour=blue"], 2, "bad configuration: unknown key colour"),
    ],
)
def test_a_mistake_is_one_line(call: Call, arguments: list[str], code: int, line: str) -> None:
    # Exit code 1: the server has begun to start.
    result = run(*arguments) if code == 1 else call(*arguments)
    assert result.returncode == code
    assert line in result.stderr
    assert "Traceback" not in result.stderr


def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        keys = ["--set", "bindAddress=127.0.0.1", "--set", f"kvConfigPath={tmp_path}/kv.json"]
        namesrv = run("namesrv", "--port", port, *keys)
        broker = run("broker", "--port", port, "--set", "brokerIP1=127.0.0.1", "--store", str(tmp_path / "store"))
    for result in (namesrv, broker):
        assert result.returncode == 1
        assert f"port {port}" in result.stderr
        assert "--port" in result.stderr
        assert "Traceback" not in result.stderr


def test_a_locked_store_is_one_line(tmp_path: Path) -> None:
    keys = ["--set", "brokerIP1=127.0.0.1", "--store", str(tmp_path)]
    with started("broker", "--port", "0", *keys) as process:
        assert process.stdout is not None
        process.stdout.readline()
        second = run("broker", "--port", "0", *keys)
    assert second.returncode == 1
    assert str(tmp_path) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_cluster_of_processes(tmp_path: Path) -> None:
    """Ready line, a kill, a start on the same files and port, and an end by the end of the commands."""
    command = ("cluster", "--json", "--control", "--directory", str(tmp_path))
    with started(*command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready"
        assert [(node["name"], node["role"]) for node in ready["nodes"]] == [
            ("namesrv-0", "namesrv"),
            ("broker-a", "master"),
            ("broker-a-s", "slave"),
        ]
        pids = {node["name"]: node["pid"] for node in ready["nodes"]}
        assert len({*pids.values(), process.pid}) == 4
        os.kill(pids["broker-a"], signal.SIGKILL)
        event = json.loads(process.stdout.readline())
        assert (event["event"], event["name"], event["status"], event["wanted"]) == ("ended", "broker-a", -9, False)
        process.stdin.write("start broker-a\nstart missing\nstart broker-a\n")
        process.stdin.flush()
        # A node that starts delays nothing: errors of the others are announced meanwhile.
        assert "no node is called 'missing'" in json.loads(process.stdout.readline())["error"]
        assert "is already running" in json.loads(process.stdout.readline())["error"]
        event = json.loads(process.stdout.readline())
        assert (event["event"], event["name"]) == ("started", "broker-a")
        pids["broker-a"] = event["pid"]
        out, errors = process.communicate(timeout=LIMIT_S)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["status"] for event in events if event["event"] == "ended"] == [0, 0, 0]
    assert events[-1] == {"event": "stopped"}
    assert process.returncode == 0
    assert "Traceback" not in errors
    wait_until_gone(*pids.values())


def test_a_node_is_paused_and_the_cluster_still_stops_in_order(tmp_path: Path) -> None:
    command = ("cluster", "--json", "--control", "--slaves", "0", "--directory", str(tmp_path))
    with started(*command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())["nodes"][1]["pid"]

        def order(verb: str, stopped: bool) -> None:
            assert process.stdin is not None
            process.stdin.write(f"{verb} broker-a\n")
            process.stdin.flush()
            deadline = time.monotonic() + LIMIT_S
            while (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T") is not stopped:
                assert time.monotonic() < deadline
                time.sleep(0.01)

        order("pause", stopped=True)
        order("resume", stopped=False)
        order("pause", stopped=True)
        out, _ = process.communicate(timeout=LIMIT_S)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["status"] for event in events if event["event"] == "ended"] == [0, 0]
    assert events[-1] == {"event": "stopped"}


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_cluster_that_is_stopped_twice_still_stops_in_order(tmp_path: Path, first: int) -> None:
    """By `timeout`, as above, and by a program that sends a signal and closes the standard input."""
    command = ("cluster", "--json", "--control", "--slaves", "0", "--directory", str(tmp_path))
    with started(*command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write("restart broker-a\n")  # a restart under way is not finished
        process.stdin.flush()
        send_and_repeat(process, first)
        code, out, errors = stopped_by(process, signal.SIGTERM)
    assert code in (0, -signal.SIGTERM), "the last one may come when everything is done"
    assert "Traceback" not in errors
    statuses = {
        event["name"]: event["status"] for event in map(json.loads, out.splitlines()) if event["event"] == "ended"
    }
    assert statuses == {"broker-a": 0, "namesrv-0": 0}
    assert not (tmp_path / "broker-a/abort").exists()


@pytest.mark.parametrize("in_order", ["", "stop broker-a\n"])
def test_a_cluster_whose_broker_cannot_write_at_its_stop_has_failed(tmp_path: Path, in_order: str) -> None:
    command = ("cluster", "--json", "--control", "--slaves", "0", "--directory", str(tmp_path))
    with started(*command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        (Path(ready["nodes"][1]["directory"]) / "checkpoint.tmp").mkdir()
        process.stdin.write(in_order)
        out, errors = process.communicate(timeout=LIMIT_S)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["status"] for event in events if event["event"] == "ended"] == [1, 0]
    text = "broker-a has not stopped in order; its log lines say why"
    assert events[-2:] == [{"event": "error", "name": "broker-a", "error": text}, {"event": "stopped"}]
    assert process.returncode == 1
    assert "broker-a: stopped, but the disk has not taken everything: " in errors
    assert "checkpoint.tmp" in errors


def test_a_cluster_stopped_before_it_is_ready_reports_that(tmp_path: Path) -> None:
    """The signal arrives during the imports, before a node has been started."""
    script = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'triomq_server.cluster.nodes':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from triomq_server.__main__ import main\n"
        f"main(['cluster', '--directory', {str(tmp_path)!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Stopped before the cluster was ready\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_node_runs_longer_than_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started("cluster", "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        code, _, _ = stopped_by(process, number)
    wait_until_gone(*(node["pid"] for node in ready["nodes"]))
    assert code == (-9 if number == signal.SIGKILL else 0)
    if number != signal.SIGKILL:
        assert not Path(ready["directory"]).exists()


def test_a_cluster_that_cannot_start_reports_why(tmp_path: Path) -> None:
    (tmp_path / "broker-a").write_text("a file where a directory should be")
    result = run("cluster", "--json", "--directory", str(tmp_path))
    assert result.returncode == 1
    events = [json.loads(line) for line in result.stdout.splitlines()]
    (error,) = [event["error"] for event in events if event["event"] == "error"]
    assert error.startswith("broker-a: ")
    assert "a file stands where a directory should be" in error
    assert "Traceback" not in result.stderr


def test_a_cluster_whose_socket_cannot_be_made_reports_why(tmp_path: Path) -> None:
    (tmp_path / "control").write_text("a file where the socket should be")
    result = run("cluster", "--directory", str(tmp_path))
    assert result.returncode == 1
    why = "cannot be made, something else has this name: move it away"
    assert result.stderr == f"Error: the cluster's socket {tmp_path}/control {why}\n"
    assert (tmp_path / "control").read_text() == "a file where the socket should be"


def test_a_cluster_without_standard_input_takes_no_commands(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *SERVER, "cluster", "--control", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "--control reads commands from standard input, which is closed: give a pipe or a file" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_may_come_from_a_file(tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.write_text("stop broker-a-s\n")
    for given in (commands, Path(os.devnull)):
        with given.open() as stdin:
            result = subprocess.run(
                [*SERVER, "cluster", "--json", "--control"],
                stdin=stdin,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
            )
        assert (result.returncode, result.stderr) == (0, b"")


def test_sample_clusters() -> None:
    with started("cluster", "--json", "--sample", "2m-2s-sync") as process:
        assert process.stdout is not None
        nodes = json.loads(process.stdout.readline())["nodes"]
        assert [node["role"] for node in nodes] == ["namesrv", "master", "master", "slave", "slave"]
        assert stopped_by(process, signal.SIGTERM)[0] == 0


@pytest.fixture
def two_nodes() -> Iterator[int]:
    """The first port of a name server and a broker."""
    with reserved_port(-2, 1, 2, 4, 5) as reserved:
        yield reserved


def test_a_cluster_without_a_place_for_temporary_files(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose file system is read-only."""

    def none(**_: object) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", none)
    done = call("cluster")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: No usable temporary directory found in ['/tmp']; give a place for the files (--directory)\n"
    )
    # With a place it goes on to the settings.
    done = call("cluster", "--directory", str(tmp_path), "--set", "flushDiskType=SYNC")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: bad configuration: flushDiskType=SYNC")


def test_a_cluster_on_fixed_ports(tmp_path: Path, two_nodes: int) -> None:
    base = two_nodes
    command = ["cluster", "--json", "--slaves", "0", "--directory", str(tmp_path), "--base-port"]
    for _ in range(2):
        with started(*command, str(base)) as process:
            assert process.stdout is not None
            event = json.loads(process.stdout.readline())
            assert [node["address"] for node in event["nodes"]] == [f"127.0.0.1:{base}", f"127.0.0.1:{base + 4}"]
            assert stopped_by(process, signal.SIGTERM)[0] == 0
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", base + 5))
        taken.listen()
        result = run(*command, str(base))
    assert result.returncode == 1
    assert f"port {base + 5} cannot be used: Address already in use" in result.stderr


def test_a_node_is_restarted_by_command(call: Call, tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)  # longer than the path of a socket may be
    with started("cluster", "--json", "--slaves", "0", "--directory", str(home)) as process:
        assert process.stdout is not None
        nodes = {node["name"]: node for node in json.loads(process.stdout.readline())["nodes"]}

        def order(*words: str) -> subprocess.CompletedProcess[str]:
            return call("admin", "node", *words, "--directory", str(home))

        restarted = run("admin", "node", "restart", "broker-a", "--directory", str(home))
        assert (restarted.returncode, restarted.stderr) == (0, "")
        event = json.loads(process.stdout.readline())
        assert (event["event"], event["name"], event["address"]) == (
            "started",
            "broker-a",
            nodes["broker-a"]["address"],
        )
        assert restarted.stdout == f"broker-a started, pid {event['pid']}\n"
        assert event["pid"] != nodes["broker-a"]["pid"]
        assert order("stop", "broker-a").stdout == "broker-a ended\n"
        again = order("stop", "broker-a")
        assert (again.returncode, again.stderr) == (1, "Error: broker-a does not run\n")
        unknown = order("start", "broker-z")
        assert unknown.stderr == "Error: no node is called 'broker-z'; the nodes are namesrv-0, broker-a\n"
        unknown = order("stop", "broker-a now")
        assert unknown.stderr == "Error: no node is called 'broker-a now'; the nodes are namesrv-0, broker-a\n"
        second = run("cluster", "--slaves", "0", "--directory", str(home))
        assert second.returncode == 1
        assert "already; stop it, or choose another directory" in second.stderr
        assert stopped_by(process, signal.SIGTERM)[0] == 0
    nobody = call("admin", "node", "restart", "broker-a", "--directory", str(home))
    assert nobody.returncode == 1
    assert "no cluster runs in" in nobody.stderr


def brokers_of(call: Call, name_servers: str) -> dict[str, tuple[int, str]]:
    """Address -> id and role, as `triomq admin ha` shows them."""
    listed = json.loads(call("admin", "ha", "-n", name_servers, "--json").stdout)
    return {row["address"]: (row["id"], row["status"]["role"]) for row in listed}


def test_a_changed_role_outlives_a_node_and_its_cluster(call: Call, tmp_path: Path) -> None:
    command = ("cluster", "--json", "--directory", str(tmp_path))
    with started(*command) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        servers = ready["name_servers"]
        address = {node["name"]: node["address"] for node in ready["nodes"]}
        demoted = call("admin", "role", address["broker-a"], "slave", "-n", servers)
        assert demoted.stdout.splitlines() == [
            f"{address['broker-a']} is slave now, as broker-a:2",
            f"Started again, it takes this role from {tmp_path}/broker-a/triomq/role.properties.",
        ]
        promoted = call("admin", "role", address["broker-a-s"], "master", "-n", servers)
        assert promoted.returncode == 0, promoted.stderr
        roles = {address["broker-a"]: (2, "SLAVE"), address["broker-a-s"]: (0, "ASYNC_MASTER")}
        assert brokers_of(call, servers) == roles
        for name, role in (("broker-a", "slave"), ("broker-a-s", "master")):
            again = call("admin", "node", "restart", name, "--directory", str(tmp_path))
            assert again.returncode == 0, again.stderr
            assert json.loads(process.stdout.readline())["role"] == role
        assert brokers_of(call, servers) == roles
        assert stopped_by(process, signal.SIGTERM)[0] == 0
    with started(*command) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert {node["name"]: node["role"] for node in ready["nodes"]} == {
            "namesrv-0": "namesrv",
            "broker-a": "slave",
            "broker-a-s": "master",
        }


def test_a_role_without_a_file_is_logged_to_end_with_the_process(call: Call, tmp_path: Path, port: int) -> None:
    arguments = ["--port", str(port), "--set", "brokerIP1=127.0.0.1", "--set", "brokerName=b", "--store", str(tmp_path)]
    with started("broker", *arguments) as process:
        assert process.stdout is not None
        process.stdout.readline()
        demoted = call("admin", "role", f"127.0.0.1:{port}", "slave", "--id", "3")
    assert demoted.returncode == 0, demoted.stderr
    first, second = demoted.stdout.splitlines()
    assert first == f"127.0.0.1:{port} is slave now, as b:3"
    assert second.startswith("Started again, it takes the role of its command line")
