"""Threads that read and write the files of large bodies; in tests the dispatch loop itself.

Threads of their own, one that writes and one that reads: a body of gigabytes must hold up neither the dispatch loop nor
the group commits of the store, and a reader must not wait behind a write that is synced. Within each, jobs run in the
order in which they were given; the result of a job is handed over on the dispatch loop.

Invariant: when its result is handed over, a job refers to nothing any more. So no object that a callback refers to is
destroyed in a thread.

Bound: set by the callers (a limiter for what is to be written, one piece at a time for each body that is read).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from ..dispatcher import DispatcherClosedError
from ..queues.large import BodyError


class Job:
    """Something that blocks, and whom to tell."""

    __slots__ = ("_done", "_fault", "_result", "_work")

    def __init__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """`work` runs elsewhere; `done` gets on the loop what it returned (an error that it returns is a result like
        any other), or the BodyError that it raised; one, too, if there is not enough memory.
        """
        self._work: Callable[[], Any] | None = work
        self._done: Callable[[Any], None] | None = done
        self._result: Any = None
        self._fault: Exception | None = None

    def run(self) -> None:
        """Do it. Never raises; what is neither a BodyError nor a lack of memory is raised by `tell`."""
        work, self._work = self._work, None
        assert work is not None, "a job runs once"
        try:
            self._result = work()
        except BodyError as error:
            # Without the frames that it passed through: they hold pieces, and whoever called.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            self._result = error
        except MemoryError:
            self._result = BodyError("there is not enough memory for it now. Give the broker more, or less to do.")
        except Exception as error:  # noqa: BLE001 - raised on the loop, where it ends the broker
            self._fault = error

    def tell(self) -> None:
        """On the loop: what became of it. Raises what was a bug of ours."""
        done, self._done = self._done, None
        result, self._result = self._result, None
        fault, self._fault = self._fault, None
        assert done is not None, "a job is told of once"
        if fault is not None:
            raise fault
        done(result)


class Runner(Protocol):
    """Does jobs one after the other."""

    def put(self, job: Job) -> None:
        """Do this after those that were put before. From any thread, never waits; ignored once closed."""

    def close(self) -> None:
        """Finish what was put, then stop; waits for it."""


class BodyThread:
    """The real one. The thread is started with the first job: most brokers never see a large body."""

    def __init__(self, name: str, submit: Callable[[Callable[[], None]], None]) -> None:
        """`submit` takes a callback from any thread and runs it on the loop. Raises DispatcherClosedError when that has
        ended.
        """
        self._name = name
        self._submit = submit
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # its `put` may be interrupted by itself: see __del__s
        self._thread: threading.Thread | None = None
        self._closed = False

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
                # Nobody is there to be told any more; what was put is still done.
                continue


class InlineRunner:
    """Without a thread, for tests in virtual time: a job is done when `schedule` comes round to it."""

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
