"""Settings of the dispatcher, one frozen object."""

from __future__ import annotations

from typing import TypeVar

import attrs

_Number = TypeVar("_Number", int, float)


def _setting(default: _Number, unit: str, doc: str) -> _Number:
    setting: _Number = attrs.field(default=default, validator=_positive, metadata={"unit": unit, "doc": doc})
    return setting


def _positive(_instance: object, attribute: attrs.Attribute[_Number], value: _Number) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be above 0, got {value}")


@attrs.frozen
class DispatcherConfig:
    """Amount of work before other contexts get a turn. Larger values favour throughput, smaller ones latency."""

    budget_count: int = _setting(
        1024,
        "count",
        "Messages that one dispatch may move before it must return. The default keeps one dispatch near 3 ms (at some "
        "400,000 messages/s) and still makes the cost of the switch vanish; smaller lets other queues in sooner.",
    )
    dispatches_per_turn_count: int = _setting(
        128,
        "count",
        "Dispatches in one turn before outbound buffers are flushed and sockets are served. Serving sockets costs as "
        "much as some 20 dispatches that move nothing; the default spends an eighth on it then, and next to nothing "
        "when dispatches move messages.",
    )
    turn_seconds: float = _setting(
        0.005,
        "seconds",
        "Time after which a turn ends, checked between dispatches. The default is about the time in which a fast peer "
        "fills a kernel socket buffer of 200 KiB; longer turns make bigger writes, and idle sockets wait longer.",
    )
    lower_share_interval_count: int = _setting(
        20,
        "count",
        "After this many dispatches that skipped a waiting lower priority, one goes to a lower one (in rotation). The "
        "default leaves 95 % to the highest priority, so that priority means something, and the lowest waits for 180 "
        "dispatches at most; 1 gives every dispatch away as long as lower ones wait.",
    )
    turn_end_rounds_count: int = _setting(
        4,
        "count",
        "How often the end of a turn looks again for callbacks that its own callbacks added. A flush that closes a "
        "connection that flushes another is two; the rest waits for the next turn, so a cycle can't hold the loop.",
    )
