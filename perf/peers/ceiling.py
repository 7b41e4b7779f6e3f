"""Minimal stand-in for a broker: shows how fast the load generator can be, and its costs.

The stand-in renames SEND to MESSAGE in each block of frames that it reads and passes the block on to the subscribers of
the sender's destination. It knows no acknowledgement, no receipts for messages, no limits and no back pressure, so only
scenarios with ack `auto` on it mean anything, with one consumer for a queue. Its figures bound what the generator can
show of a broker.
"""

from __future__ import annotations

import selectors
import socket
import sys
from pathlib import Path

from perf.load.plans import Endpoint
from perf.peers.daemon import LOOPBACK, Daemon, DaemonPeer, free_port

_CHECKOUT = Path(__file__).resolve().parents[2]


class Ceiling(DaemonPeer):
    """The relay below as a peer."""

    name = "ceiling"
    durable = False

    def install(self) -> None:
        """Do nothing."""

    def start(self, folder: Path, cores: frozenset[int] | None = None) -> Endpoint:
        """Start it; see `Peer`."""
        endpoint = Endpoint(LOOPBACK, free_port())
        program = f"from perf.peers.ceiling import relay; relay({endpoint.port})"
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(_CHECKOUT)!r}); {program}"]
        return self._await(Daemon(self.name, command, folder=folder, cores=cores), endpoint)


def _header(frame: bytes, name: bytes) -> bytes:
    return frame.partition(b"\n" + name + b":")[2].partition(b"\n")[0]


def relay(port: int) -> None:
    """Serve until killed."""
    subscribers: dict[bytes, list[socket.socket]] = {}
    destinations: dict[socket.socket, bytes] = {}
    left_over: dict[socket.socket, bytes] = {}
    selector = selectors.DefaultSelector()
    with socket.create_server((LOOPBACK, port), backlog=1000) as listener:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    accepted, _ = listener.accept()
                    selector.register(accepted, selectors.EVENT_READ)
                    left_over[accepted] = b""
                    continue
                client = key.fileobj
                assert isinstance(client, socket.socket)
                try:
                    received = left_over[client] + client.recv(1 << 18)
                    if received == left_over[client]:
                        raise ConnectionResetError
                    end = received.rfind(b"\0") + 1
                    left_over[client] = received[end:]
                    block = received[:end]
                    if block.startswith(b"SEND\n"):
                        destination = destinations.get(client) or _header(block, b"destination")
                        destinations[client] = destination
                        passed_on = block.replace(b"SEND\n", b"MESSAGE\nsubscription:s0\nmessage-id:1\n")
                        for subscriber in subscribers.get(destination, ()):
                            subscriber.sendall(passed_on)
                    elif block:
                        _answer(client, block, subscribers)
                except (ConnectionError, BrokenPipeError):
                    selector.unregister(client)
                    client.close()
                    for readers in subscribers.values():
                        if client in readers:
                            readers.remove(client)


def _answer(client: socket.socket, block: bytes, subscribers: dict[bytes, list[socket.socket]]) -> None:
    for frame in block.split(b"\0"):
        if frame.startswith(b"CONNECT\n"):
            client.sendall(b"CONNECTED\nversion:1.2\nserver:ceiling/1\n\n\0")
        elif frame.startswith(b"SUBSCRIBE\n"):
            subscribers.setdefault(_header(frame, b"destination"), []).append(client)
            client.sendall(b"RECEIPT\nreceipt-id:" + _header(frame, b"receipt") + b"\n\n\0")
