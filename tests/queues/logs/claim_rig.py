"""Claims and stages without a broker: states are kept in dictionaries, when and if a test lets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import attrs

from sluiceway.flow import Flow, FlowResource, SourceController
from sluiceway.protocols.stomp.header_codec import HeaderCodec
from sluiceway.queues.consumed import ConsumedQueue
from sluiceway.queues.logs.claims import ClaimGroup, ClaimState
from sluiceway.queues.logs.log import Log
from sluiceway.queues.logs.pending_records import PendingRecords
from sluiceway.queues.logs.ports import DiskError
from sluiceway.queues.logs.reading import RecordCache
from sluiceway.queues.logs.staged_commits import STAGE_PREFIX, Sinks, SinkState, StagedPart
from sluiceway.queues.logs.table import LogError, LogTable, Opened, open_all
from tests.queues.logs.rig import CACHE_BYTES, DictKeeper, HandDisk, ListRecords, LogWorld, sends
from tests.queues.rig import World, make_policy

Done = Callable[[Exception | None], None]


class Kept:
    """What is on disk: takes states at once, or with `held` when told to; `failing` says no."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self.held = False
        self.failing = False
        self.saves_count = 0
        self._waiting: list[tuple[str, Any, Done]] = []

    def put(self, name: str, state: Any, done: Done) -> None:
        self.saves_count += 1
        self._waiting.append((name, state, done))
        if not self.held:
            self.answer()

    def answer(self) -> None:
        """Keep what waits, in order."""
        waiting, self._waiting = self._waiting, []
        for name, state, done in waiting:
            if self.failing:
                done(OSError("no"))
            else:
                self.states[name] = state
                done(None)


class ClaimsKept(Kept):
    """Satisfies `ClaimKeeper`."""

    def save(self, log: str, state: ClaimState, done: Done) -> None:
        self.put(log, state, done)


class SinksKept(Kept):
    """Satisfies `SinkKeeper`."""

    def check(self, state: SinkState) -> None:
        """It keeps anything."""

    def save(self, state: SinkState, done: Done) -> None:
        self.put(state.query, state, done)

    def forget(self, query: str) -> None:
        self.states.pop(query, None)


@attrs.define
class Answers:
    """A reply, and whether it has come."""

    found: list[Mapping[str, Any] | LogError] = attrs.field(factory=list)

    def __call__(self, answer: Mapping[str, Any] | LogError) -> None:
        self.found.append(answer)

    @property
    def one(self) -> dict[str, Any]:
        (answer,) = self.found
        assert not isinstance(answer, LogError), str(answer)
        return dict(answer)

    @property
    def range(self) -> tuple[int, int]:
        return self.one["from"], self.one["to"]

    @property
    def error(self) -> LogError:
        (answer,) = self.found
        assert isinstance(answer, LogError), answer
        return answer


class ClaimWorld(LogWorld):
    """A queue, and a group that claims what is in it."""

    def __init__(self, state: ClaimState | None = None) -> None:
        super().__init__()
        self.kept = ClaimsKept()
        self.queue: ConsumedQueue = self.shared()
        self.truncated: list[int] = []
        self.group_of = self.new_group(state or ClaimState("/queue/a", "g", "id"))

    def new_group(self, state: ClaimState) -> ClaimGroup:
        return ClaimGroup(
            self.log, state, self.kept, self.environment, lambda group: self.queue.subscribe(group), self._cut
        )

    def restarted(self) -> ClaimGroup:
        """The group as a new process finds it."""
        self.group_of.close()
        self.group_of = self.new_group(self.kept.states.get(self.log.name, ClaimState("/queue/a", "g", "id")))
        return self.group_of

    def _cut(self, _log: Log, index: int) -> None:
        self.truncated.append(index)
        self.records.remove_to(index)

    def put(self, *bodies: str, lines: str = "k:1") -> None:
        """Into the queue."""
        for message in sends([body.encode() for body in bodies], lines):
            self.queue.add([message], len(message.wire), None)
        self.run()

    def claim(self, number: int, count_max: int = 100, *, seconds: float = 1.0) -> Answers:
        """Asked for, and so much time given."""
        answers = Answers()
        self.group_of.claim(number, count_max, 1 << 20, answers)
        self.run()
        if seconds:
            self.advance(seconds)
        return answers

    def ack(self, number: int) -> Answers:
        answers = Answers()
        self.group_of.ack(number, answers)
        self.run()
        return answers

    def release(self) -> Answers:
        answers = Answers()
        self.group_of.release(answers)
        self.run()
        return answers

    def bodies(self, start: int, end: int) -> list[str]:
        """What a reader of these records finds."""
        found = []
        for index in range(start, end):
            batch = self.records.batch_of(index)
            found.append(bytes(batch.value(index - batch.first_index)).decode())
        return found

    def read(self, answers: Answers) -> list[str]:
        return self.bodies(*answers.range)


class Shelf:
    """Satisfies `Cabinet`: logs in memory."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.records: dict[str, ListRecords] = {}
        self.ids: dict[str, str] = {}
        self.broken: set[str] = set()
        """Can't be opened."""
        self._ids = count(1)
        self._now_ms = now_ms

    def _id_of(self, name: str) -> str:
        if name not in self.ids:
            self.ids[name] = f"id{next(self._ids)}"
        return self.ids[name]

    def names(self) -> list[str]:
        return sorted(self.records)

    def open(self, name: str) -> Opened:
        if name in self.broken:
            raise DiskError("too many open files")
        records = self.records.setdefault(name, ListRecords(self._now_ms))
        return Opened(records, self._id_of(name))

    def begin(self, name: str) -> Opened:
        if name in self.records:
            return self.open(name)
        return Opened(PendingRecords(ListRecords.batch_bytes_max), self._id_of(name), lambda: self.open(name).records)

    def take_away(self, name: str) -> None:
        """There are no files."""

    def remove(self, name: str) -> None:
        del self.records[name], self.ids[name]


class SinkWorld(World):
    """Logs, and queries that publish in them."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf(lambda: self.now_ms)
        self.disk = HandDisk()
        self.kept = SinksKept()
        self.warnings: list[str] = []
        self.start()

    def start(self) -> None:
        """What a process does that begins."""
        reading = RecordCache(CACHE_BYTES, HeaderCodec(), manager=self.manager, clock=self.environment.clock)
        self.table = LogTable(
            self.shelf,
            self.disk,
            DictKeeper(),
            reading,
            self.environment,
            lambda _name: make_policy(log_sync="none"),
            logs_max=100,
            delete_passcode="",
            warn=self._warn,
        )
        self.table.start(open_all(self.shelf), {})
        self.sinks = Sinks(self.table, self.kept, self.disk.read, now_ms=lambda: self.now_ms, warn=self._warn)
        self.sinks.restore(list(self.kept.states.values()))
        self.run()

    def restart(self) -> None:
        """The process died, and another one begins."""
        self.disk.jobs.clear()
        self.disk.held = self.kept.held = self.kept.failing = False
        self.disk.failing = ""
        self.kept._waiting.clear()
        self.start()

    def _warn(self, event: str, **_facts: object) -> None:
        self.warnings.append(event)

    def stage(self, name: str, *bodies: str, lines: str = "k:1") -> str:
        """A stage with these records; its full name."""
        full = STAGE_PREFIX + name
        self.put(full, *bodies, lines=lines)
        return full

    def put(self, log: str, *bodies: str, lines: str = "k:1") -> None:
        held, self.disk.held = self.disk.held, False
        for message in sends([body.encode() for body in bodies], lines):
            producer = FlowResource("producer", "test", self.manager)
            source = SourceController(producer, Flow("sends"), clock=self.environment.clock)
            assert self.table.get(log).offer([message], len(message.wire), source)
            self.run()
        self.disk.held = held

    def commit(self, batch: int, *parts: tuple[str, str], query: str = "q") -> Answers:
        answers = Answers()
        self.sinks.commit(query, batch, [StagedPart(stage, target) for stage, target in parts], answers)
        self.run()
        return answers

    def bodies(self, log: str) -> list[str]:
        """All that is in a log."""
        records = self.shelf.records.get(log)
        if records is None:
            return []
        return [
            bytes(records.batch_of(index).value(index - records.batch_of(index).first_index)).decode()
            for index in range(records.first_index, records.next_index)
        ]

    @property
    def stages(self) -> list[str]:
        return [name for name in self.shelf.records if name.startswith(STAGE_PREFIX)]
