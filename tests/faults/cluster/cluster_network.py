"""A simulated network inside one process: a seed decides which connections are slow, cut or muted.

Every run of a node gets a `SimHost`, whose `dial` and `listen` go wherever nodes and clients take such arguments.
Bytes arrive after a latency, in pieces of any size, in order. A pair of nodes can be cut (connections break, new ones
are refused) or muted (bytes and dials hang until it ends); muting a node simulates a stopped process. Everything random
comes from one generator, so that a seed repeats it all.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import trio
from seeded_run import VirtualClock

T = TypeVar("T")
LATENCY_S = (0.0002, 0.002)
_PIECE_SHARE = 0.1
"""Probability that a read returns only the first part of the received bytes, and that a send takes only that."""
_NOWAIT_SHARE = 0.8
"""Probability that an end can send without waiting, as it can to a socket and cannot over TLS. It takes fewer turns."""


class _Pipe:
    """One direction of a connection."""

    def __init__(self, network: SimNetwork, source: str, target: str) -> None:
        self.network = network
        self.source, self.target = source, target
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.last_at = 0.0
        self.ended = self.reset = self.done = False
        self.reader: trio.lowlevel.Task | None = None
        """Set while the reader waits."""

    def put(self, data: bytes) -> None:
        """Send bytes; an empty value is the end of the stream."""
        self.last_at = max(self.last_at, trio.current_time() + self.network.latency_s(self.source, self.target))
        self.waiting.append((self.last_at, data))
        # The reader sleeps until the bytes are due: waking it twice takes a third of the simulation's time.
        is_first = len(self.waiting) == 1
        if is_first and self.reader is not None and not self.network.is_mute(self.source, self.target):
            self.network.clock.call_at(self.last_at, self.wake_reader)

    def wake_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)

    def break_off(self, *, deliver: bool) -> None:
        """The sender was killed: reset the connection, or deliver everything and then the end of the stream."""
        if deliver:
            if not self.ended:
                self.ended = True
                self.put(b"")
        else:
            self.reset = True
            self.waiting.clear()
            self.wake_reader()

    async def get(self, max_bytes: int) -> bytes:
        waited = False
        while True:
            due: float | None = None
            if not self.network.is_mute(self.source, self.target):
                if self.reset:
                    raise trio.BrokenResourceError("connection reset")
                if self.waiting:
                    due, data = self.waiting[0]
                    if due <= trio.current_time():
                        if not waited:
                            await trio.lowlevel.checkpoint()
                            waited = True
                            continue
                        return self._take(data, max_bytes)
            if due is not None:
                self.network.clock.call_at(due, self.wake_reader)
            self.reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_reading)
            waited = True

    def _stop_reading(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, data: bytes, max_bytes: int) -> bytes:
        if not data:
            self.done = True
            return b""  # kept: every further read gets the end of the stream too
        chance = self.network.chance
        size = min(len(data), max_bytes)
        if size > 1 and chance.random() < _PIECE_SHARE:
            size = chance.randrange(1, size)
        due, _ = self.waiting.popleft()
        if size < len(data):
            self.waiting.appendleft((due, data[size:]))
        return data[:size]


class SimStream(trio.abc.HalfCloseableStream):
    """One end of a connection."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe, peer: tuple[str, int]) -> None:
        self.peer = peer
        self.outgoing, self.incoming = outgoing, incoming
        self.closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self._put(bytes(data))

    def _put(self, data: bytes) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        pipe = self.outgoing
        if pipe.ended or pipe.reset or self.incoming.reset:
            raise trio.BrokenResourceError("the connection is closed")
        if data:
            pipe.put(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self.outgoing.break_off(deliver=True)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.closed:
            raise trio.ClosedResourceError
        data = await self.incoming.get(max_bytes or 65536)
        if self.closed:
            raise trio.ClosedResourceError
        return data

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            self.outgoing.break_off(deliver=True)
            self.incoming.done = True
            self.incoming.wake_reader()
        await trio.lowlevel.checkpoint()

    def crash(self, *, deliver: bool) -> None:
        """The process of this end was killed; `deliver` says whether what it had sent arrives."""
        self.outgoing.break_off(deliver=deliver)
        self.incoming.reset = True
        self.incoming.wake_reader()


class NowaitSimStream(SimStream):
    """One end of a connection that can do without waiting what it can do now."""

    def send_nowait(self, data: bytes | bytearray | memoryview, /) -> int:
        """Send what fits."""
        chance = self.outgoing.network.chance
        size = chance.randrange(len(data)) if data and chance.random() < _PIECE_SHARE else len(data)
        self._put(bytes(data[:size]))
        return size

    def receive_nowait(self, max_bytes: int, /) -> bytes:
        """Nothing is received before a task waits."""
        raise trio.WouldBlock


class SimListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts the connections that were dialled."""

    def __init__(self, host: SimHost, address: str) -> None:
        self.host = host
        self.address = address
        self._send, self._receive = trio.open_memory_channel[SimStream](1000)

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    def deliver(self, stream: SimStream) -> None:
        self._send.send_nowait(stream)

    async def aclose(self) -> None:
        self.host.network.forget(self)
        self._send.close()
        self._receive.close()
        await trio.lowlevel.checkpoint()


class SimHost:
    """The network of one run of one node."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.alive = True
        self.streams: list[SimStream] = []

    async def listen(self, host: str, port: int) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        await trio.lowlevel.checkpoint()
        return [self.network.add_listener(self, f"127.0.0.1:{port}")]

    async def dial(self, address: str, /) -> trio.abc.Stream:
        return await self.network.connect(self, address)

    def crash(self, *, deliver: bool) -> None:
        """The process was killed: nothing more is sent from it, even if its tasks still run."""
        self.alive = False
        self.network.drop_listeners(self)
        for stream in self.streams:
            stream.crash(deliver=deliver)
        self.streams.clear()


class SimNetwork:
    """The simulated network.

    Args:
        chance: decides latencies and pieces.
        owners: address -> name of the node that listens there, running or not.
        clock: wakes who waits for bytes.
    """

    def __init__(self, chance: random.Random, owners: dict[str, str], clock: VirtualClock) -> None:
        self.chance = chance
        self.clock = clock
        self._owners = owners
        self._listeners: dict[str, SimListener] = {}
        self._pipes: list[_Pipe] = []
        self._mute_nodes: set[str] = set()
        self._mute_pairs: set[frozenset[str]] = set()
        self._cut_pairs: set[frozenset[str]] = set()
        self._slow: dict[frozenset[str], float] = {}
        self._ports = 40_000
        self._changed = trio.Event()

    def host(self, name: str) -> SimHost:
        """The network of a new run of a node."""
        return SimHost(self, name)

    # -- faults

    def mute_node(self, name: str) -> Callable[[], None]:
        """Hold all bytes to and from a node; returns the function that ends this."""
        self._mute_nodes.add(name)
        return partial(self._unmute, self._mute_nodes, name)

    def mute_pair(self, one: str, other: str) -> Callable[[], None]:
        """Hold all bytes between two nodes; returns the function that ends this."""
        pair = frozenset((one, other))
        self._mute_pairs.add(pair)
        return partial(self._unmute, self._mute_pairs, pair)

    def cut_pair(self, one: str, other: str) -> Callable[[], None]:
        """Break connections between two nodes and refuse new ones; returns the function that ends this."""
        pair = frozenset((one, other))
        self._cut_pairs.add(pair)
        for pipe in self._pipes:
            if {pipe.source, pipe.target} == pair:
                pipe.break_off(deliver=False)
        return partial(self._unmute, self._cut_pairs, pair)

    def slow_pair(self, one: str, other: str, most_s: float) -> Callable[[], None]:
        """Delay bytes between two nodes by up to `most_s`; returns the function that ends this."""
        pair = frozenset((one, other))
        self._slow[pair] = most_s
        return partial(self._hurry, pair)

    def heal(self) -> None:
        """End all faults."""
        for faults in (self._mute_nodes, self._mute_pairs, self._cut_pairs, self._slow):
            faults.clear()
        self._wake_all()

    def _hurry(self, pair: frozenset[str]) -> None:
        self._slow.pop(pair, None)

    def _unmute(self, faults: set[T], what: T) -> None:
        faults.discard(what)
        self._wake_all()

    def _wake_all(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        for pipe in self._pipes:
            pipe.wake_reader()

    def is_mute(self, one: str, other: str) -> bool:
        """Whether bytes between two nodes are held now."""
        return (
            one in self._mute_nodes
            or other in self._mute_nodes
            or bool(self._mute_pairs and frozenset((one, other)) in self._mute_pairs)
        )

    def latency_s(self, one: str, other: str) -> float:
        """The latency of the next bytes."""
        slow = self._slow.get(frozenset((one, other))) if self._slow else None
        return self.chance.uniform(0, slow) if slow is not None else self.chance.uniform(*LATENCY_S)

    # -- connections

    def add_listener(self, host: SimHost, address: str) -> SimListener:
        """Raises OSError when the address is taken."""
        if not host.alive:
            raise OSError("this host has crashed")
        if address in self._listeners:
            raise OSError(f"{address} is taken")
        listener = self._listeners[address] = SimListener(host, address)
        return listener

    def forget(self, listener: SimListener) -> None:
        """Remove a closed listener."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def drop_listeners(self, host: SimHost) -> None:
        """Remove all listeners of a host."""
        self._listeners = {address: each for address, each in self._listeners.items() if each.host is not host}

    async def connect(self, host: SimHost, address: str) -> trio.abc.Stream:
        """Connect. Raises OSError when there is no listener, or the connection is cut; waits while it is muted."""
        owner = self._owners[address]
        await self.clock.sleep(self.latency_s(host.name, owner))
        while host.alive and self.is_mute(host.name, owner):
            await self._changed.wait()
        listener = self._listeners.get(address)
        if not host.alive or listener is None or frozenset((host.name, owner)) in self._cut_pairs:
            raise ConnectionRefusedError(f"no listener can be reached at {address}")
        self._ports += 1
        there, here = _Pipe(self, host.name, owner), _Pipe(self, owner, host.name)
        server_host, _, port = address.rpartition(":")
        client_end = self._end_of(there, here, (server_host, int(port)))
        server_end = self._end_of(here, there, ("127.0.0.1", self._ports))
        self._pipes = [pipe for pipe in self._pipes if not (pipe.done or pipe.reset)] + [there, here]
        for life, stream in ((host, client_end), (listener.host, server_end)):
            life.streams = [each for each in life.streams if not each.closed] + [stream]
        listener.deliver(server_end)
        return client_end

    def _end_of(self, outgoing: _Pipe, incoming: _Pipe, peer: tuple[str, int]) -> SimStream:
        kind = NowaitSimStream if self.chance.random() < _NOWAIT_SHARE else SimStream
        return kind(outgoing, incoming, peer)
