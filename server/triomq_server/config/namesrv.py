"""Settings of the name server (docs/protocol/broker-config.md §11; RocketMQ's ``NamesrvConfig``)."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import attrs

from triomq_server.config import findings
from triomq_server.config.network import ServerNetworkConfig, in_home
from triomq_server.config.settings import (
    Unusable,
    apply,
    kept_for_the_start,
    keys_of,
    refuse_change,
    refuse_out_of_range,
    respell,
    setting,
    to_text,
    unusable_if_empty,
)
from triomq_server.config.tls import TlsConfig
from triomq_server.config.without_effect import without_effect_lines


@attrs.define(kw_only=True)
class NamesrvConfig(ServerNetworkConfig):
    """All keys of a name server."""

    listen_port: int = setting(9876, least=0, most=65535, fixed=True)
    kv_config_path: str = setting(
        factory=lambda: in_home("namesrv", "kvConfig.json"), fixed=True, check=unusable_if_empty
    )
    """The file of the key-value configuration (order topics)."""
    config_store_path: str = setting(
        factory=lambda: in_home("namesrv", "namesrv.properties"), fixed=True, check=unusable_if_empty
    )
    """The file for changes made at run time; the file given with ``-c`` if there was one."""
    product_env_name: str = "center"
    cluster_test: bool = False
    order_message_enable: bool = False
    """Whether a topic's order configuration is included in its routes."""

    # Ours, unknown to RocketMQ 4.9.
    bind_address: str = setting("0.0.0.0", fixed=True, check=unusable_if_empty)
    """The address to listen on; ``::`` for all of IPv6 too."""
    compat: str = setting("safe", one_of=("safe", "4.9"), fixed=True)
    """"safe", or "4.9": a closed connection that carried several brokers unregisters only the first of them, and a
    broker that unregisters removes the entry of its id even if another broker has taken that id."""

    extra: dict[str, str] = attrs.field(factory=dict, metadata={"triomq.skip": True})
    """Unknown keys of the startup file; still shown to tools."""

    @property
    def compat_49(self) -> bool:
        """Whether the defects of RocketMQ 4.9 are copied (``compat=4.9``)."""
        return self.compat == "4.9"

    @classmethod
    def from_properties(cls, values: Mapping[str, str], *, strict: bool = False) -> tuple[NamesrvConfig, list[str]]:
        """Build a configuration from the defaults and the given keys; also returns the warnings about unusable values.

        Raises:
            ConfigError: a problem of the values affects safety, see ``findings``; with ``strict``, any problem.
        """
        config = cls()
        spelled, renamed = respell(values)
        known, unusable, misread = _apply(config, spelled)
        config.extra = {key: value for key, value in spelled.items() if key not in known}
        found = [
            *findings.respelled(renamed),
            *findings.unusable(unusable),
            *findings.misread(misread),
            *findings.without_effect(without_effect_lines(config)),
            *findings.unknown(config.extra, [*keys_of(cls), *keys_of(TlsConfig)]),
        ]
        warnings = findings.warnings_of(found, strict=strict)
        return config, warnings

    def check(self) -> None:
        """Raise ConfigError for values that a program has set and no file could have."""
        refuse_out_of_range(self, self.tls)

    def update(self, values: Mapping[str, str]) -> list[str]:
        """Change the running configuration (code 318); unknown keys change nothing. Returns warnings.

        Raises:
            ConfigError: a value cannot be used, takes effect only at startup, or would prevent a start; nothing has
                changed.
        """
        changed = copy.copy(self)
        changed.tls = copy.copy(self.tls)
        known, unusable, misread = _apply(changed, values, running=True)
        refuse_change(unusable)
        before = without_effect_lines(self)
        found = [
            *findings.misread(misread),
            *findings.without_effect(pair for pair in without_effect_lines(changed) if pair not in before),
            *findings.kept_for_the_start(kept_for_the_start(self, changed)),
            *findings.unknown_at_run_time(values.keys() - known - self.extra.keys()),
        ]
        warnings = findings.warnings_of(found, running=True)
        _apply(self, values)
        return warnings

    def to_properties(self) -> dict[str, str]:
        """All keys as text, the TLS keys that are set, and the unknown keys of the startup file."""
        return {**to_text(self), **self.tls.changed(), **self.extra}


def _apply(
    config: NamesrvConfig, values: Mapping[str, str], *, running: bool = False
) -> tuple[set[str], list[Unusable], list[Unusable]]:
    """`apply` to the keys of the name server and TLS."""
    known, unusable, misread = apply(config, values, running=running)
    tls_known, tls_unusable, tls_misread = apply(config.tls, values, running=running)
    return known | tls_known, unusable + tls_unusable, misread + tls_misread
