"""Atomic offers of several runs: a queue takes all of them at once, or none.

A transaction must not be split where a queue becomes full in the middle of it. So its runs are added together, and the
last ones may exceed the limit: by no more than the size of the transaction, which its sender has accounted for (seed
002: an upstream that has accounted for an element may overflow a downstream). In front of the gate they wait like any
other run.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ..flow import SourceController
from .intake import Run
from .queue import MessageQueue


class PromisedRoom:
    """Room in queues of policy `reject` that one transaction will need, and that others find taken meanwhile. Promised
    when the transaction is checked, and used up as its messages come in.

    Bound: an entry for each queue of the transaction.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: dict[MessageQueue, tuple[int, int]] = {}

    def make(self, queue: MessageQueue, count: int, charge_bytes: int) -> None:
        """Promise room for `count` messages that are charged `charge_bytes`, which will be added to `queue`."""
        self._left[queue] = (count, charge_bytes)
        queue.intake.promised_count += count
        queue.intake.promised_bytes += charge_bytes

    def use(self, queue: MessageQueue, count: int, charge_bytes: int) -> None:
        """Give up the promise for `count` messages: they are in `queue`, or will not be added."""
        left = self._left.get(queue)
        if left is None:
            return
        count, charge_bytes = min(count, left[0]), min(charge_bytes, left[1])
        if count == left[0]:
            charge_bytes = left[1]  # including what was estimated too high
            del self._left[queue]
        else:
            self._left[queue] = (left[0] - count, left[1] - charge_bytes)
        queue.intake.promised_count -= count
        queue.intake.promised_bytes -= charge_bytes

    def release(self) -> None:
        """Give up the remaining promises."""
        for queue, (count, charge_bytes) in list(self._left.items()):
            self.use(queue, count, charge_bytes)


def offer_together(queue: MessageQueue, runs: SequenceOf[Run], source: SourceController) -> bool:
    """Add all `runs` and return True, or none: then return False, and `source` is blocked. The queue is not closed.

    Policy `reject` does not refuse them, since their room was promised (`Intake.overhang`). O(n).
    """
    count = sum([len(run.messages) for run in runs])
    persistent = any(run.messages[0].head.persistent for run in runs)
    if queue.intake.must_wait(count, source, persistent=persistent):
        return False
    queue.intake.take_together(runs, source)
    return True
