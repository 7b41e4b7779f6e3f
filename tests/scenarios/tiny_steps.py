"""Everything that may be done in steps is: one at a time, with everybody else in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import protocols.stomp.committing
import protocols.stomp.spooled_commits
import protocols.stomp.transactions
import queues.steps
import store.gradual
import store.storequeue
import store.together


@contextmanager
def tiny_steps() -> Iterator[None]:
    """In the block, the smallest transaction takes effect in steps, and its batch is gathered in steps."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (queues.steps, "AT_ONCE_COUNT", 1),
            (queues.steps, "STEP_COUNT", 1),
            (protocols.stomp.committing, "AT_ONCE_COUNT", 0),
            (protocols.stomp.spooled_commits, "AT_ONCE_COUNT", 0),
            (protocols.stomp.transactions, "PART_COUNT", 1),
            (store.together, "HEAVY_COUNT", 0),
            (store.gradual, "STEP_COUNT", 1),
            (store.storequeue, "ANSWERS_AT_ONCE", 0),
            (store.storequeue, "ANSWERS_PER_STEP", 1),
        ):
            patch.setattr(module, name, value)
        yield
