"""A broker in a thread, for programs that know nothing of trio."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import structlog
import trio

from sluiceway import Broker, EmbeddedBroker
from sluiceway.config.errors import ConfigError
from tests.interop.raw_client import RawClient, frame
from tests.sluiceway.broker_process import environment


def test_it_serves_between_start_and_stop() -> None:
    with EmbeddedBroker() as broker:
        assert broker.url == f"stomp://{broker.host}:{broker.port}"
        assert broker.host == "127.0.0.1"
        with RawClient((broker.host, broker.port)) as client:
            client.connect()
            client.send(frame("SEND", b"x", destination="/queue/q", receipt="r"))
            client.expect("RECEIPT")
            assert [d["name"] for d in broker.report()["destinations"]] == ["/queue/q"]
            assert broker.call(lambda inner: len(inner.connections)) == 1
    with pytest.raises(ConnectionRefusedError):
        RawClient((broker.host, broker.port))


@pytest.mark.parametrize("wrong", ["127.0.0.1:61613", 61613, Path("broker.toml"), {"listeners": []}])
@pytest.mark.parametrize("taker", [EmbeddedBroker, Broker])
def test_what_is_no_configuration_is_refused_with_the_remedy(taker: type, wrong: object) -> None:
    """When it is made, not when a thread of its own reads it."""
    with pytest.raises(
        TypeError, match=rf"^config of {taker.__name__} must be a Config, got .*Listener\(address="
    ) as caught:
        taker(wrong)
    assert repr(wrong) in str(caught.value)


def test_many_starts_and_stops_leak_neither_threads_nor_files() -> None:
    """A test suite starts hundreds."""
    with EmbeddedBroker():
        pass  # what is made once and kept
    gc.collect()
    threads = lasting_threads()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(50):
        with EmbeddedBroker() as broker, RawClient((broker.host, broker.port)) as client:
            client.connect()
            client.send(frame("DISCONNECT", receipt="bye"))
            client.expect("RECEIPT")
    assert lasting_threads() <= threads
    if files:
        assert len(os.listdir("/proc/self/fd")) <= files


def lasting_threads() -> set[threading.Thread]:
    """Without those that trio keeps for later jobs: they end when they had none for ten seconds."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("Trio thread ")}


def test_two_at_a_time_are_two() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        assert one.port != other.port
        with RawClient((one.host, one.port)) as client:
            client.connect()
            client.send(frame("SEND", b"x", destination="/queue/q", receipt="r"))
            client.expect("RECEIPT")
        assert other.report()["destinations"] == []


def test_stop_may_be_called_twice_and_before_start() -> None:
    broker = EmbeddedBroker()
    broker.stop()
    broker.start()
    broker.stop()
    broker.stop()


def test_one_object_starts_once() -> None:
    with EmbeddedBroker() as broker, pytest.raises(RuntimeError, match="make a new one"):
        broker.start()


def test_a_hub_of_several_machines_is_refused_with_the_remedy() -> None:
    """It would serve alone, without a word."""
    hub = {"coordination": "127.0.0.1:1/sluiceway", "secret_file": "secret", "hub": "hub-1"}
    store = {"engine": "postgresql", "url": "postgresql://127.0.0.1/sluiceway"}
    with pytest.raises(ConfigError, match="start `sluiceway serve` with this configuration"):
        EmbeddedBroker(cluster=hub, store=store).start()


def test_before_start_there_is_nothing_to_ask() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = EmbeddedBroker().port


def test_after_stop_questions_say_that_it_is_over() -> None:
    broker = EmbeddedBroker().start()
    broker.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        broker.report()


def test_a_broker_that_dies_of_its_own_fault_says_so_at_the_end() -> None:
    """Stopping raises what it died of; it is not swallowed because the caller was done anyway."""

    def break_it(_inner: object) -> None:
        trio.lowlevel.spawn_system_task(_raise)

    broker = EmbeddedBroker().start()
    broker.call(break_it)
    with pytest.raises(trio.TrioInternalError):
        broker.stop()


async def _raise() -> None:
    raise ZeroDivisionError


def test_it_may_be_used_from_several_threads() -> None:
    """Like any test suite with parallel fixtures would."""
    with EmbeddedBroker() as broker:
        depths: list[int] = []

        def ask() -> None:
            for _ in range(20):
                depths.append(len(broker.report()["destinations"]))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert depths == [0] * 80


def test_it_starts_while_the_caller_runs_trio() -> None:
    """The broker's loop is its own; the caller's is blocked for the milliseconds of the start only."""

    async def main() -> None:
        with EmbeddedBroker() as broker:
            stream = await trio.open_tcp_stream(broker.host, broker.port)
            async with stream:
                await stream.send_all(frame("CONNECT", accept_version="1.2", host="h"))
                with trio.fail_after(20):
                    assert (await stream.receive_some()).startswith(b"CONNECTED\n")

    trio.run(main)


PROGRAM = """
import sys
{before}
from sluiceway import Broker, EmbeddedBroker
from tests.interop.raw_client import RawClient, frame
with EmbeddedBroker() as broker:
    for wire in (b"", b"NONSENSE\\n\\n\\0"):
        with RawClient((broker.host, broker.port)) as client:
            client.connect()
            client.send(wire + frame("DISCONNECT", receipt="bye"))
            client.frames_to_end()
"""


def run_program(folder: Path, before: str = "") -> tuple[str, str]:
    """What such a program writes to standard output and standard error."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout, ended.stderr


def test_it_is_quiet_in_a_program_that_did_not_ask_for_its_log(tmp_path: Path) -> None:
    """Only what went wrong is said, on standard error; standard output is the program's."""
    out, err = run_program(tmp_path)
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "unknown command 'NONSENSE'" in err
    assert list(tmp_path.iterdir()) == [], "no file is left behind"


def test_it_logs_the_way_the_program_set_structlog_up(tmp_path: Path) -> None:
    """All of it, in the program's form."""
    setup = "import structlog; structlog.configure(processors=[structlog.processors.JSONRenderer()])"
    out, err = run_program(tmp_path, setup)
    assert '"event": "broker ready"' in out
    assert out.count('"event": "connection ended"') == 2
    assert err == ""


def test_it_leaves_the_programs_logging_alone() -> None:
    structlog.reset_defaults()  # whatever a test before this one did
    with EmbeddedBroker():
        assert not structlog.is_configured()
