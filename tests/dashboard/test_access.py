"""Access to the dashboard: passwords, sessions, forms, host names."""

from __future__ import annotations

import pytest

from triomq_dashboard.access import (
    ADDRESSES_MAX,
    SESSION_S,
    SESSIONS_MAX,
    TRIES_MAX,
    TRIES_OF_ALL_MAX,
    TRIES_S,
    Logins,
    host_of,
    is_loopback,
    is_same_origin,
)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def logins(clock):
    return Logins("right", clock)


def test_a_session_begins_with_the_password_and_ends(logins, clock):
    assert logins.enter("1.2.3.4", "wrong") is None
    session = logins.enter("1.2.3.4", "right")
    assert session is not None
    assert logins.is_open(session)
    assert not logins.is_open("")
    assert not logins.is_open(session + "x")
    clock.now += SESSION_S
    assert not logins.is_open(session)


def test_leaving_ends_a_session(logins):
    session = logins.enter("a", "right")
    logins.leave(session)
    assert not logins.is_open(session)


def test_without_a_password_all_users_are_admitted(clock):
    assert Logins(None, clock).is_open("")
    assert Logins(None, clock).enter("a", "") is None


def test_ten_thousand_tries_are_not_looked_at(logins, clock):
    tried = 0
    for _ in range(10_000):
        if logins.may_try("a"):
            tried += 1
            logins.enter("a", "wrong")
    assert tried == TRIES_MAX
    assert logins.may_try("b")
    clock.now += TRIES_S + 1
    assert logins.may_try("a")


def test_tries_from_many_addresses_are_bounded(logins):
    tried = 0
    for number in range(ADDRESSES_MAX + 100):
        if logins.may_try(f"10.{number}"):
            tried += 1
            logins.enter(f"10.{number}", "wrong")
    assert tried == TRIES_OF_ALL_MAX


def test_sessions_are_bounded(logins):
    first = logins.enter("a", "right")
    for _ in range(SESSIONS_MAX):
        latest = logins.enter("a", "right")
    assert not logins.is_open(first)
    assert logins.is_open(latest)


def test_a_form_belongs_to_its_session(logins):
    token = logins.form_token("one")
    assert logins.is_form_token("one", token)
    assert not logins.is_form_token("other", token)
    assert not logins.is_form_token("one", "")
    assert not logins.is_form_token("one", "ä\udc80")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("value", "host"),
    [("a.example:80", "a.example"), ("[::1]:8088", "::1"), ("127.0.0.1", "127.0.0.1"), ("", ""), ("[", "")],
)
def test_host(value, host):
    assert host_of(value) == host


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": "d:1", "origin": "http://d:1"}, True),
        ({"host": "d:1", "referer": "http://d:1/topics"}, True),
        ({"host": "d:1", "origin": "http://d:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "d:1", "origin": "http://d:1", "sec-fetch-site": "cross-site"}, False),
        ({"host": "d:1", "origin": "http://evil:1"}, False),
        ({"host": "d:1", "origin": "http://d:2"}, False),
        ({"host": "d:1", "origin": "null"}, False),
        ({"host": "d:1"}, False),
        ({"host": "d:1", "origin": "http://["}, False),
    ],
)
def test_same_origin(headers, expected):
    assert is_same_origin(headers) is expected
