"""Response codes become error classes: one table, and the remarks of code 1."""

from __future__ import annotations

import re

import pytest

from triomq import errors
from triomq.errors import CODE_ERRORS, MQError, error_for_code
from triomq_protocol.codes import ResponseCode


@pytest.mark.parametrize(
    ("code", "kind", "retriable", "refresh_route"),
    [
        (1, errors.BrokerFault, True, False),
        (2, errors.BrokerBusy, False, False),
        (3, errors.UnsupportedRequest, False, False),
        (13, errors.MessageIllegal, False, False),
        (14, errors.BrokerUnavailable, True, True),
        (15, errors.UnsupportedRequest, False, False),
        (16, errors.PermissionDenied, True, True),
        (17, errors.TopicNotFound, True, True),
        (22, errors.NotFound, False, False),
        (23, errors.SubscriptionRefused, False, False),
        (24, errors.SubscriptionRefused, False, False),
        (25, errors.SubscriptionRefused, False, False),
        (26, errors.GroupNotFound, False, False),
        (27, errors.SubscriptionRefused, False, False),
        (28, errors.SubscriptionRefused, False, False),
        (204, errors.WrongUnit, True, True),
        (205, errors.WrongUnit, True, True),
        (206, errors.NotFound, False, False),
        (208, errors.NotFound, False, False),
        (215, errors.BrokerBusy, False, False),
        (501, errors.StaticTopicRefused, False, False),
        (999, errors.BrokerRefused, False, False),
    ],
)
def test_a_code_gives_its_class(code, kind, retriable, refresh_route):
    error = error_for_code(code, "the remark", what="a request", address="b:1")
    assert type(error) is kind
    assert (error.code, error.remark, error.what, error.address) == (code, "the remark", "a request", "b:1")
    assert (error.retriable, error.refresh_route) == (retriable, refresh_route)


@pytest.mark.parametrize(
    ("remark", "kind"),
    [
        ("[REJECTREQUEST]system busy, start flow control for a while", errors.RequestRejected),
        ("[OVERLOAD]system busy, start flow control for a while", errors.BrokerBusy),
        ("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 201ms", errors.BrokerBusy),
        (None, errors.BrokerBusy),
    ],
)
def test_a_busy_broker_that_has_not_looked_at_the_request(remark, kind):
    error = error_for_code(2, remark, what="a request", address="b:1")
    assert type(error) is kind
    assert error.refresh_route is (kind is errors.RequestRejected)


def test_every_code_of_the_table_has_a_case_above_and_an_advice():
    codes = {
        mark.args[1][index][0] for mark in test_a_code_gives_its_class.pytestmark for index in range(len(mark.args[1]))
    }
    assert codes - {999} == set(CODE_ERRORS)
    assert all(issubclass(kind, MQError) and kind.advice for kind in CODE_ERRORS.values())


@pytest.mark.parametrize(
    ("remark", "kind", "retriable"),
    [
        ("The broker does not support consumer to filter message by SQL92", errors.FilterSwitchedOff, False),
        ("queueId[9] is illegal, topic: T", errors.QueueIllegal, True),
        ("queueId[-1] is illegal", errors.QueueIllegal, True),
        ("org.apache.rocketmq.acl.common.AclException: No accessKey is configured, x", errors.AccessRefused, False),
        ("disk full", errors.BrokerFault, True),
        (None, errors.BrokerFault, True),
    ],
)
def test_the_remark_of_a_system_error_decides_its_class(remark, kind, retriable):
    error = error_for_code(ResponseCode.SYSTEM_ERROR, remark, what="a request", address="b:1")
    assert type(error) is kind
    assert error.retriable is retriable


@pytest.mark.parametrize(
    ("remark", "advice"),
    [
        ("No accessKey is configured", "credentials="),
        ("No acl config for app-name", "does not know this access key"),
        ("No PlainAccessResource for accessKey=app-name", "does not know this access key"),
        ("Check signature failed for accessKey=app-name", "the secret key is not the one"),
        ("Need admin permission for request code=17, but accessKey=app-name is not", "`admin: true`"),
        ("No default permission for topic:T, PUB is missing for accessKey=app-name", "topicPerms"),
        ("No default permission for group:G", "groupPerms"),
        ("something else", "check the account"),
    ],
)
def test_the_error_for_a_refused_account_names_the_cure(remark, advice):
    text = f"org.apache.rocketmq.acl.common.AclException: {remark}, org.apache.rocketmq.acl.plain.X.y(X.java:1)"
    error = error_for_code(ResponseCode.SYSTEM_ERROR, text, what="send to topic T", address="b:1")
    assert type(error) is errors.AccessRefused
    assert remark in str(error)
    assert advice in error.advice
    assert error.advice in str(error)


@pytest.mark.parametrize(
    ("remark", "advice"),
    [
        (None, "32767 bytes"),
        (
            "TopicMessageType validate failed, the expected type is NORMAL, but actual type is DELAY",
            r"-a \+message.type=DELAY",
        ),
        (
            "TopicMessageType validate failed, the expected type is UNSPECIFIED, but actual type is NORMAL",
            "does not know the topic: create it",
        ),
        (
            "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL",
            "property __SHARDINGKEY",
        ),
        (
            "TopicMessageType validate failed, the expected type is FIFO, but actual type is DELAY",
            r"-a \+message.type=DELAY",
        ),
        (
            "timer message illegal, the delay time should not be bigger than the max delay 259200000ms",
            "timerMaxDelaySec",
        ),
        ("Required message key is missing", "give each message keys="),
        ("a message with a time of delivery needs a broker of RocketMQ 5; here messages have", "give delay_level="),
        ("a message with a time of delivery needs a broker of Alibaba Cloud; here messages have", "__STARTDELIVERTIME"),
    ],
)
def test_the_error_for_a_refused_message_names_the_cure(remark, advice):
    error = error_for_code(ResponseCode.MESSAGE_ILLEGAL, remark, what="send to topic T", address="b:1")
    assert re.search(advice, str(error))


@pytest.mark.parametrize(
    ("code", "remark", "advice"),
    [
        (ResponseCode.NO_PERMISSION, "username cannot be null.", "the request was not signed"),
        (ResponseCode.NO_PERMISSION, "User:nobody is not found.", "createUser"),
        (ResponseCode.NO_PERMISSION, "check signature failed.", "not the user's password"),
        (
            ResponseCode.NO_PERMISSION,
            "User:visitor has no permission to access Topic:Other from 127.0.0.1, no matched policies.",
            "createAcl",
        ),
        (ResponseCode.NO_PERMISSION, "the broker[broker-a] sending message is forbidden", "check the rights of topic"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 54 not supported", "users and rules"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 540 not supported", "too old or of another kind"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 29001 not supported", "too old or of another kind"),
    ],
)
def test_the_error_for_a_refused_user_of_rocketmq_5_names_the_cure(code, remark, advice):
    error = error_for_code(code, remark, what="send to topic T", address="b:1")
    assert type(error) in (errors.PermissionDenied, errors.UnsupportedRequest)
    assert advice in error.advice
    assert error.advice in str(error)


def test_an_error_shows_what_was_asked_the_answer_the_advice_and_the_attempts():
    lost = errors.LinkLost("the connection broke", address="a:1")
    error = errors.BrokerUnavailable(
        "send to topic T", address="b:1", code=14, remark="stopping", attempts=[errors.Attempt("a:1", lost, 0.25)]
    )
    assert str(error).splitlines() == [
        f"send to topic T; asked b:1; answered SERVICE_NOT_AVAILABLE (14); stopping ({error.advice})",
        "  attempt 1: a:1 after 250 ms: LinkLost: the connection broke; asked a:1",
    ]
    assert str(errors.Attempt("", lost, 0)).startswith("no address after 0 ms")
