"""Report of a move of messages: for each queue counts from the ledger, and a verdict that follows from them."""

from __future__ import annotations

from enum import Enum

import attrs

from sluiceway.flow.words import count_in_words
from sluiceway.migration.ledger import Tally


class Verdict(Enum):
    """Verdict on one queue."""

    COMPLETE = "complete"
    """Everything that came is here, and the other broker says that nothing is left."""
    UNVERIFIED = "unverified"
    """Everything that came is here; what is left is not known."""
    INCOMPLETE = "incomplete"


@attrs.frozen
class Outcome:
    """One line of the report."""

    queue: str
    seen_count: int
    moved_count: int
    left_count: int | None
    """None: not known."""
    doubled_count: int
    verdict: Verdict
    why: str


def outcome(
    queue: str, tally: Tally, *, left_count: int | None, open_count: int, trouble: str, idle_seconds: float
) -> Outcome:
    """Return the line for a queue. `open_count`: messages of this run in batches that are not done. `trouble`: why the
    queue was not finished; empty: it was.
    """
    lacking = []
    if trouble:
        lacking.append(trouble)
    if left_count:
        whose = "" if trouble else ": they came meanwhile, or another consumer (an exclusive one) has them"
        lacking.append(f"{left_count:,} left there{whose}")
    elif open_count:
        lacking.append(f"{count_in_words(open_count, 'message')} in question: run the command again")
    doubt_count = tally.doubt.total()
    if doubt_count and not (trouble or left_count):
        lacking.append(
            f"{count_in_words(doubt_count, 'message')} sent in an earlier run without an answer were not redelivered: "
            "another consumer has taken them, or they have expired"
        )
    if lacking:
        verdict, why = Verdict.INCOMPLETE, "; ".join(lacking)
    elif left_count is None:
        verdict, why = Verdict.UNVERIFIED, f"nothing more came for {idle_seconds:g} s"
    else:
        verdict, why = Verdict.COMPLETE, "all of it is here, and nothing is left there"
    return Outcome(queue, tally.seen_count, tally.moved_count, left_count, tally.doubled_count, verdict, why)


def table(outcomes: list[Outcome]) -> list[str]:
    """Return the report as lines."""
    width = max(5, *(len(each.queue) for each in outcomes)) if outcomes else 5
    lines = [f"{'QUEUE':{width}}  {'SEEN':>10}  {'MOVED':>10}  {'LEFT':>10}  {'DOUBLED?':>10}  VERDICT"]
    for each in outcomes:
        left = "unknown" if each.left_count is None else f"{each.left_count:,}"
        lines.append(
            f"{_printable(each.queue):{width}}  {each.seen_count:>10,}  {each.moved_count:>10,}  {left:>10}  "
            f"{each.doubled_count:>10,}  {each.verdict.value}: {each.why}"
        )
    return lines


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
