"""The limits per second of one connection: what it reads is charged to them, and it does not read while one is used up.

Charged per read, not per message; a connection without limits has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from flow import Flow, SourceController
from protocols.stomp.guard import RateGate
from protocols.stomp.lanes import Lanes

NO_LIMIT_BYTES: Final = 1 << 62


class RatedReading:
    """What one connection reads."""

    __slots__ = ("_gates", "read_bytes_max")

    def __init__(
        self, gates: Sequence[RateGate], lanes: Lanes, clock: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        """`changed`: one of them has let go."""
        self._gates = [
            (gate, SourceController(lanes, Flow(gate.label), on_resume=partial(_resumed, changed), clock=clock))
            for gate in gates
        ]
        self.read_bytes_max = min((gate.read_bytes_max for gate in gates), default=NO_LIMIT_BYTES)

    @property
    def waits_for(self) -> str:
        """What is used up, for people; empty: nothing."""
        return next((gate.label for gate, source in self._gates if source.blocked), "")

    def came_in(self, count: int, size_bytes: int) -> None:
        """So many SENDs, and bytes in all, were read."""
        for gate, source in self._gates:
            gate.charge(count, size_bytes, source)

    def close(self) -> None:
        """Nothing is read any more."""
        for gate, source in self._gates:
            source.close()
            gate.leave()
        self._gates = []


def _resumed(changed: Callable[[], None], _sink: object) -> None:
    changed()
