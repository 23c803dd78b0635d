"""One request to a server, and the reason in words why it was not answered."""

from __future__ import annotations

import trio

from triomq_protocol.errors import ProtocolError
from triomq_protocol.wire.command import Command
from triomq_server.wire import AnswerTimeoutError, LinkClosedError, LinkError, OpenLink, error_text

TIMEOUT_S = 5.0

_OTHER_PROTOCOL = ": the peer speaks "
"""Part of the frame decoder's error if it knows the protocol; the length before it has no meaning then."""

FAILURES = (OSError, LinkError, ProtocolError, trio.TooSlowError)
"""What `ask` raises where there is no answer."""


class AdminError(Exception):
    """A command could not be carried out; the text names the cause and the remedy."""


async def ask(open_link: OpenLink, address: str, command: Command, timeout_s: float) -> Command:
    """Connect, send a request, and return the answer. Raises one of `FAILURES`."""
    with trio.fail_after(timeout_s):
        async with open_link(address) as link:
            return await link.request(command, timeout_s)


def failure_text(error: Exception, expected: str, timeout_s: float) -> str:
    """The reason why a server could not be asked, in words.

    Args:
        error: the error of the request.
        expected: the expected kind of server, "name server" or "broker".
        timeout_s: the timeout of the request.
    """
    if isinstance(error, trio.TooSlowError | AnswerTimeoutError):
        cause = "it may be a name server, or hang: look at its process and its log" if expected == "broker" else ""
        return f"it does not answer within {timeout_s:g} s: {cause or 'it may be no name server, or hang'}"
    if isinstance(error, LinkClosedError) and error.fault.startswith("TLS: "):
        return error.fault
    if isinstance(error, LinkClosedError):
        _, mark, protocol = error.fault.partition(_OTHER_PROTOCOL)
        if mark:
            return f"the peer speaks {protocol}" + (": give --tls" if protocol == "TLS" else "")
        why = f"its bytes are not RocketMQ frames: {error.fault}" if error.fault else "the connection ended unanswered"
        return f"{why}; it may be a web server or expect TLS (--tls)"
    return error_text(error)
