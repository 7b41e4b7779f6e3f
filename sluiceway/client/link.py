"""One connection to one broker: frames over a socket, with calls that block.

    with Link(Address.parse("127.0.0.1:61613")) as link:
        link.subscribe("/queue/a", ack="client-individual")
        link.send("/queue/a", b"hello", {"persistent": "true"}, receipt=True)
        link.wait_receipts()
        message = link.next_frame(timeout_seconds=10)
        link.acknowledge(message)
        print(link.ask("stat")["destinations"])

STOMP is the broker's own sans-I/O machine. A link has no thread that reads: the caller that waits for a frame reads it,
and a broker sees a slow reader as long as no frame is asked for. A thread sends heart-beats. One thread may read while
others write. A link lives once: after a loss another one is made (`backoff`).

Not here: bytes and TLS (`opening`, `stream`, `secure`); a thread that reads and hands out frames (`reading_link`).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Final

from sluiceway.client.address import Address
from sluiceway.client.errors import (
    CannotConnectError,
    ConnectionLostError,
    NoReplyError,
    NotSluicewayError,
    RefusedError,
)
from sluiceway.client.opening import connect
from sluiceway.client.stream import NothingCame, TcpStream
from sluiceway.protocols.stomp.encoder import HEART_BEAT, encode_frame
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.frames import Fault, Frame
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.protocols.stomp.machine import ClientMachine
from sluiceway.protocols.stomp.transitions import State

CONNECT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
HEART_BEAT_MS: Final = 10_000
SILENCE_FACTOR: Final = 3
"""Number of heart-beats that a broker may miss before it is taken for dead."""
LAST_WORDS_SECONDS: Final = 1.0
REPLY_SECONDS: Final = 30.0
"""A broker with very many things under load makes its answer in steps."""
RECEIVE_BYTES: Final = 256 * 1024
HEAD_RECEIVE_BYTES: Final = 16 * 1024
"""Asked for behind a large body: what follows the head of the next one goes straight to its place."""
SILENT: Final = "has been silent for too long"
CREDIT_REQUEST: Final = "/sluiceway/credit"
_MIB: Final = 1 << 20
LIMITS: Final = StompLimits(
    header_count_max=10_000, header_line_bytes_max=_MIB, header_block_bytes_max=_MIB, body_bytes_max=1 << 40
)
"""Limits of frames from a broker: it limits itself, and announced bytes are held only as they come."""

Headers = Mapping[str, str] | Iterable[tuple[str, str]]


class Link:
    """A connection, from `open` to its end. As a context manager it says DISCONNECT, unless an error was raised."""

    def __init__(
        self,
        address: Address,
        *,
        beats: bool = True,
        is_shared: bool = False,
        replies: str = "replies",
        timeout_seconds: float = CONNECT_SECONDS,
        stalled_seconds: float | None = None,
        connecting: Callable[[Address, float], TcpStream] = connect,
    ) -> None:
        """`beats`: promise heart-beats, and send them from a thread. `is_shared`: one thread does nothing but
        read, and hears of the broker's last words. `replies`: name of the temporary queue that replies to requests come
        to. `timeout_seconds`: to connect. `stalled_seconds`: a broker that reads nothing for that long while `write`
        waits is taken for dead; None: it may take its time, as brokers do whose queues are full. `connecting`:
        makes the stream to the address, within a time.
        """
        self.address = address
        self.session = ""
        """The broker's name for this connection (header `session` of CONNECTED); empty if the broker gives none."""
        self.server = ""
        """Name of the broker (header `server` of CONNECTED); empty if it does not say."""
        self._beats = beats
        self._is_shared = is_shared
        self._reply_to = f"/temp-queue/{replies}"
        self._replies_id: str | None = None
        self._timeout_seconds = timeout_seconds
        self._stalled_seconds = stalled_seconds
        self._connecting = connecting
        self._machine = ClientMachine(LIMITS)
        self._guard = threading.Lock()
        """Lock of the machine."""
        self._stream: TcpStream | None = None
        self._ended = threading.Event()
        self._frames: deque[Frame] = deque()
        self._receive_bytes = RECEIVE_BYTES
        self._receipts_pending: set[str] = set()
        self._numbers = count(1)
        self._silence_seconds: float | None = None
        self._fault: ProtocolError | None = None

    def __enter__(self) -> Link:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        self.cut()

    # ------------------------------------------------------------------ its life

    def open(self) -> None:
        """Connect, and wait for CONNECTED. Raises CannotConnectError, or RefusedError with the broker's words."""
        address = self.address
        self._stream = self._connecting(address, self._timeout_seconds)
        try:
            self._greet()
        except BaseException:
            self.cut()
            raise
        self._silence_seconds = self._machine.read_every_ms * SILENCE_FACTOR / 1000 or None
        if self._machine.write_every_ms:
            threading.Thread(
                target=self._beat,
                args=(self._machine.write_every_ms / 2000,),
                name=f"sluiceway-beat-{address}",
                daemon=True,
            ).start()

    def _greet(self) -> None:
        address = self.address
        hello = self._machine.connect(
            address.virtual_host or address.host,
            login=address.login,
            passcode=address.passcode,
            heart_beat=(HEART_BEAT_MS if self._beats else 0, HEART_BEAT_MS),
            versions=("1.2",),
        )
        try:
            self.write(hello)
            answer = self.next_frame(self._timeout_seconds)
        except ConnectionLostError as error:
            if isinstance(error.__cause__, ProtocolError):
                raise CannotConnectError(f"{address.url} does not answer in STOMP: {error.__cause__}") from error
            from sluiceway.client.secure import closed_early

            raise CannotConnectError(
                f"{address.url} closed the connection before it was established{closed_early(address.tls)}"
            ) from error
        if answer is None:
            raise CannotConnectError(f"{address.url} does not answer in STOMP within {self._timeout_seconds:g} s")
        if self._machine.version != "1.2":
            raise CannotConnectError(f"{address.url} does not speak STOMP 1.2")
        self.session = self._machine.session_id or ""
        self.server = self._machine.server or ""

    @property
    def ended(self) -> bool:
        """Whether the link was closed or lost, as far as is known."""
        return self._ended.is_set()

    def wait_ended(self, seconds: float) -> bool:
        """Wait until the link was closed or lost, for that time at most. Returns whether it was."""
        return self._ended.wait(seconds)

    def is_alive(self) -> bool:
        """Whether the connection is still open, by the input since the last frame. Does not wait."""
        try:
            while not self.ended:
                self._receive(0.0)
        except NothingCame:
            return True
        except ConnectionLostError:
            pass
        return False

    def close(self) -> None:
        """Say DISCONNECT, wait until the broker has taken all that was sent before, and end. Drops what still comes.
        Raises RefusedError if the broker refuses something yet.
        """
        try:
            if not self._ended.is_set():
                receipt = self.say_goodbye()
                deadline = time.monotonic() + CLOSE_SECONDS
                while (frame := self.next_frame(_left(deadline))) is not None:
                    if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == receipt:
                        break
        except ConnectionLostError:
            pass  # the expected end of an own request
        finally:
            self.cut()

    def say_goodbye(self) -> str:
        """DISCONNECT. Returns the receipt that says when all was taken. Raises ConnectionLostError, RefusedError."""
        receipt = self.next_id()
        with self._guard:
            goodbye = self._machine.send("DISCONNECT", [("receipt", receipt)])
        self.write(goodbye)
        return receipt

    def cut(self) -> None:
        """End at once, without a word. From any thread."""
        self._ended.set()
        if self._stream is not None:
            self._stream.close()

    def _beat(self, every_seconds: float) -> None:
        stream = self._stream
        assert stream is not None
        try:
            while not self._ended.wait(every_seconds):
                stream.send_if_idle(HEART_BEAT)
        except OSError:
            pass  # readers and writers meet the same error

    # ------------------------------------------------------------------ frames

    def next_id(self) -> str:
        """A number that this link has not used."""
        return str(next(self._numbers))

    def write(self, data: bytes) -> None:
        """Whole frames in wire form. Blocks while the broker does not read; what it sends meanwhile is kept for
        `next_frame`, unless another thread reads. Raises ConnectionLostError, or RefusedError if the broker said why it
        ends the connection.
        """
        if self._stream is None:
            raise ConnectionLostError(f"not connected to {self.address.url}")
        try:
            self._stream.send(data, self._stalled_seconds, None if self._is_shared else self._take_what_came)
        except NothingCame:
            raise self._lost(None, SILENT) from None
        except OSError as error:
            # The broker's last frames before it closed explain more than a broken pipe.
            if not self._is_shared:
                self._hear_last_words()
            raise self._lost(error) from error

    def _take_what_came(self) -> None:
        try:
            self._receive(0)
        except NothingCame:
            pass  # less than a record of TLS
        except ConnectionLostError:
            self._hear_last_words()
            raise

    def send(self, destination: str, body: bytes, headers: Headers = (), *, receipt: bool = False) -> None:
        """SEND. With `receipt`, `wait_receipts` says when the broker has processed it. Raises as `write`."""
        pairs = [("destination", destination), *_pairs(headers)]
        if receipt:
            number = self.next_id()
            self._receipts_pending.add(number)
            pairs.append(("receipt", number))
        self.write(encode_frame("SEND", pairs, body, version="1.2"))

    def subscribe(
        self, destination: str, *, ack: str = "auto", headers: Headers = (), receipt: str | None = None
    ) -> str:
        """SUBSCRIBE; its messages come from `next_frame`, and before them the RECEIPT of the id `receipt`. Returns its
        id. Raises as `write`.
        """
        number = self.next_id()
        pairs = [("id", number), ("destination", destination), ("ack", ack), *_pairs(headers)]
        if receipt is not None:
            pairs.append(("receipt", receipt))
        self.write(encode_frame("SUBSCRIBE", pairs, version="1.2"))
        return number

    def set_credit(self, subscription_id: str, headers: Headers) -> None:
        """Ask for other credit of a subscription: `paused`, `credit`. Raises as `write`."""
        self.send(CREDIT_REQUEST, b"", [("id", subscription_id), *_pairs(headers)])

    def acknowledge(self, token: str) -> None:
        """ACK of the MESSAGE with that `ack` header. Raises as `write`."""
        self.write(encode_frame("ACK", [("id", token)], version="1.2"))

    def next_frame(self, timeout_seconds: float | None = None) -> Frame | None:
        """The next MESSAGE or RECEIPT, or None after that time. Raises RefusedError for an ERROR, and
        ConnectionLostError.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._frames:
            silence = self._silence_seconds
            left = _left(deadline)
            is_silence = silence is not None and (left is None or silence < left)
            try:
                self._receive(silence if is_silence else left)
            except NothingCame:
                if is_silence:
                    raise self._lost(None, SILENT) from None
                return None
        frame = self._frames.popleft()
        if frame.command == "ERROR":
            raise RefusedError.of(self.address.url, frame.headers, frame.body)
        if frame.command == "RECEIPT":
            self._receipts_pending.discard(frame.headers.get("receipt-id", ""))
        return frame

    def next_message(self, timeout_seconds: float | None = None) -> Frame | None:
        """The next MESSAGE, or None after that time. Raises as `next_frame`."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            frame = self.next_frame(_left(deadline))
            if frame is None or frame.command == "MESSAGE":
                return frame

    @property
    def receipts_pending_count(self) -> int:
        """Receipts that `send` asked for and that have not come."""
        return len(self._receipts_pending)

    def wait_receipts(self, pending_max: int = 0) -> None:
        """Wait until no more than `pending_max` receipts are outstanding. Drops messages. Raises as `next_frame`."""
        while len(self._receipts_pending) > pending_max:
            self.next_frame()

    def _receive(self, timeout_seconds: float | None) -> None:
        """Move input to `_frames`. Raises NothingCame, ConnectionLostError."""
        stream, machine = self._stream, self._machine
        if stream is None:
            raise ConnectionLostError(f"not connected to {self.address.url}")
        if self._fault is not None:
            raise self._lost(None, f"sent a frame that can't be read: {self._fault}") from self._fault
        if machine.state is State.PARKED:
            raise self._lost(None)
        try:
            room = machine.receive_buffer.room
            if room is None:
                data = stream.receive(self._receive_bytes, timeout_seconds)
                is_end = not data
                if len(data) == self._receive_bytes:
                    self._receive_bytes = RECEIVE_BYTES
            else:
                data = b""
                with room:
                    size_bytes = stream.receive_into(room, timeout_seconds)
                is_end = not size_bytes
                machine.fill(size_bytes)
                self._receive_bytes = HEAD_RECEIVE_BYTES
        except OSError as error:
            raise self._lost(error) from error
        if is_end:
            raise self._lost(None)
        with self._guard:
            events = machine.receive_data(data)
        for event in events:
            if isinstance(event, Fault):
                self._fault = event.error
            else:
                assert isinstance(event, Frame)
                self._frames.append(event)

    def _hear_last_words(self) -> None:
        """Raises RefusedError if there is an ERROR among what the broker has sent, unless another thread reads."""
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        try:
            while not any(frame.command == "ERROR" for frame in self._frames):
                self._receive(_left(deadline))
        except (ConnectionLostError, NothingCame):
            return
        error = next(frame for frame in self._frames if frame.command == "ERROR")
        raise RefusedError.of(self.address.url, error.headers, error.body)

    def _lost(self, error: OSError | None, how: str = "closed the connection") -> ConnectionLostError:
        self._ended.set()
        return ConnectionLostError(f"{self.address.url} {how}{f' ({error})' if error else ''}")

    # ------------------------------------------------------------------ requests

    def request(
        self,
        destination: str,
        body: bytes = b"",
        headers: Headers = (),
        *,
        timeout_seconds: float | None = REPLY_SECONDS,
    ) -> Frame | None:
        """Send a request to `destination`, with `reply-to` and `correlation-id`, and return its reply; None after that
        time. Drops what else comes meanwhile. Raises as `write` and `next_frame`.
        """
        correlation = self.post(destination, body, headers)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while (frame := self.next_message(_left(deadline))) is not None:
            answered = frame.headers.get("correlation-id")
            # Some do not say which request they answer; there is only one.
            if answered == correlation or (answered is None and self.is_reply(frame)):
                return frame
        return None

    def post(self, destination: str, body: bytes = b"", headers: Headers = ()) -> str:
        """Send a request as `request` does, and do not wait: the reply is one of the next frames. Returns its
        correlation-id. Raises as `write`.
        """
        subscribing = b""
        if self._replies_id is None:
            self._replies_id = self.next_id()
            pairs = [("id", self._replies_id), ("destination", self._reply_to), ("ack", "auto")]
            subscribing = encode_frame("SUBSCRIBE", pairs, version="1.2")
        correlation = f"r{self.next_id()}"
        pairs = [("destination", destination), ("reply-to", self._reply_to), ("correlation-id", correlation)]
        self.write(subscribing + encode_frame("SEND", [*pairs, *_pairs(headers)], body, version="1.2"))
        return correlation

    def is_reply(self, frame: Frame) -> bool:
        """Whether a MESSAGE is the reply to a request."""
        return self._replies_id is not None and frame.headers.get("subscription") == self._replies_id

    def ask(
        self, name: str, facts: Mapping[str, Any] | None = None, *, timeout_seconds: float | None = REPLY_SECONDS
    ) -> dict[str, Any]:
        """Ask the broker itself: a request to `/sluiceway/NAME`, question and reply are JSON. Raises NotSluicewayError,
        and as `request`.
        """
        if self.server and "sluiceway" not in self.server.lower():
            raise NotSluicewayError(f"{self.address.url} is {self.server}, not Sluiceway")
        body = b"" if facts is None else json.dumps(facts).encode()
        frame = self.request(f"/sluiceway/{name}", body, timeout_seconds=timeout_seconds)
        url = self.address.url
        if frame is None:
            raise NoReplyError(f"{url} did not answer within {timeout_seconds:g} s: is it a Sluiceway broker?")
        try:
            reply = json.loads(frame.body)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise NotSluicewayError(f"{url} did not answer with JSON: is it a Sluiceway broker of this version?")
        return reply


def _left(deadline: float | None) -> float | None:
    """Seconds until then, at least 0; None: without end."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _pairs(headers: Headers) -> Iterable[tuple[str, str]]:
    return headers.items() if isinstance(headers, Mapping) else headers
