"""Plays clusters from many seeds, and prints the smallest history that breaks a law.

python -m tests.cluster.play --seeds 1000              owners of shards, from seed 0 on (simulation.py)
python -m tests.cluster.play --messages --seeds 100    whole hubs with their messages, whose shards move (moving.py)
python -m tests.cluster.play --messages --stay         the same with owners that stay, and disks of their own (whole.py)
python -m tests.cluster.play --mixed                   with durable subscriptions, transactions, topics, logs (mixed.py)
python -m tests.cluster.play --seeds 1 --first 4711    one of them again
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from sluiceway.simulation import SeedError, run_seeds
from tests.cluster import mixed, moving, whole
from tests.cluster.simulation import Cluster, Plan, failure_of, smallest


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.play", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: 0)")
    parser.add_argument("--steps", type=int, default=25, help="faults and moves of each (default: 25)")
    parser.add_argument("--messages", action="store_true", help="whole hubs, in place of owners alone")
    parser.add_argument("--stay", action="store_true", help="with --messages: owners do not move")
    parser.add_argument("--mixed", action="store_true", help="whole hubs whose shards move, with clients of all kinds")
    arguments = parser.parse_args()
    if arguments.mixed:
        return play_messages(mixed.laws_hold, arguments.first, arguments.seeds)
    if arguments.messages:
        return play_messages(whole.laws_hold if arguments.stay else moving.laws_hold, arguments.first, arguments.seeds)
    return play_owners(arguments.first, arguments.seeds, arguments.steps)


def play_messages(laws_hold: Callable[[int], Awaitable[None]], first: int, seeds_count: int) -> int:
    """Play whole hubs. Returns the exit code."""
    try:
        played = run_seeds(laws_hold, first=first, seeds=seeds_count)
    except SeedError as error:
        print(error)
        return 1
    print(played)
    return 0


def play_owners(first: int, seeds_count: int, steps_count: int) -> int:
    """Play owners of shards. Returns the exit code."""
    injected: Counter[str] = Counter()
    refused_count = 0
    started = time.monotonic()
    for seed in range(first, first + seeds_count):
        plan = Plan.of(seed, steps_count)
        cluster = Cluster(plan)
        try:
            cluster.play()
        except AssertionError as error:
            print(f"seed {seed} breaks a law: {error}")
            least = smallest(plan)
            print(f"the smallest history that does, of {len(plan.steps)} steps: {failure_of(least)}")
            print(f"  {least.hubs_count} hubs, {least.shards_count} shards, {least.faults}")
            print("".join(f"  {step}\n" for step in least.steps), end="")
            return 1
        injected.update(cluster.injected)
        refused_count += cluster.engine.refused_count
    print(f"{seeds_count} seeds in {time.monotonic() - started:.1f} s, no law broken")
    print("  " + ", ".join(f"{what} {count}" for what, count in sorted(injected.items())))
    print(f"  writes refused by the epoch: {refused_count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
