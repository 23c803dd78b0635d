"""The application: its routes, and the checks of access, concurrency and headers before every page.

Errors of the cluster are shown as a sentence in the usual page, without their advice, which is for programs; errors of
the dashboard itself are logged, and their text is not shown.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import parse_qsl

import attrs
import trio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from triomq import Client, MQError
from triomq.errors import BrokerNotFound, GroupNotFound, InvalidCall, NotFound, RouteNotFound, TopicNotFound
from triomq_dashboard.access import COOKIE, SESSION_S, Logins, host_of, is_loopback, is_same_origin
from triomq_dashboard.pages import Pages, PlainError
from triomq_dashboard.presentation import make_environment

log = logging.getLogger("triomq.dashboard")

FORM_BYTES_MAX: Final = 16 * 1024
FORM_S: Final = 10.0
"""How long a form may take to arrive, in seconds."""

REQUESTS_MAX: Final = 64
"""The most pages rendered at one time; further requests are refused at once."""

PAGE_S: Final = 40.0
"""How long one page may take, in seconds."""

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[Request], Awaitable[Response]]
Change = Callable[[Request, dict[str, str]], Awaitable[Response]]


@attrs.frozen(kw_only=True)
class DashboardSettings:
    """The settings of a dashboard.

    Args:
        password: the visitors' password; None: none is needed, which is only for ports on loopback.
        allow_changes: whether pages have forms that change something.
        hosts: names under which browsers may open it, in addition to loopback's; any name if there is a password.
    """

    password: str | None = None
    allow_changes: bool = False
    hosts: frozenset[str] = frozenset()


class Dashboard:
    """A dashboard: an ASGI application, and a task that watches the names its pages have shown.

    Args:
        client: queries the cluster; the dashboard does not close it.
        settings: see :class:`DashboardSettings`.
    """

    def __init__(self, client: Client, settings: DashboardSettings | None = None) -> None:
        self._settings = settings if settings is not None else DashboardSettings()
        self._client = client
        self._hosts = {host_of(name) for name in self._settings.hosts} - {""}
        self._logins = Logins(self._settings.password, trio.current_time)
        self._environment = make_environment()
        self._pages = Pages(client, self._render)
        self._busy = 0
        pages = self._pages
        self._app = Starlette(
            routes=[
                self._page("/", pages.cluster),
                self._page("/health", pages.health),
                self._page("/topics", pages.topics),
                self._page("/topic", pages.topic),
                self._page("/tail", pages.tail_page),
                self._page("/tail/events", pages.tail_events),
                self._page("/groups", pages.groups),
                self._page("/group", pages.group),
                self._page("/messages", pages.messages),
                self._page("/message", pages.message),
                self._page("/dead-letters", pages.dead_letters),
                self._page("/dead-letters/group", pages.dead_letters_of),
                self._change("/message/resend", pages.resend),
                self._change("/dead-letters/redrive", pages.redrive),
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/alive", self._alive),
                Mount("/static", StaticFiles(packages=[("triomq_dashboard", "static")])),
            ],
            exception_handlers={404: self._not_found, 405: self._not_found},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.lower().encode() not in present
                    ),
                ]
            await send(message)

        request = Request(scope, receive)
        if not self._is_known_host(request):
            answer: Response = Response("This dashboard is not served under that name.\n", 421)
            await answer(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    async def run(self) -> None:
        """Watch the names that pages have shown, until cancelled."""
        await self._pages.run()

    # --- checks before pages -------------------------------------------------------------------------------------

    def _is_known_host(self, request: Request) -> bool:
        """Whether the browser uses one of the dashboard's names; another site's name may also resolve to it."""
        if self._logins.needed:
            return True
        host = host_of(request.headers.get("host", ""))
        return is_loopback(host) or host in self._hosts

    def _session(self, request: Request) -> str:
        return request.cookies.get(COOKIE, "")

    def _page(self, path: str, handler: Handler) -> Route:
        async def guarded(request: Request) -> Response:
            if not self._logins.is_open(self._session(request)):
                return RedirectResponse("/login", 303)
            return await self._carried_out(request, lambda: handler(request))

        return Route(path, guarded, methods=["GET"])

    def _change(self, path: str, handler: Change) -> Route:
        async def guarded(request: Request) -> Response:
            session = self._session(request)
            if not self._logins.is_open(session):
                return RedirectResponse("/login", 303)

            async def change() -> Response:
                if not self._settings.allow_changes:
                    raise PlainError("This dashboard only shows; it was started without --allow-changes.", 403)
                form = await _form(request)
                if not is_same_origin(request.headers) or not self._logins.is_form_token(
                    session, form.get("token", "")
                ):
                    raise PlainError("The form is not of this page, or too old. Load the page again.", 403)
                return await handler(request, form)

            return await self._carried_out(request, change)

        return Route(path, guarded, methods=["POST"])

    async def _carried_out(self, request: Request, work: Callable[[], Awaitable[Response]]) -> Response:
        if self._busy >= REQUESTS_MAX:
            return self._sentence(request, "Too many pages are asked for at once. Try again in a moment.", 503)
        self._busy += 1
        try:
            with trio.fail_after(PAGE_S):
                return await work()
        except PlainError as error:
            return self._sentence(request, error.what, error.status)
        except MQError as error:
            log.info("%s: %s", request.url.path, error)
            return self._sentence(request, error.reason.removeprefix(f"{type(error).__name__}: "), _status_of(error))
        except trio.TooSlowError:
            return self._sentence(request, f"The cluster did not answer within {PAGE_S:g} s.", 503)
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("the page %s could not be made", request.url.path)
            return self._sentence(request, "The page could not be made. The dashboard's log says why.", 500)
        finally:
            self._busy -= 1

    # --- answers -------------------------------------------------------------------------------------------------

    def _render(self, request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
        path = request.url.path
        page = self._environment.get_template(template).render(
            path=path,
            here=f"{path}?{request.url.query}" if request.url.query else path,
            token=self._logins.form_token(self._session(request)),
            allow_changes=self._settings.allow_changes,
            has_login=self._logins.needed,
            **values,
        )
        return Response(page.encode("utf-8", "backslashreplace"), status, media_type="text/html; charset=utf-8")

    def _sentence(self, request: Request, what: str, status: int) -> Response:
        return self._render(request, "sentence.html", status=status, what=what)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return self._sentence(request, "There is no such page.", 404)

    async def _alive(self, _request: Request) -> Response:
        """Answer probes: the dashboard serves, whatever the state of the cluster."""
        return Response("ok\n", media_type="text/plain")

    # --- the login -----------------------------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        if not self._logins.needed:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return self._render(request, "login.html", wrong="")
        address = request.client.host if request.client is not None else ""
        if not self._logins.may_try(address):
            return self._too_many(request)
        if not is_same_origin(request.headers):
            return self._render(request, "login.html", status=403, wrong="The form is not of this page.")
        try:
            form = await _form(request)
        except PlainError as error:
            return self._render(request, "login.html", status=error.status, wrong=error.what)
        # Again, since others may have been wrong while this form arrived: many can be begun at the same time.
        if not self._logins.may_try(address):
            return self._too_many(request)
        session = self._logins.enter(address, form.get("password", ""))
        if session is None:
            log.warning("a wrong password from %s", address)
            return self._render(request, "login.html", status=401, wrong="The password is wrong.")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            COOKIE,
            session,
            max_age=int(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def _too_many(self, request: Request) -> Response:
        return self._render(request, "login.html", status=429, wrong="Too many wrong passwords. Try again in a minute.")

    async def _logout(self, request: Request) -> Response:
        if is_same_origin(request.headers):
            self._logins.leave(self._session(request))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer


def _status_of(error: MQError) -> int:
    if isinstance(error, InvalidCall):
        return 400
    is_unknown = isinstance(error, NotFound | GroupNotFound | TopicNotFound | RouteNotFound)
    return 404 if is_unknown and not isinstance(error, BrokerNotFound) else 503


async def _form(request: Request) -> dict[str, str]:
    """Read the fields of a form, up to a limited size."""
    data = b""
    with trio.move_on_after(FORM_S) as scope:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                data += piece
                if len(data) > FORM_BYTES_MAX:
                    raise PlainError("The form is too large.", 413)
    if scope.cancelled_caught:
        raise PlainError("The form did not come in time.", 408)
    try:
        return dict(parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=32))
    except ValueError:
        raise PlainError("The form cannot be read.") from None
