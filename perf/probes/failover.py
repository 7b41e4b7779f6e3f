"""Measures what a killed owner costs: three hubs, one of which holds a million stored messages, and `kill -9`.

    python -m perf.probes.failover                    hubs of a real ZooKeeper and PostgreSQL, session of 4 s
    python -m perf.probes.failover --engine leveldb   `serve --hubs 3`, on one data folder

Each destination of the hub that dies has a producer that waits for the RECEIPT of each message, and a consumer, both at
hubs that live: how long until they continue is shown. What clients of other shards notice is shown by messages that go
through queues of the living hubs, one after another, on connections to the owner: their latency before the kill, and
until all shards are open again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, Protocol

import attrs

from sluiceway.queues.shard_hash import shard_of
from tests.interop.raw_client import RawClient, frame
from tests.sluiceway.broker_process import BrokerProcess

Address = tuple[str, int]

FILL_BATCH_COUNT: Final = 2_000
BEFORE_SECONDS: Final = 5.0
"""Time of undisturbed work, for comparison."""
BEHIND_SECONDS: Final = 2.0
"""Time behind the last shard that is open again, for what follows it."""
OVER_SECONDS_MAX: Final = 120.0
PROBE_SECONDS: Final = 0.01
"""Pause between two messages of a probe."""


class Stand(Protocol):
    """A cluster that serves."""

    session_seconds: float

    def client(self, hub: str) -> RawClient:
        """Return a new connection to a hub, which is connected."""

    def kill(self, hub: str) -> None:
        """kill -9."""

    def log(self) -> str:
        """Return what all hubs have logged."""


class Machines:
    """Hubs with ZooKeeper and PostgreSQL."""

    def __init__(self, cluster: Any, session_seconds: float) -> None:
        self.session_seconds = session_seconds
        self._hubs = {hub.name: hub for hub in cluster.hubs}

    def client(self, hub: str) -> RawClient:
        client = RawClient(self._hubs[hub].address)
        client.connect()
        return client

    def kill(self, hub: str) -> None:
        self._hubs[hub].kill()

    def log(self) -> str:
        return "".join(hub.log for hub in self._hubs.values())


class OneHost:
    """Hubs of `serve --hubs`."""

    session_seconds = 0.0
    """The session of a process that is gone ends at once."""

    def __init__(self, supervisor: BrokerProcess) -> None:
        self._supervisor = supervisor

    def client(self, hub: str) -> RawClient:
        others: list[RawClient] = []
        try:
            for _ in range(1000):  # the kernel chooses
                client = RawClient(self._supervisor.address)
                if client.connect()["session"].partition("~")[0] == hub:
                    return client
                others.append(client)
        finally:
            for other in others:
                other.close()
        raise TimeoutError(f"no connection came to {hub}")

    def kill(self, hub: str) -> None:
        ready = [line for line in events(self.log()) if line["event"] == "hub ready" and line["hub"] == hub]
        os.kill(ready[-1]["pid"], signal.SIGKILL)

    def log(self) -> str:
        return self._supervisor.log


@contextmanager
def standing(engine: str, shards_count: int) -> Iterator[Stand]:
    """Start a cluster; it is ended behind the block."""
    with ExitStack() as stack:
        if engine == "postgresql":
            from tests.cluster.machines.hubs import SESSION_SECONDS, three_hubs  # with kazoo and psycopg
            from tests.postgresql_server import stop_server

            stack.callback(stop_server)
            yield Machines(stack.enter_context(three_hubs(shards_count=shards_count)), SESSION_SECONDS)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluiceway-failover-")))
            arguments = ("--hubs", "3", "--data", str(folder / "data"))
            supervisor = stack.enter_context(BrokerProcess(folder, *arguments, ready_seconds=60))
            stack.callback(supervisor.wait)
            stack.callback(supervisor.signal, signal.SIGTERM)
            yield OneHost(supervisor)


def events(log: str) -> list[dict[str, Any]]:
    """Return the lines of a log."""
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


# ---------------------------------------------------------------------- clients


def fill(client: RawClient, queue: str, messages_count: int, body: bytes) -> None:
    """Store messages in a queue."""
    one = frame("SEND", body, destination=queue, persistent="true")
    with client:
        for first in range(0, messages_count, FILL_BATCH_COUNT):
            last = frame("SEND", body, destination=queue, persistent="true", receipt=str(first))
            client.send(one * (min(FILL_BATCH_COUNT, messages_count - first) - 1) + last)
            client.expect("RECEIPT")


@attrs.define
class Seen:
    """Times at which something came back, on the monotonic clock."""

    at_seconds: list[float] = attrs.field(factory=list)

    def pause_seconds(self, since_seconds: float) -> float:
        """Return the time from a moment to what came first behind it; infinity: nothing has."""
        return next((at for at in self.at_seconds if at > since_seconds), float("inf")) - since_seconds


def produce(client: RawClient, queue: str, seen: Seen, is_over: threading.Event) -> None:
    """Send one message after another, each when the RECEIPT of the last one is there."""
    with client, suppress(EOFError):
        for number in count():
            client.send(frame("SEND", b"more", destination=queue, persistent="true", receipt=str(number)))
            client.expect("RECEIPT")
            seen.at_seconds.append(time.monotonic())
            if is_over.wait(0.05):
                return


def consume(client: RawClient, queue: str, seen: Seen, is_over: threading.Event) -> None:
    """Acknowledge one message after another."""
    with client, suppress(EOFError):
        client.send(frame("SUBSCRIBE", id="1", destination=queue, ack="client-individual", prefetch_count="1"))
        while not is_over.wait(0.05):
            delivery = client.expect("MESSAGE")
            seen.at_seconds.append(time.monotonic())
            client.send(frame("ACK", id=delivery.headers["ack"]))


def probe(client: RawClient, queue: str, is_over: Any, answer: Any) -> None:
    """Let messages pass a queue of a hub that lives, one after another, in a process of its own. Answers with times and
    latencies.
    """
    seen: list[tuple[float, float]] = []
    with client:
        client.send(frame("SUBSCRIBE", id="1", destination=queue, ack="auto"))
        while not is_over.wait(PROBE_SECONDS):
            began_seconds = time.monotonic()
            client.send(frame("SEND", b"ping", destination=queue))
            client.expect("MESSAGE")
            seen.append((began_seconds, time.monotonic() - began_seconds))
    answer.send(seen)


# ---------------------------------------------------------------------- one run


@attrs.frozen
class Figures:
    """Result of one run, in seconds."""

    engine: str
    messages_count: int
    session_seconds: float
    receipts: list[float]
    """Pause of each producer."""
    deliveries: list[float]
    """Pause of each consumer."""
    openings: list[float]
    """Time of each opening, from the kill on."""
    before: list[float]
    """Latencies at other shards before the kill."""
    during: list[float]
    """Latencies at other shards until the last shard was open again, and a little longer."""

    def __str__(self) -> str:
        lines = [
            f"{self.engine}: {self.messages_count:,} messages in the {len(self.receipts)} shards of the killed hub",
            f"  session                          {self.session_seconds:6.2f} s",
            f"  shards open again, behind that   {self._behind(self.openings)}",
            f"  producers continue, behind that  {self._behind(self.receipts)}",
            f"  consumers continue, behind that  {self._behind(self.deliveries)}",
            f"  latency at other shards before   {_latency(self.before)}",
            f"                          during   {_latency(self.during)}",
        ]
        return "\n".join(lines)

    def _behind(self, seconds: list[float]) -> str:
        return f"first {min(seconds) - self.session_seconds:5.2f} s, last {max(seconds) - self.session_seconds:5.2f} s"


def _latency(seconds: list[float]) -> str:
    cuts = quantiles(seconds, n=1000)
    p50, p99, p999 = (1000 * cuts[at] for at in (499, 989, 998))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f}, p99.9 {p999:.2f}, longest {1000 * max(seconds):.1f} ({len(seconds)})"


def measured(engine: str, messages_count: int, body_bytes: int, shards_count: int) -> Figures:
    """Measure one failover. Raises TimeoutError."""
    with standing(engine, shards_count) as stand:
        owners = _owners(stand, shards_count)
        victim = "hub-2"
        queues = {shard: _name_in(shard, shards_count) for shard in range(shards_count)}
        lost = [queues[shard] for shard, hub in owners.items() if hub == victim]
        began_seconds = time.monotonic()
        for queue in lost:
            fill(stand.client(victim), queue, messages_count // len(lost), b"x" * body_bytes)
        print(f"filled in {time.monotonic() - began_seconds:.0f} s", file=sys.stderr, flush=True)
        living = [hub for hub in sorted(set(owners.values())) if hub != victim]
        kept = {hub: next(queues[shard] for shard, owner in owners.items() if owner == hub) for hub in living}
        is_over = threading.Event()
        receipts, deliveries = [Seen() for _ in lost], [Seen() for _ in lost]
        threads = [
            threading.Thread(target=work, args=(stand.client(living[place % 2]), queue, seen, is_over), daemon=True)
            for work, all_seen in ((produce, receipts), (consume, deliveries))
            for place, (queue, seen) in enumerate(zip(lost, all_seen, strict=True))
        ]
        probes = _Probes(stand, kept)
        for thread in threads:
            thread.start()
        time.sleep(BEFORE_SECONDS)
        killed_seconds = time.monotonic()
        killed_at = time.time()
        stand.kill(victim)
        until_seconds = killed_seconds + OVER_SECONDS_MAX
        while any(seen.pause_seconds(killed_seconds + 0.2) == float("inf") for seen in (*receipts, *deliveries)):
            if time.monotonic() > until_seconds:
                raise TimeoutError(f"not all shards serve again; the hubs logged {stand.log()[-4000:]}")
            time.sleep(0.05)
        time.sleep(BEHIND_SECONDS)
        is_over.set()
        latencies = probes.stop()
        opened = [
            _at(line["timestamp"]) - killed_at
            for line in events(stand.log())
            if line["event"] == "shard opened" and _at(line["timestamp"]) > killed_at
        ]
    return Figures(
        engine,
        messages_count,
        stand.session_seconds,
        [seen.pause_seconds(killed_seconds + 0.2) + 0.2 for seen in receipts],
        [seen.pause_seconds(killed_seconds + 0.2) + 0.2 for seen in deliveries],
        opened,
        [seconds for at, seconds in latencies if at < killed_seconds - 0.1],
        [seconds for at, seconds in latencies if at >= killed_seconds - 0.1],
    )


class _Probes:
    """A probe for each hub that lives."""

    def __init__(self, stand: Stand, queues: dict[str, str]) -> None:
        """`queues`: one that each hub has."""
        forking = multiprocessing.get_context("fork")
        self._is_over = forking.Event()
        self._answers = []
        self._processes = []
        for hub, queue in queues.items():
            answer, theirs = forking.Pipe(duplex=False)
            client = stand.client(hub)
            process = forking.Process(target=probe, args=(client, queue, self._is_over, theirs), daemon=True)
            process.start()
            client.close()
            theirs.close()
            self._answers.append(answer)
            self._processes.append(process)

    def stop(self) -> list[tuple[float, float]]:
        """Return times and latencies of all."""
        self._is_over.set()
        seen = [each for answer in self._answers for each in answer.recv()]
        for process in self._processes:
            process.join()
        return seen


def _owners(stand: Stand, shards_count: int) -> dict[int, str]:
    """Wait until all shards are open, and divided evenly. Returns the hub of each."""
    until_seconds = time.monotonic() + OVER_SECONDS_MAX
    while time.monotonic() < until_seconds:
        with stand.client("hub-1") as client:
            hubs = {row["name"]: row.get("shards", ()) for row in client.report()["hubs"]}
        owners = {shard: hub for hub, shards in hubs.items() for shard in shards}
        counts = [len(shards) for shards in hubs.values()]
        if len(owners) == shards_count and len(counts) == 3 and max(counts) - min(counts) <= 1:
            return owners
        time.sleep(0.5)
    raise TimeoutError(f"the shards are not divided: {hubs}")


def _name_in(shard: int, shards_count: int) -> str:
    return next(name for name in map("/queue/failover-{}".format, count()) if shard_of(name, shards_count) == shard)


def _at(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.probes.failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["postgresql", "leveldb"], default="postgresql")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the hub that is killed [default: 1000000]")
    parser.add_argument("--body", type=int, default=100, metavar="BYTES", help="of each [default: 100]")
    parser.add_argument("--shards", type=int, default=16, help="with PostgreSQL [default: 16]; else there are 32")
    options = parser.parse_args(arguments)
    shards_count = options.shards if options.engine == "postgresql" else 32
    print(measured(options.engine, options.messages, options.body, shards_count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
