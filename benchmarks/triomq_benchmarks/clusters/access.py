"""The account and the TLS options for an existing cluster, as plain data that goes to each load generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

import triomq


@attrs.frozen
class Access:
    """How clients of a cluster sign their requests and encrypt their connections; its text shows no secret.

    Attributes:
        credentials: the account; None: from the file, or requests are not signed.
        credentials_file: path of a file with the account, read by each client's process.
        tls: the arguments of :func:`triomq.plugins.tls_dialer`, with paths of files; None: plain TCP.
    """

    credentials: triomq.Credentials | None = None
    credentials_file: str | None = None
    tls: Mapping[str, Any] | None = attrs.field(default=None, repr=False)

    @property
    def is_signed(self) -> bool:
        """Whether requests are signed."""
        return self.credentials is not None or self.credentials_file is not None

    def options(self) -> triomq.ClientOptions:
        """The arguments of :func:`triomq.open_client`; files are read now.

        Raises:
            triomq.errors.InvalidCall: a file cannot be used, or arguments contradict each other.
        """
        options: triomq.ClientOptions = {}
        if self.credentials is not None:
            options["credentials"] = self.credentials
        elif self.credentials_file is not None:
            options["credentials"] = triomq.Credentials.from_file(self.credentials_file)
        if self.tls is not None:
            options["dial"] = triomq.plugins.tls_dialer(**self.tls)
        return options


PLAIN = Access()
"""Plain TCP without signatures, for clusters that are started for a run."""
