"""Worlds that the contract of Coordination holds in: a service of one kind, hubs that use it, and time that passes.

A world on ZooKeeper is in zookeeper_world.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Protocol

import attrs
import trio

from sluiceway.cluster.coordination.client import ServiceClient
from sluiceway.cluster.coordination.port import Coordination, Hub
from sluiceway.cluster.coordination.simulated import Faults, HubTime, SimulatedChannel, SimulatedService, VirtualTime
from sluiceway.cluster.coordination.supervised import SupervisedChannel
from sluiceway.cluster.coordination.supervisor import SupervisorService
from sluiceway.dispatcher import Dispatcher

DEADLINE_SECONDS = 20.0


@attrs.define
class Heard:
    """Events of one hub, in order."""

    events: list[str] = attrs.field(factory=list)
    sessions: list[str] = attrs.field(factory=list)
    hubs: Mapping[str, Hub] = attrs.field(factory=dict)
    reasons: list[str] = attrs.field(factory=list)

    def session_began(self, session: str) -> None:
        self.events.append("began")
        self.sessions.append(session)

    def session_uncertain(self) -> None:
        self.events.append("uncertain")

    def session_certain(self) -> None:
        self.events.append("certain")

    def session_ended(self, reason: str) -> None:
        self.events.append("ended")
        self.reasons.append(reason)

    def hubs_changed(self, hubs: Mapping[str, Hub]) -> None:
        self.hubs = hubs


@attrs.define
class Member:
    """One hub in a world."""

    coordination: Coordination
    heard: Heard
    world: World
    clock: Callable[[], float]

    async def ask(self, operation: Callable[..., None], *arguments: Any) -> Any:
        """Return the answer, which never comes from inside the call."""
        answers: list[Any] = []
        operation(*arguments, answers.append)
        assert not answers, "answers come later"
        await self.world.until(lambda: bool(answers))
        assert len(answers) == 1
        return answers[0]

    @property
    def is_certain(self) -> bool:
        return self.clock() < self.coordination.certain_until_seconds


class World(Protocol):
    """A service, and hubs."""

    session_seconds: float

    async def start(self, name: str, **fields: Any) -> Member:
        """Start a hub; returns when it has a session."""

    def start_soon(self, name: str, **fields: Any) -> Member: ...

    async def until(self, reached: Callable[[], bool]) -> None:
        """Let time pass until something is so; fails if that takes too long."""

    async def seconds(self, seconds: float) -> None:
        """Let time pass."""

    async def expire(self, member: Member) -> None:
        """End a session under its hub."""

    async def stop_service(self) -> None: ...
    async def start_service(self) -> None: ...


class SimulatedWorld:
    """On virtual time."""

    session_seconds = 10.0

    def __init__(self, faults: Faults | None = None, *, seed: int = 1) -> None:
        self.time = VirtualTime()
        self.service = SimulatedService(self.time, Random(seed), faults or Faults(delay_seconds_max=0.01))
        self.channels: dict[str, SimulatedChannel] = {}
        self.times: dict[str, HubTime] = {}

    async def start(self, name: str, **fields: Any) -> Member:
        return await started(self, name, fields)

    def start_soon(self, name: str, *, offset_seconds: float = 3600.0, rate: float = 1.0, **fields: Any) -> Member:
        hub_time = self.times[name] = HubTime(self.time, offset_seconds=offset_seconds, rate=rate)
        channel = self.channels[name] = self.service.channel(hub_time, session_seconds=self.session_seconds)
        heard = Heard()
        channel.client.start(Hub(name, **fields), heard)
        return Member(channel.client, heard, self, hub_time.clock)

    async def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if reached():
                return
            self.time.run(0.01)
        raise AssertionError("it did not come to pass")

    async def seconds(self, seconds: float) -> None:
        self.time.run(seconds)

    async def expire(self, member: Member) -> None:
        session = member.coordination.session
        assert session is not None
        self.service.service.end(session, "the session has expired")

    async def stop_service(self) -> None:
        self.service.stop()

    async def start_service(self) -> None:
        self.service.start()


class SupervisedWorld:
    """Behind a real Unix socket, in one process."""

    session_seconds = 0.9

    def __init__(self, folder: Path, nursery: trio.Nursery, dispatcher: Dispatcher) -> None:
        self._folder = folder
        self._nursery = nursery
        self._dispatcher = dispatcher
        self._scope: trio.CancelScope | None = None
        self._ended = trio.Event()
        self.service: SupervisorService | None = None

    @property
    def socket(self) -> Path:
        return self._folder / "hubs.socket"

    async def start(self, name: str, **fields: Any) -> Member:
        return await started(self, name, fields)

    def start_soon(self, name: str, **fields: Any) -> Member:
        channel = SupervisedChannel(self.socket)
        client = ServiceClient(channel, self._dispatcher, trio.current_time, session_seconds=self.session_seconds)
        self._nursery.start_soon(channel.run, client)
        heard = Heard()
        client.start(Hub(name, **fields), heard)
        return Member(client, heard, self, trio.current_time)

    async def until(self, reached: Callable[[], bool]) -> None:
        await until(reached)

    async def seconds(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def expire(self, member: Member) -> None:
        session = member.coordination.session
        assert session is not None and self.service is not None
        self.service._service.end(session, "the session has expired")

    async def stop_service(self) -> None:
        assert self._scope is not None
        self._scope.cancel()
        await self._ended.wait()

    async def start_service(self) -> None:
        self._ended = trio.Event()
        await self._nursery.start(self._serve)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scope:
            self.service = SupervisorService(self.socket, self._folder / "records")
            await self.service.run(task_status)
        self._ended.set()


async def until(reached: Callable[[], bool], deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Look often, in real time."""
    with trio.fail_after(deadline_seconds):
        while not reached():  # noqa: ASYNC110 - threads and processes that have no event to wait for
            await trio.sleep(0.005)


async def started(world: World, name: str, fields: Mapping[str, Any]) -> Member:
    member = world.start_soon(name, **fields)
    await world.until(lambda: member.coordination.session is not None)
    return member
