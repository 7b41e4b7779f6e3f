"""Rounds of random life and sudden death of one BigArray: its files forget what was not synced, block by block.

python -m tests.faults.store.bigarray_cut --seed N             this round again
python -m tests.faults.store.bigarray_cut --from N --rounds M  so many rounds
"""

from __future__ import annotations

import argparse
import errno
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import attrs

from sluiceway.queues.logs.codecs import Codec
from sluiceway.store.bigarray import ArrayError
from tests.store.bigarray.twin import EPOCH_MS, SMALL, Twin

ERRORS: Final = (errno.ENOSPC, errno.EIO)


class Round:
    """One array, several lives."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random = Random(seed)
        options = attrs.evolve(
            SMALL,
            index_page_items=random.choice((1, 3, 16, 100, 1000)),
            data_page_bytes=random.choice((1024, 1536, 4096, 1 << 16)),
            lease_items=random.choice((1, 5, 40)),
            mapped_pages_max=random.choice((1, 3, 16)),
            dirty_pages_max=random.choice((1, 3, 50)),
        )
        self.twin = Twin(folder, seed, options)
        self.flush_share = random.choice((0.02, 0.1, 0.4))
        self.remove_share = random.choice((0.0, 0.05))
        self.fault_share = random.choice((0.0, 0.0, 0.1))
        self.value_bytes_max = random.choice((5, 60, 300))
        self.count_max = random.choice((1, 4, 20))
        self.said: Counter[str] = Counter()

    def run(self) -> None:
        """Raises AssertionError for a promise that was not kept."""
        random, twin = self.random, self.twin
        try:
            for _ in range(random.randint(1, 8)):
                self._open()
                twin.compare()
                for _ in range(random.choice((0, 3, 15, 40))):
                    self._act()
                    if twin.array is None:
                        self._open()
                self._end()
            self._open()
            twin.compare()
        finally:
            twin.files.kill()

    def _open(self) -> None:
        """A disk that fails now and then lets it open at last; a power cut in the middle is one more."""
        twin, random = self.twin, self.random
        while twin.array is None:
            if random.random() < self.fault_share:
                twin.files.fail(random.randint(1, 12), random.choice(ERRORS), short=random.random() < 0.5)
            try:
                twin.open()
            except ArrayError:
                self.said["open failed"] += 1
                if random.random() < 0.5:
                    twin.power_cut()
                else:
                    twin.files.kill()
            twin.files.fail(0, 0)

    def _act(self) -> None:
        random, twin = self.random, self.twin
        if random.random() < self.fault_share:
            twin.files.fail(random.randint(1, 8), random.choice(ERRORS), short=random.random() < 0.5)
        twin.now_ms += random.choice((0, 0, 1, 50, -20))
        chance = random.random()
        try:
            if chance < self.flush_share:
                twin.flush()
            elif chance < self.flush_share + self.remove_share:
                self._remove()
            elif chance < 0.9:
                runs = [self._values() for _ in range(random.choice((1, 1, 1, 2, 5)))]
                twin.append_batches(runs, random.choice((Codec.NONE, Codec.NONE, Codec.ZSTD)))
            elif twin.next > twin.first:
                self._look()
        except ArrayError as error:
            self.said[type(error).__name__] += 1

    def _values(self) -> list[bytes]:
        """Of one batch, which fits into the smallest page."""
        random = self.random
        count = random.randint(1, min(self.count_max, 900 // (self.value_bytes_max + 5)))
        return [random.randbytes(random.randint(0, self.value_bytes_max)) for _ in range(count)]

    def _remove(self) -> None:
        random, twin = self.random, self.twin
        kind = random.randrange(3)
        if kind == 0:
            twin.remove_to(random.randint(twin.first, twin.next))
        elif kind == 1:
            twin.remove_before(random.randint(EPOCH_MS - 1000, twin.now_ms + 1000))
        else:
            twin.limit(random.randrange(20_000))

    def _look(self) -> None:
        random, twin = self.random, self.twin
        start = random.randrange(twin.first, twin.next)
        stop = random.randint(start + 1, min(twin.next, start + 200))
        twin.compare_cut(start, stop, random.randint(1, 5000))
        twin.compare_range(start, stop)
        time = random.randint(EPOCH_MS - 1000, twin.now_ms + 1000)
        assert twin.there.find_closest_index(time) == twin.closest(time)
        twin.there.warm(start, stop)

    def _end(self) -> None:
        twin = self.twin
        ending = self.random.choice(("close", "kill", "power cut", "power cut", "power cut"))
        self.said[ending] += 1
        lost_count = twin.lost_count
        twin.files.fail(0, 0)
        if ending == "power cut":
            twin.power_cut()
        elif ending == "kill":
            twin.kill()
        else:
            try:
                twin.close()
            except ArrayError:
                return  # after a sync that failed; nothing more is promised
        if ending != "power cut" and not self.fault_share:
            self._open()
            assert twin.lost_count == lost_count, "a crash of the process loses nothing"


def run_round(seed: int) -> Round:
    """Raises AssertionError, naming the seed."""
    with tempfile.TemporaryDirectory() as folder:
        this = Round(seed, Path(folder))
        try:
            this.run()
        except Exception as error:
            error.add_note(f"again: python -m tests.faults.store.bigarray_cut --seed {seed}")
            raise
        return this


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", type=int, default=0, dest="start")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args(arguments)
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.rounds)
    said: Counter[str] = Counter()
    for seed in seeds:
        done = run_round(seed)
        said += done.said
        said["records lost"] += done.twin.lost_count
    print(f"{len(seeds)} rounds: {dict(said)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
