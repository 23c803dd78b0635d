"""A broker whose account files are missing or broken does not start: one line that names the file, and an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ACCOUNT = "accounts:\n- accessKey: abcdefgh\n  secretKey: abcdefgh\n  admin: true\n"


def started(tmp_path: Path, files: dict[str, bytes], *settings: str) -> subprocess.CompletedProcess[str]:
    """The end of a broker with these files below its home."""
    home = tmp_path / "home"
    for name, content in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    given = {
        "aclEnable": "true",
        "haSlaveAddresses": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "store"),
        "rocketmqHome": str(home),
        **dict(setting.split("=", 1) for setting in settings),
    }
    command = [sys.executable, "-m", "triomq_server", "broker"]
    for key, value in given.items():
        command += ["--set", f"{key}={value}"]
    environment = {name: value for name, value in os.environ.items() if name != "ROCKETMQ_HOME"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "aclEnable=true needs accounts: {home}/conf/plain_acl.yml has none, and there is none in {home}/conf/acl"),
        ({"conf/plain_acl.yml": b""}, "aclEnable=true needs accounts: {home}/conf/plain_acl.yml has none"),
        ({"conf/plain_acl.yml": b"accounts: ["}, "{home}/conf/plain_acl.yml, line 1 is not YAML"),
        ({"conf/plain_acl.yml": b"accounts: 7"}, "{home}/conf/plain_acl.yml: accounts is not a list of maps"),
        (
            {"conf/plain_acl.yml": ACCOUNT.encode(), "conf/acl/more.yml": b"accounts:\n- accessKey: abcdefgh\n"},
            "{home}/conf/acl/more.yml",
        ),
        ({"conf/plain_acl.yml/file": b""}, "Is a directory: '{home}/conf/plain_acl.yml'"),
    ],
)
def test_accounts_that_cannot_be_used_prevent_the_start(tmp_path: Path, files: dict[str, bytes], problem: str) -> None:
    ended = started(tmp_path, files)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("Error: bad configuration: ")
    assert problem.format(home=tmp_path / "home") in line
    assert "abcdefgh" not in line


def test_access_control_without_a_place_of_accounts_is_wrong_usage(tmp_path: Path) -> None:
    ended = started(tmp_path, {}, "rocketmqHome=")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "rocketmqHome" in line
