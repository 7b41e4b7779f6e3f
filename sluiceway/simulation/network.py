"""Connections in memory that delay, split, stall and break: the network of a simulation.

A `Connection` is two directions. Its broker's end is a `ByteStream`, as that of a socket; its client's end is a
`trio.abc.Stream`, so that any client for trio streams fits.

What a direction holds is bounded by its capacity: bytes on their way and bytes that nobody has read yet; then writers
wait, as with sockets. In a half-cut direction they fill it, and stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import trio
import trio.abc

from sluiceway.protocols.framing import PLAIN
from sluiceway.simulation.faults import Chance, Faults

CAPACITY_BYTES: Final = 64 * 1024
PIECES_MAX: Final = 5
"""Pieces in which a write arrives that is split."""
_END: Final = b""

Tell = Callable[[str], None]
"""Takes a line of the history."""


class _Direction:
    """Bytes from one end to the other."""

    def __init__(
        self,
        name: str,
        faults: Callable[[], Faults],
        chance: Chance,
        tell: Tell,
        cut: Callable[[_Direction], None],
        seen: Any,
    ) -> None:
        self.name = name
        self._faults = faults
        self._chance = chance
        self._tell = tell
        self._cut = cut
        self._seen = seen
        self._pieces: deque[tuple[float, bytes]] = deque()
        """Times of arrival, and bytes; empty ones are the end."""
        self._size_bytes = 0
        self._last_arrival = 0.0
        self.is_lost = False
        """Whether nothing arrives any more, and no side was told."""
        self.is_ended = False
        """Whether the writer has ended it."""
        self.is_left = False
        """Whether the reader has closed its end."""
        self.is_broken = False
        self.readable = trio.lowlevel.ParkingLot()
        self.writable = trio.lowlevel.ParkingLot()

    def put(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Take bytes as far as they fit. Raises OSError."""
        if self.is_broken or self.is_left or self.is_ended:
            raise BrokenPipeError("the connection is broken")
        room_bytes = CAPACITY_BYTES - self._size_bytes
        data = b"".join(pieces)[:room_bytes]
        if not data:
            return 0
        faults, chance = self._faults(), self._chance
        if chance.strikes("cut", faults.cut):
            kept_bytes = chance.number(0, len(data) - 1)
            self._tell(f"{self.name}: cut after {kept_bytes} of {len(data)} bytes")
            if kept_bytes:
                self._arrive(data[:kept_bytes])
            self._cut(self)
            return len(data)  # the kernel took them
        if chance.strikes("half-cut", faults.half_cut):
            self._tell(f"{self.name}: nothing arrives from here on")
            self.lose()
        arriving: tuple[bytes, ...] = (data,)
        if chance.strikes("split", faults.split):
            arriving = self._split(data)
            self._tell(f"{self.name}: {len(data)} bytes in pieces of {', '.join(str(len(each)) for each in arriving)}")
        for piece in arriving:
            self._arrive(piece)
        return len(data)

    def _split(self, data: bytes) -> tuple[bytes, ...]:
        chance = self._chance
        places = sorted(chance.number(0, len(data)) for _ in range(chance.number(1, PIECES_MAX - 1)))
        bounds = [0, *places, len(data)]
        return tuple(data[start:stop] for start, stop in pairwise(bounds) if start < stop)

    def _arrive(self, data: bytes) -> None:
        faults = self._faults()
        self._last_arrival = max(self._last_arrival, trio.current_time() + self._chance.seconds(faults.delay_seconds))
        self._size_bytes += len(data)
        self._pieces.append((self._last_arrival, data))
        self._seen.update(b"%s %r %d\n" % (self.name.encode(), self._last_arrival, len(data)))
        self._seen.update(data)
        self.readable.unpark_all()

    def get(self, size_max: int) -> bytes | None:
        """Return bytes that have arrived, empty ones at the end, None: none now. Raises ConnectionResetError."""
        if not self._has_arrived:
            if self._is_at_break:
                raise ConnectionResetError("the connection is broken")
            return None
        arrival, piece = self._pieces[0]
        if piece == _END:
            return _END
        if len(piece) > size_max:
            self._pieces[0] = (arrival, piece[size_max:])
            piece = piece[:size_max]
        else:
            self._pieces.popleft()
        self._size_bytes -= len(piece)
        self.writable.unpark_all()
        return piece

    @property
    def _has_arrived(self) -> bool:
        return bool(self._pieces) and not self.is_lost and self._pieces[0][0] <= trio.current_time()

    @property
    def has_ended(self) -> bool:
        """Whether the end has arrived, though bytes before it may not be read."""
        return not self.is_lost and (self.is_broken or (self.is_ended and self._pieces[-1][0] <= trio.current_time()))

    @property
    def _is_at_break(self) -> bool:
        return self.is_broken and not self._pieces

    async def wait_readable(self, is_closed: Callable[[], bool]) -> None:
        """Wait until `get` has an answer, or the end is closed. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not (self._has_arrived or self._is_at_break or is_closed()):
            if self._pieces and not self.is_lost:
                with trio.move_on_at(self._pieces[0][0]):
                    await self.readable.park()
            else:
                await self.readable.park()

    async def wait_writable(self, is_closed: Callable[[], bool]) -> None:
        """Wait until `put` has an answer, or the end is closed. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not (self._size_bytes < CAPACITY_BYTES or self.is_broken or self.is_left or is_closed()):
            await self.writable.park()

    def end(self) -> None:
        """Have the reader see the end, after all bytes."""
        if not (self.is_ended or self.is_broken):
            self.is_ended = True
            self._arrive(_END)

    def leave(self) -> None:
        """Have the writer see that nobody reads."""
        self.is_left = True
        self.wake()

    def lose(self) -> None:
        """Have nothing arrive any more."""
        self.is_lost = True

    def break_up(self, *, keeps: bool = False) -> None:
        """Have both sides see a broken connection. `keeps`: the reader gets the bytes on their way before."""
        self.is_broken = True
        if not keeps or self.is_lost:
            self._pieces.clear()
        self.wake()

    def wake(self) -> None:
        """Wake all that wait."""
        self.readable.unpark_all()
        self.writable.unpark_all()


class Connection:
    """A connection of one client with one broker."""

    def __init__(
        self,
        name: str,
        broker_name: str,
        *,
        faults: Callable[[], Faults],
        chance: Callable[[str], Chance],
        tell: Tell,
        seen: Any,
    ) -> None:
        """`name`: of the client; `faults`: those in force; `chance`: that of a part by its name; `seen`: a hash of all
        that is sent.
        """
        self.name = name
        self.broker_name = broker_name
        there, back = f"{name} to {broker_name}", f"{broker_name} to {name}"
        self.there = _Direction(there, faults, chance(there), tell, self.cut, seen)
        self.back = _Direction(back, faults, chance(back), tell, self.cut, seen)
        self.client_end = SimulatedStream(self.back, self.there, self, faults, chance(f"{name} reads"), tell)
        self.broker_end = BrokerEnd(self.there, self.back, name)

    @property
    def is_over(self) -> bool:
        """Whether both sides are done with it, or know that it is broken."""
        return self.there.is_broken or (self.client_end.is_closed and self.broker_end.is_closed)

    def cut(self, at: _Direction | None = None) -> None:
        """Break it: both sides see that. `at`: the direction of the last bytes, which arrive; all others are lost."""
        for direction in (self.there, self.back):
            direction.break_up(keeps=direction is at)

    def lose(self) -> None:
        """Have nothing arrive any more, in either direction, and tell no side."""
        self.there.lose()
        self.back.lose()


class BrokerEnd:
    """The broker's end: a `ByteStream`."""

    framing = PLAIN
    peer_certificate: Final = None

    def __init__(self, inward: _Direction, outward: _Direction, peer: str) -> None:
        self._in = inward
        self._out = outward
        self.peer = peer
        self.is_closed = False

    @property
    def peer_has_ended(self) -> bool:
        """Do `ByteStream.peer_has_ended`."""
        return self._in.has_ended

    def read(self, size_max: int) -> bytes | None:
        """Do `ByteStream.read`."""
        self._check()
        return self._in.get(size_max)

    def read_into(self, room: memoryview) -> int | None:
        """Do `ByteStream.read_into`."""
        data = self.read(len(room))
        if data is None:
            return None
        room[: len(data)] = data
        return len(data)

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Do `ByteStream.write`."""
        self._check()
        return self._out.put(pieces)

    async def wait_readable(self) -> None:
        """Do `ByteStream.wait_readable`."""
        self._check()
        await self._in.wait_readable(lambda: self.is_closed)
        self._check()

    async def wait_writable(self) -> None:
        """Do `ByteStream.wait_writable`."""
        self._check()
        await self._out.wait_writable(lambda: self.is_closed)
        self._check()

    def shutdown_write(self) -> None:
        """Do `ByteStream.shutdown_write`."""
        self._out.end()

    def close(self) -> None:
        """Do `ByteStream.close`."""
        if not self.is_closed:
            self.is_closed = True
            _leave(self._in, self._out)

    def abandon(self) -> None:
        """Do `ByteStream.abandon`."""
        self.is_closed = True

    def _check(self) -> None:
        if self.is_closed:
            raise trio.ClosedResourceError("this end was closed")


class SimulatedStream(trio.abc.HalfCloseableStream):
    """A client's end of a connection: bytes as from a socket, for any client that takes a trio stream.

    A broken connection raises `trio.BrokenResourceError`, a closed end `trio.ClosedResourceError`.
    """

    def __init__(
        self,
        inward: _Direction,
        outward: _Direction,
        connection: Connection,
        faults: Callable[[], Faults],
        chance: Chance,
        tell: Tell,
    ) -> None:
        self._in = inward
        self._out = outward
        self.connection = connection
        self._faults = faults
        self._chance = chance
        self._tell = tell
        self.is_closed = False
        """Whether the client has closed its end."""

    @property
    def name(self) -> str:
        """Name of the client, in the history."""
        return self.connection.name

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes; empty ones at the end of the stream. Raises BrokenResourceError, ClosedResourceError."""
        faults = self._faults()
        if self._chance.strikes("stall", faults.stall):
            seconds = self._chance.seconds(faults.stall_seconds)
            self._tell(f"{self.name} reads nothing for {seconds:.2f} s")
            await trio.sleep(seconds)
        while True:
            self._check()
            try:
                data = self._in.get(max_bytes or CAPACITY_BYTES)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            if data is not None:
                await trio.lowlevel.checkpoint()
                return data
            await self._in.wait_readable(lambda: self.is_closed)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write all bytes, waiting where the broker does not read. Raises BrokenResourceError, ClosedResourceError."""
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while True:
            self._check()
            try:
                rest = rest[self._out.put([rest]) :]
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            if not rest:
                return
            await self._out.wait_writable(lambda: self.is_closed)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the broker's side has room. Raises ClosedResourceError."""
        self._check()
        await self._out.wait_writable(lambda: self.is_closed)
        self._check()

    async def send_eof(self) -> None:
        """End the direction to the broker."""
        self._check()
        self._out.end()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close this end at once, without a word of STOMP: what a process does that dies."""
        if not self.is_closed:
            self.is_closed = True
            _leave(self._in, self._out)

    async def aclose(self) -> None:
        """Do `close`, as a checkpoint."""
        self.close()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self.is_closed:
            raise trio.ClosedResourceError("this end was closed")


def _leave(inward: _Direction, outward: _Direction) -> None:
    """Close one end: the other side is told, unless nothing arrives there."""
    outward.end()
    if outward.is_lost:
        inward.wake()  # our own readers; the other side writes on
    else:
        inward.leave()
    outward.wake()
