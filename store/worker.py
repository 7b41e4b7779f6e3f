"""Threads that touch the disk, so that the dispatch loop never waits for it: one writes, one reads.

Reads have a thread of their own because a write that is synced takes milliseconds, and a reader that catches up with a
backlog must not wait behind each of them. Within each thread jobs run in the order in which they were given. Answers
are callbacks, run on the dispatch loop; whatever a job raises that is not an EngineError is a bug, and is raised there,
not in a thread that no code watches.

Memory that is short for a moment fails a read like the disk: nothing was changed, so it may be asked for again. Writing
is left to the code that knows what a half of it leaves behind: engines, and the functions that `run` is given.

Bound: the store has one write under way at a time, and each cursor waits for a few blocks at most.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, TypeVar

from ..dispatcher import DispatcherClosedError
from .engine import Change, Engine, EngineError, EngineFailedError

T = TypeVar("T")

Job = Callable[[], Callable[[], None]]
"""Runs in the thread; returns what is to run on the loop."""


class Worker(Protocol):
    """Does what blocks, elsewhere."""

    def write(self, changes: Sequence[Change], *, sync: bool, done: Callable[[EngineError | None], None]) -> None:
        """Write this batch; `done` is called on the loop, with what went wrong."""

    def read(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        """Call this with the engine, which it changes nothing of; `done` is called on the loop, with what it returned
        or what went wrong (EngineFailedError too where memory is short: it may be asked for again).
        """

    def run(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        """Run a function that reads, decides and writes, in order with the writes. Exceptions other than EngineError
        are raised on the loop.
        """

    def close(self) -> None:
        """Finish what was given, then stop; waits for it. The engine stays open."""


def _write(
    engine: Engine, changes: Sequence[Change], sync: bool, done: Callable[[EngineError | None], None]
) -> Callable[[], None]:
    error: EngineError | None = None
    try:
        engine.write(changes, sync=sync)
    except EngineError as raised:
        error = raised
    return lambda: done(error)


def _run(
    engine: Engine, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]
) -> Callable[[], None]:
    result: T | EngineError
    try:
        result = function(engine)
    except EngineError as raised:
        result = raised
    return lambda: done(result)


def _read(
    engine: Engine, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]
) -> Callable[[], None]:
    try:
        return _run(engine, function, done)
    except MemoryError:
        failed = EngineFailedError("there is not enough memory to read it now. Give the broker more, or less to do.")
    return lambda: done(failed)


class ThreadWorker:
    """The real one."""

    def __init__(self, engine: Engine, submit: Callable[[Callable[[], None]], None]) -> None:
        """`submit` takes a callback from any thread and runs it on the loop."""
        self._engine = engine
        self._submit = submit
        self._writes: SimpleQueue[Job | None] = SimpleQueue()
        self._reads: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(jobs,), name=name, daemon=True)
            for name, jobs in (("sluiceway store writer", self._writes), ("sluiceway store reader", self._reads))
        ]
        for thread in self._threads:
            thread.start()

    def write(self, changes: Sequence[Change], *, sync: bool, done: Callable[[EngineError | None], None]) -> None:
        self._writes.put(lambda: _write(self._engine, changes, sync, done))

    def read(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._reads.put(lambda: _read(self._engine, function, done))

    def run(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._writes.put(lambda: _run(self._engine, function, done))

    def close(self) -> None:
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, jobs: SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            try:
                answer = job()
            except Exception as error:  # noqa: BLE001 - raised on the loop, where it ends the broker
                answer = _raiser(error)
            try:
                self._submit(answer)
            except DispatcherClosedError:
                continue  # nobody is there to be told any more; what was given is still done


def _raiser(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


class InlineWorker:
    """Without threads, for tests and for engines that never block: a job is done when `schedule` comes round to it, in
    order.
    """

    def __init__(self, engine: Engine, schedule: Callable[[Callable[[], None]], None]) -> None:
        """`schedule` runs a callback soon, on the loop; never at once."""
        self._engine = engine
        self._schedule = schedule
        self._jobs: deque[Job] = deque()

    def write(self, changes: Sequence[Change], *, sync: bool, done: Callable[[EngineError | None], None]) -> None:
        self._put(lambda: _write(self._engine, changes, sync, done))

    def read(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._put(lambda: _read(self._engine, function, done))

    def run(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._put(lambda: _run(self._engine, function, done))

    def _put(self, job: Job) -> None:
        self._jobs.append(job)
        self._schedule(self._run_one)

    def _run_one(self) -> None:
        if self._jobs:
            self._jobs.popleft()()()

    def close(self) -> None:
        while self._jobs:
            self._run_one()
