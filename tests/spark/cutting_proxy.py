"""Between a client and a broker: cuts connections where a test wants it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


class CuttingProxy:
    """Forwards everything, but for the first connections, which it cuts."""

    def __init__(
        self, target: tuple[str, int], cuts: list[tuple[str, int]], *, at_first_cut: Callable[[], None] | None = None
    ) -> None:
        """`cuts`: for the first connections, one each: ("down", n) cuts after n bytes from the broker, ("up", n) after
        n bytes to it, ("answer", n) after the n-th byte from the client too, but only when the broker's next answer is
        on its way, which the client never sees. `at_first_cut` is called at the first one, before the client sees it.
        """
        self._target = target
        self._cuts = list(cuts)
        self._at_cuts = [at_first_cut] if at_first_cut is not None else []
        self.connections_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            self.connections_count += 1
            cut = self._cuts.pop(0) if self._cuts else ("", 0)
            try:
                server = socket.create_connection(self._target)
            except OSError:  # it is away
                client.close()
                continue
            shared = _Pair(client, server, cut, self._at_cuts)
            threading.Thread(target=shared.up, daemon=True).start()
            threading.Thread(target=shared.down, daemon=True).start()


class _Pair:
    def __init__(
        self, client: socket.socket, server: socket.socket, cut: tuple[str, int], at_cuts: list[Callable[[], None]]
    ) -> None:
        self._client = client
        self._server = server
        self._way, self._count = cut
        self._at_cuts = at_cuts
        self._sent = 0

    def up(self) -> None:
        """Client to broker."""
        self._pump(self._client, self._server, "up")

    def down(self) -> None:
        """Broker to client."""
        self._pump(self._server, self._client, "down")

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        done = 0
        try:
            while data := source.recv(65536):
                if way == "down" and self._way == "answer" and self._sent >= self._count:
                    break
                if way == self._way and done + len(data) >= self._count:
                    target.sendall(data[: self._count - done])
                    if self._at_cuts:
                        self._at_cuts.pop()()
                    break
                target.sendall(data)
                done += len(data)
                if way == "up":
                    self._sent = done
        except OSError:
            pass  # the other direction has cut it
        for each in (self._client, self._server):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself
            each.close()
