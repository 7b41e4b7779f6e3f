"""Many histories of one function, and the smallest one that fails.

A history that fails is made smaller: it is played again without some of its faults, as long as it fails in the same
way, until no fault can be left out, or SMALLER_RUNS_MAX attempts are over.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import attrs

from sluiceway.simulation.faults import WATCH, Identity, Watch
from sluiceway.simulation.running import SECONDS_MAX, run

SMALLER_RUNS_MAX: Final = 100
LINES_MAX: Final = 60
"""Lines of a history that an error shows: the last ones."""


@attrs.frozen
class Played:
    """Histories that did not fail."""

    seeds_count: int
    injected: Counter[str]
    """Number of times that each fault came."""
    real_seconds: float

    def __str__(self) -> str:
        """Sum up in one line, for people."""
        faults = ", ".join(f"{what} {count}" for what, count in sorted(self.injected.items())) or "none"
        return f"{self.seeds_count} seeds in {self.real_seconds:.1f} s, none fails; faults: {faults}"


class SeedError(AssertionError):
    """A history fails. The text has the seed, the error and the smallest history; the cause is what was raised."""

    def __init__(self, name: str, seed: int, error: BaseException, history: list[str], counts: tuple[int, int]) -> None:
        left, all_count = counts
        lines = history[-LINES_MAX:]
        more = [f"  … {len(history) - len(lines)} lines before"] if len(lines) < len(history) else []
        super().__init__(
            "\n".join(
                [
                    f"seed {seed} fails: {type(error).__name__}: {error}",
                    f"the smallest history that does, with {left} of {all_count} faults:",
                    *more,
                    *(f"  {line}" for line in lines),
                    f"again: python -m sluiceway.simulation {name} --first {seed} --seeds 1",
                ]
            )
        )
        self.seed = seed
        self.history = history
        """Lines of the smallest history."""
        self.faults_count = left
        """Number of its faults."""


@attrs.define
class _Outcome:
    error: Exception | None
    happened: list[Identity]
    history: list[str]


def run_seeds(
    function: Callable[[int], Awaitable[object]],
    *,
    seeds: int | Iterable[int] = 200,
    first: int = 0,
    seconds_max: float = SECONDS_MAX,
) -> Played:
    """Run an async function with each seed; it makes its `Simulation` with that. `seeds`: how many, or which; `first`:
    the first one of so many; `seconds_max`: virtual time after which a history counts as stuck.

    Raises SeedError for the first seed that fails, with the smallest history that fails in the same way.
    """
    began_seconds = time.perf_counter()
    injected: Counter[str] = Counter()
    played_count = 0
    for seed in range(first, first + seeds) if isinstance(seeds, int) else seeds:
        outcome = _play(function, seed, frozenset(), seconds_max)
        played_count += 1
        injected.update(what for _name, what, _number in outcome.happened)
        if outcome.error is not None:
            least = _smallest(function, seed, outcome, seconds_max)
            error = _leaf(least.error)
            assert error is not None
            counts = len(least.happened), len(outcome.happened)
            raise SeedError(_name_of(function), seed, error, least.history, counts) from error
    return Played(played_count, injected, time.perf_counter() - began_seconds)


def _name_of(function: Callable[..., object]) -> str:
    module = sys.modules.get(function.__module__)
    spec = getattr(module, "__spec__", None)  # of what `python -m` runs, too, which is called __main__
    return f"{function.__module__ if spec is None else spec.name}:{getattr(function, '__qualname__', function)}"


def _play(
    function: Callable[[int], Awaitable[object]], seed: int, spared: frozenset[Identity], seconds_max: float
) -> _Outcome:
    watch = Watch(spared)
    token = WATCH.set(watch)
    error: Exception | None = None
    try:
        run(function, seed, seed=seed, seconds_max=seconds_max)
    except Exception as raised:  # noqa: BLE001 - it is what the caller looks for
        error = raised
    finally:
        WATCH.reset(token)
    return _Outcome(error, watch.happened, watch.history)


def _leaf(error: BaseException | None) -> BaseException | None:
    """Return what was raised, out of the groups that nurseries put around it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _smallest(
    function: Callable[[int], Awaitable[object]], seed: int, failing: _Outcome, seconds_max: float
) -> _Outcome:
    """Return the failing history with the fewest faults that is found."""
    least, spared = failing, frozenset[Identity]()
    size = len(least.happened)
    runs_left = SMALLER_RUNS_MAX
    while size:
        at = 0
        while at < len(least.happened) and runs_left:
            attempt = spared | set(least.happened[at : at + size])
            runs_left -= 1
            outcome = _play(function, seed, attempt, seconds_max)
            fails_so = outcome.error is not None and type(_leaf(outcome.error)) is type(_leaf(failing.error))
            if fails_so and len(outcome.happened) < len(least.happened):
                least, spared = outcome, attempt
            else:
                at += size
        size = min(size, len(least.happened)) // 2
    return least
