"""Moving the messages of queues from another broker over STOMP.

A message is acknowledged there only when it was confirmed here, and a ledger (`ledger`) is written before each of these
steps: whenever a run ends, and however, nothing is lost, and the next run knows which messages are in question.

At most `credit_count` messages are unacknowledged at the source, and about `BATCH_BYTES_MAX` of them are in memory:
what is not asked for stays in the socket. The words for people are made in `sluiceway.migration.verdicts`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from sluiceway.client.errors import ClientError, ConnectionLostError
from sluiceway.client.link import Link
from sluiceway.migration.ledger import EXACT, Arrival, Ledger, Standing
from sluiceway.migration.translation import DUPLICATE_ID, Translation, queue_here
from sluiceway.protocols.stomp.encoder import encode_frame
from sluiceway.protocols.stomp.frames import Frame

CREDIT_COUNT_MAX: Final = 500
"""Half of the receipts that a broker here lets one connection wait for."""
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
LULL_SECONDS: Final = 0.05
"""Pause in what comes after which a batch is not waited for any more."""
BROWSE_COUNT: Final = 1_000_000
"""Credit to look at a queue. What is looked at is not acknowledged: a longer one can't be counted."""
SETTLE_SECONDS: Final = 30.0
"""Time for the source to confirm the last acknowledgements."""


class MoveError(Exception):
    """The move can't continue, or not with this queue; `__cause__` says why."""

    def __init__(self, at_source: bool, cause: Exception, about: str = "") -> None:
        super().__init__(str(cause))
        self.at_source = at_source
        """Whether the source failed, or the target."""
        self.cause = cause
        self.about = about
        """The message that it is about, in words; empty: about none."""


@attrs.define
class Progress:
    """Counts of a run so far. Written by the thread that moves, read by others."""

    moved_count: int = 0
    """Messages that were acknowledged at the source in this run."""
    sent_count: int = 0
    confirmed_count: int = 0
    in_memory: bool = False
    """Whether the target has confirmed a persistent message that it keeps in memory only."""


class Mover:
    """Moves what one connection to the source brings."""

    def __init__(
        self,
        source: Link,
        target: Link,
        translation: Translation,
        ledger: Ledger,
        *,
        credit_count: int = CREDIT_COUNT_MAX,
        idle_seconds: float = 3.0,
        persistent: bool = False,
        progress: Progress | None = None,
        tell: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """Take two open links. `credit_count`: messages in question at most. `idle_seconds`: time without a message
        after which a queue counts as empty. `persistent`: make all messages persistent. `tell`: called with the number
        of messages that were moved.
        """
        self._source = source
        self._target = target
        self._translation = translation
        self._ledger = ledger
        self._credit_count = credit_count
        self._idle_seconds = idle_seconds
        self._persistent = persistent
        self.progress = progress or Progress()
        self._tell = tell
        self._acknowledging: dict[str, tuple[int, int]] = {}
        """Batches that the source has not confirmed, by the receipt of their last ACK, with the number of messages."""

    def move(self, queue: str) -> None:
        """Move what is in a queue there, or in all with the wildcard, until nothing has come for a while. Raises
        MoveError, LedgerError.
        """
        with _at(source=True):
            headers = {self._translation.credit: str(self._credit_count)}
            destination = self._translation.destination(queue)
            number = self._source.subscribe(destination, ack="client-individual", headers=headers)
        while frames := self._gather():
            self._take(frames, None if queue == self._translation.wildcard else queue)
        with _at(source=True):
            self._settle()
            self._source.write(encode_frame("UNSUBSCRIBE", [("id", number)], version="1.2"))

    def _gather(self) -> list[Frame]:
        """Return the next messages; none: nothing has come for a while."""
        frames: list[Frame] = []
        size_bytes = 0
        deadline = time.monotonic() + self._idle_seconds
        with _at(source=True):
            while len(frames) < self._credit_count and size_bytes < BATCH_BYTES_MAX:
                left_seconds = LULL_SECONDS if frames else max(0.0, deadline - time.monotonic())
                frame = self._source.next_frame(left_seconds)
                if frame is None:
                    break
                if frame.command == "MESSAGE":
                    if "ack" not in frame.headers:
                        raise ConnectionLostError("a message came without the header ack, so it can't be acknowledged")
                    frames.append(frame)
                    size_bytes += len(frame.body)
                else:
                    self._confirmed(frame)
        return frames

    def _confirmed(self, receipt: Frame) -> None:
        """The source has dropped a batch."""
        number, count = self._acknowledging.pop(receipt.headers.get("receipt-id", ""), (0, 0))
        if number:
            self._ledger.acknowledged(number)
            self.progress.moved_count += count
            self._tell(self.progress.moved_count)

    def _take(self, frames: list[Frame], queue: str | None) -> None:
        """`queue`: where all of them come from; None: each says it itself."""
        arrivals = []
        for frame in frames:
            name = queue if queue is not None else frame.headers.get("destination", "").removeprefix("/queue/")
            try:
                here = queue_here(name)
            except ValueError as error:
                raise MoveError(True, error) from error
            arrivals.append(Arrival(here, self._translation.key(frame)))
        number, standings = self._ledger.begin(arrivals)
        waiting: dict[str, Frame] = {}
        for frame, arrival, standing in zip(frames, arrivals, standings, strict=True):
            if standing is not Standing.KNOWN:
                self._send(frame, arrival, waiting)
        while waiting:
            with _at(source=False, waiting=waiting):
                receipt = self._target.next_frame()
            assert receipt is not None
            frame_sent = waiting.pop(receipt.headers.get("receipt-id", ""), None)
            if frame_sent is not None:
                self.progress.confirmed_count += 1
                is_persistent = self._persistent or frame_sent.headers.get("persistent") == "true"
                if is_persistent and receipt.headers.get("durability") == "memory":
                    self.progress.in_memory = True
        self._ledger.moved(number)
        with _at(source=True):
            for frame in frames[:-1]:
                self._source.acknowledge(frame.headers["ack"])
            receipt_id = f"acknowledged-{number}"
            self._acknowledging[receipt_id] = number, len(frames)
            last = [("id", frames[-1].headers["ack"]), ("receipt", receipt_id)]
            self._source.write(encode_frame("ACK", last, version="1.2"))

    def _send(self, frame: Frame, arrival: Arrival, waiting: dict[str, Frame]) -> None:
        receipt_id = f"sent-{self.progress.sent_count}"
        waiting[receipt_id] = frame
        headers = self._translation.headers(frame.headers, persistent=self._persistent)
        headers["receipt"] = receipt_id
        if arrival.key.startswith(EXACT):
            headers[DUPLICATE_ID] = arrival.key
        with _at(source=False, waiting=waiting):
            self._target.send(arrival.queue, frame.body, headers)
        self.progress.sent_count += 1

    def _settle(self) -> None:
        """Wait for the source to confirm what was acknowledged."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._acknowledging:
            frame = self._source.next_frame(max(0.0, deadline - time.monotonic()))
            if frame is None:
                return  # the counts say that it is open
            if frame.command == "RECEIPT":
                self._confirmed(frame)


@contextmanager
def _at(*, source: bool, waiting: dict[str, Frame] | None = None) -> Iterator[None]:
    """Say with an error of a link which side it came from, and of the target about which message."""
    try:
        yield
    except (ClientError, TimeoutError) as error:
        frame = (waiting or {}).get(getattr(error, "receipt_id", None) or "")
        about = "" if frame is None else f"message {frame.headers.get('message-id')} of {len(frame.body)} bytes"
        raise MoveError(source, error, about) from error


def counts_left(source: Link, translation: Translation, queue: str, idle_seconds: float) -> Counter[str] | None:
    """Return how many messages are in a queue there (in each, with the wildcard), by name, by looking at them; None: it
    did not tell the end. Nothing is changed. Raises MoveError.
    """
    counts: Counter[str] = Counter()
    with _at(source=True):
        destination = translation.destination(queue)
        # Nothing is acknowledged: a broker that knows no browsing takes all of it back.
        headers = {"browser": "true", translation.credit: str(BROWSE_COUNT)}
        number = source.subscribe(destination, ack="client-individual", headers=headers)
        while (frame := source.next_message(idle_seconds)) is not None:
            if frame.headers.get("browser") == "end":
                source.write(encode_frame("UNSUBSCRIBE", [("id", number)], version="1.2"))
                return counts
            counts[frame.headers.get("destination", "").removeprefix("/queue/")] += 1
    return None
