"""What a link promises to those who read and write over it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluiceway.client.address import Address
from sluiceway.client.errors import ConnectionLostError, RefusedError
from sluiceway.client.link import Link
from sluiceway.embedded import EmbeddedBroker


@contextmanager
def unread() -> Iterator[Address]:
    """A peer that says CONNECTED and reads nothing from then on."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _address = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"CONNECTED\nversion:1.2\n\n\0")
                ended.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address("127.0.0.1", listener.getsockname()[1])
        finally:
            ended.set()
            thread.join()


def test_a_broker_that_reads_nothing_for_too_long_is_lost() -> None:
    with unread() as address:
        link = Link(address, beats=False, stalled_seconds=0.2)
        link.open()
        with pytest.raises(ConnectionLostError, match="silent for too long"):
            link.write(bytes(64 << 20))
        assert link.ended
        link.cut()


def test_a_broker_may_take_its_time_to_read_unless_told_otherwise() -> None:
    with unread() as address:
        link = Link(address, beats=False)
        link.open()
        found: list[ConnectionLostError] = []

        def write() -> None:
            try:
                link.write(bytes(64 << 20))
            except ConnectionLostError as error:
                found.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        link.cut()
        writer.join(10)
        assert len(found) == 1


@pytest.mark.timeout(30)
def test_answers_that_pile_up_while_it_writes_are_read() -> None:
    """A broker stops reading a client that does not take its answers: both would wait for each other for ever."""
    with EmbeddedBroker() as broker, broker.connect() as link:
        subscribed = link.subscribe("/queue/echo")
        for number in range(20_000):
            link.send("/queue/echo", b"%d" % number, receipt=True)
        arrived = []
        while len(arrived) < 20_000:
            frame = link.next_message(10)
            assert frame is not None
            assert frame.headers["subscription"] == subscribed
            arrived.append(int(frame.body))
        assert arrived == list(range(20_000))
        link.wait_receipts()
        assert link.receipts_pending_count == 0


def test_the_last_words_of_a_broker_reach_a_client_that_writes() -> None:
    """The ERROR came while the client waited until it could write on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _address = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"CONNECTED\nversion:1.2\n\n\0ERROR\nmessage:the shop is closed\n\n\0")
                peer.shutdown(socket.SHUT_WR)
                ended.wait(30)

        ended = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            link = Link(Address("127.0.0.1", listener.getsockname()[1]), beats=False)
            link.open()
            with pytest.raises(RefusedError, match="the shop is closed"):
                link.write(bytes(64 << 20))
            link.cut()
        finally:
            ended.set()
            thread.join()
