"""The limits per second of one connection: what it reads is charged to them, and it does not read while one is used up.

Charged per read, not per message; a connection without limits has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from flow import Flow
from protocols.reading import ReadGate
from protocols.stomp.guard import RateGate
from protocols.stomp.lanes import Lanes

NO_LIMIT_BYTES: Final = 1 << 62


class RatedReading:
    """What one connection reads."""

    __slots__ = ("_gates", "_reading", "read_bytes_max")

    def __init__(self, gates: Sequence[RateGate], lanes: Lanes, clock: Callable[[], float], reading: ReadGate) -> None:
        """`reading`: of that connection."""
        self._reading = reading
        holds = [reading.hold(gate.label) for gate in gates]
        self._gates = [
            (gate, hold, hold.source(lanes, Flow(gate.label), clock=clock))
            for gate, hold in zip(gates, holds, strict=True)
        ]
        self.read_bytes_max = min((gate.read_bytes_max for gate in gates), default=NO_LIMIT_BYTES)

    def came_in(self, count: int, size_bytes: int) -> None:
        """So many SENDs, and bytes in all, were read."""
        for gate, _hold, source in self._gates:
            gate.charge(count, size_bytes, source)

    def close(self) -> None:
        """Nothing is read any more."""
        for gate, hold, source in self._gates:
            source.close()
            self._reading.drop(hold)
            gate.leave()
        self._gates = []
