"""Connections: reads the bytes that links receive, in a task per link or, for sockets, through the poller.

The hot path, per receive: decode all frames that arrived, call a plain function for each, write all answers with one
non-blocking call, and call ``on_batch_end`` once (for all links that the poller found ready together). A link with too
many unsent bytes is not read from until the peer takes its answers.
"""

from __future__ import annotations

import logging
import ssl

import trio

from triomq_protocol.errors import RemoteProtocolError
from triomq_protocol.wire.command import Command
from triomq_protocol.wire.frame import FrameDecoder
from triomq_server.wire.hub import Hub
from triomq_server.wire.limits.places import Place
from triomq_server.wire.link import ENDINGS, Link
from triomq_server.wire.poller import PolledLink, Poller
from triomq_server.wire.tls_failures import dialling_failure
from triomq_server.wire.transport import SocketTransport, Transport, error_text

_log = logging.getLogger(__name__)

_FRAMES_AT_ONCE = 1024
"""Frames that are decoded before other tasks run. An unusual header takes some 20 microseconds."""


class Connections:
    """The connections of one hub.

    Args:
        hub: owns the links and calls their handlers.
        poller: reads sockets; without a poller, each link's own task reads.
    """

    def __init__(self, hub: Hub, poller: Poller | None = None) -> None:
        self.hub = hub
        self._poller = poller

    async def serve(
        self,
        transport: Transport,
        place: Place | None = None,
        *,
        task_status: trio.TaskStatus[Link] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve one connection to its end; a failure on it ends only this connection.

        Args:
            transport: the connection.
            place: the place of an accepted connection.
            task_status: receives the link.
        """
        hub = self.hub
        link = Link(transport, hub.writer)
        if place is not None:
            place.link, place.end = link, link.close
        hub.links.add(link)
        task_status.started(link)
        try:
            with link.scope:
                await self._read(link)
        except RemoteProtocolError as error:
            link.fault = error_text(error)
            hub.peer_log.write(logging.WARNING, link.peer, "closing %s: %s", link.peer, link.fault)
        except ENDINGS as error:
            cause = error.__cause__
            if isinstance(cause, ssl.SSLError) and not isinstance(transport, SocketTransport):
                link.fault = dialling_failure(cause)  # with TLS 1.3 a server refuses a client after the handshake
            _log.debug("%s ended: %r", link.peer, error)
        except Exception as error:  # noqa: BLE001 (the task's outermost edge)
            message = "closing %s after a fault of our own"
            hub.peer_log.write(logging.ERROR, link.peer, message, link.peer, kind=type(error), exc_info=error)
        finally:
            link.close()
            hub.count_incomplete(link, 0)
            hub.links.discard(link)
            await transport.aclose()

    async def _read(self, link: Link) -> None:
        limits = self.hub.limits
        decoder = FrameDecoder(limits.frame_bytes, limits.header_bytes, frames_at_once=_FRAMES_AT_ONCE)
        if self._poller is not None and isinstance(link.transport, SocketTransport):
            await self._read_polled(PolledLink(link, link.transport, decoder), self._poller)
            return
        receive = link.transport.receive
        while data := await receive():
            if self.hub.stopping:
                # Answers of earlier requests may still be on their way; the server's end closes the link.
                await trio.sleep_forever()
            link.active_at = trio.current_time()
            await self._take(link, decoder, data)

    async def _take(self, link: Link, decoder: FrameDecoder, data: bytes) -> None:
        """Handle received bytes. Raises RemoteProtocolError if they are not frames."""
        hub = self.hub
        await hub.turns.wait()
        hub.begin_batch()
        try:
            commands = hub.receive(link, decoder, data)
            taken = hub.dispatch(link, commands, 0) if link.unsent_bytes <= hub.limits.output_bytes else 0
        finally:
            hub.end_batch([link])
        await self._dispatch_all(link, decoder, commands, taken)
        if decoder.fault is not None:
            raise decoder.fault

    async def _read_polled(self, polled: PolledLink, poller: Poller) -> None:
        """Leave the reading to the poller, and do the work for which it would have to wait."""
        link = polled.link
        try:
            if early := polled.early():
                await self._take(link, polled.decoder, early)
            if link.closed:
                return
            poller.resume(polled)
            while True:
                await polled.needs_task.wait()
                polled.needs_task = trio.Event()
                if polled.error is not None:
                    raise polled.error
                await self._dispatch_all(link, polled.decoder, polled.commands, polled.taken)
                polled.commands = []
                if polled.decoder.fault is not None:
                    raise polled.decoder.fault
                if polled.ended or link.closed:
                    return
                poller.resume(polled)
        finally:
            poller.pause(polled)

    async def _dispatch_all(self, link: Link, decoder: FrameDecoder, commands: list[Command], taken: int) -> None:
        """Handle the commands from index ``taken`` on, whenever the peer has taken enough of its answers, and then what
        has been received but not decoded."""
        hub = self.hub
        while not link.closed:
            if link.slices is not None:
                await hub.finish_slices(link)
            if link.unsent_bytes > hub.limits.output_bytes:
                link.drained = trio.Event()
                await link.drained.wait()
            if taken >= len(commands) and not decoder.more:
                return
            await hub.turns.wait_for_next()
            hub.begin_batch()
            try:
                if taken >= len(commands):
                    commands, taken = hub.receive(link, decoder, b""), 0
                taken = hub.dispatch(link, commands, taken)
            finally:
                hub.end_batch([link])
