"""Work is linear in the bytes, whatever the chunking. Counted in bytes that were searched or copied, never in
seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import SupportsIndex

import pytest

from sluiceway.protocols.stomp.frames import AckRun, SendRun
from sluiceway.protocols.stomp.receive_buffer import ReceiveBuffer
from tests.protocols.stomp.connections import connected


class CountedBytes(bytes):
    """Bytes that count how far they are searched."""

    searched_bytes = 0

    def find(  # type: ignore[override]
        self, what: bytes, start: SupportsIndex = 0, end: SupportsIndex | None = None
    ) -> int:
        stop = len(self) if end is None else min(int(end), len(self))
        at = super().find(what, start, stop)
        CountedBytes.searched_bytes += (at if at >= 0 else stop) - int(start)
        return at


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all joins of pieces."""
    sizes: list[int] = []
    take: Callable[[ReceiveBuffer, bytes], bytes] = ReceiveBuffer.take

    def counting(receive_buffer: ReceiveBuffer, last: bytes) -> bytes:
        whole = take(receive_buffer, last)
        sizes.append(len(whole))
        return whole

    monkeypatch.setattr(ReceiveBuffer, "take", counting)
    return sizes


@pytest.mark.parametrize("length", [b"content-length:4194304\n", b""])
@pytest.mark.parametrize("receipt", [b"receipt:r\n", b""])
def test_a_large_body_in_small_chunks_is_joined_once(joined: list[int], length: bytes, receipt: bytes) -> None:
    machine = connected()
    body = b"x" * 4_194_304
    data = b"SEND\ndestination:/queue/a\n" + length + receipt + b"\n" + body + b"\0"
    CountedBytes.searched_bytes = 0
    events = []
    for at in range(0, len(data), 1024):
        events += machine.receive_data(CountedBytes(data[at : at + 1024]))
    (run,) = events
    assert isinstance(run, SendRun)
    assert run.wires[0].endswith(body + b"\0")
    assert sum(joined) <= len(data) + 10_000
    assert CountedBytes.searched_bytes <= len(data) + 10_000


def test_pieces_of_one_byte_do_not_become_an_object_each() -> None:
    """Or a slow writer would make us hold fifty times what it sent."""
    receive_buffer = ReceiveBuffer()
    for _ in range(100_000):
        receive_buffer.add(b"x")
    assert len(receive_buffer._pieces) + len(receive_buffer._small) < 1000
    assert receive_buffer.size_bytes == 100_000
    assert receive_buffer.take(b"y") == b"x" * 100_000 + b"y"
    assert receive_buffer.size_bytes == 0


FRAMES: dict[str, Callable[[int], bytes]] = {
    "one head": lambda n: b"SEND\ndestination:/queue/a\ncontent-length:4\n\nbody\0",
    "no content-length": lambda n: b"SEND\ndestination:/queue/a\n\nbody\0",
    "receipts": lambda n: b"SEND\ndestination:/queue/a\nreceipt:r-%d\ncontent-length:4\n\nbody\0" % n,
    "odd receipts": lambda n: b"SEND\ndestination:/queue/a\nreceipt:r %d\n\nbody\0" % n,
    "CR LF": lambda n: b"SEND\r\ndestination:/queue/%d\r\n\r\nbody\0" % (n % 7),
    "unique heads": lambda n: b"SEND\ndestination:/queue/a\nx:%d\n\nbody\0" % n,
    "alternating with blank lines": lambda n: b"SEND\ndestination:/queue/%d\n\na\n\nb\r\n\r\n\0" % (n % 2),
    "acks": lambda n: b"ACK\nid:%d\n\n\0" % n,
    "acks in CR LF": lambda n: b"ACK\r\nid:%d\r\n\r\n\0" % n,
    "acks and sends": lambda n: (b"ACK\nid:%d\n\n\0" % n) if n % 2 else b"SEND\ndestination:/queue/a\n\nbody\0",
    "subscribes": lambda n: b"SUBSCRIBE\nid:%d\ndestination:/queue/a\n\n\0" % n,
}


@pytest.mark.parametrize("in_steps", [False, True], ids=["at once", "in steps"])
@pytest.mark.parametrize("shape", FRAMES)
def test_a_thousand_frames_in_one_chunk_are_searched_once(joined: list[int], shape: str, in_steps: bool) -> None:
    """A few looks at every byte (blank line in two forms, receipt, NUL), not one per frame that is in the buffer."""
    data = CountedBytes(b"".join(FRAMES[shape](n) for n in range(1000)))
    machine = connected()
    CountedBytes.searched_bytes = 0
    events = list(machine.receive_in_steps(data)) if in_steps else machine.receive_data(data)
    counts = [
        len(event.wires) if isinstance(event, SendRun) else len(event.tokens) if isinstance(event, AckRun) else 1
        for event in events
    ]
    assert sum(counts) == 1000
    assert CountedBytes.searched_bytes <= 6 * len(data)
    assert sum(joined) == 0


@pytest.mark.parametrize("shape", FRAMES)
@pytest.mark.parametrize("chunk_bytes", [1, 10, 100])
def test_frames_in_small_chunks_are_joined_a_bounded_number_of_times(
    joined: list[int], shape: str, chunk_bytes: int
) -> None:
    data = b"".join(FRAMES[shape](n) for n in range(300))
    machine = connected()
    for at in range(0, len(data), chunk_bytes):
        machine.receive_data(data[at : at + chunk_bytes])
    assert machine.pending_bytes == 0
    assert sum(joined) <= 3 * len(data)


@pytest.mark.parametrize("length", [b"content-length:65536\n", b""])
@pytest.mark.parametrize("receipt", [b"receipt:r\n", b""])
def test_frames_that_fill_a_read_are_cut_out_of_it_and_nothing_else(
    joined: list[int], length: bytes, receipt: bytes
) -> None:
    """However many steps a read is worked on in: a large frame is no work, and is not copied to be cut."""
    frame = b"SEND\ndestination:/queue/a\n" + length + receipt + b"\n" + b"x" * 65_536 + b"\0"
    events = list(connected().receive_in_steps(frame * 8))
    (run,) = events
    assert isinstance(run, SendRun)
    assert len(run.wires) == 8
    assert joined == []
