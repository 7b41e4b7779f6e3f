"""The loopback without a broker: one process sends from a mapped file, another one receives the bytes and drops them.

With the same sizes of reads as the readers of batches, so that the share that a broker reaches is of something that it
could reach.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable

from perf.load.board import LOAD, MODE, QUIT, Board
from perf.load.plans import WorkerReport
from perf.logs.plans import RawCopyPlan

_STEP_BYTES = 1024 * 1024
_TIMEOUT_SECONDS = 0.2


class RawCopy:
    """One side of it. `run` returns at QUIT or when `must_end()`; then `close`."""

    def __init__(self, plan: RawCopyPlan, board: Board, must_end: Callable[[], bool]) -> None:
        self._plan = plan
        self._numbers = board.numbers
        self._must_end = must_end
        self._sock: socket.socket | None = None
        self._listener: socket.socket | None = None
        if not plan.sends:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self._listener.settimeout(_TIMEOUT_SECONDS)
            self._numbers[plan.port_slot] = self._listener.getsockname()[1]

    def run(self) -> WorkerReport:
        """Copy while the board says LOAD."""
        try:
            if self._plan.sends:
                self._send()
            else:
                self._receive()
        except ConnectionError as error:
            if self._numbers[MODE] != QUIT:
                return WorkerReport((f"the raw copy: {error}",))
        return WorkerReport()

    def _goes_on(self) -> bool:
        return bool(self._numbers[MODE] != QUIT) and not self._must_end()

    def _send(self) -> None:
        with self._plan.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        view = memoryview(mapped)
        self._sock = socket.create_connection(("127.0.0.1", self._numbers[self._plan.port_slot]))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.settimeout(_TIMEOUT_SECONDS)
        place = 0
        while self._goes_on():
            if self._numbers[MODE] != LOAD:
                continue
            try:
                place += self._sock.send(view[place : place + _STEP_BYTES])
            except TimeoutError:
                continue
            if place >= len(view):
                place = 0

    def _receive(self) -> None:
        assert self._listener is not None
        while self._goes_on():
            try:
                self._sock, _ = self._listener.accept()
                break
            except TimeoutError:
                continue
        buffer = memoryview(bytearray(_STEP_BYTES))
        count_bytes = 0
        while self._sock is not None and self._goes_on():
            length = self._sock.recv_into(buffer)
            if not length:
                return
            count_bytes += length
            self._numbers[self._plan.bytes_slot] = count_bytes

    def close(self) -> None:
        """Close the socket."""
        for sock in (self._sock, self._listener):
            if sock is not None:
                sock.close()
