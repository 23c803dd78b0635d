"""The options for accounts and TLS: what a command was given, and that all commands have the same ones."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from triomq._cli import options
from triomq_command.connection_options import AccountGiven, account_given, tls_given, with_connection_options
from triomq_server.commands import admin

ENVIRONMENT = {
    "ROCKETMQ_ACCESS_KEY": None,
    "ROCKETMQ_SECRET_KEY": None,
    "ROCKETMQ_SECURITY_TOKEN": None,
    "ROCKETMQ_TLS": None,
}


def given(arguments, environment=None):
    """What the options leave for a command: the account, the settings of TLS, or the error."""
    found = []

    @click.command()
    @with_connection_options
    def look():
        found.extend([account_given(), dict(tls_given())])

    result = CliRunner().invoke(look, arguments, env=ENVIRONMENT | (environment or {}))
    return found or result.output


@pytest.mark.parametrize(
    ("arguments", "environment", "account", "tls"),
    [
        ([], {}, None, {}),
        (["--access-key", "a", "--secret-key", "s"], {}, AccountGiven(None, "a", "s", None), {}),
        ([], {"ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "s"}, AccountGiven(None, "a", "s", None), {}),
        (["--credentials-file", "f"], {"ROCKETMQ_ACCESS_KEY": "a"}, AccountGiven("f"), {}),
        (["--tls"], {}, None, {"tls": True}),
        (["--tls-ca", "f", "--tls-any-host-name"], {}, None, {"tls_ca": "f", "tls_any_host_name": True}),
        ([], {"ROCKETMQ_TLS": "true"}, None, {"tls": True}),
    ],
)
def test_what_a_command_was_given(arguments, environment, account, tls):
    assert given(arguments, environment) == [account, tls]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--access-key", "a"], "--secret-key (ROCKETMQ_SECRET_KEY) is missing"),
        (["--secret-key", "s"], "--access-key (ROCKETMQ_ACCESS_KEY) is missing"),
        (["--credentials-file", "f", "--access-key", "a"], "not both"),
    ],
)
def test_contradictions(arguments, text):
    assert text in given(arguments)


@pytest.mark.parametrize("decorate", [options.name_servers_option, admin._servers_and_account])
def test_commands_of_sdk_and_servers_have_the_same_options(decorate):
    shared = with_connection_options(lambda: None).__click_params__
    has = {param.name: (param.opts, param.envvar, param.help) for param in decorate(lambda: None).__click_params__}
    assert len(shared) == 11
    for param in shared:
        assert has[param.name] == (param.opts, param.envvar, param.help)
