"""Rounds of random life and sudden death of a whole broker, in virtual time.

One round has one store and several lives of a broker on it. In each, random clients produce and consume; then the
process dies, or the power fails, or the broker stops in order, at a random moment or just before or after a random
write. The next one opens what is left. At the end one reader drains all queues, and the claims ledger says whether all
promises were kept.

    python -m tests.faults.store.power_cut --seed N             this round again, with all that happened
    python -m tests.faults.store.power_cut --from N --rounds M  so many rounds
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any, Final, Protocol

import attrs
import trio

from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, DestinationPolicy, Listener
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.streams import MemoryStream
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.store.config import StoreConfig
from sluiceway.store.engine import Engine
from sluiceway.store.values import ValueLog, ValueOptions
from tests.faults.rounds import PATIENCE_SECONDS, play, play_many
from tests.faults.store.claims import ClaimError, Claims
from tests.faults.store.clients import Connection, Habits, RandomClient, drain
from tests.faults.store.slow_disk import MortalEngine, Pace, SlowDiskBroker
from tests.faults.store.small_store import small
from tests.scenarios.stage import wall_clock_ms
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.faulty import Failure, FaultyEngine, FaultySegments

MODULE: Final = "tests.faults.store.power_cut"
QUEUES: Final = ("/queue/a", "/queue/b", "/queue/c")
AUTO_QUEUES: Final = ("/queue/auto",)
VICTIMS: Final = ("/queue/victim.a", "/queue/victim.b")
"""Purged and deleted at any time, so none of their messages counts as lost."""
DURABLES: Final = {"/topic/t": ("first", "second"), "/topic/u": ("third",)}
"""Durable subscriptions."""

RELAY: Final = "/queue/relay"
"""Keeps nothing."""

LARGE_SEEDS: Final = 1_000_000
"""From here on they are of rounds with large transactions."""

RELAY_SEEDS: Final = 2_000_000
"""From here on they are of rounds with large transactions, and a relay."""

LARGE_COUNT: Final = 100
"""SENDs of a transaction that takes effect in steps."""


@attrs.frozen
class Plan:
    """What one round is made of."""

    block_bits: int
    config: Config
    habits: Habits
    pace: Pace
    clients_count: int
    lives_count: int
    failure_rates: dict[Failure, float]
    values: ValueOptions
    steps_are_tiny: bool = False

    @classmethod
    def drawn(cls, random: Random) -> Plan:
        policies = []
        for match in (*QUEUES, *AUTO_QUEUES, *DURABLES):
            settings: dict[str, Any] = {
                "memory_bytes": random.choice((6_000, 20_000, 60_000, 1_000_000)),
                "paging": random.choice(("page", "page", "page", "offload", "throttle")),
                "auto_delete_seconds": random.choice((0.3, 30.0)),
            }
            if match in DURABLES:
                settings["paging"] = "page"  # else what lags could be lost
            elif random.random() < 0.15:
                settings["bytes_max"] = random.choice((10_000, 100_000))
            if match not in DURABLES and random.random() < 0.1:
                settings["count_max"] = random.choice((10, 100))
            policies.append(DestinationPolicy(match, settings))
        config = Config(
            broker=BrokerConfig(shutdown_seconds=5.0),
            store=StoreConfig(
                flush_delay_min_seconds=random.choice((0.0, 0.005, 0.05)),
                flush_delay_max_seconds=random.choice((0.05, 0.2, 1.0)),
                sync_interval_seconds=random.choice((0.0, 0.1, 1.0, 5.0)),
            ),
            listeners=(
                Listener(
                    address="127.0.0.1:0",
                    # Larger transactions are spooled.
                    limits=StompLimits(transaction_bytes_max=random.choice((6_000, 64 << 20))),
                ),
            ),
            destinations=tuple(policies),
        )
        habits = Habits(
            queues=QUEUES[: random.randint(1, 3)] + (AUTO_QUEUES if random.random() < 0.3 else ()),
            auto_queues=AUTO_QUEUES,
            durables=random.choice(({}, {}, DURABLES)),
            priorities=random.choice(((4,), (4,), (4, 4, 4, 9), (0, 4, 7))),
            groups=random.choice(((), (), ("x", "y", "z"))),
            persistent_share=random.choice((1.0, 0.8, 0.4)),
            receipt_share=random.choice((0.1, 0.5, 0.9)),
            transaction_share=random.choice((0.0, 0.1, 0.3)),
            date_share=random.choice((0.0, 0.1, 0.5)),
            delay_share=random.choice((0.0, 0.0, 0.2)),
            body_bytes_max=random.choice((30, 600, 3_000)),
            run_count_max=random.choice((2, 12, 40)),
            produce_share=random.choice((0.2, 0.4, 0.6)),
            pause_seconds=random.choice((0.005, 0.05, 0.3)),
        )
        rates: dict[Failure, float] = {}
        if random.random() < 0.25:
            for failure in (Failure.WRITE, Failure.DISK_FULL, Failure.SYNC, Failure.READ):
                if random.random() < 0.5:
                    rates[failure] = random.choice((0.02, 0.2, 0.6))
        return cls(
            block_bits=random.choice((2, 3, 4, 6)),
            config=config,
            habits=habits,
            pace=Pace(random.choice((0.0, 0.002, 0.02)), random.choice((0.05, 0.5)), random.choice((0.0, 0.02, 0.2))),
            clients_count=random.randint(1, 4),
            lives_count=random.randint(1, 4),
            failure_rates=rates,
            values=ValueOptions(
                record_bytes_min=random.choice((50, 300, 2_000)),
                batch_bytes_min=random.choice((1, 1_000, 1 << 30)),
                segment_bytes=random.choice((1, 3_000, 30_000)),
                moved_bytes=random.choice((1, 2_000)),
            ),
        )

    @classmethod
    def with_large_transactions(cls, random: Random) -> Plan:
        """As any other; in memory and by the disk, with queues that are purged and deleted in the midst of them."""
        plan = cls.drawn(random)
        habits = attrs.evolve(
            plan.habits,
            large_share=random.choice((0.2, 0.6)),
            large_count_max=random.choice((40, 200, 600)),
            victims=VICTIMS[: random.randint(0, 2)],
            produce_share=0.2,
            run_count_max=12,
            prefetch_counts=(1, 50, 1_000),
        )
        [listener] = plan.config.listeners
        limits = StompLimits(transaction_bytes_max=random.choice((6_000, 60_000, 64 << 20)))
        # Batches are written between two steps: these take no time, so the disk must not either.
        store = attrs.evolve(plan.config.store, flush_delay_min_seconds=0.0)
        config = attrs.evolve(plan.config, listeners=(attrs.evolve(listener, limits=limits),), store=store)
        pace = attrs.evolve(plan.pace, usual_seconds=random.choice((0.0, 0.0, 0.002)), slow_share=0.02)
        steps_are_tiny = random.random() < 0.5
        return attrs.evolve(plan, habits=habits, config=config, pace=pace, steps_are_tiny=steps_are_tiny)

    @classmethod
    def with_relay(cls, random: Random) -> Plan:
        """As with large transactions, with a relay among the queues that is purged and deleted in the midst of them."""
        plan = cls.with_large_transactions(random)
        destinations = (*plan.config.destinations, DestinationPolicy(RELAY, {"kind": "relay"}))
        habits = attrs.evolve(plan.habits, queues=(*plan.habits.queues, RELAY), victims=(*plan.habits.victims, RELAY))
        return attrs.evolve(plan, habits=habits, config=attrs.evolve(plan.config, destinations=destinations))


class Disk(Protocol):
    """What a round keeps from life to life, and how each of them ends."""

    def begin(self, die: Callable[[], None], *, may_die_while_opening: bool) -> None:
        """A life. `die` may be called in the midst of anything, from now on where it may die while it opens."""

    def arm(self, writes_left: int, *, dies_before: bool, before_sync: Callable[[], None]) -> None:
        """This life ends with its n-th write, before or after that has happened; `before_sync` may end it, too."""

    def fail_at_rate(self, failure: Failure, rate: float) -> None: ...

    def broker(self, plan: Plan, random: Random) -> Broker:
        """One on what is there."""

    def end(self, *, power_cut: bool) -> None:
        """The life ends: what is there now, or would be after a power cut, is what the next one finds."""

    def leftovers(self, broker: Broker) -> list[str]:
        """What is left, in words, of a store whose messages are all gone."""


class FaultyDisk:
    """An engine and segments in memory."""

    def __init__(self, random: Random) -> None:
        self.engine = FaultyEngine(Random(random.random()))
        self.segments = FaultySegments(Random(random.random()))
        self._mortal = MortalEngine(self.engine)

    def begin(self, die: Callable[[], None], *, may_die_while_opening: bool) -> None:
        self._mortal = MortalEngine(self.engine)
        self._mortal.die = die

    def arm(self, writes_left: int, *, dies_before: bool, before_sync: Callable[[], None]) -> None:
        self.segments.before_sync = before_sync
        self._mortal.dies_before = dies_before
        self._mortal.writes_left = writes_left

    def fail_at_rate(self, failure: Failure, rate: float) -> None:
        self.engine.fail_at_rate(failure, rate)
        self.segments.fail_at_rate(failure, rate)

    def broker(self, plan: Plan, random: Random) -> Broker:
        values = ValueLog(self._mortal, self.segments, plan.values)
        values.tidy()
        return SlowDiskBroker(plan.config, now_ms=wall_clock_ms, engine=values, random=random, pace=plan.pace)

    def end(self, *, power_cut: bool) -> None:
        if power_cut:
            self.engine, self.segments = self.engine.power_cut(), self.segments.power_cut()
        else:
            self.engine, self.segments = self.engine.crash(), self.segments.crash()

    def leftovers(self, broker: Broker) -> list[str]:
        return [
            *records_left(self.engine),
            *[f"segment {number} of {size_bytes} bytes" for number, size_bytes in self.segments.sizes().items()],
        ]


def records_left(engine: Engine) -> list[str]:
    """Keys of what belongs to messages."""
    ranges = ((b"i", b"n"), (b"s", b"t"))
    return [f"record {key.hex()}" for start, stop in ranges for key, _value in engine.iterate(start, stop)]


class Round:
    """See the module."""

    def __init__(self, plan: Plan, random: Random, disk: Disk | None = None) -> None:
        self.random = random
        self.plan = plan
        self.claims = Claims(trio.current_time, wall_clock_ms)
        self.claims.lossy.update((*VICTIMS, RELAY))
        self.claims.relays.add(RELAY)
        self.disk: Disk = FaultyDisk(random) if disk is None else disk
        self._clients: list[RandomClient] = []
        self._clients_count = 0
        self._actions_left = 0
        self._dead = trio.Event()
        self._commit_sent = trio.Event()
        self.story: list[str] = []
        """How the lives ended."""

    async def run(self) -> None:
        """The whole round. Raises ClaimError, or whatever the broker died of."""
        with trio.fail_after(PATIENCE_SECONDS * (self.plan.lives_count + 1)):
            for _ in range(self.plan.lives_count):
                await self._live()
            await self._drain()

    # ------------------------------------------------------------------ a life

    async def _live(self) -> None:
        random, claims = self.random, self.claims
        ending = random.choice(("crash", "crash", "power cut", "power cut", "power cut", "stop"))
        self._dead = trio.Event()
        self._clients = []
        self._attached: set[str] = set()
        dies_at_write = ending != "stop" and random.random() < 0.5
        life_seconds = random.choice((2, 10, 40, 100)) * random.random() * self.plan.habits.pause_seconds
        self._actions_left = random.choice((10, 30) if self.plan.habits.large_share else (20, 60, 200))
        claims.disk_fails = bool(self.plan.failure_rates)
        with trio.CancelScope() as life:

            def die() -> None:
                """Now: what has left the broker has left it, and nothing more does."""
                if not self._dead.is_set():
                    for client in self._clients:
                        client.absorb()
                        client.ended = True
                    self.disk.end(power_cut=ending == "power cut")
                    self._dead.set()

            def perhaps_die() -> None:
                """In the midst of a batch: what it names is written, and not synced."""
                if random.random() < 0.1:
                    die()

            async def die_in_commit() -> None:
                """When so many COMMITs were sent, so many steps of the broker later."""
                for _ in range(random.choice((1, 3, 10))):
                    self._commit_sent = trio.Event()
                    await self._commit_sent.wait()
                for _ in range(random.choice((3, 30, 300)) * random.randint(0, 10)):
                    await trio.lowlevel.checkpoint()
                die()

            self.disk.begin(die, may_die_while_opening=ending != "stop" and claims.life > 0)
            async with self._broker() as broker, trio.open_nursery() as nursery:
                if not self.claims.life:
                    await self._make_durables(broker)
                for failure, rate in self.plan.failure_rates.items():
                    self.disk.fail_at_rate(failure, rate)
                if dies_at_write:
                    dies_before = random.random() < 0.5
                    writes_left = random.randint(1, random.choice((3, 10, 40)))
                    self.disk.arm(writes_left, dies_before=dies_before, before_sync=perhaps_die)
                for _ in range(self.plan.clients_count):
                    nursery.start_soon(self._come_and_go, broker)
                dies_in_commit = bool(self.plan.habits.large_share) and ending != "stop" and random.random() < 0.6
                if dies_in_commit:
                    nursery.start_soon(die_in_commit)
                if self.plan.habits.victims:
                    nursery.start_soon(self._be_cruel, broker)
                with trio.move_on_after(life_seconds if not (dies_at_write or dies_in_commit) else 5.0):
                    await self._dead.wait()
                if ending == "stop":
                    await self._stop(broker)
                    self._dead.set()
                    nursery.cancel_scope.cancel()
                else:
                    die()
                    life.cancel()
        if ending == "stop":
            self.disk.end(power_cut=False)
        self.story.append(f"{ending} at {trio.current_time():.4f}")
        claims.next_life(in_order=ending == "stop")
        await trio.sleep(random.choice((0.0, 0.5)))

    async def _make_durables(self, broker: Broker) -> None:
        """In the first life, before anything happens."""
        if self.plan.habits.durables:
            async with trio.open_nursery() as nursery:
                maker = Connection(broker.connect_memory(name="maker"), self.claims, "maker")
                nursery.start_soon(maker.read_on)
                await maker.connect("1.2")
                made: set[str] = set()
                wanted: set[str] = set()
                all_made = trio.Event()

                def is_made(durable: str) -> None:
                    made.add(durable)
                    if made == wanted:
                        all_made.set()

                wanted.update(durable for durables in self.plan.habits.durables.values() for durable in durables)
                for topic, durables in self.plan.habits.durables.items():
                    for durable in durables:
                        await maker.subscribe(
                            topic,
                            ack="client",
                            prefetch_count=1,
                            durable=durable,
                            on_receipt=lambda _said, durable=durable: is_made(durable),  # type: ignore[misc]
                        )
                await all_made.wait()
                maker.end("the durable subscriptions are made")
                nursery.cancel_scope.cancel()

    async def _stop(self, broker: Broker) -> None:
        """In order: clients hear of it, and what comes until the end counts."""
        for failure in self.plan.failure_rates:
            self.disk.fail_at_rate(failure, 0)
        self._actions_left = 0  # nobody else comes
        for client in self._clients:
            client.stop()
        self._sound(broker)
        await broker.stop()
        for client in self._clients:
            client.absorb()
            client.ended = True

    def _broker(self) -> Broker:
        return self.disk.broker(self.plan, Random(self.random.random()))

    async def _come_and_go(self, broker: Broker) -> None:
        """One client after the other."""
        random = Random(self.random.random())
        while not self._dead.is_set() and self._actions_left > 0:
            self._clients_count += 1
            client = RandomClient(
                broker.connect_memory(name=f"c{self._clients_count}"),
                self.claims,
                f"c{self._clients_count}",
                random=random,
                habits=self.plan.habits,
                now_ms=wall_clock_ms,
                may_act=self._may_act,
            )
            client.attached = self._attached
            client.on_commit = lambda: self._commit_sent.set()
            self._clients.append(client)
            try:
                await client.run()
            finally:
                if not self._dead.is_set():
                    self._clients.remove(client)
            await trio.sleep(random.random() * 0.05)

    async def _be_cruel(self, broker: Broker) -> None:
        """Purge and delete, now and then."""
        random = Random(self.random.random())
        while not self._dead.is_set() and self._actions_left > 0:
            await trio.sleep(random.random() * random.choice((0.002, 0.1)))
            victim = broker.registry.destinations.get(random.choice(self.plan.habits.victims))
            if victim is None:
                continue
            if random.random() < 0.5:
                broker.registry.delete(victim, "a test")
                continue
            for queue in victim.queue.partitions.values():
                assert isinstance(queue, ConsumedQueue)
                queue.removal.purge(0, queue.elements.next_sequence)

    def _may_act(self) -> bool:
        """One more thing is done by some client. What a round costs is bounded by this."""
        self._actions_left -= 1
        return self._actions_left > 0

    def _sound(self, broker: Broker) -> None:
        """Nothing that was written was found wanting."""
        assert broker.store is not None
        counters = broker.store.counters
        if counters.corrupt_count or counters.lost_count:
            raise ClaimError(f"the store believes that it lost something: {counters}")

    # ------------------------------------------------------------------ the end

    async def _drain(self) -> None:
        """A last life, in which nothing fails: one reader for each queue, which acknowledges all."""
        self.disk.begin(_never, may_die_while_opening=False)
        self.claims.disk_fails = False
        async with self._broker() as broker, trio.open_nursery() as nursery:
            assert broker.store is not None
            stream: MemoryStream = broker.connect_memory(name="drain")
            reader = Connection(stream, self.claims, "drain")
            nursery.start_soon(reader.read_on)
            await reader.connect("1.2")
            prefetch_count = self.random.choice((1, 7, 1000))
            for name in (*QUEUES, *AUTO_QUEUES, *self.plan.habits.victims):
                await reader.subscribe(name, ack="client-individual", prefetch_count=prefetch_count)
            for topic, durables in self.plan.habits.durables.items():
                for durable in durables:
                    await reader.subscribe(
                        topic, ack="client-individual", prefetch_count=prefetch_count, durable=durable
                    )
            await self._acknowledge_all(reader)
            self._sound(broker)
            if left := _left(broker):
                raise ClaimError(f"drained, and not empty: {left}")
            self.claims.drained(drain(reader))
            self.claims.nothing_is_lost()
            await broker.stop()
            nursery.cancel_scope.cancel()
        await self._nothing_is_left()

    async def _acknowledge_all(self, reader: Connection) -> None:
        """Until nothing has come for a while."""
        acknowledged = quiet = 0
        while quiet < 3:
            await trio.sleep(2.0 if quiet else 0.05)
            pieces = []
            for sent, _priority, subscription, held in reader.found[acknowledged:]:
                self.claims.settling([sent])
                headers = held.naming | reader.receipt(lambda _said, sent=sent: self.claims.settled([sent]))  # type: ignore[misc]
                subscription.held.pop(sent, None)
                pieces.append(reader.encode("ACK", headers))
            quiet = 0 if pieces or reader.receipts_are_due else quiet + 1
            acknowledged += len(pieces)
            await reader.write(b"".join(pieces))

    async def _nothing_is_left(self) -> None:
        """Once more: what was acknowledged is gone, on the disk too."""
        self.disk.end(power_cut=False)
        self.claims.next_life(in_order=True)
        self.disk.begin(_never, may_die_while_opening=False)
        async with self._broker() as broker:
            if left := _left(broker):
                raise ClaimError(f"all was acknowledged, and the store still has messages: {left}")
            if leftovers := self.disk.leftovers(broker):
                raise ClaimError(f"all was acknowledged, and there is left: {leftovers[:5]}")


def _never() -> None:
    raise AssertionError("this life ends in order")


def _left(broker: Broker) -> dict[str, int]:
    """How many messages are in which queues."""
    queues = [queue for d in broker.registry.destinations.values() for queue in d.queue.partitions.values()]
    return {queue.name: queue.elements.live_count for queue in queues if queue.elements.live_count}


def run_round(seed: int) -> Round:
    """One round. Raises what went wrong, with the command that shows it again."""
    random = Random(seed)
    drawn = (
        Plan.drawn if seed < LARGE_SEEDS else Plan.with_large_transactions if seed < RELAY_SEEDS else Plan.with_relay
    )
    plan = drawn(random)
    with tiny_steps() if plan.steps_are_tiny else nullcontext():
        return play(MODULE, seed, random, lambda: Round(plan, random), sizes=small(plan.block_bits))


def _told(played: Round) -> Iterator[str]:
    claims = played.claims
    yield str(played.plan)
    large = [commitment for commitment in claims.commitments if len(commitment.sends) > LARGE_COUNT]
    yield (
        f"{len(large)} large transactions, {sum(one.committed_in is not None for one in large)} committed, "
        f"{sum(one.confirmed for one in large)} confirmed, {sum(one.seen_done_in is not None for one in large)} found"
    )
    yield (
        f"{len(claims.messages)} sent, {claims.receipted_count} receipted, {claims.delivered_count} delivered, "
        f"{claims.came_again_count} of them again; {'; '.join(played.story)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    return play_many(MODULE, __doc__, run_round, _told, arguments)


if __name__ == "__main__":
    sys.exit(main())
