"""One topic of one region: a connection over there, one here, and what goes between them, again and again.

The connection here is one in memory, which only the broker can make: its SENDs get the header `origin-region`, which no
client can set, and go wherever SENDs go (in a cluster to the owner of the topic). What has no room here waits there.

A cut over there, or a hub of there that stops, is tried again, at the next of its addresses; the wait grows to
RETRY_SECONDS_MAX. What came of it is under way only, and comes again.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

import trio

from sluiceway.client.address import Address
from sluiceway.client.backoff import Backoff
from sluiceway.flow import Account, Flow, FlowManager, FlowResource, SizeLimiter
from sluiceway.flow.kinds import ResourceKind
from sluiceway.protocols.log import get_logger
from sluiceway.protocols.stomp.encoder import HEART_BEAT
from sluiceway.protocols.stomp.frames import Event, Fault, Frame
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.streams import MemoryStream
from sluiceway.regions.config import Region
from sluiceway.regions.courier import CREDIT_BYTES, LARGE_BYTES, SUBSCRIPTION, Courier

CONNECT_SECONDS: Final = 10.0
HEART_BEAT_MS: Final = 10_000
SILENCE_FACTOR: Final = 2.5
"""Heart-beats that may be missing before the other side is taken for gone."""
RETRY_SECONDS_MIN: Final = 0.5
RETRY_SECONDS_MAX: Final = 30.0
OWNER_SECONDS: Final = 1.0
"""Interval of looks whether the topic is at home at this hub."""
READ_BYTES: Final = 32 * 1024
"""A read has few messages, so that no step takes long."""
_MIB: Final = 1 << 20

log = get_logger("sluiceway.regions")


class FeedError(Exception):
    """The feed can't continue for now. The message says why, in words."""


class Channel(Protocol):
    """Bytes to and from one broker. Streams of trio and `MemoryStream` fit."""

    async def send_all(self, data: bytes, /) -> None:
        """Write all of it."""

    async def receive_some(self, size_max: int, /) -> bytes | bytearray:
        """Wait for bytes; b"" at the end of the stream."""


async def dial(address: Address) -> tuple[Channel, Callable[[], None]]:
    """Connect to a broker; returns the channel, and what closes it at once. Raises OSError, and what trio raises of
    TLS.
    """
    stream = await trio.open_tcp_stream(address.host, address.port)
    if address.tls is None:
        return stream, stream.socket.close
    from sluiceway.client.secure import client_context

    secured = trio.SSLStream(stream, client_context(address.tls), server_hostname=address.host)
    try:
        await secured.do_handshake()
    except BaseException:
        stream.socket.close()
        raise
    return secured, stream.socket.close


class _Side:
    """A STOMP connection to one of the two brokers."""

    def __init__(self, channel: Channel, close: Callable[[], None], limits: StompLimits, who: str) -> None:
        self._channel = channel
        self._writing = trio.StrictFIFOLock()
        self._who = who
        self.machine = ClientMachine(limits)
        self.close = close
        self.read_at = trio.current_time()

    async def greet(self, host: str, *, login: str | None, passcode: str | None, beats: bool, client_id: str) -> None:
        """Log in. Raises FeedError."""
        beat = (HEART_BEAT_MS, HEART_BEAT_MS) if beats else (0, 0)
        extra = [("client-id", client_id)] if client_id else []
        await self.write(
            self.machine.connect(host, login=login, passcode=passcode, heart_beat=beat, versions=("1.2",), extra=extra)
        )
        while self.machine.version is None:
            for frame in await self.read():
                if frame.command == "ERROR":
                    raise FeedError(f"{self._who} refused the login: {frame.headers.get('message', '')}")

    async def write(self, data: bytes) -> None:
        """Write all of it, one caller after the other."""
        if data:
            async with self._writing:
                await self._channel.send_all(data)

    async def read(self) -> list[Frame]:
        """Wait for bytes; returns the frames that they complete. Raises FeedError."""
        data = await self._channel.receive_some(READ_BYTES)
        if not data:
            raise FeedError(f"{self._who} closed the connection")
        self.read_at = trio.current_time()
        frames: list[Frame] = []
        events: list[Event] = self.machine.receive_data(bytes(data))
        for event in events:
            if isinstance(event, Fault):
                raise FeedError(f"{self._who} sent what can't be read: {event.error.message}")
            if isinstance(event, Frame):
                frames.append(event)
        return frames


class _Held(FlowResource):
    """Messages of a region that are not published here yet, on the flow map."""

    passes_through = False

    def __init__(self, name: str, bytes_max: int, manager: FlowManager, clock: Callable[[], float]) -> None:
        super().__init__(name, ResourceKind.LINK, manager)
        self.account = Account(self, Flow(name), SizeLimiter(bytes_max, clock=clock), clock=clock)
        self._bytes = 0

    def now(self, size_bytes: int) -> None:
        """Note how much it is."""
        if not self.is_open and size_bytes:
            self.open()
        more_bytes, self._bytes = size_bytes - self._bytes, size_bytes
        if more_bytes > 0:
            self.account.charge(0, more_bytes, None)
        elif more_bytes:
            self.account.release(0, -more_bytes)


class Feed:
    """One topic of one region. `run` carries its messages until it is cancelled."""

    def __init__(
        self,
        region: Region,
        topic: str,
        *,
        own_name: str,
        message_bytes_max: int,
        manager: FlowManager,
        clock: Callable[[], float],
        connect_here: Callable[[str], MemoryStream],
        is_ours: Callable[[], bool],
    ) -> None:
        """Make a feed. `connect_here`: opens a connection whose SENDs are of this region; `is_ours`: whether the topic
        is at home at this hub.
        """
        self.region = region
        self.topic = topic
        self.courier = Courier(topic, own_name)
        self.connected_to = ""
        """Address of the hub over there; empty: there is no connection."""
        self.reason = "not connected yet"
        """Reason why there is none."""
        self._addresses = [Address.parse(each) for each in region.hubs]
        self._connect_here = connect_here
        self._is_ours = is_ours
        self._limits = limits_of(message_bytes_max)
        self._held = _Held(f"{topic} of region {region.name}", CREDIT_BYTES + message_bytes_max, manager, clock)

    def facts(self) -> dict[str, object]:
        """Return its state as data."""
        return {
            "region": self.region.name,
            "topic": self.topic,
            "connected_to": self.connected_to,
            "reason": self.reason,
            "taken_count": self.courier.taken_count,
            "refused_count": self.courier.refused_count,
            "underway_count": self.courier.underway_count,
        }

    async def run(self) -> None:
        """Carry messages until cancelled."""
        backoff = Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)
        place = 0
        try:
            while True:
                if not self._is_ours():
                    self.reason = "another hub of this cluster has it"
                    await trio.sleep(OWNER_SECONDS)
                    continue
                address = self._addresses[place % len(self._addresses)]
                place += 1
                self._lost(address, await self._attempt(address, backoff))
                await trio.sleep(backoff.next_seconds())
        finally:
            if self._held.is_open:
                self._held.now(0)
                self._held.close()

    def _lost(self, address: Address, reason: str) -> None:
        if self.connected_to or reason != self.reason:
            log.warning(
                "no connection to a region", region=self.region.name, topic=self.topic, hub=str(address), reason=reason
            )
        self.connected_to, self.reason = "", reason

    async def _attempt(self, address: Address, backoff: Backoff) -> str:
        """Connect to both sides and carry messages as long as it lasts. Returns why it has ended."""
        reasons: list[str] = []
        sides: list[_Side] = []
        try:
            with trio.fail_after(CONNECT_SECONDS):
                far = await self._connect_far(address, sides)
                near = await self._connect_near(sides)
            async with trio.open_nursery() as nursery:

                async def last(task: Callable[[], Awaitable[None]]) -> None:
                    try:
                        await task()
                    except _LOSSES as error:
                        reasons.append(_words(error))
                        nursery.cancel_scope.cancel()

                for task in (
                    partial(self._take, far, near, address, backoff),
                    partial(self._confirm, near, far),
                    partial(self._beat, far),
                    self._stay,
                ):
                    nursery.start_soon(last, task)
        except trio.TooSlowError:
            reasons.append(f"nothing answered within {CONNECT_SECONDS:g} seconds")
        except _LOSSES as error:
            reasons.append(_words(error))
        finally:
            for side in sides:
                side.close()
            self._held.now(0)
        return reasons[0] if reasons else "it ended"

    async def _connect_far(self, address: Address, sides: list[_Side]) -> _Side:
        passcode = address.passcode
        if self.region.passcode_file is not None:
            path = trio.Path(self.region.passcode_file)
            passcode = (await path.read_text()).partition("\n")[0].strip()
        channel, close = await dial(address)
        far = _Side(channel, close, self._limits, "the other side")
        sides.append(far)
        await far.greet(
            address.host,
            login=self.region.login or address.login,
            passcode=passcode,
            beats=True,
            client_id=self.courier.client_id,
        )
        await far.write(far.machine.send("SUBSCRIBE", self.courier.subscribe().items()))
        return far

    async def _connect_near(self, sides: list[_Side]) -> _Side:
        stream = self._connect_here(self.region.name)
        near = _Side(stream, stream.close, self._limits, "this broker")
        sides.append(near)
        await near.greet("here", login=None, passcode=None, beats=False, client_id="")
        return near

    async def _take(self, far: _Side, near: _Side, address: Address, backoff: Backoff) -> None:
        """Publish here what comes from there."""
        courier = self.courier
        while True:
            frames = await far.read()
            sends: list[bytes] = []
            for frame in frames:
                if frame.command == "MESSAGE":
                    sends += courier.take(frame)
                elif frame.command == "RECEIPT" and frame.headers.get("receipt-id") == SUBSCRIPTION:
                    backoff.succeeded()
                    self.connected_to, self.reason = str(address), ""
                    log.info("connected to a region", region=self.region.name, topic=self.topic, hub=str(address))
                elif frame.command == "ERROR":
                    raise FeedError(f"the other side says: {frame.headers.get('message', '')}")
            self._note(far)
            small: list[bytes] = []
            for piece in sends:
                if len(piece) < LARGE_BYTES:
                    small.append(piece)
                    continue
                await near.write(b"".join(small))
                await near.write(piece)
                small.clear()
            await near.write(b"".join(small))

    async def _confirm(self, near: _Side, far: _Side) -> None:
        """Acknowledge there what is published here."""
        courier = self.courier
        while True:
            acks: list[bytes] = []
            refusal = ""
            for frame in await near.read():
                if frame.command == "RECEIPT":
                    acks.append(courier.receipted(frame.headers["receipt-id"]))
                elif frame.command == "ERROR":
                    refusal = frame.headers.get("message", "")
                    if _is_of_message(frame.headers.get("code", "")):
                        acks.append(courier.refused(frame.headers.get("receipt-id")))
            self._note(far)
            await far.write(b"".join(acks))
            if refusal:
                raise FeedError(f"this broker refused a message: {refusal}")

    def _note(self, far: _Side) -> None:
        self._held.now(self.courier.underway_bytes + far.machine.pending_bytes)

    async def _beat(self, far: _Side) -> None:
        """Send heart-beats, and notice when none come."""
        write_seconds = far.machine.write_every_ms / 2000
        silence_seconds = far.machine.read_every_ms * SILENCE_FACTOR / 1000
        while True:
            await trio.sleep(write_seconds or HEART_BEAT_MS / 1000)
            if write_seconds:
                await far.write(HEART_BEAT)
            if silence_seconds and trio.current_time() - far.read_at > silence_seconds:
                raise FeedError(f"the other side has been silent for {silence_seconds:g} seconds")

    async def _stay(self) -> None:
        """Notice when the topic moves to another hub of this cluster."""
        while self._is_ours():  # noqa: ASYNC110 - a placement tells nothing of one name
            await trio.sleep(OWNER_SECONDS)
        raise FeedError("another hub of this cluster has it")


def limits_of(message_bytes_max: int) -> StompLimits:
    """Return the limits of both connections: of messages that another broker has taken."""
    return StompLimits(
        header_count_max=10_000,
        header_line_bytes_max=_MIB,
        header_block_bytes_max=_MIB,
        body_bytes_max=message_bytes_max,
        large_body_bytes_max=message_bytes_max,
    )


def _words(error: BaseException) -> str:
    """Return why a connection failed, for people."""
    if isinstance(error, FeedError):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, trio.BrokenResourceError):
        cause = error.__cause__
        return f"the connection broke: {cause}" if cause is not None else "the connection broke"
    if isinstance(error, trio.ClosedResourceError):
        return "the connection was closed"
    return f"{type(error).__name__}: {error}"


_LOSSES: Final = (
    FeedError,
    OSError,
    ssl.SSLError,
    KeyError,
    UnicodeDecodeError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
)


def _is_of_message(code: str) -> bool:
    """Whether an ERROR of this code is the fault of a message, which would be refused again."""
    return code.startswith("bad-") or code in ("not-supported", "not-utf-8")
