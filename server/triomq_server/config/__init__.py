"""RocketMQ's configuration keys as attrs classes, and the Java properties format of their files.

``load_properties`` reads a file's text, ``BrokerConfig.from_properties`` and ``NamesrvConfig.from_properties`` turn it
into settings and warnings about unusable values, and ``printed`` is the form that ``-p`` shows.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from triomq_server.config.network import ServerNetworkConfig
from triomq_server.config.properties import MOST_SETTINGS_BYTES, PropertiesError, dump_properties, load_properties
from triomq_server.config.settings import ConfigError, Unusable
from triomq_server.config.tls import TLS_KEYS, TlsConfig, read_tls_file, shown_text
from triomq_server.config.without_effect import WITHOUT_EFFECT, WithoutEffect, changed_without_effect

if TYPE_CHECKING:
    from triomq_server.config.broker import ROLE_KEYS, BrokerConfig, register_period_ms
    from triomq_server.config.namesrv import NamesrvConfig
    from triomq_server.config.store import BrokerRole, FlushDiskType, StoreConfig
else:
    _MODULES = {
        "BrokerConfig": "broker",
        "BrokerRole": "store",
        "FlushDiskType": "store",
        "NamesrvConfig": "namesrv",
        "ROLE_KEYS": "broker",
        "StoreConfig": "store",
        "register_period_ms": "broker",
    }

    def __getattr__(name: str) -> object:
        """Import the settings of one kind of server on first use: to make the classes of a broker's takes a tenth of a
        name server's start."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = [
    "MOST_SETTINGS_BYTES",
    "ROLE_KEYS",
    "TLS_KEYS",
    "WITHOUT_EFFECT",
    "BrokerConfig",
    "BrokerRole",
    "ConfigError",
    "FlushDiskType",
    "NamesrvConfig",
    "PropertiesError",
    "ServerNetworkConfig",
    "StoreConfig",
    "TlsConfig",
    "Unusable",
    "WithoutEffect",
    "changed_without_effect",
    "dump_properties",
    "load_properties",
    "printed",
    "read_tls_file",
    "register_period_ms",
    "shown_text",
]


def printed(config: BrokerConfig | NamesrvConfig) -> str:
    """All settings as sorted ``key=value`` lines without escapes, for ``-p`` and the answers to codes 26 and 319.

    Passwords are not shown."""
    return "".join(f"{key}={value}\n" for key, value in sorted(shown_text(config.to_properties()).items()))
