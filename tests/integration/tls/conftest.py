"""Certificates of an authority that is made for the test, and servers that use them."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trustme

from triomq_server.config import NamesrvConfig
from triomq_server.namesrv import serve_namesrv


@attrs.frozen
class Files:
    """An authority, and certificates in files.

    Attributes:
        folder: where they are.
        authority: signs them.
    """

    folder: Path
    authority: trustme.CA = attrs.field(factory=trustme.CA)

    @property
    def trust(self) -> Path:
        path = self.folder / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return path

    def pair(
        self, name: str, *names: str, authority: trustme.CA | None = None, **times: dt.datetime
    ) -> tuple[Path, Path]:
        """Certificate and key in files that are named after `name`; the certificate is for `names`."""
        made = (authority or self.authority).issue_cert(*(names or ("127.0.0.1", "localhost")), **times)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key

    def server(self, name: str = "server", names: tuple[str, ...] = (), **more: Any) -> dict[str, str]:
        """The settings of a server with a certificate of its own."""
        certificate, key = self.pair(name, *names, **more)
        return {"tls.server.certPath": str(certificate), "tls.server.keyPath": str(key)}

    def mutual(self) -> dict[str, str]:
        """The settings of a server that asks clients for certificates."""
        return {
            **self.server(),
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": str(self.trust),
        }

    def trusting(self) -> ssl.SSLContext:
        """The context of a client that trusts the authority."""
        return ssl.create_default_context(cafile=str(self.trust))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Files(folder)


@pytest.fixture
def start_namesrv(nursery: trio.Nursery, tmp_path: Path) -> Callable[..., object]:
    """Starts a name server with these keys; returns its address."""

    async def start(**settings: str) -> str:
        values = {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(tmp_path / "kvConfig.json"),
            "configStorePath": str(tmp_path / "namesrv.properties"),
            "tls.config.file": str(tmp_path / "tls.properties"),
        }
        (tmp_path / "tls.properties").touch()
        config, _ = NamesrvConfig.from_properties(values | settings)
        address: str = await nursery.start(partial(serve_namesrv, config))
        return address

    return start
