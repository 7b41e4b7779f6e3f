"""A proxy between the kit and our broker breaks one thing at a time, and the checks of that thing notice."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from sluiceway.compliance.registry import Result
from sluiceway.compliance.running import run, selected
from tests.compliance.conftest import Addresses, settings

Change = Callable[[bytes], bytes]
"""A frame, with its NUL, or what stands between frames, to what takes its place."""


def sub(pattern: bytes, replacement: bytes, command: bytes = b"") -> Change:
    """Replace a pattern in frames of this command."""

    def change(piece: bytes) -> bytes:
        return re.sub(pattern, replacement, piece, flags=re.DOTALL) if piece.startswith(command) else piece

    return change


def doubled(command: bytes) -> Change:
    return lambda piece: piece * 2 if piece.startswith(command) else piece


def cut_at_nul(piece: bytes) -> bytes:
    """A server that ends bodies at the first NUL."""
    head, blank, body = piece.partition(b"\n\n")
    if not piece.startswith(b"MESSAGE"):
        return piece
    return re.sub(rb"\ncontent-length:\d+", b"", head) + blank + body.partition(b"\0")[0] + b"\0"


def keep(piece: bytes) -> bytes:
    return piece


class Proxy:
    """Changes frames on their way to the broker and back. `keeps_open`: the broker's end of a connection is hidden."""

    def __init__(self, port: int, *, up: Change = keep, down: Change = keep, keeps_open: bool = False) -> None:
        self._port, self._up, self._down, self._keeps_open = port, up, down, keeps_open
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as broker:
            back = threading.Thread(target=self._pump, args=(broker, client, self._down, self._keeps_open))
            back.start()
            self._pump(client, broker, self._up, False)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket, change: Change, keeps_open: bool) -> None:
        buffer = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                pieces, buffer = _pieces(buffer + data)
                sink.sendall(b"".join(map(change, pieces)))
        with suppress(OSError):
            if not keeps_open:
                sink.shutdown(socket.SHUT_RDWR)


def _pieces(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole frames and line ends between them; and what is not whole yet."""
    pieces: list[bytes] = []
    while data:
        if data[:1] == b"\n":
            piece = data[:1]
        else:
            head, blank, _rest = data.partition(b"\n\n")
            if not blank:
                break
            length = re.search(rb"\ncontent-length:(\d+)", head)
            end = len(head) + 2 + int(length[1]) if length else data.find(b"\0", len(head))
            if not 0 <= end < len(data):
                break
            piece = data[: end + 1]
        pieces.append(piece)
        data = data[len(piece) :]
    return pieces, data


@contextmanager
def proxy(addresses: Addresses, **options: object) -> Iterator[str]:
    made = Proxy(int(addresses.plain.rpartition(":")[2]), **options)  # type: ignore[arg-type]
    try:
        yield made.address
    finally:
        made.close()


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        ({"down": sub(rb"receipt-id:", b"receipt-id:x", b"RECEIPT")}, ["receipt/send", "receipt/id"]),
        ({"down": doubled(b"RECEIPT")}, ["receipt/only-if-asked"]),
        ({"down": sub(rb"\n\n", b"\n\nbody", b"RECEIPT")}, ["receipt/without-body", "framing/own-frames"]),
        ({"down": sub(rb"\nsubscription:[^\n]*", b"", b"MESSAGE")}, ["message/subscription"]),
        ({"down": sub(rb"\nmessage-id:[^\n]*", b"\nmessage-id:same", b"MESSAGE")}, ["message/message-id"]),
        ({"down": sub(rb"\nack:[^\n]*", b"", b"MESSAGE")}, ["message/ack-client", "ack/individual"]),
        ({"down": sub(rb"\ncontent-length:[^\n]*", b"", b"MESSAGE")}, ["message/content-length"]),
        ({"down": sub(rb"\nx-second:[^\n]*", b"", b"MESSAGE")}, ["send/user-headers"]),
        ({"down": sub(rb"\\c", b":", b"MESSAGE")}, ["encoding/colon"]),
        ({"down": sub(rb"\\r", b"", b"MESSAGE")}, ["encoding/carriage-return"]),
        ({"down": cut_at_nul}, ["framing/content-length", "framing/all-bytes"]),
        ({"down": sub(rb"^ERROR.*", b"")}, ["send/destination-required", "connect/no-common-version"]),
        ({"down": sub(rb"\nreceipt-id:[^\n]*", b"", b"ERROR")}, ["receipt/in-error"]),
        ({"down": sub(rb"\nserver:[^\n]*", b"\nserver:/1.0", b"CONNECTED")}, ["connect/server-header"]),
        ({"down": sub(rb"\nheart-beat:[^\n]*", b"\nheart-beat:often", b"CONNECTED")}, ["heart-beat/header"]),
        ({"down": sub(rb"^\n", b"")}, ["heart-beat/sends"]),
        ({"keeps_open": True}, ["error/closes", "subscribe/id-required"]),
        ({"up": sub(rb"accept-version:1.0,1.1,1.2", b"accept-version:1.0", b"CONNECT")}, ["connect/highest-version"]),
        ({"up": sub(rb"^STOMP", b"DANCE")}, ["connect/stomp-command"]),
        ({"up": sub(rb"\nx: *", b"\nx:", b"SEND")}, ["encoding/spaces"]),
        ({"up": sub(rb"\nx:World\nx:Hello", b"\nx:Hello", b"SEND")}, ["framing/repeated-header"]),
        ({"up": sub(rb"\nack:client\n", b"\nack:client-individual\n", b"SUBSCRIBE")}, ["ack/client-cumulative"]),
        ({"up": sub(rb"\nack:client-individual\n", b"\nack:client\n", b"SUBSCRIBE")}, ["ack/individual"]),
        ({"up": sub(rb"\nack:client[^\n]*", b"\nack:auto", b"SUBSCRIBE")}, ["message/ack-client"]),
        ({"up": sub(rb"^COMMIT", b"ABORT")}, ["transaction/commit", "transaction/ack-committed"]),
        ({"up": sub(rb"^ABORT", b"COMMIT")}, ["transaction/abort", "transaction/ack-aborted", "transaction/two"]),
        ({"up": sub(rb"\ntransaction:[^\n]*", b"", b"SEND")}, ["transaction/commit", "transaction/abort-at-close"]),
        ({"up": sub(rb"^UNSUBSCRIBE", b"BEGIN\ntransaction:u")}, ["unsubscribe/stops"]),
        ({"up": sub(rb"\\t", b"t", b"SEND")}, ["encoding/undefined-escape"]),
    ],
)
def test_what_is_broken_is_noticed(addresses: Addresses, broken: dict[str, object], noticed: list[str]) -> None:
    with proxy(addresses, **broken) as address:
        report = run(
            settings(address, timeout_seconds=1.0), selected(["1.2"], only=[f"1.2/{name}" for name in noticed])
        )
    found = {each.check.name: each.result for each in report.outcomes}
    for name in noticed:
        assert found[f"1.2/{name}"] is Result.FAILED, found


def test_a_proxy_that_breaks_nothing_goes_unnoticed(addresses: Addresses) -> None:
    with proxy(addresses) as address:
        report = run(settings(address), selected(["1.2"], only=["1.2/ack", "1.2/receipt", "1.2/transaction/a"]))
    assert not report.count(Result.FAILED)
