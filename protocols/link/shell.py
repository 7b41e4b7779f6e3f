"""The shell of a link: moves bytes between a stream and a `LinkMachine`, and watches the time.

One task reads; what all flows have at the end of a dispatch turn goes out in one write. A second task exists only while
the kernel's buffer is full. A plain socket is read together with those of clients (arrivals.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

import trio

from ..arrivals import Arrivals, Watched
from ..log import get_logger
from ..streams import ByteStream, SocketStream
from .machine import LinkMachine, LinkState
from .records import LinkFault

READ_BYTES: Final = 512 * 1024
HANDSHAKE_SECONDS: Final = 5.0
"""Time for both greetings and proofs."""
GOODBYE_SECONDS: Final = 1.0

log = get_logger("sluiceway.link")


class LinkHub(Protocol):
    """The broker, as a link sees it."""

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""

    @property
    def arrivals(self) -> Arrivals | None:
        """Common wait of plain sockets for their input."""

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Run this once at the end of the dispatch turn."""

    def turn_with(self, work: Callable[[], None]) -> None:
        """Call `work`, and deliver its results at once if no other work is under way."""

    def contain(self, error: Exception) -> None:
        """Log a mistake of the broker, and abandon what it has interrupted."""


class LinkConnection:
    """One link over one stream."""

    def __init__(
        self,
        hub: LinkHub,
        stream: ByteStream,
        make: Callable[[Callable[[], None]], LinkMachine],
        *,
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
        opened: Callable[[LinkConnection], None],
        ended: Callable[[LinkConnection, str], None],
    ) -> None:
        """`make` makes the machine, from the function that requests a write. `opened`: the peer has proved who it is;
        raises LinkFault to refuse it; `ended`: the link is gone, for this reason.
        """
        self._hub = hub
        self._stream = stream
        self._spawn = spawn
        self._opened = opened
        self._ended = ended
        self._rest: list[bytes | memoryview] = []
        self._draining = False
        self._scope = trio.CancelScope()
        self._fault: str | None = None
        self._was_open = False
        self._sleeping = trio.CancelScope()
        """Sleep before the next look at the time."""
        self._watched: Watched | None = None
        if hub.arrivals is not None and isinstance(stream, SocketStream):
            self._watched = hub.arrivals.watch(stream.fileno(), self._take_arrived)
        self.machine = make(self._request_write)
        self.machine.look_again = self._look_again

    @property
    def peer_hub(self) -> str:
        """Id of the hub at the other end; empty before it has said so."""
        return "" if self.machine.peer is None else self.machine.peer.hub

    @property
    def address(self) -> str:
        """Address of the other end."""
        return self._stream.peer

    async def run(self) -> None:
        """Serve the link to its end. Raises nothing that one peer can cause."""
        reason = "the broker stops"
        try:
            with self._scope:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._look_at_the_time)
                        self._request_write()
                        await self._read_loop()
                        nursery.cancel_scope.cancel()
                except* LinkFault as faults:
                    self._fault = str(faults.exceptions[0])
                except* (OSError, trio.ClosedResourceError) as errors:
                    self._fault = f"connection lost: {_first(errors)}"
                except* Exception as errors:  # noqa: BLE001 - an outermost shell
                    self._fault = "the broker made a mistake with this link"
                    self._hub.contain(_first(errors))
            reason = self._fault or self.machine.goodbye or "the peer has closed the link"
        finally:
            if self._watched is not None:
                self._watched.close()
            self._stream.close()
            self.machine.end(reason)
            self._ended(self, reason)

    def end(self, reason: str) -> None:
        """End the link at once, for this reason."""
        self.machine.is_hung_up = True
        if self._fault is None:
            self._fault = reason
        self._scope.cancel()

    def abandon(self) -> None:
        """Close the stream when trio has ended already."""
        self._stream.abandon()

    async def part(self, reason: str) -> None:
        """Say goodbye, give the peer a moment to read it, and end."""
        self.machine.part(reason)
        with trio.move_on_after(GOODBYE_SECONDS, shield=True):
            try:
                while (self.machine.has_output or self._rest) and not self.machine.has_ended:
                    self._write()
                    if self._draining:
                        await trio.sleep(GOODBYE_SECONDS)  # another task writes the rest
            except (OSError, trio.ClosedResourceError):
                pass  # the peer has gone: nobody is left to be told
        self.end(reason)

    # ------------------------------------------------------------------ in

    async def _read_loop(self) -> None:
        while True:
            data = self._stream.read(READ_BYTES)
            if data is None:
                if self._watched is not None:
                    await self._watched.wait()
                else:
                    await self._stream.wait_readable()
                continue
            if not data:
                return
            self._hub.turn_with(partial(self._receive, data))
            await trio.lowlevel.checkpoint()

    def _take_arrived(self) -> bool:
        data = self._stream.read(READ_BYTES)
        if data is None:
            return True
        if not data:
            return False
        self._receive(data)
        return True

    def _receive(self, data: bytes) -> None:
        machine = self.machine
        if self._stream.peer_has_ended:
            machine.is_hung_up = True
        machine.receive(data)
        if not self._was_open and machine.state is LinkState.OPEN:
            self._was_open = True
            self._opened(self)

    # ------------------------------------------------------------------ out

    def _request_write(self) -> None:
        self._hub.at_turn_end(self._write_at_turn_end)

    def _write_at_turn_end(self) -> None:
        try:
            self._write()
        except (OSError, trio.ClosedResourceError) as error:
            self.end(f"connection lost: {error}")

    def _write(self) -> None:
        """Write until nothing is left, or the kernel is full."""
        while True:
            pieces = self._rest or _joined(self.machine.gather())
            if not pieces:
                return
            self._rest = pieces
            taken = self._stream.write(pieces)
            self._rest = _behind(pieces, taken)
            if self._rest:
                if not self._draining:
                    self._draining = True
                    self._spawn(self._drain)
                return

    async def _drain(self) -> None:
        try:
            while self._rest and not self.machine.has_ended:
                await self._stream.wait_writable()
                if not self.machine.has_ended:
                    self._draining_write()
        except (OSError, trio.ClosedResourceError) as error:
            self.end(f"connection lost: {error}")
        finally:
            self._draining = False

    def _draining_write(self) -> None:
        pieces = self._rest
        taken = self._stream.write(pieces)
        self._rest = _behind(pieces, taken)
        if not self._rest:
            self._write()

    # ------------------------------------------------------------------ time

    async def _look_at_the_time(self) -> None:
        deadline = trio.current_time() + HANDSHAKE_SECONDS
        while True:
            if self.machine.state >= LinkState.OPEN:
                seconds = self.machine.look()
            else:
                seconds = deadline - trio.current_time()
                if seconds <= 0:
                    raise LinkFault(f"the peer has not proved who it is within {HANDSHAKE_SECONDS:g} seconds")
            with trio.CancelScope() as self._sleeping:
                await trio.sleep(max(seconds, 0.01))

    def _look_again(self) -> None:
        self._sleeping.cancel()


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    error: Exception | BaseExceptionGroup[Exception] = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _joined(pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Join small neighbours, so that a write has few pieces."""
    if not pieces:
        return pieces
    made: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for piece in pieces:
        if len(piece) < 8192:
            small.append(piece)
            continue
        if small:
            made.append(b"".join(small))
            small = []
        made.append(piece)
    if small:
        made.append(b"".join(small))
    return made


def _behind(pieces: list[bytes | memoryview], taken_bytes: int) -> list[bytes | memoryview]:
    """Return the pieces without their first `taken_bytes`."""
    for place, piece in enumerate(pieces):
        if taken_bytes < len(piece):
            return [memoryview(piece)[taken_bytes:], *pieces[place + 1 :]] if taken_bytes else pieces[place:]
        taken_bytes -= len(piece)
    return []
