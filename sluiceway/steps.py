"""Work in steps that block no other task: state of ten thousand things, and its JSON.

A step is the work of a generator between two yields: microseconds. `StepPace.run` does as many as fit into
STEP_SECONDS, then lets all other tasks run, the dispatcher first of all. While messages are going it also rests for
REST times as long as it worked: so an expensive answer takes longer, not more of the time.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import trio

from sluiceway.flow.graph import Steps

T = TypeVar("T")

SHARE: Final = 0.1
"""Share of the time that goes into making answers of one kind, at most, however many ask."""

STEP_SECONDS: Final = 0.001
"""Time of one go; its last step may go beyond."""

REST: Final = 4
"""Ratio of rest to work while the dispatcher works: the steps take a fifth of the time at most."""

ITEMS_PER_STEP: Final = 8
"""Items of a list that are written as JSON in one step; they are small dictionaries, mostly."""


def rest_seconds(worked_seconds: float) -> float:
    """Return for how long the next answer is not made after one that took `worked_seconds`."""
    return worked_seconds * (1 - SHARE) / SHARE


class StepPace:
    """Paces the steps of answers. Each part that makes answers has its own."""

    __slots__ = ("_clock", "_turns", "worked_seconds")

    def __init__(self, turns: Callable[[], int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`turns`: a number that grows while messages are dispatched; `clock`: seconds of this machine, because it
        measures work.
        """
        self._turns = turns
        self._clock = clock
        self.worked_seconds = 0.0
        """Time spent in steps since the start."""

    async def run(self, steps: Steps[T]) -> T:
        """Run to the end; returns the result. Cancelled in between, the steps are closed. Always a checkpoint."""
        clock = self._clock
        try:
            while True:
                turns = self._turns()
                began = clock()
                until = began + STEP_SECONDS
                try:
                    next(steps)
                    while clock() < until:
                        next(steps)
                except StopIteration as end:
                    result: T = end.value
                    self.worked_seconds += clock() - began
                    await trio.lowlevel.checkpoint()
                    return result
                worked = clock() - began
                self.worked_seconds += worked
                await trio.lowlevel.checkpoint()
                if self._turns() != turns:
                    await trio.sleep(worked * REST)
        finally:
            steps.close()


def each(items: Iterable[Any], make: Callable[[Any], T]) -> Steps[list[T]]:
    """`[make(item) for item in items]`, in steps."""
    made = []
    for item in items:
        yield
        made.append(make(item))
    return made


def json_in_steps(value: Any) -> Steps[bytes]:
    """A value as JSON, its lists a few items at a time. Infinity is null, bytes are base64."""
    parts: list[str] = []
    yield from _write(value, parts)
    return "".join(parts).encode("utf-8", "surrogatepass")


def _write(value: Any, parts: list[str]) -> Steps[None]:
    if isinstance(value, Mapping):
        separator = "{"
        for key, item in value.items():
            parts.append(f"{separator}{json.dumps(str(key))}:")
            separator = ","
            if isinstance(item, list | tuple | Mapping):
                yield from _write(item, parts)
            else:
                parts.append(_dump(item))
        parts.append("}" if separator == "," else "{}")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for start in range(0, len(value), ITEMS_PER_STEP):
            yield
            items = value[start : start + ITEMS_PER_STEP]
            if any(map(_is_deep, items)):
                for place, item in enumerate(items, start):
                    if place:
                        parts.append(",")
                    yield from _write(item, parts)
                continue
            written = _dump(items)[1:-1]
            parts.append(written if not start else f",{written}")
        parts.append("]")
    else:
        parts.append(_dump(value))
    yield


def read_json(body: bytes | bytearray) -> Any:
    """Parse the JSON of a peer; an empty body is an empty object. Raises ValueError for invalid JSON, for numbers that
    JSON does not have, and for texts that can't be written as UTF-8.
    """
    if not body.strip():
        return {}
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
        if b"\\ud" in body.lower():  # a lone surrogate?
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _is_deep(item: Any) -> bool:
    """Whether the item holds a long list."""
    if isinstance(item, Mapping):
        return any(isinstance(value, list | tuple | Mapping) and len(value) > ITEMS_PER_STEP for value in item.values())
    return isinstance(item, list | tuple) and len(item) > ITEMS_PER_STEP


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain)
    except ValueError:
        return json.dumps(finite(value), separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode()
    return str(value)


def finite(value: Any) -> Any:
    """The same without infinities, which JSON does not have: None in their place."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
