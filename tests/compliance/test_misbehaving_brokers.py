"""Brokers that hang, close at once, answer garbage or never stop: the kit ends in time, and leaves nothing open."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from sluiceway.compliance.registry import Check, Result, Unclear
from sluiceway.compliance.running import NoBrokerError, run, selected
from tests.compliance.conftest import settings

Behaviour = Callable[[socket.socket], None]


class Peer:
    """Does the same with each connection."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a connection was left open"
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._server.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._behaviour(connection)


def hang(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def close(connection: socket.socket) -> None:
    pass


def garbage(connection: socket.socket) -> None:
    connection.sendall(bytes(range(256)) * 20)
    hang(connection)


def endless(data: bytes) -> Behaviour:
    def behave(connection: socket.socket) -> None:
        while True:
            connection.sendall(data)

    return behave


@pytest.mark.parametrize("behaviour", [hang, close, garbage, endless(b"x" * 60_000), endless(b"\n" * 60_000)])
def test_no_session_is_an_error_of_the_run(behaviour: Behaviour) -> None:
    with Peer(behaviour) as peer, pytest.raises(NoBrokerError, match=r"1\.2: "):
        run(settings(peer.address, timeout_seconds=0.3), selected(["1.2"]))


def connected_then(behaviour: Behaviour) -> Behaviour:
    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"CONNECTED\nversion:1.2\nserver:odd\n\n\0")
        behaviour(connection)

    return behave


@pytest.mark.parametrize(
    "behaviour",
    [
        hang,
        close,
        garbage,
        endless(b"MESSAGE\n" + b"x" * 60_000),
        endless(b"MESSAGE\nmessage-id:1\nsubscription:1\ndestination:d\n\n\0" * 1000),
        endless(b"\n" * 60_000),
    ],
)
def test_every_check_ends_in_time(behaviour: Behaviour) -> None:
    checks = selected(["1.2"], only=["1.2/send/delivered", "1.2/receipt/send", "1.2/ack/individual", "1.2/limits/body"])
    with Peer(connected_then(behaviour)) as peer:
        report = run(settings(peer.address, timeout_seconds=0.2, check_seconds=2.0), checks)
    assert report.seconds < 40, "bounded, even on a busy machine"
    assert {each.result for each in report.outcomes} <= {Result.FAILED, Result.UNCLEAR, Result.PASSED}
    assert all(each.result is not Result.PASSED for each in report.outcomes if "limits" not in each.check.name)
    assert report.left, "what could not be cleaned is told"


def test_a_fault_of_a_check_ends_only_that_check(addresses: object) -> None:
    def wrong(_kit: object) -> None:
        raise ZeroDivisionError("oops")

    def late(_kit: object) -> None:
        raise Unclear("who knows")

    checks = [
        Check(f"1.2/x/{body.__name__}", "1.2", "SEND", selected()[0].level, "Do.", body) for body in (wrong, late)
    ]
    report = run(settings(addresses.plain), checks)  # type: ignore[attr-defined]
    assert [each.reason for each in report.outcomes] == [
        "the check itself failed: ZeroDivisionError: oops",
        "who knows",
    ]
