"""A network in memory: listen and dial without sockets, for tests on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_one_way_pair

_ANYWHERE = ("", "0.0.0.0", "::")


class MemoryStream(trio.abc.HalfCloseableStream):
    """One end of a connection inside this process.

    Attributes:
        peer: address and port that the other end pretends to have.
    """

    def __init__(self, outgoing: MemorySendStream, incoming: MemoryReceiveStream, peer: tuple[str, int]) -> None:
        self.peer = peer
        self._outgoing = outgoing
        self._incoming = incoming

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Pass the bytes on; there is no limit."""
        await self._outgoing.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Only a checkpoint."""
        await self._outgoing.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """The other end reads what was sent, then the end."""
        await self._outgoing.aclose()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for bytes of the other end; empty at the end."""
        return await self._incoming.receive_some(max_bytes)

    async def aclose(self) -> None:
        """Close both directions."""
        self._outgoing.close()
        self._incoming.close()
        await trio.lowlevel.checkpoint()


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Hands out what was dialled; closing it refuses further dialling.

    Attributes:
        address: ``host:port`` under which it is dialled.
    """

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.address = address
        self._network = network
        self._dialled, self._arrived = trio.open_memory_channel[trio.abc.Stream](math.inf)

    async def accept(self) -> trio.abc.Stream:
        """Wait for the next connection; raises ClosedResourceError after ``aclose``."""
        return await self._arrived.receive()

    async def aclose(self) -> None:
        """Refuse later connections, and drop what was dialled and not accepted."""
        self._network.forget(self)
        while True:
            try:
                stream = self._arrived.receive_nowait()
            except (trio.WouldBlock, trio.ClosedResourceError, trio.EndOfChannel):
                break
            await trio.aclose_forcefully(stream)
        self._dialled.close()
        self._arrived.close()
        await trio.lowlevel.checkpoint()

    def deliver(self, stream: trio.abc.Stream) -> None:
        """A connection was made to this listener."""
        self._dialled.send_nowait(stream)


class MemoryNetwork:
    """A network of its own: ``listen`` and ``dial`` fit wherever the server takes such arguments."""

    def __init__(self) -> None:
        self._listeners: dict[str, MemoryListener] = {}
        self._next_port = 40_000

    async def listen(self, host: str, port: int) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        """Listen; ``0.0.0.0`` and the like mean 127.0.0.1 here. Raises OSError when the port is taken."""
        await trio.lowlevel.checkpoint()
        address = f"{host if host not in _ANYWHERE else '127.0.0.1'}:{port or self._fresh_port()}"
        if address in self._listeners:
            raise OSError(f"{address} is taken")
        listener = self._listeners[address] = MemoryListener(self, address)
        return [listener]

    async def dial(self, address: str) -> trio.abc.Stream:
        """Connect; raises ConnectionRefusedError without a listener."""
        await trio.lowlevel.checkpoint()
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(f"there is no listener on {address}")
        host, _, port = address.rpartition(":")
        there, here = self._pair((host, int(port)))
        listener.deliver(there)
        return here

    def forget(self, listener: MemoryListener) -> None:
        """A listener was closed."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def _pair(self, server: tuple[str, int]) -> tuple[MemoryStream, MemoryStream]:
        to_server, from_client = memory_stream_one_way_pair()
        to_client, from_server = memory_stream_one_way_pair()
        client = ("127.0.0.1", self._fresh_port())
        return MemoryStream(to_client, from_client, client), MemoryStream(to_server, from_server, server)

    def _fresh_port(self) -> int:
        self._next_port += 1
        return self._next_port


class LaggingNetwork(MemoryNetwork):
    """The network of one broker among those of another one; from when `lags` is set, nothing comes to it from HA ports.

    Args:
        network: where the others are.
        ha_ports: which ports that is.
    """

    def __init__(self, network: MemoryNetwork, *ha_ports: int) -> None:
        super().__init__()
        self._listeners = network._listeners
        self._next_port = 50_000
        self._ha_ports = ha_ports
        self.lags = False

    async def dial(self, address: str) -> trio.abc.Stream:
        """Connect; raises ConnectionRefusedError without a listener."""
        stream = await super().dial(address)
        return _LaggingStream(stream, self) if int(address.rpartition(":")[2]) in self._ha_ports else stream


class _LaggingStream(trio.abc.Stream):
    def __init__(self, inner: trio.abc.Stream, network: LaggingNetwork) -> None:
        self._inner = inner
        self._network = network

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._inner.receive_some(max_bytes)
        if data and self._network.lags:
            await trio.sleep_forever()
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()
