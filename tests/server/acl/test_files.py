"""Which files have accounts, and which of them a change is written to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from triomq_server.acl import AclError, AclFiles, files
from triomq_server.acl.files import WATCH_S
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
    assert list(trio.run(accounts.versions)) == [str(mounted / "users.yml")]

    (mounted / "..tmp").symlink_to("..2026_2")
    (mounted / "..tmp").replace(mounted / "..data")
    accounts.load()  # the old directory may be there for a moment
    assert accounts.rules.accounts["adminkey"].secret_key == "secret-2"
    shutil.rmtree(mounted / "..2026_1")
    accounts.load()
    assert accounts.rules.accounts["adminkey"].secret_key == "secret-2"
    assert caplog.messages == []


_OPERATOR = "accounts:\n- {accessKey: operator, secretKey: a secret, admin: true}\n"
_LEAVING = "- {accessKey: leaving1, secretKey: b secret}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with two accounts in `plain_acl.yml`."""
    (tmp_path / "conf/acl").mkdir(parents=True)
    (tmp_path / "conf/plain_acl.yml").write_text(_OPERATOR + _LEAVING)
    return tmp_path


def _loaded(home: Path) -> AclFiles:
    accounts = AclFiles(str(home), lambda: 0, RealDisk().run)
    accounts.load()
    return accounts


async def test_a_deleted_account_of_several_files_is_in_none_of_them(home: Path) -> None:
    for name in ("a.yml", "b.yml"):
        (home / "conf/acl" / name).write_text("accounts:\n" + _LEAVING)
    accounts = _loaded(home)
    assert await accounts.delete_account("leaving1")
    assert list(accounts.rules.accounts) == ["operator"]
    assert list(_loaded(home).rules.accounts) == ["operator"]
    assert accounts.rules.repeated == ()
    assert not await accounts.delete_account("leaving1")


@pytest.mark.parametrize("blocked", ["acl/a.yml", "plain_acl.yml"])
async def test_an_account_stays_as_it_is_when_not_all_its_files_can_be_written(home: Path, blocked: str) -> None:
    (home / "conf/acl/a.yml").write_text("accounts:\n- {accessKey: leaving1, secretKey: the first}\n")
    accounts = _loaded(home)
    (home / f"conf/{blocked}.tmp").mkdir()
    with pytest.raises(OSError, match=r"\.yml\.tmp"):
        await accounts.delete_account("leaving1")
    for seen in (accounts, _loaded(home)):
        assert seen.rules.accounts["leaving1"].secret_key == "the first"


@pytest.mark.parametrize("deletes", [True, False])
async def test_a_change_finds_an_account_that_an_operator_has_just_moved(home: Path, deletes: bool) -> None:
    accounts = _loaded(home)
    (home / "conf/plain_acl.yml").write_text(_OPERATOR)
    (home / "conf/acl/a.yml").write_text("accounts:\n" + _LEAVING)
    if deletes:
        assert await accounts.delete_account("leaving1")
        assert list(accounts.rules.accounts) == ["operator"]
    else:
        await accounts.put_account({"accessKey": "leaving1", "secretKey": "another"})
        assert accounts.rules.accounts["leaving1"].secret_key == "another"
        assert accounts.rules.repeated == ()


async def test_an_account_for_which_the_files_have_no_room_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files stay as they are: neither a start nor the deletion of an account could read larger ones."""
    accounts = _loaded(home)
    monkeypatch.setattr(files, "MOST_ALL_BYTES", (home / "conf/plain_acl.yml").stat().st_size)
    with pytest.raises(AclError, match="put fewer accounts"):
        await accounts.put_account({"accessKey": "another1", "secretKey": "another secret"})
    for seen in (accounts, _loaded(home)):
        assert list(seen.rules.accounts) == ["operator", "leaving1"]


async def test_a_white_list_does_not_bring_back_a_file_that_an_operator_has_deleted(home: Path) -> None:
    path = home / "conf/acl/a.yml"
    path.write_text("globalWhiteRemoteAddresses: ['10.0.0.1']\n")
    accounts = _loaded(home)
    path.unlink()
    assert not await accounts.put_white(["10.0.0.2"], str(path))
    assert not path.exists()


async def test_a_file_with_values_that_cannot_be_read_changes_nothing(
    home: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(chore: Callable[[], Any]) -> Any:
        return chore()

    accounts = AclFiles(str(home), lambda: 0, run)
    accounts.load()
    (home / "conf/plain_acl.yml").write_text(
        _OPERATOR + "- {accessKey: another, secretKey: c secret, admin: !!bool no!}"
    )
    with trio.move_on_after(3 * WATCH_S):
        await accounts.watch()
    assert list(accounts.rules.accounts) == ["operator", "leaving1"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
