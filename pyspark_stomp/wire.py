"""One connection from a Spark process to one broker, over a blocking socket.

Spark calls us in plain processes, one thing at a time: a thread that reads, as in `sluiceway.client`, would only be
waited for. So here who waits for a frame reads it; and the body of a MESSAGE is received straight into its place, where
Arrow takes it without another copy. STOMP itself (escapes, header lines, frames in wire form) is the broker's own code.

    with Connection(Address.parse("127.0.0.1:61613")) as connection:
        connection.request("log/describe", log="/log/a")            -> {"first": 0, "next": 10, ...}
        for part in connection.read_batches("/log/a", 0, 10): ...   -> Batch | Gap, whole and in order
        with connection.sender("/log/a", single_writer=True) as sender:
            sender.send_batches(encode([b"one", b"two"]), 2)

A connection is made when it is needed and again when it was lost, for as long as `patience_seconds` says: a broker that
is restarted delays who uses it. What a broker says no to is not tried again. A connection does one thing at a time and
belongs to one thread; it can't be pickled: open it where it is used.

Not here: which logs and ranges (`logs`), rows and columns (`schema`).
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Final, TypeVar

import attrs

from sluiceway.client.address import Address
from sluiceway.client.backoff import Backoff
from sluiceway.client.errors import (
    CannotConnectError,
    ClientError,
    ConnectionLostError,
    DamagedError,
    Gap,
    RefusedError,
    RequestError,
)
from sluiceway.protocols.stomp.encoder import encode_frame
from sluiceway.protocols.stomp.errors import ProtocolError
from sluiceway.protocols.stomp.head import parse_headers
from sluiceway.protocols.stomp.limits import StompLimits
from sluiceway.queues.logs.batches import CONTENT_TYPE, Batch, BatchError, Damage, sound, split

CONNECT_SECONDS: Final = 10.0
HEART_BEAT_MS: Final = 10_000
SILENCE_SECONDS: Final = 30.0
"""A broker that is silent for so long, without the heart-beats that it has promised, is taken for dead."""
PATIENCE_SECONDS: Final = 120.0
BATCH_BYTES: Final = 1 << 20
"""Of one MESSAGE: large enough that its frame costs nothing, and small beside the memory of a worker."""
WINDOW: Final = 8
"""SENDs that wait for their RECEIPTs: they share the broker's syncs."""
LOST_SECONDS: Final = 0.05
"""Between two looks whether the broker has noticed that a connection is lost."""
REPLIES: Final = "/temp-queue/spark-replies"
OTHER_LOG: Final = "other-log"
"""Why records are not there: the log was deleted, and there is another one under its name."""
ALL_CODECS: Final = "gzip,snappy,zstd"
_RECEIVE_BYTES: Final = 64 * 1024
_HEAD_BYTES_MAX: Final = 1 << 20
_LIMITS: Final = StompLimits(header_count_max=10_000, header_line_bytes_max=_HEAD_BYTES_MAX)

T = TypeVar("T")
Headers = Iterable[tuple[str, str]]


@attrs.frozen
class Frame:
    """What the broker sent. `body`: nobody else has it."""

    command: str
    headers: Mapping[str, str]
    body: bytearray


def _secured(connected: socket.socket, address: Address) -> socket.socket:
    """TLS over it. Raises CannotConnectError."""
    from sluiceway.client.secure import client_context, why_refused

    assert address.tls is not None
    try:
        return client_context(address.tls).wrap_socket(connected, server_hostname=address.host)
    except OSError as error:
        connected.close()
        raise CannotConnectError(f"TLS with {address} failed: {why_refused(error, address.tls)}") from error


class _Socket:
    """Frames over a blocking socket. Lives once: after an error it is good for nothing."""

    def __init__(self, address: Address) -> None:
        """Connect, and wait for CONNECTED. Raises CannotConnectError, RefusedError."""
        self._address = address
        self._held = bytearray()
        """What was received and belongs to no frame yet."""
        try:
            self._socket = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
            if address.tls is not None:
                self._socket = _secured(self._socket, address)
        except OSError as error:
            raise CannotConnectError(
                f"no broker answers at {address}: is it running, and is the address right? ({error})"
            ) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            headers = [("accept-version", "1.2"), ("host", address.host), ("heart-beat", f"0,{HEART_BEAT_MS}")]
            if address.login is not None:
                headers.append(("login", address.login))
            if address.passcode is not None:
                headers.append(("passcode", address.passcode))
            self.write(encode_frame("CONNECT", headers, version="1.2"))
            answer = self.next_frame()
            if answer.command != "CONNECTED":
                raise CannotConnectError(f"{address} answered CONNECT with {answer.command[:40]!r}: is it STOMP?")
            if answer.headers.get("version") != "1.2":
                raise CannotConnectError(f"{address} does not speak STOMP 1.2")
            self.session = answer.headers.get("session", "")
        except ConnectionLostError as error:
            self.close()
            raise CannotConnectError(str(error)) from error
        except ClientError:
            self.close()
            raise
        self._socket.settimeout(SILENCE_SECONDS)

    def write(self, data: bytes) -> None:
        """Send all of it. Blocks while the broker does not read. Raises ConnectionLostError."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def next_frame(self) -> Frame:
        """Wait for a frame. Raises ConnectionLostError, and RefusedError for an ERROR about something that we sent."""
        held = self._held
        searched = 0
        while True:
            while held[:1] == b"\n" or held[:1] == b"\r":
                del held[: len(held) - len(held.lstrip(b"\r\n"))]
                searched = 0
            end = held.find(b"\n\n", max(0, searched - 1))
            if end >= 0:
                break
            searched = len(held)
            if searched > _HEAD_BYTES_MAX:
                raise CannotConnectError(f"{self._address} sends something that is no STOMP")
            held += self._receive()
        command, _newline, block = bytes(held[:end]).partition(b"\n")
        del held[: end + 2]
        name = command.decode("ascii", "replace").rstrip("\r")
        try:
            headers = parse_headers(block, _LIMITS, unescape_as=None if name == "CONNECTED" else "1.2")
        except ProtocolError as error:
            raise ConnectionLostError(f"{self._address} sent a frame that can't be read: {error}") from error
        length = headers.get("content-length")
        frame = Frame(name, headers, self._counted(int(length)) if length is not None else self._to_nul())
        if name == "ERROR":
            said = headers.get("message", "no message")
            detail = frame.body.decode("utf-8", "replace").strip()
            text = f"{self._address} answered ERROR: {said}{f': {detail}' if detail else ''}"
            # One that names none of our frames is about the connection: the broker stops, or has too many of them.
            if "command" not in headers:
                raise ConnectionLostError(text)
            raise RefusedError(text, headers.get("code"), headers.get("result-code"))
        return frame

    def _counted(self, length: int) -> bytearray:
        held = self._held
        if len(held) > length:
            body = held[:length]
            ending = held[length]
            del held[: length + 1]
        else:
            body = bytearray(length)
            there = len(held)
            body[:there] = held
            held.clear()
            view = memoryview(body)
            while there < length:
                try:
                    received = self._socket.recv_into(view[there:])
                except OSError as error:
                    raise self._lost(error) from error
                if not received:
                    raise self._lost(None)
                there += received
            held += self._receive()
            ending = held[0]
            del held[:1]
        if ending:
            raise ConnectionLostError(f"{self._address} sent a body that is longer than it said")
        return body

    def _to_nul(self) -> bytearray:
        held = self._held
        searched = 0
        while (end := held.find(b"\0", searched)) < 0:
            searched = len(held)
            held += self._receive()
        body = held[:end]
        del held[: end + 1]
        return body

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost(None)
        return data

    def _lost(self, error: OSError | None) -> ConnectionLostError:
        if isinstance(error, TimeoutError):
            return ConnectionLostError(f"{self._address} has been silent for too long")
        return ConnectionLostError(f"{self._address} closed the connection{f' ({error})' if error else ''}")

    def close(self) -> None:
        self._socket.close()


class Connection:
    """To one broker. See the module."""

    def __init__(self, address: Address, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """`patience_seconds`: how long to try again when the broker is away; 0: a connection that was lost is made
        anew once, and that is all.
        """
        self.address = address
        self.patience_seconds = patience_seconds
        self._socket: _Socket | None = None
        self._replies = False
        self._numbers = count(1)
        self.session = ""
        """What the broker calls this connection, or the last one."""
        self.log_id = ""
        """What the broker calls the log that is being read, in its message-ids: `log.LOGID`."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Whoever uses it later makes a new one."""
        held, self._socket = self._socket, None
        self._replies = False
        if held is not None:
            held.close()

    def next_id(self) -> str:
        """A subscription id or receipt that this connection has not used."""
        return str(next(self._numbers))

    # ------------------------------------------------------------------ frames

    def connect(self) -> None:
        """Be connected. One attempt. Raises CannotConnectError, RefusedError."""
        if self._socket is None:
            self._socket = _Socket(self.address)
            self.session = self._socket.session

    def write(self, data: bytes) -> None:
        """Frames in wire form. Raises ConnectionLostError, CannotConnectError, RefusedError."""
        self.connect()
        assert self._socket is not None
        self._socket.write(data)

    def next_frame(self) -> Frame:
        """Wait for one. Raises ConnectionLostError, RefusedError."""
        if self._socket is None:
            raise ConnectionLostError(f"not connected to {self.address}")
        return self._socket.next_frame()

    def patiently(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns; it is called again after a connection was lost or could not be made, until it has
        failed for `patience_seconds` on end. Raises the last CannotConnectError or ConnectionLostError.
        """
        backoff = Backoff(0.05, 2.0)
        fresh = self._socket is None
        lost_at: float | None = None
        while True:
            try:
                return attempt()
            except (CannotConnectError, ConnectionLostError) as error:
                self.close()
                if not fresh:  # it may have been lost while nobody used it
                    fresh = True
                    continue
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                seconds = backoff.next_seconds()
                if now + seconds - lost_at >= self.patience_seconds:
                    raise
                del error
                time.sleep(seconds)
            except RequestError:
                raise
            except ClientError:
                self.close()  # it was refused, and the broker has closed it
                raise

    # ------------------------------------------------------------------ requests

    def request(self, name: str, **facts: Any) -> dict[str, Any]:
        """Ask the broker something that may be asked twice, such as `log/describe`; the answer. Patient. Raises
        RequestError with the broker's code, CannotConnectError, ConnectionLostError, RefusedError.
        """
        return self.patiently(lambda: self.ask(name, **facts))

    def ask(self, name: str, **facts: Any) -> dict[str, Any]:
        """As `request`, once."""
        body = json.dumps(facts).encode()
        self.connect()
        correlation = self.next_id()
        asked = b""
        if not self._replies:
            asked = encode_frame("SUBSCRIBE", [("id", "replies"), ("destination", REPLIES)], version="1.2")
        headers = [("destination", f"/sluiceway/{name}"), ("reply-to", REPLIES), ("correlation-id", correlation)]
        self.write(asked + encode_frame("SEND", headers, body, version="1.2"))
        self._replies = True
        while True:
            frame = self.next_frame()
            if frame.command == "MESSAGE" and frame.headers.get("correlation-id") == correlation:
                reply = json.loads(frame.body)
                if not isinstance(reply, dict):
                    raise ClientError(f"{self.address} answered {name} with something that is no reply")
                if reply.get("ok", True) is not True:  # `stat` answers without it
                    raise RequestError(str(reply.get("error", "INTERNAL_ERROR")), str(reply.get("message", "")))
                return reply

    # ------------------------------------------------------------------ reading

    def read_batches(
        self,
        log: str,
        start: int,
        stop: int,
        *,
        log_id: str = "",
        batch_bytes: int = BATCH_BYTES,
        verify: bool = True,
    ) -> Generator[Batch | Gap, None, None]:
        """Records `start` to before `stop` of a log (`/log/NAME`), in order and without holes: batches, and where
        records are gone, gaps. After a lost connection it goes on behind what was yielded. The connection is for
        nothing else meanwhile.

        Ends at `stop`, never waits for records that are not there yet: what lies beyond the end of the log (its disk
        has lost something) is a gap `lost`; if the log is no more, or goes meanwhile, a gap `deleted`; if this is
        another one than `log_id`, or than the one that was begun with, a gap `other-log`. Raises DamagedError,
        RefusedError, CannotConnectError, ConnectionLostError.
        """
        place = start
        finished = False
        try:
            while place < stop:
                reading = _Reading(self, log, log_id, place, stop, batch_bytes, verify)
                parts = self.patiently(reading.begin)
                while parts:
                    for part in parts:
                        if not isinstance(part, Gap):
                            log_id = self.log_id.removeprefix("log.")
                        yield part
                        place = part.end if isinstance(part, Gap) else part.end_index
                    if place >= stop:
                        break
                    try:
                        parts = reading.next_parts()
                    except ConnectionLostError:
                        self.close()  # and begin again from `place`
                        break
            finished = True
        finally:
            if not finished:
                self.close()  # the rest is under way

    # ------------------------------------------------------------------ sending

    def sender(self, destination: str, *, window: int = WINDOW, single_writer: bool = False) -> Sender:
        """Sends to one destination; see `Sender`."""
        return Sender(self, destination, window=window, single_writer=single_writer)


class _Reading:
    """One subscription of `read_batches`, over one connection."""

    def __init__(
        self, connection: Connection, log: str, log_id: str, start: int, stop: int, batch_bytes: int, verify: bool
    ) -> None:
        self._connection = connection
        self._log = log
        self._log_id = log_id
        self._place = start
        self._stop = stop
        self._batch_bytes = batch_bytes
        self._verify = verify
        self._id = ""

    def begin(self) -> list[Batch | Gap]:
        """Subscribe; those of the first MESSAGE. Again and again, if need be. Raises what `read_batches` does."""
        reason = self._subscribe()
        if reason:
            return [self._gap(self._stop, reason)]
        try:
            return self.next_parts()
        except RefusedError as error:
            if error.code != "topic-not-exist":
                raise
            self._connection.close()  # as the broker does
            return [self._gap(self._stop, "deleted")]

    def next_parts(self) -> list[Batch | Gap]:
        """Those of the next MESSAGE."""
        connection = self._connection
        while True:
            frame = connection.next_frame()
            headers = frame.headers
            if frame.command != "MESSAGE" or headers.get("subscription") != self._id:
                continue
            try:
                if headers.get("log-deleted") == "true":
                    return [self._gap(self._stop, "deleted")]
                if headers.get("gap-reason") == OTHER_LOG:
                    return [self._gap(self._stop, OTHER_LOG)]
                if headers.get("gap") == "true":
                    end = min(int(headers["gap-to"]), self._stop)
                    if end > self._place:
                        return [self._gap(end, headers.get("gap-reason", "lost"))]
                    continue
                if headers.get("range-end") == "true":
                    return [] if self._place >= self._stop else [self._gap(self._stop, "lost")]
                connection.log_id = headers["message-id"].rpartition("-")[0]
                return self._batches(frame)
            except (KeyError, ValueError) as error:
                raise DamagedError(
                    f"{connection.address} sent a MESSAGE of {self._log} that can't be read: {error!r}"
                ) from error

    def _subscribe(self) -> str:
        """Empty, or why nothing is there to be read."""
        connection = self._connection
        try:
            described = connection.ask("log/describe", log=self._log)
        except RequestError as error:
            if error.code != "TOPIC_NOT_EXIST":
                raise
            return "deleted"
        if self._log_id and described.get("log_id", self._log_id) != self._log_id:
            return OTHER_LOG
        stop = min(self._stop, int(described["next"]))
        if stop <= self._place:
            return "lost"
        meant = [("log-id", self._log_id)] if self._log_id else []
        number = connection.next_id()
        connection.write(
            encode_frame(
                "SUBSCRIBE",
                [
                    ("id", number),
                    ("destination", self._log),
                    ("ack", "auto"),
                    ("from", str(self._place)),
                    ("to", str(stop)),
                    *meant,
                    ("on-gap", "marker"),
                    ("batch", str(self._batch_bytes)),
                    ("compression", ALL_CODECS),
                ],
                version="1.2",
            )
        )
        self._id = number
        return ""

    def _gap(self, end: int, reason: str) -> Gap:
        gap = Gap(self._log, str(self._connection.address), self._place, end, reason)
        self._place = end
        return gap

    def _batches(self, frame: Frame) -> list[Batch | Gap]:
        if frame.headers.get("content-type") != CONTENT_TYPE:
            raise DamagedError(f"{self._connection.address} sent no batches of {self._log}: is it Sluiceway?")
        parts: list[Batch | Gap] = []
        body = memoryview(frame.body)
        first, count = int(frame.headers["index"]), int(frame.headers["count"])
        if first != self._place:
            raise DamagedError(
                f"{self._connection.address} sent records from {first} of {self._log}, not {self._place}"
            )
        try:
            for batch in sound(body, first, first + count) if self._verify else split(body):
                if isinstance(batch, Damage):  # as the broker tells it to those for whom it looks into batches
                    parts.append(self._gap(min(batch.end_index, self._stop), "damaged"))
                    continue
                if batch.first_index != self._place:
                    raise DamagedError(
                        f"{self._connection.address} sent records from {batch.first_index} of {self._log}, those from"
                        f" {self._place} were next"
                    )
                self._place = batch.end_index
                parts.append(batch)
        except BatchError as error:
            raise DamagedError(
                f"records from {self._place} of {self._log} at {self._connection.address} are damaged: {error}"
            ) from error
        if self._place > self._stop:
            raise DamagedError(f"{self._connection.address} sent more of {self._log} than was asked for")
        return parts


@attrs.define
class _UnderWay:
    receipt: str
    wire: bytes
    count: int


class Sender:
    """SENDs to one destination, some of them ahead of their RECEIPTs. What has no RECEIPT when the connection is lost
    is sent again over the next one, so it may come twice.

    With `single_writer`, for a log that nobody else writes, each record comes once: before anything is sent again the
    log is asked how far it is. It says so for good only when the broker has let go of the lost connection, whose last
    frames it may still be reading, and has written what it took: that is waited for.
    """

    def __init__(self, connection: Connection, destination: str, *, window: int, single_writer: bool) -> None:
        self._connection = connection
        self.destination = destination
        self._window = window
        self._single_writer = single_writer
        self._under_way: deque[_UnderWay] = deque()
        self._base = 0
        """With `single_writer`: index of the first record that is sent here."""
        self._asked = False
        self._sessions: set[str] = set()
        """With `single_writer`: connections over which something was sent, as the broker calls them."""
        self.confirmed_count = 0
        """Records whose RECEIPT has come."""

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()

    def send_batches(self, batches: bytes, records_count: int) -> None:
        """To a log: one SEND that appends a run of batches, all or nothing. Waits while the window is full. Raises
        RefusedError, CannotConnectError, ConnectionLostError.
        """
        self.send(batches, [("content-type", CONTENT_TYPE)], records_count=records_count)

    def send(self, body: bytes, headers: Headers = (), *, before: bytes = b"", records_count: int = 1) -> None:
        """One SEND with a RECEIPT. `before`: whole frames that go ahead of it and have none; the broker has taken them
        when the RECEIPT is there. `records_count`: how many all of this is, for `confirmed_count`.
        """
        if self._single_writer and not self._asked:
            self._base = self._connection.patiently(self._next_index)
            self._asked = True
        receipt = f"s{self._connection.next_id()}"
        pairs = [("destination", self.destination), ("receipt", receipt), *headers]
        self._send(receipt, before + encode_frame("SEND", pairs, body, version="1.2"), records_count)

    def send_frames(self, frames: Callable[[str], bytes], records_count: int) -> None:
        """Whole frames, to whatever destinations, of which the last one has the receipt that `frames` is given. Not
        with `single_writer`.
        """
        receipt = f"s{self._connection.next_id()}"
        self._send(receipt, frames(receipt), records_count)

    def _send(self, receipt: str, wire: bytes, records_count: int) -> None:
        self._under_way.append(_UnderWay(receipt, wire, records_count))
        try:
            self._connection.connect()
            self._sessions.add(self._connection.session)
            self._connection.write(wire)
        except (CannotConnectError, ConnectionLostError):
            self._recover()
        while len(self._under_way) >= self._window:
            self._take_receipt()

    def finish(self) -> int:
        """Wait for all RECEIPTs; how many records they confirm since the sender was made."""
        while self._under_way:
            self._take_receipt()
        return self.confirmed_count

    def _take_receipt(self) -> None:
        try:
            while True:
                frame = self._connection.next_frame()
                if frame.command == "RECEIPT":
                    break
        except ConnectionLostError:
            self._recover()
            return
        self._confirm(frame.headers.get("receipt-id", ""))

    def _confirm(self, receipt: str) -> None:
        # They come in order, but nothing here depends on it.
        for place, sent in enumerate(self._under_way):
            if sent.receipt == receipt:
                del self._under_way[place]
                self.confirmed_count += sent.count
                return

    def _recover(self) -> None:
        """Over a new connection, send again what is not confirmed."""
        self._connection.close()
        self._connection.patiently(self._resend)

    def _resend(self) -> None:
        self._connection.connect()
        if self._single_writer:
            self._wait_for_lost_connections()
            there = self._next_index() - self._base - self.confirmed_count
            while self._under_way and self._under_way[0].count <= there:
                sent = self._under_way.popleft()
                there -= sent.count
                self.confirmed_count += sent.count
        self._sessions.add(self._connection.session)
        for sent in self._under_way:
            self._connection.write(sent.wire)

    def _wait_for_lost_connections(self) -> None:
        """Raises ConnectionLostError if the broker does not let go of them: nobody knows what is there as long."""
        connection = self._connection
        deadline = time.monotonic() + connection.patience_seconds
        while True:
            self._sessions = set(connection.ask("sessions", sessions=sorted(self._sessions))["sessions"])
            if not self._sessions and not self._waiting_count():
                return
            if time.monotonic() > deadline:
                raise ConnectionLostError(f"{connection.address} still holds a connection that we have lost")
            time.sleep(LOST_SECONDS)

    def _waiting_count(self) -> int:
        try:
            return int(self._connection.ask("log/size", log=self.destination)["waiting"])
        except RequestError as error:
            if error.code != "TOPIC_NOT_EXIST":
                raise
            return 0

    def _next_index(self) -> int:
        try:
            return int(self._connection.ask("log/size", log=self.destination)["next"])
        except RequestError as error:
            if error.code != "TOPIC_NOT_EXIST":
                raise
            return 0


__all__ = [
    "Address",
    "Batch",
    "CannotConnectError",
    "ClientError",
    "Connection",
    "ConnectionLostError",
    "DamagedError",
    "Frame",
    "Gap",
    "RefusedError",
    "RequestError",
    "Sender",
]
