"""The pages: the content of each, and the changes that its forms make."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import attrs
import trio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from triomq import Client, MessageQueue, MQError
from triomq.admin import Finding, GroupNames
from triomq_dashboard import looking
from triomq_dashboard.history import Figure, History
from triomq_dashboard.presentation import body_text, chart, link
from triomq_dashboard.tail import tail
from triomq_protocol.names import DLQ_PREFIX, MAX_NAME_CHARACTERS

FRESH_S: Final = 3.0
"""How long lists of names are reused, in seconds: a hundred browsers cost as much as one."""

FINDINGS_FRESH_S: Final = 20.0
FINDINGS_S: Final = 20.0
TAILS_MAX: Final = 32
REDRIVE_MAX: Final = 1000
"""The most dead letters that one form sends again."""


class Render(Protocol):
    """Renders a template as an answer."""

    def __call__(self, request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Render the page."""


class Kept:
    """A value that is queried once for all requests that need it at nearly the same time.

    Args:
        fresh_s: how long it stays valid, in seconds.
    """

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._value: Any = None
        self._until = float("-inf")
        self._error: MQError | None = None
        self._failed_s = float("-inf")
        self._asking = trio.Lock()

    async def get(self, ask: Callable[[], Any]) -> Any:
        """Return the value, queried again if it is too old; raises the error of a query for which this call has waited."""
        called_s = trio.current_time()
        async with self._asking:
            if trio.current_time() < self._until:
                return self._value
            if (error := self._error) is not None and called_s < self._failed_s:
                # Else each request that waits would wait for a timeout of its own, one after the other.
                raise type(error)(error.what, address=error.address, code=error.code, remark=error.remark)
            try:
                self._value = await ask()
            except MQError as error:
                self._error, self._failed_s = error, trio.current_time()
                raise
            self._until = trio.current_time() + self._fresh_s
            return self._value


@attrs.frozen
class PlainError(Exception):
    """A request that cannot be carried out, in a sentence for people."""

    what: str
    status: int = 400


def _lag_figure(lag: int | None) -> Figure | None:
    return None if lag is None else Figure(float(lag))


def _page_number(request: Request) -> int:
    value = request.query_params.get("page", "1")
    return int(value) if value.isdecimal() and len(value) < 7 else 1


def _whole(value: str, name: str) -> int:
    if not value.isdecimal() or not value.isascii() or len(value) > 18:
        raise PlainError(f"{name} is not a whole number.")
    return int(value)


def _time_ms(value: str) -> int | None:
    """The value of a field ``datetime-local``, taken as UTC, in ms since 1970."""
    if not value:
        return None
    try:
        return int(datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise PlainError(f"{value!r} is not a time such as 2026-11-23T12:00.") from None


class Pages:
    """All pages of one dashboard.

    Args:
        client: queries the cluster.
        render: renders templates.
    """

    def __init__(self, client: Client, render: Render) -> None:
        self._client = client
        self._render = render
        self._topic_names = Kept(FRESH_S)
        self._group_names = Kept(FRESH_S)
        self._brokers = Kept(FRESH_S)
        self._findings = Kept(FINDINGS_FRESH_S)
        self.tails = 0
        self.topic_history = History(self._topic_ends)
        self.lag_history = History(self._lag)

    async def run(self) -> None:
        """Watch the names that pages have shown, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.topic_history.run)
            nursery.start_soon(self.lag_history.run)

    async def _topic_ends(self, name: str, silent: dict[str, str]) -> Figure:
        return (await looking.topic(self._client, name, silent)).ends

    async def _lag(self, name: str, silent: dict[str, str]) -> Figure | None:
        return _lag_figure((await self._client.groups.progress(name, silent=silent)).lag)

    # --- the cluster ---------------------------------------------------------------------------------------------

    async def cluster(self, request: Request) -> Response:
        """Brokers by cluster and set."""
        clusters = await self._brokers.get(lambda: looking.brokers(self._client))
        return self._render(request, "cluster.html", clusters=clusters, name_servers=self._client.name_servers)

    async def health(self, request: Request) -> Response:
        """The findings of the doctor."""
        findings: list[Finding] = await self._findings.get(lambda: self._client.doctor.findings(timeout_s=FINDINGS_S))
        return self._render(request, "health.html", findings=findings)

    async def _names_of_topics(self) -> list[str]:
        """The topics that name servers know. Raises BrokerNotFound if they know no broker, and so no topic."""
        names: list[str] = await self._topic_names.get(self._client.admin.topics)
        if not names:
            await self._client.admin.without_master()
        return names

    # --- topics --------------------------------------------------------------------------------------------------

    async def topics(self, request: Request) -> Response:
        """One page of topics with their rates."""
        names = await self._names_of_topics()
        system = request.query_params.get("system") == "1"
        if not system:
            clusters = await self._brokers.get(lambda: looking.brokers(self._client))
            names = looking.own_topics(names, clusters)
        search = request.query_params.get("search", "")
        page = looking.page_of(names, search, _page_number(request))
        silent: dict[str, str] = {}  # else each row would wait for a broker that hangs
        found = await looking.rows(page.names, lambda name: looking.topic(self._client, name, silent))
        rates = {
            row.name: self.topic_history.seen(row.name, None if row.value is None else row.value.ends).rate
            for row in found
        }
        figures = [row.value for row in found if row.value is not None]
        return self._render(
            request,
            "topics.html",
            page=page,
            rows=found,
            rates=rates,
            search=search,
            system=system,
            without_master=looking.merged(each.without_master for each in figures),
            refused=looking.merged(each.refused for each in figures),
        )

    async def topic(self, request: Request) -> Response:
        """One topic with its queues."""
        name = _name(request)
        figures = await looking.topic(self._client, name)
        series = self.topic_history.seen(name, figures.ends)
        queues = list(figures.queues.items())
        return self._render(
            request,
            "topic.html",
            name=name,
            figures=figures,
            queues=queues[: looking.QUEUES_SHOWN_MAX],
            more=max(0, len(queues) - looking.QUEUES_SHOWN_MAX),
            rate=series.rate,
            chart=chart(series.rates()),
        )

    async def tail_page(self, request: Request) -> Response:
        """The page of the live tail."""
        return self._render(request, "tail.html", name=_name(request))

    async def tail_events(self, request: Request) -> Response:
        """The events of the live tail."""
        if self.tails >= TAILS_MAX:
            raise PlainError(f"{TAILS_MAX} live tails are open already; close one.", 503)
        return _Tail(self, tail(self._client, _name(request)))

    # --- groups --------------------------------------------------------------------------------------------------

    async def groups(self, request: Request) -> Response:
        """One page of consumer groups with their lag."""
        listed: GroupNames = await self._group_names.get(self._client.groups.names)
        names: Sequence[str] = listed
        system = request.query_params.get("system") == "1"
        if not system:
            names = [name for name in names if not self._client.groups.is_system_group(name)]
        search = request.query_params.get("search", "")
        page = looking.page_of(names, search, _page_number(request))
        silent: dict[str, str] = {}
        found = await looking.rows(page.names, lambda name: self._summary(name, silent))
        for row in found:
            if row.value is not None:
                self.lag_history.seen(row.name, _lag_figure(row.value[0].lag))
        progress = [row.value[0] for row in found if row.value is not None]
        return self._render(
            request,
            "groups.html",
            page=page,
            rows=found,
            search=search,
            system=system,
            without_master=looking.merged([*(each.without_master for each in progress), listed.unknown]),
            refused=looking.merged([*(each.refused for each in progress), listed.refused]),
        )

    async def _summary(self, name: str, silent: dict[str, str]) -> object:
        progress = await self._client.groups.progress(name, silent=silent)
        return progress, *await looking.members(self._client, name, silent)

    async def group(self, request: Request) -> Response:
        """One group: lag over time, members, queues and their owners."""
        name = _name(request)
        figures = await looking.group(self._client, name)
        if figures.is_empty:
            await self._check_known(name)
        series = self.lag_history.seen(name, _lag_figure(figures.lag))
        return self._render(request, "group.html", name=name, figures=figures, chart=chart(list(series.points)))

    async def _check_known(self, group: str) -> None:
        """Raise if no broker has the group; what a page shows of an unknown group would look like an idle one."""
        listed: GroupNames = await self._group_names.get(self._client.groups.names)
        if group not in listed and not (listed.unknown or listed.refused):
            raise PlainError(f"No broker knows the consumer group {group}.", 404)

    # --- messages ------------------------------------------------------------------------------------------------

    async def messages(self, request: Request) -> Response:
        """The messages found by a search."""
        given = {name: request.query_params.get(name, "").strip() for name in ("topic", "key", "id", "since")}
        found, trouble = None, ""
        if given["topic"] or given["id"]:
            if not given["topic"] and len(given["id"]) not in (32, 56):
                raise PlainError("Name the topic: brokers look keys and senders' ids up by topic.")
            try:
                found = await looking.search(
                    self._client,
                    given["topic"],
                    key=given["key"],
                    message_id=given["id"],
                    from_ms=_time_ms(given["since"]),
                )
            except MQError as error:
                trouble = error.reason
        without_answer = {} if found is None else found.without_answer
        return self._render(
            request, "messages.html", given=given, found=found, trouble=trouble, without_answer=without_answer
        )

    async def message(self, request: Request) -> Response:
        """One message with its body, its properties and the groups that consumed it."""
        queue, offset = _place(request.query_params.get)
        message = await self._client.messages.at(queue, offset)
        try:
            body, body_error = body_text(message.body), ""
        except MQError as error:
            body, body_error = None, error.reason
        tracks, tracks_error = [], ""
        try:
            tracks = await self._client.messages.tracks(message)
        except MQError as error:
            tracks_error = error.reason
        return self._render(
            request,
            "message.html",
            message=message,
            body=body,
            body_error=body_error,
            tracks=tracks,
            tracks_error=tracks_error,
            done=_done(request),
        )

    async def resend(self, _request: Request, form: dict[str, str]) -> Response:
        """Send a message to a group again."""
        queue, offset = _place(form.get)
        group = form.get("group", "")
        message = await self._client.messages.at(queue, offset)
        await self._client.messages.resend(message, group)
        place = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "offset": offset}
        return RedirectResponse(link("/message", **place, done=1), 303)

    # --- dead letters --------------------------------------------------------------------------------------------

    async def dead_letters(self, request: Request) -> Response:
        """One page of groups that have dead letters."""
        names = await self._names_of_topics()
        groups = [name.removeprefix(DLQ_PREFIX) for name in names if name.startswith(DLQ_PREFIX)]
        search = request.query_params.get("search", "")
        page = looking.page_of(groups, search, _page_number(request))
        silent: dict[str, str] = {}
        found = await looking.rows(page.names, lambda name: self._client.dead_letters.count(name, silent=silent))
        return self._render(request, "dead_letters.html", page=page, rows=found, search=search)

    async def dead_letters_of(self, request: Request) -> Response:
        """The dead letters of one group."""
        name = _name(request)
        again = request.query_params.get("again") == "1"
        letters = await self._client.dead_letters.read(name, limit=looking.FOUND_MAX, again=again)
        if not letters and not await self._client.dead_letters.queues(name):
            await self._check_known(name)
        try:
            # A broker that did not answer before is not waited for again.
            count: int | None = await self._client.dead_letters.count(name, silent=dict(letters.without_answer))
        except MQError:
            count = None
        bodies = []
        for letter in letters:
            try:
                bodies.append(body_text(letter.message.body, 500).text)
            except MQError as error:
                bodies.append(f"({error.reason})")
        return self._render(
            request,
            "dead_letters_of.html",
            name=name,
            letters=list(zip(letters, bodies, strict=True)),
            count=count,
            without_answer=letters.without_answer,
            again=again,
            done=_done(request),
        )

    async def redrive(self, _request: Request, form: dict[str, str]) -> Response:
        """Send dead letters of a group again."""
        group = form.get("group", "")
        to = form.get("to", "origin")
        if to not in ("origin", "group"):
            raise PlainError("Dead letters go to the origin or to the group.")
        limit = _whole(form.get("limit", "100"), "The number of messages")
        if not 1 <= limit <= REDRIVE_MAX:
            raise PlainError(f"At most {REDRIVE_MAX} messages are sent again at once, and at least one.")
        count = await self._client.dead_letters.redrive(group, to="group" if to == "group" else "origin", limit=limit)
        return RedirectResponse(link("/dead-letters/group", name=group, done=str(count)), 303)


class _Tail(StreamingResponse):
    """A live tail, which counts as open until its browser disconnects."""

    def __init__(self, pages: Pages, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._pages = pages
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._pages.tails += 1
        try:
            async with aclosing(self._events):
                await super().__call__(scope, receive, send)
        finally:
            self._pages.tails -= 1


def _name(request: Request) -> str:
    name = request.query_params.get("name", "")
    if not name or len(name) > MAX_NAME_CHARACTERS:
        raise PlainError("The address lacks the name of what to show.", 404)
    return name


def _done(request: Request) -> int | None:
    """The result of the preceding change, only as a number, since links can be forged."""
    value = request.query_params.get("done", "")
    return _whole(value, "What was done") if value else None


def _place(get: Callable[[str, str], str]) -> tuple[MessageQueue, int]:
    queue = MessageQueue(get("topic", ""), get("broker", ""), _whole(get("queue", ""), "The queue"))
    return queue, _whole(get("offset", ""), "The offset")
