"""Checks of what senders offer to a log, before any of it is taken, in bounded steps.

The work for a SEND of batches grows with its batches, its records and its expanded size. So the check goes in steps
(queues/steps.py) and yields the number of records. A body that expands to more than INLINE_PLAIN_BYTES is expanded by
the reading thread, one after the other, so no two such bodies are in memory at a time.

Between check and disk a run of batches is one view of the SEND's bytes, whatever its length: only the appending thread
takes batches apart, and encodes long ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import groupby, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ..message import Envelope, Message
from ..steps import Waiting
from .batches import (
    CONTENT_TYPE,
    HEAD_BYTES_MAX,
    Batch,
    BatchError,
    BatchTooLargeError,
    encode,
    encoded_bytes,
    padded,
    reheaded,
    split,
)
from .ports import DiskError

if TYPE_CHECKING:
    from .log import Log

INLINE_PLAIN_BYTES: Final = 128 * 1024
"""Expanded size above which a thread expands."""
EXPANDED_PER_STEP: Final = 16 * 1024
ENCODED_ELSEWHERE_BYTES: Final = 256 * 1024
"""Total size of records above which the appending thread encodes them as a batch."""
RECORD_OVERHEAD_BYTES: Final = 80
"""Maximum size of a batch of one record beside its headers and its value."""
MESSAGES_PER_STEP: Final = 8
HEAD: Final = attrgetter("head")
_WIRE: Final = attrgetter("wire")
_TOTAL_BYTES: Final = struct.Struct("<4xI").unpack_from


class UncheckedError(BatchError):
    """Batch that can't be checked now, as the disk or the memory fails. It may be offered again."""


class RefusedSendError(BatchError):
    """Refusal of one SEND of a run; `place`: its number in the run. The SENDs before it could be appended."""

    def __init__(self, good: list[Message], why: BatchError) -> None:
        """Take `good`, the SENDs before, as the log takes them."""
        super().__init__(str(why))
        self.good = good
        self.place = len(good)
        self.too_large = isinstance(why, BatchTooLargeError)
        self.is_unchecked = isinstance(why, UncheckedError)
        """Whether the check itself failed: the SEND may be valid, and may be sent again."""


class OfferedBatches(Message):
    """A SEND whose body is a run of checked batches."""

    __slots__ = ("records_count",)

    def __init__(self, head: Envelope, wire: bytes, number: int, records_count: int) -> None:
        super().__init__(head, wire, number)
        self.records_count = records_count


class Unencoded:
    """Records to be encoded as one batch."""

    __slots__ = ("_lines", "_values")

    def __init__(self, values: SequenceOf[bytes | memoryview], lines: bytes) -> None:
        self._values = values
        self._lines = lines

    def __len__(self) -> int:
        return encoded_bytes(self._values, self._lines)

    def encoded(self) -> bytes:
        return encode(self._values, head=self._lines)


class Stamped:
    """Batches of one SEND, the first of which gets a header line of the broker."""

    __slots__ = ("_line", "_run", "_size_bytes")

    def __init__(self, run: memoryview, line: bytes) -> None:
        first = Batch(run)
        head_bytes = len(first.head)
        self._run = run
        self._line = line
        self._size_bytes = len(run) + padded(head_bytes + bool(head_bytes) + len(line)) - padded(head_bytes)

    def __len__(self) -> int:
        return self._size_bytes

    def apart(self) -> list[bytes | memoryview]:
        """Return each batch by itself. O(bytes of the first): for the appending thread."""
        first = Batch(self._run)
        head = b"\n".join(filter(None, (first.head, self._line)))
        stamped = reheaded(first, head)
        rest = self._run[first.total_bytes :]
        return [stamped, *(apart([rest]) if rest else ())]


Batches = bytes | memoryview | Unencoded | Stamped


def is_batch(head: Any) -> bool:
    """Return whether this header block declares the body a run of batches."""
    return bool(head.content_type == CONTENT_TYPE)


def values_of(messages: list[Message], head: Any) -> list[bytes | memoryview]:
    """Return the bodies of plain messages of one head; long ones are not copied."""
    start = head.body_offset
    if max(map(len, map(_WIRE, messages))) < ENCODED_ELSEWHERE_BYTES:
        return [message.wire[start:-1] for message in messages]
    return [memoryview(message.wire)[start:-1] for message in messages]


def apart(runs: SequenceOf[Batches]) -> list[bytes | memoryview]:
    """Return each batch of the runs by itself. O(batches): for the appending thread."""
    found: list[bytes | memoryview] = []
    for run in runs:
        if isinstance(run, Unencoded):
            found.append(run.encoded())
            continue
        if isinstance(run, Stamped):
            found += run.apart()
            continue
        if _TOTAL_BYTES(run)[0] == len(run):
            found.append(run)
            continue
        view = memoryview(run)
        place = 0
        while place < len(view):
            total_bytes: int = _TOTAL_BYTES(view, place)[0]
            found.append(view[place : place + total_bytes])
            place += total_bytes
    return found


def check_markable(messages: Iterable[Message], lines_of: Any, bytes_max: int, mark_bytes: int) -> None:
    """Raise BatchTooLargeError for a message whose first batch would be too large with a mark of `mark_bytes`.
    `lines_of`: stored header lines of a head; `bytes_max`: size of the largest batch. The messages have passed the
    check of an offer.
    """
    for message in messages:
        head: Any = message.head
        if is_batch(head):
            first = next(split(memoryview(message.wire)[head.body_offset : -1]))
            lines_bytes, size_bytes = len(first.head), first.total_bytes
            first.forget()
        else:
            lines_bytes = len(lines_of(head))
            size_bytes = len(message.wire) + lines_bytes + RECORD_OVERHEAD_BYTES
        if lines_bytes + mark_bytes > HEAD_BYTES_MAX or size_bytes + mark_bytes > bytes_max:
            raise BatchTooLargeError(
                f"{lines_bytes} bytes of headers and {size_bytes} in all: in a transaction, or with a producer-id, a "
                f"record or batch has {HEAD_BYTES_MAX - mark_bytes} and {bytes_max - mark_bytes} at most"
            )


class OfferCheck:
    """Checks of one log."""

    __slots__ = ("_good_head", "_log")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._good_head = b""
        """Head of the batch checked last."""

    def checking(self, messages: SequenceOf[Message]) -> Generator[object, None, list[Message]]:
        """Return the messages as the log takes them, in steps. Raises RefusedSendError."""
        log = self._log
        if log.is_private:
            raise RefusedSendError([], BatchError(f"{log.name} is the broker's own: clients can't append to it"))
        checked: list[Message] = []
        head: Any
        for head, same in groupby(messages, key=HEAD):
            group = list(same)
            try:
                if not is_batch(head):
                    self._check_sizes(group, head, checked)
                    continue
                for message in group:
                    self._check_size(head, len(message.wire))
                    if isinstance(message, OfferedBatches):
                        checked.append(message)
                        continue
                    count: int = yield from self._checking_run(memoryview(message.wire)[head.body_offset : -1])
                    checked.append(OfferedBatches(head, message.wire, message.number, count))
                    if not len(checked) % MESSAGES_PER_STEP:
                        yield None
            except BatchError as error:
                raise RefusedSendError(checked, error) from None
        return checked

    def _check_sizes(self, messages: list[Message], head: Any, checked: list[Message]) -> None:
        """Check plain messages of one head; append the good ones to `checked`. Raises BatchError."""
        try:
            self._check_size(head, max(map(len, map(_WIRE, messages))))
        except BatchError:
            for message in messages:
                self._check_size(head, len(message.wire))
                checked.append(message)
        checked += messages

    def _check_size(self, head: Any, wire_bytes: int) -> None:
        log = self._log
        limit_bytes, what = log.policy.log_batch_bytes_max, "log_batch_bytes_max of the destination"
        if wire_bytes > limit_bytes:
            raise BatchTooLargeError(f"{wire_bytes} bytes in one SEND to {log.name}: it takes {limit_bytes} ({what})")
        if is_batch(head):
            return
        lines_bytes = len(log.stored_lines(head))
        if lines_bytes > HEAD_BYTES_MAX:
            raise BatchTooLargeError(
                f"{lines_bytes} bytes of headers for {log.name}: a record has {HEAD_BYTES_MAX} at most"
            )
        if wire_bytes + lines_bytes + RECORD_OVERHEAD_BYTES > log.records.batch_bytes_max:
            self.refuse_for_file(wire_bytes)

    def refuse_for_file(self, size_bytes: int) -> None:
        """Raise BatchTooLargeError."""
        log = self._log
        raise BatchTooLargeError(
            f"{size_bytes} bytes do not fit into a file of {log.name}, which has {log.records.batch_bytes_max} "
            "(data_page_bytes of [logs], when the log was made)"
        )

    def _checking_run(self, body: memoryview) -> Generator[object, None, int]:
        """Check the batches of one SEND; return their number of records. The expanded size is limited in total, so many
        decompression bombs cost as much as one.
        """
        if not body:
            raise BatchError("a SEND of batches without a body")
        log = self._log
        expanded_bytes_max = left_bytes = log.policy.log_expanded_bytes_max
        plain_bytes_max = max(expanded_bytes_max, len(body))
        count = 0
        for batch in split(body):
            if batch.total_bytes > log.records.batch_bytes_max:
                self.refuse_for_file(batch.total_bytes)
            if batch.codec_number:
                left_bytes -= batch.plain_bytes
                if left_bytes < 0:
                    raise BatchTooLargeError(
                        f"the batches of one SEND expand to more than {expanded_bytes_max} bytes "
                        "(log_expanded_bytes_max of the destination): send fewer of them, or smaller ones"
                    )
            if batch.codec_number and batch.plain_bytes > INLINE_PLAIN_BYTES:
                yield from self._checking_elsewhere(batch, plain_bytes_max)
            else:
                yield from batch.checking(plain_bytes_max=plain_bytes_max)
                if batch.codec_number:
                    yield from repeat(None, batch.plain_bytes // EXPANDED_PER_STEP)
            batch.forget()
            head = batch.head
            if head != self._good_head:
                log.reading.head_of(log.name, head, offered=True)
                self._good_head = head
            count += batch.count
        return count

    def _checking_elsewhere(self, batch: Batch, plain_bytes_max: int) -> Iterator[object]:
        """Check a batch in the reading thread. Raises BatchError."""
        found: list[object] = []
        # `check` must not refer to the log: an exception in it concerns the sender alone (sluiceway/faults.py).
        room = self._log.room

        def check() -> BatchError | DiskError | None:
            try:
                batch.check(plain_bytes_max=plain_bytes_max, room=room)
            except BatchError as error:
                return error.with_traceback(None)
            except MemoryError:
                return DiskError(f"there is not enough memory for {batch.plain_bytes} bytes")
            except OSError as error:
                return DiskError(str(error))
            finally:
                batch.forget()
            return None

        def begin(go_on: Callable[[], None]) -> None:
            def checked(result: object) -> None:
                found.append(result)
                go_on()

            self._log.elsewhere(check, checked)

        yield Waiting(begin)
        result = found[0] if found else check()  # without the thread's result the waiter was cancelled
        if isinstance(result, DiskError):
            raise UncheckedError(f"a batch can't be expanded to be checked: {result}")
        if isinstance(result, Exception):
            raise result
