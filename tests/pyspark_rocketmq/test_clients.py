"""The clients of one process, and what a worker of Spark does before its first one."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext

from pyspark_rocketmq import clients
from pyspark_rocketmq.clients import ClientKey, borrowed
from pyspark_rocketmq.options import read_options

KEY = ClientKey(read_options({"namesrv": "127.0.0.1:1", "topic": "T"}, streaming=False).client, None)


class FakeClient:
    def __init__(self, _pool: object, key: ClientKey) -> None:
        self.key = key
        self.users = 0
        self.is_over = False


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each call of `gc.freeze`."""
    calls: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(None))
    monkeypatch.setattr(clients, "PooledClient", FakeClient)
    monkeypatch.setattr(clients, "_pool", clients._Pool())
    return calls


def test_a_worker_exempts_its_imports_from_the_search_for_garbage_once(monkeypatch, frozen):
    monkeypatch.setattr(TaskContext, "get", lambda: object())

    for _ in range(3):
        with borrowed(KEY) as client:
            assert client.key == KEY
            assert len(frozen) == 1


def test_a_process_that_runs_no_task_is_left_as_it_is(monkeypatch, frozen):
    monkeypatch.setattr(TaskContext, "get", lambda: None)

    with borrowed(KEY):
        assert not frozen


def test_a_client_is_used_as_long_as_its_files_stay_as_they_are(frozen, tmp_path):
    """An account or a certificate may be replaced while a query runs."""
    account, ca = tmp_path / "tools.yml", tmp_path / "ca.pem"
    options = {"namesrv": "h:1", "topic": "T", "credentialsFile": str(account), "tls": "true", "tlsCa": str(ca)}
    key = ClientKey(read_options(options, streaming=False).client, None)

    def client():
        with borrowed(key) as found:
            return found

    found = [client()]
    account.write_text("accessKey: a")
    ca.write_text("1")
    found.append(client())
    assert client() is found[-1]
    for changed in (account, ca):
        replacement = tmp_path / "new"
        replacement.write_text(changed.read_text())
        replacement.replace(changed)
        found.append(client())
        assert client() is found[-1]
    assert len(set(map(id, found))) == 4
    assert {each.key.settings for each in found} == {key.settings}
