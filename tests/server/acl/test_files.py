"""Which files have accounts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from triomq_server.acl import AclFiles
from triomq_server.disk import RealDisk


def test_a_directory_that_kubernetes_mounts_has_each_file_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It puts a Secret's files into a directory, links a second name to that, and files to the second name."""
    mounted = tmp_path / "conf/acl"
    for number in (1, 2):
        (mounted / f"..2026_{number}").mkdir(parents=True)
        (mounted / f"..2026_{number}/users.yml").write_text(
            f"accounts:\n- {{accessKey: adminkey, secretKey: secret-{number}, admin: true}}\n"
        )
    (mounted / "..data").symlink_to("..2026_1")
    (mounted / "users.yml").symlink_to("..data/users.yml")
    accounts = AclFiles(str(tmp_path), lambda: 0, RealDisk().run)
    accounts.load()
    assert accounts.rules.accounts["adminkey"].secret_key == "secret-1"
    assert accounts.rules.file_of == {"adminkey": str(mounted / "users.yml")}

    (mounted / "..tmp").symlink_to("..2026_2")
    (mounted / "..tmp").replace(mounted / "..data")
    accounts.load()  # the old directory may be there for a moment
    assert accounts.rules.accounts["adminkey"].secret_key == "secret-2"
    shutil.rmtree(mounted / "..2026_1")
    accounts.load()
    assert accounts.rules.accounts["adminkey"].secret_key == "secret-2"
    assert caplog.messages == []
