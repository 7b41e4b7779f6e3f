"""Which wildcard addresses match a name, without asking all of them.

Each wildcard lies under its *stem*, what comes before its first wildcard level: `/queue/a.*.c` under `/queue/a.`. A
name has as many stems as levels, so finding costs a look-up for each level and a match for each wildcard with such a
stem.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from queues.names import Address

W = TypeVar("W", bound=Hashable)

_SEPARATOR: Final = re.compile(r"[./]")
_WILDCARD_LEVEL: Final = re.compile(r"(?<=[./])[*>](?=[./]|$)")


def stem_of(address: Address) -> str:
    """What all names that this address covers begin with; the whole name if it is no wildcard."""
    found = _WILDCARD_LEVEL.search(address.canonical)
    return address.canonical if found is None else address.canonical[: found.start()]


class WildcardIndex(Generic[W]):
    """Things with a wildcard address, by stem."""

    __slots__ = ("_by_stem",)

    def __init__(self) -> None:
        self._by_stem: dict[str, dict[W, Address]] = {}

    def __len__(self) -> int:
        return sum([len(same) for same in self._by_stem.values()])

    def add(self, address: Address, thing: W) -> None:
        """O(1)."""
        self._by_stem.setdefault(stem_of(address), {})[thing] = address

    def discard(self, address: Address, thing: W) -> None:
        """Take it out; nothing happens if it is not there. O(1)."""
        stem = stem_of(address)
        same = self._by_stem.get(stem)
        if same is not None and same.pop(thing, None) is not None and not same:
            del self._by_stem[stem]

    def matching(self, canonical: str) -> Iterator[W]:
        """Those whose address covers this name. O(levels + things with a stem of this name)."""
        if not self._by_stem:
            return
        for separator in _SEPARATOR.finditer(canonical):
            for thing, address in self._by_stem.get(canonical[: separator.end()], {}).items():
                if address.matches(canonical):
                    yield thing
