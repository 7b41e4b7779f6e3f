"""All logs of a broker: by name, with their groups, their retention, and requests about them.

A log is made by its first SEND or SUBSCRIBE, and stays until it is deleted. Logs of an earlier run are opened before
the first connection; files of new ones are made by a thread, and only what is sent to that log waits for it.

Bound: `logs_max`, and `groups_max` for each.

Source: seed 001 "The Queue Interface", "Luxun Thrift IDL" (the names of errors); DESIGN section 8.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import attrs

from ...dispatcher import Periodic
from ...flow.upkeep import UPKEEP_FULL, UPKEEP_REMEDY
from ..environment import QueueEnvironment
from ..policy import QueuePolicy
from ..selectors.selector import Selection
from ..steps import Waiting
from ..storage import DISK
from ..subscription import Subscription
from .codes import (
    AUTHENTICATION_FAILURE,
    GROUP_IN_USE,
    GROUP_NOT_EXIST,
    INDEX_OUT_OF_BOUNDS,
    INTERNAL_ERROR,
    INVALID_TOPIC,
    TOPIC_IS_EMPTY,
    TOPIC_NOT_EXIST,
)
from .compaction import COMPACTION_BYTES_MAX, Compactor
from .group import Group
from .log import Log
from .log_readers import OTHER_LOG, LogConsumer, LogReaders
from .ordering import PARTITIONS
from .partitions import LogDivision, LogPartitions
from .ports import AwayError, Disk, DiskError, GroupState, MissingRecordsError, Records, timestamp_ms_of
from .positions import Position, PositionKind
from .producers import LogKeeper, ProducerSnapshot
from .reading import RecordCache
from .removing import Remover, remove_files, take_files_away
from .sharing_out import SharedOut

PREFIX: Final = "/log/"
OWN_PREFIX: Final = "/log/sluiceway."
"""Prefix of the broker's own logs, such as claims and stages: no retention by age or size, and every receipt is
synced.
"""
NAME_LENGTH_MAX: Final = 200
GROUP_LENGTH_MAX: Final = 200
_NAME: Final = re.compile(r"[^\x00-\x20\x7f,:\\*>./]+(?:[./][^\x00-\x20\x7f,:\\*>./]+)*")
FETCHES_MAX: Final = 3
"""Times that records are brought to find a position: they may be gone from the cache before they are looked at."""
NO_PRODUCERS: Final[Mapping[str, ProducerSnapshot]] = MappingProxyType({})
RETENTION_SECONDS: Final = 5.0
"""Time between two checks of retention."""


class LogError(Exception):
    """Request that can't be fulfilled; `code` as the seed names it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


OTHER_SELECTOR: Final = "other-selector"
OTHER_ORDER: Final = "other-order"
DESTINATION_FAILED: Final = "destination-failed"
NOT_SUPPORTED: Final = "not-supported"
OTHER_PARTITIONS: Final = "other-partitions"
UNREADABLE: Final = frozenset({INTERNAL_ERROR, DESTINATION_FAILED})
"""Codes of a log that exists with all its records and can't be read now."""


@attrs.frozen
class Opened:
    """Opened records of a log."""

    records: Records
    log_id: str
    make: Callable[[], Records] | None = None
    """Makes the records, which are empty until then. Blocks, raises DiskError, may be called again. None: the records
    exist.
    """
    durability: str = DISK
    """Durability of what is synced, for RECEIPTs."""


class Cabinet(Remover, Protocol):
    """Port to the storage of logs: a folder, or a database."""

    def names(self) -> list[str]:
        """Return the names of the existing logs. Blocks."""

    def open(self, name: str) -> Opened:
        """Open or make a log. Blocks. Raises DiskError, and LogError for a name that can't be kept."""

    def begin(self, name: str) -> Opened:
        """Return a log that is not among `names` and is still to be made. A name among them (it could not be opened at
        the start) is opened, which blocks. Raises as `open`.
        """


def open_all(cabinet: Cabinet) -> dict[str, Opened | DiskError]:
    """Open all existing logs. Blocks: call it from a thread. Raises DiskError if the names can't be read."""
    opened: dict[str, Opened | DiskError] = {}
    for name in cabinet.names():
        try:
            opened[name] = cabinet.open(name)
        except DiskError as error:
            opened[name] = error
    return opened


class LogTable:
    """Logs of one broker."""

    def __init__(
        self,
        cabinet: Cabinet,
        disk: Disk,
        keeper: LogKeeper,
        reading: RecordCache,
        environment: QueueEnvironment,
        policy_for: Callable[[str], QueuePolicy],
        *,
        environment_of: Callable[[str], QueueEnvironment] | None = None,
        logs_max: int,
        delete_passcode: str,
        warn: Callable[..., object],
        compaction_bytes_max: int = COMPACTION_BYTES_MAX,
    ) -> None:
        """Make an empty table. `environment_of`: returns the environment of a log's shard (None: there is one shard).
        Take `delete_passcode`, which allows clients to delete logs (empty: none may), `warn`, called with an event and
        its facts, and `compaction_bytes_max`, memory for the keys of a log that is compacted.
        """
        self._cabinet = cabinet
        self._disk = disk
        self._keeper = keeper
        self.reading = reading
        self._environment = environment
        self.do_in_steps: Final = environment.do_in_steps
        self._environment_of = environment_of
        self._policy_for = policy_for
        self._division = LogDivision(self._partitions_count)
        self._logs_max = logs_max
        self._delete_passcode = delete_passcode
        self._warn = warn
        self.logs: dict[str, Log] = {}
        self.groups: dict[str, dict[str, Group]] = {}
        self._shared_out: dict[tuple[str, str], SharedOut] = {}
        """Groups with consumers of all partitions of a log, by the names of the log and the group."""
        self._outdated: dict[str, dict[str, GroupState]] = {}
        """Kept groups of deleted logs: their consumers are notified when they join again."""
        self._deleting: dict[str, Log] = {}
        """Logs no longer in the table, open until their files were moved away."""
        self._looks = Periodic(environment.scheduling.call_later, RETENTION_SECONDS, self._apply_retention)
        self.fetching_count = 0
        """Number of requests that wait for records at the end of a log."""
        self.fetched_bytes = 0
        """Records that answers to requests hold until they are made."""
        self._trimming: set[str] = set()
        self._compaction_bytes_max = compaction_bytes_max
        self.compactor: Compactor | None = None
        """Compaction; None until a log is to be compacted."""
        self._abandoned: set[str] = set()

    def __iter__(self) -> Iterator[Log]:
        return iter(self.logs.values())

    def start(self, opened: Mapping[str, Opened | DiskError], groups: Mapping[str, Mapping[str, GroupState]]) -> None:
        """Restore the logs of an earlier run, and begin to check retention."""
        self.restore(opened, groups)
        self._looks.start()

    def restore(
        self,
        opened: Mapping[str, Opened | DiskError],
        groups: Mapping[str, Mapping[str, GroupState]],
        producers: Mapping[str, ProducerSnapshot] = NO_PRODUCERS,
    ) -> None:
        """Restore what an earlier run left of a shard: its opened logs (`open_all`), the positions of groups by log and
        name, and the producers that logs know.
        """
        for name, result in opened.items():
            if isinstance(result, DiskError):
                self._warn("a log can't be opened", log=name, error=str(result))
            else:
                self._add(name, result)
        for name, snapshot in producers.items():
            its_log = self.logs.get(name)
            if its_log is not None and its_log.log_id == snapshot.log_id:
                its_log.open_producers().restore(snapshot)
        for name, states in groups.items():
            log = self.logs.get(name)
            if log is None:
                continue
            for group, state in states.items():
                self._restore(log, group, state)

    def _restore(self, log: Log, group: str, state: GroupState) -> None:
        if state.log_id not in ("", log.log_id):
            self._outdated.setdefault(log.name, {})[group] = state
            self._warn(
                "a log was deleted and made anew: its group begins as a new one", log=log.name, group=group,
                was_at=state.front,
            )  # fmt: skip
            return
        end = log.records.next_index
        front = min(state.front, end)  # after a power cut the position may be beyond the end of the log
        settled = tuple((start, min(stop, end)) for start, stop in state.settled if start < end)
        failures = tuple((start, min(stop, end), count) for start, stop, count in state.failures if start < end)
        known = state.log_id
        state = GroupState(front, settled, min(max(state.handed_to, front), end), failures, log.log_id)
        restored = self.groups.setdefault(log.name, {})[group] = Group(log, group, state, self._keeper)
        if not known:  # a position of an earlier version gets the id of its log
            self._keeper.create(log.name, group, restored.place, _nobody)

    # ------------------------------------------------------------------ logs

    def get(self, name: str) -> Log:
        """Return the log of this name (`/log/…`), made if need be. Raises LogError."""
        log = self.logs.get(name)
        if log is not None:
            return log
        check_name(name)
        self._check_whole(name)
        self._check_abandoned(name)
        if name in self._deleting:
            raise LogError(TOPIC_NOT_EXIST, f"{name} is being deleted: try again in a moment")
        if len(self.logs) >= self._logs_max:
            raise LogError(
                INVALID_TOPIC, f"there are {self._logs_max} logs already (logs_max of [logs]): {name} can't be made"
            )
        self._check_upkeep(name)
        if self._environment_of is not None:
            self._environment_of(name)  # raises where its shard is away
        try:
            return self._add(name, self._cabinet.begin(name))
        except DiskError as error:
            raise LogError(INTERNAL_ERROR, f"{name} can't be opened: {error}") from None

    def _check_upkeep(self, what: str) -> None:
        """Raise LogError if nothing new may be made."""
        why_not = self._environment.manager.why_not(what)
        if why_not:
            raise LogError(UPKEEP_FULL, f"{why_not}. {UPKEEP_REMEDY}")

    def existing(self, name: str) -> Log:
        """Return the log of this name, with or without `/log/`. Raises LogError if there is none."""
        full = name if name.startswith(PREFIX) else PREFIX + name
        log = self.logs.get(full)
        if log is None:
            raise self.no_log(full)
        return log

    def no_log(self, name: str) -> LogError:
        """Return the LogError for a name without a log. Raises LogError for an invalid name or an abandoned log."""
        check_name(name)
        self._check_whole(name)
        self._check_abandoned(name)
        return LogError(TOPIC_NOT_EXIST, f"there is no log {name}")

    # ------------------------------------------------------------------ partitions

    def partitions_of(self, name: str) -> LogPartitions | None:
        """Return the partitions of the log with this full name; None: it has none. Raises LogError."""
        if name in self.logs:
            return None
        check_name(name)
        divided = self._division.of(name)
        if divided is not None:
            self._check_can_divide(name)
        return divided

    def check_partitions(self, name: str, wanted: str) -> None:
        """Raise LogError unless the log with this full name, or the one that it is a partition of, has as many
        partitions as its sender takes it to have (`wanted`).
        """
        check_name(name)
        log = self.logs.get(name)
        whole = self._division.whole_of(name) if log is None or log.partition is not None else None
        divided = self.partitions_of(name) if whole is None else whole[0]
        count = 1 if divided is None else divided.count
        if wanted != str(count):
            raise LogError(
                OTHER_PARTITIONS,
                f"{name if divided is None else divided.name} has {count} partitions, and its sender takes it to have "
                f"{wanted[:20]}: the keys of records would be in other ones",
            )

    def mistakes_of_settings(self, names: Iterable[str]) -> list[str]:
        """Return what is wrong with `log_partitions` for the logs of an earlier run: a line for each."""
        return self._division.mistakes(names)

    def _partitions_count(self, name: str) -> int:
        return 1 if name.startswith(OWN_PREFIX) else self._policy_for(name).log_partitions

    def _check_can_divide(self, name: str) -> None:
        if self._environment_of is not None:
            raise LogError(
                NOT_SUPPORTED,
                f"{name} has log_partitions, and the data of this broker several shards: the partitions of a log would "
                "be in different ones. Give the producers logs of several names instead",
            )

    def _check_whole(self, name: str) -> None:
        """Raise LogError for the name of a log that is divided, and of a partition that its log does not have."""
        divided, part = self._division.of(name), self._division.whole_of(name)
        if divided is not None:
            self._check_can_divide(name)
            raise LogError(
                INVALID_TOPIC,
                f"{name} is divided into {divided.count} partitions: name one of them, {divided.name_of(0)} to "
                f"{divided.name_of(divided.count - 1)}",
            )
        if part is not None:
            self._check_can_divide(part[0].name)
            if part[1] >= part[0].count:
                raise LogError(
                    INVALID_TOPIC,
                    f"{name} is none of the {part[0].count} partitions of {part[0].name}: they are "
                    f"{part[0].name_of(0)} to {part[0].name_of(part[0].count - 1)}",
                )

    # ------------------------------------------------------------------ faults and ends

    def _check_abandoned(self, name: str) -> None:
        if name in self._abandoned:
            raise LogError(
                DESTINATION_FAILED,
                f"{name} was closed after a mistake of the broker: its records are safe, and there again when the "
                "broker is restarted",
            )

    @property
    def contain(self) -> Callable[[Exception], None] | None:
        """Handler of unexpected exceptions of requests; None: they propagate."""
        return self._environment.contain

    def abandon(self, log: Log) -> None:
        """Close a log as it is after a fault of the broker: nothing more of it is written, and its name is refused
        until the next start.
        """
        self._abandoned.add(log.name)
        if self.logs.get(log.name) is log:
            del self.logs[log.name]
            self.groups.pop(log.name, None)
        try:
            log.close(abandoned=True)
        finally:
            self._environment.do_in_steps(log.log_id, self.reading.forgetting(log))

    def leave(self, log: Log) -> None:
        """Forget a log whose shard is closed; its records and the positions of its groups are written."""
        del self.logs[log.name]
        self.groups.pop(log.name, None)
        self._outdated.pop(log.name, None)
        log.close()
        self._environment.do_in_steps(log.log_id, self.reading.forgetting(log))

    def meant(self, name: str, log_id: str) -> Log:
        """Return the log that a request means: with `log_id` only the one with this id, without it any of this name.
        Raises LogError.
        """
        log = self.existing(name)
        if log_id not in ("", log.log_id):
            raise _another(log, log_id)
        return log

    def _add(self, name: str, opened: Opened) -> Log:
        log = Log(
            name,
            opened.records,
            self._disk,
            self._policy(name),
            self._environment if self._environment_of is None else self._environment_of(name),
            self.reading,
            log_id=opened.log_id,
            on_failing=self._failing,
            make=opened.make,
            durability=opened.durability,
            producer_keeper=self._keeper,
        )
        log.partition = self._division.made(name)
        self.logs[name] = log
        return log

    def _policy(self, name: str) -> QueuePolicy:
        part = self._division.whole_of(name)
        policy = self._policy_for(name if part is None else part[0].name)
        if name.startswith(OWN_PREFIX):
            policy = attrs.evolve(
                policy, log_sync="receipt", log_retention_seconds=None, log_retention_bytes=None, log_compact=False
            )
        return policy

    def _failing(self, name: str, what: str) -> None:
        if what:
            self._warn("the disk of a log fails: its senders and readers wait", log=name, error=what)
        else:
            self._warn("the disk serves the log again", log=name)

    # ------------------------------------------------------------------ readers

    def read(
        self, log: Log, consumer: LogConsumer, place: Position, stop: int | None, *, label: str, log_id: str = ""
    ) -> tuple[LogReaders, Subscription]:
        """Start a reader with a position of its own. `log_id`: the log of that position; if this log is another one,
        the consumer is notified and begins with the first record (a range is then empty). Raises LogError if the
        position can't be read.
        """
        if log_id not in ("", log.log_id):
            if consumer.stops_at_gaps:
                raise _another(log, log_id)
            first = self.index_of(log, _anew(place)) if stop is None else stop
            outlet = LogReaders(log, label, first, stop=stop)
            subscription = outlet.subscribe(consumer)
            outlet.tell_other(subscription, place.number if place.kind is PositionKind.INDEX else first)
            return outlet, subscription
        start = self.index_of(log, place, refuse_gaps=consumer.stops_at_gaps)
        if stop is not None and stop < start:
            raise LogError(INDEX_OUT_OF_BOUNDS, f"to {stop} is before the beginning, which is index {start}")
        outlet = LogReaders(log, label, start, stop=stop)
        return outlet, outlet.subscribe(consumer)

    def join(
        self,
        log: Log,
        name: str,
        consumer: LogConsumer,
        place: Position,
        created: Callable[[Exception | None], None],
        *,
        log_id: str = "",
    ) -> tuple[Group, Subscription]:
        """Add a consumer to a group, which is made if need be and begins at `place`. `created` is called when the group
        is on disk. `log_id`: the log of whose group the consumer was one; it is notified if that log was deleted.
        Raises LogError.
        """
        is_other = log_id not in ("", log.log_id)
        if is_other:
            if consumer.stops_at_gaps:
                raise _another(log, log_id)
            place = _anew(place)
        group = self.groups.get(log.name, {}).get(name)
        if group is not None:
            _check_selection(group, consumer)
            _check_order(group, consumer.order)
            _when_created(group, created)
            subscription = group.subscribe(consumer)
            if is_other:
                group.tell_other(subscription, group.front)
            return group, subscription
        outdated = self._outdated.get(log.name, {}).get(name)
        group = self._new_group(log, name, place, created, refuse_gaps=consumer.stops_at_gaps)
        subscription = group.subscribe(consumer)
        if outdated is not None or is_other:
            group.tell_other(subscription, group.front if outdated is None else outdated.front)
        self._keep(log, group)
        return group, subscription

    def make_group(self, log: Log, name: str, place: Position, created: Callable[[Exception | None], None]) -> None:
        """Make the group unless it exists; a new one begins at `place`. `created` as in `join`. Raises LogError."""
        group = self.groups.get(log.name, {}).get(name)
        if group is not None:
            _when_created(group, created)
        else:
            self._keep(log, self._new_group(log, name, place, created, refuse_gaps=False))

    def share_out(self, partitions: LogPartitions, name: str, selection: Selection | None) -> SharedOut:
        """Return how a group shares out the partitions of a log, with one consumer more that is about to join: end that
        by `SharedOut.began`. Raises LogError for another selector than the other consumers have.
        """
        key = partitions.name, name
        shared = self._shared_out.get(key)
        if shared is None:

            def ended() -> None:
                if self._shared_out.get(key) is made:
                    del self._shared_out[key]

            is_known = any(name in self.groups.get(each, ()) for each in partitions.names())
            shared = made = SharedOut(self._environment.carefully, ended, is_known=is_known)
        if shared.has_consumers:
            _check_selector(name, shared.selector, _selector_in(selection))
        shared.selector = _selector_in(selection)
        shared.begin()
        self._shared_out[key] = shared
        return shared

    def make_part(
        self,
        shared: SharedOut,
        number: int,
        partition: str,
        name: str,
        place: Position,
        created: Callable[[Exception | None], None],
    ) -> None:
        """Make a partition and its group, if need be, and share it out. `place` is for a group that is new to all
        partitions; `created` as in `join`. Raises LogError.
        """
        log = self.get(partition)
        group = self.groups.get(log.name, {}).get(name)
        if group is not None:
            _check_order(group, PARTITIONS)
        self.make_group(log, name, place if shared.is_new(number) else Position(PositionKind.EARLIEST), created)
        group = self.groups.get(log.name, {}).get(name)
        if group is not None:
            shared.add(number, group)

    def _new_group(
        self, log: Log, name: str, place: Position, created: Callable[[Exception | None], None], *, refuse_gaps: bool
    ) -> Group:
        groups = self.groups.setdefault(log.name, {})
        if not name or len(name) > GROUP_LENGTH_MAX or re.search(r"[\x00-\x1f]", name):
            raise LogError(
                GROUP_NOT_EXIST, f"{name[:40]!r} can't be the name of a group: 1 to {GROUP_LENGTH_MAX} characters"
            )
        if len(groups) >= log.policy.log_groups_max:
            raise LogError(
                GROUP_NOT_EXIST,
                f"{log.name} has {log.policy.log_groups_max} groups already: {name!r} can't be made",
            )
        self._check_upkeep(f"the group {name!r} of {log.name}")
        state = GroupState(self.index_of(log, place, refuse_gaps=refuse_gaps))
        group = groups[name] = Group(log, name, state, self._keeper)
        group.creating = [created]
        self._outdated.get(log.name, {}).pop(name, None)
        return group

    def _keep(self, log: Log, group: Group) -> None:
        def made(error: DiskError | None) -> None:
            if error is not None or group.deleted:
                self._created(log, group, error)
            else:
                self._keeper.create(log.name, group.group, group.place, created)

        def created(error: Exception | None) -> None:
            self._created(log, group, error)

        log.when_made(made)  # without its log a group would be forgotten by the next start

    def _created(self, log: Log, group: Group, error: Exception | None) -> None:
        waiting, group.creating = group.creating or [], None
        if error is not None and not group.deleted:  # the group could never be kept
            groups = self.groups.get(log.name, {})
            if groups.get(group.group) is group:
                del groups[group.group]
            group.delete()
        for created in waiting:
            created(error)

    def index_of(self, log: Log, place: Position, *, refuse_gaps: bool = False) -> int:
        """Return the index of a position. Raises LogError for one beyond the end, and with `refuse_gaps` for one that
        is gone.
        """
        records = log.records
        if place.kind is PositionKind.EARLIEST:
            return records.first_index
        if place.kind is PositionKind.LATEST:
            return max(records.first_index, records.next_index - 1)
        if place.kind is PositionKind.NEXT:
            return records.next_index
        if place.kind is PositionKind.TIME:
            return _closest(log, place.number)
        if place.number > records.next_index:
            raise LogError(
                INDEX_OUT_OF_BOUNDS,
                f"{log.name} ends before index {records.next_index}: {place.number} is not there yet",
            )
        if refuse_gaps and (place.number < records.first_index or log.gap_at(place.number) is not None):
            raise LogError(
                INDEX_OUT_OF_BOUNDS,
                f"{log.name} begins with index {records.first_index}: {place.number} is not there any more",
            )
        return place.number

    def locating(self, name: str, place: Position) -> Iterator[Waiting]:
        """Bring what has to be looked at for a position in a log, if that is away, in steps; to be done before the
        position is used. Records that can't be brought are reported by its use.
        """
        log = self.logs.get(name)
        if log is None or place.kind is not PositionKind.TIME:
            return
        for _ in range(FETCHES_MAX):
            try:
                log.records.find_closest_index(place.number)
            except AwayError as away:
                failed: list[object] = []
                yield Waiting(partial(self._fetch, log, away.index, failed))
                if failed or log.closed:
                    return
            except (MissingRecordsError, DiskError):
                return
            else:
                return

    @staticmethod
    def _fetch(log: Log, index: int, failed: list[object], go_on: Callable[[], None]) -> None:
        def fetched(result: object) -> None:
            if isinstance(result, DiskError):
                failed.append(result)
            go_on()

        log.read_ahead(index, index + 1, fetched)

    # ------------------------------------------------------------------ requests

    def group(self, log: Log, name: str) -> Group:
        """Return the group. Raises LogError if there is none."""
        group = self.groups.get(log.name, {}).get(name)
        if group is None:
            raise LogError(GROUP_NOT_EXIST, f"{log.name} has no group {name[:80]!r}")
        return group

    def closest(self, log: Log, timestamp_ms: int) -> tuple[int, int]:
        """Return the index and time of the first record not older than `timestamp_ms`, or else of the last. Raises
        LogError.
        """
        records = log.records
        if records.first_index >= records.next_index:
            raise LogError(TOPIC_IS_EMPTY, f"{log.name} is empty")
        index = min(_closest(log, timestamp_ms), records.next_index - 1)
        found_ms = timestamp_ms_of(records, index)
        return index, timestamp_ms if found_ms is None else found_ms

    def seek(self, log: Log, name: str, place: Position) -> int:
        """Move a group; return its front. Raises LogError."""
        group = self.group(log, name)
        group.seek(self.index_of(log, place))
        return group.front

    def delete_group(self, log: Log, name: str, done: Callable[[Exception | None], None]) -> None:
        """Delete a group without consumers. Raises LogError."""
        group = self.group(log, name)
        if group.subscriptions or group.shared_out is not None:
            raise LogError(
                GROUP_IN_USE, f"group {name!r} of {log.name} has {len(group.subscriptions)} consumers: end them first"
            )
        group.delete()
        del self.groups[log.name][name]
        if log.is_made:
            self._keeper.delete(log.name, name, done)
        else:
            done(None)  # the group waited for the files: nothing of it is kept

    def truncate(self, log: Log, before: Position | int, done: Callable[[int | DiskError], None]) -> None:
        """Remove records older than a position, or beyond a size in bytes; by size and by time only whole files. `done`
        gets the first index left. Raises LogError.
        """
        records = log.records
        if isinstance(before, int):
            self._trim(log, lambda: records.limit_back_file_size(before), done)
        elif before.kind is PositionKind.TIME:
            self._trim(log, lambda: records.remove_before(before.number), done)
        else:
            index = self.index_of(log, before)
            self._trim(log, lambda: records.remove_to(index), done)

    def prune(self, log: Log, index: int) -> None:
        """Remove records below `index` soon."""
        self._trim(log, lambda: log.records.remove_to(index), _nobody)

    def delete(self, log: Log, passcode: str, done: Callable[[DiskError | None], None]) -> None:
        """Delete a log with all its records. Raises LogError without permission."""
        if not self._delete_passcode:
            raise LogError(AUTHENTICATION_FAILURE, "logs can't be deleted: the broker has no delete_passcode in [logs]")
        if not hmac.compare_digest(self._delete_passcode.encode(), passcode.encode()):
            raise LogError(AUTHENTICATION_FAILURE, f"this is not the passcode: {log.name} stays")
        self.remove(log, done)

    def remove(self, log: Log, done: Callable[[DiskError | None], None]) -> None:
        """Delete a log without a check of permission."""
        name = log.name
        # First: a waiter notified of the end may ask about the log again.
        del self.logs[name]
        groups = self.groups.pop(name, {})
        self._deleting[name] = log

        def taken_away(error: DiskError | None) -> None:
            if error is None and not log.closed:
                log.close(deleted=True)
                self._division.removed(name, self.logs)
                outdated = self._outdated.pop(name, {})
                self._environment.do_in_steps(log.log_id, self._removing(log, groups, outdated, done))
                return
            del self._deleting[name]
            if not log.closed:  # the log is unchanged
                self.logs[name] = log
                self.groups[name] = groups
            done(error)

        if log.is_made:
            take_files_away(name, self._cabinet, self._disk, self._environment, taken_away)
        else:
            taken_away(None)  # without files nothing is left to be found

    def _removing(
        self,
        log: Log,
        groups: Mapping[str, Group],
        outdated: Mapping[str, GroupState],
        done: Callable[[DiskError | None], None],
    ) -> Iterator[object]:
        """Do the rest of `remove` in steps, for a log that is closed and no longer in the table."""
        name = log.name
        for outlet in list(log.outlets):
            yield from outlet.ending_deleted()
            yield None
        for group_name, group in groups.items():
            self._environment.carefully(group.delete)
            self._environment.carefully(partial(self._keeper.delete, name, group_name, _nobody))
            yield None
        for group_name in outdated:
            self._environment.carefully(partial(self._keeper.delete, name, group_name, _nobody))
            yield None
        yield from self.reading.forgetting(log)

        def removed(result: DiskError | None) -> None:
            del self._deleting[name]
            done(result)

        remove_files(name, self._cabinet, self._disk, self._environment, removed)

    # ------------------------------------------------------------------ retention

    def _apply_retention(self) -> None:
        self.do_in_steps(self, self._applying_retention(tuple(self.logs.values()), self._environment.now_ms()))

    def _applying_retention(self, logs: Iterable[Log], now_ms: int) -> Iterator[None]:
        for log in logs:
            if not log.closed:
                self._environment.carefully(partial(self._apply_retention_to, log, now_ms))
            yield

    def _apply_retention_to(self, log: Log, now_ms: int) -> None:
        policy, records = log.policy, log.records
        if policy.log_compact and log.is_made and records.is_mapped:
            if self.compactor is None:
                self.compactor = Compactor(
                    self._disk, self._environment, capacity_bytes=self._compaction_bytes_max, warn=self._warn
                )
            self.compactor.look(log)
            return
        if policy.log_retention_seconds is not None:
            before_ms = now_ms - int(policy.log_retention_seconds * 1000)
            if records.first_index < records.next_index and log.name not in self._trimming:
                self._trim(log, lambda: records.remove_before(before_ms), _nobody)
        limit_bytes = policy.log_retention_bytes
        if limit_bytes is not None and records.back_file_size_bytes > limit_bytes:
            self._trim(log, lambda: records.limit_back_file_size(limit_bytes), _nobody)

    def _trim(self, log: Log, work: Callable[[], int], done: Callable[[int | DiskError], None]) -> None:
        self._trimming.add(log.name)

        def trimmed(result: int | DiskError) -> None:
            self._trimming.discard(log.name)
            if isinstance(result, DiskError):
                self._warn("a log can't be pruned", log=log.name, error=str(result))
            else:
                log.wake_all()
            done(result)

        self._disk.append(work, trimmed)

    def close(self) -> None:
        """Stop with the broker: close all logs. The records are still open."""
        self._looks.stop()
        if self.compactor is not None:
            self.compactor.close()
        for log in (*self.logs.values(), *self._deleting.values()):
            log.close()


def check_name(name: str) -> None:
    """Raise LogError unless this is a valid name of a log."""
    short = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or len(short) > NAME_LENGTH_MAX or _NAME.fullmatch(short) is None:
        raise LogError(
            INVALID_TOPIC,
            f"{name[:80]!r} can't be a log: write /log/NAME, up to {NAME_LENGTH_MAX} characters in levels that are "
            "separated by . or /, without blanks and any of , : * > \\",
        )


def _closest(log: Log, timestamp_ms: int) -> int:
    """Return the index of the first record not older than `timestamp_ms`. Raises LogError if damage hides it."""
    try:
        return log.records.find_closest_index(timestamp_ms)
    except (MissingRecordsError, DiskError) as error:
        raise LogError(INTERNAL_ERROR, f"{log.name} can't be searched by time: {error}") from None


def _another(log: Log, log_id: str) -> LogError:
    return LogError(
        OTHER_LOG,
        f"{log.name} is another log than the one that was meant ({log_id[:80]}), which was deleted: this one is "
        f"{log.log_id}, and has indexes of its own from 0",
    )


def _anew(place: Position) -> Position:
    """Return where to begin in a log that replaced another one: at its beginning in place of an index."""
    return Position(PositionKind.EARLIEST) if place.kind is PositionKind.INDEX else place


def _nobody(_result: object) -> None:
    """Ignore the result: no request waits for it."""


def _when_created(group: Group, created: Callable[[Exception | None], None]) -> None:
    if group.creating is not None:
        group.creating.append(created)
    else:
        created(None)


def _check_selection(group: Group, consumer: LogConsumer) -> None:
    """Raise LogError if this consumer's selector differs from that of the group's consumers."""
    for subscription in group.subscriptions:
        other: Any = subscription.consumer
        _check_selector(group.group, _selector_in(other.selection), _selector_in(consumer.selection))
        return


def _check_selector(group: str, has: str, wants: str) -> None:
    if has != wants:
        raise LogError(
            OTHER_SELECTOR,
            f"the consumers of group {group} have "
            + (f"the selector {has[:200]!r}" if has else "no selector")
            + ", and records that one skips are skipped for all: subscribe with the same, or use another group",
        )


def _check_order(group: Group, order: str) -> None:
    """Raise LogError for another order than the group's consumers have."""
    why_not = group.why_not(order)
    if why_not:
        raise LogError(
            OTHER_ORDER,
            f"{why_not}: subscribe with the same, use another group, or wait until they are gone and their records "
            "acknowledged or returned",
        )


def _selector_in(selection: Selection | None) -> str:
    return "" if selection is None else selection.selector.text.strip()
