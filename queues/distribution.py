"""Distribution of the elements of a consumed queue to its consumers: the port to the strategies.

A queue has one strategy for its life: `SharedDistribution` (shared.py) or `SingleDistribution` (exclusive.py). That of
a topic is `FanOut` (fan_out.py), which has the port of all queues only (`Distribution`, queue.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from .cursors import Wait
from .message import Message
from .selectors.selector import Selection
from .subscription import Subscription


class ConsumedDistribution(ABC):
    """Strategy of a queue whose messages are consumed: each goes to one consumer. The strategy takes elements by
    `ConsumedQueue.acquire` and passes them on by `ConsumedQueue.hand_over`. Methods that are not abstract concern only
    strategies with groups or selectors.

    Attributes:
        grouped_count: elements with a message group. Plain, because the hot path reads it.
        senders_wait: whether senders wait while consumers take; otherwise messages without room in memory go to the
            disk at once.
    """

    __slots__ = ("grouped_count", "senders_wait")

    def __init__(self, *, senders_wait: bool = True) -> None:
        self.grouped_count = 0
        self.senders_wait = senders_wait

    @abstractmethod
    def dispatch(self, budget: int) -> bool:
        """See `Distribution`."""

    @abstractmethod
    def requeue(self, sequences: SequenceOf[int]) -> None:
        """Make elements that a consumer held, or that were not handed over, available again."""

    def available_again(self, sequences: SequenceOf[int]) -> None:
        """Note elements ahead of the cursor that are available from now on."""

    def resume(self, why: int | Wait) -> None:
        """Resume what waits for a block to come into memory, or for the given reason to end."""

    def keys_of(self, sequences: SequenceOf[int]) -> SequenceOf[str]:
        """Return the group keys of settled elements, one for each that has a group."""
        return ()

    def settled(self, subscription: Subscription, keys: SequenceOf[str]) -> None:
        """Note that a subscription settled elements with these group keys (`keys_of`), and perhaps others."""

    def requeued(self, subscription: Subscription, keys: SequenceOf[str]) -> None:
        """Note that a subscription gave back elements with these group keys, and perhaps others."""

    def hold_back(self, sequences: SequenceOf[int]) -> None:
        """Note elements that failed, and wait from now on for their next attempt."""

    def let_go(self, sequences: SequenceOf[int]) -> None:
        """Note elements that are available again after their wait, if they did wait for an attempt."""

    # ------------------------------------------------------------------ the rest of the port of all queues

    def check(self, selection: Selection | None) -> None:
        """See `Distribution`."""

    def joined(self, subscription: Subscription) -> None:
        """See `Distribution`."""

    def left(self, subscription: Subscription) -> None:
        """See `Distribution`."""

    def credited(self, subscription: Subscription) -> bool:
        return True

    def is_seeking(self, subscription: Subscription) -> bool:
        return False

    def arrived(self, messages: list[Message]) -> None:
        """See `Distribution`."""

    def dropped(self, messages: SequenceOf[Message]) -> None:
        """See `Distribution`."""

    def reading_blocks(self) -> Iterable[int]:
        return ()

    # ------------------------------------------------------------------ blocks

    def restored(self, grouped: Iterable[int]) -> None:
        """Note blocks that an earlier run left, with elements that have a group."""

    def may_read(self, sequences: SequenceOf[int]) -> bool:
        """Return whether a selector scan may yet reach one of the elements."""
        return False

    @property
    def awaits_disk(self) -> bool:
        """A selector scan waits for the store."""
        return False

    def pinned_below(self) -> int:
        """Elements below this must stay in memory as they are."""
        return 0

    # ------------------------------------------------------------------ end, and what people see

    def close(self) -> None:
        """Hold nothing any more: the queue is closed."""

    def facts(self) -> dict[str, object]:
        """Return facts about the distribution, for people."""
        return {}
