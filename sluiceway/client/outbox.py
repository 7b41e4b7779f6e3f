"""Records that wait for one broker, and the thread that sends them.

Records go into an open pack. It is closed when it has enough records or bytes, when it has been open for long enough,
or when the producer is flushed. The thread sends closed packs as batches, some ahead of their receipts (the window).
When the connection is lost, all that have no receipt wait again, in order, and are sent again over the next one: so a
record may come twice into the log, but none is lost. A pack that the broker refuses by name is not sent again. Without
a broker for too long all that waits fails; what is put later is tried anew.

One lock for all; it is taken once per record by callers that send single ones, and once per pack by the thread.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from itertools import accumulate, count

import attrs

from sluiceway.client.address import Address
from sluiceway.client.backoff import Backoff
from sluiceway.client.errors import (
    BufferFullError,
    CannotConnectError,
    ClientError,
    ClosedError,
    ConnectionLostError,
    RefusedError,
)
from sluiceway.client.packs import UNKNOWN_INDEX, Pack
from sluiceway.client.reading_link import ReadingLink
from sluiceway.client.way import Way
from sluiceway.queues.logs.batches import CONTENT_TYPE, BatchError
from sluiceway.queues.logs.codecs import Codec

LEAVE_SECONDS = 5.0
"""Time for outstanding receipts before a link is left for that of the owner; the rest is sent again over that one."""

_log = logging.getLogger("sluiceway.client")


@attrs.frozen
class SendingOptions:
    """Settings of an outbox; `Producer` explains them."""

    destination: str
    head: bytes
    codec: Codec
    batch_count: int
    batch_bytes: int
    linger_seconds: float
    buffer_bytes: int
    window_count: int
    give_up_seconds: float
    follow: bool
    producer_id: str | None = None
    """Name under which packs are numbered, so that a log takes each once; None: they are not."""
    first_sequence: int = 0
    """Number of the first pack."""
    partitions: int | None = None
    """Number of partitions that the log must have, of which the destination is one; None: any."""


@attrs.define(slots=True)
class Tally:
    """Counts of what an outbox has done."""

    records_count: int = 0
    """Receipted."""
    batches_count: int = 0
    """Receipted."""
    resent_count: int = 0
    """Batches that had to be sent again."""
    failed_count: int = 0
    """Records whose batch failed."""


class Outbox:
    """Outbox of one broker and one log. An owner of links."""

    def __init__(self, address: Address, options: SendingOptions, backoff: Backoff) -> None:
        self.address = address
        self.tally = Tally()
        self.held_bytes = 0
        """Bytes of the records whose fate is not known."""
        self._options = options
        self._backoff = backoff
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        """Signal to the thread: a pack is due, room in the window, a connection lost, the end."""
        self._room = threading.Condition(lock)
        """Signal to callers that wait until something is settled."""
        self._numbers = count()
        self._open: Pack | None = None
        self._waiting: deque[Pack] = deque()
        self._under_way: dict[str, Pack] = {}
        """Packs under way by the receipt that was asked for, in order."""
        self._failed: list[Pack] = []
        self._flushing = 0
        self._closing = False
        self._halt = threading.Event()
        self._way = Way(address, options.destination, follow=options.follow)
        self._link: ReadingLink | None = None
        self._leave_by: float | None = None
        """Time by which the link is left, since the log has gone to another hub; None: it is not."""
        self._fruitless = False
        """The last connection has not brought a receipt."""
        self._lost_at: float | None = None
        """Time since which there is neither connection nor receipt, with records to send."""
        self._last_error: ClientError | None = None
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ who sends

    def put(self, value: bytes, key: bytes | None, timeout_seconds: float | None) -> tuple[Pack, int]:
        """One record. May wait for room. Raises BufferFullError, ClosedError, or what befell records before it."""
        size_bytes = len(value) + (len(key) if key is not None else 0)
        with self._work:
            self._check(size_bytes, timeout_seconds)
            pack = self._open
            if pack is None:
                pack = self._begin()
            place = len(pack.values)
            if key is None and pack.keys is None:
                pack.values.append(value)
                pack.size_bytes += size_bytes
            else:
                pack.add([value], key, size_bytes)
            self.held_bytes += size_bytes
            if place + 1 >= self._options.batch_count or pack.size_bytes >= self._options.batch_bytes:
                self._end_open()
            return pack, place

    def put_many(self, values: list[bytes], key: bytes | None, timeout_seconds: float | None) -> tuple[list[Pack], int]:
        """Put records in order; returns their packs, and the place of the first. Raises as `put`; then those that had
        room already are sent nevertheless.
        """
        key_size_bytes = len(key) if key is not None else 0
        sums = list(accumulate((len(value) + key_size_bytes for value in values), initial=0))
        packs: list[Pack] = []
        first_place = 0
        at = 0
        options = self._options
        while at < len(values):
            with self._work:
                self._check(sums[at + 1] - sums[at], timeout_seconds)
                pack = self._open
                if pack is None:
                    pack = self._begin()
                here = len(pack.values)
                room_bytes = min(options.batch_bytes - pack.size_bytes, max(options.buffer_bytes - self.held_bytes, 0))
                # As many as fit, and one more if none does.
                stop = max(bisect_right(sums, sums[at] + room_bytes) - 1, at + 1)
                stop = min(stop, at + options.batch_count - here)
                size_bytes = sums[stop] - sums[at]
                pack.add(values[at:stop], key, size_bytes)
                self.held_bytes += size_bytes
                if not packs:
                    first_place = here
                packs.append(pack)
                full = here + stop - at >= options.batch_count or stop < len(values)
                if full or pack.size_bytes >= options.batch_bytes:
                    self._end_open()
            at = stop
        return packs, first_place

    def flush(self, timeout_seconds: float | None) -> None:
        """Wait until the fate of all that was put before is known. Raises TimeoutError."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._work:
            last = next(self._numbers)  # packs with a smaller one came earlier
            self._flushing += 1
            self._work.notify()
            try:
                while (number := self._oldest()) is not None and number < last:
                    if not self._room.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                        raise TimeoutError(
                            f"{self.held_bytes} bytes of records for {self.address} have no receipt after "
                            f"{timeout_seconds:g} s"
                            + (f"; the last trouble was: {self._last_error}" if self._last_error else "")
                        )
            finally:
                self._flushing -= 1

    def close(self, timeout_seconds: float | None) -> None:
        """Flush, and end the connection. Raises TimeoutError; then the rest has failed with ClosedError."""
        with self._work:
            self._closing = True
            self._work.notify()
        clean = False
        try:
            self.flush(timeout_seconds)
            clean = True
        finally:
            self._halt.set()
            with self._work:
                link, self._link = self._link, None
                self._work.notify()
                self._room.notify_all()
            if link is not None and clean:
                link.close()
            elif link is not None:
                link.cut()  # the thread may be inside a send that would keep a DISCONNECT waiting
            if self._thread is not None and clean:
                self._thread.join()
            self._fail_all(ClosedError(f"the producer was closed before {self.address} had everything"))

    def take_failure(self) -> ClientError | None:
        """Return an error that was not reported yet, and count it as reported."""
        with self._work:
            failed, self._failed = self._failed, []
        errors = [pack.error for pack in failed if not pack.reported]
        return errors[0] if errors else None

    @property
    def has_failed(self) -> bool:
        """Whether `take_failure` may have something to return."""
        return bool(self._failed)

    # ------------------------------------------------------------------ under the lock

    def _check(self, size_bytes: int, timeout_seconds: float | None) -> None:
        limit_bytes = self._options.buffer_bytes
        if self.held_bytes and self.held_bytes + size_bytes > limit_bytes:
            self._wait_for_room(size_bytes, timeout_seconds)
        if self._closing:
            raise ClosedError("the producer is closed: make a new one")

    def _wait_for_room(self, size_bytes: int, timeout_seconds: float | None) -> None:
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if self._open is not None:
            self._end_open()  # it can't grow, so why wait for it
        while self.held_bytes and self.held_bytes + size_bytes > self._options.buffer_bytes and not self._closing:
            if not self._room.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise BufferFullError(
                    f"{self.held_bytes} bytes wait for {self.address}, of {self._options.buffer_bytes} that may: "
                    "the broker is slower than the producer, or away"
                    + (f"; the last trouble was: {self._last_error}" if self._last_error else "")
                )

    def _begin(self) -> Pack:
        pack = self._open = Pack(next(self._numbers), time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"sluiceway-send-{self.address}", daemon=True)
            self._thread.start()
        self._work.notify()
        return pack

    def _end_open(self) -> None:
        pack, self._open = self._open, None
        assert pack is not None
        pack.count = len(pack.values)
        self._waiting.append(pack)
        self._work.notify()

    def _oldest(self) -> int | None:
        for pack in self._under_way.values():
            return pack.number
        if self._waiting:
            return self._waiting[0].number
        return None if self._open is None else self._open.number

    def _due(self) -> Pack | None:
        """Wait for the next pack that may be sent; None at the end."""
        options = self._options
        while not self._halt.is_set():
            wait_seconds: float | None = None
            if self._open is not None:
                left_seconds = self._open.opened_at + options.linger_seconds - time.monotonic()
                if left_seconds <= 0 or self._flushing or self._closing:
                    self._end_open()
                else:
                    wait_seconds = left_seconds
            window_count = options.window_count
            if self._leave_by is not None and (left_seconds := self._leave_by - time.monotonic()) > 0:
                window_count = 1  # first come the receipts of what is under way
                wait_seconds = left_seconds if wait_seconds is None else min(wait_seconds, left_seconds)
            if self._waiting and len(self._under_way) < window_count:
                return self._waiting[0]
            self._work.wait(wait_seconds)
        return None

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        receipts = count(1)
        while True:
            with self._work:
                pack = self._due()
                link = self._link
            if pack is None:
                return
            try:
                body = pack.encode(self._options.codec, self._options.head)
            except BatchError as error:
                with self._work:
                    self._waiting.popleft()
                self._settle(pack, -1, ClientError(f"{pack.count} records can't be sent as one batch: {error}"))
                continue
            if link is not None and self._leave_by is not None:
                self._leave(link)
                continue
            if link is None and (link := self._connect()) is None:
                continue
            receipt = str(next(receipts))
            with self._work:
                if link is not self._link or not self._waiting or self._waiting[0] is not pack:
                    continue  # lost, or closed, in this instant
                self._waiting.popleft()
                self._under_way[receipt] = pack
            try:
                link.send(self._options.destination, body, self._headers(pack, receipt))
            except ConnectionLostError as error:
                self.lost(link, error)

    def _headers(self, pack: Pack, receipt: str) -> dict[str, str]:
        headers = {"content-type": CONTENT_TYPE, "receipt": receipt}
        if self._options.partitions is not None:
            headers["log-partitions"] = str(self._options.partitions)
        if self._options.producer_id is not None:
            headers["producer-id"] = self._options.producer_id
            headers["producer-sequence"] = str(self._options.first_sequence + pack.number)
        return headers

    def _connect(self) -> ReadingLink | None:
        """A connection, as long as it takes. None if it took too long, or the end has come; then what waited has
        failed.
        """
        if self._fruitless:
            # A broker that closes each time is not to be asked at full speed.
            self._halt.wait(self._backoff.next_seconds())
        while not self._halt.is_set():
            link = ReadingLink(self._way, self)
            try:
                link.open()
            except RefusedError as error:
                self._fail_all(error)
                return None
            except CannotConnectError as error:
                now = time.monotonic()
                if self._lost_at is None:
                    self._lost_at = now
                self._last_error = error
                if now - self._lost_at >= self._options.give_up_seconds:
                    self._lost_at = None
                    self._fail_all(
                        CannotConnectError(
                            f"gave up after {self._options.give_up_seconds:g} s without receipt: {error}"
                        )
                    )
                    return None
                _log.info("%s; trying again", error)
                self._halt.wait(self._backoff.next_seconds())
                continue
            with self._work:
                self._fruitless = True
                if not self._halt.is_set() and not link.ended:
                    self._link = link
                    return link
            link.cut()
        return None

    def _leave(self, link: ReadingLink) -> None:
        """End a link to a hub from which the log has gone. What has no receipt waits again."""
        with self._work:
            if link is not self._link:
                return
            self._leave_by, self._link, self._fruitless = None, None, False
            is_done = not self._under_way
            self._take_back()
        if is_done:
            link.close()
        else:
            link.cut()

    def _take_back(self) -> int:
        """Have packs without receipt wait again, in their order. Returns how many there are. Under the lock."""
        again = list(self._under_way.values())
        self._under_way.clear()
        self._waiting.extendleft(reversed(again))
        self.tally.resent_count += len(again)
        return len(again)

    def _fail_all(self, error: ClientError) -> None:
        with self._work:
            if self._open is not None:
                self._end_open()
            packs = [*self._under_way.values(), *self._waiting]
            self._under_way.clear()
            self._waiting.clear()
        for pack in packs:
            self._settle(pack, -1, error)

    def _settle(self, pack: Pack, first_index: int, error: ClientError | None) -> None:
        size_bytes = pack.size_bytes
        # First the handle, then the room: who waits in `flush` finds all results there.
        pack.settle(first_index, error)
        with self._work:
            self.held_bytes -= size_bytes
            if error is None:
                self.tally.batches_count += 1
                self.tally.records_count += pack.count
            else:
                self.tally.failed_count += pack.count
                self._failed.append(pack)
            self._work.notify()
            self._room.notify_all()

    # ------------------------------------------------------------------ the link's threads

    def message(self, link: ReadingLink, headers: Mapping[str, str], body: bytes) -> None:
        """Ignore a MESSAGE: nothing is subscribed here."""

    def receipt(self, link: ReadingLink, receipt_id: str, headers: Mapping[str, str]) -> None:
        """Take a RECEIPT of the link."""
        with self._work:
            pack = self._under_way.pop(receipt_id, None) if link is self._link else None
            self._lost_at = None
            self._fruitless = False
        if pack is None:
            return
        self._backoff.succeeded()
        try:
            first_index = int(headers["index"])
        except (KeyError, ValueError):
            if self._options.producer_id is not None and "durability" in headers:
                self._settle(pack, UNKNOWN_INDEX, None)  # appended before, and the broker does not know where any more
                return
            error = ClientError(
                f"{self.address} took a batch, but did not say at which index: is {self._options.destination} a log?"
            )
            self._settle(pack, -1, error)
        else:
            self._settle(pack, first_index, None)

    def refused(self, link: ReadingLink, receipt_id: str | None, error: RefusedError) -> None:
        """Take an ERROR of the link."""
        self._last_error = error
        if error.is_passing:
            return  # all without receipt is sent again
        with self._work:
            pack = self._under_way.pop(receipt_id or "", None) if link is self._link else None
        if pack is not None:
            self._settle(pack, -1, error)

    def lost(self, link: ReadingLink, error: ClientError) -> None:
        """Take the loss of the link. The thread calls too, if it meets the loss first."""
        with self._work:
            if link is not self._link:
                return
            self._link = None
            self._last_error = error
            self._leave_by = None
            again_count = self._take_back()
            now = time.monotonic()
            if self._waiting and self._lost_at is None:
                self._lost_at = now
            gave_up = self._lost_at is not None and now - self._lost_at >= self._options.give_up_seconds
            self._work.notify()
        if gave_up:
            self._lost_at = None
            self._fail_all(error)
        elif again_count:
            _log.warning("%s; %d batches without receipt are sent again", error, again_count)
        self._way.lost()
        link.cut()

    def moved(self, link: ReadingLink) -> None:
        """Leave the link when its receipts are there: the log has gone to another hub."""
        with self._work:
            if link is self._link and self._leave_by is None:
                self._leave_by = time.monotonic() + LEAVE_SECONDS
                self._work.notify()
