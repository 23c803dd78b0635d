"""Errors of a target: their advice can be followed by the user of a benchmark."""

from __future__ import annotations

import pytest

from triomq import MQError
from triomq._cluster.name_servers import CLOSES_SILENTLY
from triomq._transport.link import other_protocol
from triomq.errors import AccessRefused, LinkLost, NoNameServer, PermissionDenied
from triomq_benchmarks.run.targets import reason_of


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (LinkLost(f"{other_protocol(bytes((21, 3, 1)))}"), "speaks TLS: benchmarks use plain TCP, so its servers must"),
        (
            NoNameServer(CLOSES_SILENTLY),
            "may expect TLS (benchmarks use plain TCP, so its servers must accept it (tls.serv",
        ),
        (
            AccessRefused("create topic t", remark="AclException: No accessKey is configured"),
            "the request was not signed: benchmarks sign none, so the brokers must accept this machine's (globalWhite",
        ),
        (
            PermissionDenied("create topic t", remark="username cannot be null"),
            "the request was not signed: benchmarks sign none, so the brokers must accept this machine's (globalWhite",
        ),
    ],
)
def test_advice_names_no_option_that_benchmarks_lack(error: MQError, says: str) -> None:
    shown = reason_of(error)
    assert says in shown
    assert "--" not in shown
    assert "open_client" not in shown
