"""A STOMP peer that does what a test tells it, in a thread: enough to test a client against, and no broker at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

Answer = Callable[[str, Mapping[str, str], bytes], bytes | None]
"""Command, headers and body of a frame to the bytes that answer it; None: the usual (CONNECTED to CONNECT, else
nothing).
"""


def frame(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}content-length:{len(body)}\n\n".encode() + body + b"\0"


class ScriptedBroker:
    """Accepts one connection after the other; `answer` says what to send for each frame. Receipts are added to that."""

    def __init__(self, answer: Answer = lambda command, headers, body: None) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.frames: list[tuple[str, dict[str, str], bytes]] = []
        self.url = f"stomp://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> ScriptedBroker:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing a listening socket does not wake up accept() everywhere; shutting it down does.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()

    def received(self, command: str) -> list[tuple[dict[str, str], bytes]]:
        return [(headers, body) for name, headers, body in self.frames if name == command]

    def _serve(self) -> None:
        while True:
            try:
                connection, _address = self._server.accept()
            except OSError:
                return  # closed by __exit__
            with connection, connection.makefile("rb") as stream:
                self._talk(connection, stream)

    def _talk(self, connection: socket.socket, stream: object) -> None:
        while (received := _read_frame(stream)) is not None:
            self.frames.append(received)
            command, headers, _body = received
            out = self._answer(*received)
            if out is None:
                connected = command in ("CONNECT", "STOMP")
                out = frame("CONNECTED", {"version": "1.2", "heart-beat": "0,0"}) if connected else b""
            if "receipt" in headers and not out.startswith(b"ERROR"):
                out += frame("RECEIPT", {"receipt-id": headers["receipt"]})
            connection.sendall(out)
            if command == "DISCONNECT" or out.startswith(b"ERROR"):
                return


def _read_frame(stream: object) -> tuple[str, dict[str, str], bytes] | None:
    read = stream.readline  # type: ignore[attr-defined]
    try:
        command = read()
        while command == b"\n":
            command = read()
        if not command:
            return None
        headers: dict[str, str] = {}
        while (line := read().rstrip(b"\n")) != b"":
            name, _colon, value = line.decode().partition(":")
            headers.setdefault(name, value)
        body = stream.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
        assert stream.read(1) == b"\0"  # type: ignore[attr-defined]
    except OSError:
        return None
    return command.rstrip(b"\n").decode(), headers, body
