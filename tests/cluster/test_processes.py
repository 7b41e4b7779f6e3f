"""The hubs of one host as processes: started, watched, restarted and stopped, played with small programs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from sluiceway.cluster import processes
from sluiceway.cluster.processes import (
    PAUSE_SECONDS_MAX,
    SOUND_SECONDS,
    HubCommand,
    HubProcess,
    HubProcesses,
    HubState,
    RestartPause,
    StartFailedError,
    private_folder,
)

TELL = """
import os, signal, socket, sys
reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def tell(text):
    reports.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
def ready():
    tell("READY=1\\nSTATUS=" + os.environ["HUB"])
"""
GOOD = TELL + "ready(); signal.pause()"
POLITE = TELL + "signal.signal(15, lambda *_: (tell('STOPPING=1'), sys.exit(0))); ready()\nwhile True: signal.pause()"
STUBBORN = TELL + "signal.signal(15, signal.SIG_IGN); ready()\nwhile True: signal.pause()"
REFUSES = "raise SystemExit(6)"

DEADLINE_SECONDS = 20


def command(number: int, program: str) -> HubCommand:
    return HubCommand(f"hub-{number}", [sys.executable, "-c", program], {"HUB": f"stomp://hub-{number}"})


@asynccontextmanager
async def running(*programs: str) -> AsyncIterator[HubProcesses]:
    """Hubs that run these programs, all of them ready. What is left at the end is killed."""
    with trio.fail_after(DEADLINE_SECONDS), private_folder() as folder:
        hubs = HubProcesses([command(number, each) for number, each in enumerate(programs, 1)], Path(folder))
        async with trio.open_nursery() as nursery:
            await nursery.start(hubs.run)
            yield hubs
            for hub in hubs.hubs:
                hub.kill()


async def until(hub: HubProcess, state: HubState) -> None:
    while hub.state is not state:
        await hub.changed.wait()


async def test_hubs_are_ready_when_they_say_so_and_end_when_they_are_told() -> None:
    async with running(POLITE, POLITE) as hubs:
        assert [hub.state for hub in hubs.hubs] == [HubState.READY] * 2
        assert [hub.status for hub in hubs.hubs] == ["stomp://hub-1", "stomp://hub-2"]
        hubs.stop()
        for hub in hubs.hubs:
            await until(hub, HubState.ENDED)
            assert hub.restarts_count == 0


async def test_a_hub_that_is_killed_is_started_again_and_the_other_one_stays() -> None:
    async with running(GOOD, GOOD) as hubs:
        first, second = hubs.hubs
        killed, other = first.pid, second.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await until(first, HubState.WAITING)
        await until(first, HubState.READY)
        assert first.pid not in (None, killed)
        assert second.pid == other
        assert (first.restarts_count, second.restarts_count) == (1, 0)


async def test_a_hub_that_cannot_start_ends_all_of_them_with_its_exit_code() -> None:
    with trio.fail_after(DEADLINE_SECONDS), private_folder() as folder:
        hubs = HubProcesses([command(1, GOOD), command(2, REFUSES)], Path(folder))
        with pytest.raises(StartFailedError) as raised:
            await hubs.run()
    assert hubs.hubs[0].pid is None
    assert (raised.value.hub, raised.value.exit_code) == ("hub-2", 6)
    assert "standard error" in str(raised.value)


async def test_hubs_are_restarted_one_after_another() -> None:
    async with running(POLITE, POLITE) as hubs:
        before = [hub.pid for hub in hubs.hubs]
        moves: list[tuple[str, HubState]] = []
        async with trio.open_nursery() as nursery:

            async def follow(hub: HubProcess) -> None:
                while True:
                    await hub.changed.wait()
                    moves.append((hub.name, hub.state))

            for hub in hubs.hubs:
                nursery.start_soon(follow, hub)
            await trio.testing.wait_all_tasks_blocked()
            assert await hubs.restart_in_turn()
            nursery.cancel_scope.cancel()
        assert [hub.state for hub in hubs.hubs] == [HubState.READY] * 2
        assert not {hub.pid for hub in hubs.hubs} & set(before)
        assert moves.index(("hub-1", HubState.READY)) < moves.index(("hub-2", HubState.STARTING))


async def test_a_rolling_restart_waits_for_a_hub_that_is_about_to_start_again() -> None:
    async with running(POLITE, POLITE) as hubs:
        first, second = hubs.hubs
        other = second.pid
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(first, HubState.WAITING)
        assert await hubs.restart_in_turn()
        assert (first.state, second.state) == (HubState.READY, HubState.READY)
        assert second.pid != other


async def test_a_rolling_restart_leaves_the_others_alone_when_one_does_not_come_back(tmp_path: Path) -> None:
    once = tmp_path / "once"
    program = TELL + f"import pathlib; here = pathlib.Path({str(once)!r})\nif here.exists(): sys.exit(2)\n"
    program += "here.touch(); signal.signal(15, lambda *_: sys.exit(0)); ready()\nwhile True: signal.pause()"
    async with running(program, GOOD) as hubs:
        other = hubs.hubs[1].pid
        assert not await hubs.restart_in_turn()
        assert hubs.hubs[1].pid == other


async def test_a_hub_that_ends_in_order_without_being_asked_is_started_again() -> None:
    """Its sockets stay open in the supervisor: clients would connect to nobody."""
    async with running(TELL + "signal.signal(10, lambda *_: sys.exit(0)); ready(); signal.pause()", GOOD) as hubs:
        drained = hubs.hubs[0]
        assert drained.pid is not None
        os.kill(drained.pid, signal.SIGUSR1)
        await until(drained, HubState.WAITING)
        await until(drained, HubState.READY)


async def test_a_supervisor_that_was_paused_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENCE_SECONDS", 0.4)
    beating = TELL + "import time; ready()\nwhile True: tell('WATCHDOG=1'); time.sleep(0.02)"
    async with running(beating) as hubs:
        (hub,) = hubs.hubs
        pid = hub.pid
        for _ in range(3):
            time.sleep(0.7)  # noqa: ASYNC251 - the whole supervisor stands still
            await trio.sleep(0.15)
        assert (hub.pid, hub.restarts_count) == (pid, 0)


async def test_a_hub_that_hangs_while_it_stops_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.2)
    program = TELL + "signal.signal(15, lambda *_: tell('STOPPING=1')); ready()\nwhile True: signal.pause()"
    async with running(program) as hubs:
        (hub,) = hubs.hubs
        hubs.stop()
        await until(hub, HubState.ENDED)


async def test_a_hub_that_is_silent_for_long_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENCE_SECONDS", 0.2)
    async with running(GOOD) as hubs:
        (hub,) = hubs.hubs
        hung = hub.pid
        await until(hub, HubState.WAITING)
        await until(hub, HubState.READY)
        assert hub.pid != hung


async def test_a_stubborn_hub_can_be_killed() -> None:
    async with running(STUBBORN) as hubs:
        (hub,) = hubs.hubs
        hubs.stop()
        hub.kill()
        await until(hub, HubState.ENDED)


def test_pauses_double_and_begin_anew_once_a_hub_was_sound() -> None:
    pause = RestartPause()
    assert [pause.ended(0.0) for _ in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert [pause.ended(0.0) for _ in range(10)][-1] == PAUSE_SECONDS_MAX
    pause.ready(100.0)
    assert pause.ended(100.0 + SOUND_SECONDS - 1) == PAUSE_SECONDS_MAX
    pause.ready(300.0)
    assert pause.ended(300.0 + SOUND_SECONDS) == 0.1
