"""Children: started, waited for within limits, measured, ended by their pid."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from triomq_benchmarks.clusters.processes import Child, ChildError, Driver, DriverError, kept_port, reserved_port

ECHO = """
import json, sys
for line in sys.stdin:
    command = json.loads(line)
    if command["op"] == "die":
        print("last words", file=sys.stderr)
        sys.exit(3)
    if command["op"] == "hang":
        import time; time.sleep(60)
    print(json.dumps({"error": "no"} if command["op"] == "fail" else {"got": command}), flush=True)
"""


def python(tmp_path: Path, code: str) -> Child:
    return Child("child", [sys.executable, "-c", code], tmp_path / "child.out")


def test_the_error_quotes_the_output_of_an_exited_child(tmp_path: Path) -> None:
    with (
        python(tmp_path, "print('cannot bind'); raise SystemExit(4)") as child,
        pytest.raises(ChildError, match=r"exit 4(?s:.*)cannot bind"),
    ):
        child.wait_until(lambda: False)


def test_waiting_has_a_limit(tmp_path: Path) -> None:
    with python(tmp_path, "import time; time.sleep(60)") as child, pytest.raises(ChildError, match="not ready within"):
        child.wait_until(lambda: False, limit_s=0.2)


@pytest.mark.usefixtures("sigint_raises")
def test_an_interrupt_during_the_start_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the process is made, which takes some milliseconds: nobody has it yet, and it has no terminal."""
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        python(tmp_path, "import time; time.sleep(60)")
    (process,) = started
    try:
        assert process.returncode == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_stop_is_sigterm_and_kill_is_sigkill(tmp_path: Path) -> None:
    polite = python(
        tmp_path,
        # A signal that arrives between two instructions and before a sleep is handled only after it.
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True)\n"
        "while True: time.sleep(0.01)",
    )
    polite.wait_until(lambda: "up" in polite.output())
    assert polite.stop() == 7
    killed = python(tmp_path, "import time; time.sleep(60)")
    killed.kill()
    assert killed.process.returncode == -9
    assert killed.stop() == -9


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    deaf = python(
        tmp_path, "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    deaf.wait_until(lambda: "up" in deaf.output())
    assert deaf.stop(limit_s=0.2) == -9


def test_cpu_and_memory_are_those_of_the_child(tmp_path: Path) -> None:
    code = "import time; kept = b'x' * (64 << 20); end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('up', flush=True); time.sleep(60)"
    with python(tmp_path, code) as child:
        child.wait_until(lambda: "up" in child.output())
        assert 0.25 < child.cpu_s() < 5
        assert child.memory().own_bytes > 60 << 20
        assert child.memory().total_bytes >= child.memory().own_bytes


def test_errors_of_a_driver_are_reported(tmp_path: Path) -> None:
    with Driver("echo", [sys.executable, "-c", ECHO], tmp_path / "echo.out") as driver:
        assert driver.call({"op": "hello", "text": "ä"}, 10) == {"got": {"op": "hello", "text": "ä"}}
        with pytest.raises(DriverError, match="no"):
            driver.call({"op": "fail"}, 10)
        with pytest.raises(ChildError, match="closed its output"):
            driver.call({"op": "die"}, 10)
    with (
        Driver("echo", [sys.executable, "-c", ECHO], tmp_path / "echo.out") as driver,
        pytest.raises(ChildError, match="did not answer"),
    ):
        driver.call({"op": "hang"}, 0.3)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_no_other_process_gets_a_reserved_port() -> None:
    with reserved_port(-2, 1) as port:
        assert not any(is_free(port + distance) for distance in (-2, 0, 1))
        for _ in range(2):  # a server starts, ends, and starts again
            with (
                socket.create_server(("127.0.0.1", port)),
                kept_port(port, 1),
                socket.create_connection(("127.0.0.1", port)),
            ):
                pass
            assert not is_free(port)
    with kept_port(port - 2):
        assert not is_free(port - 2)


def test_other_ports_are_free_and_all_are_free_afterwards() -> None:
    def others_are_free() -> bool:
        with reserved_port(-2, 1) as port:
            between = is_free(port - 1)
        return between and all(is_free(port + distance) for distance in (-2, 0, 1))

    # Other processes use ports, too: each attempt looks at other ones.
    assert any(others_are_free() for _ in range(20))
