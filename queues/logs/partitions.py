"""Partitions of a log: with `log_partitions` the log `/log/NAME` is `/log/NAME/0`, `/log/NAME/1` and so on, each a log
with indexes, groups, retention and producers of its own.

The key of a SEND decides: CRC-32 of its bytes modulo the number of partitions, the function by which queues are divided
(`queues/parts.py`), and by which the Python client and Spark choose among brokers. A SEND without a key goes to any,
all of them equally often; one that names its producer to the same one each time, where a repetition is known.

Nothing is kept: the settings say which logs have partitions.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Final
from zlib import crc32

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key, from 0 on."""
    return crc32(key) % count


def key_in(head: Any) -> bytes | None:
    """Return the key of a SEND: its header `key`, `key-base64` or `group`. None: it has none."""
    key: str | None = head.header("key")
    if key:
        return key.encode("utf-8", "surrogatepass")
    in_base64: str | None = head.header("key-base64")
    if in_base64:
        try:
            return base64.b64decode(in_base64, validate=True)
        except ValueError:  # also for a character that is none of ASCII, which is no binascii.Error
            return in_base64.encode("utf-8", "surrogatepass")
    return str(head.group).encode("utf-8", "surrogatepass") if head.group else None


class Turns:
    """Choice of partitions for what has no key, all of them equally often."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = 0

    def next(self, count: int) -> int:
        """Return a number below `count`."""
        # A linear congruential generator, as in Numerical Recipes: its high bits are even also for one that asks twice
        # each time, which of a plain counter would be every other number.
        self._state = (1664525 * self._state + 1013904223) & 0xFFFFFFFF
        return (self._state >> 16) % count


class LogPartitions:
    """Partitions of one log, and the choice among them."""

    __slots__ = ("_turns", "count", "name")

    def __init__(self, name: str, count: int, turns: Turns) -> None:
        """Take the full name of the log."""
        self.name = name
        self.count = count
        self._turns = turns

    def part_of(self, head: Any) -> int:
        """Return the partition of a SEND with this head; without a key any."""
        key = key_in(head)
        if key is None and head.origin is not None:
            key = str(head.origin[0]).encode("utf-8", "surrogatepass")
        return self._turns.next(self.count) if key is None else partition_of(key, self.count)

    def name_of(self, number: int) -> str:
        """Return the full name of a partition."""
        return f"{self.name}/{number}"

    def names(self) -> Iterator[str]:
        """Yield the full names of all partitions, in order."""
        return map(self.name_of, range(self.count))


class LogDivision:
    """Knowledge of which logs have partitions, from their settings."""

    __slots__ = ("_count_for", "_counts", "_turns")

    def __init__(self, count_for: Callable[[str], int]) -> None:
        """`count_for`: the setting for a log by its full name; 1: it is not divided."""
        self._count_for = count_for
        self._turns = Turns()
        self._counts: dict[str, int] = {}
        """Numbers of partitions of logs of which some exist: what a reload changes holds for others."""

    def of(self, name: str) -> LogPartitions | None:
        """Return the partitions of a log, by its full name; None: it has none. A partition has none itself."""
        count = self._counts.get(name) or self._count_for(name)
        return LogPartitions(name, count, self._turns) if count > 1 and self.whole_of(name) is None else None

    def whole_of(self, name: str) -> tuple[LogPartitions, int] | None:
        """Return the log of which this one is a partition, and the number in its name, which may be too high. None: it
        is none. O(levels of the name).
        """
        whole, slash, number = name.rpartition("/")
        if not slash or whole.count("/") < 2 or _NUMBER.fullmatch(number) is None:
            return None
        divided = self.of(whole)
        return None if divided is None else (divided, int(number))

    def made(self, name: str) -> int | None:
        """Note a log that exists; return its number if it is a partition."""
        part = self.whole_of(name)
        if part is None:
            return None
        divided, number = part
        self._counts[divided.name] = divided.count
        return number

    def removed(self, name: str, others: Container[str]) -> None:
        """Note a log that is deleted; `others`: those that exist."""
        part = self.whole_of(name)
        if part is not None and not any(each in others for each in part[0].names()):
            self._counts.pop(part[0].name, None)

    def mistakes(self, names: Iterable[str]) -> list[str]:
        """Return what is wrong with the settings for these logs, which exist: a line for each log."""
        highest: dict[str, int] = {}
        wrong = []
        for name in names:
            divided, part = self.of(name), self.whole_of(name)
            if divided is not None:
                wrong.append(
                    f"log_partitions is {divided.count} for {name}, which exists as one log: remove the setting for it,"
                    " or give it to a log of another name and copy the records"
                )
            elif part is not None and part[1] >= part[0].count:
                highest[part[0].name] = max(part[1], highest.get(part[0].name, 0))
        for name, number in sorted(highest.items()):
            count = self._count_for(name)
            wrong.append(
                f"log_partitions is {count} for {name}, of which {name}/{number} exists: the number of partitions may "
                f"only grow, so set {number + 1} or more, or delete the partitions from {name}/{count} on first"
            )
        return wrong
