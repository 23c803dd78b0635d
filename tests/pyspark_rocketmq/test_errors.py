"""The parts of an error that reach Spark."""

from __future__ import annotations

import logging
import traceback

import pytest

pytest.importorskip("pyspark")

from pyspark_rocketmq.errors import DataLoss, ShortStack, SourceError, WriteFailed, in_options
from triomq import MQError
from triomq._cluster.name_servers import CLOSES_SILENTLY
from triomq._transport.link import other_protocol
from triomq.errors import (
    ACCESS_ADVICE,
    USER_ADVICE,
    AccessRefused,
    Attempt,
    BrokerNotFound,
    LinkLost,
    PermissionDenied,
    RequestTimeout,
)


def fail(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


@pytest.mark.parametrize("error", [DataLoss("offsets are gone"), WriteFailed("not acknowledged"), MQError("pull")])
def test_an_error_with_a_reason_is_logged_without_the_stack(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(type(error)) as caught, ShortStack():
        fail(error, RequestTimeout("asked"))
    assert caught.value is error
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail" not in shown
    assert "asked" not in shown
    assert str(error) in shown.splitlines()[-1]
    assert "in fail" in caplog.text, "the logger has all of it"
    assert "asked" in caplog.text


def test_an_unexpected_error_keeps_its_stack() -> None:
    with pytest.raises(KeyError) as caught, ShortStack():
        fail(KeyError("a defect"), SourceError("cause"))
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fail" in shown
    assert "cause" in shown


def test_a_block_that_succeeds() -> None:
    with ShortStack():
        pass


TLS_SPOKEN = other_protocol(b"\x15\x03\x01")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            AccessRefused("pull", remark="AclException: No accessKey is configured"),
            "the request was not signed: give the options accessKey and secretKey, or credentialsFile",
        ),
        (
            PermissionDenied("pull", remark="username cannot be null"),
            "the request was not signed: give the options accessKey and secretKey, or credentialsFile",
        ),
        (AccessRefused("pull"), "and the options accessKey and secretKey, or credentialsFile"),
        (BrokerNotFound("pull"), "the option rocketmq.route_wait_s is how long calls wait for one"),
        (LinkLost(f"pull; {TLS_SPOKEN}"), "the peer speaks TLS: give the option tls=true"),
        (MQError("send", attempts=[Attempt("h:1", LinkLost(f"send; {TLS_SPOKEN}"), 0.1)]), "give the option tls=true"),
        (WriteFailed(f"LinkLost: {TLS_SPOKEN}; 0 rows"), "give the option tls=true; 0 rows"),
    ],
)
def test_advice_names_options_of_the_data_source(error: Exception, says: str) -> None:
    with pytest.raises(type(error)) as caught, ShortStack():
        raise error
    assert says in str(caught.value)


def _kinds(kind: type[MQError]) -> list[type[MQError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]


def test_no_advice_of_the_sdk_names_arguments_of_its_own() -> None:
    texts = [kind.advice for kind in _kinds(MQError)] + [advice for _, advice in (*ACCESS_ADVICE, *USER_ADVICE)]
    texts += [CLOSES_SILENTLY, TLS_SPOKEN or ""]
    shown = [in_options(text) for text in texts]
    assert shown != texts
    assert [text for text in shown if "open_client" in text or "--credentials" in text or "--tls" in text] == []
