"""Transactions over everything that can be acknowledged, and what must be true of each after any end: all of it or
nothing. For brokers in virtual time and for real processes.

A transaction takes inputs from groups of logs, queues and durable subscriptions, and sends one output for each of them
and some more. An input is *in* as long as its source gives it again. After a crash it is in, and the transaction's
outputs are not there; or it is out, and they are, each once. A RECEIPT of the COMMIT says which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import attrs

IN_LOG = "/log/in"
OTHER_LOG = "/log/in.other"
IN_QUEUE = "/queue/in"
IN_TOPIC = "/topic/in"
OUT_QUEUES = ("/queue/out.a", "/queue/out.b")
OUT = (*OUT_QUEUES, "/log/out")

SOURCES: dict[str, dict[str, str]] = {
    "g": {"destination": IN_LOG, "group": "g", "from": "earliest"},
    "h": {"destination": IN_LOG, "group": "h", "from": "earliest"},
    "o": {"destination": OTHER_LOG, "group": "g", "from": "earliest"},
    "q": {"destination": IN_QUEUE},
    "d": {"destination": IN_TOPIC, "durable": "true"},
}
"""By subscription id."""

OUTPUTS: tuple[dict[str, str], ...] = tuple(
    {"destination": out, **({"from": "earliest"} if out.startswith("/log/") else {})} for out in OUT
)
"""How to read all outputs."""


@attrs.define
class Attempt:
    """One COMMIT that was sent."""

    number: int
    taken: list[tuple[str, str]]
    """Source and body of what it acknowledges."""
    refused: list[tuple[str, str]]
    outputs: list[tuple[str, str]]
    """Destination and body."""
    receipt_id: str | None
    receipted: bool = False


@attrs.define
class Books:
    """What was put in, and all COMMITs."""

    random: Random
    inputs: dict[str, set[str]] = attrs.field(factory=dict)
    """By source."""
    attempts: list[Attempt] = attrs.field(factory=list)
    out: tuple[str, ...] = OUT
    """Destinations of what comes out."""
    carried_out_count: int = 0

    def begin(
        self, deliveries: list[tuple[str, str]], *, output_bytes: int, with_receipt: bool, refuse_share: float
    ) -> Attempt:
        """Plan a transaction about these."""
        number = len(self.attempts)
        refused = [each for each in deliveries if self.random.random() < refuse_share]
        taken = [each for each in deliveries if each not in refused]
        outputs = [
            (self.random.choice(self.out), f"{number} {place} ".ljust(output_bytes, "."))
            for place in range(len(deliveries) + self.random.randint(0, 2))
        ]
        attempt = Attempt(number, taken, refused, outputs, f"commit {number}" if with_receipt else None)
        self.attempts.append(attempt)
        return attempt

    def receipts(self, receipt_ids: Iterable[str]) -> None:
        """These came."""
        came = set(receipt_ids)
        for attempt in self.attempts:
            attempt.receipted |= attempt.receipt_id in came

    def check(self, left: dict[str, list[str]], outputs: list[str]) -> None:
        """`left`: what each source still has; `outputs`: bodies of all that came out."""
        for source, bodies in left.items():
            assert len(bodies) == len(set(bodies)), f"{source} has something twice"
            assert set(bodies) <= self.inputs[source], f"{source} has what nobody put in"
        twice = [body for body, count in Counter(outputs).items() if count > 1]
        assert not twice, f"outputs came twice: {twice[:3]}"
        there = set(outputs)
        done: dict[tuple[str, str], int] = {}
        self.carried_out_count = 0
        for attempt in self.attempts:
            found = [body in there for _destination, body in attempt.outputs]
            assert all(found) or not any(found), f"{attempt} came apart: its outputs {found}"
            if not attempt.outputs:
                continue
            if attempt.receipted:
                assert all(found), f"{attempt} was promised"
            if all(found):
                self.carried_out_count += 1
                for each in attempt.taken:
                    assert each not in done, f"{each} was taken by {done[each]} and by {attempt.number}"
                    done[each] = attempt.number
                    assert each[1] not in left[each[0]], f"{attempt}: its output is there, {each} comes again"
        for source, bodies in self.inputs.items():
            for body in bodies - set(left[source]):
                assert (source, body) in done, f"{source} {body} is gone, and no output of it is there"
