"""What a supervisor hears, and that one who is deaf is no harm."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluiceway.supervision import Supervisor, notification
from tests.sluiceway.broker_process import BrokerProcess


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    """A supervisor's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        yield listening


def test_each_word_is_a_datagram_of_its_own(ear: socket.socket) -> None:
    supervisor = Supervisor(ear.getsockname(), monotonic_us=lambda: 42)
    supervisor.ready("2 listeners")
    supervisor.reloading()
    supervisor.alive()
    supervisor.stopping()
    assert [ear.recv(1000) for _ in range(4)] == [
        b"READY=1\nSTATUS=2 listeners",
        b"RELOADING=1\nMONOTONIC_USEC=42",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=stopping",
    ]


def test_an_abstract_socket_is_written_with_an_at() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0sluiceway-test-supervision")
        listening.settimeout(5)
        Supervisor.of({"NOTIFY_SOCKET": "@sluiceway-test-supervision"}).alive()
        assert listening.recv(1000) == b"WATCHDOG=1"


def test_a_broker_tells_its_supervisor_all_its_life(
    ear: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready, alive, reloading and ready again, stopping: as `systemctl start`, `reload` and `stop` wait for it."""
    monkeypatch.setenv("NOTIFY_SOCKET", ear.getsockname())
    ear.settimeout(30)

    def heard(word: bytes) -> bytes:
        while True:
            said = ear.recv(1000)
            if said.startswith(word):
                return said

    with BrokerProcess(tmp_path) as broker:
        assert b"STATUS=stomp://127.0.0.1:" in heard(b"READY=1")
        heard(b"WATCHDOG=1")
        broker.process.send_signal(signal.SIGHUP)
        heard(b"RELOADING=1")
        heard(b"READY=1")
        broker.process.send_signal(signal.SIGTERM)
        heard(b"STOPPING=1")
        assert broker.process.wait(30) == 0


def test_without_a_supervisor_nothing_is_sent() -> None:
    Supervisor.of({}).ready()


def test_one_that_is_gone_is_no_harm(tmp_path: Path) -> None:
    supervisor = Supervisor(str(tmp_path / "nobody"))
    supervisor.ready()
    supervisor.alive()


def test_a_value_cannot_smuggle_a_line() -> None:
    assert notification(status="a\nREADY=1") == b"STATUS=a READY=1"
