"""Choice of the things that have series of their own, and sums of the rest that never decrease.

A counter that decreases looks like a restart to Prometheus, which then takes the whole value for new. So the counts of
a destination stay in the sum of the rest when the destination is deleted, or when it gets a series of its own because
another one was deleted: its own series begins at 0 then.

No value of a thing in the rest is kept from page to page, for there may be a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Rest:
    """Sums over things without a name."""

    __slots__ = ("_added", "_gone", "_said", "_sums")

    def __init__(self, width: int) -> None:
        """`width`: how many counters each has."""
        self._gone = [0.0] * width
        self._said = [0.0] * width
        self._sums = [0.0] * width
        self._added: set[str] = set()

    def begin(self) -> None:
        """A new page."""
        self._sums = [0.0] * len(self._gone)
        self._added = set()

    def add(self, name: str, counters: Sequence[float]) -> None:
        """Add the counters of an existing thing."""
        self._sums = [total + value for total, value in zip(self._sums, counters, strict=True)]
        self._added.add(name)

    def keep(self, name: str, counters: Sequence[float]) -> None:
        """Keep the counters of a thing that was deleted, or that got series of its own."""
        self._gone = [total + value for total, value in zip(self._gone, counters, strict=True)]
        if name in self._added:  # the thing was deleted while the page is made
            self._added.discard(name)
            self._sums = [total - value for total, value in zip(self._sums, counters, strict=True)]

    @property
    def count(self) -> int:
        """Number of things added."""
        return len(self._added)

    @property
    def is_used(self) -> bool:
        """Whether the sums are worth a series."""
        return bool(self._added) or any(self._gone)

    def totals(self) -> list[float]:
        """Return the sums, never less than before: a thing that left the rest during the walk may be missing once."""
        sums = [live + gone for live, gone in zip(self._sums, self._gone, strict=True)]
        self._said = [max(said, total) for said, total in zip(self._said, sums, strict=True)]
        return self._said


class Joined:
    """Joined values of things without series of their own: the maximum of seconds, the sum of all else."""

    __slots__ = ("values",)

    def __init__(self, families: Iterable[str]) -> None:
        self.values = dict.fromkeys(families, 0.0)

    def add(self, values: Iterable[float]) -> None:
        """Add one of them; values in the order of the families."""
        for (family, joined), value in zip(self.values.items(), values, strict=True):
            self.values[family] = max(joined, value) if family.endswith("_seconds") else joined + value


class Naming:
    """Names of things with series of their own. First come, first served, up to a limit."""

    __slots__ = ("_bases", "_others_before", "others")

    def __init__(self, width: int) -> None:
        """`width`: how many counters each has."""
        self._bases: dict[str, Sequence[float] | None] = {}
        """Counts of each named thing before it had a name, which are in the sum of the others."""
        self._others_before = False
        self.others = Rest(width)

    def begin(self) -> None:
        """A new page."""
        self._others_before = self.others.count > 0
        self.others.begin()

    def own(self, name: str, counters: Sequence[float], names_max: int) -> Sequence[float] | None:
        """Return the values of the thing's own series; None: it has none, and was added to the others."""
        if name in self._bases:
            base = self._bases[name]
            return counters if base is None else [value - less for value, less in zip(counters, base, strict=True)]
        if len(self._bases) >= names_max:
            self.others.add(name, counters)
            return None
        if not self._others_before:
            self._bases[name] = None
            return counters
        self._bases[name] = tuple(counters)  # perhaps it was one of the others so far
        self.others.keep(name, counters)
        return [0.0] * len(counters)

    def gone(self, name: str, counters: Sequence[float]) -> None:
        """Note that a thing was deleted."""
        if name in self._bases:
            del self._bases[name]
        else:
            self.others.keep(name, counters)
