"""What a Connection reports: a request of the peer's, the answer to one of ours, an answer nobody waits for."""

import attrs

from triomq_protocol.command import Command


@attrs.frozen(slots=True)
class RequestReceived:
    """The peer asks; unless `command.is_oneway`, answer with `command.answer(...)`."""

    command: Command


@attrs.frozen(slots=True)
class ResponseReceived:
    """The peer answered the request that was registered with `waiter`."""

    command: Command
    waiter: object


@attrs.frozen(slots=True)
class StrayResponse:
    """An answer whose request is unknown or was forgotten: drop it."""

    command: Command


Event = RequestReceived | ResponseReceived | StrayResponse
