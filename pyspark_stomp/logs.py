"""Logs as a source: of batches, and of streams that read each record exactly once.

Offsets are those of Spark's checkpoint, {"/log/a":{"0":"123@7f0a13c9b2d4"}}: the next index to read and which log it is
of, by log and partition; a partition is the log of that name at one broker. A log that was deleted and made anew is
another one, whatever its length. Checkpoints of earlier versions have the index alone: they are gone on with, and know
the log from then on. A range of a log is the same each time it is read, so a micro-batch that is run
again after a crash gets the very same rows.

Who runs where: Spark keeps one process that plans (`initialOffset`, `latestOffset`, `partitions`), with connections to
ask brokers over; and others that read ranges, each with a connection of its own. They share nothing but what is
pickled. Nothing is acknowledged: the place is the checkpoint's. What Spark has committed is told to a group on the
broker if `groupId` names one, for people to see how far the query is.

A broker that is away: the planner goes on with the others (its own partitions stand still), a task waits for
`reconnectSeconds`. So it is with a log of a cluster whose hub is gone, until another one has it.

At a cluster a task reads at the hub that has the log. The planner asks any hub, best that of the first log.

Traps that decide the details, from the research: offsets are compared as texts, so keys are sorted; `latestOffset` must
take its `start` for committed, since `commit` of a batch comes only with the next one; `initialOffset` is asked again
until the first batch is committed, so `latest` is kept on the broker; an empty list of partitions arrives as one None.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_stomp.options import EARLIEST, LATEST, Mark, Marks, Offsets, ReadOptions
from pyspark_stomp.schema import Rows
from pyspark_stomp.wire import AwayError, Connection
from sluiceway.client.address import Address
from sluiceway.client.errors import CannotConnectError, ConnectionLostError, Gap, RequestError

if TYPE_CHECKING:
    import pyarrow as pa

INTERNAL: Final = "/log/sluiceway."
"""Logs of the broker itself: no pattern finds them."""
AWAY_SECONDS: Final = 2.0
"""Time for which the planner leaves a broker alone that did not answer."""
CURSOR_SECONDS: Final = 1.0
"""Time between two reports of a query's progress, while it has work."""

StreamOffsets = dict[str, dict[str, int | str]]
"""Offsets as Spark keeps them: by log and partition."""

_log = logging.getLogger("pyspark_stomp")


class DataLossError(Exception):
    """Records that were to be read are missing."""


@attrs.frozen
class Extent:
    """Records that a broker has of one log."""

    first: int = 0
    next: int = 0
    bytes_each: float = 0.0
    """Bytes of a record, on average."""
    log_id: str = ""
    """Empty: there is none, or its broker does not say."""


@attrs.define
class Range(InputPartition):
    """Records `start` to before `end` of one log at one broker: what one task reads."""

    log: str
    partition: int
    start: int
    end: int
    expected: bool = True
    """False: nothing was promised from its start on, such as of a log that was not there before."""
    log_id: str = ""
    """Id of the log; empty: the current one of that name."""


R = TypeVar("R", bound=Range)


def split(ranges: list[R], wanted: int) -> list[R]:
    """Split ranges into at least `wanted` (the option `minPartitions`), as even as it goes."""
    total = sum(each.end - each.start for each in ranges)
    if len(ranges) >= wanted or total == 0:
        return ranges
    found: list[R] = []
    for each in ranges:
        size = each.end - each.start
        pieces = min(size, max(1, -(-size * wanted // total)))
        marks = [each.start + size * piece // pieces for piece in range(pieces + 1)]
        found += [attrs.evolve(each, start=start, end=end) for start, end in pairwise(marks)]
    return found


class Brokers:
    """The brokers, as the planner sees them. Connections are not pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connections: dict[int, Connection] = {}
        self._away_until: dict[int, float] = {}
        self._logs_away_until: dict[tuple[int, str], float] = {}

    def __getstate__(self) -> ReadOptions:
        return self._options

    def __setstate__(self, options: ReadOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._options.brokers.addresses

    def ask(self, partition: int, name: str, *, patient: bool, **facts: Any) -> dict[str, Any]:
        """A request. `patient`: wait for a broker that is away. Raises as `Connection.request`."""
        connection = self._connections.get(partition)
        if connection is None:
            names = self.wanted(partition)
            connection = self._options.brokers.connection(partition, names[0] if names else "")
            self._connections[partition] = connection
        connection.patience_seconds = self._options.brokers.reconnect_seconds if patient else 0.0
        return connection.request(name, **facts)

    def extents(self, partition: int, *, patient: bool) -> dict[str, Extent]:
        """The logs of this broker that the options want and that are there. Raises as `ask`."""
        options = self._options
        if options.pattern:
            pattern = re.compile(options.pattern)
            described = [
                each
                for each in self._list(partition, patient=patient)
                if pattern.fullmatch(each["log"]) and not each["log"].startswith(INTERNAL)
            ]
        else:
            described = []
            for name in self.wanted(partition):
                if patient or not self.is_away(partition, name):
                    found = self._describe_or_away(partition, name, patient=patient)
                    described += [] if found is None else [found]
        return {
            each["log"]: Extent(
                each["first"],
                each["next"],
                each["bytes"] / each["size"] if each["size"] else 0.0,
                each.get("log_id", ""),
            )
            for each in described
        }

    def _list(self, partition: int, *, patient: bool) -> list[dict[str, Any]]:
        """All logs of this broker, a page at a time: what goes meanwhile may hide another one."""
        found: list[dict[str, Any]] = []
        while True:
            page = {"offset": len(found)} if found else {}
            reply = self.ask(partition, "log/list", patient=patient, **page)
            found += reply["logs"]
            if not reply.get("omitted") or not reply["logs"]:
                return found

    def _describe(self, partition: int, log: str, *, patient: bool) -> dict[str, Any] | None:
        """None: there is no such log."""
        try:
            return self.ask(partition, "log/describe", patient=patient, log=log)
        except RequestError as error:
            if error.code != "TOPIC_NOT_EXIST":
                raise
            return None

    def _describe_or_away(self, partition: int, log: str, *, patient: bool) -> dict[str, Any] | None:
        """None: there is no such log, or no hub has it now, and it is left alone for a moment."""
        try:
            return self._describe(partition, log, patient=patient)
        except AwayError as error:
            if patient:
                raise
            _log.warning("%s waits: %s", log, error)
            self._logs_away_until[partition, log] = time.monotonic() + AWAY_SECONDS
            return None

    def is_away(self, partition: int, log: str) -> bool:
        """Whether no hub of the broker has had the log a moment ago."""
        return time.monotonic() < self._logs_away_until.get((partition, log), 0.0)

    def is_gone(self, partition: int, log: str) -> bool:
        """Whether a log that was not found is not there. Raises RequestError, RefusedError."""
        if not self._options.pattern:
            return True
        try:
            return self._describe(partition, log, patient=False) is None
        except (CannotConnectError, ConnectionLostError):
            return False  # the broker has gone away in this moment: its state is unknown

    def extents_or_away(self, partition: int) -> dict[str, Extent] | None:
        """The same without waiting; None: the broker is away."""
        if time.monotonic() < self._away_until.get(partition, 0.0):
            return None
        try:
            return self.extents(partition, patient=False)
        except (CannotConnectError, ConnectionLostError) as error:
            _log.warning("partition %d waits: %s", partition, error)
            self._away_until[partition] = time.monotonic() + AWAY_SECONDS
            return None

    def wants(self, log: str, partition: int) -> bool:
        """Whether the options name it, or its pattern finds it."""
        if self._options.pattern:
            return re.fullmatch(self._options.pattern, log) is not None
        return log in self.wanted(partition)

    def wanted(self, partition: int) -> Sequence[str]:
        """The logs that the options name for this broker."""
        assigned = self._options.assigned
        if assigned is None:
            return self._options.subscribe
        return [name for name, partitions in assigned.items() if partition in partitions]

    def by_time(self, partition: int, log: str, extent: Extent, timestamp_ms: int) -> int:
        """The index of the first record that is not older; the end if there is none."""
        if extent.first >= extent.next:
            return extent.next
        meant = {"log_id": extent.log_id} if extent.log_id else {}
        found = self.ask(partition, "log/closest", patient=True, log=log, timestamp_ms=timestamp_ms, **meant)
        return int(found["index"]) if found["timestamp_ms"] >= timestamp_ms else extent.next

    def close(self) -> None:
        """End all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def _place_of(place: int | Marks, log: str, partition: int) -> Mark | None:
    """Return what an option says of this partition; None: nothing."""
    return Mark(place) if isinstance(place, int) else place.get(log, {}).get(str(partition))


def _time_of(times: int | Offsets | None, log: str, partition: int) -> int | None:
    return times if times is None or isinstance(times, int) else times.get(log, {}).get(str(partition))


def _offsets_of(marks: Marks) -> StreamOffsets:
    """Return the offsets for Spark, in an order in which equal offsets are equal texts."""
    return {log: {number: marks[log][number].offset for number in sorted(marks[log], key=int)} for log in sorted(marks)}


def _marks_of(offsets: StreamOffsets) -> Marks:
    """Read offsets that Spark has kept."""
    return {log: {number: Mark.of(offset) for number, offset in by.items()} for log, by in offsets.items()}


def _is_anew(begun: Mark, end: Mark) -> bool:
    """Tell whether reading begins anew: in another log, or in a shorter one without an id."""
    return _is_other(begun, end) or (not begun.log_id and end.index < begun.index)


def _is_other(begun: Mark, end: Mark) -> bool:
    """Whether the marks belong to two logs, the first of which was deleted."""
    return begun.log_id != end.log_id and begun.log_id != "" != end.log_id


class _Reader:
    """Base of readers of batches and of streams; pickled to the processes that read."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._brokers = Brokers(options)

    # ------------------------------------------------------------------ planning

    def _resolve(
        self, place: int | Marks, times: int | Offsets | None, log: str, partition: int, extent: Extent
    ) -> Mark | None:
        """The place that options mean; None if they say nothing of this partition."""
        timestamp_ms = _time_of(times, log, partition)
        if timestamp_ms is not None:
            return Mark(self._brokers.by_time(partition, log, extent, timestamp_ms), extent.log_id)
        mark = _place_of(place, log, partition)
        if mark is None or mark.log_id:
            return mark
        named = {EARLIEST: extent.first, LATEST: extent.next}
        return Mark(named.get(mark.index, mark.index), extent.log_id)

    # ------------------------------------------------------------------ reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. In a worker."""
        if not isinstance(partition, Range):
            return  # Spark's stand-in for no partitions at all
        rows = Rows(self._columns, partition.log, partition.partition)
        with self._options.brokers.connection(partition.partition, partition.log) as connection:
            for part in connection.read_batches(partition.log, partition.start, partition.end, log_id=partition.log_id):
                if isinstance(part, Gap):
                    self._lost(partition, part)
                else:
                    yield from rows.add(part, connection.log_id)
            yield from rows.rest()

    def _lost(self, partition: Range, gap: Gap) -> None:
        if gap.reason == "retention" and gap.first == partition.start and not partition.expected:
            return
        words = {
            "retention": "the log has removed them, they were too old or too much",
            "lost": "its disk has lost them, or it was restored from an older backup",
            "deleted": "the log was deleted",
            "other-log": "the log was deleted, and there is another one of its name",
            "damaged": "they are damaged",
        }
        text = (
            f"records {gap.first} to {gap.end - 1} of {gap.log} at {gap.broker} are gone: "
            f"{words.get(gap.reason, gap.reason)}"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{text}. To continue behind them set failOnDataLoss to false; to lose nothing, let the log keep"
                " records for longer (log_retention_seconds, log_retention_bytes) than the query may be behind"
            )
        _log.warning("%s; continuing behind them", text)


class LogReader(_Reader, DataSourceReader):
    """A batch: the ranges are fixed when it is planned, so every action on the same DataFrame sees the same."""

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read."""
        options, brokers = self._options, self._brokers
        ranges: list[Range] = []
        seen: set[str] = set()
        try:
            for partition in range(len(brokers.addresses)):
                extents = brokers.extents(partition, patient=True)
                seen |= extents.keys()
                for log, extent in sorted(extents.items()):
                    start = self._resolve(options.starting, options.starting_ms, log, partition, extent)
                    end = self._resolve(options.ending, options.ending_ms, log, partition, extent)
                    # Of a partition that they leave out, options mean all.
                    start = Mark(extent.first, extent.log_id) if start is None else start
                    end = Mark(extent.next, extent.log_id) if end is None else end
                    if start.index < end.index:
                        log_id = start.log_id if end.log_id == extent.log_id else end.log_id
                        ranges.append(Range(log, partition, start.index, end.index, log_id=log_id))
        finally:
            brokers.close()
        missing = set(options.subscribe if options.assigned is None else options.assigned) - seen
        if missing:
            raise DataLossError(
                f"there is no {' and no '.join(sorted(missing))} at {', '.join(map(str, brokers.addresses))}: is the"
                " name right?"
            )
        return split(ranges, self._options.partitions_min)


def default_limit(options: ReadOptions) -> ReadLimit:
    """Return the limit of one micro-batch, as the options of the source say."""
    if options.offsets_max is not None:
        return ReadMaxRows(options.offsets_max)
    if options.bytes_max is not None:
        return ReadMaxBytes(options.bytes_max)
    return ReadAllAvailable()


class LogStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._target: Marks | None = None
        """End of a run with the trigger AvailableNow."""
        self._seen: dict[str, dict[int, Extent]] = {}
        self._reached: set[int] = set()
        """Brokers that have answered when they were looked at last."""
        self._told: set[tuple[str, str, str]] = set()
        """Log, partition and event of what was warned of once."""
        self._reported: dict[tuple[str, str], Mark] = {}
        self._reported_at = 0.0
        self._news: StreamOffsets | None = None

    # ------------------------------------------------------------------ where to begin

    def initialOffset(self) -> StreamOffsets:
        """Return where reading begins. Spark asks before the first micro-batch is committed, perhaps more than once."""
        options, brokers = self._options, self._brokers
        found: Marks = {}
        for partition in range(len(brokers.addresses)):
            extents = brokers.extents(partition, patient=True)
            for log in {*extents, *brokers.wanted(partition)}:
                extent = extents.get(log, Extent())
                mark: Mark | None
                if (
                    options.starting_ms is None
                    and _place_of(options.starting, log, partition) == Mark(LATEST)
                    and options.group
                ):
                    asked = brokers.ask(partition, "log/cursor", patient=True, log=log, group=options.group)
                    mark = Mark(int(asked["front"]), asked.get("log_id", ""))
                else:
                    mark = self._resolve(options.starting, options.starting_ms, log, partition, extent)
                    # Of a partition that they leave out, options mean all.
                    mark = Mark(extent.first, extent.log_id) if mark is None else mark
                found.setdefault(log, {})[str(partition)] = mark
        return _offsets_of(found)

    # ------------------------------------------------------------------ how far to go

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of one micro-batch, as Spark asks for it."""
        return default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit this run to what there is now; called by Spark."""
        self._look(patient=True)
        self._target = self._ends({})

    def latestOffset(self, start: StreamOffsets, limit: ReadLimit) -> StreamOffsets:
        """Return where the next micro-batch ends. Spark asks at each trigger; what lies before `start` is committed."""
        begun = _marks_of(start)
        if self._target is None:
            self._look(patient=False)
            ends = self._ends(begun)
        else:
            ends = {**begun, **{log: {**begun.get(log, {}), **to} for log, to in self._target.items()}}
        self._check_logs(begun, ends)
        limited = self._limited(begun, ends, limit)
        self._report(begun, idle=limited == begun)
        return _offsets_of(limited)

    def reportLatestOffset(self) -> StreamOffsets | None:
        """Return the ends of the logs, which Spark shows as `latestOffset` in the progress of a query."""
        return self._news

    def _look(self, *, patient: bool) -> None:
        """See how far the logs are. What a broker that is away had before stays."""
        brokers = self._brokers
        for partition in range(len(brokers.addresses)):
            extents = brokers.extents(partition, patient=True) if patient else brokers.extents_or_away(partition)
            if extents is None:
                self._reached.discard(partition)
                continue
            self._reached.add(partition)
            for log, by_partition in self._seen.items():
                if not brokers.is_away(partition, log):
                    by_partition.pop(partition, None)
            for log, extent in extents.items():
                self._seen.setdefault(log, {})[partition] = extent

    def _ends(self, start: Marks) -> Marks:
        """Return where the logs end that were seen, and where we are in the others."""
        ends: Marks = {log: dict(partitions) for log, partitions in start.items()}
        for log, by_partition in self._seen.items():
            for partition, extent in by_partition.items():
                ends.setdefault(log, {})[str(partition)] = Mark(extent.next, extent.log_id)
        self._news = _offsets_of(ends)
        return ends

    def _check_logs(self, start: Marks, ends: Marks) -> None:
        """Whether the logs are those that were read, and have what was read. Raises DataLossError if that matters."""
        for log, partitions in start.items():
            for number, begun in partitions.items():
                if int(number) < len(self._brokers.addresses) and begun != Mark(0):  # else nothing was there yet
                    self._check_log(log, number, begun, ends[log][number])

    def _check_log(self, log: str, number: str, begun: Mark, end: Mark) -> None:
        place = f"{log} at {self._brokers.addresses[int(number)]}"
        is_gone = int(number) not in self._seen.get(log, {})
        if not is_gone:
            self._told.discard((log, number, "gone"))
        elif (
            int(number) not in self._reached
            or self._brokers.is_away(int(number), log)
            or not self._brokers.wants(log, int(number))
            or not self._brokers.is_gone(int(number), log)
        ):
            return
        if is_gone:
            self._lost_log(
                f"{place} is gone, and the query was at index {begun.index}: it was deleted (or the broker could not "
                "open it: see its log)", "waiting until it is back", once=(log, number, "gone"),
            )  # fmt: skip
        elif _is_other(begun, end):
            self._lost_log(
                f"{place} is another log than the one that the query has read up to index {begun.index}: that was "
                f"deleted ({begun.log_id}), and this one ({end.log_id}) was made anew under its name",
                "continuing with all of the new one",
            )
        elif end.index < begun.index:
            self._lost_log(
                f"{place} ends before index {end.index}, and the query was at {begun.index}: its disk has lost "
                "records, or it was restored from an older backup" + ("" if begun.log_id else ", or deleted"),
                "continuing at its end" if begun.log_id else "continuing with the present one, from its beginning",
            )
        elif end.log_id and not begun.log_id and (log, number, "unnamed") not in self._told:
            self._told.add((log, number, "unnamed"))
            _log.warning(
                "the checkpoint does not say which log of the name %s the query has read, so a deletion since then "
                "can't be detected: continuing at index %d, and from now on the checkpoint has the id (%s)",
                place, begun.index, end.log_id,
            )  # fmt: skip

    def _lost_log(self, what: str, then: str, *, once: tuple[str, str, str] | None = None) -> None:
        """Fail, or warn: each time, or `once` until that is over."""
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what}. Set failOnDataLoss to false for {then}")
        if once is None or once not in self._told:
            _log.warning("%s; %s", what, then)
        if once is not None:
            self._told.add(once)

    def _limited(self, start: Marks, ends: Marks, limit: ReadLimit) -> Marks:
        """Return the marks within the limit: all partitions advance in proportion to their sizes."""
        begins = {
            (log, number): self._begin(log, number, start.get(log, {}).get(number), end)
            for log, partitions in ends.items()
            for number, end in partitions.items()
        }
        sizes = {(log, number): max(0, ends[log][number].index - begin) for (log, number), begin in begins.items()}
        total = sum(sizes.values())
        most = self._rows_max(limit, sizes)
        if most is None or most >= total:
            return ends
        shares = {key: size * most // total for key, size in sizes.items()}
        left = most - sum(shares.values())
        # The rest from rounding goes to the partitions that have most to give.
        for key in sorted(sizes, key=lambda key: (shares[key] - sizes[key], key)):
            if left <= 0:
                break
            if shares[key] < sizes[key]:
                shares[key] += 1
                left -= 1
        return {
            log: {
                number: Mark(begins[log, number] + shares[log, number], end.log_id)
                for number, end in partitions.items()
            }
            for log, partitions in ends.items()
        }

    def _begin(self, log: str, number: str, begun: Mark | None, end: Mark) -> int:
        """Return where the reading of a partition goes on."""
        if begun is not None and not _is_anew(begun, end):
            return min(begun.index, end.index)
        extent = self._seen.get(log, {}).get(int(number), Extent())
        return min(extent.first, end.index)

    def _rows_max(self, limit: ReadLimit, sizes: dict[tuple[str, str], int]) -> int | None:
        if isinstance(limit, ReadAllAvailable):
            return None
        rows: list[int] = []
        options = self._options
        if isinstance(limit, ReadMaxRows):
            rows.append(limit.max_rows)
        elif options.offsets_max is not None:
            rows.append(options.offsets_max)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.bytes_max
        if bytes_max is not None:
            total = sum(sizes.values())
            total_bytes = sum(
                size * self._seen.get(log, {}).get(int(number), Extent()).bytes_each
                for (log, number), size in sizes.items()
            )
            if total_bytes > bytes_max:
                rows.append(max(1, int(total * bytes_max / total_bytes)))
        return min(rows, default=None)

    # ------------------------------------------------------------------ what to read

    def partitions(self, start: StreamOffsets, end: StreamOffsets) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch, the same for the same offsets; called by Spark."""
        ranges: list[Range] = []
        started = _marks_of(start)
        for log, partitions in sorted(_marks_of(end).items()):
            for number, stop in sorted(partitions.items()):
                begun = started.get(log, {}).get(number)
                if int(number) >= len(self._brokers.addresses):
                    raise DataLossError(
                        f"the checkpoint knows partition {number} of {log}, and the option brokers names only"
                        f" {len(self._brokers.addresses)}: keep the brokers in their order, and add new ones at the end"
                    )
                if begun is None or _is_anew(begun, stop):
                    if stop.index > 0:
                        ranges.append(Range(log, int(number), 0, stop.index, expected=False, log_id=stop.log_id))
                elif begun.index < stop.index:
                    log_id = stop.log_id or begun.log_id
                    ranges.append(Range(log, int(number), begun.index, stop.index, log_id=log_id))
        return split(ranges, self._options.partitions_min)

    # ------------------------------------------------------------------ progress

    def commit(self, end: StreamOffsets) -> None:
        """Do nothing: Spark calls `latestOffset` afterwards, which says more."""

    def stop(self) -> None:
        """End; called by Spark in most cases."""
        self._brokers.close()

    def _report(self, start: Marks, *, idle: bool) -> None:
        """Tell the brokers how far the query is, for people to see. Not needed for anything, so it may fail."""
        group = self._options.group
        if not group:
            return
        now = time.monotonic()
        if not idle and now - self._reported_at < CURSOR_SECONDS:
            return
        self._reported_at = now
        for log, partitions in start.items():
            for number, mark in partitions.items():
                if self._reported.get((log, number)) == mark:
                    continue
                try:
                    self._move(int(number), log, group, mark)
                except (CannotConnectError, ConnectionLostError, RequestError) as error:
                    _log.info("the progress of the query in %s can't be reported: %s", log, error)
                    continue
                self._reported[log, number] = mark

    def _move(self, partition: int, log: str, group: str, mark: Mark) -> None:
        where: dict[str, Any] = {"log": log, "group": group} | ({"log_id": mark.log_id} if mark.log_id else {})
        try:
            self._brokers.ask(partition, "log/seek", patient=False, to=mark.index, **where)
        except RequestError as error:
            if error.code != "GROUP_NOT_EXIST":
                raise
            self._brokers.ask(partition, "log/cursor", patient=False, **where, **{"from": mark.index})
