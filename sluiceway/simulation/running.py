"""One history from beginning to end: virtual time, and all chance of the process from one seed."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import trio
from trio.testing import MockClock

from sluiceway.queues.selectors.grammar import prepare

SECONDS_MAX: Final = 3_600.0
"""Virtual time after which a history counts as stuck."""

T = TypeVar("T")


def run(
    function: Callable[..., Awaitable[T]], *arguments: object, seed: int = 0, seconds_max: float = SECONDS_MAX
) -> T:
    """Run an async function to its end in virtual time, and return its result.

    Meanwhile the order of tasks and all chance of this process come from the seed: `random`, `secrets`, `os.urandom`,
    `uuid.uuid4`. So no other thread should make secrets then.

    Raises what the function raises, and TimeoutError after `seconds_max` of virtual time: it waits for something that
    does not come.
    """

    async def main() -> T:
        with trio.move_on_after(seconds_max):
            return await function(*arguments)
        raise TimeoutError(
            f"not at its end after {seconds_max:g} s of virtual time: it waits for something that does not come, or "
            "needs a larger seconds_max"
        )

    prepare()  # else a thread does so with the first selector, and virtual time would jump meanwhile
    with _chance_from(seed):
        return trio.run(main, clock=MockClock(autojump_threshold=0))


@contextmanager
def _chance_from(seed: int) -> Iterator[None]:
    """Have a seed decide what chance decides."""
    source = random.Random(f"sluiceway {seed}")
    trio_run: Any = trio._core._run
    random_module: Any = random
    before = random.getstate(), trio_run._r.getstate(), os.urandom, random_module._urandom
    is_sorted = trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # pytest-trio and hypothesis do the same
    random.seed(source.random())
    trio_run._r.seed(source.random())
    os.urandom = random_module._urandom = source.randbytes
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = is_sorted
        os.urandom, random_module._urandom = before[2:]
        trio_run._r.setstate(before[1])
        random.setstate(before[0])
