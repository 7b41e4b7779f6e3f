"""Threads for disk access, so that the dispatch loop never waits for it.

A `Job` is blocking work and a callback for its result. A `Runner` does jobs one after the other, in the order in which
they were given: an `IoThread`, or, for tests in virtual time and for engines that never block, the dispatch loop itself
(`InlineRunner`). Results are handed over on the dispatch loop; an error that no caller expects is a bug, and is raised
there, not in a thread that no code watches.

Work of different kinds has threads of its own: a write that is synced takes milliseconds, and a reader that catches up
with a backlog must not wait behind each of them (so a `Worker` of an engine has two); a body of gigabytes must hold up
neither the dispatch loop nor the group commits of the store.

Memory that is short for a moment fails a read like the disk: nothing was changed, so it may be asked for again. Writing
is left to the code that knows what a half of it leaves behind: engines, and the functions that `Worker.run` is given.

Invariant: when its result is handed over, a job refers to nothing any more. So no object that a callback refers to is
destroyed in a thread.

Bound: set by the callers. The store has one write under way at a time, and each cursor waits for a few blocks at most;
a limiter bounds bodies that are to be written, and each body that is read has one piece at a time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from ..dispatcher import DispatcherClosedError
from ..queues.large import BodyError
from .engine import Change, Engine, EngineError, EngineFailedError

T = TypeVar("T")

WRITERS_COUNT: Final = 4
READERS_COUNT: Final = 2

NO_MEMORY: Final = "there is not enough memory for it now. Give the broker more, or less to do."


class Job:
    """Work that blocks, and the callback that gets its result."""

    __slots__ = ("_done", "_expected", "_fault", "_no_memory", "_result", "_work")

    def __init__(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        *,
        expected: type[Exception] = BodyError,
        no_memory: type[Exception] | None = BodyError,
    ) -> None:
        """`work` runs in a thread; `done` is called on the loop with its result (a returned error is a result like any
        other), or with the error of the `expected` kind that it raised. `no_memory`: the kind of error that `done` gets
        if there is not enough memory; None: that is raised on the loop.
        """
        self._work: Callable[[], Any] | None = work
        self._done: Callable[[Any], None] | None = done
        self._expected = expected
        self._no_memory = no_memory
        self._result: Any = None
        self._fault: Exception | None = None

    def run(self) -> None:
        """Do the work. Never raises; `tell` raises errors that are not expected."""
        work, self._work = self._work, None
        assert work is not None, "a job runs once"
        try:
            self._result = work()
        except Exception as error:  # noqa: BLE001 - raised on the loop, where it ends the broker
            if isinstance(error, MemoryError) and self._no_memory is not None:
                self._result = self._no_memory(NO_MEMORY)
            elif isinstance(error, self._expected):
                # Without the frames that it passed through: they hold pieces, and the caller.
                error.__traceback__ = error.__cause__ = error.__context__ = None
                self._result = error
            else:
                self._fault = error

    def tell(self) -> None:
        """Hand the result over, on the loop. Raises an error that was not expected: a bug."""
        done, self._done = self._done, None
        result, self._result = self._result, None
        fault, self._fault = self._fault, None
        assert done is not None, "a result is handed over once"
        if fault is not None:
            raise fault
        done(result)


class Runner(Protocol):
    """Does jobs one after the other."""

    def put(self, job: Job) -> None:
        """Do `job` after those that were put before. From any thread, never waits; ignored once closed."""

    def close(self) -> None:
        """Finish the jobs that were put, then stop; waits for that."""


class IoThread:
    """A runner with a thread, which starts with the first job: most brokers never see a large body."""

    def __init__(self, name: str, submit: Callable[[Callable[[], None]], None]) -> None:
        """`submit` takes a callback from any thread and runs it on the loop. Raises DispatcherClosedError when the loop
        has ended.
        """
        self._name = name
        self._submit = submit
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # `put` may be re-entered, by a `__del__`
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the thread takes no jobs any more."""
        return self._closed

    def put(self, job: Job) -> None:
        if self._closed:
            return
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            try:
                self._submit(job.tell)
            except DispatcherClosedError:
                continue  # no caller is left to be told; the jobs that were put are still done


class ThreadShare:
    """A runner that shares its thread with others, and closes without it."""

    def __init__(self, thread: IoThread) -> None:
        self._thread = thread
        self._used = self._closed = False

    def put(self, job: Job) -> None:
        if not self._closed:
            self._used = True
            self._thread.put(job)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._used and not self._thread.closed:
            done = threading.Event()
            self._thread.put(Job(done.set, _ignore))
            done.wait()


def _ignore(_result: object) -> None:
    """Do nothing: the job told itself."""


class InlineRunner:
    """A runner without a thread: a job is done when `schedule` comes round to it."""

    def __init__(self, schedule: Callable[[Callable[[], None]], None]) -> None:
        """`schedule` runs a callback soon, on the loop; never at once."""
        self._schedule = schedule
        self._jobs: deque[Job] = deque()
        self._closed = False

    def put(self, job: Job) -> None:
        if not self._closed:
            self._jobs.append(job)
            self._schedule(self._run_one)

    def close(self) -> None:
        self._closed = True
        while self._jobs:
            self._run_one()

    def _run_one(self) -> None:
        if self._jobs:
            job = self._jobs.popleft()
            job.run()
            job.tell()


class Worker(Protocol):
    """Calls an engine elsewhere."""

    def write(self, changes: Sequence[Change], *, sync: bool, done: Callable[[EngineError | None], None]) -> None:
        """Write this batch; `done` is called on the loop, with the error if there was one."""

    def read(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        """Call a function that only reads from the engine; `done` is called on the loop, with the result or the error
        (EngineFailedError too where memory is short: it may be asked for again).
        """

    def run(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        """Call a function that reads, decides and writes, in order with the writes. Exceptions other than EngineError
        are raised on the loop.
        """

    def close(self) -> None:
        """Finish the calls that were asked for, then stop; waits for that. The engine stays open."""


class EngineWorker:
    """Satisfies Worker: calls an engine by way of two runners."""

    def __init__(self, engine: Engine, writer: Runner, reader: Runner) -> None:
        self._engine = engine
        self._writer = writer
        self._reader = reader

    def write(self, changes: Sequence[Change], *, sync: bool, done: Callable[[EngineError | None], None]) -> None:
        def work() -> None:
            self._engine.write(changes, sync=sync)

        self._writer.put(Job(work, done, expected=EngineError, no_memory=None))

    def read(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        job = Job(lambda: function(self._engine), done, expected=EngineError, no_memory=EngineFailedError)
        self._reader.put(job)

    def run(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._writer.put(Job(lambda: function(self._engine), done, expected=EngineError, no_memory=None))

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class ThreadWorker(EngineWorker):
    """A worker with two threads: one writes, one reads."""

    def __init__(self, engine: Engine, submit: Callable[[Callable[[], None]], None]) -> None:
        """`submit`: see IoThread."""
        writer, reader = (IoThread(f"sluiceway store {what}", submit) for what in ("writer", "reader"))
        super().__init__(engine, writer, reader)


class StoreThreads:
    """Threads that the stores of one process share: few, for most stores are idle at most times."""

    def __init__(self, submit: Callable[[Callable[[], None]], None]) -> None:
        """`submit`: see IoThread."""

        def threads(what: str, count: int) -> list[IoThread]:
            return [IoThread(f"sluiceway {what} {number}", submit) for number in range(1, count + 1)]

        self._writers = threads("store writer", WRITERS_COUNT)
        self._readers = threads("store reader", READERS_COUNT)
        self._bodies = threads("bodies writer", 1), threads("bodies reader", 1)

    def worker(self, engine: Engine, shard: int) -> Worker:
        """Return a worker for the engine of a shard."""
        writer, reader = self._writers[shard % WRITERS_COUNT], self._readers[shard % READERS_COUNT]
        return EngineWorker(engine, ThreadShare(writer), ThreadShare(reader))

    def bodies(self) -> tuple[Runner, Runner]:
        """Return a writer and a reader for the large bodies of a shard."""
        (writer,), (reader,) = self._bodies
        return ThreadShare(writer), ThreadShare(reader)

    def close(self) -> None:
        """Finish the jobs that were given, then stop; waits for that."""
        for thread in (*self._writers, *self._readers, *self._bodies[0], *self._bodies[1]):
            thread.close()


class InlineWorker(EngineWorker):
    """A worker on the loop itself, in order."""

    def __init__(self, engine: Engine, schedule: Callable[[Callable[[], None]], None]) -> None:
        """`schedule`: see InlineRunner."""
        runner = InlineRunner(schedule)
        super().__init__(engine, runner, runner)
