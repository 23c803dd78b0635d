"""The commands that create certificates, as the page about TLS shows them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pages import ROOT

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("bash") is None, reason="openssl or bash is not installed"
)


def commands(first: str, page: str = "docs/how-to/tls.md") -> str:
    """The block of a page that begins with `first`, without its prompts."""
    shown = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    return next(re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in shown if block.startswith(f"$ {first}"))


def rejection(folder: Path) -> str:
    """What Python 3.13 and later, which verify strictly by default, would have against the broker's certificate."""
    argv = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "broker-a.pem"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@needs_openssl
def test_certificates_follow_the_strict_rules(tmp_path: Path) -> None:
    script = commands("openssl req -x509 -newkey")
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    assert rejection(tmp_path) == ""
    assert "BEGIN PRIVATE KEY" in (tmp_path / "broker-a.key").read_text()


@needs_openssl
def test_an_authority_that_is_made_again_keeps_its_certificates(tmp_path: Path) -> None:
    script = re.sub(r' -addext "[^"]*"', "", commands("openssl req -x509 -newkey"))
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    assert "CA cert does not include key usage extension" in rejection(tmp_path)
    again = commands("openssl req -x509 -key")
    subprocess.run(["bash", "-ec", again], cwd=tmp_path, check=True, capture_output=True)
    assert rejection(tmp_path) == ""
