"""Limits per second of one connection: its input is charged to them, and it is not read while one is used up.

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
    """Rate limits on the input of one connection."""

    __slots__ = ("_charged_count", "_gates", "_reading", "_totals", "read_bytes_max")

    def __init__(
        self,
        gates: Sequence[RateGate],
        lanes: Lanes,
        totals: SessionTotals,
        clock: Callable[[], float],
        reading: ReadGate,
    ) -> None:
        """Charge the input of one connection from now on. `lanes`, `totals` and `reading`: those of the connection."""
        self._totals = totals
        self._charged_count = totals.messages_in_count
        self._reading = reading
        holds = [reading.hold(Reason.RATE, gate.label) for gate in gates]
        self._gates = [
            (gate, hold, hold.source(lanes, Flow(gate.label), clock=clock))
            for gate, hold in zip(gates, holds, strict=True)
        ]
        self.read_bytes_max = min((gate.read_bytes_max for gate in gates), default=UNBOUNDED)

    def charge(self, size_bytes: int) -> None:
        """Charge bytes that were read, and the SENDs that have taken effect since."""
        count = self._totals.messages_in_count - self._charged_count
        self._charged_count += count
        if not count and not size_bytes:
            return
        for gate, _hold, source in self._gates:
            gate.charge(count, size_bytes, source)

    def close(self) -> None:
        """Leave all rate limits: nothing is read any more."""
        for gate, hold, source in self._gates:
            source.close()
            self._reading.drop(hold)
            gate.leave()
        self._gates = []
