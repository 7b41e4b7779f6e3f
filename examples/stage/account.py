"""Accounts of the demonstration: deliveries owed, their outcomes, and the checks that make the verdict.

*Owed* are deliveries: a message to a queue is owed once, one to a topic once to each subscriber. Each of them must end
as delivered, as dropped by the policy of its destination (and told to its reader), or as withdrawn (an aborted
transaction).
"""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True)
class Check:
    """One claim, and whether the numbers bear it out."""

    claim: str
    numbers: str
    met: bool


@attrs.define(slots=True)
class Account:
    """Messages that one act, or all of them, owed and delivered."""

    owed_count: int = 0
    delivered_count: int = 0
    dropped_count: int = 0
    withdrawn_count: int = 0

    @property
    def missing_count(self) -> int:
        """Deliveries that are missing; below zero: more came than was owed."""
        return self.owed_count - self.delivered_count - self.dropped_count - self.withdrawn_count

    def add(self, other: Account) -> None:
        """Sum up."""
        self.owed_count += other.owed_count
        self.delivered_count += other.delivered_count
        self.dropped_count += other.dropped_count
        self.withdrawn_count += other.withdrawn_count

    def check(self) -> Check:
        """Check that nothing is missing and nothing came twice."""
        parts = [f"{self.delivered_count:,} made"]
        if self.dropped_count:
            parts.append(f"{self.dropped_count:,} dropped and told")
        if self.withdrawn_count:
            parts.append(f"{self.withdrawn_count:,} withdrawn")
        numbers = f"{self.owed_count:,} deliveries owed = {' + '.join(parts)}"
        if self.missing_count:
            numbers += f", {abs(self.missing_count):,} {'missing' if self.missing_count > 0 else 'too many'}"
        return Check("each message is accounted for", numbers, self.missing_count == 0)
