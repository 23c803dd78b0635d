"""The account and TLS options of benchmarks: for which targets they are, and where their secrets go."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from triomq_benchmarks.clusters.access import PLAIN, Access
from triomq_benchmarks.commands.cluster_access import access_to, variables_for
from triomq_command.connection_options import with_connection_options

THERE = "10.0.0.5:9876"
KEYS = {"ROCKETMQ_ACCESS_KEY": "orders-app", "ROCKETMQ_SECRET_KEY": "hidden-one"}


@pytest.fixture
def account_file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: from-a-file\nsecretKey: hidden-two\n")
    return path


def given(
    *arguments: str, targets: tuple[str, ...] = (THERE,), **environment: str
) -> tuple[Access, Mapping[str, str], str]:
    """The access that a command with these arguments gets, its children's variables, and what it printed."""
    found: list[tuple[Access, Mapping[str, str]]] = []

    @click.command()
    @with_connection_options
    def command() -> None:
        access = access_to(targets)
        found.append((access, variables_for(access)))

    nothing = dict.fromkeys(
        ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN", "ROCKETMQ_TLS", "ROCKETMQ_TLS_CA")
    )
    result = CliRunner().invoke(command, arguments, env={**nothing, **environment})
    return (*found[0], result.output) if found else (PLAIN, {}, result.output)


def test_an_account_of_the_environment_is_for_existing_clusters_only() -> None:
    access, _variables, _said = given(**KEYS)
    assert access.options()["credentials"].access_key == "orders-app"
    assert access.is_signed
    for targets in (("ours",), ("java", "ours")):
        assert given(targets=targets, ROCKETMQ_TLS_CA="/nowhere.pem", **KEYS)[0] == PLAIN
    assert given(targets=("ours", THERE), **KEYS)[0] == access
    assert given()[0] == PLAIN


@pytest.mark.parametrize("arguments", [("--tls",), ("--tls-ca", "x"), ("--credentials-file", "x")])
def test_arguments_without_effect_are_errors(arguments: tuple[str, ...]) -> None:
    assert f"{arguments[0]} has no effect on the target ours" in given(*arguments, targets=("ours",))[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tls-ca", "/nowhere.pem"), "ca='/nowhere.pem' cannot be used"),
        (("--credentials-file", "/nowhere.yml"), "/nowhere.yml cannot be read"),
        (("--access-key", "orders-app"), "--secret-key (ROCKETMQ_SECRET_KEY) is missing"),
        (("--tls-insecure", "--tls-any-host-name"), "insecure=True verifies nothing"),
    ],
)
def test_mistakes_are_found_before_anything_starts(arguments: tuple[str, ...], says: str) -> None:
    assert says in given(*arguments)[2].replace("\n", " ")


def test_children_get_the_account_in_their_environment(account_file: Path) -> None:
    _access, variables, _said = given(**KEYS, ROCKETMQ_TLS="true", PATH="/bin")
    assert {**KEYS, "ROCKETMQ_TLS": "true", "PATH": "/bin"}.items() <= variables.items()
    _access, variables, _said = given("--credentials-file", str(account_file), ROCKETMQ_SECURITY_TOKEN="old", **KEYS)
    assert (variables["ROCKETMQ_ACCESS_KEY"], variables["ROCKETMQ_SECRET_KEY"]) == ("from-a-file", "hidden-two")
    assert "ROCKETMQ_SECURITY_TOKEN" not in variables, "it belongs to the account that the file replaces"
    assert given("--tls-insecure")[1]["ROCKETMQ_TLS_INSECURE"] == "true"


def test_what_goes_to_load_generators_shows_no_secret(account_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(account_file.parent)
    access = given("--tls-insecure", "--credentials-file", account_file.name)[0]
    assert access.credentials_file == str(account_file), "generators on Spark have working directories of their own"
    assert pickle.loads(pickle.dumps(access)) == access
    keyed = given("--tls-insecure", **KEYS)[0]
    assert keyed.is_signed
    assert "hidden" not in f"{keyed}{access}{Access(tls={'key_password': 'hidden-three'})}"
