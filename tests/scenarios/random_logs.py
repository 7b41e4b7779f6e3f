"""Rounds of random sessions with logs, in virtual time: producers, readers and groups do what the protocol allows.

SENDs and batches in all codecs, with and without receipts; readers from anywhere to anywhere, of records and batches;
groups with consumers that come, acknowledge in any order (some in transactions), refuse, leave and break; seeks,
truncation; now and then the broker stops in order or crashes, and another one starts on what it left.

What is claimed: a receipt says where a record is, and there it is read, with its value, always; readers get what lies
between their ends, in order, once, or a gap that tells of it; what a group settled with a receipt since it was last
moved does not come again, all others come, never to two consumers at a time; at the end nothing is charged.

    python -m tests.scenarios.random_logs --seed N              this round again
    python -m tests.scenarios.random_logs --from N --rounds M   so many rounds
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import structlog
import trio

from sluiceway.protocols.stomp.escaping import SUPPORTED_VERSIONS
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode
from sluiceway.queues.logs.codecs import Codec
from tests.faults.store.small_store import repeatable_trio
from tests.scenarios.client import Client, Delivery
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.log_stage import Asker, LogLives, LogStage, is_told, receipts_of, records_of

LOGS = ("/log/a", "/log/b.c")
GROUPS = ("g", "h")
PATIENCE_SECONDS = 5000.0


class BrokenClaimError(AssertionError):
    """The broker did what it must not."""


@attrs.define(eq=False)
class Place:
    """Of one group, as its consumers know it."""

    settled: set[int] = attrs.Factory(set)
    """With a receipt: for good."""
    perhaps: set[int] = attrs.Factory(set)
    """Acknowledged without one, or with one that did not come; or passed over by seek."""


@attrs.define(eq=False)
class Reader:
    """One subscription."""

    client: Client
    name: str
    log: str
    group: str | None
    ack: str
    next_index: int | None
    stop: int | None
    held: list[Delivery] = attrs.Factory(list)
    past_count: int = 0
    """So many of those were handed over before the group was moved, and count for nothing."""
    ended: bool = False


class Round:
    """One round: lives of a broker, and what is known of its logs."""

    def __init__(self, random: Random, folder: Path, log: Any) -> None:
        self.random = random
        self._log = log
        page_bytes = random.choice([8192, 65_536, 1 << 20])
        self.lives = LogLives(
            folder,
            {"/log/**": {"memory_bytes": random.choice([5000, 1_000_000]), "log_batch_bytes_max": 8000}},
            journal={
                "data_page_bytes": page_bytes,
                "index_page_count": random.choice([16, 1024]),
                "cache_bytes_max": random.choice([3000, 1 << 20]),
            },
            outbound_bytes_max=random.choice([2000, 100_000]),
            linger_seconds=0.2,
        )
        self.known: dict[str, dict[int, bytes]] = {name: {} for name in LOGS}
        """What was seen at which index: by a receipt, or by a reader."""
        self.first = dict.fromkeys(LOGS, 0)
        """What is below may be removed."""
        self.places: dict[tuple[str, str], Place] = {}
        self.readers: list[Reader] = []
        self.producers: list[Client] = []
        self.made_count = self.names_count = 0
        self.receipted_count = self.read_count = self.settled_count = 0

    async def run(self) -> None:
        """All of it."""
        with trio.fail_after(PATIENCE_SECONDS):
            lives_count = self.random.randint(1, 3)
            for life in range(lives_count):
                is_last = life == lives_count - 1
                end = "in order" if is_last else self.random.choice(["in order", "crash"])
                self._log(f"life {life + 1}, ends {end}")
                async with self.lives.life(end=end) as stage:
                    self.readers, self.producers = [], []
                    asker = await stage.connect_asking()
                    for _ in range(self.random.randint(10, 30)):
                        await self._step(stage, asker)
                    if is_last:
                        await self._close(stage)
                for reader in self.readers:
                    reader.held.clear()
                    reader.past_count = 0
                for reader in self.readers:
                    self._take_rest(reader)

    # ------------------------------------------------------------------ steps

    async def _step(self, stage: LogStage, asker: Asker) -> None:
        random = self.random
        chance = random.random()
        if chance < 0.35:
            await self._append(stage)
        elif chance < 0.5:
            await self._subscribe(stage)
        elif chance < 0.75:
            await self._answer()
        elif chance < 0.82:
            await self._leave()
        elif chance < 0.86:
            await self._truncate(stage, asker)
        elif chance < 0.9:
            await self._seek(stage, asker)
        else:
            await trio.sleep(random.choice([0.001, 1, 7]))
        for reader in self.readers:
            if random.random() < 0.7:
                await self._read(reader)

    async def _append(self, stage: LogStage) -> None:
        random = self.random
        name = random.choice(LOGS)
        if len(self.producers) < 3:
            self.producers.append(await stage.connect(random.choice(SUPPORTED_VERSIONS)))
        producer = random.choice(self.producers)
        owed: list[list[bytes]] = []
        ids: list[str] = []
        for _ in range(random.choice([1, 1, 4])):
            values = []
            for _ in range(random.choice([1, 1, 3, 40])):
                self.made_count += 1
                values.append(f"{self.made_count} {'x' * random.choice([0, 5, 90])}".encode())
            receipt = {}
            if random.random() < 0.7:
                ids.append(producer.new_receipt_id())
                receipt = {"receipt": ids[-1]}
            if len(values) == 1 and random.random() < 0.7:
                await producer.send(name, values[0], kind=random.choice("abc"), **receipt)
            else:
                data = encode(values, codec=random.choice(list(Codec)), head=b"kind:x")
                await producer.send(name, data, content_type=CONTENT_TYPE, **receipt)
            if receipt:
                owed.append(values)
        self._log(f"append {len(owed)} to {name}")
        known_count = len(receipts_of(producer))
        if ids and random.random() < 0.8:
            for each in ids:
                await producer.expect_receipt(each)
            for (index, count), values in zip(receipts_of(producer)[known_count:], owed, strict=True):
                if count != len(values):
                    raise BrokenClaimError(f"{count} of {len(values)} records in {name}")
                self.receipted_count += count
                for place, value in enumerate(values):
                    self._is_at(name, index + place, value)
        else:
            self.producers.remove(producer)
            producer.vanish()

    def _is_at(self, name: str, index: int, value: bytes) -> None:
        known = self.known[name].setdefault(index, value)
        if known != value:
            raise BrokenClaimError(f"{name} had {known!r} at {index}, now {value!r}")

    async def _subscribe(self, stage: LogStage) -> None:
        random = self.random
        if len(self.readers) >= 6:
            return
        self.names_count += 1
        client = await stage.connect(random.choice(SUPPORTED_VERSIONS), name=f"c{self.names_count}")
        modes = ["auto", "client"] + ["client-individual"] * (client.version != "1.0")
        name, ack = random.choice(LOGS), random.choice(modes)
        headers = {"from": "earliest"}
        group = start = stop = None
        logs = stage.broker.logs
        assert logs is not None
        end = logs.get(name).records.next_index
        first = logs.get(name).records.first_index
        if random.random() < 0.6:
            group = headers["group"] = random.choice(GROUPS)
            self.places.setdefault((name, group), Place())
        else:
            start = random.randint(first, end) if end else 0
            headers["from"] = str(start)
            if random.random() < 0.5:
                stop = start + random.choice([0, 3, 30, 300])
                headers["to"] = str(stop)
        if random.random() < 0.5:
            headers["batch"] = random.choice(["1024", "100000"])
            headers["compression"] = random.choice(["none", "zstd", "gzip,snappy,zstd"])
        if random.random() < 0.6:
            headers["prefetch-count"] = random.choice(["1", "3", "20"])
        await client.subscribe(name, ack=ack, **headers)
        self.readers.append(Reader(client, client.name, name, group, ack, start, stop))
        self._log(f"{client.name} subscribes to {name} {headers} {ack}")

    async def _read(self, reader: Reader) -> None:
        for delivery in await reader.client.drain(0.001):
            self._arrived(reader, delivery)

    def _take_rest(self, reader: Reader) -> None:
        """What the kernel has taken for it: with ack auto that is settled, whether or not anybody reads it."""
        reader.client.receive_now()
        while reader.client.messages:
            self._arrived(reader, reader.client.messages.popleft())

    def _arrived(self, reader: Reader, delivery: Delivery) -> None:
        name = reader.log
        headers = delivery.headers
        if reader.ended:
            raise BrokenClaimError(f"{reader.name} gets more behind its end: {headers}")
        if "gap" in headers:
            start, stop = int(headers["gap-from"]), int(headers["gap-to"])
            if stop > max(self.first[name], start + 1):
                raise BrokenClaimError(f"{reader.name}: a gap {start} to {stop} where nothing was removed")
            if reader.next_index is not None and reader.ack == "auto":
                self._goes_on(reader, start, stop)
            elif reader.next_index is not None and start <= reader.next_index:  # perhaps from what was refused on
                reader.next_index = max(reader.next_index, stop)
            return
        if "range-end" in headers:
            if int(headers["index"]) != reader.stop or (reader.ack == "auto" and reader.next_index != reader.stop):
                raise BrokenClaimError(
                    f"{reader.name}: the end of {reader.stop} at {headers} after {reader.next_index}"
                )
            reader.ended = reader.ack == "auto"
            return
        found = records_of([delivery])
        self.read_count += len(found)
        for index, value in found:
            self._is_at(name, index, value)
        if reader.group is None:
            if not delivery.redelivered:
                self._goes_on(reader, found[0][0], found[-1][0] + 1)
        else:
            place = self.places[name, reader.group]
            indexes = {index for index, _value in found}
            if indexes & place.settled:
                raise BrokenClaimError(f"{reader.name} gets {indexes & place.settled} of {reader.group} again")
            for other in self.readers:
                if (other.log, other.group) == (name, reader.group) and other.ack != "auto":
                    both = indexes & {index for index, _value in records_of(other.held[other.past_count :])}
                    if both:
                        raise BrokenClaimError(f"{reader.name} gets {both}, which {other.name} holds")
            if reader.ack == "auto":
                place.perhaps |= indexes
        if reader.ack != "auto":
            reader.held.append(delivery)

    @staticmethod
    def _goes_on(reader: Reader, start: int, stop: int) -> None:
        if reader.next_index is not None and start != reader.next_index:
            raise BrokenClaimError(f"{reader.name} is at {reader.next_index} and gets {start}")
        reader.next_index = stop

    async def _answer(self) -> None:
        random = self.random
        choices = [reader for reader in self.readers if reader.held]
        if not choices:
            return
        in_groups = [reader for reader in choices if reader.group is not None]
        reader = random.choice(in_groups if in_groups and random.random() < 0.5 else choices)
        client = reader.client
        place = None if reader.group is None else self.places[reader.log, reader.group]
        transaction = {}
        if random.random() < 0.2:
            transaction = {"transaction": "t"}
            await client.frame("BEGIN", transaction)
        done: list[Delivery] = []
        nack = client.version != "1.0" and random.random() < 0.25
        count = random.randint(1, 4)
        # A receipt of the last ACK covers those before it.
        waits = not transaction and not nack and random.random() < 0.7
        while count and reader.held:
            count -= 1
            named = random.choice(reader.held)
            names = [client.naming(each) for each in reader.held]
            at = names.index(client.naming(named))
            if reader.held[at] is not named:
                raise BrokenClaimError(f"{reader.name} holds two deliveries under {names[at]}")
            start = 0 if reader.ack == "client" else at
            chosen = reader.held[max(start, reader.past_count) : at + 1]
            del reader.held[start : at + 1]
            reader.past_count -= max(0, min(at + 1, reader.past_count) - start)
            if place is not None:
                place.perhaps |= {index for index, _value in records_of(chosen)} if not nack else set()
            done += chosen
            if waits and not (count and reader.held):
                await client.ack(named)
            else:
                await client.frame("NACK" if nack else "ACK", {**client.naming(named), **transaction})
        if transaction:
            await client.request("COMMIT", transaction)
        elif not waits:
            await client.sync()
            return
        if nack or place is None:
            return
        settled = {index for index, _value in records_of(done)}
        place.settled |= settled
        self.settled_count += len(settled)

    async def _leave(self) -> None:
        if not self.readers:
            return
        reader = self.random.choice(self.readers)
        await self._read(reader)
        self.readers.remove(reader)
        if self.random.random() < 0.5:
            await reader.client.disconnect()
        self._take_rest(reader)
        reader.held.clear()
        reader.past_count = 0
        reader.client.vanish()
        await trio.sleep(0.5)
        self._log(f"{reader.name} leaves")

    async def _truncate(self, stage: LogStage, asker: Asker) -> None:
        name = self.random.choice(LOGS)
        assert stage.broker.logs is not None
        if name not in stage.broker.logs.logs:
            return
        records = stage.log(name).records
        before = self.random.randint(records.first_index, (records.first_index + records.next_index) // 2)
        self.first[name] = max(self.first[name], before)
        await asker.asked("truncate", log=name, before=before)
        self._log(f"{name} truncated to {before}")

    async def _seek(self, stage: LogStage, asker: Asker) -> None:
        if not self.places or self.random.random() < 0.5:
            return
        name, group = self.random.choice(sorted(self.places))
        place = self.places[name, group]
        to = self.random.randint(0, stage.log(name).records.next_index)
        for reader in self.readers:
            if (reader.log, reader.group) == (name, group):
                await self._read(reader)
                reader.past_count = len(reader.held)
        place.settled.clear()
        place.perhaps = set(range(to))
        await asker.asked("seek", log=name, group=group, to=to)
        self._log(f"{group} of {name} moved to {to}")

    # ------------------------------------------------------------------ the end

    async def _close(self, stage: LogStage) -> None:
        """All that is known can be read; groups get what is left, and nothing else is anywhere."""
        for reader in list(self.readers):
            await self._read(reader)
        for reader in list(self.readers):
            self._take_rest(reader)
            reader.client.vanish()
            reader.held.clear()  # it goes to the others
            reader.past_count = 0
        for producer in self.producers:
            producer.vanish()
        self.readers.clear()
        await trio.sleep(1)
        assert stage.broker.logs is not None
        for name in list(stage.broker.logs.logs):
            records = stage.log(name).records
            client = await stage.connect()
            await client.subscribe(name, **{"from": "earliest", "to": str(records.next_index)})
            deliveries = await client.drain()
            found = dict(records_of(deliveries))
            if sorted(found) != list(range(records.first_index, records.next_index)):
                raise BrokenClaimError(f"{name} has holes")
            for index, value in self.known[name].items():
                if index >= records.first_index and found.get(index) != value:
                    raise BrokenClaimError(f"{name} has {found.get(index)!r} at {index}, and had {value!r}")
            await client.disconnect()
        for (name, group), place in self.places.items():
            records = stage.log(name).records
            client = await stage.connect()
            await client.subscribe(name, group=group, **{"from": "earliest"})
            seen = [index for index, _value in records_of(d for d in await client.drain() if not is_told(d))]
            wanted = set(range(records.first_index, records.next_index)) - place.settled - place.perhaps
            if len(seen) != len(set(seen)) or not wanted <= set(seen):
                raise BrokenClaimError(f"{group} of {name}: {wanted - set(seen)} are lost")
            if set(seen) & place.settled:
                raise BrokenClaimError(f"{group} of {name}: {set(seen) & place.settled} come again")
            if stage.group(group, name).front != records.next_index:
                raise BrokenClaimError(f"{group} of {name} is at {stage.group(group, name).front}")
            await client.disconnect()
        await stage.check_all_accounted_for()


def run_round(seed: int, *, log: Any = lambda _line: None) -> Round:
    """Play one round. Raises what went wrong, with the command that plays it again."""
    random = Random(seed)
    with tempfile.TemporaryDirectory() as folder, repeatable_trio(random):
        played = Round(random, Path(folder), log)
        try:
            run_in_virtual_time(played.run)
        except BaseException as error:
            error.add_note(f"again: python -m tests.scenarios.random_logs --seed {seed}")
            raise
    return played


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=100)
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if chosen.seed is not None:
        run_round(chosen.seed, log=partial(print, flush=True))
        return
    started = time.monotonic()
    totals = [0, 0, 0]
    for seed in range(chosen.first, chosen.first + chosen.rounds):
        played = run_round(seed)
        totals = [a + b for a, b in zip(totals, _counts(played), strict=True)]
    print(f"{chosen.rounds} rounds in {time.monotonic() - started:.0f} s: {totals[0]} receipted, {totals[1]} read, "
          f"{totals[2]} settled", file=sys.stderr)  # fmt: skip


def _counts(played: Round) -> list[int]:
    return [played.receipted_count, played.read_count, played.settled_count]


if __name__ == "__main__":
    main()
