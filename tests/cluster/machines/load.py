"""Clients of a cluster under faults: producers and consumers that come back to any hub, and write all down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import trio

from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.machine import ClientMachine
from tests.cluster.machines.ledger import Entry, Ledger

CONNECT_SECONDS = 2.0
SILENCE_SECONDS = 3.0
"""Silence of a hub behind which its clients go to another one; heart-beats come each second."""
WINDOW_COUNT = 20
PREFETCH_COUNT = 20

Addresses = Callable[[], Sequence[tuple[str, int]]]


class Gone(Exception):
    """The connection is over."""


class Connection:
    """One connection: frames out, frames in."""

    def __init__(self, stream: trio.SocketStream, name: str) -> None:
        self._stream = stream
        self.name = name
        self._machine = ClientMachine()
        self.frames: list[Frame] = []

    async def connect(self) -> None:
        """Raises Gone."""
        await self.write(self._machine.connect("test", versions=("1.2",), heart_beat=(0, 1000)))
        while not any(frame.command == "CONNECTED" for frame in self.frames):
            await self.read()
        self.frames.clear()

    def encoded(self, command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        return self._machine.send(command, headers.items(), body)

    async def write(self, data: bytes) -> None:
        """Raises Gone."""
        try:
            with trio.fail_after(SILENCE_SECONDS):
                await self._stream.send_all(data)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            raise Gone from None

    async def read(self) -> None:
        """Wait for frames, and append them to `frames`. Raises Gone."""
        try:
            with trio.fail_after(SILENCE_SECONDS):
                data = await self._stream.receive_some(1 << 16)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            raise Gone from None
        if not data:
            raise Gone
        for event in self._machine.receive_data(data):
            assert not isinstance(event, Fault), event.error
            assert isinstance(event, Frame)
            if event.command == "ERROR":
                raise Gone(event.headers.get("code", ""))
            self.frames.append(event)


class Load:
    """Clients, and what they have seen."""

    def __init__(self, addresses: Addresses, queues: Sequence[str], random: Random) -> None:
        self.ledger = Ledger()
        self.queues = queues
        self._addresses = addresses
        self._random = random
        self._began_seconds = trio.current_time()
        self._names = count(1)
        self.is_producing = True
        self._waiting: dict[str, dict[str, Entry]] = {}
        self.heard_at_seconds: dict[str, float] = {}
        """Time at which a message of each queue was delivered last."""
        self.longest_gap_seconds = 0.0
        """Longest time between two deliveries of a queue while it was being sent to."""
        self._connections_count = 0
        self.gone_count = 0
        """Connections that ended."""

    def _at(self) -> str:
        return f"{trio.current_time() - self._began_seconds:8.3f}"

    async def _connected(self) -> tuple[trio.SocketStream, Connection]:
        """Raises Gone."""
        host, port = self._random.choice(self._addresses())
        try:
            with trio.fail_after(CONNECT_SECONDS):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, trio.TooSlowError):
            raise Gone from None
        self._connections_count += 1
        hub = self._addresses().index((host, port)) + 1
        connection = Connection(stream, f"connection {self._connections_count} at hub-{hub}")
        try:
            with trio.fail_after(CONNECT_SECONDS):
                await connection.connect()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, trio.TooSlowError):
                raise Gone from None
            raise
        return stream, connection

    # ------------------------------------------------------------------ producers

    async def produce(self, pause_seconds: float) -> None:
        """Send to all queues in turn, as long as `is_producing`; a message that is in doubt is not sent again."""
        name = f"p{next(self._names)}"
        places = dict.fromkeys(self.queues, 0)
        turn = self._random.randrange(len(self.queues))
        while self.is_producing:
            try:
                stream, connection = await self._connected()
            except Gone:
                await trio.sleep(0.05)
                continue
            waiting = self._waiting[name] = {}
            async with stream:
                try:
                    while self.is_producing or waiting:
                        while self.is_producing and len(waiting) < WINDOW_COUNT:
                            turn = (turn + 1) % len(self.queues)
                            queue = self.queues[turn]
                            places[queue] += 1
                            entry = self.ledger.sending(queue, name, places[queue])
                            waiting[entry.name] = entry
                            entry.history.append(f"{self._at()} sent by {connection.name}")
                            headers = {"destination": queue, "persistent": "true", "receipt": entry.name}
                            await connection.write(
                                connection.encoded("SEND", {**headers, "name": entry.name}, b"x" * 200)
                            )
                            await trio.sleep(pause_seconds)
                            with trio.move_on_after(0):
                                await connection.read()
                            self._confirm(connection, waiting)
                        if waiting:
                            await connection.read()
                            self._confirm(connection, waiting)
                except Gone:
                    self.gone_count += 1
                    waiting.clear()

    @property
    def waiting(self) -> list[Entry]:
        """Messages whose RECEIPTs are to come, over connections that last."""
        return [entry for of_producer in self._waiting.values() for entry in of_producer.values()]

    def _confirm(self, connection: Connection, waiting: dict[str, Entry]) -> None:
        for frame in connection.frames:
            if frame.command == "RECEIPT":
                entry = waiting.pop(frame.headers["receipt-id"])
                entry.is_receipted = True
                entry.history.append(f"{self._at()} receipted")
        connection.frames.clear()

    # ------------------------------------------------------------------ consumers

    async def consume(self, ack_share: float = 0.95) -> None:
        """Subscribe to all queues, acknowledge most of what comes, and come back when the connection is lost."""
        while True:
            try:
                stream, connection = await self._connected()
            except Gone:
                await trio.sleep(0.05)
                continue
            async with stream:
                try:
                    await self._consume(connection, ack_share)
                except Gone:
                    self.gone_count += 1

    async def _consume(self, connection: Connection, ack_share: float) -> None:
        for number, queue in enumerate(self.queues):
            headers = {"id": str(number), "destination": queue, "ack": "client-individual"}
            await connection.write(connection.encoded("SUBSCRIBE", {**headers, "prefetch-count": str(PREFETCH_COUNT)}))
        acks: dict[str, tuple[Entry, str]] = {}
        numbers = count(1)
        while True:
            await connection.read()
            pieces: list[bytes] = []
            for frame in connection.frames:
                if frame.command == "RECEIPT":
                    entry, acknowledged = acks.pop(frame.headers["receipt-id"])
                    entry.acknowledged_ids.add(acknowledged)
                    entry.history.append(f"{self._at()} {connection.name} gets the RECEIPT of its ACK")
                elif frame.command == "MESSAGE":
                    headers = frame.headers
                    message_id = headers["message-id"]
                    is_marked = "true" in (headers.get("redelivered"), headers.get("possible-duplicate"))
                    where = f"{self._at()} {connection.name}"
                    found = self.ledger.delivered(headers["name"], message_id, is_marked=is_marked, where=where)
                    self._heard(headers["destination"])
                    takes = self._random.random() <= ack_share
                    if found is not None:
                        found.history.append(f"{where} says {'ACK' if takes else 'NACK'}")
                    if not takes:
                        pieces.append(connection.encoded("NACK", {"id": headers["ack"], "requeue": "true"}))
                        continue
                    receipt = f"a{next(numbers)}"
                    if found is not None:
                        acks[receipt] = (found, message_id)
                    pieces.append(connection.encoded("ACK", {"id": headers["ack"], "receipt": receipt}))
            connection.frames.clear()
            if pieces:
                await connection.write(b"".join(pieces))

    def _heard(self, queue: str) -> None:
        now_seconds = trio.current_time()
        before_seconds = self.heard_at_seconds.get(queue, now_seconds)
        if self.is_producing:
            self.longest_gap_seconds = max(self.longest_gap_seconds, now_seconds - before_seconds)
        self.heard_at_seconds[queue] = now_seconds

    @property
    def quiet_since_seconds(self) -> float:
        """Time of the last delivery."""
        return max(self.heard_at_seconds.values(), default=-math.inf)
