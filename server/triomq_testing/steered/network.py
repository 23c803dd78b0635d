"""The network of a node in a test: TCP on loopback whose connections can be slowed, frozen and cut."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import trio

from triomq_server.wire import Dial, dial_tcp, listen_tcp


class SteeredNetwork:
    """The listeners and dialled connections of one node.

    Args:
        dial: opens a connection.

    Attributes:
        delay_s: how long each piece of data is delayed, in both directions.
    """

    def __init__(self, dial: Dial = dial_tcp) -> None:
        self._dial = dial
        self.delay_s: float = 0.0
        self._is_cut = False
        self._thawed = trio.Event()
        self._thawed.set()
        self._streams: set[SteeredStream] = set()
        self._dialled: weakref.WeakSet[SteeredStream] = weakref.WeakSet()

    async def dial(self, address: str) -> trio.abc.Stream:
        """Connect; refused while the node is cut off."""
        if self._is_cut:
            raise ConnectionRefusedError(f"the test has cut this node off: {address}")
        stream = self._steer(await self._dial(address))
        self._dialled.add(stream)
        return stream

    async def listen(self, host: str, port: int) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        """Listen on TCP."""
        return [SteeredListener(self, listener) for listener in await listen_tcp(host, port)]

    def freeze(self) -> None:
        """Keep connections open, but pass no data in or out."""
        self._thawed = trio.Event()

    def thaw(self) -> None:
        """Pass data again, including data that was held up."""
        self._thawed.set()

    async def cut(self) -> None:
        """Break all connections; new ones end at once."""
        self._is_cut = True
        self._thawed.set()
        for stream in tuple(self._streams):
            await trio.aclose_forcefully(stream)

    async def break_dialled(self) -> None:
        """Break the connections that this node has dialled, as their other ends do if nothing arrives for too long."""
        for stream in tuple(self._dialled):
            await trio.aclose_forcefully(stream)

    def mend(self) -> None:
        """Allow connections again."""
        self._is_cut = False

    async def accepted(self, stream: trio.abc.Stream) -> trio.abc.Stream:
        """Wrap an accepted connection."""
        steered = self._steer(stream)
        if self._is_cut:
            await trio.aclose_forcefully(steered)
        return steered

    async def hold_up(self) -> None:
        """Wait as long as data is delayed."""
        if self.delay_s:
            await trio.sleep(self.delay_s)
        await self._thawed.wait()

    def forget(self, stream: SteeredStream) -> None:
        """Remove a closed connection."""
        self._streams.discard(stream)

    def _steer(self, stream: trio.abc.Stream) -> SteeredStream:
        steered = SteeredStream(self, stream)
        self._streams.add(steered)
        return steered


class SteeredStream(trio.abc.Stream):
    """A connection of a node.

    Attributes:
        peer: address and port of the other end.
    """

    def __init__(self, network: SteeredNetwork, stream: trio.abc.Stream) -> None:
        assert isinstance(stream, trio.SocketStream)
        self._network = network
        self._stream = stream
        try:
            self.peer: tuple[str, int] = stream.socket.getpeername()[:2]
        except OSError:  # it is already closed
            self.peer = ("127.0.0.1", 0)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, after the delay."""
        await self._network.hold_up()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Behave as the socket does."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive, after the delay."""
        data = await self._stream.receive_some(max_bytes)
        await self._network.hold_up()
        return data

    async def aclose(self) -> None:
        """Close the socket."""
        self._network.forget(self)
        await self._stream.aclose()


class SteeredListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts the connections of a node.

    Attributes:
        address: ``host:port`` that it listens on.
    """

    def __init__(self, network: SteeredNetwork, listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        assert isinstance(listener, trio.SocketListener)
        self._network = network
        self._listener = listener
        host, port = listener.socket.getsockname()[:2]
        self.address: str = f"{host}:{port}"

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection."""
        return await self._network.accepted(await self._listener.accept())

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()
