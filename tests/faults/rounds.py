"""Rounds that a seed decides: how one is played, in virtual time or with real processes, and the command lines that
play many of them. One that fails says the command that plays it again.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, TypeVar

import structlog
import trio
from trio.testing import MockClock

from tests.faults.store.small_store import constants, repeatable_trio

PATIENCE_SECONDS: Final = 600.0
"""Virtual. Whoever waits longer waits for ever."""
STUCK_SECONDS: Final = 30
"""Of computing, for one round of a command line."""


class VirtualRound(Protocol):
    """One that `play` plays."""

    @property
    def story(self) -> list[str]:
        """How its lives ended."""

    async def run(self) -> None:
        """Raises what went wrong."""


class KillRound(Protocol):
    """One that `play_with_processes` plays."""

    async def run(self) -> None:
        """Raises what went wrong."""


V = TypeVar("V", bound=VirtualRound)
K = TypeVar("K", bound=KillRound)
R = TypeVar("R")


def play(module: str, seed: int, random: Random, make: Callable[[], V], *, sizes: Mapping[str, int]) -> V:
    """The round that `make` makes, in virtual time. Raises what went wrong, with the command that shows it again.

    `random` is all the chance there is in it; `sizes` are values for `constants`.
    """
    played: list[V] = []

    async def main() -> None:
        played.append(make())
        await played[0].run()

    with constants(sizes), repeatable_trio(random):
        try:
            trio.run(main, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            story = "; ".join(played[0].story) if played else ""
            error.add_note(f"again: python -m {module} --seed {seed}    (lives: {story})")
            raise
    return played[0]


def play_with_processes(module: str, seed: int, folder: Path, played: K) -> K:
    """A round in this folder, in real time. Raises what went wrong, with the command that tries again."""
    try:
        trio.run(played.run)
    except BaseException as error:
        error.add_note(f"the folder is {folder}; again: python -m {module} --from {seed} --rounds 1")
        raise
    return played


# ---------------------------------------------------------------------- command lines


def play_many(
    module: str,
    doc: str | None,
    run_round: Callable[[int], R],
    told: Callable[[R], Iterable[str]],
    arguments: Sequence[str] | None = None,
    *,
    rounds_count: int = 1000,
) -> int:
    """The command line of rounds in virtual time.

    `told` says what one round did, in lines; `rounds_count` of them are played if nothing else is said. Returns the
    code to exit with.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    parser.add_argument("--seed", type=int, help="one round, with what the broker logged")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=rounds_count)
    options = parser.parse_args(arguments)
    if options.seed is not None:
        print("\n".join(told(run_round(options.seed))))
        return 0
    structlog.configure(processors=[_drop])
    signal.signal(signal.SIGVTALRM, _alarm)
    failed = 0
    started = time.monotonic()
    for seed in range(options.first, options.first + options.rounds):
        signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_SECONDS)
        try:
            run_round(seed)
        except Exception as error:  # noqa: BLE001 - counted, and shown with its seed
            failed += 1
            print(f"seed {seed}: {_leaf(error)}", flush=True)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(f"{options.rounds} rounds, {failed} failed, {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


def kill_many(
    module: str,
    doc: str | None,
    run_round: Callable[..., R],
    told: Callable[[R], str],
    arguments: Sequence[str] | None = None,
    *,
    kills_count: int,
) -> int:
    """The command line of rounds with real processes: each in a folder of its own, which stays if the round fails.

    `kills_count` kills a round if nothing else is said. Returns the code to exit with.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=kills_count, help="of each round")
    options = parser.parse_args(arguments)
    for seed in range(options.first, options.first + options.rounds):
        folder = Path(tempfile.mkdtemp(prefix=f"sluiceway-kill-{seed}-"))
        played = run_round(folder, seed, kills_count=options.kills)
        shutil.rmtree(folder)
        print(f"round {seed}: {options.kills} kills, {told(played)}", flush=True)
    return 0


def _leaf(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    place = f"{where.tb_frame.f_code.co_filename.rsplit('/', 2)[-1]}:{where.tb_lineno}" if where else ""
    return f"{type(error).__name__} {place} {str(error).partition(chr(10))[0][:300]}"


def _alarm(_number: int, _frame: object) -> None:
    raise TimeoutError(f"the round takes more than {STUCK_SECONDS} seconds: somebody runs in circles")


def _drop(_logger: object, _method: str, _event: object) -> Any:
    raise structlog.DropEvent
