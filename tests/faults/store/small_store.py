"""Blocks of a few elements, batches of some kilobytes, leases of a few messages: so that a handful of them meets what
else takes millions. And a trio in which chance is ours, so that a seed says all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")

_ELSEWHERE: Final = ("sluiceway.protocols", "sluiceway.flow", "sluiceway.dispatcher")
"""What of the product keeps its values: ledgers count in whole blocks of the real size."""


@contextmanager
def constants(values: Mapping[str, int]) -> Iterator[None]:
    """The modules of queues, store and broker see these values under these names, until the end of the block."""
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith("sluiceway.") and not name.startswith(_ELSEWHERE):
            for constant, value in values.items():
                if constant in vars(module):
                    changed.append((module, constant, vars(module)[constant]))
                    setattr(module, constant, value)
    try:
        yield
    finally:
        for module, constant, value in changed:
            setattr(module, constant, value)


def small(block_bits: int, *, lease_blocks: int = 4, batch_bytes: int = 8_192) -> dict[str, int]:
    """Values for `constants`: blocks of `1 << block_bits` elements, leases of so many blocks."""
    return {
        "BLOCK_BITS": block_bits,
        "BLOCK_SIZE": 1 << block_bits,
        "LEASE_COUNT": lease_blocks << block_bits,
        "BATCH_BYTES": batch_bytes,
        "NUMBERS_AHEAD": 4_096,
    }


@contextmanager
def repeatable_trio(random: Random) -> Iterator[None]:
    """Tasks run in an order that this decides, and what should run in threads runs at once: in the block a program in
    virtual time does the same whenever `random` does.
    """
    runner: Any = trio._core._run
    before = runner._ALLOW_DETERMINISTIC_SCHEDULING, runner._r, trio.to_thread.run_sync
    runner._ALLOW_DETERMINISTIC_SCHEDULING = True
    runner._r = Random(random.random())
    trio.to_thread.run_sync = _run_here  # type: ignore[assignment]
    try:
        yield
    finally:
        runner._ALLOW_DETERMINISTIC_SCHEDULING, runner._r, trio.to_thread.run_sync = before


async def _run_here(function: Callable[..., T], *arguments: Any, **_options: Any) -> T:
    await trio.lowlevel.checkpoint()
    return function(*arguments)
