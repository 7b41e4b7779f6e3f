"""Clients that do at random what clients of logs do, and write down in the claims what they know of it.

Over memory streams in virtual time and over sockets alike. What they do is decided by the `Random` that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import attrs
import trio

from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.streams import ByteStream
from sluiceway.queues.logs.batches import CONTENT_TYPE, encode, split
from sluiceway.queues.logs.codecs import Codec
from tests.faults.logs.claims import ClaimError, LogClaims

QUIET_TURNS: Final = 20
"""So often the auditor looks whether something came, before it believes that nothing will."""

OnReceipt = Callable[[dict[str, str]], None]


@attrs.frozen
class Habits:
    """What clients do, and how often."""

    receipt_share: float = 0.5
    batch_share: float = 0.4
    value_bytes_max: int = 200
    run_count_max: int = 10
    window: int = 20
    """Receipts that a producer has under way."""
    ack_share: float = 0.85
    ack_receipt_share: float = 0.3
    pause_seconds: float = 0.01
    leave_share: float = 0.02


@attrs.define(eq=False)
class _Delivery:
    naming: dict[str, str]
    indexes: range


class Connection:
    """Frames out, frames in, and what they mean for the claims."""

    def __init__(self, stream: ByteStream, claims: dict[str, LogClaims], name: str) -> None:
        self.stream = stream
        self.claims = claims
        self.name = name
        self.machine = ClientMachine()
        self.ended = False
        self.stops: str | None = None
        """What the ERROR said."""
        self.messages_count = 0
        self.receipts_due: dict[str, OnReceipt] = {}
        self.on_message: dict[str, Callable[[Frame], None]] = {}
        self._connected = trio.Event()
        self._receipts_count = 0

    def __str__(self) -> str:
        return self.name

    # ------------------------------------------------------------------ in

    async def read_on(self) -> None:
        """Take in what comes, until the end."""
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
                return
            for event in self.machine.receive_data(data):
                if isinstance(event, Fault):
                    raise ClaimError(f"{self}: the broker sent what is no STOMP: {event.error!r}")
                assert isinstance(event, Frame)
                self._take(event)

    def _take(self, frame: Frame) -> None:
        if frame.command == "MESSAGE":
            self.messages_count += 1
            self.on_message[frame.headers["subscription"]](frame)
        elif frame.command == "RECEIPT":
            self.receipts_due.pop(frame.headers["receipt-id"])(frame.headers)
        elif frame.command == "CONNECTED":
            self._connected.set()
        else:
            self.stops = f"{frame.headers.get('message')} {frame.body.decode(errors='replace')[:200]}"

    # ------------------------------------------------------------------ out

    async def connect(self) -> None:
        await self.write(self.machine.connect("test", versions=("1.2",), heart_beat=(0, 0)))
        while not self._connected.is_set() and not self.ended:
            with trio.move_on_after(0.01):
                await self._connected.wait()

    def encode(self, command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        return self.machine.send(command, headers.items(), body)

    def receipt(self, then: OnReceipt) -> dict[str, str]:
        self._receipts_count += 1
        receipt_id = f"r{self._receipts_count}"
        self.receipts_due[receipt_id] = then
        return {"receipt": receipt_id}

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.ended:
            try:
                written = self.stream.write([view])
                view = view[written:]
                if not written:
                    await self.stream.wait_writable()
            except (trio.ClosedResourceError, trio.BusyResourceError, OSError):
                return  # what came before its end still counts: it is read

    async def asked(self, command: str, headers: dict[str, str]) -> bool:
        """With a receipt, which is waited for; False if the connection ends instead."""
        came = trio.Event()
        await self.write(self.encode(command, headers | self.receipt(lambda _headers: came.set())))
        while not came.is_set() and not self.ended:
            with trio.move_on_after(0.02):
                await came.wait()
        return came.is_set()


def records_in(frame: Frame) -> list[tuple[int, bytes, int]]:
    """Index, value and date of each record of a MESSAGE."""
    first = int(frame.headers["index"])
    if frame.headers.get("content-type") != CONTENT_TYPE:
        return [(first, frame.body, int(frame.headers["timestamp"]))]
    found: list[tuple[int, bytes, int]] = []
    for batch in split(frame.body):
        batch.verify()
        if not batch.is_stamped_right():
            raise ClaimError(f"a batch at {batch.first_index} has a wrong stamp")
        for index, value in enumerate(batch.values(), batch.first_index):
            found.append((index, bytes(value), batch.timestamp_ms))
    if [index for index, _value, _date in found] != list(range(first, first + int(frame.headers["count"]))):
        raise ClaimError(f"a run of {frame.headers['count']} from {first} has {[index for index, *_ in found][:9]}")
    return found


class RandomClient:
    """One connection that produces, reads, or consumes for a group, until it leaves or is cut."""

    def __init__(self, connection: Connection, random: Random, habits: Habits, may_act: Callable[[], bool]) -> None:
        self.connection = connection
        self._random = random
        self._habits = habits
        self._may_act = may_act
        self._numbers = 0

    async def run(self) -> None:
        connection, random = self.connection, self._random
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.read_on)
            await connection.connect()
            role = random.choice((self._produce, self._produce, self._read, self._consume, self._consume))
            await role(random.choice(list(connection.claims.values())))
            nursery.cancel_scope.cancel()

    async def _pause(self) -> None:
        await trio.sleep(self._random.random() * self._habits.pause_seconds)

    def _stays(self) -> bool:
        return not self.connection.ended and self._random.random() > self._habits.leave_share and self._may_act()

    # ------------------------------------------------------------------ roles

    async def _produce(self, claims: LogClaims) -> None:
        connection, random, habits = self.connection, self._random, self._habits
        while self._stays():
            pieces = []
            for _ in range(random.randint(1, habits.run_count_max)):
                pieces.append(self._batches(claims) if random.random() < habits.batch_share else self._record(claims))
            await connection.write(b"".join(pieces))
            while len(connection.receipts_due) > habits.window and not connection.ended:
                await self._pause()
            await self._pause()
        if random.random() < 0.5 and not connection.ended:
            await connection.asked("DISCONNECT", {})

    def _value(self) -> bytes:
        self._numbers += 1
        text = f"{self.connection}-{self._numbers} "
        return text.encode() + self._random.choice((b"x", b"yz")) * self._random.randrange(self._habits.value_bytes_max)

    def _record(self, claims: LogClaims) -> bytes:
        value = self._value()
        headers = {"destination": claims.name}
        if self._random.random() < 0.3:
            headers["kind"] = self._random.choice(("a", "b: c\n"))
        return self._sending(claims, [value], headers, value)

    def _batches(self, claims: LogClaims) -> bytes:
        random = self._random
        values: list[bytes] = []
        runs = []
        for _ in range(random.choice((1, 1, 3))):
            some = [self._value() for _ in range(random.randint(1, 8))]
            keys = [b"k%d" % random.randrange(3) for _ in some] if random.random() < 0.3 else None
            runs.append(encode(some, keys=keys, codec=random.choice(list(Codec)), head=random.choice((b"", b"h:1"))))
            values += some
        return self._sending(claims, values, {"destination": claims.name, "content-type": CONTENT_TYPE}, b"".join(runs))

    def _sending(self, claims: LogClaims, values: list[bytes], headers: dict[str, str], body: bytes) -> bytes:
        sent = claims.sending(values)
        if self._random.random() < self._habits.receipt_share:
            headers = headers | self.connection.receipt(
                lambda said: claims.receipt(sent, int(said["index"]), int(said["count"]), said["durability"])
            )
        return self.connection.encode("SEND", headers, body)

    def _how(self) -> dict[str, str]:
        """Records or batches."""
        return self._random.choice(
            (
                {},
                {"batch": str(self._random.choice((1024, 5000, 100_000)))},
                {"batch": "2000", "compression": "gzip,snappy,zstd"},
                {"batch": "2000", "compression": "zstd"},
            )
        )

    async def _read(self, claims: LogClaims) -> None:
        """From some place on; what comes is in order, without holes but those that are told."""
        connection, random = self.connection, self._random
        start = random.choice(("earliest", "next", "latest", str(random.choice([*claims.at, 0]))))
        place = int(start) if start.isdigit() else None

        def came(frame: Frame) -> None:
            nonlocal place
            if "gap" in frame.headers:
                first, end = int(frame.headers["gap-from"]), int(frame.headers["gap-to"])
                claims.gap(first, end, frame.headers["gap-reason"])
            else:
                found = records_in(frame)
                first, end = found[0][0], found[-1][0] + 1
                for record in found:
                    claims.saw(*record)
            if place is not None and first != place:
                raise ClaimError(f"{connection} of {claims.name} was at {place}, and gets {first}")
            place = end

        connection.on_message["s"] = came
        await connection.asked("SUBSCRIBE", {"destination": claims.name, "id": "s", "from": start} | self._how())
        while self._stays():
            await self._pause()

    async def _consume(self, claims: LogClaims) -> None:
        connection, random = self.connection, self._random
        group = random.choice(("g", "h"))
        held: list[_Delivery] = []

        def came(frame: Frame) -> None:
            if "gap" in frame.headers:
                claims.gap(int(frame.headers["gap-from"]), int(frame.headers["gap-to"]), frame.headers["gap-reason"])
                return
            found = records_in(frame)
            for record in found:
                claims.saw(*record)
            indexes = range(found[0][0], found[-1][0] + 1)
            claims.came_to(group, self, indexes)
            held.append(_Delivery({"id": frame.headers["ack"]}, indexes))

        connection.on_message["s"] = came
        headers = {"destination": claims.name, "id": "s", "group": group, "from": "earliest"}
        headers |= {"ack": "client-individual", "prefetch-count": str(random.choice((1, 5, 100)))} | self._how()
        try:
            await connection.asked("SUBSCRIBE", headers)
            while self._stays():
                pieces = []
                for _ in range(random.randint(0, len(held))):
                    pieces.append(self._answer(claims, group, held.pop(random.randrange(len(held)))))
                await connection.write(b"".join(pieces))
                await self._pause()
        finally:
            # From now on what it holds may go to others.
            claims.let_go(group, self)
            connection.on_message["s"] = lambda _frame: None

    def _answer(self, claims: LogClaims, group: str, delivery: _Delivery) -> bytes:
        connection, random = self.connection, self._random
        if random.random() >= self._habits.ack_share:
            claims.let_go(group, self, delivery.indexes)
            return connection.encode("NACK", delivery.naming)
        claims.settling(group, delivery.indexes)
        headers = delivery.naming
        if random.random() < self._habits.ack_receipt_share:
            headers = headers | connection.receipt(lambda _said: claims.settled(group, delivery.indexes))
        return connection.encode("ACK", headers)


class Auditor:
    """At the end: reads all, and takes all that is left for the groups."""

    def __init__(self, connect: Callable[[str], ByteStream], claims: dict[str, LogClaims]) -> None:
        self._connect = connect
        self._claims = claims
        self._acks: list[str] = []

    async def check(self, quiet_seconds: float) -> None:
        """Raises ClaimError."""
        for claims in self._claims.values():
            records = await self._read_all(claims, quiet_seconds)
            for group in tuple(claims.groups):
                await self._take_all(claims, group, records, quiet_seconds)

    async def _read_all(self, claims: LogClaims, quiet_seconds: float) -> set[int]:
        ways: list[dict[str, str]] = [{}, {"batch": "100000", "compression": "gzip,snappy,zstd"}, {"batch": "1024"}]
        seen: list[dict[int, bytes]] = []
        for how in ways:
            records: dict[int, bytes] = {}
            gaps: list[tuple[int, int, str]] = []

            def came(
                frame: Frame, records: dict[int, bytes] = records, gaps: list[tuple[int, int, str]] = gaps
            ) -> None:
                if "gap" in frame.headers:
                    said = frame.headers
                    gaps.append((int(said["gap-from"]), int(said["gap-to"]), said["gap-reason"]))
                    return
                for index, value, date_ms in records_in(frame):
                    claims.saw(index, value, date_ms)
                    if records.setdefault(index, value) is not value:
                        raise ClaimError(f"index {index} came twice")

            await self._until_quiet({"destination": claims.name, "from": "earliest"} | how, came, quiet_seconds)
            ends = [*(index + 1 for index in records), *(end for _start, end, _reason in gaps), 0]
            claims.all_read(records, gaps, max(ends))
            seen.append(records)
        if not seen[0] == seen[1] == seen[2]:
            raise ClaimError(f"{claims.name} reads differently by record and by batch")
        return set(seen[0])

    async def _take_all(self, claims: LogClaims, group: str, records: set[int], quiet_seconds: float) -> None:
        came: set[int] = set()

        def take(frame: Frame) -> None:
            if "gap" not in frame.headers:
                indexes = [index for index, _value, _date in records_in(frame)]
                claims.came_to(group, self, indexes)
                claims.settling(group, indexes)
                came.update(indexes)
                self._acks.append(frame.headers["ack"])

        acknowledged = set(claims.group(group).acknowledged)
        headers = {"destination": claims.name, "group": group, "ack": "client-individual", "from": "earliest"}
        await self._until_quiet(headers, take, quiet_seconds)
        claims.all_taken(group, came | acknowledged, records)

    async def _until_quiet(self, headers: dict[str, str], take: Callable[[Frame], None], quiet_seconds: float) -> None:
        connection = Connection(self._connect("auditor"), self._claims, "auditor")
        connection.on_message["s"] = take
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.read_on)
            await connection.connect()
            if not await connection.asked("SUBSCRIBE", {"id": "s", **headers}):
                raise ClaimError(f"SUBSCRIBE {headers} is refused: {connection.stops}")
            count = quiet_turns = 0
            while True:
                quiet_turns = 0 if connection.messages_count != count else quiet_turns + 1
                if quiet_turns == QUIET_TURNS:
                    # The silence of a broker that was held up says nothing: it has to answer first.
                    await connection.asked("BEGIN", {"transaction": "t"})
                    await connection.asked("ABORT", {"transaction": "t"})
                    if connection.ended or connection.messages_count == count:
                        break
                count = connection.messages_count
                acks, self._acks = self._acks, []
                await connection.write(b"".join([connection.encode("ACK", {"id": ack}) for ack in acks]))
                await trio.sleep(quiet_seconds / QUIET_TURNS)
            if connection.ended:
                raise ClaimError(f"the auditor was cut: {connection.stops}")
            nursery.cancel_scope.cancel()
        connection.stream.close()
