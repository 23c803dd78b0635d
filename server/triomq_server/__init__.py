"""A name server and a broker with Apache RocketMQ 4.9's wire, replication and disk formats, on trio."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triomq_server.broker import serve_broker as serve_broker
    from triomq_server.cluster import open_cluster as open_cluster
    from triomq_server.namesrv import serve_namesrv as serve_namesrv

_PACKAGES = {"serve_namesrv": "namesrv", "serve_broker": "broker", "open_cluster": "cluster"}

__all__ = ["open_cluster", "serve_broker", "serve_namesrv"]


if not TYPE_CHECKING:  # a declaration that every name exists

    def __getattr__(name: str) -> object:
        """Import a server on first use: a name server does not need the broker's modules."""
        from importlib import import_module

        if name not in _PACKAGES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_PACKAGES[name]}"), name)
