"""SIGTERM and SIGHUP end a command with all that it has started, whatever the shell does with SIGINT."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from triomq_command.ending_signals import signals_put_off

LONG = """
import signal, time, trio
from triomq_command.ending_signals import interrupted_by_signals

signal.signal(signal.SIGINT, {sigint})
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with interrupted_by_signals():
    try:
        print("begun", flush=True)
        {wait}
    finally:
        print("cleaned up", flush=True)
"""

# A signal that arrives between two instructions and before the sleep is handled only after it.
SHORT_SLEEPS = "[time.sleep(0.01) for _ in range(100_000)]"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("sigint", ["signal.default_int_handler", "signal.SIG_IGN"])
@pytest.mark.parametrize("wait", [SHORT_SLEEPS, "trio.run(trio.sleep, 1000)"])
def test_the_block_is_left_in_order(number: signal.Signals, sigint: str, wait: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG.format(sigint=sigint, wait=wait)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.stdout.read() == "cleaned up\n"
    assert process.returncode == 128 + number


IGNORING = """
import signal, time, trio
from triomq_command.ending_signals import interrupted_by_signals

signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    with interrupted_by_signals(keep_ignoring=True):
        signal.raise_signal(signal.SIGINT)
        print("begun", flush=True)
        {wait}
finally:
    signals = signal.sigpending() | signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN and not signals, flush=True)
"""


@pytest.mark.parametrize("wait", ["time.sleep(1000)", "trio.run(trio.sleep, 1000)"])
def test_a_job_that_keeps_ignoring_sigint(wait: str) -> None:
    """Only SIGTERM ends it, in order."""
    code = IGNORING.format(wait=wait)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "True\n"
    assert process.returncode == 128 + signal.SIGTERM


LISTENING = """
import signal, trio
from triomq_benchmarks.run.interrupts import on_interrupt

async def main():
    with trio.CancelScope() as scope:
        calls = []
        async with on_interrupt(lambda: calls.append(None) or print(len(calls), flush=True)):
            print("begun", flush=True)
            await trio.sleep(1000)

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.{hang_up})
trio.run(main)
"""


def test_a_closed_terminal_interrupts_once_and_ctrl_c_each_time() -> None:
    listening = LISTENING.format(hang_up="SIG_DFL")
    with subprocess.Popen([sys.executable, "-c", listening], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for number, said in ((signal.SIGHUP, "1\n"), (signal.SIGINT, "2\n"), (signal.SIGTERM, "3\n")):
            process.send_signal(signal.SIGHUP)
            process.send_signal(number)
            assert process.stdout.readline() == said
        process.kill()


def test_nohup_keeps_a_benchmark_from_ending_with_its_terminal() -> None:
    ignored = LISTENING.format(hang_up="SIG_IGN")
    with subprocess.Popen([sys.executable, "-c", ignored], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "1\n"
        process.kill()


IMPORTING = """
import os, signal
from triomq_command.garbage import importing

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with importing():
        os.kill(os.getpid(), signal.SIGINT)
        print("imported")
except KeyboardInterrupt:
    print("interrupted")
"""


WITHIN_A_COMMAND = """
import os, signal, sys
from types import SimpleNamespace
from triomq._cli import messages
from triomq_benchmarks import __main__ as bench

signal.signal(signal.SIGINT, signal.default_int_handler)

def load(*_name):
    for number in {signals}:
        os.kill(os.getpid(), number)
    print("imported")
    return SimpleNamespace(run=None)

bench.import_module = load
if "{command}" == "other":
    messages._found = lambda: dict(other=SimpleNamespace(load=load, value="other"))
sys.exit(messages.run({arguments}))
"""


@pytest.mark.parametrize(
    ("arguments", "signals", "code"),
    [
        (["other"], [signal.SIGINT], 130),
        (["bench", "run"], [signal.SIGINT], 130),
        (["bench", "run"], [signal.SIGTERM], 143),
    ],
)
def test_a_signal_waits_for_the_import_of_a_command(arguments: list[str], signals: list[int], code: int) -> None:
    program = WITHIN_A_COMMAND.format(
        arguments=arguments, signals=[int(each) for each in signals], command=arguments[0]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "imported\n", "")


def test_ctrl_c_waits_for_the_end_of_an_import() -> None:
    """msgspec crashes at a KeyboardInterrupt while it prepares a decoder, and import locks drop one."""
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["imported", "interrupted"]


@pytest.mark.usefixtures("sigint_raises")
def test_signals_that_are_put_off_take_effect_at_the_end_of_the_block() -> None:
    seen: list[str] = []

    def block() -> None:
        with signals_put_off():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            seen.append("end")

    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("SIGTERM"))
    try:
        with pytest.raises(KeyboardInterrupt):
            block()
        assert seen == ["end", "SIGTERM"]
        signal.raise_signal(signal.SIGTERM)
        assert seen == ["end", "SIGTERM", "SIGTERM"]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigint_raises")
def test_a_ctrl_c_at_the_end_of_the_block_leaves_no_handler_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes as soon as its handler is there again, and must not keep the others from being put back."""
    seen: list[str] = []
    install = signal.signal

    def install_and_interrupt(number: int, handler: Callable[..., object]) -> object:
        replaced = install(number, handler)
        if handler is signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)
        return replaced

    before = install(signal.SIGTERM, lambda *_: seen.append("SIGTERM"))
    try:
        monkeypatch.setattr(signal, "signal", install_and_interrupt)
        with pytest.raises(KeyboardInterrupt), signals_put_off():
            pass
        signal.raise_signal(signal.SIGTERM)
        assert seen == ["SIGTERM"]
    finally:
        install(signal.SIGTERM, before)


def test_a_thread_that_gets_no_signals_puts_none_off() -> None:
    def run() -> None:
        with signals_put_off():
            done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]
