"""Staged commits: what many writers have put aside is published in logs at once, and once only.

A *stage* is a log of its own, whose name begins with STAGE_PREFIX: writers append to it and wait for their receipts.
`commit(query, batch, parts)` appends all that the named stages hold to their target logs; each target gets its part as
a whole, with nothing in between. For one query batches are numbered, ascending, and a batch is published once: a
repeated commit of it, or of an earlier one, changes nothing and says so. So a writer that does not know whether its
commit got through just commits again.

How it survives: before anything is published the *intent* is kept (which stages, which targets, and from which index on
their part would lie); the first batch of each part carries the header COMMIT_HEADER, which names query, batch and part.
After a crash what is intended is carried on, whatever stages a later commit of that batch names: a part whose header is
found in its target is there already. When all parts are synced the batch is noted as done, and the stages go.

Stages that nobody commits go after STAGE_SECONDS. Bound: `logs_max`, and the disk.
Source: issue 5 item 4; the research on Spark, section 7a.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, Final, Protocol

import attrs

from queues.logs.batches import Batch, BatchError, reheaded, split
from queues.logs.log import Log
from queues.logs.ports import DiskError, MissingRecordsError, Records
from queues.logs.table import LogError, LogTable

STAGE_PREFIX: Final = "/log/sluiceway.stage."
STAGE_SECONDS: Final = 24 * 3600.0
"""Stages to which nothing was appended for so long belong to nobody."""
COMMIT_HEADER: Final = b"sluiceway-commit"
PARTS_MAX: Final = 10_000
CUT_BYTES: Final = 64 * 1024 * 1024
INVALID_COMMIT: Final = "INVALID_COMMIT"


@attrs.frozen
class StagedPart:
    """All of a stage, for one target."""

    stage: str
    target: str
    from_index: int = -1
    """Where the target ended when this was intended."""


@attrs.frozen
class SinkState:
    """What is kept of one query."""

    query: str
    batch: int = -1
    """The last that was published."""
    intended: int = -1
    """The one that is being published; -1: none."""
    parts: tuple[StagedPart, ...] = ()


class SinkKeeper(Protocol):
    """Keeps what queries have published. `done` is called on the loop, when it is on disk, or with what went wrong."""

    def save(self, state: SinkState, done: Callable[[Exception | None], None]) -> None: ...


Reply = Callable[[Mapping[str, Any] | LogError], None]


class Sinks:
    """All queries of a broker that publish by stages."""

    def __init__(
        self,
        table: LogTable,
        keeper: SinkKeeper,
        read: Callable[[Callable[[], Any], Callable[[Any], None]], None],
        *,
        warn: Callable[..., object],
    ) -> None:
        """`read` calls its first argument in a thread that may wait for the disk, then the second with the result."""
        self._table = table
        self._keeper = keeper
        self._read = read
        self._warn = warn
        self.states: dict[str, SinkState] = {}
        self._replies: dict[str, list[Reply]] = {}
        """Of those commits that are under way."""

    def restore(self, states: SequenceOf[SinkState]) -> None:
        """What an earlier run left; what it intended is carried on."""
        for state in states:
            self.states[state.query] = state
            if state.intended >= 0:
                self._replies[state.query] = []
                self._publish(state)

    def describe(self, query: str) -> dict[str, Any]:
        """One query as plain data."""
        state = self.states.get(query, SinkState(query))
        return {"query": query, "batch": state.batch, "publishing": state.intended if state.intended >= 0 else None}

    def commit(self, query: str, batch: int, parts: SequenceOf[StagedPart], reply: Reply) -> None:
        """Publish this batch. Raises LogError for what can't be, with nothing done."""
        state = self.states.get(query, SinkState(query))
        if batch <= state.batch:
            self.drop([part.stage for part in parts])
            reply({"batch": batch, "published": False})
            return
        if query in self._replies:
            if batch != state.intended:
                raise LogError(INVALID_COMMIT, f"batch {state.intended} of {query} is being published: wait for it")
            self._replies[query].append(reply)
            return
        if state.intended >= 0:
            if batch != state.intended:
                raise LogError(INVALID_COMMIT, f"batch {state.intended} of {query} was begun: commit it again first")
            mine = {part.stage for part in state.parts}
            others = [part.stage for part in parts if part.stage not in mine]

            def carried_on(result: Mapping[str, Any] | LogError) -> None:
                if not isinstance(result, LogError):
                    self.drop(others)
                reply(result)

            self._replies[query] = [carried_on]
            self._publish(state)
            return
        if len(parts) > PARTS_MAX:
            raise LogError(INVALID_COMMIT, f"{len(parts)} parts in one commit: {PARTS_MAX} are possible")
        intended: list[StagedPart] = []
        for part in parts:
            if not part.stage.startswith(STAGE_PREFIX):
                raise LogError(INVALID_COMMIT, f"{part.stage[:80]!r} is no stage: its name begins with {STAGE_PREFIX}")
            if part.target.startswith(STAGE_PREFIX):
                raise LogError(INVALID_COMMIT, f"{part.target[:80]!r} is a stage, and no target")
            self._table.existing(part.stage)
            target = self._table.get(part.target)
            intended.append(attrs.evolve(part, from_index=target.records.next_index))
        state = attrs.evolve(state, intended=batch, parts=tuple(intended))
        self._replies[query] = [reply]

        def intent_kept(error: Exception | None) -> None:
            if error is not None:
                self._failed(query, error)
                return
            self.states[query] = state
            self._publish(state)

        self._keeper.save(state, intent_kept)

    def drop(self, stages: SequenceOf[str]) -> None:
        """These are not wanted any more; those that are not there are none."""
        for name in stages:
            log = self._table.logs.get(name) if name.startswith(STAGE_PREFIX) else None
            if log is not None:
                self._table.remove(log, _nobody)

    def drop_forgotten(self, now_ms: int) -> None:
        """Stages to which nothing came for a long time."""
        used = {part.stage for state in self.states.values() if state.intended >= 0 for part in state.parts}
        before_ms = now_ms - STAGE_SECONDS * 1000
        for name, log in list(self._table.logs.items()):
            if name.startswith(STAGE_PREFIX) and name not in used and log.records.last_timestamp_ms < before_ms:
                self._table.remove(log, _nobody)

    # ------------------------------------------------------------------ how

    def _publish(self, state: SinkState) -> None:
        """Part after part; then it is done."""
        waiting = deque(enumerate(state.parts))
        left_count = len(waiting) + 1

        def one_done() -> None:
            nonlocal left_count
            left_count -= 1
            if not left_count:
                self._all_published(state)

        def next_part() -> None:
            if not waiting:
                one_done()
                return
            place, part = waiting.popleft()
            self._publish_part(state, place, part, one_done, next_part)

        next_part()

    def _publish_part(
        self, state: SinkState, place: int, part: StagedPart, done: Callable[[], None], appended: Callable[[], None]
    ) -> None:
        mark = marker(state.query, state.intended, place)
        stage = self._table.logs.get(part.stage)
        try:
            target: Log = self._table.get(part.target)
        except LogError as error:
            self._failed(state.query, error)
            return
        stage_records = None if stage is None else stage.records
        target_records = target.records

        def look() -> tuple[list[bytes | memoryview], int] | None:
            if _is_there(target_records, part.from_index, mark):
                return None
            if stage_records is None:
                raise DiskError(f"{part.stage} is gone before it was published in {part.target}")
            return _batches_of(stage_records, mark)

        def looked(result: tuple[list[bytes | memoryview], int] | DiskError | None) -> None:
            if isinstance(result, DiskError):
                self._failed(state.query, result)
                return
            if result is not None and result[0]:
                target.append(*result)
                target.when_durable(lambda _how, _indexes: done())
            else:
                target.when_settled(done)
            appended()

        # What was appended to the target before this was intended must be written: it is looked through.
        target.when_written(lambda: self._read(look, looked))

    def _all_published(self, state: SinkState) -> None:
        published = SinkState(state.query, state.intended)

        def noted(error: Exception | None) -> None:
            if error is not None:
                self._failed(state.query, error)
                return
            self.states[state.query] = published
            self.drop([part.stage for part in state.parts])
            for reply in self._replies.pop(state.query, []):
                reply({"batch": published.batch, "published": True})

        self._keeper.save(published, noted)

    def _failed(self, query: str, error: Exception) -> None:
        """Whoever asked is told; the next commit of the same batch goes on from what is there."""
        self._warn("a commit can't be published", query=query, error=str(error))
        for reply in self._replies.pop(query, []):
            reply(error if isinstance(error, LogError) else LogError("INTERNAL_ERROR", str(error)))


def marker(query: str, batch: int, place: int) -> bytes:
    """The header line of the first batch of a part."""
    name = query.encode().hex()
    return COMMIT_HEADER + f":{name}/{batch}/{place}".encode()


def _is_there(records: Records, index: int, mark: bytes) -> bool:
    """Whether a batch from this index on carries this mark. O(batches)."""
    index = max(index, records.first_index)
    end = records.next_index
    while index < end:
        try:
            batch = records.batch_of(index)
        except MissingRecordsError as gone:
            index = gone.to_index
            continue
        except IndexError:
            index = max(index + 1, records.first_index)
            continue
        if mark in batch.head.split(b"\n"):
            return True
        index = batch.end_index
    return False


def _batches_of(records: Records, mark: bytes) -> tuple[list[bytes | memoryview], int]:
    """All of a stage, its first batch with the mark; and how many records. Raises DiskError for damaged ones."""
    batches: list[bytes | memoryview] = []
    index, end = records.first_index, records.next_index
    count = 0
    try:
        while index < end:
            part = records.cut(index, end, CUT_BYTES)
            for batch in split(part.data):
                batch.verify()
                batches.append(batch.data if batches else _marked(batch, mark))
                count += batch.count
            index = part.end_index
    except (MissingRecordsError, BatchError) as error:
        raise DiskError(f"what was staged is damaged: {error}") from None
    return batches, count


def _marked(batch: Batch, mark: bytes) -> bytes:
    return reheaded(batch, batch.head + b"\n" + mark if batch.head else mark)


def _nobody(_result: object) -> None:
    """Nobody asked."""
