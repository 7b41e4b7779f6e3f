"""Runs that belong together: a queue takes all of them at once, or none.

A transaction must not come apart where a queue becomes full in the midst of it. So its runs go in together, and the
last ones may go over the limit: by no more than the transaction has, which somebody has accounted for (seed 002: an
upstream that has accounted for an element may overflow a downstream). In front of the gate they wait like any other
run.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from flow import SourceController
from queues.gate import Run
from queues.queue import MessageQueue


def offer_together(queue: MessageQueue, runs: SequenceOf[Run], source: SourceController) -> bool:
    """Take all of these, or none: False, and `source` is blocked. The queue is not closed.

    Policy `reject` does not refuse them: whoever promised room (`overhang`) has to be kept to it. O(n).
    """
    count = sum([len(run.messages) for run in runs])
    persistent = any(run.messages[0].head.persistent for run in runs)
    if queue.must_wait(count, source, persistent=persistent):
        return False
    queue.take_together(runs, source)
    return True
