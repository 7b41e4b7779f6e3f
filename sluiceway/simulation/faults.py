"""Faults of a simulation: how often each comes, and the chance that decides.

Each connection and each broker has a chance of its own, which the seed and its name begin. So what happens to one does
not move the faults of another, and a fault can be left out of a history while the rest stays much as it was: that is
how a failing history is made smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any, Final

import attrs

Seconds = tuple[float, float]
"""The least and the most: chance chooses one between them."""

Identity = tuple[str, str, int]
"""A fault among all that could happen with one seed: whose, what, and the how manieth."""


def _share(_instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} is a share from 0 (never) to 1 (always), not {value}")


def _seconds(_instance: object, attribute: attrs.Attribute[Any], value: Seconds | None) -> None:
    if value is not None and not (len(value) == 2 and 0 <= value[0] <= value[1]):
        raise ValueError(f"{attribute.name} is (least, most) in seconds, such as (0.0, 0.2), not {value}")


@attrs.frozen(kw_only=True)
class Faults:
    """Rates and times of what goes wrong. By default nothing does: bytes arrive at once, and no broker crashes.

    Shares are of the writes of either side of a connection, which are several frames at a time where there is a lot to
    write. A wrong value raises ValueError.
    """

    cut: float = attrs.field(default=0.0, validator=_share)
    """Share of writes within which the connection breaks, at any byte; both sides see it at once."""
    half_cut: float = attrs.field(default=0.0, validator=_share)
    """Share of writes from which on nothing arrives in this direction. No side is told: heart-beats find it out."""
    delay_seconds: Seconds = attrs.field(default=(0.0, 0.0), validator=_seconds)
    """Time for which each write is on its way. The order stays."""
    split: float = attrs.field(default=0.0, validator=_share)
    """Share of writes that arrive in several pieces, each with a delay of its own."""
    stall: float = attrs.field(default=0.0, validator=_share)
    """Share of reads of a client before which the client does not read for `stall_seconds`: a slow consumer."""
    stall_seconds: Seconds = attrs.field(default=(0.0, 5.0), validator=_seconds)
    crash_seconds: Seconds | None = attrs.field(default=None, validator=_seconds)
    """Time from each start of a broker to its crash. None: it crashes when `Simulation.crash` says so."""
    power_cut: float = attrs.field(default=0.5, validator=_share)
    """Share of these crashes that take the whole machine: the disk loses what was not synced, and no client is told."""
    down_seconds: Seconds = attrs.field(default=(0.1, 5.0), validator=_seconds)
    """Time from such a crash to the next start."""
    disk: float = attrs.field(default=0.0, validator=_share)
    """Share of the writes to the disk that fail."""


CALM: Final = Faults()


@attrs.define
class Watch:
    """Bridge between a player of many histories and the simulations of one history."""

    spared: frozenset[Identity] = frozenset()
    """Faults to leave out."""
    happened: list[Identity] = attrs.field(factory=list)
    """Faults that came."""
    history: list[str] = attrs.field(factory=list)


WATCH: Final[ContextVar[Watch | None]] = ContextVar("sluiceway simulation", default=None)
"""Watch over the simulations that are made in this context."""


class Chance:
    """Chance of one part of a simulation, such as one connection."""

    __slots__ = ("_counts", "_happened", "_name", "_random", "_spared", "_stopped")

    def __init__(
        self,
        seed: int,
        name: str,
        *,
        spared: frozenset[Identity],
        happened: Callable[[Identity], None],
        stopped: Callable[[], bool],
    ) -> None:
        """`name`: of the part; `spared`: faults that are left out; `happened`: told each fault; `stopped`: whether no
        more faults are to come.
        """
        self._random = Random(f"{seed} {name}")
        self._name = name
        self._spared = spared
        self._happened = happened
        self._stopped = stopped
        self._counts: Counter[str] = Counter()

    def strikes(self, what: str, share: float) -> bool:
        """Return whether a fault comes now."""
        if not share:
            return False
        self._counts[what] += 1
        drawn = self._random.random()
        if drawn >= share or self._stopped():
            return False
        identity = (self._name, what, self._counts[what])
        if identity in self._spared:
            return False
        self._happened(identity)
        return True

    def seconds(self, between: Seconds) -> float:
        """Return a time between these."""
        least, most = between
        return least if most == least else self._random.uniform(least, most)

    def number(self, least: int, most: int) -> int:
        """Return a whole number between these, both included."""
        return self._random.randint(least, most)

    def random(self) -> Random:
        """Return another source of chance."""
        return Random(self._random.random())
