"""The entry of a worker process: an `Assignment` on standard input, `ready`, the work, a `WorkerReport` on standard
output.

A worker ends by itself when its lifetime is over or its parent is gone, so a killed runner leaves no load behind. The
garbage collector is off: a worker makes no cycles, and its pauses would be measured as the broker's.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from perf.load.board import Board
from perf.load.consuming import Consumers
from perf.load.links import BrokerFaultError
from perf.load.plans import Assignment, ConsumerPlan, ProducerPlan, ReplierPlan, RequesterPlan
from perf.load.producing import Producers
from perf.load.round_trips import Replier, Requester
from perf.logs.appending import Appender
from perf.logs.plans import AppendPlan, RawCopyPlan, ReadPlan
from perf.logs.raw_copy import RawCopy
from perf.logs.reading import LogReaders

_WORK: Final[dict[type, Callable[..., Any]]] = {
    ProducerPlan: Producers,
    ConsumerPlan: Consumers,
    ReplierPlan: Replier,
    RequesterPlan: Requester,
    AppendPlan: Appender,
    ReadPlan: LogReaders,
    RawCopyPlan: RawCopy,
}


def main() -> None:
    """Run one assignment. Exits with status 1 after one line of explanation where the broker could not be used."""
    gc.disable()
    assignment: Assignment = pickle.load(sys.stdin.buffer)
    parent, end = os.getppid(), time.monotonic() + assignment.lifetime_seconds

    def must_end() -> bool:
        return time.monotonic() > end or os.getppid() != parent

    board = Board(assignment.board)
    plan = assignment.plan
    try:
        work = _WORK[type(plan)](plan, board, must_end)
        print("ready", flush=True)
        report = work.run()
        work.close()
    except (BrokerFaultError, OSError) as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)
        raise SystemExit(1) from None
    sys.stdout.buffer.write(pickle.dumps(report))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
