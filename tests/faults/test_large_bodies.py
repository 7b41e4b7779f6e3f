"""Large bodies and a broker process that dies, or whose disk takes no more. Others hardly notice."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.bystander import Bystander
from tests.faults.large_transfer import Wire, checksum_of, patterned
from tests.sluiceway.broker_process import BrokerProcess

MIB = 1024 * 1024
PATIENCE_SECONDS = 20.0


def files(folder: Path) -> list[int]:
    """The sizes of the files of bodies of a broker that runs in `folder`."""
    return sorted(path.stat().st_size for path in (folder / "sluiceway-data" / "large").glob("?" * 16))


def until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def nothing() -> None:
    return None


def begin_large(wire: Wire, sent_bytes: int) -> None:
    """Send so much of a body of 64 MiB."""
    wire.send(b"SEND\ndestination:/queue/half\npersistent:true\ncontent-length:%d\n\n" % (64 * MIB))
    for piece in patterned(sent_bytes):
        wire.send(piece)


def test_a_killed_broker_has_what_it_gave_a_receipt_for_and_nothing_else(tmp_path: Path) -> None:
    """A whole body is read again, byte for byte, by the next run; half a one, and one that was in memory only, go."""
    with BrokerProcess(tmp_path) as broker, Wire(broker.address) as sender, Wire(broker.address) as half:
        sender.send_large(b"destination:/queue/q\npersistent:true\n", 5 * MIB, between=nothing)
        sender.send_large(b"destination:/queue/volatile\n", 3 * MIB, between=nothing)
        begin_large(half, 8 * MIB)
        until(lambda: len(files(tmp_path)) == 3)
        broker.signal(signal.SIGKILL)
        broker.wait()
    with BrokerProcess(tmp_path) as broker:
        assert files(tmp_path) == [5 * MIB]
        with Wire(broker.address) as receiver:
            receiver.send(b"SUBSCRIBE\nid:s\ndestination:/queue/q\n\n\0")
            assert receiver.receive_large(between=nothing) == (5 * MIB, checksum_of(5 * MIB))
            until(lambda: files(tmp_path) == [])


def test_a_stop_in_order_leaves_only_what_is_stored(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with Wire(broker.address) as sender, Wire(broker.address) as half:
            sender.send_large(b"destination:/queue/q\npersistent:true\n", 5 * MIB, between=nothing)
            sender.send_large(b"destination:/queue/volatile\n", 3 * MIB, between=nothing)
            begin_large(half, 8 * MIB)
            until(lambda: len(files(tmp_path)) == 3)
            broker.signal(signal.SIGTERM)
            assert broker.wait() == 0
        assert files(tmp_path) == [5 * MIB]


def test_a_disk_that_takes_no_more_costs_the_sender_of_that_body(tmp_path: Path) -> None:
    """It gets an ERROR, its space is free again, and everybody else is served all the while."""
    with BrokerProcess(tmp_path) as broker, Bystander(broker.address) as bystander:
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (8 * MIB, 8 * MIB))
        with Wire(broker.address) as sender:
            try:
                begin_large(sender, 64 * MIB)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it is told while it still sends
            assert sender.head().startswith(b"ERROR\nmessage:the broker can't store the body of this SEND")
        until(lambda: files(tmp_path) == [])
        bystander.is_served()
        assert "large message" in broker.log
        assert "sluiceway-data/large/0000000000000001" in broker.log
        with Wire(broker.address) as sender, Wire(broker.address) as receiver:
            sender.send_large(b"destination:/queue/q\n", 5 * MIB, between=nothing)
            receiver.send(b"SUBSCRIBE\nid:s\ndestination:/queue/q\n\n\0")
            assert receiver.receive_large(between=nothing) == (5 * MIB, checksum_of(5 * MIB))


def test_others_are_served_while_large_bodies_come_and_go(tmp_path: Path) -> None:
    """One stalls in the middle of sending, one in the middle of receiving."""
    with BrokerProcess(tmp_path) as broker, Bystander(broker.address) as bystander:
        with Wire(broker.address) as sender, Wire(broker.address) as half, Wire(broker.address) as receiver:
            begin_large(half, 8 * MIB)
            sender.send_large(b"destination:/queue/q\n", 64 * MIB, between=nothing)
            receiver.send(b"SUBSCRIBE\nid:s\ndestination:/queue/q\n\n\0")
            receiver.head()
            bystander.is_served(50)
        until(lambda: files(tmp_path) == [64 * MIB])
