"""Fetches the tables that a slave needs besides the log: topics, consumer offsets, delay offsets and groups, every 10 s.

The requests are RocketMQ's four; the answers are decoded here and handed over as whole tables, so that the broker can
swap them in. Answers to `SlaveSynchronize`; the rules are in docs/protocol/ha.md §7.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import trio

from triomq_protocol.codes import RequestCode, ResponseCode
from triomq_protocol.errors import HeaderError
from triomq_protocol.wire.command import Command
from triomq_server.wire import AnswerTimeoutError, Asking, LinkError, OpenLink
from triomq_server.wire.transport import error_text, failure_reason

_log = logging.getLogger(__name__)

FIRST_S = 0.1
"""RocketMQ waits 3 s; an earlier first fetch lets a fresh slave serve earlier."""
PERIOD_S = 10.0
SOONEST_S = 0.2
"""Shortest time between two fetches."""
PAUSE_PER_ROUND = 4
"""Pause between fetches from the same master, as a multiple of the last one's duration: readers that ask for unknown
topics, and messages of topics that the master does not list, can ask for one at any moment, and the tables may be long."""
TIMEOUT_S = 3.0
ROUND_S = 15.0
"""One connect and four requests take no longer than this."""


LOG_END_FIELD = "triomqLogEnd"
"""Header field of our answers to code 45: a log offset before which all copies of delivered messages are. In a request
it asks for that offset. RocketMQ's brokers ignore it."""


def delay_offsets_request() -> Command:
    """Code 45, from a broker that reads LOG_END_FIELD in the answer."""
    return Command.request(RequestCode.GET_ALL_DELAY_OFFSET, fields={LOG_END_FIELD: "wanted"})


class MetadataTables(Protocol):
    """The broker's tables, as the slave's metadata replaces them. Each method takes a response body as it came.

    A table is built aside and swapped in whole: no reader ever sees an empty one. A body that cannot be decoded raises
    ValueError and changes nothing; OSError if this broker's disk refuses the table.
    """

    async def replace_topics(self, body: bytes) -> None:
        """GET_ALL_TOPIC_CONFIG: version and table, taken over if the version differs; persisted."""

    async def merge_consumer_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        """GET_ALL_CONSUMER_OFFSET, with the answer's header fields: takes over offsets that are newer, and persists them."""

    async def save_delay_offsets(self, body: bytes, fields: Mapping[str, str]) -> None:
        """GET_ALL_DELAY_OFFSET, with the answer's header fields: written to delayOffset.json as it came, as soon as the
        log reaches LOG_END_FIELD, if there is one."""

    async def replace_groups(self, body: bytes) -> None:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: like topics."""


_MASTER = "the connection"

Take = Callable[[bytes, Mapping[str, str]], Awaitable[None]]


class MetadataSync:
    """Keeps a slave's tables equal to its master's.

    Args:
        tables: the broker's side.
        open_link: opens a link to ``host:port``.
        own_address: this broker's own address: a slave never copies from itself.
    """

    def __init__(self, tables: MetadataTables, open_link: OpenLink, *, own_address: str) -> None:
        self._tables = tables
        self._open_link = open_link
        self._own_address = own_address
        self._wanted = trio.Event()
        self._moved = trio.Event()
        self._failures: dict[str, str] = {}
        self.master: str | None = None
        self.rounds = 0
        """How often all four tables came over."""

    def follow(self, master: str | None) -> None:
        """Take the master's address; a new one is asked at once. None: stop asking."""
        if master != self.master:
            self.master = master
            self._moved.set()
            self._wanted.set()

    def fetch_soon(self) -> None:
        """Ask before the period is over: something arrived that the tables do not know."""
        self._wanted.set()

    async def run(self) -> None:
        """Fetch every 10 s, and when asked to, until cancelled."""
        await trio.sleep(FIRST_S)
        while True:
            self._wanted, self._moved = trio.Event(), trio.Event()
            begun = trio.current_time()
            if self.master is not None and self.master != self._own_address:
                await self._round(self.master)
            ended = trio.current_time()
            await trio.sleep(SOONEST_S)
            with trio.move_on_at(ended + min(PAUSE_PER_ROUND * (ended - begun), PERIOD_S)):
                await self._moved.wait()
            with trio.move_on_at(ended + PERIOD_S):
                await self._wanted.wait()

    async def _round(self, master: str) -> None:
        """Fetch the four tables over one link; a failure of one does not stop the others."""
        try:
            with trio.fail_after(ROUND_S):
                async with self._open_link(master) as link:
                    self._note(_MASTER, None)
                    complete = True
                    for code, take in self._steps():
                        failure = await self._fetch(link, code, take)
                        self._note(code.name, failure)
                        complete = complete and failure is None
            if complete:
                self.rounds += 1
        except (OSError, LinkError, trio.TooSlowError, trio.BrokenResourceError) as error:
            self._note(_MASTER, f"{master}: {failure_reason(error)}")

    def _steps(self) -> tuple[tuple[RequestCode, Take], ...]:
        tables = self._tables
        return (
            (RequestCode.GET_ALL_TOPIC_CONFIG, lambda body, _: tables.replace_topics(body)),
            (RequestCode.GET_ALL_CONSUMER_OFFSET, tables.merge_consumer_offsets),
            (RequestCode.GET_ALL_DELAY_OFFSET, tables.save_delay_offsets),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda body, _: tables.replace_groups(body)),
        )

    async def _fetch(self, link: Asking, code: RequestCode, take: Take) -> str | None:
        """One table; what failed, None if nothing did. LinkError if the link is of no use for the next one either."""
        try:
            request = delay_offsets_request() if code is RequestCode.GET_ALL_DELAY_OFFSET else Command.request(code)
            answer = await link.request(request, TIMEOUT_S)
        except AnswerTimeoutError as error:
            return f"{code.name}: {error_text(error)}"
        if answer.code != ResponseCode.SUCCESS:
            return f"{code.name} answered with code {answer.code}: {answer.remark}"
        try:
            await take(bytes(answer.body), answer.fields or {})
        except (ValueError, HeaderError) as error:
            return f"{code.name} answered with something else than its table: {error_text(error)}"
        except OSError as error:
            return f"{code.name} has been answered, but this broker's own disk refuses the table: {error_text(error)}"
        return None

    def _note(self, step: str, failure: str | None) -> None:
        """Log a step's failure once, not every ten seconds, and once when it works again."""
        if failure is None:
            if self._failures.pop(step, None) is not None:
                _log.info("metadata of the master: %s works again", step)
        elif failure != self._failures.get(step):
            self._failures[step] = failure
            _log.warning("metadata of the master: %s", failure)
