"""A TCP proxy in front of a hub's links, which cuts them, refuses new ones, or lets them stall half-open."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

CHUNK_BYTES = 1 << 16


class Proxy:
    """Listens on a port of its own, and passes all on to a target."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._is_refusing = False
        self.cuts_count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _where = self._listening.accept()
            except OSError:
                return
            if self._is_refusing:
                accepted.close()
                continue
            try:
                dialled = socket.create_connection(self._target, timeout=5)
            except OSError:
                accepted.close()
                continue
            dialled.settimeout(None)
            with self._lock:
                self._sockets |= {accepted, dialled}
            for one, other in ((accepted, dialled), (dialled, accepted)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._flows.wait()
                sink.sendall(data)
        self._end(source, sink)

    def _end(self, *ended: socket.socket) -> None:
        with self._lock:
            self._sockets -= set(ended)
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self) -> None:
        """Cut all connections, and refuse new ones until `heal`."""
        self._is_refusing = True
        self.cuts_count += 1
        self._end(*self._sockets)

    def stall(self) -> None:
        """Pass nothing on until `heal`: connections stay, half-open."""
        self.cuts_count += 1
        self._flows.clear()

    def heal(self) -> None:
        """Serve as before."""
        self._is_refusing = False
        self._flows.set()

    def close(self) -> None:
        """End all."""
        self.heal()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._end(*self._sockets)
