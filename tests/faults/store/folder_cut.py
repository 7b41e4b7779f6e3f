"""Rounds of random life and sudden death of a whole broker on a real data folder with LevelDB, in virtual time.

The rounds of power_cut.py, with the same clients and claims; but what is kept from life to life is a folder, as a crash
or a power cut may leave it at any moment (watched_folder.py): in the midst of a batch, before or after a sync, while a
large body is finished, or while the broker opens what the life before has left. What the broker's threads do is done
in virtual time; LevelDB's own thread makes tables when it likes, so a seed does not say quite all. A round that fails
keeps its folders.

    python -m tests.faults.store.folder_cut --seed N             this round again
    python -m tests.faults.store.folder_cut --from N --rounds M  so many rounds
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import pytest

import sluiceway.bodies
import sluiceway.shard
import sluiceway.store.directory
import sluiceway.store.leveldb
import sluiceway.store.log_storage
from sluiceway.broker import Broker
from sluiceway.config import Config
from sluiceway.store.engine import Engine
from sluiceway.store.values import ValueLog, ValueOptions
from tests.faults.logs.power_cut import SlowRunner
from tests.faults.rounds import play, play_many
from tests.faults.store.leveldb_cut import SMALL_BUFFER
from tests.faults.store.power_cut import LARGE_SEEDS, Plan, Round, records_left
from tests.faults.store.power_cut import _told as told_of_round
from tests.faults.store.slow_disk import Pace, SlowWorker, _Thread
from tests.faults.store.small_store import small
from tests.faults.store.watched_folder import WatchedFolder
from tests.scenarios.stage import wall_clock_ms
from tests.scenarios.tiny_steps import tiny_steps
from tests.store.faulty import Failure

MODULE: Final = "tests.faults.store.folder_cut"
MEMORY: Final = "/dev/shm"
"""A file system without a disk: what is synced is known from the calls, and need not be waited for."""


class FolderBroker(Broker):
    """A broker on its data folder, whose threads are parts of virtual time, and as slow as they are told."""

    def __init__(self, config: Config, *, values: ValueOptions, random: Random, pace: Pace, **options: Any) -> None:
        super().__init__(config, serving=True, **options)
        self._values = values
        self._random = random
        self._pace = pace

    @contextmanager
    def _without_threads(self) -> Iterator[None]:
        call_later, random, pace = self.dispatcher.call_later, self._random, self._pace

        def worker(engine: Engine, _submit: object) -> SlowWorker:
            return SlowWorker(engine, call_later, random, pace)

        def runner(_name: str, _submit: object) -> SlowRunner:
            return SlowRunner(_Thread(call_later, random, pace))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sluiceway.shard, "ThreadWorker", worker)
            patch.setattr(sluiceway.bodies, "IoThread", runner)
            patch.setattr(sluiceway.store.log_storage, "IoThread", runner)
            patch.setattr(sluiceway.store.directory, "ValueLog", partial(ValueLog, options=self._values))
            patch.setattr(sluiceway.store.leveldb, "LevelDbOptions", lambda: SMALL_BUFFER)
            yield

    async def _open_shards(self) -> None:
        with self._without_threads():
            await super()._open_shards()

    async def _recover_shards(self) -> None:
        with self._without_threads():
            await super()._recover_shards()


class FolderDisk:
    """A `Disk` of power_cut.py."""

    def __init__(self, folder: WatchedFolder, random: Random) -> None:
        self.watched = folder
        self._random = random
        self._die: Callable[[], None] = lambda: None
        self._writes_left = 0
        self.deaths_while_opening_count = 0

    def begin(self, die: Callable[[], None], *, may_die_while_opening: bool) -> None:
        self.watched.begin()
        self._die = die
        if may_die_while_opening and self._random.random() < 0.2:
            self.watched.before_sync = self._perhaps_die_while_opening

    def _perhaps_die_while_opening(self) -> None:
        if self._random.random() < 0.2:
            self.deaths_while_opening_count += 1
            self._die()

    def arm(self, writes_left: int, *, dies_before: bool, before_sync: Callable[[], None]) -> None:
        self._writes_left = writes_left
        self.watched.before_sync = before_sync

        def count() -> None:
            self._writes_left -= 1
            if not self._writes_left:
                self._die()

        if dies_before:
            self.watched.before_write = count
        else:
            self.watched.after_write = count

    def fail_at_rate(self, failure: Failure, rate: float) -> None:
        self.watched.fail_at_rate(failure, rate)

    def broker(self, plan: Plan, random: Random) -> Broker:
        config = attrs.evolve(plan.config, broker=attrs.evolve(plan.config.broker, data_dir=self.watched.folder))
        return FolderBroker(config, values=plan.values, random=random, pace=plan.pace, now_ms=wall_clock_ms)

    def end(self, *, power_cut: bool) -> None:
        self.watched.end(power_cut=power_cut)

    def leftovers(self, broker: Broker) -> list[str]:
        house = broker.shards.numbered(0)._folder
        assert house is not None and isinstance(house.engine, ValueLog)
        files = [path for name in ("values", "large") for path in (self.watched.folder / name).glob("[0-9a-f]*")]
        return [*records_left(house.engine._engine), *map(str, files)]


def drawn(random: Random, *, is_large: bool) -> Plan:
    """As in power_cut.py; with large bodies, and some that fill LevelDB's logs."""
    plan = Plan.with_large_transactions(random) if is_large else Plan.drawn(random)
    [listener] = plan.config.listeners
    large_body_bytes = random.choice((300, 2_000, 1 << 20))
    if plan.failure_rates:
        large_body_bytes = 1 << 20  # where the disk fails they may be refused, which ends their connection
    limits = attrs.evolve(listener.limits, large_body_bytes=large_body_bytes)
    body_bytes_max = random.choice((plan.habits.body_bytes_max, 3_000, 20_000))
    return attrs.evolve(
        plan,
        config=attrs.evolve(plan.config, listeners=(attrs.evolve(listener, limits=limits),)),
        habits=attrs.evolve(plan.habits, body_bytes_max=body_bytes_max if not is_large else plan.habits.body_bytes_max),
    )


def run_round(seed: int) -> Round:
    """One round. Raises what went wrong, with the command that tries it again, and where its folders are."""
    random = Random(seed)
    plan = drawn(random, is_large=seed >= LARGE_SEEDS)
    base = Path(tempfile.mkdtemp(prefix=f"sluiceway-cut-{seed}-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    folder = WatchedFolder(base, Random(random.random()))
    disk = FolderDisk(folder, Random(random.random()))
    try:
        with tiny_steps() if plan.steps_are_tiny else nullcontext(), folder.watching():
            played = play(MODULE, seed, random, lambda: Round(plan, random, disk), sizes=small(plan.block_bits))
    except BaseException as error:
        error.add_note(f"its folders are in {base}")
        raise
    shutil.rmtree(base)
    return played


def _told(played: Round) -> Iterator[str]:
    yield from told_of_round(played)
    disk = played.disk
    assert isinstance(disk, FolderDisk)
    yield (
        f"{disk.watched.synced_count} syncs of files, {disk.deaths_while_opening_count} ends while it opened, "
        f"{disk.watched.tables_were_lost_count} cuts with several logs and no new table"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    return play_many(MODULE, __doc__, run_round, _told, arguments)


if __name__ == "__main__":
    sys.exit(main())
