"""A broker on an engine that takes its time, and that can die at any write.

The worker stands for the two threads of the real one: writes in order, reads in order, each at its own pace in virtual
time; between the moment when the engine has done something and the moment when the broker hears of it, anything may
happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

import attrs
import pytest

import sluiceway.shard
from sluiceway.broker import Broker
from sluiceway.store.engine import Change, Engine, EngineError
from tests.store.faulty import FaultyEngine

T = TypeVar("T")


@attrs.frozen
class Pace:
    """How long the disk takes, in virtual seconds: mostly up to the first, sometimes up to the second."""

    usual_seconds: float = 0.005
    slow_seconds: float = 0.3
    slow_share: float = 0.02


class MortalEngine:
    """A FaultyEngine that dies at its n-th write, before or after that has happened."""

    def __init__(self, engine: FaultyEngine) -> None:
        self.engine = engine
        self.writes_left: int | None = None
        """How many writes it has left; None: no end."""
        self.dies_before = True
        self.die: Callable[[], None] = lambda: None

    def write(self, changes: Sequence[Change], *, sync: bool) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
        last = self.writes_left == 0
        if last and self.dies_before:
            self.die()
        self.engine.write(changes, sync=sync)
        if last and not self.dies_before:
            self.die()

    def get(self, key: bytes) -> bytes | None:
        return self.engine.get(key)

    def iterate(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.engine.iterate(start, stop, reverse=reverse)

    def iterate_keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        return self.engine.iterate_keys(start, stop)

    def size_bytes(self) -> int:
        return self.engine.size_bytes()

    def compact(self, start: bytes, stop: bytes) -> None:
        self.engine.compact(start, stop)

    def close(self) -> None:
        self.engine.close()


CallLater = Callable[[float, Callable[[], None]], object]
"""As of the dispatcher: after so many seconds, call this."""

Job = tuple[Callable[[], object], Callable[[Any], None]]
"""What to do, and whom to tell."""


class _Thread:
    """Does jobs in order, one at a time."""

    def __init__(self, call_later: CallLater, random: Random, pace: Pace) -> None:
        self._call_later = call_later
        self._random = random
        self._pace = pace
        self._jobs: deque[Job] = deque()
        self._busy = False
        self._applied = False
        self._result: object = None

    def put(self, job: Job) -> None:
        self._jobs.append(job)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        pace, random = self._pace, self._random
        most_seconds = pace.slow_seconds if random.random() < pace.slow_share else pace.usual_seconds
        seconds = random.random() * most_seconds
        before_seconds = random.random() * seconds
        self._busy = True
        self._applied = False

        def apply() -> None:
            if not self._applied and self._jobs:
                self._apply()
                self._call_later(seconds - before_seconds, self._finish)

        self._call_later(before_seconds, apply)

    def _apply(self) -> None:
        self._applied = True
        work, _done = self._jobs[0]
        try:
            self._result = work()
        except EngineError as error:
            self._result = error

    def _finish(self) -> None:
        if self._jobs:
            _work, done = self._jobs.popleft()
            self._busy = False
            done(self._result)
            if self._jobs and not self._busy:
                self._begin()

    def close(self) -> None:
        while self._jobs:
            if not self._applied:
                self._apply()
            self._applied = False
            self._jobs.popleft()


class SlowWorker:
    """In place of the threads of the store."""

    def __init__(self, engine: Engine, call_later: CallLater, random: Random, pace: Pace) -> None:
        self._engine = engine
        self._writer = _Thread(call_later, random, pace)
        self._reader = _Thread(call_later, random, pace)

    def write(self, changes: Sequence[Change], *, sync: bool, done: Callable[[EngineError | None], None]) -> None:
        self._writer.put((lambda: self._engine.write(changes, sync=sync), done))

    def read(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._reader.put((lambda: function(self._engine), done))

    def run(self, function: Callable[[Engine], T], done: Callable[[T | EngineError], None]) -> None:
        self._writer.put((lambda: function(self._engine), done))

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


class SlowDiskBroker(Broker):
    """A broker whose store works as slowly as it is told."""

    def __init__(self, *arguments: Any, random: Random, pace: Pace, engine: Engine, **options: Any) -> None:
        super().__init__(*arguments, engine=engine, **options)
        self._random = random
        self._pace = pace
        self._slow_engine = engine

    async def _open_shards(self) -> None:
        worker = SlowWorker(self._slow_engine, self.dispatcher.call_later, self._random, self._pace)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sluiceway.shard, "InlineWorker", lambda _engine, _schedule: worker)
            await super()._open_shards()
