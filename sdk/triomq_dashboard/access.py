"""Access to the dashboard: login, cookies, form tokens, and the check that a request is from the dashboard's pages.

These are pure decisions; `app.py` reads requests and writes answers.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from cachetools import TTLCache

COOKIE: Final = "triomq_dashboard"

SESSION_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
"""The most logins at one time; a further one ends the oldest."""

TRIES_MAX: Final = 5
"""The most wrong passwords from one address within `TRIES_S`; further tries are refused unchecked."""

TRIES_OF_ALL_MAX: Final = 60
"""The same for all addresses together."""

TRIES_S: Final = 60.0
ADDRESSES_MAX: Final = 10_000


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is loopback."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(value: str) -> str:
    """The host in a ``Host`` header, without its port; empty if the header is not valid."""
    try:
        return urlsplit(f"//{value}").hostname or ""
    except ValueError:
        return ""


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request that changes something is from a page of the dashboard, by the browser's headers."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin") or headers.get("referer")
    if not origin or origin == "null":
        return False
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False


class Logins:
    """Checks passwords and keeps sessions.

    Args:
        password: the correct password; None: visitors need none.
        now: a clock in seconds.
    """

    def __init__(self, password: str | None, now: Callable[[], float]) -> None:
        self._password = None if password is None else _digest(password)
        self._now = now
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self._wrong: TTLCache[str, int] = TTLCache(ADDRESSES_MAX, TRIES_S, timer=now)
        self._wrong_of_all: list[float] = []

    @property
    def needed(self) -> bool:
        """Whether there is a password."""
        return self._password is not None

    def may_try(self, address: str) -> bool:
        """Whether a password from this address is checked."""
        since = self._now() - TRIES_S
        self._wrong_of_all = [each for each in self._wrong_of_all if each > since]
        return self._wrong.get(address, 0) < TRIES_MAX and len(self._wrong_of_all) < TRIES_OF_ALL_MAX

    def enter(self, address: str, password: str) -> str | None:
        """Return a new session's cookie; None for a wrong password."""
        if self._password is None or not hmac.compare_digest(_digest(password), self._password):
            self._wrong[address] = self._wrong.get(address, 0) + 1
            self._wrong_of_all.append(self._now())
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = self._now() + SESSION_S
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session

    def leave(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(session, None)

    def is_open(self, session: str) -> bool:
        """Whether a cookie belongs to an open session."""
        if self._password is None:
            return True
        ends = self._sessions.get(session)
        if ends is not None and ends <= self._now():
            del self._sessions[session]
            ends = None
        return ends is not None

    def form_token(self, session: str) -> str:
        """The token that forms of this session must have; another site's page cannot know it."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session: str, token: str) -> bool:
        """Whether a form has the token of its session."""
        return hmac.compare_digest(self.form_token(session).encode(), token.encode("utf-8", "replace"))


def _digest(text: str) -> bytes:
    # Digests have one length, so that the time of the comparison reveals nothing.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
