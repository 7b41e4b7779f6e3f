"""A STOMP client for trio programs, over any trio stream.

    client = await world.client()
    await client.publish("/queue/orders", "42 ducks", {"persistent": "true"})     # returns with the RECEIPT
    orders = await client.subscribe("/queue/orders")
    order = await orders.receive()                                               # acknowledges

Names and meaning are those of an embedded broker (`sluiceway.embedded_messages`). A task of the client reads, so that
heart-beats and receipts are seen while the program does something else. A connection that ends raises in every call
that waits, and in all later ones: ConnectionLostError, or RefusedError with the broker's words.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from copy import copy
from itertools import count
from typing import Final

import trio
import trio.abc

from sluiceway.client.errors import ClientError, ConnectionLostError, RefusedError
from sluiceway.embedded_messages import TEXT, Headers, Message, checked, encoded, message_of
from sluiceway.protocols.stomp.encoder import HEART_BEAT
from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.machine import ClientMachine

TIMEOUT_SECONDS: Final = 60.0
"""Time that a call waits. Virtual, so it may be long enough for a crash and a start."""
HEART_BEAT_MS: Final = 10_000
SILENCE_FACTOR: Final = 3
"""Number of heart-beats that the broker may miss before the client gives the connection up."""


class Subscription:
    """An active subscription of a queue, topic or log."""

    def __init__(self, client: Client, destination: str, number: str) -> None:
        self._client = client
        self._id = number
        self.destination = destination
        self.arrived: deque[Message] = deque()

    async def receive(self, timeout_seconds: float = TIMEOUT_SECONDS, *, acknowledge: bool = True) -> Message:
        """Return the next message, when the broker has taken its ACK. `acknowledge=False`: leave that to `acknowledge`
        and `nack`; at the end of the connection the message goes back to the queue. Raises TimeoutError: nothing came;
        ConnectionLostError, RefusedError.
        """
        await self._client.wait_until(
            lambda: bool(self.arrived), timeout_seconds, f"no message of {self.destination} came"
        )
        message = self.arrived.popleft()
        if acknowledge:
            await self.acknowledge(message)
        return message

    async def acknowledge(self, message: Message, *, transaction: str | None = None) -> None:
        """Acknowledge a message, and wait until the broker has taken the ACK. The gap marker of a log needs none.
        Raises ConnectionLostError: whether the broker has it is not known; RefusedError, TimeoutError.
        """
        if "ack" in message.headers:
            await self._client.settle("ACK", message, transaction)

    async def nack(self, message: Message, *, requeue: bool = True, transaction: str | None = None) -> None:
        """Refuse a message, as `sluiceway.embedded_messages.Subscription.nack`. Raises as `acknowledge`."""
        await self._client.settle("NACK", message, transaction, {} if requeue else {"requeue": "false"})

    async def unsubscribe(self) -> None:
        """End the subscription; what was not acknowledged goes back. Raises ConnectionLostError, TimeoutError."""
        await self._client.request("UNSUBSCRIBE", {"id": self._id})

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        """Return the next message, not acknowledged, however long that takes."""
        return await self.receive(math.inf, acknowledge=False)


class Client:
    """One connection to a broker. Made by `Simulation.client`."""

    def __init__(self, stream: trio.abc.Stream, name: str) -> None:
        """Take a stream. `run` serves the connection, `connect` says CONNECT."""
        self.name = name
        self.stream = stream
        self._machine = ClientMachine()
        self._numbers = count(1)
        self._receipts: dict[str, Mapping[str, str]] = {}
        """Headers of RECEIPTs that no call has waited for yet."""
        self._subscriptions: dict[str, Subscription] = {}
        self._failure: Exception | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._writing = trio.Lock()
        self._heard_seconds = trio.current_time()
        self._scope = trio.CancelScope()

    # ------------------------------------------------------------------ its life

    async def run(self) -> None:
        """Read until the connection ends. Never raises what the network or the broker does."""
        with self._scope:
            try:
                while data := await self.stream.receive_some():
                    self._heard_seconds = trio.current_time()
                    for event in self._machine.receive_data(bytes(data)):
                        self._take(event)
                self._fail(ConnectionLostError(f"{self.name}: the broker has closed the connection"))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._fail(ConnectionLostError(f"{self.name}: {error}"))
        self._end(ConnectionLostError(f"{self.name}: the connection was closed"))

    async def beat(self) -> None:
        """Send heart-beats, and give the connection up when the broker sends none."""
        write_seconds = self._machine.write_every_ms / 2000 or math.inf
        silence_seconds = self._machine.read_every_ms * SILENCE_FACTOR / 1000 or math.inf
        while self._failure is None:
            await trio.sleep(min(write_seconds, silence_seconds / 2))
            if trio.current_time() - self._heard_seconds >= silence_seconds:
                self._end(ConnectionLostError(f"{self.name}: the broker has been silent for {silence_seconds:g} s"))
            elif self._failure is None and not self._writing.locked():
                with trio.move_on_after(write_seconds), suppress(ClientError):
                    await self._write(HEART_BEAT)

    async def connect(self, *, login: str | None, passcode: str | None, heart_beat_ms: int, host: str) -> None:
        """Say CONNECT, and wait for CONNECTED. Raises RefusedError, ConnectionLostError, TimeoutError."""
        await self._write(
            self._machine.connect(
                host, login=login, passcode=passcode, heart_beat=(heart_beat_ms, heart_beat_ms), versions=("1.2",)
            )
        )
        await self.wait_until(lambda: self._machine.version is not None, TIMEOUT_SECONDS, "no CONNECTED came")

    @property
    def is_connected(self) -> bool:
        """Whether the connection is there, as far as the client knows."""
        return self._failure is None

    async def close(self) -> None:
        """Say DISCONNECT, wait until the broker has taken all that was sent before, and end. Raises RefusedError if the
        broker refuses something yet; a connection that is lost is closed.
        """
        try:
            if self._failure is None:
                await self.request("DISCONNECT", {})
        except (ConnectionLostError, TimeoutError):
            pass  # closed is what the caller wants
        finally:
            self.vanish()

    def vanish(self) -> None:
        """End at once, without a word: what a process does that is killed. The broker sees the end of the stream."""
        self._end(ConnectionLostError(f"{self.name}: the client has closed the connection"))

    def _end(self, error: Exception) -> None:
        self._fail(error)
        self._scope.cancel()
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._changed.unpark_all()

    # ------------------------------------------------------------------ messages

    async def publish(
        self,
        destination: str,
        body: str | bytes = "",
        headers: Headers | None = None,
        *,
        transaction: str | None = None,
        receipt: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Send a message, and wait for its RECEIPT: the broker has processed the message, and kept it if it is
        persistent. `receipt=False`: return when the bytes are on their way.

        Raises ConnectionLostError: whether the broker has it is not known; RefusedError; TimeoutError: the destination
        takes nothing; TypeError for a body or a header that is not text.
        """
        pairs = checked(headers or {})
        if isinstance(body, str):
            pairs.setdefault("content-type", TEXT)
        if transaction is not None:
            pairs["transaction"] = transaction
        pairs = {"destination": destination, **pairs}
        if receipt:
            await self.request("SEND", pairs, encoded(body), timeout_seconds=timeout_seconds)
        else:
            await self._send("SEND", pairs, encoded(body), timeout_seconds)

    async def subscribe(
        self, destination: str, headers: Headers | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> Subscription:
        """Subscribe, and return when the broker has the subscription: no message from then on is missed. Messages are
        acknowledged one by one (`client-individual`). Raises RefusedError, ConnectionLostError, TimeoutError.
        """
        number = str(next(self._numbers))
        subscription = self._subscriptions[number] = Subscription(self, destination, number)
        pairs = {"id": number, "destination": destination, "ack": "client-individual", **checked(headers or {})}
        await self.request("SUBSCRIBE", pairs, timeout_seconds=timeout_seconds)
        return subscription

    @asynccontextmanager
    async def transaction(self, name: str | None = None) -> AsyncIterator[str]:
        """Begin a transaction, and commit it at the end of the block, with its RECEIPT; an exception aborts it. Gives
        its name, for `publish`, `acknowledge` and `nack`. Raises ConnectionLostError: whether it is committed is not
        known; RefusedError, TimeoutError.
        """
        name = name or f"{self.name}-{next(self._numbers)}"
        await self.request("BEGIN", {"transaction": name})
        try:
            yield name
        except BaseException:
            if self._failure is None:
                with trio.CancelScope(shield=True), trio.move_on_after(TIMEOUT_SECONDS):
                    try:
                        await self.request("ABORT", {"transaction": name})
                    except ClientError:
                        pass  # the end of the connection aborts as well
            raise
        await self.request("COMMIT", {"transaction": name})

    async def request(
        self,
        command: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Send any frame, and wait for its RECEIPT. Raises RefusedError, ConnectionLostError, TimeoutError."""
        receipt = str(next(self._numbers))
        deadline = trio.current_time() + timeout_seconds
        await self._send(command, {**headers, "receipt": receipt}, body, timeout_seconds)
        what = f"no RECEIPT came for {command} {headers.get('destination', '')}".rstrip()
        await self.wait_until(lambda: receipt in self._receipts, deadline - trio.current_time(), what)
        del self._receipts[receipt]

    async def receipt(self, name: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Mapping[str, str]:
        """Wait for the RECEIPT that a frame has asked for with its own header `receipt`, and return its headers. Raises
        RefusedError, ConnectionLostError, TimeoutError.
        """
        await self.wait_until(lambda: name in self._receipts, timeout_seconds, f"no RECEIPT {name} came")
        return self._receipts.pop(name)

    async def settle(
        self, command: str, message: Message, transaction: str | None, headers: Headers | None = None
    ) -> None:
        """Send ACK or NACK of a message, and wait for its RECEIPT. Raises as `request`."""
        pairs = {"id": message.headers["ack"], **(headers or {})}
        if transaction is not None:
            pairs["transaction"] = transaction
        await self.request(command, pairs)

    # ------------------------------------------------------------------ frames

    async def _send(self, command: str, headers: Headers, body: bytes, timeout_seconds: float) -> None:
        self._check()
        data = self._machine.send(command, headers.items(), body)
        with trio.move_on_after(timeout_seconds):
            await self._write(data)
            return
        self._end(ConnectionLostError(f"{self.name}: closed in the midst of a frame"))
        raise TimeoutError(f"{self.name}: the broker does not read {command} within {timeout_seconds:g} s")

    async def _write(self, data: bytes) -> None:
        """Write whole frames. Raises ConnectionLostError, RefusedError."""
        try:
            async with self._writing:
                await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # The reader may have the broker's last words on their way, which explain more.
            with trio.move_on_after(1.0):
                while self._failure is None:
                    await self._changed.park()
            self._fail(ConnectionLostError(f"{self.name}: {error}"))
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise copy(self._failure)  # each caller has a traceback of its own

    async def wait_until(self, is_there: Callable[[], bool], timeout_seconds: float, in_vain: str) -> None:
        """Wait for something that arrives. Raises TimeoutError, ConnectionLostError, RefusedError."""
        with trio.move_on_after(timeout_seconds):
            while not is_there():
                self._check()
                await self._changed.park()
            return
        raise TimeoutError(f"{self.name}: {in_vain} within {timeout_seconds:g} s")

    def _take(self, event: object) -> None:
        if isinstance(event, Fault):
            self._fail(ConnectionLostError(f"{self.name}: the broker does not speak STOMP: {event.error}"))
            return
        assert isinstance(event, Frame), event
        headers = event.headers
        if event.command == "MESSAGE":
            subscription = self._subscriptions.get(headers.get("subscription", ""))
            if subscription is not None:
                subscription.arrived.append(message_of(event))
        elif event.command == "RECEIPT":
            self._receipts[headers["receipt-id"]] = dict(headers.items())
        elif event.command == "ERROR":
            self._fail(RefusedError.of(self.name, headers, event.body))
        self._changed.unpark_all()
