"""TLS settings: contradictions, precedence, and their display."""

from __future__ import annotations

import pytest

from triomq_server.config import BrokerConfig, ConfigError, NamesrvConfig, TlsConfig, printed, read_tls_file
from triomq_server.config.settings import refuse_out_of_range

PAIR = {"tls.server.certPath": "a.pem", "tls.server.keyPath": "a.key"}
AUTH = {"tls.server.authClient": "true", "tls.server.need.client.auth": "require", "tls.server.trustCertPath": "ca.pem"}


def config(**values: str) -> TlsConfig:
    return NamesrvConfig.from_properties(values)[0].tls


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, None),
        ({"tls.server.mode": "enforcing"}, None),
        (PAIR, None),
        (PAIR | AUTH, None),
        (PAIR | {"tls.server.mode": "enforcing", "tls.enable": "false"}, None),
        ({"tls.server.mode": "disabled", "tls.client.trustCertPath": "ca.pem", "tls.client.authServer": "true"}, None),
        ({"tls.server.certPath": "a.pem"}, "tls.server.certPath is set and tls.server.keyPath is not"),
        ({"tls.server.keyPath": "a.key"}, "tls.server.keyPath is set and tls.server.certPath is not"),
        (PAIR | {"tls.client.certPath": "b.pem"}, "tls.client.certPath is set and tls.client.keyPath is not"),
        ({"tls.client.trustCertPath": "ca.pem"}, "tls.server.mode=permissive needs tls.server.certPath"),
        ({"tls.test.mode.enable": "false"}, "tls.server.mode=permissive needs tls.server.certPath"),
        (PAIR | {"tls.test.mode.enable": "true"}, "makes tls.server.keyPath, tls.server.certPath ineffective"),
        ({"tls.client.authServer": "true"}, "tls.client.authServer needs certificates"),
        ({"tls.server.need.client.auth": "require"}, "verifies nobody in test mode"),
        (PAIR | {"tls.server.need.client.auth": "require"}, "accepts every certificate"),
        (PAIR | {"tls.server.authClient": "true"}, "verifies nobody while tls.server.need.client.auth=none"),
        (
            PAIR | {"tls.server.authClient": "true", "tls.server.need.client.auth": "optional"},
            "needs tls.server.trustCertPath",
        ),
        ({"haUseTLS": "true", "tls.server.mode": "disabled"}, "haUseTLS=true needs a certificate"),
        (PAIR | {"haUseTLS": "true", "tls.server.mode": "disabled"}, "haUseTLS=true needs a certificate"),
    ],
)
def test_contradictions(values: dict[str, str], problem: str | None) -> None:
    tls = config(**values)
    if problem is None:
        tls.check()
        return
    with pytest.raises(ConfigError) as refused:
        tls.check()
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("values", "dials"),
    [
        ({}, False),
        ({"tls.server.mode": "enforcing"}, True),
        ({"tls.server.mode": "enforcing", "tls.enable": "false"}, False),
        ({"tls.enable": "true"}, True),
        ({"tls.enable": "true", "useTLS": "false"}, False),
        ({"useTLS": "true"}, True),
        ({"tls.server.mode": "enforcing", "useTLS": "false"}, False),
    ],
)
def test_whether_a_broker_dials_tls(values: dict[str, str], dials: bool) -> None:
    assert BrokerConfig.from_properties(values)[0].use_tls is dials


def test_the_file_counts_before_the_servers_own_settings_but_for_mode_and_enable() -> None:
    own = config(**PAIR, **{"tls.server.mode": "enforcing"})
    read = read_tls_file(own, {"tls.server.certPath": "b.pem", "tls.server.mode": "disabled", "tls.enable": "false"})
    assert (read.server_cert_path, read.server_key_path) == ("b.pem", "a.key")
    assert (read.mode, read.enable) == ("enforcing", "false")
    assert own.server_cert_path == "a.pem"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("tls.server.certpath", "x", "unknown key tls.server.certpath (did you mean tls.server.certPath?)"),
        ("tls.server.need.client.auth", "maybe", "must be none or optional or require"),
        ("tls.server.authClient", "yes", "it means false"),
    ],
)
def test_a_file_with_mistakes_is_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_tls_file(config(), {key: value})
    assert str(refused.value).startswith("/etc/rocketmq/tls.properties: ")
    assert problem in str(refused.value)


@pytest.mark.parametrize("kind", [BrokerConfig, NamesrvConfig])
def test_passwords_are_kept_and_not_shown(kind: type[BrokerConfig | NamesrvConfig]) -> None:
    made, _ = kind.from_properties({**PAIR, "tls.server.keyPassword": "open sesame"})
    assert made.to_properties()["tls.server.keyPassword"] == "open sesame"
    assert "tls.server.keyPassword=******\n" in printed(made)
    assert "sesame" not in printed(made)
    assert "tls." not in printed(kind())
    assert "sesame" not in repr(made)


@pytest.mark.parametrize("kind", [BrokerConfig, NamesrvConfig])
@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize("password", ["open\tsesame", "sesame" * 1000])
def test_passwords_that_cannot_be_used_are_not_shown(
    kind: type[BrokerConfig | NamesrvConfig], side: str, password: str
) -> None:
    key = f"tls.{side}.keyPassword"
    made, _ = kind.from_properties(PAIR)
    for refuse in (
        lambda: kind.from_properties({**PAIR, key: password}),
        lambda: read_tls_file(made.tls, {key: password}),
        lambda: made.update({key: password}),
        lambda: made.update({key: "sesame"}),
        lambda: refuse_out_of_range(TlsConfig(**{f"{side}_key_password": password})),
    ):
        with pytest.raises(ConfigError) as refused:
            refuse()
        assert f"{key}=******: it" in str(refused.value) or f"{key}=******: 6000 characters" in str(refused.value)
        assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("kind", [BrokerConfig, NamesrvConfig])
def test_a_running_server_keeps_its_settings(kind: type[BrokerConfig | NamesrvConfig]) -> None:
    made, _ = kind.from_properties(PAIR)
    with pytest.raises(ConfigError, match="takes effect at the start"):
        made.update({"tls.server.mode": "disabled"})
    assert made.tls.mode == "permissive"
