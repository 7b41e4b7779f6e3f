"""Rounds of random life and sudden death of a whole broker with logs, in virtual time.

One round has one folder of logs and one store, and several lives of a broker on them. In each, random clients produce
and read; then the process dies, or the power fails, or the broker stops in order, at a random moment or just before or
after a random change to a file. At the end all is read, by records and by batches, and taken by the groups, and the
claims ledger says whether all promises were kept.

    python -m tests.faults.logs.power_cut --seed N             this round again, with all that happened
    python -m tests.faults.logs.power_cut --from N --rounds M  so many rounds
"""

from __future__ import annotations

import errno
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import trio

import sluiceway.store.log_storage
from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, DestinationPolicy, Listener
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.store.config import StoreConfig
from sluiceway.store.io_threads import Job
from sluiceway.store.log_storage import LogStorageConfig
from tests.faults.logs.claims import ClaimError, LogClaims
from tests.faults.logs.clients import Auditor, Connection, Habits, RandomClient
from tests.faults.logs.lives import MortalFiles, array_options
from tests.faults.rounds import PATIENCE_SECONDS, play, play_many
from tests.faults.store.slow_disk import MortalEngine, Pace, SlowDiskBroker, _Thread
from tests.faults.store.small_store import small
from tests.scenarios.stage import wall_clock_ms
from tests.store.bigarray.faulty import FaultyFiles
from tests.store.faulty import Failure, FaultyEngine

MODULE: Final = "tests.faults.logs.power_cut"
LOGS: Final = ("/log/a", "/log/b.c")


@attrs.frozen
class Plan:
    """What one round is made of."""

    config: Config
    lease_items: int
    habits: Habits
    pace: Pace
    clients_count: int
    lives_count: int
    failure_share: float
    """Of the operations on files that fail."""
    in_engine: bool = False
    """Whether logs are in the engine, as in a database, and not in files."""

    @classmethod
    def drawn(cls, random: Random) -> Plan:
        config = Config(
            broker=BrokerConfig(shutdown_seconds=5.0),
            store=StoreConfig(
                flush_delay_min_seconds=random.choice((0.0, 0.005)),
                flush_delay_max_seconds=random.choice((0.05, 0.2)),
                sync_interval_seconds=random.choice((0.0, 0.1, 1.0)),
            ),
            logs=LogStorageConfig(
                data_page_bytes=random.choice((8192, 16384, 1 << 20)),
                index_page_count=random.choice((16, 256, 4096)),
                mapped_pages_max=random.choice((2, 16)),
                cache_bytes_max=random.choice((10_000, 1 << 20)),
            ),
            listeners=(Listener(address="127.0.0.1:0", limits=StompLimits()),),
            destinations=tuple(
                DestinationPolicy(
                    log,
                    {
                        "memory_bytes": random.choice((6_000, 60_000)),
                        "log_sync_seconds": random.choice((0.01, 1.0)),
                        "log_batch_bytes_max": 8192,
                    },
                )
                for log in LOGS
            ),
        )
        return cls(
            config=config,
            lease_items=random.choice((5, 100, 5000)),
            habits=Habits(
                receipt_share=random.choice((0.1, 0.5, 0.9)),
                batch_share=random.choice((0.0, 0.4, 1.0)),
                value_bytes_max=random.choice((2, 200, 400)),
                run_count_max=random.choice((1, 10, 30)),
                window=random.choice((1, 20)),
                ack_receipt_share=random.choice((0.1, 0.8)),
                pause_seconds=random.choice((0.005, 0.05, 0.3)),
            ),
            pace=Pace(random.choice((0.0, 0.002, 0.02)), random.choice((0.05, 0.5)), random.choice((0.0, 0.02, 0.2))),
            clients_count=random.randint(2, 6),
            lives_count=random.randint(1, 5),
            failure_share=random.choice((0.0, 0.0, 0.0, 0.01, 0.1)),
        )


class FailingFiles(MortalFiles):
    """Some operations fail, as long as the life lasts."""

    def __init__(self, files: FaultyFiles, random: Random, share: float) -> None:
        super().__init__(files)
        self._random = random
        self.share = share

    def _counted(self, does: Callable[..., Any]) -> Callable[..., Any]:
        inner = super()._counted(does)

        def do(*arguments: Any, **options: Any) -> Any:
            if self.share and not self.dead and self._random.random() < self.share:
                error = self._random.choice((errno.ENOSPC, errno.EIO))
                self.files.fail(1, error, short=self._random.random() < 0.5)
            try:
                return inner(*arguments, **options)
            finally:
                if not self.files.short:
                    self.files.fail(0, 0)

        return do


class SlowRunner:
    """In place of one of the threads of logs: at its own pace in virtual time."""

    def __init__(self, thread: _Thread) -> None:
        self._thread = thread
        self._closed = False

    def put(self, job: Job) -> None:
        if not self._closed:
            self._thread.put((job.run, lambda _result: job.tell()))

    def close(self) -> None:
        self._closed = True
        self._thread.close()


class SlowLogBroker(SlowDiskBroker):
    """A broker whose logs and store work as slowly as they are told."""

    async def _recover_shards(self) -> None:
        before = sluiceway.store.log_storage.InlineRunner
        call_later = self.dispatcher.call_later
        sluiceway.store.log_storage.InlineRunner = lambda _schedule: SlowRunner(  # type: ignore[assignment,misc,return-value]
            _Thread(call_later, self._random, self._pace)
        )
        try:
            await super()._recover_shards()
        finally:
            sluiceway.store.log_storage.InlineRunner = before  # type: ignore[misc]


class Round:
    """See the module."""

    def __init__(self, plan: Plan, random: Random, folder: Path) -> None:
        self.random = random
        self.plan = plan
        self.claims = {log: LogClaims(log) for log in LOGS}
        self.engine = FaultyEngine(Random(random.random()))
        self.files = FaultyFiles(Random(random.random()), folder / "vault")
        self.story: list[str] = []
        """How the lives ended."""
        self._folder = folder / "logs"
        self._boot = 0
        self._connections: list[Connection] = []
        self._names_count = 0
        self._actions_left = 0
        self._dead = trio.Event()
        self._excuses = (
            ("shutting down", "can't be opened", "can't be stored") if plan.failure_share else ("shutting down",)
        )

    async def run(self) -> None:
        """The whole round. Raises ClaimError, or whatever the broker died of."""
        with trio.fail_after(PATIENCE_SECONDS * (self.plan.lives_count + 1)):
            for _ in range(self.plan.lives_count):
                await self._live()
            await self._audit()

    def _broker(self, engine: MortalEngine, files: MortalFiles) -> Broker:
        return SlowLogBroker(
            self.plan.config,
            now_ms=wall_clock_ms,
            engine=engine,
            journal_folder=self._folder,
            journal_files=files,
            all_in_engine=self.plan.in_engine,
            boot=f"boot {self._boot}",
            random=Random(self.random.random()),
            pace=self.plan.pace,
        )

    async def _live(self) -> None:
        random = self.random
        ending = random.choice(("crash", "crash", "power cut", "power cut", "power cut", "stop"))
        engine = MortalEngine(self.engine)
        files = FailingFiles(self.files, Random(random.random()), 0.0)
        self._dead = trio.Event()
        self._connections = []
        self._actions_left = random.choice((20, 60, 200))
        with trio.CancelScope() as life:

            def die() -> None:
                """Now: what has left the broker has left it, and nothing more does."""
                if not self._dead.is_set():
                    self._dead.set()
                    for connection in self._connections:
                        connection.absorb()
                        connection.ended = True
                    files.dead = True
                    if ending == "power cut":
                        self.engine = self.engine.power_cut()
                        self.files.power_cut()
                    else:
                        self.engine = self.engine.crash()
                        self.files.kill()

            files.die = engine.die = die
            dies_at_write = ending != "stop" and random.random() < 0.6
            if dies_at_write and random.random() < 0.2:
                files.operations_left = random.randint(1, 30)  # perhaps while it opens
                files.dies_before = random.random() < 0.5
            try:
                async with self._broker(engine, files) as broker, trio.open_nursery() as nursery:
                    files.share = self.plan.failure_share
                    if dies_at_write and files.operations_left is None:
                        files.operations_left = random.randint(1, random.choice((5, 50, 300)))
                        files.dies_before = random.random() < 0.5
                    if self.plan.in_engine:
                        self._let_engine_fail(self.plan.failure_share)
                        if dies_at_write:
                            engine.writes_left, engine.dies_before = files.operations_left, files.dies_before
                    for _ in range(self.plan.clients_count):
                        nursery.start_soon(self._come_and_go, broker)
                    with trio.move_on_after(5.0 if dies_at_write else random.choice((0.1, 1, 5)) * random.random()):
                        await self._dead.wait()
                    if ending == "stop" and not self._dead.is_set():
                        files.share = 0.0
                        self._let_engine_fail(0.0)
                        self._actions_left = 0
                        await broker.stop()
                        self._dead.set()
                        for connection in self._connections:
                            connection.absorb()
                            connection.ended = True
                        nursery.cancel_scope.cancel()
                    else:
                        die()
                        life.cancel()
            except Exception:
                if not self._dead.is_set() or ending == "stop":
                    raise
                # It died while it opened its logs: the errors come from the files of a life that is over.
        if ending == "stop":
            self.engine = self.engine.crash()
        elif ending == "power cut":
            self._boot += 1
        self.story.append(f"{ending} at {trio.current_time():.4f}")
        for claims in self.claims.values():
            claims.next_life(power_cut=ending == "power cut")
        await trio.sleep(random.choice((0.0, 0.5)))

    def _let_engine_fail(self, share: float) -> None:
        """Let this share of writes to the engine fail, half of them behind their effect."""
        self.engine.fail_at_rate(Failure.WRITE, share / 2)
        self.engine.fail_at_rate(Failure.SYNC, share / 2)

    async def _come_and_go(self, broker: Broker) -> None:
        """One client after the other."""
        random = Random(self.random.random())
        while not self._dead.is_set() and self._actions_left > 0:
            self._names_count += 1
            name = f"c{self._names_count}"
            connection = Connection(broker.connect_memory(name=name), self.claims, name)
            self._connections.append(connection)
            await RandomClient(connection, random, self.plan.habits, self._may_act).run()
            if not self._dead.is_set():
                connection.absorb()  # what left the broker before it heard of the end
                connection.stream.close()
                self._connections.remove(connection)
            if connection.stops is not None and not any(text in connection.stops for text in self._excuses):
                raise ClaimError(f"{connection} got an ERROR: {connection.stops}")
            await trio.sleep(random.random() * 0.05)

    def _may_act(self) -> bool:
        self._actions_left -= 1
        return self._actions_left > 0

    async def _audit(self) -> None:
        """A last life, in which nothing fails."""
        async with self._broker(MortalEngine(self.engine), MortalFiles(self.files)) as broker:
            await Auditor(lambda name: broker.connect_memory(name=name), self.claims).check(3.0)
            await broker.stop()


IN_ENGINE_FROM: Final = 1_000_000
"""Rounds from this seed on have their logs in the engine."""


def run_round(seed: int) -> Round:
    """One round. Raises what went wrong, with the command that shows it again."""
    random = Random(seed)
    plan, sizes = Plan.drawn(random), small(4)
    if seed >= IN_ENGINE_FROM:
        logs = attrs.evolve(plan.config.logs, extents_bytes_max=random.choice((4_000, 30_000, 1 << 20)))
        plan = attrs.evolve(plan, in_engine=True, config=attrs.evolve(plan.config, logs=logs))
        sizes |= {"EXTENT_BYTES": random.choice((500, 4_000, 1 << 20)), "JOINED_COUNT": random.choice((3, 10, 256))}
    with array_options(lease_items=plan.lease_items), tempfile.TemporaryDirectory() as folder:
        return play(MODULE, seed, random, lambda: Round(plan, random, Path(folder)), sizes=sizes)


def _told(played: Round) -> Iterator[str]:
    yield str(played.plan)
    for claims in played.claims.values():
        yield (
            f"{claims.name}: {len(claims.sends)} SENDs of {len(claims.of_value)} records, {len(claims.receipted)} "
            f"receipted, {claims.seen_count} seen"
        )
    yield "; ".join(played.story)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    return play_many(MODULE, __doc__, run_round, _told, arguments)


if __name__ == "__main__":
    sys.exit(main())
