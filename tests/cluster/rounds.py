"""Rounds of load and faults on a cluster for real: three hub processes, a real ZooKeeper, a real PostgreSQL.

Clients send to and consume from eight queues in eight shards by way of all hubs, and come back to any hub when a
connection is lost. Each round has one fault under load; then each queue has to serve again within a limit. After a
batch of rounds all queues are drained, and the ledger says what was lost or came twice; the next batch has the same
services and hubs, and other queues in the same shards. Prints a scorecard; exits with 1 if anything that was confirmed
is lost, or came twice without a mark.

    python -m tests.cluster.rounds --rounds 100 --fault kill --fault stop

`--results perf/measured/cluster-rounds.jsonl` appends each batch to the file behind the scorecard in docs/cluster.md;
`python scripts/generate.py` makes the table there anew.

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
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import trio

from scripts.scorecard import table
from tests.cluster.machines.hubs import PATIENCE_SECONDS, SESSION_SECONDS, ThreeHubs, three_hubs
from tests.cluster.machines.ledger import Entry
from tests.cluster.machines.load import Load
from tests.postgresql_server import stop_server

MODULE: Final = "tests.cluster.rounds"
QUEUES_COUNT: Final = 8
PRODUCERS_COUNT: Final = 3
CONSUMERS_COUNT: Final = 3
PAUSE_SECONDS: Final = 0.003
"""Time between two SENDs of a producer."""
BATCH_COUNT: Final = 10
"""Rounds under one ledger, which is in memory."""
WARM_SECONDS: Final = 1.0
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
    pauses_seconds: list[float] = attrs.field(factory=list)
    """Longest time between two deliveries of a queue under load, for each round."""

    @property
    def is_clean(self) -> bool:
        """Whether all promises were kept."""
        return not (self.lost or self.twice_unmarked or self.after_ack)

    @property
    def record(self) -> dict[str, Any]:
        """What a line of the result file says."""
        return {
            "fault": self.fault,
            "rounds": self.rounds_count,
            "sent": self.sent_count,
            "confirmed": self.receipted_count,
            "again_marked": self.again_count - len(self.twice_unmarked),
            "lost": len(self.lost),
            "twice_unmarked": len(self.twice_unmarked),
            "after_ack": len(self.after_ack),
            "pauses_seconds": [round(pause, 1) for pause in self.pauses_seconds],
        }


# ---------------------------------------------------------------------- faults


def _kill(cluster: ThreeHubs, random: Random) -> None:
    hub = random.choice(cluster.hubs)
    hub.kill()
    time.sleep(random.uniform(0.0, 2 * cluster.session_seconds))
    hub.start()


def _stop(cluster: ThreeHubs, random: Random, shares: tuple[float, float] = (1.3, 2.5)) -> None:
    hub = random.choice(cluster.hubs)
    hub.signal(signal.SIGSTOP)
    time.sleep(random.uniform(*shares) * cluster.session_seconds)
    hub.signal(signal.SIGCONT)


def _leave(cluster: ThreeHubs, random: Random) -> None:
    hub = random.choice(cluster.hubs)
    if (code := hub.stop()) != 0:
        raise RoundsError(f"{hub.name} ended with {code}: {hub.log[-2000:]}")
    time.sleep(random.uniform(0.0, 2.0))
    hub.start()


def _zookeeper(cluster: ThreeHubs, random: Random, shares: tuple[float, float] = (1.3, 2.5)) -> None:
    cluster.zookeeper.kill()
    time.sleep(random.uniform(*shares) * cluster.session_seconds)
    cluster.zookeeper.start()


def _postgresql(cluster: ThreeHubs, random: Random) -> None:
    cluster.database.stop("immediate")
    time.sleep(random.uniform(0.0, cluster.session_seconds))
    cluster.database.start()


def _link(cluster: ThreeHubs, random: Random) -> None:
    proxy = random.choice(cluster.hubs[1:]).proxy  # the hub with the lesser name dials: nobody dials the first one
    random.choice((proxy.cut, proxy.stall))()
    time.sleep(random.uniform(0.0, 2 * cluster.session_seconds))
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


async def play(
    cluster: ThreeHubs,
    fault: str,
    rounds_count: int,
    random: Random,
    *,
    batch: int = 0,
    pause_seconds: float = PAUSE_SECONDS,
) -> Score:
    """Play a batch of rounds of one fault, and drain. `batch`: part of the names of its queues, so that nothing of
    another batch comes. Raises RoundsError if a queue does not serve again.
    """
    score = Score(fault)
    queues = tuple(f"/queue/{{{number}}}.{fault}-{batch}" for number in range(QUEUES_COUNT))
    load = Load(cluster.addresses, queues, random)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as producing:
            for _ in range(PRODUCERS_COUNT):
                producing.start_soon(load.produce, pause_seconds)
            for _ in range(CONSUMERS_COUNT):
                nursery.start_soon(load.consume)
            await _all_serve(load, trio.current_time(), cluster)
            for _ in range(rounds_count):
                load.longest_gap_seconds = 0.0
                await trio.sleep(WARM_SECONDS * random.uniform(0.5, 1.5))
                await trio.to_thread.run_sync(FAULTS[fault], cluster, random)
                await _all_serve(load, trio.current_time(), cluster)
                score.rounds_count += 1
                score.pauses_seconds.append(load.longest_gap_seconds)
            load.is_producing = False
            await _answered(load, cluster.patience_seconds)
        await _drained(load)
        nursery.cancel_scope.cancel()
    ledger = load.ledger
    score.sent_count, score.receipted_count = len(ledger.entries), ledger.receipted_count
    score.delivered_count, score.again_count = ledger.delivered_count, ledger.again_count
    score.lost, score.twice_unmarked, score.after_ack = ledger.lost, ledger.twice_unmarked, ledger.came_after_ack
    if ledger.strangers:
        raise RoundsError(f"messages that nobody sent came: {ledger.strangers[:3]}")
    return score


async def _all_serve(load: Load, since_seconds: float, cluster: ThreeHubs) -> None:
    """Wait until each queue has delivered something since then. Raises RoundsError."""
    while True:
        left = [queue for queue in load.queues if load.heard_at_seconds.get(queue, -1.0) <= since_seconds]
        if not left:
            return
        if trio.current_time() - since_seconds > cluster.patience_seconds:
            logs = "\n".join(f"--- {hub.name}\n{hub.log[-3000:]}" for hub in cluster.hubs)
            raise RoundsError(f"{', '.join(left)} did not serve again within {cluster.patience_seconds:g} s\n{logs}")
        await trio.sleep(0.05)


async def _answered(load: Load, patience_seconds: float) -> None:
    """Wait until each SEND over a connection that lasts has its RECEIPT. Raises RoundsError."""
    with trio.move_on_after(patience_seconds):
        while load.waiting:  # noqa: ASYNC110 - of sockets
            await trio.sleep(0.05)
    if load.waiting:
        told = "\n".join("\n    ".join((entry.name, *entry.history)) for entry in load.waiting[:3])
        count = len(load.waiting)
        raise RoundsError(f"{count} SENDs over connections that last have no RECEIPT\n{told}")


async def _drained(load: Load) -> None:
    """Wait until all that was confirmed has come, and nothing more comes."""
    with trio.move_on_after(DRAIN_SECONDS_MAX):
        while load.ledger.lost or trio.current_time() - load.quiet_since_seconds < QUIET_SECONDS:  # noqa: ASYNC110 - of sockets
            await trio.sleep(0.1)


def _copy_logs(cluster: ThreeHubs, folder: Path | None, name: str) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for hub in cluster.hubs:
            (folder / f"{name} {hub.name}.log").write_text(hub.log)


def _report(score: Score) -> None:
    print(f"{score.fault}: {score.rounds_count} rounds, {'clean' if score.is_clean else 'NOT CLEAN'}", flush=True)
    for what in ("lost", "twice_unmarked", "after_ack"):
        for entry in getattr(score, what)[:3]:
            print("\n    ".join((f"  {what}: {entry.name}", *entry.history)), flush=True)


def _play_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Play what the command line says, in one cluster. Returns a record of each batch."""
    records: list[dict[str, Any]] = []
    with three_hubs(session_seconds=options.session) as cluster:
        cluster.patience_seconds = options.patience
        for fault in options.fault or FAULTS:
            for first in range(0, options.rounds, options.batch):
                rounds_count = min(options.batch, options.rounds - first)
                random = Random(f"{options.seed} {fault} {first}")
                began_seconds = time.monotonic()
                play_batch = partial(play, batch=first, pause_seconds=options.pause)
                try:
                    score = trio.run(play_batch, cluster, fault, rounds_count, random)
                except BaseException:
                    _copy_logs(cluster, options.logs, f"{fault} {first}")
                    raise
                _report(score)
                if not score.is_clean:
                    _copy_logs(cluster, options.logs, f"{fault} {first}")
                records.append(
                    {
                        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
                        "session_seconds": options.session,
                        "seconds": round(time.monotonic() - began_seconds, 1),
                        **score.record,
                    }
                )
                if options.results:
                    with options.results.open("a") as results:
                        results.write(f"{json.dumps(records[-1])}\n")
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each fault")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="one or more [default: all]")
    parser.add_argument("--batch", type=int, default=BATCH_COUNT, help="rounds before the queues are drained")
    parser.add_argument("--session", type=float, default=SESSION_SECONDS, help="session of the hubs, in seconds")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_SECONDS, help="seconds within which each queue has to serve again"
    )
    parser.add_argument("--pause", type=float, default=PAUSE_SECONDS, help="seconds between SENDs of a producer")
    parser.add_argument("--seed", type=int, default=0, help="what is random in faults and loads")
    parser.add_argument("--results", type=Path, help="file to which a line of JSON is appended for each batch")
    parser.add_argument("--logs", type=Path, help="folder to which the logs of the hubs are copied if a promise breaks")
    options = parser.parse_args(arguments)
    try:
        records = _play_all(options)
    finally:
        stop_server()
    print("\n".join(table(records)))
    return 0 if all(not (each["lost"] or each["twice_unmarked"] or each["after_ack"]) for each in records) else 1


if __name__ == "__main__":
    sys.exit(main())
