"""`triomq run`: a cluster for a command, with no leftovers however the command ends."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from triomq_server.ports import free_ports
from triomq_testing import command
from triomq_testing.steering import Duration, clock

RUN = [sys.executable, "-c", "from triomq_command import main; main()", "run"]
SEND_AND_PULL = """
import os, triomq.blocking
assert os.environ["NAMESRV_ADDR"] == os.environ["ROCKETMQ_NAMESRV_ADDR"]
with triomq.blocking.open_client(os.environ["NAMESRV_ADDR"]) as client:
    masters = {broker.broker_name for topic in "AB" for broker in client.admin.route(topic).broker_datas}
    sent = client.producer("writers").send(triomq.Message("A", b"one"))
    found = client.pull_consumer("readers").pull(sent.queue, offset=sent.queue_offset)
    print(sorted(masters), [message.body for message in found.messages], flush=True)
"""

SEND_TO_A = """
import triomq.blocking
with triomq.blocking.open_client() as client:
    print(client.producer("writers").send(triomq.Message("A", b"one")).queue_offset)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where clusters have their files; nothing of them may be left."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    yield path
    assert [each.name for each in path.iterdir() if each.name.startswith("triomq")] == []


def reset_signals() -> None:
    """In the child: shells' background jobs ignore SIGINT, those of nohup SIGHUP, and so would whatever they start."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *arguments], capture_output=True, text=True, timeout=120, check=False, preexec_fn=reset_signals
    )


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=reset_signals,
    )


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_command_finds_a_cluster() -> None:
    done = run("--topics", "A,B", "--masters", "2", "--", sys.executable, "-c", SEND_AND_PULL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['broker-a', 'broker-b'] [b'one']\n", "")


def test_the_command_starts_when_the_brokers_are_there() -> None:
    """Clients of other languages give up after three seconds, in which a busy machine may not have started them."""
    connect = "import os, socket; socket.create_connection(('127.0.0.1', {}))"
    (port,) = free_ports(1)  # none that the system gives to others meanwhile, nor its two neighbours
    done = run("--set", f"listenPort={port}", "--", sys.executable, "-S", "-c", connect.format(port))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_before_the_command_has_started_ends_it(temporary: Path) -> None:
    process = start("--", "sh", "-c", "echo started")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (watchers := children.read_text().split()):  # forked when the signals' handlers are there
        assert process.poll() is None
    assert is_there(int(watchers[0]))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        (["true"], 0, ""),
        (["sh", "-c", "test $1 = --topics", "sh", "--topics"], 0, ""),
        (["sh", "-c", "exit 3"], 3, ""),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["sh", "-c", "sleep 1; kill -9 $$"], 137, ""),
        (["no-such-command"], 127, "Error: no-such-command cannot be started: No such file or directory\n"),
        (["/"], 126, "Error: / cannot be started: Permission denied\n"),
    ],
)
def test_the_exit_status_is_passed_on(command: list[str], status: int, error: str) -> None:
    done = run("--", *command)
    assert (done.returncode, done.stderr) == (status, error)


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        (["--set", "storePathRootDir=/proc/none"], 1, "the cluster ended: "),
        (["--set", "nonsense"], 2, "'nonsense' is not KEY=VALUE"),
        (["--topics", "a b"], 2, "'a b' is not a name of a topic"),
        (["--masters", "0"], 2, "--masters"),
    ],
)
def test_options_that_cannot_be(options: list[str], status: int, error: str) -> None:
    done = run(*options, "--", "sleep", "1000")
    assert done.returncode == status
    assert error in done.stderr


@pytest.mark.parametrize("options", [[], ["--slaves", "1"]])
def test_a_port_that_is_taken(options: list[str]) -> None:
    """By another program, or by the first broker."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if options:
            taken.close()
        done = run(*options, "--set", f"listenPort={port}", "--", "sleep", "1000")
    assert done.returncode == 1
    assert f"--set has listenPort={port} (with {port - 2} and {port + 1}); leave that out" in done.stderr


def test_a_port_that_is_taken_before_it_is_used() -> None:
    """By another program: others are chosen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        script = f"""
import triomq_command
from triomq_testing.clusters import lending
free_ports, ports = lending.free_ports, [[{taken.getsockname()[1]}]]
lending.free_ports = lambda count: ports.pop() if ports else free_ports(count)
triomq_command.main()
"""
        command = [sys.executable, "-c", script, "run", "--topics", "A", "--", *RUN[:1], "-c", SEND_TO_A]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=reset_signals
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("socket.socket.bind", "no port on 127.0.0.1 can be used: Cannot assign requested address"),
        ("os.fork", "no process can be started: Cannot assign requested address"),
    ],
)
def test_what_the_system_lacks(function: str, error: str) -> None:
    fail = f"""
import errno, os, socket, triomq_command
def fail(*_):
    raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
{function} = fail
triomq_command.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", fail, "run", "--", "true"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {error}\n")


@pytest.mark.parametrize("ending", ["exit 4", "kill -9 $$"])
def test_what_the_command_leaves_running_is_ended(ending: str) -> None:
    # In a session of its own, with a parent that has ended, which ignores SIGTERM.
    orphan = "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' &"
    done = run("--", "sh", "-c", f"({orphan}) | {{ read pid; echo $pid; {ending}; }}")
    assert done.stdout.strip().isdigit(), done
    assert not is_there(int(done.stdout))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_go_to_the_command(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    process = start("--", "sh", "-c", f"trap 'exit 5' {name}; echo ready; while :; do sleep 0.05; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 5


LIST_SIGNALS = """
import os, signal, time
seen = []
def note(number, _):
    seen.append(signal.Signals(number).name)
    os.write(1, b"got " + seen[-1].encode())
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, note)
with open(f"/proc/{os.getppid()}/stat") as watcher:
    print("run by", watcher.read().rpartition(")")[2].split()[1], "ready", flush=True)
while "SIGTERM" not in seen:
    time.sleep(0.01)
print("seen", *seen, flush=True)
"""


@pytest.mark.parametrize(
    ("shell", "keys"),
    [
        ('exec "$@"', {b"\x03": "SIGINT"}),
        ('exec "$@" < /dev/null', {b"\x03": "SIGINT"}),
        # To `triomq run` alone, while it is in the foreground.
        ('exec 3<&0; "$@" <&3 & read line; kill -INT $!; wait', {b"\n": "SIGINT"}),
        ('exec "$@"', {b"\x1c": "SIGQUIT", b"\x03": "SIGINT"}),
    ],
    ids=["ctrl-c", "without-input", "kill", "ctrl-backslash"],
)
def test_a_signal_at_a_terminal_is_handled_once(shell: str, keys: dict[bytes, str]) -> None:
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        reset_signals()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        # Background jobs of a shell ignore SIGINT and SIGQUIT.
        ["sh", "-c", shell, "sh", "env", "--default-signal=INT,QUIT", *RUN, "--", sys.executable, "-c", LIST_SIGNALS],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    with open(ours, "r+b", buffering=0) as screen:
        printed = b""

        def read_until(text: str) -> None:
            nonlocal printed
            while text.encode() not in printed:
                printed += screen.read(1000)

        read_until("ready")
        for key, name in keys.items():
            screen.write(key)
            read_until(f"got {name}")
        os.kill(int(printed.split()[2]), signal.SIGTERM)  # comes after any repetition of the others
        read_until(f"seen {' '.join(keys.values())} SIGTERM\r\n")
        assert process.wait(timeout=120) == 0


def test_a_command_that_ignores_sigterm_is_killed() -> None:
    process = start("--grace", "0.1", "--", "sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.05; done")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL
    assert not is_there(pid)


FAMILY = """
import os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
# A grandchild in a session of its own, whose parent has ended.
orphan = "import os, time; print(os.getpid(), flush=True); os.close(1); time.sleep(1000)"
shell = f'setsid "{sys.executable}" -c "$0" & exit'
print(subprocess.run(["sh", "-c", shell, orphan], stdout=subprocess.PIPE, text=True).stdout.strip(), os.getpid())
print(os.getppid(), flush=True)
while True:
    time.sleep(1000)
"""


@pytest.mark.parametrize("killed", ["run", "watcher"])
def test_when_it_is_killed_itself_nothing_is_left(killed: str, temporary: Path) -> None:
    """No grandchild in a session of its own, nothing that ignores signals, no directory."""
    process = start("--", sys.executable, "-c", f"{SEND_AND_PULL}{FAMILY}".replace('"AB"', '["TBW102"]'))
    assert process.stdout is not None
    assert "one" in process.stdout.readline()
    pids = [int(pid) for pid in process.stdout.readline().split()]
    watcher = int(process.stdout.readline())
    assert len(pids) == 2
    assert all(is_there(pid) for pid in (*pids, watcher))
    assert len(list(temporary.glob("triomq-testing-*"))) == 1
    ends = [os.pidfd_open(pid) for pid in (*pids, watcher)]
    os.kill(process.pid if killed == "run" else watcher, signal.SIGKILL)
    process.communicate(timeout=120)
    for end in ends:  # a process closes its output before it is seen to have ended
        assert select.select([end], [], [], 120)[0], "not ended"
        os.close(end)
    assert list(temporary.glob("triomq-testing-*")) == []
    assert process.returncode == (-signal.SIGKILL if killed == "run" else 128 + signal.SIGKILL)


def test_the_command_gets_what_it_was_given() -> None:
    """Descriptors and the mask of signals of the shell; none of those of `triomq run`."""
    ours, theirs = os.pipe()
    look = """
import os, signal
listed = sorted(map(int, os.listdir("/proc/self/fd")))  # one more than there is afterwards
print([each for each in listed if os.path.exists(f"/proc/self/fd/{each}")], signal.pthread_sigmask(0, []))
"""
    with open(ours, "rb"):
        done = subprocess.run(
            [*RUN, "--", sys.executable, "-c", look],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            pass_fds=[theirs],
            preexec_fn=reset_signals,
        )
        os.close(theirs)
    assert (done.stdout, done.stderr) == (f"[0, 1, 2, {theirs}] set()\n", "")


def test_the_command_ignores_no_signals_that_python_ignores() -> None:
    done = run("--", "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not [each for each in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (each - 1) & 1]


STEER = """
import os, socket, subprocess, sys, threading, urllib.error, urllib.request, triomq.blocking
TRIOMQ = [sys.executable, "-c", "from triomq_command import main; main()"]
URL = os.environ["TRIOMQ_RUN_URL"]

def command(*arguments):
    done = subprocess.run([*TRIOMQ, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr

def post(path):
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + path, method="POST"), timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

client = triomq.blocking.open_client(os.environ["NAMESRV_ADDR"])
producer = client.producer("writers")

def delayed(body, level=18):
    producer.send(triomq.Message("A", body, delay_level=level))

def bodies():
    consumer = client.pull_consumer("readers")
    return sorted(
        message.body for queue in consumer.fetch_queues("A")
        for message in consumer.pull(queue, 0, suspend_s=0).messages
    )
"""
PASS_TIME = """
delayed(b"one")
assert bodies() == []
assert command("clock", "advance", "1h59m")[0] == 0
assert bodies() == []
assert post("/clock/advance?minutes=1")[0] == 200
assert bodies() == [b"one"]
before = command("clock", "now")[1]
with subprocess.Popen([*TRIOMQ, "clock", "fast-forward"], stdout=subprocess.PIPE, text=True) as forward:
    assert forward.stdout.readline() == "no message waits until Ctrl-C\\n"
    delayed(b"two")
    while bodies() != [b"one", b"two"]:
        pass
    forward.terminate()
assert forward.returncode == 0
assert "T" in before and command("clock", "now")[1] > before
delayed(b"three", 1)
assert bodies() == [b"one", b"two"]
status, text = command("faults", "kill", "broker-a")
assert status == 1 and "start it by `triomq run --faults`" in text, text
"""
BREAK = """
producer.send(triomq.Message("A", b"one"))
assert command("faults", "kill", "broker-a")[0] == 0
assert post("/faults/start")[0] == 200
assert bodies() == [b"one"]
assert post("/faults/fill_disk")[0] == 200
try:
    producer.send(triomq.Message("A", b"two"))
    raise SystemExit("sent to a full disk")
except triomq.MQError:
    pass
assert command("faults", "mend", "--json")[0] == 0
producer.send(triomq.Message("A", b"two"))
for path, code, text in [
    ("/faults/kill?node=nobody", 400, "there is no node nobody; known: broker-a"),
    ("/faults/slow", 400, "slow needs seconds"),
    ("/faults/slow?seconds=nan", 400, "slow needs seconds"),
    ("/faults/slow?seconds=-1", 400, "slow needs seconds"),
    ("/faults/kill?seconds=1", 400, "'seconds' is not known here: only node"),
    ("/faults/mendd", 404, "there is no faults/mendd"),
    ("/clock/advance?hours=nan", 400, "NaN"),
    ("/clock/advance?hours=-1", 400, "forward only"),
    ("/clock/advance?hours=1e9", 400, "3660 days"),
    ("/clock/advance?hours=1e300", 400, ""),
    ("/", 405, "use GET here"),
    ("/../", 404, ""),
    ("/" + 20000 * "x", 431, "at most 8192 bytes"),
]:
    status, answer = post(path)
    assert status == code and text in answer, (path, status, answer)

host, port = client.admin.cluster_info().broker_addr_table["broker-a"].broker_addrs[0].split(":")
assert post("/faults/stop")[0] == 200
with socket.create_server((host, int(port))):
    status, answer = post("/faults/start")
assert status == 400 and "Address already in use" in answer, (status, answer)
assert post("/faults/start")[0] == 200, "the failed start has ended nothing else"
assert bodies() == [b"one", b"two"]
"""


@pytest.mark.parametrize(("options", "script"), [([], PASS_TIME), (["--faults"], BREAK)])
def test_the_command_controls_its_cluster(options: list[str], script: str) -> None:
    done = run(*options, "--topics", "A", "--", sys.executable, "-c", STEER + script + "client.close()")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("2h", timedelta(hours=2)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("1.5d", timedelta(days=1.5)),
        ("500ms", timedelta(milliseconds=500)),
        *[(text, None) for text in ("", "2", "h", "2 h", "-2h", "2h!", "9" * 400 + "d")],
    ],
)
def test_durations(text: str, by: timedelta | None) -> None:
    if by is None:
        with pytest.raises(click.BadParameter):
            Duration().convert(text, None, None)
    else:
        assert Duration().convert(text, None, None) == by


def test_setting_the_clock_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIOMQ_RUN_URL", raising=False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # no other process gets the port, and none listens on it
        port = unused.getsockname()[1]
        for url, text in [
            ("", "under `triomq run"),
            ("nonsense", "is not an address of a cluster"),
            (f"http://127.0.0.1:{port}/x", "has the process that ran it ended?"),
        ]:
            done = CliRunner().invoke(clock, ["now"], env={"TRIOMQ_RUN_URL": url})
            assert done.exit_code == 1
            assert text in done.output


MEMORY = """
import pathlib, re

def kib(name, file):
    return int(re.search(name + ":\\\\s*([0-9]+)", pathlib.Path("/proc", file).read_text())[1])

watcher = os.getppid()
# Its other pages are those of its parent.
print(kib("VmHWM", f"{kib('PPid', f'{watcher}/status')}/status"), kib("Private_Dirty", f"{watcher}/smaps_rollup"))
"""


def test_it_takes_little_memory_and_time(figures: Callable[[str], None]) -> None:
    began = time.monotonic()
    run("--", "sleep", "1")
    took = time.monotonic() - began
    done = run("--topics", "A,B", "--", sys.executable, "-c", SEND_AND_PULL + MEMORY)
    run_kib, watcher_kib = map(int, done.stdout.splitlines()[-1].split())
    figures(
        f"triomq run -- sleep 1: {took - 1:.2f} s more than the command; "
        f"{run_kib / 1024:.0f} MiB, and {watcher_kib / 1024:.0f} MiB for the watcher"
    )
    most_mib = 60 if sys.version_info < (3, 14) else 68  # the same modules take 8 MiB more there
    little = run_kib + watcher_kib <= most_mib * 1024
    assert little or "coverage" in sys.modules or os.environ.get("COVERAGE_PROCESS_START")


@pytest.mark.parametrize("grace", ["nan", "inf", "-1", "soon"])
def test_a_grace_that_is_no_time_is_refused(grace: str) -> None:
    """With nan the command would never be killed."""
    done = CliRunner().invoke(command.run, ["--grace", grace, "--", "true"])
    assert (done.exit_code, "'--grace'" in done.output) == (2, True), done.output
