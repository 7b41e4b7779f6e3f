"""Clients that do at random what clients do, and write down in the claims ledger what they know of it.

They work over memory streams in virtual time and over sockets alike. What they do is decided by the `Random` that is
passed in, and by nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final

import attrs
import trio

from sluiceway.protocols.stomp.escaping import Version
from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.streams import ByteStream
from tests.faults.store.claims import ClaimError, Claims, Commitment, Sent, place_of

_BEGUN: Final = re.compile(rb"\ndestination:([^\n]*)\n")
_NAMED: Final = re.compile(rb"\nname:([^\n]*)\n")

OnReceipt = Callable[[dict[str, str]], None]


@attrs.frozen
class Habits:
    """What clients do, how often, and to what."""

    queues: tuple[str, ...]
    auto_queues: tuple[str, ...] = ()
    """Those in which ack `auto` is used, too."""
    durables: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    """Durable subscriptions of each topic. They exist before anybody sends."""
    priorities: tuple[int, ...] = (4,)
    groups: tuple[str, ...] = ()
    persistent_share: float = 0.8
    receipt_share: float = 0.5
    transaction_share: float = 0.1
    large_share: float = 0.0
    """Of whole transactions, from BEGIN to COMMIT, of so many SENDs at most:"""
    large_count_max: int = 0
    victims: tuple[str, ...] = ()
    """Queues that large transactions send to, too, and that somebody purges and deletes meanwhile."""
    date_share: float = 0.1
    delay_share: float = 0.0
    composite_share: float = 0.05
    body_bytes_max: int = 600
    run_count_max: int = 12
    prefetch_counts: tuple[int, ...] = (1, 3, 10, 50)
    ack_share: float = 0.8
    """Of what a consumer looks at; the rest is refused."""
    pause_seconds: float = 0.02
    long_pause_seconds: float = 1.5
    vanish_share: float = 0.03
    leave_share: float = 0.02
    subscribe_share: float = 0.15
    produce_share: float = 0.45


@attrs.define(eq=False)
class _Held:
    """A delivery that was not acknowledged."""

    sent: Sent
    order: int
    naming: dict[str, str]


@attrs.define(eq=False)
class _Subscribed:
    connection: str
    name: str
    destination: str
    ack: str
    durable: str | None = None
    held: dict[Sent, _Held] = attrs.field(factory=dict)
    over: bool = False

    def __str__(self) -> str:
        return f"{self.connection}/{self.name}{' (over)' if self.over else ''}"


class Connection:
    """One connection to the broker under test: frames out, frames in, and what they mean for the claims."""

    def __init__(self, stream: ByteStream, claims: Claims, name: str) -> None:
        self.name = name
        self.stream = stream
        self.claims = claims
        self.machine = ClientMachine()
        self.subscriptions: dict[str, _Subscribed] = {}
        self.found: list[tuple[Sent, int, _Subscribed, _Held]] = []
        """What came, in order, for who drains."""
        self.ended = False
        """Nothing more comes, or is looked at."""
        self.may_be_cut = False
        """Its broker may die at any time."""
        self.leaving = False
        """DISCONNECT is on its way: what is held goes back at any time."""
        self.stops: str | None = None
        """What the ERROR said."""
        self.connected = trio.Event()
        self.place = 0
        self._receipts: dict[str, OnReceipt] = {}
        self._receipts_count = 0
        self._names_count = 0
        self._tail = b""

    def __str__(self) -> str:
        return self.name

    # ------------------------------------------------------------------ in

    async def read_on(self) -> None:
        """Take in what comes until the end."""
        while not self.ended:
            try:
                await self.stream.wait_readable()
            except (trio.ClosedResourceError, trio.BusyResourceError, OSError):
                return
            self.absorb()

    def absorb(self) -> None:
        """Take in what is there now."""
        while not self.ended:
            try:
                data = self.stream.read(1 << 16)
            except (OSError, trio.ClosedResourceError):
                self.ended = True
                return
            if data is None:
                return
            if not data:
                self.ended = True
                if not (self.leaving or self.may_be_cut) and self.stops is None:
                    raise ClaimError(f"{self}: the broker closed the connection")
                return
            self._tail += data
            for event in self.machine.receive_data(data):
                if isinstance(event, Fault):
                    raise ClaimError(f"{self}: the broker sent what is no STOMP: {event.error!r}")
                assert isinstance(event, Frame)
                self._take(event)
            pending = self.machine.pending_bytes
            self._tail = self._tail[-pending:] if pending else b""

    def _take(self, frame: Frame) -> None:
        if frame.command == "MESSAGE":
            self._take_message(frame)
        elif frame.command == "RECEIPT":
            self._receipts.pop(frame.headers["receipt-id"])(frame.headers)
        elif frame.command == "CONNECTED":
            self.connected.set()
        else:
            self.stops = frame.headers.get("message", "")
            if "shutting down" not in self.stops and "attached" not in self.stops:
                raise ClaimError(f"{self}: an ERROR: {frame.headers} {frame.body!r}")

    def _take_message(self, frame: Frame) -> None:
        headers = frame.headers
        subscription = self.subscriptions[headers["subscription"]]
        auto = subscription.ack == "auto"
        sent = self.claims.delivered(
            headers,
            frame.body,
            durable=subscription.durable,
            holder=None if self.leaving or subscription.over else self,
            auto=auto,
            subscription=subscription,
        )
        naming = {"id": headers["ack"]} if "ack" in headers else {
            "message-id": headers["message-id"], "subscription": headers["subscription"],
        }  # fmt: skip
        held = _Held(sent, len(self.found), naming)
        if not auto and not subscription.over:
            subscription.held[sent] = held
        self.found.append((sent, int(headers.get("priority", "4")), subscription, held))

    @property
    def receipts_are_due(self) -> bool:
        return bool(self._receipts)

    # ------------------------------------------------------------------ out

    async def write(self, data: bytes) -> None:
        """All of it, waiting where the broker does not read. Does nothing once the connection is over."""
        view = memoryview(data)
        try:
            while view and not self.ended:
                taken = self.stream.write([view])
                view = view[taken:]
                if view:
                    await self.stream.wait_writable()
        except (OSError, trio.ClosedResourceError):
            self.absorb()

    def encode(self, command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """The bytes of a frame; none once the broker has said ERROR."""
        return b"" if self.ended or self.stops is not None else self.machine.send(command, headers.items(), body)

    def receipt(self, on_receipt: OnReceipt) -> dict[str, str]:
        """The header that asks for one."""
        self._receipts_count += 1
        name = f"{self.name}/{self._receipts_count}"
        self._receipts[name] = on_receipt
        return {"receipt": name}

    async def connect(self, version: Version) -> None:
        await self.write(self.machine.connect("test", versions=(version,)))
        await self.connected.wait()

    async def subscribe(
        self,
        destination: str,
        *,
        ack: str,
        prefetch_count: int,
        durable: str | None = None,
        on_receipt: OnReceipt | None = None,
    ) -> _Subscribed:
        """`durable`: its name, on a topic."""
        name = f"s{len(self.subscriptions)}"
        subscription = self.subscriptions[name] = _Subscribed(self.name, name, destination, ack, durable)
        headers = {"destination": destination, "id": name, "ack": ack, "prefetch-count": str(prefetch_count)}
        if durable is not None:
            headers["activemq.subscriptionName"] = durable
        if on_receipt is not None:
            headers |= self.receipt(on_receipt)
        await self.write(self.encode("SUBSCRIBE", headers))
        return subscription

    def new_name(self) -> str:
        self._names_count += 1
        return f"{self.name}.{self._names_count}"

    def end(self, why: str) -> None:
        """The connection breaks, now: what arrived until now counts, nothing after it."""
        self.absorb()
        self.ended = True
        self.stream.close()
        found, named = _BEGUN.search(self._tail), _NAMED.search(self._tail)
        if found and named:
            self.claims.begun_to_come(found[1].decode(), named[1].decode())
        for subscription in self.subscriptions.values():
            self.claims.ended(subscription, in_order=False)
        self.claims.gone(self, why)


class RandomClient(Connection):
    """A connection that does one thing after the other, until it is told to stop or feels like going."""

    def __init__(
        self,
        stream: ByteStream,
        claims: Claims,
        name: str,
        *,
        random: Random,
        habits: Habits,
        now_ms: Callable[[], int],
        may_act: Callable[[], bool],
    ) -> None:
        """`may_act`: asked before each thing it does; False: it does nothing any more."""
        super().__init__(stream, claims, name)
        self._random = random
        self._habits = habits
        self._now_ms = now_ms
        self._may_act = may_act
        self.attached: set[str] | None = None
        """Durable subscriptions that some client is attached to, shared by all; None: they use none."""
        self.on_commit: Callable[[], None] = lambda: None
        """A COMMIT is on its way."""
        self._own: list[str] = []
        self._open: Commitment | None = None
        self._open_acks: list[tuple[_Subscribed, _Held]] = []
        self._stopped = False

    def stop(self) -> None:
        """Do nothing more of its own."""
        self._stopped = True

    async def run(self) -> None:
        """Until it has gone, in order or not."""
        random, habits = self._random, self._habits
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read_on)
            await self.connect(random.choice(("1.1", "1.2", "1.2")))
            while not self.ended and not self._stopped:
                if not self._may_act():
                    self._stopped = True
                    break
                await self._do_something()
                if random.random() < 0.4:
                    await trio.sleep(random.random() * habits.pause_seconds)
                elif random.random() < 0.04:
                    await trio.sleep(random.random() * habits.long_pause_seconds)
                else:
                    await trio.lowlevel.checkpoint()
                if random.random() < habits.leave_share:
                    await self._leave()
                elif random.random() < habits.vanish_share:
                    self.end("its connection broke")
            if self._stopped and not self.ended:
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    async def _leave(self) -> None:
        if self._open is not None and self._random.random() < 0.5:
            await self._commit()
        gone = trio.Event()
        self.leaving = True
        self.claims.gone(self, "DISCONNECT sent")
        live = [subscription for subscription in self.subscriptions.values() if not subscription.over]
        for subscription in live:
            self.claims.ending(subscription, place_of(subscription.destination, subscription.durable))

        def left(_headers: dict[str, str]) -> None:
            for subscription in live:
                self.claims.ended(subscription, in_order=True)
            gone.set()

        await self.write(self.encode("DISCONNECT", self.receipt(left)))
        with trio.move_on_after(20):
            await gone.wait()
        self.end("its connection left")

    async def _do_something(self) -> None:
        habits = self._habits
        if habits.large_share and self._random.random() < habits.large_share:
            await self._transact()
            return
        chance = self._random.random()
        live = [s for s in self.subscriptions.values() if not s.over and s.durable is None]
        if chance < habits.produce_share:
            await self._send()
        elif chance < habits.produce_share + habits.subscribe_share:
            if len(live) < 3 and self._random.random() < 0.7:
                await self._subscribe()
            elif live and self._random.random() < 0.4:
                await self._unsubscribe(self._random.choice(live))
        elif chance < habits.produce_share + habits.subscribe_share + habits.transaction_share:
            if self._open is None:
                name = f"{self.name}-t{len(self.claims.commitments)}"
                self._open = self.claims.begun(name)
                self._open_acks = []
                await self.write(self.encode("BEGIN", {"transaction": name}))
            elif self._random.random() < 0.8:
                await self._commit()
            else:
                await self._abort()
        else:
            await self._acknowledge()

    # ------------------------------------------------------------------ producing

    async def _send(self) -> None:
        random, habits = self._random, self._habits
        destination = random.choice((*habits.queues, *habits.durables))
        destinations = [destination]
        if random.random() < habits.composite_share:
            destinations = sorted({destination, random.choice(habits.queues)})
        headers = {"destination": ",".join(destinations)}
        priority = random.choice(habits.priorities)
        if priority != 4 or random.random() < 0.1:
            headers["priority"] = str(priority)
        if persistent := random.random() < habits.persistent_share:
            headers["persistent"] = "true"
        if habits.groups and random.random() < 0.3:
            headers["group"] = random.choice(habits.groups)
        date_ms = 0
        if random.random() < habits.date_share:
            life_ms = random.choice((5, 300, 2_000, 60_000_000))
            date_ms = self._now_ms() + life_ms
            headers["expires"] = str(date_ms)
        delay_ms = 0
        if random.random() < habits.delay_share:
            delay_ms = random.choice((20, 500, 2_000))
            headers["delay"] = str(delay_ms)
        commitment = self._open if random.random() < 0.7 else None
        if commitment is not None:
            headers["transaction"] = commitment.name
        self.place += 1
        pieces = []
        all_sent: list[Sent] = []
        for _ in range(random.randint(1, habits.run_count_max)):
            name = self.new_name()
            body = f"{name} ".encode() * (random.randint(0, habits.body_bytes_max) // (len(name) + 1) + 1)
            sents = [
                self.claims.sent(
                    name,
                    one,
                    priority=priority,
                    producer=self.name,
                    place=self._next_place(),
                    group=headers.get("group"),
                    body=body,
                    persistent=persistent,
                    date_ms=date_ms,
                    delay_ms=delay_ms,
                    commitment=commitment,
                )
                for one in self._places_of(destinations)
            ]
            all_sent += sents
            own = {**headers, "name": name}
            if commitment is None and random.random() < habits.receipt_share:
                own |= self.receipt(lambda said, sents=sents: self.claims.receipted(sents, said.get("durability")))  # type: ignore[misc]
            pieces.append(self.encode("SEND", own, body))
        await self.write(b"".join(pieces))

    def _places_of(self, destinations: list[str]) -> list[str]:
        """Where these messages are to be found."""
        durables = self._habits.durables
        return [place_of(one, durable) for one in destinations for durable in (durables.get(one, (None,)))]

    def _next_place(self) -> int:
        self.place += 1
        return self.place

    async def _transact(self) -> None:
        """One large transaction: ACKs of some of what is held, many SENDs, and its end."""
        random, habits = self._random, self._habits
        if self._open is not None:
            await self._commit()
        commitment = self._open = self.claims.begun(f"{self.name}-t{len(self.claims.commitments)}")
        self._open_acks = []
        await self.write(self.encode("BEGIN", {"transaction": commitment.name}))
        for subscription in self.subscriptions.values():
            count = random.randint(0, len(subscription.held))
            pieces = []
            while subscription.held and len(pieces) < count:
                pieces.append(self._acknowledge_one(subscription, commitment))
            await self.write(b"".join(pieces))
        left_count = random.randint(habits.large_count_max // 4, habits.large_count_max)
        while left_count > 0:
            count = min(left_count, random.choice((1, 10, 300)))
            left_count -= count
            destination = random.choice((*habits.queues, *habits.durables, *habits.victims))
            persistent = random.random() < habits.persistent_share
            headers = {"destination": destination, "transaction": commitment.name, "large": "true"}
            if persistent:
                headers["persistent"] = "true"
            pieces = []
            for _ in range(count):
                name = self.new_name()
                body = f"{name} ".encode() * random.choice((1, 1, 1, 1 + habits.body_bytes_max // (len(name) + 1)))
                for one in self._places_of([destination]):
                    self.claims.sent(
                        name,
                        one,
                        priority=4,
                        producer=self.name,
                        place=self._next_place(),
                        body=body,
                        persistent=persistent,
                        commitment=commitment,
                    )
                pieces.append(self.encode("SEND", {**headers, "name": name}, body))
            await self.write(b"".join(pieces))
        if self.ended:
            return
        if random.random() < 0.9:
            await self._commit()
        else:
            await self._abort()

    async def _commit(self) -> None:
        commitment, self._open = self._open, None
        assert commitment is not None
        for sent in commitment.sends:
            sent.place = self._next_place()  # they are sent now
        self.claims.committing(commitment)
        headers = {"transaction": commitment.name}
        if self._random.random() < 0.7:
            headers |= self.receipt(lambda _said: self.claims.committed(commitment))
        await self.write(self.encode("COMMIT", headers))
        self.on_commit()

    async def _abort(self) -> None:
        commitment, self._open = self._open, None
        assert commitment is not None
        for subscription, held in self._open_acks:
            if subscription.over:
                self.claims.given_back([held.sent])
                continue
            subscription.held[held.sent] = held
            subscription.held = dict(sorted(subscription.held.items(), key=lambda item: item[1].order))
        await self.write(self.encode("ABORT", {"transaction": commitment.name}))

    # ------------------------------------------------------------------ consuming

    async def _subscribe(self) -> None:
        random, habits = self._random, self._habits
        destination = random.choice((*habits.queues, *habits.auto_queues, *habits.durables))
        if destination in habits.durables:
            await self._attach(destination)
            return
        acks = ["client", "client-individual"]
        if destination in habits.auto_queues:
            acks.append("auto")
        await self.subscribe(destination, ack=random.choice(acks), prefetch_count=random.choice(habits.prefetch_counts))

    async def _attach(self, topic: str) -> None:
        """To a durable subscription that nobody else of ours is attached to."""
        durable = self._random.choice(self._habits.durables[topic])
        if self.attached is not None and durable not in self.attached:
            self.attached.add(durable)
            self._own.append(durable)
            ack = self._random.choice(("client", "client-individual"))
            prefetch_count = self._random.choice(self._habits.prefetch_counts)
            await self.subscribe(topic, ack=ack, prefetch_count=prefetch_count, durable=durable)

    def end(self, why: str) -> None:
        super().end(why)
        if self.attached is not None:
            self.attached.difference_update(self._own)

    async def _unsubscribe(self, subscription: _Subscribed) -> None:
        subscription.over = True
        self.claims.given_back(subscription.held)
        subscription.held.clear()
        self.claims.ending(subscription, place_of(subscription.destination, subscription.durable))
        over = self.receipt(lambda _headers: self.claims.ended(subscription, in_order=True))
        await self.write(self.encode("UNSUBSCRIBE", {"id": subscription.name, **over}))

    async def _acknowledge(self) -> None:
        """ACK or NACK some of what some subscription holds."""
        random = self._random
        holding = [subscription for subscription in self.subscriptions.values() if subscription.held]
        if not holding:
            await self._subscribe_if_idle()
            return
        subscription = random.choice(holding)
        pieces = []
        commitment = self._open if random.random() < 0.5 else None
        for _ in range(random.randint(1, 8)):
            if not subscription.held:
                break
            pieces.append(self._acknowledge_one(subscription, commitment))
        await self.write(b"".join(pieces))

    async def _subscribe_if_idle(self) -> None:
        if not any(not subscription.over for subscription in self.subscriptions.values()):
            await self._subscribe()

    def _acknowledge_one(self, subscription: _Subscribed, commitment: Commitment | None) -> bytes:
        random = self._random
        names = list(subscription.held)
        chosen = random.choice(names) if random.random() < 0.5 else names[0]
        concerned = [chosen]
        if subscription.ack == "client":
            concerned = names[: names.index(chosen) + 1]
        helds = [subscription.held.pop(sent) for sent in concerned]
        headers = dict(helds[-1].naming)
        if commitment is not None:
            headers["transaction"] = commitment.name
            commitment.acks += concerned
            self._open_acks += [(subscription, held) for held in helds]
            return self.encode("ACK", headers)
        if random.random() < self._habits.ack_share:
            self.claims.settling(concerned)
            if random.random() < self._habits.receipt_share:
                headers |= self.receipt(lambda _said: self.claims.settled(concerned))
            return self.encode("ACK", headers)
        self.claims.refused(concerned)
        return self.encode("NACK", headers)


def drain(connection: Connection) -> Iterator[tuple[Sent, int]]:
    """What a draining connection found, in order, each with its priority."""
    for sent, priority, _subscription, _held in connection.found:
        yield sent, priority
