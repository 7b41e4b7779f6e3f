"""Whole hubs whose shards move: messages, clients and faults from one seed, on an engine that all hubs share.

Hubs join a simulated coordination service as those of `sluiceway.cluster.machines` join ZooKeeper, and open their
shards in a simulated database (shared_engine.py). What happens when is drawn from the seed (`MovingPlan`): hubs crash,
lose their power, stand still and wake up, lose their session, the service, the database, each other; they come, go, are
drained and restarted one after the other; shards are moved by operators. Beside that the network of clients and links
has the faults of whole.py, and clocks go wrong.

Laws, beside those of whole.py:
    one owner    of two hubs never both may confirm for a shard; an epoch has one owner; the database has no later one
                 than the records say
    marked       of all deliveries of a message one at most is unmarked
    no mistake   no hub meets an exception that it did not expect
    an owner     when the faults end each shard is open at one hub
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, Self

import attrs
import trio

from sluiceway.cluster.coordination.port import Coordination
from sluiceway.cluster.coordination.simulated import Faults as ServiceFaults
from sluiceway.cluster.coordination.simulated import HubTime, SimulatedChannel, SimulatedService
from sluiceway.cluster.links import Seat
from sluiceway.cluster.membership import Loop, Membership, Spawn
from sluiceway.cluster.owner_records import OwnerRecord, shard_path
from sluiceway.cluster.ownership import NotMovableError
from sluiceway.dispatcher import Dispatcher
from sluiceway.embedded import embedded_config
from sluiceway.protocols.streams import ByteStream
from sluiceway.simulation import SimulatedBroker
from sluiceway.simulation.network import Connection
from tests.cluster.shared_engine import LawBrokenError, SharedDatabase
from tests.cluster.stopped import Standstill
from tests.cluster.whole import SECRET, ClusterSimulation, History, Link, Plan, network_faults

SESSION_SECONDS: Final = 4.0
LOOK_SECONDS: Final = 0.25
STEPS_SECONDS: Final = 45.0
"""Time in which all steps happen."""
HUBS_MAX: Final = 5
CLUSTER: Final = "5eed5eed"
MISTAKES: Final = ("internal error", "the store's queue is broken")
"""Beginnings of what a hub logs about an exception that it did not expect."""


class TrioTime:
    """Time of the service: that of trio."""

    def __init__(self) -> None:
        self.loop = Dispatcher()

    def clock(self) -> float:
        """Return the time in seconds."""
        return trio.current_time()

    def call_later(self, delay_seconds: float, callback: Callable[[], None]) -> Any:
        """Call back after a delay."""
        return self.loop.call_later(max(delay_seconds, 0.0), callback)


class Drifting:
    """A coordination whose clock goes wrong, for a hub whose other parts use that of the simulation."""

    def __init__(self, coordination: Coordination, time: HubTime) -> None:
        self._coordination = coordination
        self._time = time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordination, name)

    @property
    def certain_until_seconds(self) -> float:
        """Do `Coordination.certain_until_seconds`."""
        return self._time.true_seconds(self._coordination.certain_until_seconds)


class HubMachine(SimulatedBroker):
    """A hub. It can stand still, too."""

    time: HubTime
    channel: SimulatedChannel

    def __init__(self, cluster: MovingSimulation, name: str, *arguments: Any, **options: Any) -> None:
        super().__init__(name, *arguments, **options)
        self._cluster = cluster
        self._task: trio.lowlevel.Task | None = None
        self._line: list[Callable[[], None]] = []
        """Connections that came while it stood still."""
        self.is_gone = False
        """Whether it has left the cluster."""

    @property
    def is_still(self) -> bool:
        """Whether the process stands still."""
        return self.is_up and self.time.paused

    @property
    def member(self) -> Any:
        """Part of the running broker in the cluster."""
        return self.broker.member

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        self._task = trio.lowlevel.current_task()
        self.is_gone = False
        try:
            await super()._live(task_status)
        finally:
            self.time.crash()  # no timer of an earlier run comes into the next one
            self._line.clear()

    def pause(self) -> None:
        """Have the process stand still."""
        assert self._task is not None, "it runs"
        self._tell("stands still")
        self.time.pause()
        self._cluster.standstill.stop(self._task)

    def wake(self, *, timers_first: bool = False) -> None:
        """Have the process go on. Does nothing if it does."""
        if not self.is_still:
            return
        assert self._task is not None, "it runs"
        self._tell("wakes up")
        if timers_first:
            self.time.resume()
        self._cluster.standstill.go_on(self._task)
        if not timers_first:
            self.time.resume()
        line, self._line = self._line, []
        for take in line:
            take()

    def take(self, take: Callable[[], None]) -> None:
        """Have the process do something that comes from outside: now, or when it wakes up."""
        if self.is_still:
            self._line.append(take)
        else:
            take()

    def accept(self, connection: Connection) -> None:
        """Do `SimulatedBroker.accept`."""
        if not self.is_up:
            raise ConnectionRefusedError(f"{self.name} is down")
        self.hold(connection, connection.broker_end)
        broker = self.broker
        self.take(lambda: broker.connect_stream(connection.broker_end))

    async def crash(self, *, power_cut: bool) -> None:
        """Do `SimulatedBroker.crash`. The service hears of a process that ends, and not of a machine without power."""
        if not self.is_up:
            return
        assert self._task is not None, "it runs"
        self.time.crash()
        self._cluster.database.end_hub(self.name)
        if power_cut:
            self.channel.hold()
        else:
            self.channel.cut("the process ended")
        self._cluster.standstill.go_on(self._task)
        await super().crash(power_cut=power_cut)


@attrs.frozen
class Step:
    """One thing that happens."""

    at_seconds: float
    what: str
    hub: str
    number: int
    seconds: float


KINDS: Final = (
    "crash", "power-cut", "pause", "expire", "hold-service", "cut-service", "stop-service", "part", "hold-link",
    "lose-engine", "engine-away", "engine-restart", "join", "leave", "drain", "undrain", "move", "restart", "rolling",
)  # fmt: skip


@attrs.frozen
class MovingPlan:
    """Shape of one history."""

    plan: Plan
    shards_count: int
    service: ServiceFaults
    ends_with_connection: bool
    engine_fails: float
    expected: bool
    """Whether hubs know how many there are at the beginning."""
    drift: float
    consumers_count: int
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int) -> MovingPlan:
        """Return the plan of a seed."""
        random = Random(f"moving cluster {seed}")
        hubs = tuple(f"hub{number}" for number in range(1, random.randint(2, 4) + 1))
        faults = network_faults(
            random, cut=(0.0, 0.0, 0.005), half_cut=(0.0, 0.0, 0.002), split=(0.0, 0.1), late=(0.0, 0.01, 0.2)
        )
        steps = sorted(
            (
                Step(
                    round(random.uniform(0, STEPS_SECONDS), 2),
                    random.choice(KINDS),
                    f"hub{random.randint(1, HUBS_MAX)}",
                    random.randint(0, 60),
                    round(random.choice((random.uniform(0, 1), random.uniform(0, 3 * SESSION_SECONDS))), 2),
                )
                for _ in range(random.choice((4, 8, 16)))
            ),
            key=lambda step: step.at_seconds,
        )
        return cls(
            Plan(
                hubs,
                tuple(f"/queue/{random.randint(0, 999)}" for _ in range(random.randint(1, 4))),
                faults,
                {"destinations": {"/queue/>": {"count_max": random.choice((3, 20, 1000))}}},
                random.randint(1, 3),
                random.choice((60, 120)),
            ),
            shards_count=random.choice((2, 4, 8)),
            service=ServiceFaults(
                delay_seconds_max=random.choice((0.0, 0.01, 0.2)),
                stale_chance=random.choice((0.0, 0.3, 0.9)),
                watch_lost_chance=random.choice((0.0, 0.1, 0.7)),
                watch_late_seconds_max=random.choice((0.0, 1.0, 5.0)),
            ),
            ends_with_connection=random.random() < 0.3,
            engine_fails=random.choice((0.0, 0.0, 0.01)),
            expected=random.random() < 0.5,
            drift=random.choice((0.0, 0.04)),
            consumers_count=random.randint(1, 2),
            steps=tuple(steps),
        )


class MovingSimulation(ClusterSimulation):
    """A simulation with hubs whose shards move."""

    def __init__(self, plan: MovingPlan, seed: int) -> None:
        super().__init__(hubs=plan.plan.hubs, seed=seed, faults=plan.plan.faults)
        self.plan = plan
        self.session_seconds = SESSION_SECONDS
        self._make_machine = partial(HubMachine, self)
        self.standstill = Standstill()
        self.time = TrioTime()
        self.engine_chance = self.chance("the database")
        self.database = SharedDatabase(self.engine_chance.random(), self._failure)
        self.service = SimulatedService(
            self.time,
            Random(f"service {seed}"),
            attrs.evolve(plan.service),
            ends_with_connection=plan.ends_with_connection,
        )
        self.parted: dict[frozenset[str], int] = {}
        """Pairs of hubs between which nothing passes."""
        self.forced: dict[str, str] = {}
        """Sessions that were ended by force, by hub, until the hub has heard."""
        self.mistakes: list[str] = []
        self._drifts = Random(f"drift {seed}")

    async def __aenter__(self) -> Self:
        self.standstill.__enter__()
        await super().__aenter__()
        await self._nursery.start(self.time.loop.run)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        try:
            for name in self.machines:
                self.hub(name).wake()
            await super().__aexit__(*raised)
        finally:
            self.standstill.__exit__(*raised)

    def hub(self, name: str) -> HubMachine:
        """Return a hub by name."""
        machine = self.machines[name]
        assert isinstance(machine, HubMachine)
        return machine

    def _warned(self, event: str, values: dict[str, Any]) -> None:
        super()._warned(event, values)
        if event.startswith(MISTAKES):
            self.mistakes.append(f"{event}: {values.get('error')}")

    def _failure(self, _hub: str) -> str | None:
        if not self.engine_chance.strikes("engine-write", 0.0 if self._is_calm else self.plan.engine_fails):
            return None
        return "write" if self.engine_chance.number(0, 1) else "answer"

    # ------------------------------------------------------------------ hubs

    async def start(self, **tables: Any) -> None:
        """Start all hubs, with these settings."""
        self._tables = {**tables, "store": {"engine": "none"}}  # none of its own
        for hub in tuple(self.hubs):
            await self.join(hub)

    async def join(self, hub: str) -> None:
        """Start a new hub."""
        if hub not in self.hubs:
            self.hubs.append(hub)
        await self._add(hub, embedded_config(self._tables), partial(self._options, hub))

    async def _add(self, name: str, *arguments: Any, **options: Any) -> SimulatedBroker:
        machine = await super()._add(name, *arguments, **options)
        self.machines[name] = machine
        return machine

    def _options(self, hub: str) -> dict[str, Any]:
        """Return what each start of a hub has of its own: a clock, a connection to the service, a place."""
        machine = self._brokers[hub]
        assert isinstance(machine, HubMachine)
        drift = self.plan.drift
        time = machine.time = HubTime(
            self.time,
            offset_seconds=self._drifts.uniform(-3600, 3600),
            rate=self._drifts.uniform(1 - drift, 1 + drift),
        )
        channel = machine.channel = self.service.channel(time, session_seconds=self.session_seconds)

        def coordination(_loop: Loop, _clock: Callable[[], float], _spawn: Spawn) -> Coordination:
            return Drifting(channel.client, time)  # type: ignore[return-value]

        async def dial(address: str) -> ByteStream:
            return await self._dial(hub, address)

        expected = self.plan.plan.hubs if self.plan.expected else ()
        seat = Seat(
            cluster=CLUSTER,
            hub=hub,
            shards_count=self.plan.shards_count,
            secret=SECRET,
            dial=dial,
            advertised=hub,
            membership=Membership(coordination=coordination, expected=expected),
        )
        offset_ms = round(time.clock() * 1000) if drift else 0
        return {
            "seat": seat,
            "engine": self.database.engine_of(hub),
            "all_in_engine": True,
            "now_ms": lambda: self.now_ms() + offset_ms,
        }

    async def _dial(self, hub: str, other: str) -> ByteStream:
        if frozenset((hub, other)) in self.parted:
            await trio.sleep(1.0)
            raise TimeoutError(f"{other} does not answer")
        return await super()._dial(hub, other)

    def _accepted(self, target: SimulatedBroker, link: Link) -> None:
        assert isinstance(target, HubMachine)
        links = target.broker.links
        assert links is not None, "it is a hub"
        target.take(lambda: links.accepted(link.broker_end))

    async def calm(self) -> None:
        """Do `Simulation.calm`."""
        self.parted.clear()
        faults = self.service.faults
        faults.delay_seconds_max = min(faults.delay_seconds_max, 0.01)
        faults.stale_chance = faults.watch_lost_chance = faults.watch_late_seconds_max = 0.0
        self.service.start()
        self.database.is_away = False
        self.database.unreachable.clear()
        for name in self.machines:
            machine = self.hub(name)
            machine.wake()
            if machine.is_up:
                machine.channel.release()
        await super().calm()
        for name in self.hubs:
            machine = self.hub(name)
            if machine.is_up:
                machine.time.do(machine.member.resume)

    # ------------------------------------------------------------------ steps

    def can(self, step: Step) -> bool:
        """Return whether a step would change anything, and can happen."""
        if self.plan.ends_with_connection and step.what in ("cut-service", "stop-service"):
            return False  # on one host a connection ends with its process, and all hubs with the service
        if step.what in ("stop-service", "engine-away", "engine-restart", "rolling"):
            return not self.service.is_stopped if step.what == "stop-service" else True
        machine = self._brokers.get(step.hub)
        if step.what == "join":
            return machine is None or (isinstance(machine, HubMachine) and machine.is_gone)
        if not isinstance(machine, HubMachine) or not machine.is_up or step.hub not in self.machines:
            return False
        return step.what in ("crash", "power-cut", "expire") or not machine.is_still

    async def do(self, step: Step) -> None:
        """Have a step happen, and what follows it."""
        match step.what:
            case "stop-service":
                self.service.stop()
                await trio.sleep(step.seconds)
                self.service.start()
            case "engine-away":
                self.database.is_away = True
                await trio.sleep(step.seconds)
                self.database.is_away = False
            case "engine-restart":
                self.database.restart()
            case "rolling":
                for name in tuple(self.hubs):
                    if not self._is_calm and name in self.machines and self.hub(name).is_up:
                        await self._restart(self.hub(name), pause_seconds=step.seconds / 10)
            case "join":
                if step.hub in self.machines:
                    await self.machines[step.hub].start(self._nursery)
                else:
                    await self.join(step.hub)
            case _:
                await self._do_to(self.hub(step.hub), step)

    async def _restart(self, machine: HubMachine, pause_seconds: float) -> None:
        await machine.stop()
        await trio.sleep(pause_seconds)
        await machine.start(self._nursery)
        with trio.move_on_after(60):
            while (  # noqa: ASYNC110 - of a broker, which has no event for it
                not machine.is_still and machine.is_up and machine.member.coordination.session is None
            ):
                await trio.sleep(LOOK_SECONDS)

    async def _do_to(self, machine: HubMachine, step: Step) -> None:
        match step.what:
            case "crash" | "power-cut":
                await machine.crash(power_cut=step.what == "power-cut")
                await trio.sleep(step.seconds)
                await machine.start(self._nursery)
            case "pause":
                machine.pause()
                await trio.sleep(step.seconds)
                machine.wake(timers_first=step.number % 2 == 0)
            case "expire":
                session = machine.channel.client.session
                if self.service.expire(step.hub) and session is not None:
                    self.forced[step.hub] = session
            case "hold-service":
                channel = machine.channel
                channel.hold(to_service=step.number % 3 != 0, to_hub=step.number % 3 != 1)
                await trio.sleep(step.seconds)
                if machine.is_up and machine.channel is channel:
                    channel.release()
            case "cut-service":
                machine.channel.cut()
            case "part" | "hold-link":
                await self._part(step)
            case "lose-engine":
                self.database.unreachable.add(step.hub)
                await trio.sleep(step.seconds)
                self.database.unreachable.discard(step.hub)
            case "leave":
                machine.is_gone = True
                await machine.stop()
            case "restart":
                await self._restart(machine, step.seconds)
            case "drain":
                machine.time.do(partial(self._asked, machine.member.drain))
            case "undrain":
                machine.time.do(machine.member.resume)
            case "move":
                target = self.hubs[step.number % len(self.hubs)]
                ownership = machine.member.ownership
                shard = step.number % self.plan.shards_count
                machine.time.do(partial(self._asked, partial(ownership.move, shard, target, lambda _error: None)))

    @staticmethod
    def _asked(ask: Callable[[], None]) -> None:
        try:
            ask()
        except NotMovableError:
            pass  # refused in words

    async def _part(self, step: Step) -> None:
        """Have nothing pass between a hub and another one, or all; in one direction, or both."""
        others = [other for other in self.hubs if other != step.hub]
        if step.number % 3:
            others = others[step.number % len(others) :][:1] if others else []
        pairs = [frozenset((step.hub, other)) for other in others]
        directions = []
        for connection in self.hub(step.hub).connections:
            if isinstance(connection, Link) and connection.pair in pairs:
                directions += [connection.there, connection.back][step.number % 2 :]
        for pair in pairs:
            self.parted[pair] = self.parted.get(pair, 0) + 1
        for direction in directions:
            direction.lose()
        await trio.sleep(step.seconds)
        for pair in pairs:
            if self.parted.get(pair, 0) > 1:
                self.parted[pair] -= 1
            else:
                self.parted.pop(pair, None)
        if step.what == "hold-link":  # what was on its way comes late
            for direction in directions:
                direction.is_lost = False
                direction.wake()

    # ------------------------------------------------------------------ laws

    def record(self, shard: int) -> OwnerRecord:
        """Return what the service knows of the owner of a shard."""
        found = self.service.service._table.latest(shard_path(shard))
        return OwnerRecord("", "", 0) if found is None else OwnerRecord.decoded(found.value, shard)

    def check(self) -> None:
        """Raise LawBrokenError."""
        if self.mistakes:
            raise LawBrokenError(f"no mistake: {self.mistakes[0]}")
        up = [self.hub(name) for name in self.hubs if name in self.machines and self.hub(name).is_up]
        for name, session in list(self.forced.items()):
            machine = self.hub(name)
            if not machine.is_up or machine.channel.client.session != session:
                del self.forced[name]
        for shard in range(self.plan.shards_count):
            sure = [
                each.name
                for each in up
                if each.name not in self.forced and not each.is_still and each.member.ownership.may_confirm(shard)
            ]
            if len(sure) > 1:
                raise LawBrokenError(f"one owner: {' and '.join(sure)} may confirm for shard {shard}")
            hub, epoch = self.database.owner(shard)
            record = self.record(shard)
            if epoch > record.epoch or (epoch == record.epoch and hub != record.hub and epoch):
                raise LawBrokenError(f"one owner: shard {shard} is {hub}'s with {epoch} in the database, {record}")

    async def homes(self) -> None:
        """Wait until each shard is open at one hub."""
        while self.homeless():  # noqa: ASYNC110 - of the brokers, which have no event for it
            await trio.sleep(LOOK_SECONDS)

    def homeless(self) -> list[str]:
        """Return words about shards that are not open at one hub."""
        found = []
        for shard in range(self.plan.shards_count):
            at = [name for name in self.hubs if self.hub(name).is_up and shard in self.hub(name).member.open_shards]
            if len(at) != 1:
                found.append(f"shard {shard} is open at {at or 'no hub'}, its record is {self.record(shard)}")
        return found


class MovingHistory(History):
    """One history of a plan."""

    world: MovingSimulation

    def __init__(self, world: MovingSimulation, plan: MovingPlan) -> None:
        super().__init__(world, plan.plan)
        self.moving = plan
        self.consumers_count = plan.consumers_count
        self.ledger.is_competing = plan.consumers_count > 1

    async def play(self) -> None:
        """Play all of it. Raises LawBrokenError."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._steps)
            await super().play()
            nursery.cancel_scope.cancel()

    async def _look(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.world.check()

    async def _steps(self) -> None:
        world = self.world
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number, step in enumerate(self.moving.steps):
                await trio.sleep_until(began + step.at_seconds)
                if world.can(step) and world.chance(f"step {number}").strikes(step.what, 1.0):
                    world.note(f"{step.what} {step.hub} {step.number} for {step.seconds} s")
                    nursery.start_soon(world.do, step)

    def _hubs(self) -> list[str]:
        return [hub for hub in self.world.hubs if hub in self.world.machines]

    def _left(self) -> dict[str, object]:
        return {**super()._left(), **dict.fromkeys(self.world.homeless(), "")}


async def laws_hold(seed: int) -> None:
    """Play the moving cluster of a seed. Raises LawBrokenError."""
    plan = MovingPlan.of(seed)
    async with MovingSimulation(plan, seed) as world:
        await MovingHistory(world, plan).play()
