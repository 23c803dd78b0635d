"""The command line, as far as it needs no server: help, mistakes, commands of other packages."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import triomq
from triomq import errors
from triomq._admin import servers as _servers
from triomq._cli import messages as _commands
from triomq._cli import offsets, topics
from triomq._cli import options as _options
from triomq._cli.doctor import progress_on
from triomq_command import overview
from triomq_command.overview import must_print
from triomq_command.running import exit_code_of, printable
from triomq_server.admin.asking import AdminError
from triomq_server.commands import admin


def run(capsys, *arguments):
    code = _commands.run(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["topics", "-n", "127.0.0.1:1"], 1, "no name server can be reached"),
        (["topics", "--namesrv-addr", "127.0.0.1:1"], 1, "`triomq namesrv` or `triomq cluster` starts one"),
        (["groups", "--name-servers", "127.0.0.1:1"], 1, "`triomq namesrv` or `triomq cluster` starts one"),
        (["admin", "ha", "--name-servers", "127.0.0.1:1"], 1, "`triomq namesrv` or `triomq cluster` starts one"),
        (["topics", "-n", "nonsense"], 2, "not host:port"),
        (["topics", "-n", "127.0.0.1:1,127.0.0.1:2"], 2, "addresses are separated by ';'"),
        (["send", "T", "x", "-p", "nonsense"], 2, "NAME=VALUE"),
        (["send", "T", "x", "--queue", "nonsense"], 2, "BROKER:QUEUE"),
        (["send", "a b", "x", "-n", "127.0.0.1:1"], 2, "characters"),
        (["topics", "--create"], 2, "need a TOPIC"),
        (["topics", "T", "--create", "--delete"], 2, "either"),
        (["send", "T", "x", "--timeout", "nan"], 2, "not greater than 0"),
        (["send", "T", "x", "--timeout", "0"], 2, "not greater than 0"),
        (["send", "T", "", "-n", "127.0.0.1:1"], 1, "the body is empty"),
        (["nonsense"], 2, "No such command"),
        (["send"], 2, "Missing argument"),
    ],
)
def test_mistakes_are_one_clear_line(capsys, arguments, code, what):
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "")
    assert what in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["consume", "T", "--from", "garbage"], "no time like"),
        (["consume", "T", "--from", "garbage", "-g", "G"], "no time like"),
        (["consume", "T", "--from", "5", "-g", "G"], "needs --queue"),
        (["consume", "T", "--format", "{nope}"], "fields: topic"),
        (["consume", "T", "--format", "{nope"], "fields: topic"),
        (["consume", "T", "--format", "{0}"], "fields: topic"),
        (["consume", "T", "--format", "{body:d}"], "fields: topic"),
        (["consume", "T", "--format", f"{{body:{2**62}}}"], "a width that is too large"),
        (["consume", "T", "--queue", "vm"], "BROKER:QUEUE"),
        (["consume", "T", "--tags", "||"], "names no tag"),
        (["consume", "T", "--sql", "a > "], "SQL92 expression 'a > ' cannot be used"),
        (["consume", "T", "--sql", ""], "empty"),
        (["pull", "T", "--queue", "vm"], "BROKER:QUEUE"),
        (["pull", "T", "--tags", "a && b"], "only || joins tags"),
        (["pull", "T", "--tags", "b = 1"], "give an SQL92 expression as --sql"),
        (["consume", "T", "--tags", "b > 1 AND a = 2"], "give an SQL92 expression as --sql"),
        (["pull", "T", "--tags", "a", "--sql", "b = 1"], "give either --tags or --sql"),
        (["consume", "T", "--tags", "a", "--sql", "b = 1"], "give either --tags or --sql"),
        (["consume", "T", "--tags", "a && b"], "only || joins tags"),
        (["send", "T", "x", "--tags", "a || b"], "a message has one tag"),
        (["send", "T", "x", "--file", "y"], "give either BODY or --file"),
        (["pull", "T", "--tags", "||"], "names no tag"),
        (["pull", "T", "--sql", "a > "], "SQL92 expression 'a > ' cannot be used"),
        (["offsets", "reset", "G", "T", "5", "--queue", "vm", "--yes"], "BROKER:QUEUE"),
        (["offsets", "reset", "G", "T", "earliest"], "give --yes"),
        (["offsets", "reset", "G", "T", "1" * 5000, "--yes"], "neither earliest nor latest"),
        (["consume", "T", "--from", "1" * 5000], "neither earliest nor latest"),
        (["consume", "T", "--from", "²"], "neither earliest nor latest"),
        (["message", "time", "T", "b:0", "earliest"], "'earliest' is no time like 2026"),
        (["message", "time", "T", "b:0", "0"], "nor milliseconds since 1970, which are at least 100000000000"),
        (["message", "key", "T", "k", "--until", "latest"], "'latest' is no time like 2026"),
        (["pull", "T", "--queue", "b:" + "1" * 5000], "BROKER:QUEUE"),
        # As of a variable of a script that is not set: not every queue, and no consumer without a group.
        (["offsets", "reset", "G", "T", "5", "--queue", "", "--yes"], "'' is not BROKER:QUEUE"),
        (["send", "T", "x", "--queue", ""], "'' is not BROKER:QUEUE"),
        (["pull", "T", "--queue", ""], "'' is not BROKER:QUEUE"),
        (["consume", "T", "--queue", ""], "'' is not BROKER:QUEUE"),
        (["consume", "T", "--queue", "b:0", "-g", ""], "either --queue or --group"),
        (["topics", "T", "--delete"], "give --yes"),
        (["topics", "T", "--delete", "--queues", "4", "--yes"], "--queues belongs to --create"),
    ],
)
def test_bad_options_are_noticed_before_any_broker_is_asked(capsys, monkeypatch, arguments, what):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # not a terminal: the `y` does not count
    monkeypatch.setattr(_commands.trio, "run", lambda *_: pytest.fail("it went on"))
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert what in err


@pytest.mark.parametrize(
    "template", ["{stored} {broker}:{queue:>3} {offset:08d} {tags} {body!r:.5}", "{properties[n]} {reconsume_times:d}"]
)
def test_formats_that_can_be_filled_in_go_on(capsys, monkeypatch, template):
    monkeypatch.setattr(_commands.trio, "run", lambda *_: None)
    assert run(capsys, "consume", "T", "--format", template) == (0, "", "")


CLIENT_COMMANDS = [
    "send T x", "pull T", "consume T", "groups", "groups G", "offsets show G", "offsets reset G T earliest --yes", "topics",
    "topics T", "cluster-status",
]  # fmt: skip


@pytest.fixture
def credentials_of(capsys, monkeypatch):
    """Runs a command; returns the account with which it would have opened its client."""
    seen = []

    def open_client(_name_servers, *, credentials, **_options):
        seen.append(credentials)
        raise triomq.errors.NoNameServer("none")

    def run_it(*arguments, **environment):
        for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN"):
            monkeypatch.delenv(f"ROCKETMQ_{name}", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(f"ROCKETMQ_{name}", value)
        seen.clear()
        code, _, err = run(capsys, *arguments)
        return (seen[0] if seen else None), code, err

    monkeypatch.setattr(_options, "open_client", open_client)
    return run_it


@pytest.mark.parametrize("command", CLIENT_COMMANDS)
def test_every_client_command_takes_an_account(credentials_of, tmp_path, command):
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: from-file\nsecretKey: file-secret\n")
    ours, theirs = triomq.Credentials("from-env", "s"), triomq.Credentials("from-file", "file-secret")
    assert credentials_of(*command.split())[:2] == (None, 1)
    assert credentials_of(*command.split(), ACCESS_KEY="from-env", SECRET_KEY="s")[0] == ours
    assert credentials_of(*command.split(), "--credentials-file", str(file))[0] == theirs
    both = credentials_of(*command.split(), "--credentials-file", str(file), ACCESS_KEY="from-env", SECRET_KEY="s")
    assert both[0] == theirs
    token = credentials_of(*command.split(), "--access-key", "a", SECRET_KEY="s", SECURITY_TOKEN="t")[0]
    assert token == triomq.Credentials("a", "s", "t")


def test_half_an_account_is_a_mistake(credentials_of, tmp_path):
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: HUSH\n")
    for arguments, environment, what in [
        ([], {"ACCESS_KEY": "a"}, "--secret-key (ROCKETMQ_SECRET_KEY) is missing"),
        ([], {"SECRET_KEY": "HUSH"}, "--access-key (ROCKETMQ_ACCESS_KEY) is missing"),
        (["--credentials-file", str(file)], {}, "has no secretKey"),
        (["--credentials-file", str(file), "--access-key", "a"], {}, "give either --credentials-file or keys"),
    ]:
        _, code, err = credentials_of("topics", *arguments, **environment)
        assert (code, what in err, "HUSH" in err) == (2, True, False), err


def test_help_warns_about_visible_secrets(capsys):
    _, out, _ = run(capsys, "send", "--help")
    assert "can see arguments" in " ".join(out.split())
    assert "ROCKETMQ_SECRET_KEY" in out


@pytest.mark.parametrize("command", ["topics", "broker", "admin ha"])
def test_name_servers_have_two_spellings(capsys, command):
    _, out, _ = run(capsys, *command.split(), "--help")
    assert "--name-servers" in out
    assert "--namesrv-addr" in out


def test_name_servers_have_one_default(capsys):
    for command in ("topics", "admin ha"):
        _, out, _ = run(capsys, *command.split(), "--help")
        assert "127.0.0.1:9876" in out


@pytest.mark.parametrize(
    "command",
    ["", "send", "pull", "consume", "groups", "offsets", "offsets show", "offsets reset", "topics", "cluster-status",
     "namesrv", "broker", "cluster"],
)  # fmt: skip
def test_help(capsys, command):
    code, out, err = run(capsys, *command.split(), "--help")
    assert (code, err) == (0, "")
    assert "Usage: triomq" in out


@pytest.fixture
def foreign(monkeypatch):
    """Make the entry-point group hold these commands and no others."""

    def put(**entries):
        found = [importlib.metadata.EntryPoint(name, value, "triomq.commands") for name, value in entries.items()]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)

    return put


def test_commands_of_other_packages_are_listed_and_run(capsys, foreign):
    foreign(other="triomq._cli.messages:cluster_status", send="nowhere:at_all")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert " other " in out
    assert out.count(" send ") == 1  # ours comes first
    code, out, _ = run(capsys, "other", "--help")
    assert (code, "Show clusters" in out) == (0, True)


@pytest.mark.parametrize("value", ["no_such_package:command", "triomq:no_such_command"])
def test_a_command_that_cannot_be_loaded_names_the_cause(capsys, foreign, value):
    foreign(broken=value)
    code, out, _ = run(capsys, "--help")
    assert (code, "broken" in out) == (0, True)
    code, _, err = run(capsys, "broken", "--with", "options")
    assert code == 1
    assert f"cannot be loaded from {value}" in err
    assert "pip install 'triomq[all]'" in err


def test_a_command_that_cannot_be_loaded_names_its_extra(capsys, foreign):
    foreign(bench="no_such_package:command")
    code, _, err = run(capsys, "bench")
    assert (code, err) == (
        1,
        "Error: bench needs the package no_such_package, which the extra bench installs: pip install 'triomq[bench]'\n",
    )
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    assert re.search(r"^  bench +not installed: pip install 'triomq\[bench\]'$", out, flags=re.MULTILINE)


def test_a_defect_of_a_command_is_no_missing_extra(capsys, foreign):
    foreign(bench="triomq_benchmarks.no_such_module:command")
    _, out, _ = run(capsys, "--help")
    assert re.search(r"^  bench +cannot be loaded; try pip install", out, flags=re.MULTILINE)
    assert "No module named" in run(capsys, "bench")[2]


def test_an_interrupt_between_tasks_prints_nothing(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_commands.trio, "run", interrupted)
    assert run(capsys, "topics") == (130, "", "")


_SCRIPT = "import sys; from triomq_command import main; sys.exit(main())"
"""What installers write into the script `triomq`."""


@pytest.mark.parametrize("module", ["trio", "click"])
def test_an_interrupt_during_the_imports_prints_nothing(tmp_path, module):
    # trio is imported by the package, click by the commands.
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, "topics"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_script_begins_with_the_module_that_catches_interrupts():
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    assert tomllib.loads(pyproject.read_text())["project"]["scripts"] == {"triomq": "triomq_command:main"}
    # Whatever it imported before it can catch something would show a traceback.
    code = "import sys; before = set(sys.modules); import triomq_command; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "['triomq_command']\n"


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["--version"]])
def test_the_quick_overview_is_that_of_the_commands(capfd, arguments):
    code = overview.show(arguments)
    assert (code, *capfd.readouterr()) == run(capfd, *arguments)


@pytest.mark.parametrize("arguments", [["topics"], ["--help", "topics"], ["nonsense"]])
def test_other_arguments_are_for_the_commands(arguments):
    assert overview.show(arguments) is None


@pytest.mark.parametrize(
    ("shell", "words", "current", "completions"),
    [
        ("bash", "triomq top", "1", {"plain,topics"}),
        ("bash", "triomq --v", "1", {"plain,--version"}),
        ("bash", "triomq topics --js", "2", {"plain,--json"}),
        ("bash", "triomq broker --ho", "2", {"plain,--host"}),
        ("bash", "triomq admin node res", "3", {"plain,restart", "plain,resume"}),
        ("zsh", "triomq topics --js", "2", {"plain", "--json", "One JSON object per line, for machines."}),
        ("fish", "triomq top", "top", {"plain,topics\t" + click.Command("", help=overview.COMMANDS["topics"]).get_short_help_str()}),
        ("fish", "triomq topics --js", "--js", {"plain,--json\tOne JSON object per line, for machines."}),
    ],
)  # fmt: skip
def test_shells_complete_commands_and_their_arguments(shell, words, current, completions):
    asked = {"_TRIOMQ_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": current}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, check=False, text=True, env={**os.environ, **asked}
    )
    assert (done.stderr, set(done.stdout.split("\n")) - {""}) == ("", completions)


def test_without_needed_packages_the_quick_overview_is_not_used(monkeypatch):
    monkeypatch.setattr(overview, "NEEDED", ("no_such_package",))
    assert overview.show(["--help"]) is None


def test_the_overview_imports_no_client():
    code = "import sys; from triomq_command.overview import show; show(['--help']); sys.exit('trio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_an_interrupt_is_an_exit_code(capsys, monkeypatch):
    def interrupted(*_):
        raise BaseExceptionGroup("from a nursery", [KeyboardInterrupt()])

    monkeypatch.setattr(_commands.trio, "run", interrupted)
    assert run(capsys, "topics") == (130, "", "")


def test_the_cli_names_what_it_lacks(tmp_path):
    # A package that cannot be imported, as if it were not installed.
    (tmp_path / "click.py").write_text("raise ImportError('gone', name='click')\n")
    done = subprocess.run(
        [sys.executable, "-m", "triomq", "topics"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr.decode() == "the command line needs the package click: pip install 'triomq[cli]'\n"


_SAY = """
import click, sys
from triomq._cli import messages as _commands
from triomq._cli import options as _options
from triomq._cli.doctor import progress_on
from triomq_server.commands import admin
from triomq._cli import topics

_commands.triomq.add_command(click.Command("say", callback=lambda: click.echo("x")))
sys.exit(_commands.run(["say"]))
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_output_that_takes_nothing_is_one_line():
    with open("/dev/full", "wb", buffering=0) as full:
        done = subprocess.run([sys.executable, "-c", _SAY], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_an_overview_that_cannot_be_written_is_an_error(option):
    command = [
        sys.executable,
        "-c",
        f"import triomq_command, sys; sys.argv = ['triomq', '{option}']; triomq_command.main()",
    ]
    with open("/dev/full", "wb", buffering=0) as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"


_CLOSED = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c"]


@pytest.mark.parametrize("command", ["topics", "admin", "bench"])
def test_a_closed_output_is_an_error(command):
    # What it prints would be lost without a word.
    code = _SAY.replace('"say"', f'"{command}"')
    done = subprocess.run([*_CLOSED, code], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 9] standard output is closed\n")


def test_a_mistake_is_not_printed_among_results():
    code = "import triomq_command, sys; sys.argv = ['triomq', 'pull', '--nope']; triomq_command.main()"
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", code]
    done = subprocess.run(closed, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("command", ["admin", "broker", "run", "dashboard"])
def test_the_help_of_a_command_needs_an_output(command):
    code = f"import triomq_command, sys; sys.argv = ['triomq', '{command}', '--help']; triomq_command.main()"
    done = subprocess.run([*_CLOSED, code], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 9] standard output is closed\n")


def test_servers_run_with_a_closed_output():
    code = _SAY.replace('"say"', '"broker"')
    done = subprocess.run([*_CLOSED, code], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", ["-p", "-m"])
@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_a_server_that_only_prints_its_settings_needs_an_output(server, option):
    code = f"import triomq_command, sys; sys.argv = ['triomq', '{server}', '{option}']; triomq_command.main()"
    done = subprocess.run([*_CLOSED, code], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 9] standard output is closed\n")


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ([], False),
        (["broker"], False),
        (["broker", "-p"], False),
        (["broker", "--help"], True),
        (["broker", "--config", "F", "--help"], True),
        (["bench", "spark-cluster", "-h"], True),
        (["run", "server", "--help"], False),
        (["bench", "spark-cluster", "--workers", "2"], False),
        (["bench", "spark-read"], True),
        (["groups"], True),
        (["nope"], False),
    ],
)
def test_which_commands_must_print(words, must):
    assert must_print(words) is must


def test_nothing_to_print_needs_no_output():
    code = _SAY.replace('"say"', '"topics"').replace('lambda: click.echo("x")', "lambda: None")
    done = subprocess.run([*_CLOSED, code], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "deleted"), [("n", False), ("", False), ("y", True)])
def test_a_topic_is_deleted_after_a_question_that_names_what_is_lost(capsys, monkeypatch, answer, deleted):
    settings = {"broker-a": topics.TopicSettings(8, 8, 6)}
    changes = []
    monkeypatch.setattr(topics, "_settings_now", lambda *_: settings)
    monkeypatch.setattr(topics, "with_client", lambda *_, **__: changes.append("deleted"))
    monkeypatch.setattr(sys, "stdin", Terminal(answer + "\n"))
    code, out, err = run(capsys, "topics", "orders", "--delete")
    assert "Delete topic orders and its messages (8 queues RW- on broker-a)?" in out
    assert (code, changes) == ((0, ["deleted"]) if deleted else (1, []))
    assert ("Nothing was deleted." in err) is not deleted


def test_offsets_are_asked_about_only_after_a_look_at_what_there_is(capsys, monkeypatch):
    def with_client(_name_servers, work, **_options):
        looks.append(work)
        if len(looks) == 1:
            raise click.ClickException("no route to topic nope")

    looks = []
    monkeypatch.setattr(offsets, "with_client", with_client)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    code, out, err = run(capsys, "offsets", "reset", "G", "nope", "earliest")
    assert (code, "Move" in out, "no route" in err) == (1, False, True)
    code, out, err = run(capsys, "offsets", "reset", "G", "T", "earliest")
    assert (code, "Move group G in topic T to earliest?" in out, len(looks)) == (1, True, 2)
    assert err.splitlines()[-1] == "Nothing was moved."


def test_a_log_is_cut_only_after_a_look_and_a_yes(capsys, monkeypatch):
    async def slave_to_cut(_name_servers, broker, _open_link):
        if broker == "nobody":
            raise AdminError("nobody is not a broker")
        return "127.0.0.1:2"

    async def cut(_name_servers, address, _open_link):
        cuts.append(address)
        return 7

    cuts = []
    monkeypatch.setattr(admin, "slave_to_cut", slave_to_cut)
    monkeypatch.setattr(admin, "cut", cut)
    for stdin, broker, options, expected in (
        (Terminal("y\n"), "nobody", [], (1, "nobody is not a broker")),
        (io.StringIO("y\n"), "vm:1", [], (2, "give --yes")),  # not a terminal: the `y` does not count
        (Terminal("n\n"), "vm:1", [], (1, "Nothing was dropped.")),
        (Terminal("y\n"), "vm:1", [], (0, "")),
        (io.StringIO(), "vm:1", ["-y"], (0, "")),
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = run(capsys, "admin", "cut", broker, *options)
        assert (code, expected[1] in err) == (expected[0], True), err
        assert ("7 bytes dropped" in out) == (code == 0)
    code, out, _ = run(capsys, "admin", "cut", "vm:1", "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"address": "127.0.0.1:2", "droppedBytes": 7})
    assert cuts == ["127.0.0.1:2"] * 3


def test_a_text_that_is_no_time_is_answered_with_the_words_that_are_known() -> None:
    with pytest.raises(click.UsageError, match="neither earliest nor latest, no time like 2026"):
        _options.time_of("tomorrow")


@pytest.mark.parametrize(
    "text", ["0001-01-01", "9999-12-31T23:59:59-20:00", "9" * 30, "9" * 5000, "1" * 20, "1" * 5000]
)
def test_a_time_that_no_request_can_have_is_a_mistake(text):
    with pytest.raises(click.UsageError, match="neither earliest nor latest"):
        _options.time_of(text)


@pytest.mark.parametrize("time_ms", [2**62, -(2**62)])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(time_ms):
    assert _options.moment(time_ms) == f"{time_ms} ms"


@pytest.mark.parametrize("arguments", [["send", "T"], ["topics", "T", "--delete"], ["send", "T", "--file", "-"]])
def test_a_closed_standard_input_is_one_line(command_line, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdin", None)
    code, out, err = command_line(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: ")


def test_settings_that_are_no_text_are_a_mistake():
    with pytest.raises(errors.InvalidCall, match="half a character"):
        _servers._lines_of({"a": "\udcff"})


def test_text_of_other_clients_cannot_control_the_terminal(capsys):
    assert printable("a\x1b[2J\x9b\x7f\tb\nc é") == "a\\x1b[2J\\x9b\\x7f\tb\nc é"
    _options.say({"a": "\x1b"}, "name \x1b]0;x\x07", as_json=False)
    assert capsys.readouterr().out == "name \\x1b]0;x\\x07\n"

    def fail() -> None:
        raise click.ClickException("there is no broker \x1b[2J")

    assert exit_code_of(fail) == 1
    assert capsys.readouterr().err == "Error: there is no broker \\x1b[2J\n"


def test_the_progress_of_the_doctor_is_shown_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # on a dumb terminal there is none
    seen = triomq.admin.LookedAt("groups", "GROUP\x1b[2J[red]", 3, 7)
    terminal, pipe = Terminal(), io.StringIO()
    with progress_on(terminal, shown=True) as show:
        show(seen)
    with progress_on(pipe, shown=True) as nothing:
        assert nothing is None
    with progress_on(terminal, shown=False) as nothing:
        assert nothing is None
    text = terminal.getvalue()
    assert "3/7" in text
    assert "groups" in text
    assert "GROUP\\x1b[2J[red]" in text
    assert pipe.getvalue() == ""


def test_without_rich_the_doctor_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `server` is without it."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress_on(Terminal(), shown=True) as show:
        assert show is None


@pytest.mark.parametrize("as_json", [False, True])
def test_output_that_is_not_utf_8_has_escapes(monkeypatch, as_json):
    """A pipe on Windows, or an old locale: messages are UTF-8 and may hold what the output's encoding lacks."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    text = "grüße ☃ 😀 \udcff"
    assert exit_code_of(lambda: _options.say({"body": text}, text, as_json=as_json)) == 0
    sys.stdout.flush()
    if as_json:
        assert json.loads(written.getvalue()) == {"body": text}
    else:
        assert written.getvalue().decode("latin-1") == "grüße \\u2603 \\ud83d\\ude00 \\udcff\n"


def test_a_line_that_is_too_long_is_not_read_to_its_end():
    """As of a file that is no text; otherwise its whole content would be kept in memory."""
    read = 0

    def pieces():
        nonlocal read
        yield b"first\nx"
        while True:
            read += 2**20
            yield b"x" * 2**20

    first, second = _commands._lines(pieces())
    assert first == b"first"
    assert len(second) > _commands.FILE_MAX_BYTES
    assert read < 2 * _commands.FILE_MAX_BYTES
