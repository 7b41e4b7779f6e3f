"""A whole cluster from one seed: hubs with clocks of their own own shards over a simulated coordination with faults.

`Plan.of(seed)` draws what happens when; `Cluster` plays it and checks the laws after every step. `smallest` removes
what a failure does not need. tests/cluster/play.py does so from the command line.

Laws:
    one owner    a hub that may confirm for a shard has the epoch of the record; of two hubs never both may
    epochs       the epoch of a record never goes back, and is one more with each new owner
    fence        no write of an earlier epoch reaches the engine
    an owner     some time after the last fault every shard is open at the hub that is to have it
    even         hubs have as many shards as their weights say, but for those that operators have chosen
    what moves   a hub that joins or leaves then moves only shards that go to or come from it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

import attrs

from sluiceway.cluster import rendezvous
from sluiceway.cluster.claim_states import ClaimState
from sluiceway.cluster.coordination.port import Hub
from sluiceway.cluster.coordination.simulated import Faults, HubTime, SimulatedChannel, SimulatedService, VirtualTime
from sluiceway.cluster.owner_records import OwnerRecord, shard_path
from sluiceway.cluster.ownership import NotMovableError, Ownership

SESSION_SECONDS: Final = 4.0
STEP_SECONDS: Final = 0.1
CALM_SECONDS: Final = 6 * SESSION_SECONDS
CALM_STEP_SECONDS: Final = 0.5
HUBS_COUNT_MAX: Final = 6


class LawBrokenError(AssertionError):
    """A law did not hold. The message says which one, when and where."""


class FencedError(Exception):
    """The engine knows a later epoch."""


class SharedEngine:
    """Engine of all hubs: the fence of each shard, and the counts of writes."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.writes: Counter[int] = Counter()
        self.refused_count = 0
        self.is_away = False

    def take(self, shard: int, epoch: int) -> None:
        """Raise the fence."""
        if epoch < self.epochs.get(shard, 0):
            raise FencedError(f"shard {shard} has epoch {self.epochs[shard]}")
        self.epochs[shard] = epoch

    def write(self, shard: int, epoch: int) -> bool:
        if epoch != self.epochs.get(shard):
            self.refused_count += 1
            return False
        self.writes[shard] += 1
        return True


class SimulatedHub:
    """One process of a hub: a ShardHost that takes its time."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        self.cluster = cluster
        self.name = name
        self._random = random
        self.time = HubTime(cluster.time, offset_seconds=random.uniform(-3600, 3600), rate=random.uniform(0.96, 1.04))
        self.channel: SimulatedChannel = cluster.service.channel(self.time, session_seconds=SESSION_SECONDS)
        self.open_shards: dict[int, int] = {}
        self._tokens: Counter[int] = Counter()
        self.is_leaving = False
        self.is_over = False
        self.ownership = Ownership(
            self.channel.client,
            self,
            self.time,
            self.time.clock,
            hub=Hub(name, address=f"{name}:7000"),
            shards_count=cluster.shards_count,
            settle_seconds=1.0,
            sweep_seconds=2.0,
            retry_seconds=0.5,
        )
        self.ownership.start()

    @property
    def is_live(self) -> bool:
        return not self.time.crashed and not self.is_over

    def leave(self) -> None:
        def left() -> None:
            self.is_over = True

        if not self.is_leaving:
            self.is_leaving = True
            self.time.do(lambda: self.ownership.leave(left))

    # ShardHost.

    def open(self, shard: int, epoch: int, done: Callable[[Exception | None], None]) -> None:
        self._tokens[shard] += 1
        token = self._tokens[shard]

        def opened() -> None:
            if self._tokens[shard] != token:
                return
            if self.cluster.engine.is_away:
                done(OSError("the database is away"))
                return
            try:
                self.cluster.engine.take(shard, epoch)
            except FencedError as error:
                done(error)
                return
            self.open_shards[shard] = epoch
            done(None)

        self.time.call_later(self._random.uniform(0, 0.5), opened)

    def close(self, shard: int, done: Callable[[], None]) -> None:
        assert shard in self.open_shards, "only what is open is closed"
        token = self._tokens[shard]

        def closed() -> None:
            if self._tokens[shard] == token:
                self.open_shards.pop(shard, None)
                done()

        self.time.call_later(self._random.uniform(0, 0.3), closed)

    def abandon(self, shard: int) -> None:
        self._tokens[shard] += 1
        self.open_shards.pop(shard, None)

    def hold(self) -> None:
        """Confirming asks the clock."""

    def resume(self) -> None:
        """Confirming asks the clock."""

    def hubs_changed(self) -> None: ...

    def owner_changed(self, shard: int) -> None:
        self.ownership.where(shard)  # words are found in every state


@attrs.frozen
class Step:
    """One thing that happens."""

    at_seconds: float
    what: str
    hub: str = ""
    number: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.at_seconds:7.2f} s  {self.what} {self.hub} {self.number or ''} {self.seconds or ''}".rstrip()


@attrs.frozen
class Plan:
    """What happens when, and where chance begins."""

    seed: int
    shards_count: int
    hubs_count: int
    faults: Faults
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int, steps_count: int = 25) -> Plan:
        random = Random(seed)
        hubs_count = random.randint(2, 4)
        faults = Faults(
            delay_seconds_max=random.choice([0.0, 0.01, 0.2]),
            stale_chance=random.choice([0.0, 0.3, 0.9]),
            watch_lost_chance=random.choice([0.0, 0.1, 0.7]),
            watch_late_seconds_max=random.choice([0.0, 1.0, 5.0]),
        )
        at_seconds = random.uniform(0, 5)
        steps = []
        for _ in range(steps_count):
            steps.append(_drawn(random, at_seconds))
            at_seconds += random.choice([0.0, random.uniform(0, 1), random.uniform(0, SESSION_SECONDS)])
        return cls(seed, random.choice([1, 4, 8, 16]), hubs_count, faults, tuple(steps))


KINDS: Final = (
    "pause", "crash", "restart", "hold", "half-hold", "cut", "stop-service", "expire", "join", "leave", "drain",
    "undrain", "move", "engine-away",
)  # fmt: skip


def _drawn(random: Random, at_seconds: float) -> Step:
    return Step(
        round(at_seconds, 2),
        random.choice(KINDS),
        f"hub-{random.randint(1, HUBS_COUNT_MAX)}",
        random.randint(0, 15),
        round(random.choice([random.uniform(0, 1), random.uniform(0, 3 * SESSION_SECONDS)]), 2),
    )


class Cluster:
    """Hubs, the service and the engine, playing a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.shards_count = plan.shards_count
        self.time = VirtualTime()
        self.random = Random(plan.seed)
        self.faults = attrs.evolve(plan.faults)
        self.service = SimulatedService(self.time, self.random, self.faults)
        self.engine = SharedEngine()
        self.hubs: dict[str, SimulatedHub] = {}
        self.injected: Counter[str] = Counter()
        self._records: dict[int, OwnerRecord] = {}
        self._versions: dict[int, object] = {}
        self._forced: dict[str, str] = {}
        """Sessions that were expired by force, by hub, until the hub has heard."""
        for number in range(1, plan.hubs_count + 1):
            self._join(f"hub-{number}")

    # The play.

    def play(self) -> None:
        """Play the plan, then wait for calm. Raises LawBrokenError."""
        for step in self.plan.steps:
            self._pass_until(step.at_seconds)
            self._do(step)
            self._check()
        self._calm()
        self._pass(CALM_SECONDS)
        self._check_owners()
        self._check_moves()

    def _pass_until(self, at_seconds: float, step_seconds: float = STEP_SECONDS) -> None:
        while self.time.clock() < at_seconds:
            self.time.run(step_seconds)
            self._work()
            self._check()

    def _pass(self, seconds: float) -> None:
        self._pass_until(self.time.clock() + seconds, CALM_STEP_SECONDS)

    def _do(self, step: Step) -> None:
        hub = self.hubs.get(step.hub)
        if self._has_happened(step, hub):
            self.injected[step.what] += 1

    def _has_happened(self, step: Step, hub: SimulatedHub | None) -> bool:
        match step.what:
            case "join":
                return self._join(step.hub)
            case "stop-service":
                if self.service.is_stopped:
                    return False
                self.service.stop()
                self.time.call_later(step.seconds, self.service.start)
                return True
            case "engine-away":
                self.engine.is_away = True
                self.time.call_later(step.seconds, partial(setattr, self.engine, "is_away", False))
                return True
            case "restart":
                if hub is not None:
                    hub.time.crash()
                    hub.channel.cut("the process ended")
                    del self.hubs[step.hub]
                    return self._join(step.hub)
                return False
        if hub is None or not hub.is_live:
            return False
        match step.what:
            case "pause":
                hub.time.pause()
                self.time.call_later(step.seconds, partial(self._resume, hub))
            case "crash":
                hub.time.crash()
                hub.channel.cut("the process ended")
            case "hold" | "half-hold":
                half = step.what == "half-hold"
                hub.channel.hold(to_service=not half or step.number % 2 == 0, to_hub=not half or step.number % 2 == 1)
                self.time.call_later(step.seconds, hub.channel.release)
            case "cut":
                hub.channel.cut()
            case "expire":
                session = hub.channel.client.session
                if session is not None and self.service.expire(step.hub):
                    self._forced[step.hub] = session
            case "leave":
                hub.leave()
            case "drain":
                hub.time.do(hub.ownership.drain)
            case "undrain":
                hub.time.do(partial(hub.ownership.weigh, float(1 + step.number % 3)))
            case "move":
                target = f"hub-{1 + step.number % HUBS_COUNT_MAX}"
                hub.time.do(partial(self._move, hub, step.number % self.shards_count, target))
        return True

    @staticmethod
    def _move(hub: SimulatedHub, shard: int, target: str) -> None:
        try:
            hub.ownership.move(shard, target, lambda _error: None)
        except NotMovableError:
            pass  # the hub is not there: refused in words

    def _resume(self, hub: SimulatedHub) -> None:
        """Wake a process in the midst of writing: it has asked the clock before it was stopped."""
        if not hub.time.crashed and hub.time.paused:
            for shard, epoch in hub.open_shards.items():
                self.engine.write(shard, epoch)
            hub.time.resume()

    def _join(self, name: str) -> bool:
        there = self.hubs.get(name)
        if there is not None and there.is_live:
            return False
        self.hubs[name] = SimulatedHub(self, name, Random(self.random.random()))
        self._forced.pop(name, None)
        return True

    def _calm(self) -> None:
        """End all faults."""
        self.faults.delay_seconds_max = min(self.faults.delay_seconds_max, 0.01)
        self.faults.stale_chance = self.faults.watch_lost_chance = self.faults.watch_late_seconds_max = 0.0
        self.service.start()
        self.engine.is_away = False
        for hub in self.hubs.values():
            self._resume(hub)
            hub.channel.release()
            if hub.is_live and not hub.is_leaving:
                hub.ownership.weigh(1.0)
        if not any(hub.is_live and not hub.is_leaving for hub in self.hubs.values()):
            self._join("hub-9")

    def _work(self) -> None:
        """Let every hub write where it may, and some where they may not: what a paused process does when it wakes."""
        for hub in self.hubs.values():
            if not hub.is_live or hub.time.paused:
                continue
            for shard, epoch in hub.open_shards.items():
                refused = hub.ownership.may_confirm(shard) and not self.engine.write(shard, epoch)
                if refused and hub.name not in self._forced:
                    raise LawBrokenError(f"{self._when()}: {hub.name} may confirm for shard {shard}, and is fenced")

    # Laws.

    def _when(self) -> str:
        return f"{self.time.clock():.2f} s"

    def record(self, shard: int) -> OwnerRecord | None:
        found = self.service.service._table.latest(shard_path(shard))
        return None if found is None else OwnerRecord.decoded(found.value, shard)

    def _check(self) -> None:
        for name, session in list(self._forced.items()):
            if self.hubs[name].channel.client.session != session or not self.hubs[name].is_live:
                del self._forced[name]
        for shard in range(self.shards_count):
            self._check_epoch(shard)
            self._check_one_owner(shard)

    def _check_epoch(self, shard: int) -> None:
        found = self.service.service._table.latest(shard_path(shard))
        if found is self._versions.get(shard):
            return
        self._versions[shard] = found
        before, now = self._records.get(shard), self.record(shard)
        if now is None:
            if before is not None:
                raise LawBrokenError(f"{self._when()}: the record of shard {shard} is gone")
            return
        self._records[shard] = now
        before = before or OwnerRecord("", "", 0)
        if now.epoch < before.epoch:
            raise LawBrokenError(f"{self._when()}: shard {shard} went from {before} back to {now}")
        if now.epoch == before.epoch and (now.hub != before.hub or now.session not in (before.session, "")):
            raise LawBrokenError(f"{self._when()}: shard {shard} has two owners of one epoch, {before} and {now}")

    def _check_one_owner(self, shard: int) -> None:
        record = self._records.get(shard)
        sure = [
            hub
            for name, hub in self.hubs.items()
            if hub.is_live and name not in self._forced and hub.ownership.may_confirm(shard)
        ]
        for hub in sure:
            if record is None or (record.hub, record.epoch) != (hub.name, hub.ownership.epoch(shard)):
                raise LawBrokenError(
                    f"{self._when()}: {hub.name} may confirm for shard {shard} under epoch "
                    f"{hub.ownership.epoch(shard)}, and the record is {record}"
                )
        if len(sure) > 1:
            raise LawBrokenError(f"{self._when()}: {', '.join(hub.name for hub in sure)} may confirm for shard {shard}")

    def _staying(self) -> dict[str, SimulatedHub]:
        return {name: hub for name, hub in self.hubs.items() if hub.is_live and not hub.is_leaving}

    def _check_owners(self) -> None:
        owners = [self.record(shard) or OwnerRecord("", "", 0) for shard in range(self.shards_count)]
        chosen = rendezvous.placed(
            [Hub(name) for name in self._staying()], [owner.hub for owner in owners], [owner.pinned for owner in owners]
        )
        for shard, wanted in enumerate(chosen):
            states = {
                name: hub.ownership.state(shard).value
                for name, hub in self._staying().items()
                if hub.ownership.state(shard) is not ClaimState.ELSEWHERE
            }
            if states != {wanted: ClaimState.OPEN.value}:
                raise LawBrokenError(
                    f"{self._when()}: shard {shard} is to be open at {wanted}, is {states}, and its record is "
                    f"{self.record(shard)}"
                )

    def _check_moves(self) -> None:
        """Let a hub join and another one leave: nothing else moves."""
        before = [self.record(shard) for shard in range(self.shards_count)]
        self._join("hub-8")
        self._pass(CALM_SECONDS)
        self._check_owners()
        self._compare(before, "hub-8")
        before = [self.record(shard) for shard in range(self.shards_count)]
        leaver = min(self._staying())
        self.hubs[leaver].leave()
        self._pass(CALM_SECONDS)
        if not self.hubs[leaver].is_over:
            raise LawBrokenError(f"{self._when()}: {leaver} does not come to leave")
        self._check_owners()
        self._compare(before, leaver)

    def _compare(self, before: Sequence[OwnerRecord | None], hub: str) -> None:
        for shard, then in enumerate(before):
            now = self.record(shard)
            assert then is not None and now is not None
            if then != now and hub not in (then.hub, now.hub):
                raise LawBrokenError(f"{self._when()}: {hub} came or went, and shard {shard} went from {then} to {now}")


def failure_of(plan: Plan) -> str:
    """Return the words of the law that a plan breaks; empty: it breaks none."""
    try:
        Cluster(plan).play()
    except AssertionError as error:
        return str(error) or repr(error)
    return ""


def smallest(plan: Plan) -> Plan:
    """Return the plan without the steps that its failure does not need."""
    size = max(len(plan.steps) // 2, 1)
    while True:
        at = 0
        while at < len(plan.steps):
            fewer = attrs.evolve(plan, steps=plan.steps[:at] + plan.steps[at + size :])
            if failure_of(fewer):
                plan = fewer
            else:
                at += size
        if size == 1:
            return plan
        size //= 2
