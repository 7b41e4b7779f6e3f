"""Effect of one ACK or NACK on the deliveries that it names, in bites where there are many.

A bite (ledger.py) is the work that may be done in one go. A cumulative ACK has the effect of the same ACK for an
earlier delivery, and then for the rest, and an individual one of any order; so after each bite all is as if the client
had sent several frames, of which some have come. Deletions, purges, other consumers and the end of the connection find
no half-done bite. The frames behind it on the connection wait for the last bite (attaching.py), and the RECEIPT is sent
then.

Rejected messages are redelivered in order: nothing is delivered to the subscription between the bites of its NACK, for
it would get a later message before those that are still to be requeued. Other consumers are unaffected: their messages
come in order, and held messages of a message group keep the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final

from .delivery import StompSubscription
from .ledger import BITE_CHUNKS, BITE_COUNT, Ledger, Portion, charge_named
from .subscribe_headers import ACK_CLIENT

GROUPS_AT_ONCE: Final = 16
"""Runs of ACKs for one subscription after the other that are done in one go."""

NACKS_AT_ONCE: Final = 128
"""Refusals of one run that are done in one go: each of them counts as a failure."""

NACK_BITE_COUNT: Final = BITE_COUNT // 2
"""Deliveries of one bite of a cumulative NACK: each goes back to its place, or to the line of its message group."""

_UNITS_PER_STEP: Final = 16
"""Messages of one step, where long work is counted (queues/steps.py)."""
_FAILURE_UNITS: Final = 32
_PORTION_UNITS: Final = 16
"""Cost of a failed delivery, and of a portion, in messages."""


def is_much(subscription: StompSubscription, ordinals: list[int], *, nack: bool, for_good: bool = False) -> bool:
    """Return whether it may take more than a bite to acknowledge or reject the deliveries."""
    ledger = subscription.ledger
    if ledger is None:
        return False
    if subscription.ack == ACK_CLIENT:
        last = max(ordinals)
        return ledger.bite_end(last, _bite_count(nack=nack, for_good=for_good)) < last
    return ledger.are_scattered(ordinals) or (nack and len(ordinals) > NACKS_AT_ONCE)


def settle(
    subscription: StompSubscription, ordinals: list[int], *, nack: bool, for_good: bool = False
) -> list[Portion]:
    """Acknowledge or reject these deliveries at once; `for_good`: they are not to be retried. Returns the changes."""
    ledger = subscription.ledger
    if ledger is None:
        return []  # ack auto: nothing to settle, and clients that ACK all the same do no harm (b36)
    portions = ledger.take_through(max(ordinals)) if subscription.ack == ACK_CLIENT else ledger.take(ordinals)
    _apply(subscription, portions, ordinals, nack=nack, for_good=for_good)
    return portions


def settling(
    subscription: StompSubscription, ordinals: list[int], *, nack: bool, for_good: bool = False
) -> Iterator[list[Portion]]:
    """The same in bites; what changed by each."""
    ledger = subscription.ledger
    assert ledger is not None, "without one nothing is much"
    go_on = subscription.hold() if nack else None
    for bite in _bites(ledger, subscription, ordinals, _bite_count(nack=nack, for_good=for_good)):
        portions = ledger.take_through(bite[0]) if subscription.ack == ACK_CLIENT else ledger.take(bite)
        _apply(subscription, portions, ordinals, nack=nack, for_good=for_good)
        yield portions
    if go_on is not None:
        go_on()


def _apply(
    subscription: StompSubscription, portions: list[Portion], ordinals: list[int], *, nack: bool, for_good: bool = False
) -> None:
    if not nack:
        subscription.settle(portions)
        return
    _charge(subscription, portions, ordinals, for_good=for_good)
    subscription.reject(portions)


def _charge(subscription: StompSubscription, portions: list[Portion], ordinals: list[int], *, for_good: bool) -> None:
    """Note which of the rejected deliveries have failed: the named ones, and all of them if `for_good`."""
    if for_good:
        for portion in portions:
            portion.for_good = True
    elif subscription.ack == ACK_CLIENT:
        charge_named(portions, ordinals)


def hold(subscription: StompSubscription, ordinals: list[int], *, nack: bool, for_good: bool = False) -> list[Portion]:
    """Hold these deliveries for a transaction at once. Returns the held portions."""
    ledger = subscription.ledger
    if ledger is None:
        return []  # as in `settle`
    portions = ledger.hold(ordinals, through=subscription.ack == ACK_CLIENT)
    if nack:
        _charge(subscription, portions, ordinals, for_good=for_good)
    return portions


def holding(
    subscription: StompSubscription, ordinals: list[int], *, nack: bool, for_good: bool = False
) -> Iterator[list[Portion]]:
    """Hold deliveries in bites; yields the held portions of each."""
    ledger = subscription.ledger
    assert ledger is not None, "without one nothing is much"
    for bite in _bites(ledger, subscription, ordinals, _bite_count(nack=nack, for_good=for_good)):
        portions = ledger.hold(bite, through=subscription.ack == ACK_CLIENT)
        if nack:
            _charge(subscription, portions, ordinals, for_good=for_good)
        yield portions


def _bite_count(*, nack: bool, for_good: bool) -> int:
    """Return the number of deliveries in one bite of a cumulative ACK or NACK. A final rejection fails as a whole."""
    if for_good:
        return NACKS_AT_ONCE
    return NACK_BITE_COUNT if nack else BITE_COUNT


def _bites(ledger: Ledger, subscription: StompSubscription, ordinals: list[int], count_max: int) -> Iterator[list[int]]:
    """Yield the ordinals of each bite, in place of all at once."""
    if subscription.ack != ACK_CLIENT:
        ordered = sorted(set(ordinals))
        for start in range(0, len(ordered), BITE_CHUNKS):
            yield ordered[start : start + BITE_CHUNKS]  # each may lie in a chunk of its own
        return
    last = max(ordinals)
    while (end := ledger.bite_end(last, count_max)) < last:
        yield [end]
    yield [last]


def steps_of(portions: list[Portion], *, nack: bool = False) -> Iterator[None]:
    """Yield a step for each unit of work that the portions have cost. Rejected messages may have been dead-lettered."""
    count = sum([_PORTION_UNITS + len(portion.sequences) for portion in portions])
    if nack:
        count *= 2  # a bite of them is half as large, and takes as many steps
        failed_count = sum([len(p.sequences if p.charged is None else p.charged) for p in portions])
        count += _FAILURE_UNITS * failed_count
    return repeat(None, 1 + count // _UNITS_PER_STEP)
