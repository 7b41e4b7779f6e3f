"""Everything that may be done in steps is: one at a time, with everybody else in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import sluiceway.protocols.stomp.committing
import sluiceway.protocols.stomp.spooling
import sluiceway.protocols.stomp.transactions
import sluiceway.queues.cursored
import sluiceway.queues.partitioned
import sluiceway.queues.steps
import sluiceway.queues.welcomes
import sluiceway.store.gradual
import sluiceway.store.storequeue
import sluiceway.store.together


@contextmanager
def tiny_steps() -> Iterator[None]:
    """In the block, the smallest transaction takes effect in steps, and its batch is gathered in steps; so are the
    smallest crowds attached and told, and the shortest backlogs let go of.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (sluiceway.queues.steps, "AT_ONCE_COUNT", 1),
            (sluiceway.queues.steps, "STEP_COUNT", 1),
            (sluiceway.queues.cursored, "TRIM_BLOCKS", 0),
            (sluiceway.queues.partitioned, "ATTACH_AT_ONCE", 1),
            (sluiceway.queues.welcomes, "ATTACH_AT_ONCE", 1),
            (sluiceway.protocols.stomp.committing, "AT_ONCE_COUNT", 0),
            (sluiceway.protocols.stomp.spooling, "AT_ONCE_COUNT", 0),
            (sluiceway.protocols.stomp.transactions, "PART_COUNT", 1),
            (sluiceway.store.together, "HEAVY_COUNT", 0),
            (sluiceway.store.gradual, "STEP_COUNT", 1),
            (sluiceway.store.storequeue, "SHELVES_AT_ONCE", 1),
            (sluiceway.store.storequeue, "ANSWERS_AT_ONCE", 0),
            (sluiceway.store.storequeue, "ANSWERS_PER_STEP", 1),
        ):
            patch.setattr(module, name, value)
        yield
