"""Records that consumers of a log refused: redelivered later or dead-lettered, by the policy of the log.

A rejected record (NACK), or one whose consumer failed, waits for `redelivery_delay_ms`, growing, while later records
pass it. After more than `redeliveries_max` attempts it is sent to the dead letters as a message of its own (a log keeps
its records). A group then settles it, on disk in the same batch as the dead letter; a single reader passes over it.

A refused batch waits as a whole, under its first index; a batch that is given up is dead-lettered record by record,
some at a time.

Bound: about REFUSED_MAX deliveries that wait for their time, or records that wait for the dead-letter queue. Refusals
beyond that stand by, as ranges, until there is room; no new records are delivered meanwhile.

Source: issue 13 item 19; the parts are those of queues and topics (delayed.py, dead_letters.py, refusals.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import chain, islice
from operator import itemgetter, lt
from typing import TYPE_CHECKING, Final

from ..dead_letters import FAILED, REJECTED, RETRY_SECONDS, DeadLettering, FarQueue, LetterComesError
from ..delayed import DelayedElements, backoff_ms
from ..message import Message
from ..ranges import stretches
from .ports import PLACE_RANGES_MAX, DiskError
from .reading import NotReadyError, RecordMessage, Unreadable
from .redelivery import FOR_GOOD, Redelivery

if TYPE_CHECKING:
    from ..environment import TimerHandle
    from ..queue import MessageQueue
    from .log_readers import LogReaders

REFUSED_MAX: Final = PLACE_RANGES_MAX
"""Maximum number of waiting deliveries: as many holes are kept on disk per group."""
ENTRY_BYTES: Final = 200
"""Size of a waiting entry."""
GIVEN_UP_COUNT: Final = 1024
"""Records of one range given up at once; the rest stands by."""
ADDED_COUNT: Final = 256
"""Deliveries delayed in one go: two milliseconds."""
DUE_COUNT: Final = 512
"""Due records redelivered in one go."""
LETTERS_COUNT: Final = 16
"""Records dead-lettered in one go: each may be in a batch of its own."""
JOINED_COUNT: Final = 256
"""Ranges examined together for overlaps."""
DUE_MS_MAX: Final = 2**62
"""Time at which everything is due."""
OWN_LINES: Final = frozenset({"key", "key-base64"})
"""Headers that the broker writes before a record's own and that come from its sender."""


class Refused:
    """Refused records of one log reader. Made with the first one that waits or is given up."""

    __slots__ = (
        "_adding_timer",
        "_by",
        "_by_due_ms",
        "_dead_lettering",
        "_ends",
        "_kept_bytes",
        "_later",
        "_moving_timer",
        "_outlet",
        "_timer",
        "dead_lettered_count",
        "dropped_count",
        "failures",
        "hastens",
    )

    def __init__(self, outlet: LogReaders) -> None:
        self._outlet = outlet
        self._later = DelayedElements(REFUSED_MAX)
        self._timer: TimerHandle | None = None
        self._dead_lettering: DeadLettering | None = None
        """Records on their way to the dead letters; None if none was ever given up."""
        self.failures: dict[int, int] = {}
        """Failures of each record that waits or is given up; for a batch under its first record."""
        self._ends: dict[int, int] = {}
        """Ends of waiting batches, by their first record."""
        self._by = Redelivery()
        """Ranges standing by."""
        self._by_due_ms = 0
        """Time at which all of `_by` may be redelivered."""
        self.hastens = False
        """Whether all that waits for its time is redelivered at once: see `hasten`."""
        self._adding_timer: TimerHandle | None = None
        self._moving_timer: TimerHandle | None = None
        self._kept_bytes = 0
        """Size of all waiting entries, as counted by the broker."""
        self.dead_lettered_count = 0
        self.dropped_count = 0
        """Records given up without a dead-letter queue."""

    # ------------------------------------------------------------------ in

    def add(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Delay or give up ranges that no consumer holds, each with its number of failures."""
        now_ms, policy = self._outlet.log.environment.now_ms(), self._outlet.log.policy
        behind: list[tuple[int, int, int]] = []
        stands_by = bool(self._by)
        for place, (start, end, count) in enumerate(ranges):
            if stands_by or place >= ADDED_COUNT or self._is_full:
                behind.append((start, end, count))
            else:
                self._take(start, end, count, now_ms + backoff_ms(policy, count % FOR_GOOD))
        if behind:
            most = max([count % FOR_GOOD for _start, _end, count in behind])
            self._by_due_ms = max(self._by_due_ms, now_ms + backoff_ms(policy, most))
            self._by.add(behind)
        self._count()
        self._add_soon()
        self._move_soon()

    def stand_by(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Add ranges that an earlier run had given up, some at a time."""
        self._by.add(ranges)
        self._count()
        self._add_soon()

    def _take(self, start: int, end: int, count: int, due_ms: int) -> None:
        if self._outlet.is_spent(count):
            self._give_up(range(start, end), count)
        else:
            self._put_off(start, end, count, due_ms)

    def _add_soon(self) -> None:
        """Schedule the addition of ranges standing by, if there is room."""
        if self._by and not self._is_full and self._adding_timer is None and not self._outlet.closed:
            self._adding_timer = self._outlet.log.environment.scheduling.call_later(0.0, self._add_some)

    def _add_some(self) -> None:
        self._adding_timer = None
        by, due_ms = self._by, max(self._by_due_ms, self._outlet.log.environment.now_ms())
        for _ in range(ADDED_COUNT):
            first = by.first
            if first is None or self._is_full:
                break
            start, end, count = first.start, first.end, first.failures
            by.pass_first(end)
            self._take(start, end, count, due_ms)
        self._count()
        self._add_soon()
        self._move_soon()
        self._outlet.context.request_dispatch()

    def _put_off(self, start: int, end: int, count: int, due_ms: int) -> None:
        """Delay a range until `due_ms`. O(log n), whatever its length."""
        self.failures[start] = count
        if end > start + 1:
            self._ends[start] = end
        if self._later.put((start,), due_ms):
            self._arm()

    def _count(self) -> None:
        size_bytes = ENTRY_BYTES * self.waiting_count
        self._outlet.keep(size_bytes - self._kept_bytes)
        self._kept_bytes = size_bytes

    def _give_up(self, sequences: range, count: int) -> None:
        """Dead-letter the records; without a dead-letter queue drop them."""
        log = self._outlet.log
        to, router = log.policy.dead_letter, log.environment.dead_letters
        if to is None or router is None:
            self.dropped_count += len(sequences)
            self._settle(sequences)
            return
        if rest := sequences[GIVEN_UP_COUNT:]:
            sequences = sequences[:GIVEN_UP_COUNT]
            self._by.add([(rest.start, rest.stop, count)])
        self.failures.update(dict.fromkeys(sequences, count))
        if self._dead_lettering is None:
            self._dead_lettering = DeadLettering(
                self._outlet,  # type: ignore[arg-type]
                self,
                router,
                to,
                log.environment,
                refused_by=(self._outlet.refuser, None),
                letter_of=self._letter_of,
                move_count=LETTERS_COUNT,
            )
        self._dead_lettering.add(sequences, REJECTED if count >= FOR_GOOD else FAILED)

    def _move_soon(self) -> None:
        """Schedule `move`. Not at once: one run of NACKs may name many batches, and each of their records is a dead
        letter.
        """
        if self.dead_lettering_count and self._moving_timer is None and not self._outlet.closed:
            self._moving_timer = self._outlet.log.environment.scheduling.call_later(0.0, self._move_now)

    def _move_now(self) -> None:
        self._moving_timer = None
        self.move()

    def move(self) -> None:
        """Dead-letter the records given up."""
        if self._dead_lettering is not None and not self._outlet.closed:
            self._dead_lettering.move()

    def forget(self, start: int, end: int) -> None:
        """Forget records that are gone from the log, or of a moved group. O(waiting entries), with little work for
        each.
        """
        failures, ends = self.failures, self._ends
        rest: list[tuple[int, int, int]] = []
        for first, last in [(first, last) for first, last in ends.items() if first < end and start < last]:
            if first < start:  # at most one, as ranges do not overlap
                rest.append((first, start, failures[first]))
            if end < last:
                rest.append((end, last, failures[first]))
        begin = min([start, *(first for first, _end, _count in rest)])
        self.failures = {index: count for index, count in failures.items() if not begin <= index < end}
        if ends:
            self._ends = {index: last for index, last in ends.items() if not begin <= index < end}
        self._later.discard_between(begin, end)
        if self._dead_lettering is not None:
            self._dead_lettering.discard([index for index in failures if begin <= index < end])
        self._by.drop_between(start, end)
        self._count()
        self._add_soon()
        if rest:
            self._outlet.comes_again(rest)

    def ranges(self) -> list[tuple[int, int, int]]:
        """Return the ranges that wait or are given up with their failures; of those standing by the first
        PLACE_RANGES_MAX.
        """
        ends = self._ends
        found = [(index, ends.get(index, index + 1), count) for index, count in self.failures.items()]
        return found + [(each.start, each.end, each.failures) for each in islice(self._by, PLACE_RANGES_MAX)]

    # ------------------------------------------------------------------ port of dead letters (GivesUp)

    def still_has(self, sequence: int) -> bool:
        """Return whether the record can still be read. If not, settle it here, as nothing else will."""
        log = self._outlet.log
        try:
            if log.records.first_index <= sequence and log.gap_at(sequence) is None:
                self._record(sequence)
                return True
        except DiskError:
            return True  # it may be there: try again later
        except (Unreadable, IndexError):
            pass
        self._settle((sequence,))
        return False

    def attempts_of(self, sequence: int) -> int:
        """Return the number of failures."""
        return self.failures.get(sequence, 0) % FOR_GOOD

    def dead_lettered(self, sequences: SequenceOf[int], to: MessageQueue | FarQueue) -> None:
        """Settle records that were moved to the dead-letter queue `to`."""
        self.dead_lettered_count += len(sequences)
        self._settle(sequences)
        store, storage = self._outlet.log.environment.store, self._outlet.storage
        if isinstance(to, FarQueue):
            return
        if store is not None and store is to.environment.store and storage is not None and to.storage is not None:
            store.bind((storage, to.storage))

    def _letter_of(self, sequence: int) -> tuple[Message, Mapping[str, str | None]] | None:
        """Return a record as a message for any destination, with additional headers; None if it can't be read now."""
        try:
            record = self._record(sequence)
        except NotReadyError as error:
            self._outlet.log.reading.await_batch(error.key, self)
            raise LetterComesError from None
        except (DiskError, Unreadable, IndexError):
            return None
        block: bytes = record.head.block  # type: ignore[attr-defined]
        own = record.wire[: record.lines_bytes].decode().split("\n")
        said = {name: value for name, _colon, value in (line.partition(":") for line in own) if name in OWN_LINES}
        body = record.wire[record.lines_bytes + len(block) :]
        facts: dict[str, str | None] = {**said, "persistent": "true", "dead-letter-index": str(sequence)}
        return Message(record.head, block + body, sequence), facts

    def go_on(self, error: DiskError | None) -> None:
        """Continue after a long batch was checked, or the disk has failed."""
        if error is not None:
            self._outlet.log.environment.scheduling.call_later(RETRY_SECONDS, self.move)
        else:
            self.move()

    def _record(self, sequence: int) -> RecordMessage:
        log = self._outlet.log
        record = log.reading.record(log, sequence)
        assert isinstance(record, RecordMessage), "a log has nothing else"
        return record

    def _settle(self, sequences: SequenceOf[int]) -> None:
        failures = self.failures
        known: Iterable[int] = sequences
        if type(sequences) is range and len(sequences) > len(failures):  # a longer range is not walked over
            known = [index for index in failures if index in sequences]
        for sequence in known:
            failures.pop(sequence, None)
        self._count()
        for start, end in stretches(sequences):
            self._outlet.passed(start, end)
        self._add_soon()

    # ------------------------------------------------------------------ out

    @property
    def dead_lettering_count(self) -> int:
        """Number of records that wait for the dead-letter queue."""
        return 0 if self._dead_lettering is None else len(self._dead_lettering)

    @property
    def delays_some(self) -> bool:
        """Whether a record waits for its next attempt, or stands by."""
        return bool(self._later) or bool(self._by)

    @property
    def waiting_count(self) -> int:
        """Number of deliveries and records that wait or stand by."""
        return len(self.failures) + len(self._by)

    @property
    def _is_full(self) -> bool:
        return len(self.failures) >= REFUSED_MAX

    @property
    def is_crowded(self) -> bool:
        """Whether no new records should be delivered."""
        return self._is_full or bool(self._by)

    def facts(self) -> dict[str, object]:
        """Return facts for statistics."""
        facts: dict[str, object] = {}
        if self._later:
            facts["refused, and waiting for its time"] = len(self._later)
        if self._dead_lettering:
            facts["dead letters that wait"] = len(self._dead_lettering)
            if self._dead_lettering.trouble:
                facts["because"] = self._dead_lettering.trouble
        if self._by:
            facts["refused, and standing by"] = len(self._by)
        if self.is_crowded:
            facts["too many are refused"] = "nothing new is handed out until some have gone"
        return facts

    def lowest(self) -> int | None:
        """Return the lowest index that waits or is given up. O(waiting entries)."""
        lowest = min(self.failures, default=None)
        first = self._by.first
        return lowest if first is None else first.start if lowest is None else min(lowest, first.start)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._later.next_ms
        environment = self._outlet.log.environment
        if next_ms is not None and not self._outlet.closed:
            delay_ms = 0 if self.hastens else max(0, next_ms - environment.now_ms())
            self._timer = environment.scheduling.call_later(delay_ms / 1000, self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        now_ms = DUE_MS_MAX if self.hastens else self._outlet.log.environment.now_ms()
        due = sorted(self._later.take_due(now_ms, DUE_COUNT))
        again: list[tuple[int, int, int]] = []
        spent: list[tuple[int, int, int]] = []
        for index in due:
            count = self.failures.pop(index)
            to = spent if self._outlet.is_spent(count) else again  # the policy may have changed
            to.append((index, self._ends.pop(index, index + 1), count))
        self.hastens = self.hastens and self.delays_some
        self._outlet.comes_again(again)
        self.add(spent)
        self._arm()

    def hasten(self) -> None:
        """Redeliver all that waits for its time, as a restart does, in portions."""
        self.hastens = self.delays_some
        self._arm()

    def close(self) -> None:
        """Close with the reader. Failure counts stay: a group saves them when the broker stops."""
        for timer in (self._timer, self._adding_timer, self._moving_timer):
            if timer is not None:
                timer.cancel()
        if self._dead_lettering is not None:
            self._dead_lettering.close()


def overlaid(
    ranges: Iterable[tuple[int, int, int]], failures: SequenceOf[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges with their counts, cut where `failures` (ascending) has higher counts. O(both)."""
    place = 0
    for start, end, count in ranges:
        while place < len(failures) and failures[place][1] <= start:
            place += 1
        at = place
        while at < len(failures) and failures[at][0] < end:
            failed_start, failed_end, failed_count = failures[at]
            if start < failed_start:
                yield start, failed_start, count
            yield max(start, failed_start), min(end, failed_end), failed_count
            start = min(end, failed_end)
            at += 1
        if start < end:
            yield start, end, count


def joined(found: Iterable[tuple[int, int, int]], floor: int) -> list[tuple[int, int, int]]:
    """Return the ranges with their counts from `floor` on, ascending, without overlaps, adjacent ones joined; the first
    PLACE_RANGES_MAX. O(n log n). A group with thousands of mostly separate ranges is written each second, so separate
    ranges are not looped over.
    """
    kept: list[tuple[int, int, int]] = []
    behind = floor
    ranges = sorted(found)
    for place in range(0, len(ranges), JOINED_COUNT):
        some = ranges[place : place + JOINED_COUNT]
        if all(map(lt, chain((behind,), map(itemgetter(1), some)), map(itemgetter(0), some))):
            kept += some
            behind = some[-1][1]
        else:
            behind = _join(kept, some, behind)
        if len(kept) > PLACE_RANGES_MAX:
            break
    return kept[:PLACE_RANGES_MAX]


def _join(kept: list[tuple[int, int, int]], ranges: list[tuple[int, int, int]], behind: int) -> int:
    """Append the ranges from `behind` on; return the end of the last."""
    for start, end, count in ranges:
        if end <= behind:
            continue
        start = max(start, behind)
        if kept and kept[-1][1:] == (start, count):
            kept[-1] = (kept[-1][0], end, count)
        else:
            kept.append((start, end, count))
        behind = end
    return behind
