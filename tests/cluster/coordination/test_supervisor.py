"""The coordination service of one host for real: processes that are killed, a file that keeps epochs, bad peers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from sluiceway.cli import serve
from sluiceway.cluster.coordination import journal, port
from sluiceway.cluster.coordination.journal import Journal, JournalError
from sluiceway.cluster.coordination.messages import LENGTH, MessageError, MessageReader, framed
from sluiceway.cluster.coordination.supervisor import SocketInUseError, SupervisorService
from sluiceway.dispatcher import Dispatcher
from sluiceway.store.compare_and_set import MetadataFailedError, Version, Versioned
from tests.architecture.sources import ROOT
from tests.cluster.coordination.worlds import DEADLINE_SECONDS, Member, SupervisedWorld

HUB = """
import sys, trio
from pathlib import Path
from sluiceway.cluster.coordination.client import ServiceClient
from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.supervised import SupervisedChannel
from sluiceway.dispatcher import Dispatcher

class Events:
    def session_began(self, session): print("began", flush=True)
    def session_uncertain(self): pass
    def session_certain(self): pass
    def session_ended(self, reason): print("ended", flush=True)
    def hubs_changed(self, hubs): pass

async def main():
    dispatcher = Dispatcher()
    channel = SupervisedChannel(Path(sys.argv[1]))
    client = ServiceClient(channel, dispatcher, trio.current_time, session_seconds=float(sys.argv[2]))
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        nursery.start_soon(channel.run, client)
        client.start(Hub("process"), Events())

trio.run(main)
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SupervisedWorld]:
    dispatcher = Dispatcher()
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        made = SupervisedWorld(tmp_path, nursery, dispatcher)
        await made.start_service()
        yield made
        nursery.cancel_scope.cancel()


async def answered(world: SupervisedWorld, hub: Member) -> None:
    """Wait until the service that was started anew answers the hub."""
    while isinstance(await hub.ask(hub.coordination.children, "/x"), MetadataFailedError):
        await world.seconds(0.01)


class Process:
    """A hub in a process of its own."""

    def __init__(self, world: SupervisedWorld, session_seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HUB, str(world.socket), str(session_seconds)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )

    async def line(self) -> str:
        assert self.process.stdout is not None
        with trio.fail_after(DEADLINE_SECONDS):
            return (await trio.to_thread.run_sync(self.process.stdout.readline)).strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def test_a_process_that_is_killed_is_gone_at_once(world: SupervisedWorld) -> None:
    other = await world.start("hub-2")
    hub = Process(world, 60.0)
    try:
        assert await hub.line() == "began"
        await world.until(lambda: "process" in other.heard.hubs)
        hub.process.kill()
        await world.until(lambda: "process" not in other.heard.hubs)
    finally:
        hub.end()


async def test_a_process_that_is_stopped_loses_its_session_in_time_and_notices_when_it_wakes(
    world: SupervisedWorld,
) -> None:
    other = await world.start("hub-2")
    hub = Process(world, 1.0)
    try:
        assert await hub.line() == "began"
        await world.until(lambda: "process" in other.heard.hubs)
        hub.process.send_signal(signal.SIGSTOP)
        await world.until(lambda: "process" not in other.heard.hubs)
        hub.process.send_signal(signal.SIGCONT)
        assert await hub.line() == "ended"
        assert await hub.line() == "began"
        await world.until(lambda: "process" in other.heard.hubs)
    finally:
        hub.end()


async def test_records_outlive_the_supervisor_and_versions_go_on(world: SupervisedWorld, tmp_path: Path) -> None:
    hub = await world.start("hub-1")
    first = await hub.ask(hub.coordination.write, "/shards/1", b"epoch 1", Version.NEW)
    second = await hub.ask(hub.coordination.write, "/shards/1", b"epoch 2", first)
    await hub.ask(hub.coordination.write, "/gone", b"", Version.NEW)
    await hub.ask(hub.coordination.delete, "/gone", Version.ANY)
    await world.stop_service()
    with (tmp_path / "records").open("ab") as file:
        file.write(b'{"path":"/shards/1","val')  # torn by a crash
    await world.start_service()
    await answered(world, hub)
    assert hub.heard.sessions == [hub.coordination.session]
    assert await hub.ask(hub.coordination.read, "/shards/1") == Versioned(b"epoch 2", second)
    assert await hub.ask(hub.coordination.read, "/gone") is None
    late = await world.start("hub-2")
    assert late.coordination.session not in hub.heard.sessions, "names of sessions are not used again"


async def test_a_stopped_hub_keeps_its_session_over_a_restart_of_the_supervisor(world: SupervisedWorld) -> None:
    """Nobody can tell whether it sleeps: its time counts anew."""
    other = await world.start("hub-2")
    hub = Process(world, 60.0)
    try:
        assert await hub.line() == "began"
        hub.process.send_signal(signal.SIGSTOP)
        await world.stop_service()
        await world.start_service()
        await answered(world, other)
        assert "process" in await other.ask(other.coordination.read_hubs)
    finally:
        hub.end()


async def test_the_file_is_written_anew_when_it_has_grown(
    world: SupervisedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.service is not None
    monkeypatch.setattr(journal, "REWRITE_BYTES_MIN", 5_000)
    monkeypatch.setattr(world.service._journal, "_rewrite_at_bytes", 5_000)
    hub = await world.start("hub-1")
    await hub.ask(hub.coordination.write, "/a", b"0", Version.NEW)
    for number in range(40):
        await hub.ask(hub.coordination.write, "/a", bytes(500) + bytes([number]), Version.ANY)
    assert (tmp_path / "records").stat().st_size < 12_000
    await world.stop_service()
    await world.start_service()
    await answered(world, hub)
    found = await hub.ask(hub.coordination.read, "/a")
    assert found == Versioned(bytes(500) + bytes([39]), Version(40))


async def test_a_second_supervisor_in_the_folder_is_refused_in_words(world: SupervisedWorld, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is used by another supervisor"):
        SupervisorService(tmp_path / "other.socket", tmp_path / "records")
    second = SupervisorService(world.socket, tmp_path / "other")
    with pytest.raises(SocketInUseError, match="another supervisor serves at"):
        await second.run()


async def test_a_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "hubs.socket").touch()
    async with trio.open_nursery() as nursery:
        await nursery.start(SupervisorService(tmp_path / "hubs.socket", tmp_path / "records").run)
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "hubs.socket").exists()


def test_a_damaged_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "records").write_bytes(b'{"run":1}\n{"path":\n{"run":2}\n')
    with pytest.raises(JournalError, match=r"line 2 of .*records is damaged .* Epochs of shards may not go back"):
        SupervisorService(tmp_path / "s", tmp_path / "records")


def test_one_journal_holds_its_lock_until_it_is_closed(tmp_path: Path) -> None:
    one = Journal(tmp_path / "records")
    one.rewrite([{"run": 1}])
    one.close()
    two = Journal(tmp_path / "records")
    assert two.read() == [{"run": 1}]
    two.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(5) + b"hello",
        LENGTH.pack(2) + b"[]",
        framed({"op": "beat"}),
        framed({"n": 1, "op": "fly"}),
        framed({"n": 1, "op": "open", "hub": {"name": "../x"}, "session_seconds": 1, "session": "", "ended": ""}),
        framed({"n": 1, "op": "open", "hub": 3, "session_seconds": 1, "session": "", "ended": ""}),
    ],
)
async def test_a_peer_that_is_no_hub_is_cut_off_and_no_hub_is_hurt(world: SupervisedWorld, data: bytes) -> None:
    hub = await world.start("hub-1")
    stream = await trio.open_unix_socket(str(world.socket))
    async with stream:
        with trio.fail_after(DEADLINE_SECONDS):
            await stream.send_all(data)
            answered = b""
            while b"error" not in answered and (received := await stream.receive_some(1_000)):
                answered += received
    assert b'"error":"session-ended"' in answered or not answered
    assert await hub.ask(hub.coordination.read, "/a") is None
    assert hub.heard.events == ["began"]


def test_messages_come_whole_however_they_are_cut() -> None:
    messages = [{"n": 1, "op": "beat"}, {"event": "hubs"}, {"n": 2, "value": "x" * 3_000}]
    data = b"".join(map(framed, messages))
    for size in (1, 3, 1_000, len(data)):
        reader = MessageReader()
        found = [message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])]
        assert found == messages
    with pytest.raises(MessageError, match="at most"):
        MessageReader().feed(b"\xff\xff\xff\xff")


def test_a_supervisor_starts_no_more_hubs_than_the_service_takes() -> None:
    assert serve.HUBS_MAX == port.HUBS_MAX
