"""The limits per second of one connection: what it reads is charged to them, and it does not read while one is used up.

Charged per read and per turn of one, not per message; a connection without limits has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...flow import Flow
from ...flow.bounds import UNBOUNDED
from ..reading import ReadGate, Reason
from .authorization import RateGate
from .delivery import SessionTotals
from .lanes import Lanes


class ReadRateLimit:
    """What one connection reads."""

    __slots__ = ("_charged_count", "_gates", "_reading", "_totals", "read_bytes_max")

    def __init__(
        self,
        gates: Sequence[RateGate],
        lanes: Lanes,
        totals: SessionTotals,
        clock: Callable[[], float],
        reading: ReadGate,
    ) -> None:
        """`lanes`, `totals` and `reading`: of that connection. What it has sent before is free."""
        self._totals = totals
        self._charged_count = totals.messages_in_count
        self._reading = reading
        holds = [reading.hold(Reason.RATE, gate.label) for gate in gates]
        self._gates = [
            (gate, hold, hold.source(lanes, Flow(gate.label), clock=clock))
            for gate, hold in zip(gates, holds, strict=True)
        ]
        self.read_bytes_max = min((gate.read_bytes_max for gate in gates), default=UNBOUNDED)

    def came_in(self, size_bytes: int) -> None:
        """So many bytes were read, and SENDs may have taken effect."""
        count = self._totals.messages_in_count - self._charged_count
        self._charged_count += count
        if not count and not size_bytes:
            return
        for gate, _hold, source in self._gates:
            gate.charge(count, size_bytes, source)

    def close(self) -> None:
        """Nothing is read any more."""
        for gate, hold, source in self._gates:
            source.close()
            self._reading.drop(hold)
            gate.leave()
        self._gates = []
