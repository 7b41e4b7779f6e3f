"""What consumers of a log refused: tried again later, or given up, as the policy of the log says for all destinations.

A record that was refused (NACK), or that its consumer broke over, waits for `redelivery_delay_ms`, growing, while later
ones pass it; tried more often than `redeliveries_max` it goes to the dead letters as a message of its own (a log keeps
its records). A group has settled it then: on disk in the very batch that stores the dead letter. A single reader passes
it over.

A batch that was refused waits as a whole, under its first index; one that is given up goes as its records, some of them
at a time.

Bound: REFUSED_MAX deliveries that wait for their time, or records that wait for the dead-letter queue; beyond it
nothing new is handed out until some have gone, and only what consumers had by then is added.
Source: issue 13 item 19; the parts are those of queues and topics (later.py, dead_letters.py, refusals.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import chain
from operator import itemgetter, lt
from typing import TYPE_CHECKING, Final

from ..dead_letters import FAILED, Condemned
from ..later import Later, backoff_ms
from ..message import Message
from ..ranges import stretches
from .ports import PLACE_RANGES_MAX, DiskError
from .reading import Record, Unreadable

if TYPE_CHECKING:
    from ..environment import TimerHandle
    from ..queue import MessageQueue
    from .outlets import Outlet

REFUSED_MAX: Final = PLACE_RANGES_MAX
"""So many holes are kept on disk of a group."""
ENTRY_BYTES: Final = 200
"""What each takes that waits."""
GIVEN_UP_COUNT: Final = 1024
"""Records of one batch that wait for the dead-letter queue at once; the rest waits as a batch, and looks every so often
whether they have gone."""
REST_SECONDS: Final = 0.05
DUE_COUNT: Final = 512
"""Records whose time has come that are let go in one go."""
JOINED_COUNT: Final = 256
"""Ranges that are looked at together, whether they lie apart."""
OWN_LINES: Final = frozenset({"key", "key-base64"})
"""Of the lines that the broker writes before a record's headers: what its sender said."""


class Refused:
    """Of one outlet. Made when the first comes back that waits or is given up."""

    __slots__ = (
        "_condemned",
        "_ends",
        "_kept_bytes",
        "_later",
        "_outlet",
        "_timer",
        "dead_lettered_count",
        "dropped_count",
        "failures",
    )

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._later = Later(REFUSED_MAX)
        self._timer: TimerHandle | None = None
        self._condemned: Condemned | None = None
        """None: nothing was ever given up."""
        self.failures: dict[int, int] = {}
        """How often each of those failed that wait, or are given up; of a batch its first record stands for all."""
        self._ends: dict[int, int] = {}
        """Where batches end that wait, by their first record."""
        self._kept_bytes = 0
        """Of all that waits, as the broker's memory counts it."""
        self.dead_lettered_count = 0
        self.dropped_count = 0
        """Given up where there are no dead letters."""

    # ------------------------------------------------------------------ in

    def puts_off(self, start: int, end: int, count: int) -> None:
        """These have failed so often: they wait for their time. O(log n), however many they are."""
        environment = self._outlet.log.environment
        due_ms = environment.now_ms() + backoff_ms(self._outlet.log.policy, count)
        self.failures[start] = count
        if end > start + 1:
            self._ends[start] = end
        if self._later.put((start,), due_ms):
            self._arm()
        self._count()

    def _count(self) -> None:
        size_bytes = ENTRY_BYTES * len(self.failures)
        self._outlet.keep(size_bytes - self._kept_bytes)
        self._kept_bytes = size_bytes

    def give_up(self, sequences: range, count: int) -> None:
        """These, which failed so often and nobody holds, go to the dead letters; without any they are dropped."""
        log = self._outlet.log
        to, router = log.policy.dead_letter, log.environment.dead_letters
        if to is None or router is None:
            self.dropped_count += len(sequences)
            self._settle(sequences)
            return
        if rest := sequences[GIVEN_UP_COUNT:]:
            sequences = sequences[:GIVEN_UP_COUNT]
            self.failures[rest.start] = count
            self._ends[rest.start] = rest.stop
            self._wait_as_rest(rest.start)
        self.failures.update(dict.fromkeys(sequences, count))
        if self._condemned is None:
            self._condemned = Condemned(
                self._outlet,  # type: ignore[arg-type]
                self,
                router,
                to,
                log.environment,
                refused_by=(self._outlet.refuser, None),
                letter_of=self._letter_of,
            )
        self._condemned.add(sequences, FAILED)
        self._count()

    def _wait_as_rest(self, start: int) -> None:
        if self._later.put((start,), self._outlet.log.environment.now_ms() + round(REST_SECONDS * 1000)):
            self._arm()

    def move(self) -> None:
        """Send what is given up on its way."""
        if self._condemned is not None:
            self._condemned.move()

    def forget(self, start: int, end: int) -> None:
        """These are settled otherwise: gone from the log, or the group was moved."""
        gone = [each for each in self.ranges() if each[0] < end and start < each[1]]
        indexes = [index for index, _end, _count in gone]
        self._later.discard(indexes)
        for index in indexes:
            del self.failures[index]
            self._ends.pop(index, None)
        if self._condemned is not None:
            self._condemned.discard(indexes)
        self._count()
        rest = [(first, min(last, start), count) for first, last, count in gone if first < start]
        rest += [(max(first, end), last, count) for first, last, count in gone if end < last]
        if rest:  # of batches
            self._outlet.comes_again(rest)

    def ranges(self) -> list[tuple[int, int, int]]:
        """What waits or is given up, with how often it failed."""
        if not self._ends:
            return [(index, index + 1, count) for index, count in self.failures.items()]
        ends = self._ends
        return [(index, ends.get(index, index + 1), count) for index, count in self.failures.items()]

    # ------------------------------------------------------------------ what dead letters need (GivesUp)

    def still_has(self, sequence: int) -> bool:
        """Whether this can still be read. If not, it is settled here: nobody else comes by it."""
        log = self._outlet.log
        try:
            if log.records.first_index <= sequence and log.gap_at(sequence) is None:
                self._record(sequence)
                return True
        except DiskError:
            return True  # it may be there: ask again later
        except (Unreadable, IndexError):
            pass
        self._settle((sequence,))
        return False

    def attempts_of(self, sequence: int) -> int:
        """How often it has failed."""
        return self.failures.get(sequence, 0)

    def dead_lettered(self, sequences: SequenceOf[int], to: MessageQueue) -> None:
        """These have gone to that queue."""
        self.dead_lettered_count += len(sequences)
        self._settle(sequences)
        store, shelf = self._outlet.log.environment.store, self._outlet.shelf
        if store is not None and shelf is not None and to.shelf is not None:
            store.bind((shelf, to.shelf))

    def _letter_of(self, sequence: int) -> tuple[Message, Mapping[str, str | None]] | None:
        """A record as a message that can go anywhere, and what headers that takes. None: it can't be read now."""
        try:
            record = self._record(sequence)
        except (DiskError, Unreadable, IndexError):
            return None
        block: bytes = record.head.block  # type: ignore[attr-defined]
        own = record.wire[: record.lines_bytes].decode().split("\n")
        said = {name: value for name, _colon, value in (line.partition(":") for line in own) if name in OWN_LINES}
        body = record.wire[record.lines_bytes + len(block) :]
        facts: dict[str, str | None] = {**said, "persistent": "true", "dead-letter-index": str(sequence)}
        return Message(record.head, block + body, sequence), facts

    def _record(self, sequence: int) -> Record:
        log = self._outlet.log
        record = log.reading.part(log, sequence, sequence + 1, 1, 1).messages[0]
        assert isinstance(record, Record), "a log has nothing else"
        return record

    def _settle(self, sequences: SequenceOf[int]) -> None:
        failures = self.failures
        known: Iterable[int] = sequences
        if type(sequences) is range and len(sequences) > len(failures):  # what is longer is not walked over
            known = [index for index in failures if index in sequences]
        for sequence in known:
            failures.pop(sequence, None)
        self._count()
        for start, end in stretches(sequences):
            self._outlet.passed(start, end)

    # ------------------------------------------------------------------ out

    @property
    def condemned_count(self) -> int:
        """How many wait for the dead-letter queue."""
        return 0 if self._condemned is None else len(self._condemned)

    @property
    def is_crowded(self) -> bool:
        """Nothing new should be handed out."""
        return len(self.failures) >= REFUSED_MAX

    def facts(self) -> dict[str, object]:
        """For people."""
        facts: dict[str, object] = {}
        if self._later:
            facts["refused, and waiting for its time"] = len(self._later)
        if self._condemned:
            facts["dead letters that wait"] = len(self._condemned)
            if self._condemned.trouble:
                facts["because"] = self._condemned.trouble
        if self.is_crowded:
            facts["too many are refused"] = "nothing new is handed out until some have gone"
        return facts

    def lowest(self) -> int | None:
        """The lowest index that waits or is given up. O(those)."""
        return min(self.failures, default=None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._later.next_ms
        environment = self._outlet.log.environment
        if next_ms is not None and not self._outlet.closed:
            delay_ms = max(0, next_ms - environment.now_ms())
            self._timer = environment.scheduling.call_later(delay_ms / 1000, self._let_due_go)

    def _let_due_go(self) -> None:
        self._timer = None
        due = sorted(self._later.take_due(self._outlet.log.environment.now_ms(), DUE_COUNT))
        again: list[tuple[int, int, int]] = []
        for index in due:
            if self._outlet.is_spent(self.failures[index]):  # the rest of a batch
                if self.condemned_count:
                    self._wait_as_rest(index)
                else:
                    self.give_up(range(index, self._ends.pop(index, index + 1)), self.failures.pop(index))
            else:
                again.append((index, self._ends.pop(index, index + 1), self.failures.pop(index)))
        self._count()
        self._outlet.comes_again(again)
        self.move()
        self._arm()

    def close(self) -> None:
        """The outlet is closed. What failed how often stays known: a group notes it when the broker stops."""
        if self._timer is not None:
            self._timer.cancel()
        if self._condemned is not None:
            self._condemned.close()


def overlaid(
    ranges: Iterable[tuple[int, int, int]], failures: SequenceOf[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int]]:
    """These ranges with their counts, cut where others (ascending) say that some failed more often. O(both)."""
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
    """These ranges with their counts from `floor` on, ascending, none over another, those that go on as one; the first
    PLACE_RANGES_MAX. O(n log n). A group with thousands is written each second, and most lie apart: so no loop walks
    over those.
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
    """Add these from `behind` on; returns behind what they end."""
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
