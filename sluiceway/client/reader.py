"""Reads one log of one broker: a connection with one subscription, made again when it is lost.

Without a group the reader keeps the offset: the next connection resumes behind the last record that came, even if the
inbox still holds it. `next` and `latest` are turned into an index before the first subscription, or records appended
while a connection is lost would be skipped. Back-pressure: a full inbox blocks the link's thread, which then does not
read.

In a group the broker keeps the offset, and unacknowledged records are redelivered over the next connection; those of
the old one that still wait in the inbox are dropped. Back-pressure: credit for as many bytes as the inbox may hold.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import attrs

from sluiceway.client.address import Address
from sluiceway.client.backoff import Backoff
from sluiceway.client.errors import (
    CannotConnectError,
    ClientError,
    ConnectionLostError,
    DamagedError,
    Gap,
    GapError,
    LogDeletedError,
    RefusedError,
    RequestError,
)
from sluiceway.client.inbox import Inbox
from sluiceway.client.reading_link import ReadingLink
from sluiceway.client.records import Delivery
from sluiceway.client.requests import LogClient
from sluiceway.client.way import Way

_log = logging.getLogger("sluiceway.client")

CREDIT_COUNT = 1_000_000
"""Messages of a group that may be unacknowledged: in effect only bytes count."""
SUBSCRIBE_RECEIPT = "subscribed"
OTHER_LOG = "other-log"
"""Reason for missing records: the log was deleted, and there is another one of its name."""


@attrs.frozen
class ReadingOptions:
    """Settings of a reader; `Consumer` explains them."""

    group: str | None
    start: str
    """Value of the header `from`."""
    log_id: str
    """Id of the log that `start` is a place of; empty: any log of the name."""
    end: int | None
    batch_bytes: int
    buffer_bytes: int
    compression: str
    gap_is_error: bool
    give_up_seconds: float
    follow: bool


class Reader:
    """Reader of one log at one broker. An owner of links."""

    def __init__(
        self, address: Address, log: str, options: ReadingOptions, inbox: Inbox, backoff: Callable[[], Backoff]
    ) -> None:
        self.log = log
        self.broker = str(address)
        self.reconnects_count = 0
        self._address = address
        self._options = options
        self._inbox = inbox
        self._backoff = backoff()
        self._next: int | None = None
        """Index of the next record of a reader without a group, once it is known."""
        self._log_id = options.log_id
        """Id of the log, once it is known: the reader does not silently continue with another one of the name."""
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._over = False
        """The end of the range, the end of the log, or an error."""
        self._way = Way(address, f"/log/{log}", follow=options.follow)
        self._link: ReadingLink | None = None
        self._is_moving = False
        """The log has gone to another hub, and the link is to follow it."""
        self._at_work = threading.Lock()
        """Held while a message is put into the inbox: the next connection must not overtake it."""
        self._is_paused = False
        self._prefetch_count = CREDIT_COUNT
        self._crediting = threading.Lock()
        """Held while credit is changed, or a subscription made with it."""
        self._subscribed: tuple[ReadingLink, str] | None = None
        """Link and id of the present subscription."""
        self._thread = threading.Thread(target=self._run, name=f"sluiceway-read-{log}-{address}", daemon=True)

    def start(self) -> None:
        """Begin to read, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection, politely: acknowledgements that were sent are taken. Waits for the thread unless it is
        about to connect to a broker that does not answer.
        """
        self._stopping.set()
        self._wake.set()
        link = self._link
        if link is not None:
            link.close()
            self._thread.join()

    def acknowledge(self, delivery: Delivery) -> None:
        """Settle it, unless its connection is lost: then its broker delivers it again."""
        if delivery.token is None or delivery.link.ended:
            return
        try:
            delivery.link.acknowledge(delivery.token)
        except ConnectionLostError as error:
            _log.info("%s before records from %d of log %s were acknowledged", error, delivery.first, self.log)

    # ------------------------------------------------------------------ credit

    def set_credit(self, *, paused: bool | None = None, prefetch_count: int | None = None) -> None:
        """Pause or resume, and set how many MESSAGEs of a group may be unacknowledged; None: as before. Holds for later
        connections, too.
        """
        with self._crediting:
            if paused is not None:
                self._is_paused = paused
            if prefetch_count is not None:
                self._prefetch_count = prefetch_count
            if self._subscribed is None or self._subscribed[0].ended:
                return
            link, subscription_id = self._subscribed
            headers = {"paused": "true" if self._is_paused else "false"}
            if prefetch_count is not None:
                headers["credit"] = self._credit
            try:
                link.set_credit(subscription_id, headers)
            except ConnectionLostError as error:
                _log.info("%s; the next connection begins with the new credit", error)

    @property
    def _credit(self) -> str:
        return f"{self._prefetch_count},{self._options.buffer_bytes}"

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._read()
        except ClientError as error:
            self._inbox.fail(error)
        finally:
            link = self._link
            # That of a group stays until `stop`: what was read is yet to be acknowledged over it.
            if link is not None and not self._stopping.is_set() and self._options.group is None:
                link.close()
            self._inbox.reader_ended()

    def _read(self) -> None:
        lost_at: float | None = None
        while not self._stopping.is_set() and not self._over:
            self._wake.clear()
            link = ReadingLink(self._way, self)
            try:
                link.open()
                self._link = link
                if self._stopping.is_set():
                    # `stop` looks at the link after it has said so: one of the two sees the other.
                    link.close()
                    return
                self._subscribe(link)
            except (CannotConnectError, ConnectionLostError) as error:
                link.cut()
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                if now - lost_at >= self._options.give_up_seconds:
                    raise CannotConnectError(f"gave up after {self._options.give_up_seconds:g} s: {error}") from error
                _log.info("%s; trying again", error)
                self._wake.wait(self._backoff.next_seconds())
                continue
            lost_at = None
            self._wake.wait()
            if self._stopping.is_set() or self._over:
                return
            is_moving, self._is_moving = self._is_moving, False
            if is_moving:
                link.close()  # what was acknowledged is not to come again
            else:
                link.cut()
            with self._at_work:
                pass  # records held by the old connection are in the inbox now
            if self._options.group is not None:
                self._inbox.drop(lambda delivery: delivery.link is link)  # noqa: B023 - called at once
            self.reconnects_count += 1
            if is_moving:
                continue
            # A broker that closes each time is not to be asked at full speed; `message` begins anew.
            if self._wake_after(self._backoff.next_seconds()):
                return

    def _wake_after(self, seconds: float) -> bool:
        """Wait, unless the reader is to stop."""
        self._wake.clear()
        if not self._stopping.is_set():
            self._wake.wait(seconds)
        return self._stopping.is_set()

    def _subscribe(self, link: ReadingLink) -> None:
        options = self._options
        headers = {
            "on-gap": "marker",
            "batch": str(options.batch_bytes),
            "receipt": SUBSCRIBE_RECEIPT,
        }
        if options.compression:
            headers["compression"] = options.compression
        if options.group is not None:
            headers |= {"group": options.group, "from": options.start}
        else:
            headers["from"] = self._start()
        if self._log_id:
            headers["log-id"] = self._log_id
        if options.end is not None:
            headers["to"] = str(options.end)
            if self._next is not None and self._next >= options.end:
                self._end(None)
                return
        ack = "client-individual" if options.group is not None else "auto"
        with self._crediting:
            if options.group is not None:
                headers["credit"] = self._credit
            if self._is_paused:
                headers["paused"] = "true"
            self._subscribed = link, link.subscribe(f"/log/{self.log}", ack=ack, headers=headers)

    def _start(self) -> str:
        if self._next is None and self._options.start in ("next", "latest"):
            try:
                with LogClient(self._address) as requests:
                    described = requests.describe(self.log)
            except RequestError as error:
                if error.code != "TOPIC_NOT_EXIST":
                    raise
                return "earliest"  # whatever comes is new
            self._next = described.next
            self._log_id = described.log_id
            if self._options.start == "latest":
                self._next = max(described.first, described.next - 1)
        return self._options.start if self._next is None else str(self._next)

    def _end(self, error: ClientError | None) -> None:
        self._over = True
        if error is not None:
            self._inbox.fail(error)
        self._wake.set()

    # ------------------------------------------------------------------ the link's threads

    def message(self, link: ReadingLink, headers: Mapping[str, str], body: bytes) -> None:
        """Take a MESSAGE of the link. Blocks while the inbox is full."""
        with self._at_work:
            if link is not self._link or self._stopping.is_set() or self._over:
                return
            try:
                self._take(link, headers, body)
            except (KeyError, ValueError) as error:
                self._end(
                    DamagedError(f"{self.broker} sent a MESSAGE of log {self.log} that says too little: {error!r}")
                )

    def _take(self, link: ReadingLink, headers: Mapping[str, str], body: bytes) -> None:
        self._backoff.succeeded()
        if headers.get("log-deleted") == "true":
            self._end(LogDeletedError(f"log {self.log} at {self.broker} was deleted"))
        elif headers.get("range-end") == "true":
            self._end(None)
        elif headers.get("gap") == "true":
            gap = Gap(self.log, self.broker, int(headers["gap-from"]), int(headers["gap-to"]), headers["gap-reason"])
            self._next = gap.end if gap.reason == OTHER_LOG else max(self._next or 0, gap.end)
            if self._options.gap_is_error:
                self._end(GapError(gap))
            else:
                self._inbox.put_gap(gap)
        else:
            self._deliver(link, headers, body)

    def _deliver(self, link: ReadingLink, headers: Mapping[str, str], body: bytes) -> None:
        first = int(headers["index"])
        end = first + int(headers.get("count", 1))
        grouped = self._options.group is not None
        if not grouped:
            partition = headers.get("partition")
            if partition is not None and not self.log.endswith(f"/{partition}"):
                self._end(
                    ClientError(
                        f"log {self.log} at {self.broker} has partitions, each with indexes of its own: read one of "
                        f"them, such as {self.log}/{partition}, or all of them in a group"
                    )
                )
                return
            if self._next is not None and first < self._next:
                first = self._next
                if first >= end:
                    return
            self._next = end
        delivery = Delivery(self, link, headers.get("ack"), first, end - first, headers, body)

        def waiting() -> bool:
            return not (self._stopping.is_set() or (grouped and link.ended))

        self._inbox.put(delivery, waiting)

    def receipt(self, link: ReadingLink, receipt_id: str, headers: Mapping[str, str]) -> None:
        """Take a RECEIPT of the link: the subscription is there."""
        self._log_id = headers.get("log-id", "")

    def refused(self, link: ReadingLink, receipt_id: str | None, error: RefusedError) -> None:
        """Take an ERROR of the link."""
        if receipt_id == SUBSCRIBE_RECEIPT and not error.is_passing:
            is_gone = error.code == "topic-not-exist"
            self._end(LogDeletedError(f"log {self.log} at {self.broker} was deleted") if is_gone else error)

    def lost(self, link: ReadingLink, error: ClientError) -> None:
        """Take the loss of the link."""
        if link is not self._link:
            return
        self._way.lost()
        if not self._stopping.is_set() and not self._over:
            _log.warning("%s while log %s was read; connecting again", error, self.log)
        self._wake.set()

    def moved(self, link: ReadingLink) -> None:
        """Follow the log to another hub."""
        if link is self._link:
            self._is_moving = True
            self._wake.set()
