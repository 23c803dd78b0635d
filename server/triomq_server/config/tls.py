"""Settings of TLS, by RocketMQ's names (docs/protocol/remoting.md §12; RocketMQ's ``TlsSystemConfig``).

RocketMQ has them as system properties of its JVM and in the file ``tls.config.file``. Here they are keys of the server's
own file, of ``--set`` and of that file. Certificates are read elsewhere (``wire.tls.certificates``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from triomq_server.config import findings
from triomq_server.config.settings import (
    HIDDEN,
    ConfigError,
    apply,
    default_of,
    keys_of,
    secrets_of,
    setting,
    to_text,
)

CONFIG_FILE: Final = "/etc/rocketmq/tls.properties"
"""The file that is read if it exists, as in RocketMQ."""

_BOOLEAN = ("true", "false")


@attrs.define(kw_only=True)
class TlsConfig:
    """All keys of TLS. Values for unset keys are derived, see `test_mode` and `dials_tls`."""

    mode: str = setting("permissive", key="tls.server.mode", one_of=("disabled", "permissive", "enforcing"), fixed=True)
    """``disabled``: plain TCP only; ``permissive``: TLS for clients that start with it; ``enforcing``: TLS only."""
    enable: str | None = setting(None, key="tls.enable", one_of=_BOOLEAN, fixed=True)
    """Whether a broker uses TLS to name servers and other brokers; if unset, it does so in mode ``enforcing``."""
    config_file: str = setting(CONFIG_FILE, key="tls.config.file", fixed=True)
    test_mode_enable: str | None = setting(None, key="tls.test.mode.enable", one_of=_BOOLEAN, fixed=True)
    """Whether a certificate is made at run time, and no peer verified; if unset: if no certificate is named."""

    need_client_auth: str = setting(
        "none", key="tls.server.need.client.auth", one_of=("none", "optional", "require"), fixed=True
    )
    server_key_path: str | None = setting(None, key="tls.server.keyPath", fixed=True)
    server_key_password: str | None = setting(None, key="tls.server.keyPassword", fixed=True, secret=True)
    server_cert_path: str | None = setting(None, key="tls.server.certPath", fixed=True)
    server_auth_client: bool = setting(False, key="tls.server.authClient", fixed=True)
    server_trust_cert_path: str | None = setting(None, key="tls.server.trustCertPath", fixed=True)

    client_key_path: str | None = setting(None, key="tls.client.keyPath", fixed=True)
    client_key_password: str | None = setting(None, key="tls.client.keyPassword", fixed=True, secret=True)
    client_cert_path: str | None = setting(None, key="tls.client.certPath", fixed=True)
    client_auth_server: bool = setting(False, key="tls.client.authServer", fixed=True)
    client_trust_cert_path: str | None = setting(None, key="tls.client.trustCertPath", fixed=True)

    # Ours, unknown to RocketMQ.
    client_check_host_name: bool = setting(True, key="tls.client.checkHostName", fixed=True)
    """With ``tls.client.authServer``: whether the certificate must also have the dialled name or address."""
    ha_use_tls: bool = setting(False, key="haUseTLS", fixed=True)
    """Whether the HA port uses TLS, and nothing else; 4.9 brokers cannot replicate then."""
    handshake_timeout_ms: int = setting(10_000, key="tlsHandshakeTimeoutMillis", least=100, most=120_000, fixed=True)
    max_handshakes: int = setting(1000, key="maxTlsHandshakes", least=1, most=100_000, fixed=True)
    """Maximum number of simultaneous handshakes on one server; beyond it, the oldest is ended."""

    @property
    def test_mode(self) -> bool:
        """Whether certificates are made at run time, and no peer is verified."""
        if self.test_mode_enable is None:
            return not self._paths()
        return self.test_mode_enable == "true"

    def dials_tls(self, use_tls: bool | None) -> bool:
        """Whether a broker uses TLS to name servers and other brokers.

        Args:
            use_tls: its ``useTLS``; None if it is unset.
        """
        if use_tls is not None:
            return use_tls
        return self.mode == "enforcing" if self.enable is None else self.enable == "true"

    def _paths(self) -> list[str]:
        named = {
            "tls.server.keyPath": self.server_key_path,
            "tls.server.certPath": self.server_cert_path,
            "tls.server.trustCertPath": self.server_trust_cert_path,
            "tls.client.keyPath": self.client_key_path,
            "tls.client.certPath": self.client_cert_path,
            "tls.client.trustCertPath": self.client_trust_cert_path,
        }
        return [key for key, path in named.items() if path]

    def to_properties(self) -> dict[str, str]:
        """All keys as text."""
        return to_text(self)

    def changed(self) -> dict[str, str]:
        """The keys that are not at their defaults, as text."""
        defaults = {key: default_of(field) for key, field in keys_of(type(self)).items()}
        fields = keys_of(type(self))
        return {key: value for key, value in to_text(self).items() if getattr(self, fields[key].name) != defaults[key]}

    def check(self) -> None:
        """Raise ConfigError for settings that contradict each other, or do not give the protection that they name."""
        problem = self._contradiction()
        if problem:
            raise ConfigError(problem)

    def _contradiction(self) -> str | None:
        return self._in_test_mode() if self.test_mode else self._missing_file() or self._unverified()

    def _in_test_mode(self) -> str | None:
        named = [*self._paths(), *(["tls.server.authClient"] if self.server_auth_client else [])]
        named += ["tls.client.authServer"] if self.client_auth_server else []
        if named and self.test_mode_enable is None:
            return f"{', '.join(named)} needs certificates (tls.server.certPath, tls.client.trustCertPath and so on)"
        if named:
            return (
                f"tls.test.mode.enable=true makes {', '.join(named)} ineffective: certificates would be made at run "
                "time, and no peer verified; set it to false, or remove the others"
            )
        if self.need_client_auth == "require":
            return (
                "tls.server.need.client.auth=require verifies nobody in test mode: name the certificates "
                "(tls.server.certPath and so on) and set tls.server.authClient=true"
            )
        if self.ha_use_tls and self.mode == "disabled":
            return "haUseTLS=true needs a certificate: set tls.server.mode to permissive or enforcing"
        return None

    def _missing_file(self) -> str | None:
        for side, key, certificate in (
            ("server", self.server_key_path, self.server_cert_path),
            ("client", self.client_key_path, self.client_cert_path),
        ):
            if bool(key) != bool(certificate):
                given, missing = ("keyPath", "certPath") if key else ("certPath", "keyPath")
                return f"tls.{side}.{given} is set and tls.{side}.{missing} is not; a certificate needs its private key"
        if self.ha_use_tls and self.mode == "disabled":
            return "haUseTLS=true needs a certificate: set tls.server.mode to permissive or enforcing"
        if self.mode != "disabled" and not self.server_cert_path:
            return (
                f"tls.server.mode={self.mode} needs tls.server.certPath and tls.server.keyPath (or "
                "tls.test.mode.enable=true, or tls.server.mode=disabled)"
            )
        return None

    def _unverified(self) -> str | None:
        if self.server_auth_client and self.need_client_auth == "none":
            return (
                "tls.server.authClient=true verifies nobody while tls.server.need.client.auth=none asks for no "
                "certificate; set that to require or optional"
            )
        if self.server_auth_client and not self.server_trust_cert_path:
            return (
                "tls.server.authClient=true needs tls.server.trustCertPath, the authority of the clients' certificates"
            )
        if self.need_client_auth == "require" and not self.server_auth_client:
            return (
                "tls.server.need.client.auth=require accepts every certificate without tls.server.authClient=true; set "
                "that, and tls.server.trustCertPath"
            )
        return None


TLS_KEYS: Final = frozenset(keys_of(TlsConfig))
"""All keys of TLS except `useTLS`, which is a broker's."""

_SECRETS: Final = secrets_of(TlsConfig)


def read_tls_file(config: TlsConfig, values: Mapping[str, str]) -> TlsConfig:
    """The settings with those of ``tls.config.file`` applied, which take precedence, as in RocketMQ.

    The mode and ``tls.enable``, which RocketMQ takes only from system properties, apply if the server's own settings do
    not have them.

    Args:
        config: the server's own settings.
        values: the contents of the file.

    Raises:
        ConfigError: a key is unknown, or a value cannot be used.
    """
    own = config.changed()
    values = {
        key: value for key, value in values.items() if key not in ("tls.server.mode", "tls.enable") or key not in own
    }
    merged = attrs.evolve(config)
    known, unusable, misread = apply(merged, values)
    found = [
        *findings.unusable(unusable),
        *findings.misread(misread),
        *findings.unknown(values.keys() - known, keys_of(TlsConfig)),
    ]
    try:
        findings.warnings_of(found, strict=True)
    except ConfigError as error:
        raise ConfigError(f"{config.config_file}: {error}") from None
    return merged


def shown_text(values: Mapping[str, str]) -> dict[str, str]:
    """Settings as shown by tools and terminals: without passwords."""
    return {key: HIDDEN if key in _SECRETS and value else value for key, value in values.items()}
