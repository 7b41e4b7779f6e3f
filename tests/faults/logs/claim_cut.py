"""Rounds of claims and staged commits, with sudden death: a queue that is read by claims, and queries that publish what
they have staged, on one store and one folder of logs, in several lives of a broker. The process dies or the power fails
at any moment, or just before or after any change to a file or a write to the store; disks are slow, and may be full.

Outside of these lives are checkpoints: which claim a reader is at, which batch a query is at, as Spark has them. So:

    the same or none    a claim that is read again has the same records, or nothing
    nothing lost        every message whose RECEIPT said `disk` is in a claim that was read and acknowledged
    once                every batch that was committed is in its targets exactly once, each part whole and in one piece;
                        one whose commit was never answered is there once or not at all
    again and again     acknowledgements and commits can be repeated

    python -m tests.faults.logs.claim_cut --seed N             this round again
    python -m tests.faults.logs.claim_cut --from N --rounds M  so many rounds
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import trio

from sluiceway.broker import Broker
from sluiceway.config import BrokerConfig, Config, DestinationPolicy, Listener
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.store.log_storage import LogStorageConfig
from tests.faults.logs.lives import MortalFiles, array_options
from tests.faults.logs.power_cut import FailingFiles, SlowLogBroker
from tests.faults.rounds import play, play_many
from tests.faults.store.slow_disk import MortalEngine, Pace
from tests.faults.store.small_store import small
from tests.scenarios.client import Client
from tests.scenarios.log_stage import records_of
from tests.scenarios.stage import wall_clock_ms
from tests.store.bigarray.faulty import FaultyFiles
from tests.store.faulty import FaultyEngine

MODULE: Final = "tests.faults.logs.claim_cut"

PATIENCE_SECONDS: Final = 900.0
QUEUE: Final = "/queue/q"
GROUP: Final = "g"
TARGETS: Final = ("/log/t", "/log/u.v")
STAGE: Final = "/log/sluiceway.stage."
GRACE_SECONDS: Final = 30.0


class BrokenPromiseError(AssertionError):
    """What should not be."""


class LifeIsOverError(Exception):
    """Whatever comes now comes from nobody."""


@attrs.define(eq=False)
class Reader:
    """A reader's checkpoint, and all it ever saw."""

    offset: int = 0
    """All claims up to this are committed."""
    logged: int = 0
    """The claims up to this are in the micro-batch that is being worked on."""
    contents: dict[int, list[str]] = attrs.field(factory=dict)
    """Of claims, as they were read first."""
    nothing: set[int] = attrs.field(factory=set)
    """Claims that were read as nothing."""
    committed: Counter[str] = attrs.field(factory=Counter)
    """Messages in claims that are committed."""


@attrs.define(eq=False)
class Query:
    """A query's checkpoint."""

    name: str
    batch: int = 0
    parts: list[tuple[str, list[str]]] = attrs.field(factory=list)
    """Of the batch that it is at: targets and values."""
    is_made: bool = False
    """`parts` says what is in the batch, be it nothing."""
    asked: bool = False
    """Its commit was asked for."""
    committed: dict[int, list[tuple[str, list[str]]]] = attrs.field(factory=dict)


class Peer:
    """A connection of one life."""

    def __init__(self, round_: Round, broker: Broker, name: str) -> None:
        self._round = round_
        self._dead = round_.dead
        self.client = Client(broker.connect_memory(name=name), name)

    async def connect(self) -> None:
        await self.client.connect("1.2")
        await self.client.subscribe("/temp-queue/r", id="r")
        self._check()

    def _check(self) -> None:
        if self._dead.is_set():
            raise LifeIsOverError

    async def _receive(self) -> None:
        await self.client._receive()
        self._check()
        if self.client.ended or self.client.error is not None:
            said = str(self.client.error)
            if "can't be opened" in said and self._round.failure_share:
                raise LifeIsOverError
            raise BrokenPromiseError(f"the broker has gone: {said}")

    async def ask(self, request: str, **facts: Any) -> dict[str, Any]:
        """The reply. Waits as long as it takes."""
        await self.client.send(f"/sluiceway/{request}", json.dumps(facts), reply_to="/temp-queue/r")
        while not self.client.messages:
            await self._receive()
        self._check()
        return dict(json.loads(self.client.messages.popleft().body))

    async def sent(self, destination: str, body: bytes, **headers: str) -> str:
        """SEND, and wait for the RECEIPT: what it says of durability."""
        receipt = self.client.new_receipt_id()
        await self.client.send(destination, body, receipt=receipt, **headers)
        while receipt not in self.client.receipts:
            await self._receive()
        self.client.receipts.remove(receipt)
        frames = [frame for frame in self.client.received if frame.headers.get("receipt-id") == receipt]
        return frames[0].headers.get("durability", "")

    async def read(self, log: str, start: int, stop: int) -> list[str]:
        """These records; they must all be there."""
        found: list[str] = []
        identity = self.client.new_receipt_id()
        await self.client.subscribe(log, id=identity, **{"from": str(start), "to": str(stop)})
        while True:
            while not self.client.messages:
                await self._receive()
            delivery = self.client.messages.popleft()
            if "range-end" in delivery.headers:
                break
            if "gap" in delivery.headers:
                raise BrokenPromiseError(f"{log} {start} to {stop}: {delivery.headers}")
            found += [value.decode() for _index, value in records_of([delivery])]
        await self.client.unsubscribe(identity)
        return found


class Round:
    """See the module."""

    def __init__(self, random: Random, folder: Path) -> None:
        self.random = random
        self.engine = FaultyEngine(Random(random.random()))
        self.files = FaultyFiles(Random(random.random()), folder / "vault")
        self.dead = trio.Event()
        self.story: list[str] = []
        self.safe: set[str] = set()
        """Messages whose RECEIPT said `disk`."""
        self.reader = Reader()
        self.queries = [Query("q one"), Query("q2")]
        self.replays_count = 0
        self._made_count = self._stages_count = 0
        self._folder = folder / "logs"
        self._boot = 0
        self.failure_share = random.choice((0.0, 0.0, 0.0, 0.02))
        self._pace = Pace(
            random.choice((0.0, 0.002, 0.02)), random.choice((0.05, 0.5)), random.choice((0.0, 0.02, 0.2))
        )
        self._config = Config(
            broker=BrokerConfig(shutdown_seconds=5.0),
            logs=LogStorageConfig(
                data_page_bytes=random.choice((8192, 1 << 20)), index_page_count=random.choice((16, 4096))
            ),
            listeners=(Listener(address="127.0.0.1:0", limits=StompLimits()),),
            destinations=(
                DestinationPolicy("/queue/>", {"memory_bytes": random.choice((8_000, 1_000_000))}),
                DestinationPolicy("/log/>", {"log_sync": random.choice(("receipt", "interval", "none"))}),
            ),
        )

    def _broker(self, engine: MortalEngine, files: MortalFiles) -> Broker:
        return SlowLogBroker(
            self._config,
            now_ms=wall_clock_ms,
            engine=engine,
            journal_folder=self._folder,
            journal_files=files,
            boot=f"boot {self._boot}",
            random=Random(self.random.random()),
            pace=self._pace,
        )

    async def run(self) -> None:
        """The whole round. Raises BrokenPromiseError, or whatever the broker died of."""
        lives_count = self.random.randint(1, 6)
        with trio.fail_after(PATIENCE_SECONDS * (lives_count + 1)):
            for _ in range(lives_count):
                await self._live()
            await self._audit()

    async def _live(self) -> None:
        random = self.random
        ending = random.choice(("crash", "crash", "power cut", "power cut", "stop"))
        engine = MortalEngine(self.engine)
        files = FailingFiles(self.files, Random(random.random()), 0.0)
        self.dead = trio.Event()
        with trio.CancelScope() as life:

            def die() -> None:
                if not self.dead.is_set():
                    self.dead.set()
                    files.dead = True
                    if ending == "power cut":
                        self.engine = self.engine.power_cut()
                        self.files.power_cut()
                    else:
                        self.engine = self.engine.crash()
                        self.files.kill()

            files.die = engine.die = die
            try:
                async with self._broker(engine, files) as broker, trio.open_nursery() as nursery:
                    files.share = self.failure_share
                    if ending != "stop":
                        if random.random() < 0.4:
                            files.operations_left = random.randint(1, random.choice((10, 60, 300)))
                            files.dies_before = random.random() < 0.5
                        elif random.random() < 0.6:
                            engine.writes_left = random.randint(1, random.choice((5, 20, 60)))
                            engine.dies_before = random.random() < 0.5
                    for task in (self._produce, self._read_claims, *[self._publisher(query) for query in self.queries]):
                        nursery.start_soon(self._do, task, broker)
                    with trio.move_on_after(random.choice((0.3, 2, 10)) * random.random() + 0.05):
                        await self.dead.wait()
                    if ending == "stop" and not self.dead.is_set():
                        files.share = 0.0
                        self.dead.set()
                        nursery.cancel_scope.cancel()
                        await broker.stop()
                    else:
                        die()
                        life.cancel()
            except Exception as error:
                if isinstance(error, BrokenPromiseError) or not self.dead.is_set() or ending == "stop":
                    raise
                if isinstance(error, BaseExceptionGroup) and error.subgroup(BrokenPromiseError) is not None:
                    raise
        if ending == "stop":
            self.engine = self.engine.crash()
        elif ending == "power cut":
            self._boot += 1
        self.story.append(f"{ending} at {trio.current_time():.3f}")
        await trio.sleep(random.choice((0.0, 1.0, 2 * GRACE_SECONDS)))

    async def _do(self, task: Callable[[Peer], Awaitable[None]], broker: Broker) -> None:
        while not self.dead.is_set():
            peer = Peer(self, broker, f"peer {self._made_count}")
            try:
                await peer.connect()
                await task(peer)
            except LifeIsOverError:
                await trio.sleep(0.2)  # or only its connection, since a disk failed
            except (trio.BrokenResourceError, trio.ClosedResourceError, AssertionError) as error:
                if isinstance(error, BrokenPromiseError) or not self.dead.is_set():
                    raise

    # ------------------------------------------------------------------ the queue

    async def _produce(self, peer: Peer) -> None:
        random = self.random
        while True:
            self._made_count += 1
            body = f"m{self._made_count} {'x' * random.choice((0, 10, 300))}"
            how = await peer.sent(QUEUE, body.encode(), persistent="true", kind=random.choice("ab"))
            if how == "disk":
                self.safe.add(body)
            await trio.sleep(random.choice((0.0, 0.001, 0.05)))

    async def _claim_request(self, peer: Peer, request: str, **facts: Any) -> dict[str, Any]:
        while True:
            reply = await peer.ask(f"claim/{request}", queue=QUEUE, group=GROUP, grace_seconds=GRACE_SECONDS, **facts)
            if reply["ok"]:
                return reply
            if reply["error"] != "INTERNAL_ERROR":
                raise BrokenPromiseError(f"{request} {facts}: {reply}")
            await trio.sleep(0.5)

    async def _read_claims(self, peer: Peer, *, until_empty: bool = False) -> None:
        """What Spark's planner and its tasks do."""
        random, reader = self.random, self.reader
        if reader.logged > reader.offset:
            self.replays_count += 1
            await self._read_batch(peer)
            reader.offset = reader.logged
        while True:
            await self._claim_request(peer, "ack", claim=reader.offset)
            if random.random() < 0.05 and not until_empty:
                await self._claim_request(peer, "release")
            claimed = await self._claim_request(
                peer, "claim", claim=reader.offset + 1, max=random.choice((1, 5, 100)), max_bytes=100_000
            )
            if claimed["claim"] is None:
                if until_empty and not (await self._claim_request(peer, "state"))["waiting"]:
                    return
                await trio.sleep(0.1)
                continue
            reader.logged = claimed["claim"]
            for _ in range(random.choice((1, 1, 2))):
                await self._read_batch(peer)
            if random.random() < 0.1 and not until_empty:
                await trio.sleep(random.choice((0.1, 2 * GRACE_SECONDS)))
            reader.offset = reader.logged  # commits/N is written
            for number in [number for number in reader.contents if number <= reader.offset]:
                reader.committed.update(reader.contents.pop(number))

    async def _read_batch(self, peer: Peer) -> None:
        """Claims behind the offset, up to what is logged."""
        reader = self.reader
        state = await self._claim_request(peer, "state")
        there = {claim["claim"]: claim for claim in state["claims"]}
        for number in range(reader.offset + 1, reader.logged + 1):
            claim = there.get(number)
            found: list[str] = []
            if claim is not None and claim["to"] > claim["from"]:
                found = await peer.read(state["log"], claim["from"], claim["to"])
            if not found:
                # A sink that replaces a batch has nothing of it now: who reads nothing must have it come again.
                reader.nothing.add(number)
                reader.contents.pop(number, None)
                continue
            if number in reader.nothing:
                raise BrokenPromiseError(f"claim {number} was empty, and now has {found[:3]}")
            before = reader.contents.setdefault(number, found)
            if found != before:
                raise BrokenPromiseError(f"claim {number} had {before[:5]}, now {found[:5]}")

    # ------------------------------------------------------------------ the sink

    def _publisher(self, query: Query) -> Callable[[Peer], Awaitable[None]]:
        async def publish(peer: Peer) -> None:
            while True:
                await self._batch(peer, query)
                await trio.sleep(self.random.choice((0.0, 0.01, 0.3)))

        return publish

    async def _batch(self, peer: Peer, query: Query) -> None:
        """Stage it, commit it, until that is answered; the same batch as in the life before, if it was not."""
        random = self.random
        if not query.is_made:
            query.is_made = True
            query.parts = [
                (
                    random.choice(TARGETS),
                    [f"{query.name}/{query.batch}/{place}/{n}" for n in range(random.choice((1, 3, 40)))],
                )
                for place in range(random.choice((0, 1, 2, 4)))
            ]
        parts = []
        for target, values in query.parts:
            self._stages_count += 1
            stage = f"{STAGE}s{self._stages_count}"
            pieces = [values[: len(values) // 2], values[len(values) // 2 :]]
            for piece in pieces:
                if piece:
                    data = encode([value.encode() for value in piece], head=b"k:1")
                    await peer.sent(stage, data, **{"content-type": CONTENT_TYPE})
            parts.append({"stage": stage, "to": target, "count": len(values)})
        if random.random() < 0.1:
            await peer.ask("sink/drop", stages=[part["stage"] for part in parts])
            return
        while True:
            query.asked = True
            reply = await peer.ask("sink/commit", query=query.name, batch=query.batch, parts=parts)
            if reply["ok"]:
                break
            if reply["error"] == "COMMIT_VOID":
                continue
            if random.random() < 0.3:
                await peer.ask("sink/drop", stages=[part["stage"] for part in parts])  # Spark's abort
                return
            if reply["error"] not in ("INTERNAL_ERROR", "TOPIC_NOT_EXIST"):
                raise BrokenPromiseError(f"{query}: {reply}")
            await trio.sleep(0.5)
            if reply["error"] == "TOPIC_NOT_EXIST":
                return
        if random.random() < 0.2:
            again = await peer.ask("sink/commit", query=query.name, batch=query.batch, parts=parts)
            if not again["ok"] or again["published"]:
                raise BrokenPromiseError(f"{query} again: {again}")
        query.committed[query.batch] = query.parts
        query.batch += 1
        query.parts, query.is_made, query.asked = [], False, False

    # ------------------------------------------------------------------ the end

    async def _audit(self) -> None:
        """A last life, in which nothing fails."""
        self.dead = trio.Event()
        async with self._broker(MortalEngine(self.engine), MortalFiles(self.files)) as broker:
            peer = Peer(self, broker, "auditor")
            await peer.connect()
            await trio.sleep(20)  # what was begun is carried on
            await self._audit_queue(peer)
            await self._audit_targets(peer)
            await broker.stop()

    async def _audit_queue(self, peer: Peer) -> None:
        reader = self.reader
        await self._read_claims(peer, until_empty=True)
        missing = self.safe - set(reader.committed)
        if missing:
            raise BrokenPromiseError(f"{len(missing)} messages are lost: {sorted(missing)[:5]}")
        state = await self._claim_request(peer, "state")
        if state["claims"] or state["again"]:
            raise BrokenPromiseError(f"all is acknowledged, and yet {state}")

    async def _audit_targets(self, peer: Peer) -> None:
        found: dict[str, list[str]] = {}
        for target in TARGETS:
            described = await peer.ask("log/describe", log=target)
            if described["ok"]:
                found[target] = await self._all_of(peer, target)
        wanted: Counter[tuple[str, str]] = Counter()
        for query in self.queries:
            for parts in query.committed.values():
                wanted.update((target, value) for target, values in parts for value in values)
        there = Counter((target, value) for target, values in found.items() for value in values)
        for query in self.queries:
            open_values = [(target, value) for target, values in query.parts for value in values]
            counts = {there.pop(value, 0) for value in open_values} or {0}
            if len(counts) > 1 or not counts <= {0, 1} or (counts == {1} and not query.asked):
                raise BrokenPromiseError(f"{query.name} {query.batch}, which was not answered, is there {counts} times")
        if there != wanted:
            less, more = wanted - there, there - wanted
            raise BrokenPromiseError(f"missing {list(less.items())[:5]}, too much {list(more.items())[:5]}")
        for query in self.queries:
            for parts in query.committed.values():
                for target, values in parts:
                    place = found[target].index(values[0])
                    if found[target][place : place + len(values)] != values:
                        raise BrokenPromiseError(f"a part of {query.name} is not in one piece")

    async def _all_of(self, peer: Peer, log: str) -> list[str]:
        """Its records; gaps are what a power cut has left, and hold nothing that was told."""
        client = peer.client
        await client.subscribe(log, id="all", **{"from": "earliest"})
        deliveries = await client.drain(5.0)
        await client.unsubscribe("all")
        return [value.decode() for _index, value in records_of(d for d in deliveries if "gap" not in d.headers)]


def run_round(seed: int) -> Round:
    """One round. Raises what went wrong, with the command that shows it again."""
    random = Random(seed)
    lease_items = random.choice((5, 100, 5000))
    with array_options(lease_items=lease_items), tempfile.TemporaryDirectory() as folder:
        return play(MODULE, seed, random, lambda: Round(random, Path(folder)), sizes=small(4))


def _told(played: Round) -> Iterator[str]:
    yield (
        f"{len(played.safe)} messages safe, {sum(played.reader.committed.values())} read, "
        f"{played.replays_count} replays; "
        + ", ".join(f"{query.name}: {len(query.committed)} batches" for query in played.queries)
    )
    yield "; ".join(played.story)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    return play_many(MODULE, __doc__, run_round, _told, arguments, rounds_count=200)


if __name__ == "__main__":
    sys.exit(main())
