"""One connection from a Spark process to one broker, which outlasts the links that it is made of.

Spark calls the source in plain processes, one call at a time: a thread that reads, as producers and consumers have,
would be of no use. Frames, requests and TLS are those of `sluiceway.client.link`; the body of a large MESSAGE is
received straight into its place, where Arrow takes it without another copy.

    with Connection(Address.parse("127.0.0.1:61613")) as connection:
        connection.request("log/describe", log="/log/a")            -> {"first": 0, "next": 10, ...}
        for part in connection.read_batches("/log/a", 0, 10): ...   -> Batch | Gap, whole and in order
        with connection.sender("/log/a") as sender:
            sender.send_batches(encode([b"one", b"two"]), 2)

A link is made when it is needed and again when it was lost, for as long as `patience_seconds` says: a broker that is
restarted delays its users. A refused request is not tried again. A connection does one thing at a time and belongs to
one thread; it can't be pickled: open it where it is used.

At a cluster a connection goes to the hub that has its destination (`sluiceway.client.way`), each time that a link is
made. A hub that dies and a shard that moves are lost links: what was under way is done again at the next owner.

Not here: which logs and ranges (`logs`), rows and columns (`schema`).
"""

from __future__ import annotations

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
    AWAY,
    CannotConnectError,
    ClientError,
    ConnectionLostError,
    DamagedError,
    Gap,
    NoReplyError,
    RefusedError,
    RequestError,
)
from sluiceway.client.link import CONNECT_SECONDS, Headers, Link
from sluiceway.client.requests import fulfilled
from sluiceway.client.way import REQUEST, Way, connected
from sluiceway.protocols.stomp.encoder import encode_frame
from sluiceway.protocols.stomp.frames import Frame
from sluiceway.queues.logs.batches import CONTENT_TYPE, Batch, BatchError, Damage, sound, split

SILENCE_SECONDS: Final = 30.0
"""A broker that reads nothing for that long is taken for dead."""
PATIENCE_SECONDS: Final = 120.0
ASK_SECONDS: Final = 120.0
"""Time for the reply to one request: longer than any takes but a commit of very much, which may be asked for again."""
BATCH_BYTES: Final = 1 << 20
"""Size of one MESSAGE: large enough that its frame costs nothing, and small beside the memory of a worker."""
WINDOW: Final = 8
"""SENDs that wait for their RECEIPTs: they share the broker's syncs."""
REPLIES: Final = "spark-replies"
OTHER_LOG: Final = "other-log"
"""Reason of a gap: the log was deleted, and another one has its name."""
ALL_CODECS: Final = "gzip,snappy,zstd"

T = TypeVar("T")


class AwayError(ConnectionLostError):
    """No hub has the shard at the moment: it is moving, or its hub died. The link is whole."""


@attrs.frozen
class Place:
    """The shard of a destination."""

    shard: int
    shards_count: int


class Connection:
    """Connection to one broker. See the module."""

    def __init__(
        self,
        address: Address,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        destination: str = "",
        follow: bool = True,
    ) -> None:
        """`patience_seconds`: how long to try again when the broker is away; 0: a connection that was lost is made
        anew once, and that is all. `destination`: what the connection is for; empty: any hub of a cluster will do.
        `follow`: whether to go to the hub that has it.
        """
        self.address = address
        self.patience_seconds = patience_seconds
        self._way = Way(address, destination, follow=follow)
        self._link: Link | None = None
        self._receipts = count(1)
        self.session = ""
        """The broker's name for this connection, or for the last one."""
        self.log_id = ""
        """The broker's name for the log that is being read, as in its message-ids: `log.LOGID`."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. A later call makes a new one."""
        link, self._link = self._link, None
        if link is not None:
            link.cut()

    @property
    def hub(self) -> str:
        """Hub of the present link, or of the last one; empty: a broker of its own, or none yet."""
        return self._way.hub

    def lose(self) -> None:
        """End a link that was lost: the next one is made to another hub, if there is one."""
        if self._link is not None:
            self._way.lost()
        self.close()

    def next_receipt(self) -> str:
        """Name a receipt that this connection has not used."""
        return f"s{next(self._receipts)}"

    # ------------------------------------------------------------------ frames

    def connect(self) -> None:
        """Connect, with one attempt, unless that is done. Raises CannotConnectError, RefusedError."""
        if self._link is not None:
            return
        try:
            link = connected(self._way, _link_to)
        except RefusedError as error:
            if _is_passing(error):
                raise CannotConnectError(str(error)) from error
            raise
        self._link, self.session = link, link.session

    def write(self, data: bytes) -> None:
        """Write whole frames in wire form. Raises ConnectionLostError, CannotConnectError, RefusedError."""
        self._through(lambda link: link.write(data))

    def subscribe(self, destination: str, headers: Headers) -> str:
        """Subscribe; messages are acknowledged as they are sent. Returns the subscription's id. Raises as `write`."""
        return self._through(lambda link: link.subscribe(destination, headers=headers))

    def next_frame(self) -> Frame:
        """Wait for a MESSAGE or RECEIPT. Raises ConnectionLostError, RefusedError."""
        if self._link is None:
            raise ConnectionLostError(f"not connected to {self.address}")
        frame = self._through(Link.next_frame)
        assert frame is not None
        return frame

    def _through(self, use: Callable[[Link], T]) -> T:
        """Call `use` with the link. An ERROR that names no frame of this link is about the connection, which the broker
        ends because it stops or has too many; one that will pass, about a shard that moves: both are a
        ConnectionLostError.
        """
        self.connect()
        assert self._link is not None
        try:
            return use(self._link)
        except RefusedError as error:
            if _is_passing(error):
                raise ConnectionLostError(str(error)) from error
            raise

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns; call it again after a connection was lost or could not be made, until it has
        failed for `patience_seconds` on end. Raises the last CannotConnectError or ConnectionLostError.
        """
        backoff = Backoff(0.05, 2.0)
        fresh = self._link is None
        lost_at: float | None = None
        while True:
            try:
                return attempt()
            except (CannotConnectError, ConnectionLostError) as error:
                self.lose()
                if not fresh and not isinstance(
                    error, AwayError
                ):  # the connection may have been lost while it was idle
                    fresh = True
                    continue
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                seconds = backoff.next_seconds()
                if now + seconds - lost_at >= self.patience_seconds:
                    raise
                time.sleep(seconds)
            except RequestError:
                raise
            except ClientError:
                self.close()  # it was refused, and the broker has closed it
                raise

    # ------------------------------------------------------------------ requests

    def request(self, name: str, **facts: Any) -> dict[str, Any]:
        """Ask the broker for something that may be asked twice, such as `log/describe`. Patient. Raises RequestError
        with the broker's code, CannotConnectError, ConnectionLostError, RefusedError.
        """
        return self.patiently(lambda: self.ask(name, **facts))

    def ask(self, name: str, **facts: Any) -> dict[str, Any]:
        """Ask as `request` does, once. Raises AwayError if no hub can answer now."""
        try:
            return fulfilled(self._through(lambda link: link.ask(name, facts, timeout_seconds=ASK_SECONDS)))
        except NoReplyError as error:
            raise ConnectionLostError(str(error)) from error
        except RequestError as error:
            if error.code != AWAY:
                raise
            raise AwayError(f"{self.address}: {error}") from error

    def place_of(self, destination: str) -> Place:
        """Return the shard of a destination. Patient. Raises as `request`, but for brokers of earlier versions."""
        try:
            told = self.request(REQUEST, names=[destination], shards=False)
        except RefusedError:
            return Place(0, 1)  # it does not know the question; what else it refuses, it refuses again
        return Place(int(told["homes"][0]["shard"] or 0), int(told["shards_count"]))

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
        """Yield records `start` to before `stop` of a log (`/log/NAME`), in order and without holes: batches, and gaps
        where records are gone. Goes on behind what was yielded after a lost connection. The connection can't be used
        for anything else meanwhile.

        Ends at `stop`, and never waits for records that are not there yet: what lies beyond the end of the log (its
        disk has lost something) is a gap `lost`; a log that is or gets deleted, a gap `deleted`; a log other than
        `log_id`, or than the one that was begun with, a gap `other-log`. Raises DamagedError, RefusedError,
        CannotConnectError, ConnectionLostError.
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
                        self.lose()  # and begin again from `place`
                        break
            finished = True
        finally:
            if not finished:
                self.close()  # the rest is under way

    # ------------------------------------------------------------------ sending

    def sender(self, destination: str, *, window: int = WINDOW) -> Sender:
        """Make a sender to one destination; see `Sender`."""
        return Sender(self, destination, window=window)

    def stages(self, next_stage: Callable[[], str], *, window: int = WINDOW) -> Sender:
        """Make a sender that writes each record once, to stages of these names; see `Sender`."""
        return Sender(self, "", window=window, next_stage=next_stage)


def _link_to(address: Address, seconds: float | None) -> Link:
    return Link(
        address,
        beats=False,
        replies=REPLIES,
        timeout_seconds=seconds or CONNECT_SECONDS,
        stalled_seconds=SILENCE_SECONDS,
    )


def _is_passing(error: RefusedError) -> bool:
    """Whether an ERROR is about the connection, or about a shard that moves."""
    return error.command is None or error.is_passing


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
        self._skips = False
        """Whether compaction removes records of the log: the broker passes over them in silence."""

    def begin(self) -> list[Batch | Gap]:
        """Subscribe, and return the parts of the first MESSAGE. May be repeated. Raises what `read_batches` does."""
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
        """Wait for the next MESSAGE, and return its parts."""
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
                    return [] if self._skips or self._place >= self._stop else [self._gap(self._stop, "lost")]
                connection.log_id = headers["message-id"].rpartition("-")[0]
                return self._batches(frame)
            except (KeyError, ValueError) as error:
                raise DamagedError(
                    f"{connection.address} sent a MESSAGE of {self._log} that can't be read: {error!r}"
                ) from error

    def _subscribe(self) -> str:
        """Subscribe; return an empty string, or the reason why nothing is there to be read."""
        connection = self._connection
        try:
            described = connection.ask("log/describe", log=self._log)
        except RequestError as error:
            if error.code != "TOPIC_NOT_EXIST":
                raise
            return "deleted"
        if self._log_id and described.get("log_id", self._log_id) != self._log_id:
            return OTHER_LOG
        self._skips = described.get("compacts") is True
        stop = min(self._stop, int(described["next"]))
        if stop <= self._place:
            return "lost"
        headers = {
            "from": str(self._place),
            "to": str(stop),
            "on-gap": "marker",
            "batch": str(self._batch_bytes),
            "compression": ALL_CODECS,
        }
        if self._log_id:
            headers["log-id"] = self._log_id
        self._id = connection.subscribe(self._log, headers)
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
        if first > self._place and self._skips:
            self._place = first
        if first != self._place:
            raise DamagedError(
                f"{self._connection.address} sent records from {first} of {self._log}, not {self._place}"
            )
        try:
            for batch in sound(body, first, first + count) if self._verify else split(body):
                if isinstance(batch, Damage):  # as the broker reports it to readers for whom it looks into batches
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
    frames: Callable[[str], bytes]
    """Makes the bytes, given the receipt."""
    count: int


@attrs.define
class Stage:
    """A log of its own that a sender has written to."""

    name: str
    count: int = 0
    """Records that lie in it from its beginning on, each once: those with a RECEIPT in its place."""
    whole: bool = True
    """Whether the log has no others."""


class Sender:
    """SENDs, some of them ahead of their RECEIPTs. A SEND without a RECEIPT when the connection is lost is sent again
    over the next one, so it may come twice.

    A sender with stages writes each record once. A stage is a new log without other writers, so the RECEIPT of a batch
    must name the index behind those that are there. One that names another (a hub has sent something again), or a lost
    connection, whose last frames may still be on their way, ends the stage: what is there counts, and what has no
    RECEIPT goes into the next stage. So what became of it does not matter.
    """

    def __init__(
        self, connection: Connection, destination: str, *, window: int, next_stage: Callable[[], str] | None = None
    ) -> None:
        """`next_stage`: returns the name of a new log; instead of a destination."""
        self._connection = connection
        self._destination = destination
        self._window = window
        self._next_stage = next_stage
        self.stages: list[Stage] = []
        """The stages, in order."""
        self._under_way: deque[_UnderWay] = deque()
        self.confirmed_count = 0
        """Records whose RECEIPT has come."""
        if next_stage is not None:
            self.stages.append(Stage(next_stage()))

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()

    @property
    def hub(self) -> str:
        """Hub of the connection, as `Connection.hub` has it."""
        return self._connection.hub

    @property
    def destination(self) -> str:
        """Destination of the next SEND."""
        return self.stages[-1].name if self.stages else self._destination

    def send_batches(self, batches: bytes, records_count: int) -> None:
        """Append a run of batches to a log with one SEND, all or nothing. Waits while the window is full. Raises
        RefusedError, CannotConnectError, ConnectionLostError.
        """
        self.send(batches, [("content-type", CONTENT_TYPE)], records_count=records_count)

    def send(self, body: bytes, headers: Iterable[tuple[str, str]] = (), *, records_count: int = 1) -> None:
        """Send one SEND with a RECEIPT. `records_count`: how many records it has, for `confirmed_count`."""
        pairs = list(headers)

        def frames(receipt: str) -> bytes:
            named = [("destination", self.destination), ("receipt", receipt)]
            return encode_frame("SEND", [*named, *pairs], body, version="1.2")

        self.send_frames(frames, records_count)

    def send_frames(self, frames: Callable[[str], bytes], records_count: int) -> None:
        """Send whole frames, to any destinations, the last of which has the receipt that `frames` is given."""
        sent = _UnderWay(self._connection.next_receipt(), frames, records_count)
        self._under_way.append(sent)
        try:
            self._connection.connect()
            self._connection.write(frames(sent.receipt))
        except (CannotConnectError, ConnectionLostError):
            self._recover()
        while len(self._under_way) >= self._window:
            self._take_receipt()

    def finish(self) -> int:
        """Wait for all RECEIPTs. Returns how many records were confirmed since the sender was made."""
        while self._under_way:
            self._take_receipt()
        return self.confirmed_count

    def _take_receipt(self) -> None:
        try:
            while True:
                frame = self._connection.next_frame()
                if frame.command == "RECEIPT":
                    break
            self._confirm(frame.headers)
        except ConnectionLostError:
            self._recover()

    def _confirm(self, headers: Mapping[str, str]) -> None:
        # They come in order, but nothing here depends on it.
        place = next((n for n, sent in enumerate(self._under_way) if sent.receipt == headers.get("receipt-id")), None)
        if place is None:
            return  # of an earlier stage
        if self.stages:
            stage = self.stages[-1]
            if "index" not in headers:
                raise DamagedError(
                    f"{self._connection.address} took records for {stage.name}, but did not say at which index: is it"
                    " Sluiceway?"
                )
            if place or headers.get("index") != str(stage.count):
                self._begin_stage()
                self._send_all()
                return
            stage.count += self._under_way[place].count
        self.confirmed_count += self._under_way[place].count
        del self._under_way[place]

    def _begin_stage(self) -> None:
        if self._next_stage is not None:
            self.stages[-1].whole = False
            self.stages.append(Stage(self._next_stage()))

    def _recover(self) -> None:
        """Send unconfirmed records again, over a new connection."""
        self._connection.lose()
        self._connection.patiently(self._resend)

    def _resend(self) -> None:
        self._connection.connect()
        self._begin_stage()
        self._send_all()

    def _send_all(self) -> None:
        for sent in self._under_way:
            sent.receipt = self._connection.next_receipt()
            self._connection.write(sent.frames(sent.receipt))


__all__ = [
    "Address",
    "AwayError",
    "Batch",
    "CannotConnectError",
    "ClientError",
    "Connection",
    "ConnectionLostError",
    "DamagedError",
    "Gap",
    "RefusedError",
    "RequestError",
    "Sender",
    "Stage",
]
