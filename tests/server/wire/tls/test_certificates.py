"""Certificates that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from triomq_server.config import ConfigError, TlsConfig
from triomq_server.wire.tls import certificates


@pytest.mark.parametrize("gone", ["certificate", "key"])
def test_a_file_that_vanishes_while_its_fault_is_looked_for_is_named(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "certificate", tmp_path / "key"]
    for path in paths:
        path.write_text("-----BEGIN CERTIFICATE-----\nPRIVATE KEY")
    read = certificates.read_plain

    def read_late(path: str, most_bytes: int) -> bytes:
        if most_bytes > 1:  # OpenSSL has rejected it
            (tmp_path / gone).unlink(missing_ok=True)
        return read(path, most_bytes)

    monkeypatch.setattr(certificates, "read_plain", read_late)
    config = TlsConfig(server_cert_path=str(paths[0]), server_key_path=str(paths[1]))
    with pytest.raises(ConfigError, match=f"cannot be used: .*No such file or directory: '{tmp_path / gone}'"):
        certificates.server_context(config)
