"""Staged commits: records that many writers have staged are published in logs together, and exactly once.

A *stage* is a log whose name begins with STAGE_PREFIX: writers append to it and wait for their receipts. `commit(query,
batch, parts)` appends the records of the named stages to their target logs; each target gets its part as a whole, with
nothing in between. A stage whose writer has lost its connection counts up to its last receipt (`StagedPart.whole`);
the rest of the writer's records are in another stage. Batches of one query are numbered, ascending, and published once:
a repeated commit of this or an earlier batch changes nothing and says so. So a writer that does not know the outcome
just commits again.

Durability: before anything is published the *intent* is saved (which stages, which targets, and from which index on the
parts would begin); the first batch of each part carries the header COMMIT_HEADER with query, batch and part. After a
crash an intent is completed, whatever stages a later commit of that batch names: a part whose header is found in its
target is published, as a whole, since a log keeps an append as a whole or not at all. When all parts are synced the
batch is saved as done, and the stages are deleted.

All stages are read and checked before the first part is published. If one is gone or damaged and nothing of the batch
is published, the intent is void, and the batch may be committed anew, from other stages. Stages of an intent can't be
dropped: a writer that gave a commit up without its outcome must not undo half of it.

Stages without a commit are deleted after STAGE_SECONDS. Bound: QUERIES_MAX (the least recently used are forgotten),
PARTS_MAX, `logs_max`, and the disk.

Source: issue 5 item 4; the research on Spark, section 7a.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Any, Final, Protocol

import attrs

from ...flow.latch import Latch
from .batches import BatchError, split
from .codes import INTERNAL_ERROR
from .log import Log
from .marked import COMMIT_HEADER, fitting, is_there, marked
from .ports import DiskError, MissingRecordsError, Records, read_here
from .table import DESTINATION_FAILED, OWN_PREFIX, UNREADABLE, LogError, LogTable

STAGE_PREFIX: Final = OWN_PREFIX + "stage."
STAGE_SECONDS: Final = 24 * 3600.0
"""Time without an append after which a stage is abandoned."""
PARTS_MAX: Final = 10_000
QUERIES_MAX: Final = 10_000
QUERY_LENGTH_MAX: Final = 200
LOST: Final = "lost"
CUT_BYTES: Final = 64 * 1024 * 1024
INVALID_COMMIT: Final = "INVALID_COMMIT"
COMMIT_VOID: Final = "COMMIT_VOID"
"""Error code of an intent given up with nothing published: the batch may be committed anew, from other stages."""


@attrs.frozen
class StagedPart:
    """All records of a stage, for one target."""

    stage: str
    target: str
    count: int = -1
    """Number of records it must have; -1: not given."""
    from_index: int = -1
    """End of the target at the time of the intent."""
    stage_id: str = ""
    """Id of the stage's log at the time of the intent; empty if saved by an earlier version."""
    target_id: str = ""
    """Id of the target's log likewise: `from_index` has no meaning in another log of that name."""
    whole: bool = True
    """False: only the first `count` records of the stage; behind them is what its writer has no receipt for."""


@attrs.frozen
class SinkState:
    """State of one query as kept on disk."""

    query: str
    batch: int = -1
    """Last published batch."""
    intended: int = -1
    """Batch being published; -1: none."""
    parts: tuple[StagedPart, ...] = ()
    used_ms: int = 0
    """Time of the last commit."""


class SinkKeeper(Protocol):
    """Storage of what queries have published. `done` is called on the loop, with None when it is on disk, or with the
    error.
    """

    def check(self, state: SinkState) -> None:
        """Raise LogError if the state is too large to be kept."""

    def save(self, state: SinkState, done: Callable[[Exception | None], None]) -> None: ...

    def forget(self, query: str) -> None: ...


Reply = Callable[[Mapping[str, Any] | LogError], None]
_Content = tuple[list[bytes | memoryview], int]
"""Batches, and their number of records."""


@attrs.frozen
class _Looked:
    """Findings about one part."""

    is_there: bool = False
    """Whether the part is published."""
    content: _Content | None = None
    fault: str = ""
    """Reason why the stage can't be published."""


class Sinks:
    """All queries of a broker that publish by stages."""

    def __init__(
        self,
        table: LogTable,
        keeper: SinkKeeper,
        read: Callable[[Callable[[], Any], Callable[[Any], None]], None],
        *,
        now_ms: Callable[[], int],
        warn: Callable[..., object],
    ) -> None:
        """Take `read`, which calls its first argument in a thread that may wait for the disk, then the second with the
        result.
        """
        self._table = table
        self._keeper = keeper
        self._read = read
        self._now_ms = now_ms
        self._warn = warn
        self.states: dict[str, SinkState] = {}
        """States in the order of their last use."""
        self._commits: dict[str, _Commit] = {}
        """Commits under way."""
        self._dropping: set[str] = set()
        """Stages about to be deleted."""
        self._appended: dict[bytes, Log] = {}
        """Logs that hold or will hold parts of unfinished batches, by the parts' marks."""

    def restore(self, states: SequenceOf[SinkState]) -> None:
        """Restore the states of an earlier run and complete its intents."""
        for state in sorted(states, key=lambda state: state.used_ms):
            self.states[state.query] = state
            if state.intended >= 0:
                commit = self._commits[state.query] = _Commit(state, [])
                self._begin(commit)

    def arrive(self, states: SequenceOf[SinkState]) -> None:
        """Take the states of a shard that is opened while others serve. A batch that was begun is carried on when it is
        committed again: its logs may be in shards that are opened later.
        """
        for state in sorted(states, key=lambda state: state.used_ms):
            self._set(state)

    def leave(self, is_left: Callable[[str], bool]) -> None:
        """Forget the states of these queries: their shard is closed. Commits under way fail, and can be repeated."""
        for query in [query for query in self.states if is_left(query)]:
            commit = self._commits.get(query)
            if commit is not None:
                self._failed(commit, LogError("shard-away", f"the shard of query {query} is closed: commit it again"))
            del self.states[query]

    def describe(self, query: str) -> dict[str, Any]:
        """Return one query as plain data."""
        state = self.states.get(query, SinkState(query))
        return {"query": query, "batch": state.batch, "publishing": state.intended if state.intended >= 0 else None}

    def commit(self, query: str, batch: int, parts: SequenceOf[StagedPart], reply: Reply) -> None:
        """Publish a batch. Raises LogError for an invalid commit, with nothing done."""
        if len(query) > QUERY_LENGTH_MAX:
            raise LogError(
                INVALID_COMMIT, f"the name of a query of {len(query)} characters: {QUERY_LENGTH_MAX} at most"
            )
        state = self.states.get(query, SinkState(query))
        if batch <= state.batch:
            self.drop([part.stage for part in parts])
            reply({"batch": batch, "published": False})
            return
        under_way = self._commits.get(query)
        if under_way is not None:
            if batch != under_way.batch:
                raise LogError(INVALID_COMMIT, f"batch {under_way.batch} of {query} is being published: wait for it")
            under_way.replies.append(self._dropping_others(under_way.stages, parts, reply))
            return
        if state.intended >= 0:
            if batch != state.intended:
                raise LogError(INVALID_COMMIT, f"batch {state.intended} of {query} was begun: commit it again first")
            stages = {part.stage for part in state.parts}
            self._keep_and_begin(state, [self._dropping_others(stages, parts, reply)])
            return
        intended = attrs.evolve(state, intended=batch, parts=self._intended(parts), used_ms=self._now_ms())
        self._keeper.check(intended)
        self._keep_and_begin(intended, [reply])

    def _intended(self, parts: SequenceOf[StagedPart]) -> tuple[StagedPart, ...]:
        """Return the parts with positions and ids. Raises LogError."""
        if len(parts) > PARTS_MAX:
            raise LogError(INVALID_COMMIT, f"{len(parts)} parts in one commit: {PARTS_MAX} are possible")
        if len({part.stage for part in parts}) != len(parts):
            raise LogError(INVALID_COMMIT, "a stage is named twice in one commit")
        used = self._used()
        intended: list[StagedPart] = []
        stage_ids: list[str] = []
        for part in parts:
            if not part.stage.startswith(STAGE_PREFIX):
                raise LogError(INVALID_COMMIT, f"{part.stage[:80]!r} is no stage: its name begins with {STAGE_PREFIX}")
            if part.target.startswith(OWN_PREFIX):
                raise LogError(INVALID_COMMIT, f"{part.target[:80]!r} is the broker's own, and no target")
            if part.stage in used:
                raise LogError(INVALID_COMMIT, f"{part.stage[:80]!r} is being published by another query")
            stage = self._table.logs.get(part.stage)
            if stage is None or part.stage in self._dropping:
                raise self._table.no_log(part.stage)
            stage_ids.append(stage.log_id)
        targets: dict[str, tuple[int, str]] = {}
        for part, stage_id in zip(parts, stage_ids, strict=True):
            place = targets.get(part.target)
            if place is None:
                target = self._table.get(part.target)
                place = targets[part.target] = target.records.next_index, target.log_id
            intended.append(attrs.evolve(part, from_index=place[0], stage_id=stage_id, target_id=place[1]))
        return tuple(intended)

    def _dropping_others(self, stages: set[str], parts: SequenceOf[StagedPart], reply: Reply) -> Reply:
        """Return a `reply` that on success also drops the stages of `parts` that are not in `stages`."""

        def told(result: Mapping[str, Any] | LogError) -> None:
            if not isinstance(result, LogError):
                self.drop([part.stage for part in parts if part.stage not in stages])
            reply(result)

        return told

    def drop(self, stages: SequenceOf[str]) -> None:
        """Drop stages, except those of a commit that has begun; ignores names that do not exist."""
        used = self._used()
        doomed = [name for name in stages if name.startswith(STAGE_PREFIX) and name not in used]
        self._dropping.update(doomed)
        self._table.do_in_steps(self, self._removing(doomed))

    def _removing(self, stages: SequenceOf[str]) -> Iterator[None]:
        for name in stages:
            self._dropping.discard(name)
            log = self._table.logs.get(name)
            if log is not None:
                self._table.remove(log, _nobody)
            yield None
            yield None

    def abandon(self, log: Log) -> None:
        """Fail the commits that publish from or into a log closed after a fault of the broker, as their waiters for its
        disk get no answer. A repeated commit continues once the log is back.
        """
        name = log.name
        error = LogError(DESTINATION_FAILED, f"{name} was closed: the broker made a mistake with it")
        for commit in list(self._commits.values()):
            if any(name in (part.target, part.stage) for part in commit.state.parts):
                self._failed(commit, error)

    def drop_forgotten(self) -> None:
        """Drop stages without appends for a long time, and the queries beyond QUERIES_MAX."""
        before_ms = self._now_ms() - STAGE_SECONDS * 1000
        self.drop(
            [
                name
                for name, log in self._table.logs.items()
                if name.startswith(STAGE_PREFIX) and log.is_idle and log.records.last_timestamp_ms < before_ms
            ]
        )
        done = [
            state.query for state in self.states.values() if state.intended < 0 and state.query not in self._commits
        ]
        for query in done[: max(0, len(self.states) - QUERIES_MAX)]:
            del self.states[query]
            self._keeper.forget(query)

    def _used(self) -> set[str]:
        """Return the stages of all intents."""
        used = {part.stage for state in self.states.values() if state.intended >= 0 for part in state.parts}
        return used.union(*[commit.stages for commit in self._commits.values()])

    # ------------------------------------------------------------------ internals

    def _keep_and_begin(self, state: SinkState, replies: list[Reply]) -> None:
        """Save the intent, then begin. After a failed save it is unknown whether the intent is kept: it counts, but is
        saved again before anything is published.
        """
        self._set(state)
        commit = self._commits[state.query] = _Commit(state, replies)

        def kept(error: Exception | None) -> None:
            if error is not None:
                self._failed(commit, error)
            else:
                self._begin(commit)

        self._keeper.save(state, kept)

    def _set(self, state: SinkState) -> None:
        self.states.pop(state.query, None)
        self.states[state.query] = state

    def _begin(self, commit: _Commit) -> None:
        """Look at all parts, then publish them."""
        one_looked = Latch(len(commit.state.parts) + 1, partial(self._all_looked, commit))
        self._table.do_in_steps(
            commit, self._for_each(commit, partial(self._find_part, commit, done=one_looked), one_looked)
        )

    def _for_each(
        self, commit: _Commit, do: Callable[[int, StagedPart], None], done: Callable[[], None]
    ) -> Iterator[None]:
        """Call `do` for each part, in steps."""
        for place, part in enumerate(commit.state.parts):
            if self._commits.get(commit.query) is not commit:
                return  # it has failed
            do(place, part)
            yield
        done()

    def _find_part(self, commit: _Commit, place: int, part: StagedPart, done: Callable[[], None]) -> None:
        mark = marker(commit.query, commit.batch, place)
        appended_to = self._appended.get(mark)
        if appended_to is not None and not appended_to.closed:
            commit.looked[place] = _Looked(is_there=True)
            done()
            return
        try:
            target_log = self._table.get(part.target)
        except LogError as error:
            if error.code in UNREADABLE:  # the part may be in there
                commit.disk_error = error
            else:
                commit.looked[place] = _Looked(fault=str(error))
            done()
            return
        stage = self._table.logs.get(part.stage)
        records = None if stage is None or part.stage_id not in ("", stage.log_id) else stage.records
        target = target_log.records
        # A target made anew since has what was published from its beginning on.
        start = part.from_index if part.target_id in ("", target_log.log_id) else 0

        def look() -> _Looked:
            if is_there(target, start, mark):
                return _Looked(is_there=True)
            if records is None:
                return _Looked(fault=f"{part.stage} is gone before it was published in {part.target}")
            try:
                content = _batches_of(records, mark, target.batch_bytes_max, -1 if part.whole else part.count)
                if content[1] != part.count >= 0:
                    raise BatchError(f"it has {content[1]} records, and should have {part.count}")
                return _Looked(content=content)
            except (BatchError, MissingRecordsError) as error:
                return _Looked(fault=f"records staged in {part.stage} can't be published in {part.target}: {error}")

        def looked(result: _Looked | DiskError) -> None:
            if isinstance(result, DiskError):  # it may succeed another time
                commit.disk_error = result
            else:
                commit.looked[place] = result
            done()

        self._read(look, looked)

    def _all_looked(self, commit: _Commit) -> None:
        if self._commits.get(commit.query) is not commit:
            return  # a log of the commit was abandoned meanwhile
        if commit.disk_error is not None:
            self._failed(commit, commit.disk_error)
            return
        looked = commit.looked
        faults = [looked[place].fault for place in sorted(looked) if looked[place].fault]
        if faults:
            if any(each.is_there for each in looked.values()):
                self._failed(commit, LogError(INTERNAL_ERROR, f"a part of the batch is published, but {faults[0]}"))
            else:
                self._void(commit, LogError(COMMIT_VOID, f"{faults[0]}. Commit the batch anew, from other stages."))
            return
        one_done = Latch(len(looked) + 1, partial(self._all_published, commit))
        self._table.do_in_steps(
            commit, self._for_each(commit, partial(self._publish_part, commit, done=one_done), one_done)
        )

    def _publish_part(self, commit: _Commit, place: int, part: StagedPart, done: Callable[[], None]) -> None:
        found = commit.looked.pop(place)
        mark = marker(commit.query, commit.batch, place)
        if found.is_there:
            target = self._appended.get(mark) or self._table.logs.get(part.target)
            if target is None:
                done()  # deleted meanwhile, with what was published in it
            else:
                target.when_synced(done)
            return
        content = found.content
        if content is None or not content[0]:
            done()
            return
        try:
            target = self._table.get(part.target)
        except LogError as error:
            self._failed(commit, error)
            return
        self._appended[mark] = target
        target.append(*content)
        target.when_durable(lambda _how, _indexes: done(), synced=True)

    def _all_published(self, commit: _Commit) -> None:
        if self._commits.get(commit.query) is not commit:
            return  # likewise
        published = SinkState(commit.query, commit.batch, used_ms=self._now_ms())

        def noted(error: Exception | None) -> None:
            if error is not None:
                self._failed(commit, error)
                return
            self._end(commit, published)
            self.drop([part.stage for part in commit.state.parts])
            for reply in commit.replies:
                reply({"batch": commit.batch, "published": True})

        self._keeper.save(published, noted)

    def _void(self, commit: _Commit, error: LogError) -> None:
        """Undo an intent of which nothing is published, and nothing will be."""
        before = attrs.evolve(commit.state, intended=-1, parts=())

        def noted(fault: Exception | None) -> None:
            if fault is not None:
                self._failed(commit, fault)
                return
            self._end(commit, before)
            self._warn("a commit is abandoned", query=commit.query, batch=commit.batch, error=str(error))
            for reply in commit.replies:
                reply(error)

        self._keeper.save(before, noted)

    def _end(self, commit: _Commit, state: SinkState) -> None:
        for place in range(len(commit.state.parts)):
            self._appended.pop(marker(commit.query, commit.batch, place), None)
        self._set(state)
        del self._commits[commit.query]

    def _failed(self, commit: _Commit, error: Exception) -> None:
        """Report the failure; the next commit of the same batch continues from what is there."""
        if self._commits.get(commit.query) is not commit:
            return  # another part of the commit has failed before
        del self._commits[commit.query]
        self._warn("a commit can't be published", query=commit.query, batch=commit.batch, error=str(error))
        for reply in commit.replies:
            reply(error if isinstance(error, LogError) else LogError(INTERNAL_ERROR, str(error)))


class _Commit:
    """A commit under way."""

    __slots__ = ("disk_error", "looked", "replies", "state")

    def __init__(self, state: SinkState, replies: list[Reply]) -> None:
        self.state = state
        self.replies = replies
        self.looked: dict[int, _Looked] = {}
        self.disk_error: DiskError | LogError | None = None
        """Reason why a part can't be examined now."""

    @property
    def query(self) -> str:
        return self.state.query

    @property
    def batch(self) -> int:
        return self.state.intended

    @property
    def stages(self) -> set[str]:
        return {part.stage for part in self.state.parts}


def marker(query: str, batch: int, place: int) -> bytes:
    """Return the header line of the first batch of a part."""
    name = query.encode().hex()
    return COMMIT_HEADER + f":{name}/{batch}/{place}".encode()


def _batches_of(records: Records, mark: bytes, bytes_max: int, most: int) -> _Content:
    """Return the batches of a stage, the first with the mark: those of the first `most` records, or all (-1). Records
    lost in a power cut are passed over: they had no receipt, or never existed. Raises BatchError and
    MissingRecordsError for damaged or too large batches, DiskError.
    """
    batches: list[bytes | memoryview] = []
    index, end = records.first_index, records.next_index
    count = 0
    try:
        while index < end:
            try:
                part = read_here(records, partial(records.cut, index, end, CUT_BYTES))
            except MissingRecordsError as gone:
                if gone.reason != LOST:
                    raise
                index = gone.to_index
                continue
            for batch in split(part.data):
                if count == most:
                    return batches, count
                batch.verify()
                count += batch.count
                if not batches:
                    batches += fitting(marked(batch, mark), bytes_max)
                else:
                    batches += fitting(batch, bytes_max)
            index = part.end_index
    except IndexError:
        raise BatchError("it was removed meanwhile") from None
    return batches, count


def _nobody(_result: object) -> None:
    """Ignore the result: no request waits for it."""
