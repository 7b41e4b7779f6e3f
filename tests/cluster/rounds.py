"""Rounds of load and faults on a cluster for real: three hub processes, a real ZooKeeper, a real PostgreSQL.

Clients send to and consume from eight queues in eight shards by way of all hubs, and come back to any hub when a
connection is lost. Each round has one fault under load; then each queue has to serve again within a limit. At the end
all queues are drained, and the ledger says what was lost or came twice. Prints a scorecard; exits with 1 if anything
that was confirmed is lost, or came twice without a mark.

    python -m tests.cluster.rounds --rounds 100 --fault kill --fault stop

    kill        kill -9 of a hub, which is started again a little later
    stop        SIGSTOP of a hub for longer than its session, then SIGCONT: it wakes up as an owner that it is not
    pause       SIGSTOP for less than the session
    leave       SIGTERM of a hub, which hands its shards over, and is started again
    zookeeper   ZooKeeper killed, and started after longer than a session
    blink       the same for less than a session
    postgresql  the database crashed (immediate shutdown), and started again
    link        the links to a hub are cut and refused for a while, or stall, half-open
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import attrs
import trio

from tests.cluster.machines.hubs import SESSION_SECONDS, ThreeHubs, three_hubs
from tests.cluster.machines.ledger import Entry
from tests.cluster.machines.load import Load
from tests.postgresql_server import stop_server

MODULE: Final = "tests.cluster.rounds"
QUEUES: Final = tuple(f"/queue/{{{number}}}.load" for number in range(8))
PRODUCERS_COUNT: Final = 3
CONSUMERS_COUNT: Final = 3
WARM_SECONDS: Final = 1.0
RECOVERY_SECONDS_MAX: Final = 45.0
"""Time within which each queue has to serve again; a failover takes a session and two seconds on a machine at rest."""
DRAIN_SECONDS_MAX: Final = 90.0
QUIET_SECONDS: Final = 2.0


class RoundsError(Exception):
    """A promise was not kept."""


@attrs.define
class Score:
    """What came of the rounds of one fault."""

    fault: str
    rounds_count: int = 0
    sent_count: int = 0
    receipted_count: int = 0
    delivered_count: int = 0
    again_count: int = 0
    """Deliveries beyond the first of a message."""
    lost: list[Entry] = attrs.field(factory=list)
    twice_unmarked: list[Entry] = attrs.field(factory=list)
    after_ack: list[Entry] = attrs.field(factory=list)
    longest_seconds: float = 0.0
    """Longest time between two deliveries of a queue under load."""

    @property
    def is_clean(self) -> bool:
        """Whether all promises were kept."""
        return not (self.lost or self.twice_unmarked or self.after_ack)


COLUMNS: Final[Sequence[tuple[str, Callable[[Score], object]]]] = (
    ("fault", lambda score: score.fault),
    ("rounds", lambda score: score.rounds_count),
    ("sent", lambda score: score.sent_count),
    ("confirmed", lambda score: score.receipted_count),
    ("delivered again, marked", lambda score: score.again_count - len(score.twice_unmarked)),
    ("lost", lambda score: len(score.lost)),
    ("twice unmarked", lambda score: len(score.twice_unmarked)),
    ("again after a confirmed ACK", lambda score: len(score.after_ack)),
    ("longest pause of a queue", lambda score: f"{score.longest_seconds:.1f} s"),
)


def scorecard(scores: Sequence[Score]) -> str:
    """Return a table in Markdown."""
    rows = [[name for name, _value in COLUMNS], ["---"] * len(COLUMNS)]
    rows += [[f"{value(score):,}" if isinstance(value(score), int) else str(value(score)) for _, value in COLUMNS]
             for score in scores]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# ---------------------------------------------------------------------- faults


def _kill(cluster: ThreeHubs, random: Random) -> None:
    hub = random.choice(cluster.hubs)
    hub.kill()
    time.sleep(random.uniform(0.0, 2 * SESSION_SECONDS))
    hub.start()


def _stop(cluster: ThreeHubs, random: Random, shares: tuple[float, float] = (1.3, 2.5)) -> None:
    hub = random.choice(cluster.hubs)
    hub.signal(signal.SIGSTOP)
    time.sleep(random.uniform(*shares) * SESSION_SECONDS)
    hub.signal(signal.SIGCONT)


def _leave(cluster: ThreeHubs, random: Random) -> None:
    hub = random.choice(cluster.hubs)
    if (code := hub.stop()) != 0:
        raise RoundsError(f"{hub.name} ended with {code}: {hub.log[-2000:]}")
    time.sleep(random.uniform(0.0, 2.0))
    hub.start()


def _zookeeper(cluster: ThreeHubs, random: Random, shares: tuple[float, float] = (1.3, 2.5)) -> None:
    cluster.zookeeper.kill()
    time.sleep(random.uniform(*shares) * SESSION_SECONDS)
    cluster.zookeeper.start()


def _postgresql(cluster: ThreeHubs, random: Random) -> None:
    cluster.database.stop("immediate")
    time.sleep(random.uniform(0.0, SESSION_SECONDS))
    cluster.database.start()


def _link(cluster: ThreeHubs, random: Random) -> None:
    proxy = random.choice(cluster.hubs[1:]).proxy  # the hub with the lesser name dials: nobody dials the first one
    random.choice((proxy.cut, proxy.stall))()
    time.sleep(random.uniform(0.0, 2 * SESSION_SECONDS))
    proxy.heal()


FAULTS: Final[Mapping[str, Callable[[ThreeHubs, Random], None]]] = {
    "kill": _kill,
    "stop": _stop,
    "pause": partial(_stop, shares=(0.2, 0.8)),
    "leave": _leave,
    "zookeeper": _zookeeper,
    "blink": partial(_zookeeper, shares=(0.0, 0.4)),
    "postgresql": _postgresql,
    "link": _link,
}


# ---------------------------------------------------------------------- rounds


async def play(cluster: ThreeHubs, fault: str, rounds_count: int, random: Random) -> Score:
    """Play rounds of one fault, and drain. Raises RoundsError if a queue does not serve again."""
    score = Score(fault)
    load = Load(cluster.addresses, QUEUES, random)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as producing:
            for _ in range(PRODUCERS_COUNT):
                producing.start_soon(load.produce, 0.003)
            for _ in range(CONSUMERS_COUNT):
                nursery.start_soon(load.consume)
            await _all_serve(load, trio.current_time(), cluster)
            load.longest_gap_seconds = 0.0
            for _ in range(rounds_count):
                await trio.sleep(WARM_SECONDS * random.uniform(0.5, 1.5))
                await trio.to_thread.run_sync(FAULTS[fault], cluster, random)
                await _all_serve(load, trio.current_time(), cluster)
                score.rounds_count += 1
            load.is_producing = False
        await _drained(load)
        nursery.cancel_scope.cancel()
    ledger = load.ledger
    score.longest_seconds = load.longest_gap_seconds
    score.sent_count, score.receipted_count = len(ledger.entries), ledger.receipted_count
    score.delivered_count, score.again_count = ledger.delivered_count, ledger.again_count
    score.lost, score.twice_unmarked, score.after_ack = ledger.lost, ledger.twice_unmarked, ledger.came_after_ack
    if ledger.strangers:
        raise RoundsError(f"messages that nobody sent came: {ledger.strangers[:3]}")
    return score


async def _all_serve(load: Load, since_seconds: float, cluster: ThreeHubs) -> None:
    """Wait until each queue has delivered something since then. Raises RoundsError."""
    while True:
        left = [queue for queue in QUEUES if load.heard_at_seconds.get(queue, -1.0) <= since_seconds]
        if not left:
            return
        if trio.current_time() - since_seconds > RECOVERY_SECONDS_MAX:
            logs = "\n".join(f"--- {hub.name}\n{hub.log[-3000:]}" for hub in cluster.hubs)
            raise RoundsError(f"{', '.join(left)} did not serve again within {RECOVERY_SECONDS_MAX:g} s\n{logs}")
        await trio.sleep(0.05)


async def _drained(load: Load) -> None:
    """Wait until all that was confirmed has come, and nothing more comes."""
    with trio.move_on_after(DRAIN_SECONDS_MAX):
        while load.ledger.lost or trio.current_time() - load.quiet_since_seconds < QUIET_SECONDS:  # noqa: ASYNC110 - of sockets
            await trio.sleep(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each fault")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="one or more [default: all]")
    parser.add_argument("--seed", type=int, default=0, help="what is random in faults and loads")
    parser.add_argument("--logs", type=Path, help="folder to which the logs of the hubs are copied")
    options = parser.parse_args(arguments)
    scores: list[Score] = []
    try:
        for fault in options.fault or FAULTS:
            with three_hubs() as cluster:
                scores.append(trio.run(play, cluster, fault, options.rounds, Random(f"{options.seed} {fault}")))
                score = scores[-1]
                print(f"{fault}: {score.rounds_count} rounds, {'clean' if score.is_clean else 'NOT CLEAN'}", flush=True)
                for what in ("lost", "twice_unmarked", "after_ack"):
                    for entry in getattr(score, what)[:3]:
                        print("\n    ".join((f"  {what}: {entry.name}", *entry.history)), flush=True)
                if options.logs:
                    for hub in cluster.hubs:
                        (options.logs / f"{fault} {hub.name}.log").write_text(hub.log)
    finally:
        stop_server()
        if scores:
            print(scorecard(scores))
    return 0 if all(score.is_clean for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
