"""Rounds of random sessions against a broker with small limits, in virtual time.

A few connections, in all versions of the protocol, do what the protocol allows, at random: SENDs to destinations that
block, drop and refuse, in transactions or not, with priorities, groups and dates; subscriptions of every mode; ACKs and
NACKs in any order, some twice; browsers; DISCONNECT, and connections that break. They read when they like, so buffers
are full most of the time. The books (random_books.py) know what that may lead to; the stage checks at the end that
nothing is left behind. With `paging` the broker has a store, and next to no memory.

    python -m tests.scenarios.random_sessions --seed N [--paging]   this round again, frame by frame
    python -m tests.scenarios.random_sessions --from N --rounds M   so many rounds, with and without paging
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs
import structlog
import trio

from sluiceway.protocols.stomp.escaping import SUPPORTED_VERSIONS
from sluiceway.queues.names import Kind
from sluiceway.store import keys
from sluiceway.store.memory import MemoryEngine
from tests.faults.store.small_store import repeatable_trio
from tests.scenarios.client import Client
from tests.scenarios.conftest import run_in_virtual_time
from tests.scenarios.random_books import QUEUES, TOPICS, Books, BrokenClaimError, Entry, Reader, Taken
from tests.scenarios.stage import Stage

COMPOSITES = ("/queue/few,/queue/small", "/queue/plain,/queue/few,/topic/waits")
MEMBERS_MIN, READERS_MAX, TRANSACTIONS_MAX = 3, 4, 3
PATIENCE_SECONDS = 5000.0

ALLOWED_ERRORS = ("is full", "has no room", "wait for blocked destinations")
"""What a session may come to that makes no mistake."""


def policies(random: Random, *, paging: bool) -> dict[str, dict[str, Any]]:
    """Limits that a few messages meet. With paging those of memory lead to the disk, and quotas hold."""
    small = {"memory_bytes": 3000} if paging else {}
    return {
        "/queue/few": {"full": "block", "count_max": random.choice([3, 10]), **small},
        "/queue/small": {"full": "block", "memory_bytes": 2000, **({"bytes_max": 20_000} if paging else {})},
        "/queue/plain": {"memory_bytes": 4000} if paging else {},
        "/queue/oldest": {"full": "drop_oldest", "count_max": 20 if paging else 5, **small},
        "/queue/newest": {"full": "drop_newest", "count_max": 20 if paging else 5, **small},
        "/queue/refusing": {"full": "reject", "count_max": 30, **small},
        "/topic/lags": {"memory_bytes": 4000, "lead_bytes": 2000},
        "/topic/waits": {"full": "block", "count_max": 5},
    }


@attrs.define(eq=False)
class Transaction:
    """What is to happen with COMMIT."""

    entries: list[Entry] = attrs.Factory(list)
    answers: list[tuple[Taken, bool]] = attrs.Factory(list)
    """With True: NACK."""


@attrs.define(eq=False)
class Member:
    """One connection, and what it knows."""

    client: Client
    readers: dict[str, Reader] = attrs.Factory(dict)
    """All it ever had, by id."""
    live: list[str] = attrs.Factory(list)
    """Ids of those that it has not unsubscribed."""
    taken: list[Taken] = attrs.Factory(list)
    transactions: dict[str, Transaction] = attrs.Factory(dict)
    owed: dict[str, list[Callable[[], None]]] = attrs.Factory(dict)
    """By receipt: what it will have said."""
    acknowledged: list[Entry] = attrs.Factory(list)
    """Since the last frame that asked for a receipt."""
    unsent: bytes = b""
    """What the broker has not read yet of the last frames."""
    places_count: int = 0
    is_noted: bool = False
    """The books know that it has ended."""

    @property
    def name(self) -> str:
        return self.client.name

    def place(self, entries: Iterable[Entry]) -> None:
        """These SENDs take effect now, in this order, as far as their sender knows."""
        for entry in entries:
            self.places_count += 1
            entry.place = self.places_count

    def write(self) -> None:
        """As much as the broker takes now."""
        if self.unsent and not self.client.stream._closed:
            try:
                self.unsent = self.unsent[self.client.stream.write([self.unsent]) :]
            except BrokenPipeError:
                self.unsent = b""


class Round:
    """The broker, its clients and the books."""

    def __init__(self, random: Random, log: Callable[[str], None], *, paging: bool) -> None:
        self.random = random
        self.books = Books()
        self.members: list[Member] = []
        self.leaving: list[Member] = []
        """They read what still comes."""
        self.gone: list[Member] = []
        self.outside_count = 0
        """Blocks that were on disk only, at most, at one time."""
        self._log = log
        self._made_count = 0
        self._members_count = 0
        self.engine = MemoryEngine() if paging else None
        self.stage = Stage(
            policies(random, paging=paging),
            engine=self.engine,
            stash_bytes_max=random.choice([2000, 20_000]),
            outbound_bytes_max=random.choice([500, 5000, 500_000]),
            transaction_bytes_max=200_000,
            linger_seconds=0.2,
        )

    async def run(self) -> None:
        """All of it."""
        with trio.fail_after(PATIENCE_SECONDS):
            async with self.stage:
                for _ in range(self.random.randint(20, 70)):
                    await self._step()
                for member in list(self.members):
                    self._leave(member)
                await trio.sleep(1)
                staying = {connection.session.peer for connection in self.stage.broker.connections}
                late = [member for member in self.gone + self.leaving if member.name in staying]
                left = await self._drain()
                self.books.close(left, [reader for member in late for reader in member.readers.values()])
                await self._store_is_empty()

    # ------------------------------------------------------------------ steps

    async def _step(self) -> None:
        random = self.random
        self._note_ends()
        while len(self.members) < MEMBERS_MIN:
            self._members_count += 1
            version = random.choice(SUPPORTED_VERSIONS)
            client = await self.stage.connect(version, name=f"c{self._members_count}")
            self.members.append(Member(client))
            self._log(f"{client.name} connects, {version}")
        member = random.choice(self.members)
        if not member.unsent:
            for _ in range(random.randint(1, 6)):
                self._act(member)
        for each in self.members:
            each.write()
        await self._wait()
        self._note_ends()
        for each in random.sample(self.members, random.randint(0, len(self.members))):
            self._read(each)
        for each in self.leaving:
            self._read(each)
        self.leaving = [each for each in self.leaving if not each.client.ended]
        chance = random.random() if member in self.members else 1
        if chance < 0.04:
            self._leave(member)
        elif chance < 0.07 and not member.unsent:
            self._disconnect(member)

    async def _wait(self) -> None:
        chance = self.random.random()
        if chance < 0.6:
            await trio.lowlevel.checkpoint()
        elif chance < 0.85:
            await self.stage.settled_down()
        else:
            await trio.sleep(self.random.choice([0.001, 0.6, 6]))
        outside_count = sum(
            queue.elements.outside_count
            for destination in self.stage.broker.registry.destinations.values()
            for queue in destination.queue.partitions.values()
        )
        self.outside_count = max(self.outside_count, outside_count)

    def _act(self, member: Member) -> None:
        random = self.random
        chance = random.random()
        if chance < 0.45:
            self._send(member)
        elif chance < 0.55:
            self._subscribe(member)
        elif chance < 0.6:
            self._unsubscribe(member)
        elif chance < 0.68:
            self._begin(member)
        elif chance < 0.76:
            self._end_transaction(member)
        else:
            self._answer(member)

    def _frame(self, member: Member, command: str, headers: dict[str, str], body: str = "") -> None:
        self._log(f"{member.name} {command} {headers} {body[:20]}")
        receipt = headers.get("receipt")
        if receipt is not None:
            entries, member.acknowledged = member.acknowledged, []
            self._when(member, receipt, lambda: self.books.settled(entries))
        member.unsent += member.client.encode(command, headers, body)

    def _when(self, member: Member, receipt: str, said: Callable[[], None]) -> None:
        member.owed.setdefault(receipt, []).append(said)

    def _receipt(self, headers: dict[str, str], rate: float) -> dict[str, str]:
        """Ask for one, at this rate."""
        if self.random.random() < rate:
            self._made_count += 1
            headers["receipt"] = f"r{self._made_count}"
        return headers

    def _send(self, member: Member) -> None:
        random = self.random
        headers = {"destination": random.choice([*QUEUES, *TOPICS, *COMPOSITES, "/queue/plain", "/queue/small"])}
        if headers["destination"] == "/queue/refusing" and random.random() < 0.5:
            return
        for name, values, rate in (
            ("priority", ("0", "8", "9"), 0.2),
            ("group", ("a", "b", "c"), 0.2),
            ("expiration", ("1", "500", "5000"), 0.1),
            ("reply-to", ("/temp-queue/r",), 0.1),
            ("persistent", ("true",), 0.4),
        ):
            if random.random() < rate:
                headers[name] = random.choice(values)
        transaction = None
        if member.transactions and random.random() < 0.4:
            transaction = headers["transaction"] = random.choice(sorted(member.transactions))
        for _ in range(random.choice([1, 1, 1, 3, 15])):
            self._made_count += 1
            number = self._made_count
            entries = [
                Entry(
                    number,
                    sender=member.name,
                    destination=destination,
                    priority=headers.get("priority", "4"),
                    group=headers.get("group"),
                    may_expire="expiration" in headers,
                    transaction=transaction,
                )
                for destination in headers["destination"].split(",")
            ]
            for entry in entries:
                self.books.sent(entry)
            one = self._receipt(dict(headers), 0.2)
            if transaction is not None:
                member.transactions[transaction].entries += entries
            else:
                member.place(entries)
                if "receipt" in one:
                    self._when(member, one["receipt"], partial(_accept, entries))
            self._frame(member, "SEND", one, f"{number} {'x' * random.choice([0, 0, 50, 600])}")

    def _subscribe(self, member: Member) -> None:
        random = self.random
        if len(member.live) >= READERS_MAX:
            return
        modes = ["auto", "client"] if member.client.version == "1.0" else ["auto", "client", "client-individual"]
        name = f"s{len(member.readers)}"
        reader = Reader(
            name=f"{name} of {member.name}",
            destination=random.choice([*QUEUES, *TOPICS, "/queue/*", "/queue/few,/topic/lags"]),
            ack=random.choice(modes),
        )
        headers = {"destination": reader.destination, "id": name, "ack": reader.ack}
        if reader.destination in QUEUES and random.random() < 0.15:
            reader.browses = True
            headers["browser"] = "true"
        if random.random() < 0.5:
            headers["prefetch-count"] = random.choice(["1", "2", "10", "20"])
        if random.random() < 0.1:
            headers["exclusive"] = "true"
        member.readers[name] = reader
        member.live.append(name)
        self._frame(member, "SUBSCRIBE", self._receipt(headers, 0.2))

    def _unsubscribe(self, member: Member) -> None:
        if member.live:
            name = self.random.choice(member.live)
            member.live.remove(name)
            member.readers[name].is_live = False
            self.books.gave_back(member.readers[name])
            self._frame(member, "UNSUBSCRIBE", self._receipt({"id": name}, 0.2))

    def _begin(self, member: Member) -> None:
        if len(member.transactions) < TRANSACTIONS_MAX:
            self._made_count += 1
            name = f"t{self._made_count}"
            member.transactions[name] = Transaction()
            self._frame(member, "BEGIN", self._receipt({"transaction": name}, 0.2))

    def _end_transaction(self, member: Member) -> None:
        if not member.transactions:
            return
        name = self.random.choice(sorted(member.transactions))
        transaction = member.transactions.pop(name)
        headers = self._receipt({"transaction": name}, 0.5)
        if self.random.random() < 1 / 3:
            for taken, _nack in transaction.answers:
                taken.is_open = True
            self._frame(member, "ABORT", headers)
            return
        member.place(transaction.entries)
        acknowledged = [taken.entry for taken, nack in transaction.answers if not nack]
        for entry in acknowledged:
            entry.may_be_settled = True
        for taken, nack in transaction.answers:
            if nack:
                self.books.gave_back(taken.line)
        if "receipt" in headers:
            self._when(member, headers["receipt"], lambda: _accept(transaction.entries))
            self._when(member, headers["receipt"], lambda: self.books.settled(acknowledged))
        self._frame(member, "COMMIT", headers)

    def _answer(self, member: Member) -> None:
        """ACK or NACK some of what it holds, in any order."""
        random = self.random
        chosen = [taken for taken in member.taken if taken.is_open]
        if member.client.version == "1.2" and random.random() < 0.1:
            chosen = member.taken  # also some of what was answered before
        if not chosen:
            return
        nack = member.client.version != "1.0" and random.random() < 0.25
        name = random.choice(sorted(member.transactions)) if member.transactions and random.random() < 0.4 else None
        for taken in random.sample(chosen, random.randint(1, min(6, len(chosen)))):
            line = taken.line
            if member.client.version != "1.2":
                if not taken.is_open:
                    continue  # answered with one before: its number would name it if it came again
                if taken.entry.destination in TOPICS and not line.is_live:
                    continue  # forgotten with UNSUBSCRIBE: its number names nothing, so nothing before it either
            covered = [taken] if line.ack != "client" else line.taken[: line.taken.index(taken) + 1]
            covered = [one for one in covered if one.is_open]
            for one in covered:
                one.is_open = False
            headers = dict(taken.naming)
            if not line.is_live:
                # UNSUBSCRIBE has given it back: without a receipt or transaction this is passed over, and settles
                # nothing.
                self._frame(member, "NACK" if nack else "ACK", headers)
                continue
            if name is not None:
                headers["transaction"] = name
                member.transactions[name].answers += [(one, nack) for one in covered]
            elif nack:
                self.books.gave_back(line)
            else:
                for one in covered:
                    one.entry.may_be_settled = True
                member.acknowledged += [one.entry for one in covered]
            self._frame(member, "NACK" if nack else "ACK", self._receipt(headers, 0.2))

    # ------------------------------------------------------------------ reading and leaving

    def _read(self, member: Member) -> None:
        """All that has arrived."""
        client = member.client
        alive = not member.is_noted
        client.receive_now()
        while client.messages:
            delivery = client.messages.popleft()
            reader = member.readers[delivery.headers["subscription"]]
            entry = self.books.arrived(reader, delivery.headers, delivery.body, alive=alive)
            if entry is None or reader.browses:
                continue
            naming = client.naming(delivery) if reader.ack != "auto" else {}
            self._log(f"{member.name} gets {entry.number} of {entry.destination} for {reader.name} {naming}")
            if naming:
                taken = Taken(entry, naming, reader)
                reader.taken.append(taken)
                member.taken.append(taken)
        while client.receipts:
            receipt = client.receipts.popleft()
            for said in member.owed.pop(receipt, []):
                said()
        if client.error is not None and not any(words in client.error.headers["message"] for words in ALLOWED_ERRORS):
            raise BrokenClaimError(f"{member.name} made no mistake and got {client.error}")

    def _disconnect(self, member: Member) -> None:
        self._read(member)
        if member.client.error is None:
            self._frame(member, "DISCONNECT", {"receipt": "bye"})
            member.write()
        self._leave(member, politely=True)

    def _note_ends(self) -> None:
        """Whose connection the broker has ended, or is about to. Before anybody reads what followed from that."""
        sessions = {c.session.peer: c.session for c in self.stage.broker.connections}
        for member in list(self.members):
            session = sessions.get(member.name)
            if session is None or session.ending is not None:
                self._log(f"{member.name} has ended: {'gone' if session is None else session.ending}")
                self._leave(member, politely=True)

    def _leave(self, member: Member, *, politely: bool = False) -> None:
        """It reads what has come, then its connection breaks; `politely`: the broker closes it, which takes a while."""
        self.members.remove(member)
        self._log(f"{member.name} leaves{' politely' if politely else ''}")
        for reader in member.readers.values():
            self.books.gave_back(reader)
        member.is_noted = politely
        self._read(member)
        if politely:
            self.leaving.append(member)
        else:
            member.client.vanish()
            self.gone.append(member)

    # ------------------------------------------------------------------ the end

    async def _drain(self) -> list[tuple[str, bytes]]:
        """Consume what is left, over a connection like any other; what waited with those that left comes, too."""
        broker = self.stage.broker
        left: list[tuple[str, bytes]] = []
        client = await self.stage.connect(name="drain")
        subscribed: set[str] = set()
        quiet_count = 0
        while quiet_count < 3:
            names = [
                name
                for name, destination in broker.registry.destinations.items()
                if name not in subscribed
                and destination.address.kind is Kind.QUEUE
                and not destination.address.temporary_global
            ]
            for name in names:
                subscribed.add(name)
                await client.subscribe(name, id=name)
            found = [(delivery.headers["destination"], delivery.body) for delivery in await client.drain(1)]
            left += found
            for member in self.leaving:
                self._read(member)
            is_quiet = not found and not names and len(broker.connections) == 1
            quiet_count = quiet_count + 1 if is_quiet else 0
        client.vanish()
        return left

    async def _store_is_empty(self) -> None:
        """What was consumed is not on disk any more."""
        if self.engine is None:
            return
        await trio.sleep(10)
        for family in (keys.CHUNK, keys.PAGED, keys.SUMMARY, keys.STATE):
            records = [key.hex() for key in self.engine.iterate_keys(family, bytes([family[0] + 1]))]
            if records:
                raise BrokenClaimError(f"all was consumed, and {len(records)} records are left: {records[:3]}")


def _accept(entries: Iterable[Entry]) -> None:
    for entry in entries:
        entry.is_accepted = True


def run_round(seed: int, *, paging: bool, log: Callable[[str], None] = lambda _line: None) -> Round:
    """One round. Raises what went wrong, with the command that shows it again."""
    random = Random(seed)
    played: list[Round] = []

    async def main() -> None:
        played.append(Round(random, log, paging=paging))
        await played[0].run()

    with repeatable_trio(random):
        try:
            run_in_virtual_time(main)
        except BaseException as error:
            error.add_note(
                f"again: python -m tests.scenarios.random_sessions --seed {seed}{' --paging' if paging else ''}"
            )
            raise
    return played[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.random_sessions", description=__doc__)
    parser.add_argument("--seed", type=int, help="one round, with all frames")
    parser.add_argument("--paging", action="store_true", help="with a store")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args(arguments)
    if options.seed is not None:
        run_round(options.seed, paging=options.paging, log=print)
        return 0
    structlog.configure(processors=[_drop])
    failed = 0
    started_seconds = time.monotonic()
    for seed in range(options.first, options.first + options.rounds):
        for paging in (False, True):
            try:
                run_round(seed, paging=paging)
            except Exception as error:  # noqa: BLE001 - counted, and shown with its seed
                failed += 1
                print(f"--seed {seed}{' --paging' if paging else ''}: {_leaf(error)!r}"[:400], flush=True)
    print(f"{2 * options.rounds} rounds, {failed} failed, {time.monotonic() - started_seconds:.1f} s")
    return 1 if failed else 0


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _drop(_logger: object, _method: str, _event: Any) -> Any:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
