"""Connections for tests: a server that has been greeted, both sides joined together, and events taken apart into
single frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import (
    AckRun,
    Connect,
    Event,
    Fault,
    Frame,
    LargeSendEnd,
    LargeSendPiece,
    LargeSendStart,
    SendRun,
)
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ClientMachine, ServerMachine

VERSIONS: tuple[Version, ...] = ("1.0", "1.1", "1.2")

#: Small enough to be reached in a test, large enough for its ordinary frames.
TIGHT = StompLimits(
    header_count_max=8,
    header_line_bytes_max=100,
    header_block_bytes_max=400,
    body_bytes_max=500,
    connect_frame_bytes_max=300,
    large_body_bytes=30,
    large_body_bytes_max=700,
)


def greet(version: Version) -> bytes:
    """A CONNECT that leads to `version`."""
    return b"CONNECT\naccept-version:%s\nhost:localhost\n\n\0" % version.encode()


def connected(version: Version = "1.2", limits: StompLimits | None = None, *, stages: bool = False) -> ServerMachine:
    """A server machine behind its CONNECTED."""
    machine = ServerMachine(limits if limits is not None else StompLimits(), stages=stages)
    (connect,) = machine.receive_data(greet(version))
    assert isinstance(connect, Connect)
    machine.accept("session-1")
    assert machine.receive_data(b"") == []
    return machine


def events_of(chunks: Iterable[bytes], machine: ServerMachine) -> list[Event]:
    """All events of `chunks`; every CONNECT is accepted."""
    events: list[Event] = []
    for chunk in chunks:
        new = machine.receive_data(chunk)
        while new:
            events += new
            if not isinstance(new[-1], Connect):
                break
            machine.accept("session-1")
            new = machine.receive_data(b"")
    return events


def flat(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """Events as one tuple per frame, so that streams can be compared whatever runs and pieces they came in."""
    frames: list[tuple[object, ...]] = []
    pieces: list[bytes] = []
    start: LargeSendStart | None = None
    for event in events:
        if start is not None and not isinstance(event, LargeSendPiece):
            frames.append(
                (
                    "large SEND" if isinstance(event, LargeSendEnd) else "broken large SEND",
                    start.head.block,
                    b"".join(pieces),
                    start.receipt,
                    tuple(start.head.headers.items()),
                    start.head.transaction,
                )
            )
            start = None
            pieces = []
            if isinstance(event, LargeSendEnd):
                continue
            assert isinstance(event, Fault), "nothing comes between the pieces"
        if isinstance(event, SendRun):
            assert event.size_bytes == sum(map(len, event.wires))
            assert event.receipts is None or len(event.receipts) == len(event.wires)
            head = event.head
            receipts: Sequence[str | None] = event.receipts or [None] * len(event.wires)
            for wire, receipt in zip(event.wires, receipts, strict=True):
                assert wire.startswith(head.block + b"\n\n")
                assert wire.endswith(b"\0")
                frames.append(("SEND", wire, receipt, tuple(head.headers.items()), head.transaction, head.priority))
        elif isinstance(event, AckRun):
            frames += [("NACK" if event.nack else "ACK", token) for token in event.tokens]
        elif isinstance(event, Frame):
            frames.append(("frame", event.command, tuple(event.headers.items()), event.body))
        elif isinstance(event, Connect):
            frames.append(("connect", event.version, event.login, event.passcode, event.host, event.heart_beat))
        elif isinstance(event, LargeSendStart):
            start = event
        elif isinstance(event, LargeSendPiece):
            assert start is not None
            assert event.data
            pieces.append(event.data)
        else:
            assert isinstance(event, Fault)
            error = event.error
            frames.append(
                (
                    "fault",
                    error.code,
                    str(error),
                    error.detail,
                    error.receipt_id,
                    error.command,
                    tuple(error.headers.items()),
                )
            )
    if start is not None:
        frames.append(("unfinished large SEND", start.head.block, b"".join(pieces), start.receipt))
    return frames


def frames_of(data: bytes, version: Version = "1.2", limits: StompLimits | None = None) -> list[tuple[object, ...]]:
    """What a greeted server makes of `data`, frame by frame."""
    return flat(connected(version, limits).receive_data(data))


def fault_of(data: bytes, version: Version = "1.2", limits: StompLimits | None = None) -> Fault:
    """The fault that `data` ends in, behind a greeting. It must be the only event."""
    (fault,) = connected(version, limits).receive_data(data)
    assert isinstance(fault, Fault)
    return fault


class ConnectionPair:
    """A client and a server machine, joined: whatever one side writes, the other reads."""

    def __init__(
        self, version: Version, heart_beat: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    ) -> None:
        self.client = ClientMachine()
        self.server = ServerMachine(StompLimits())
        (connect,) = self.server.receive_data(
            self.client.connect("localhost", versions=(version,), heart_beat=heart_beat[0])
        )
        assert isinstance(connect, Connect)
        (answer,) = self.client.receive_data(self.server.accept("session-1", heart_beat=heart_beat[1]))
        assert isinstance(answer, Frame)
        self.connected = answer

    def to_server(self, command: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> list[Event]:
        """Send from the client; what the server makes of it."""
        return self.server.receive_data(self.client.send(command, headers, body))

    def to_client(self, data: bytes) -> list[Event]:
        """Write from the server; what the client makes of it."""
        return self.client.receive_data(data)
