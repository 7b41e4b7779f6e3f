"""Runs that belong together: a queue takes all of them at once, or none.

A transaction must not come apart where a queue becomes full in the midst of it. So its runs go in together, and the
last ones may go over the limit: by no more than the transaction has, which somebody has accounted for (seed 002: an
upstream that has accounted for an element may overflow a downstream). In front of the gate they wait like any other
run.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ..flow import SourceController
from .intake import Run
from .queue import MessageQueue


class PromisedRoom:
    """Room in queues of policy `reject` that one transaction will need: whoever comes meanwhile finds it taken. Made
    when the transaction is checked, and used up as its messages come in.

    Bound: an entry for each queue of the transaction.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[MessageQueue, tuple[int, int]] = {}

    def make(self, queue: MessageQueue, count: int, charge_bytes: int) -> None:
        """So many messages of so many bytes are to come to this queue."""
        self._left[queue] = (count, charge_bytes)
        queue.intake.promised_count += count
        queue.intake.promised_bytes += charge_bytes

    def use(self, queue: MessageQueue, count: int, charge_bytes: int) -> None:
        """So many of them are in the queue, or are not to come any more."""
        left = self._left.get(queue)
        if left is None:
            return
        count, charge_bytes = min(count, left[0]), min(charge_bytes, left[1])
        if count == left[0]:
            charge_bytes = left[1]  # what was reckoned too much
            del self._left[queue]
        else:
            self._left[queue] = (left[0] - count, left[1] - charge_bytes)
        queue.intake.promised_count -= count
        queue.intake.promised_bytes -= charge_bytes

    def let_go(self) -> None:
        """Nothing more is to come."""
        for queue, (count, charge_bytes) in list(self._left.items()):
            self.use(queue, count, charge_bytes)


def offer_together(queue: MessageQueue, runs: SequenceOf[Run], source: SourceController) -> bool:
    """Take all of these, or none: False, and `source` is blocked. The queue is not closed.

    Policy `reject` does not refuse them: whoever promised room (`Intake.overhang`) has to be kept to it. O(n).
    """
    count = sum([len(run.messages) for run in runs])
    persistent = any(run.messages[0].head.persistent for run in runs)
    if queue.intake.must_wait(count, source, persistent=persistent):
        return False
    queue.intake.take_together(runs, source)
    return True
