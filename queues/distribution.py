"""Which consumer of a consumed queue gets its next elements: the port to the strategies.

A queue has one strategy for its life: `SharedDistribution` (shared.py) or `SingleDistribution` (exclusive.py). The
queue asks it to dispatch, and tells it of what else may change who gets what. A strategy takes elements by
`ConsumedQueue.take` and passes them on by `ConsumedQueue.hand_over`. Topics, where every reader gets everything, need
none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import ClassVar

from .cursors import Wait
from .message import Message
from .selectors.selector import Selection
from .subscription import Subscription


class Distribution(ABC):
    """One strategy for one queue. What is not abstract concerns only strategies with groups or selectors.

    Attributes:
        grouped_count: elements with a message group. Plain, because the hot path reads it.
    """

    __slots__ = ("grouped_count",)

    senders_wait: ClassVar[bool] = True
    """Senders wait while consumers take. Else what has no room in memory goes to the disk at once."""

    def __init__(self) -> None:
        self.grouped_count = 0

    @abstractmethod
    def dispatch(self, budget: int) -> bool:
        """Hand out at most about `budget` messages; True when there is more to do at once."""

    @abstractmethod
    def requeue(self, sequences: SequenceOf[int]) -> None:
        """Make elements that a consumer held, or that were not handed over, available again."""

    # ------------------------------------------------------------------ consumers

    def check(self, selection: Selection | None) -> None:
        """Raise ValueError if one more consumer, with this selection, can't be served."""

    def joined(self, subscription: Subscription) -> None:
        """Note a new subscription, before its first dispatch."""

    def left(self, subscription: Subscription) -> None:
        """Note that a subscription is gone."""

    def credited(self, subscription: Subscription) -> bool:
        """Note that this subscription may have credit. Return whether its place is in the ring of the queue."""
        return True

    def is_seeking(self, subscription: Subscription) -> bool:
        """Whether the next dispatch serves this subscription though it is not in the ring."""
        return False

    # ------------------------------------------------------------------ elements

    def arrived(self, messages: list[Message]) -> None:
        """Note messages of one envelope that came into the queue."""

    def available_again(self, sequences: SequenceOf[int]) -> None:
        """Note elements ahead of the cursor that are available from now on."""

    def dropped(self, messages: SequenceOf[Message]) -> None:
        """Note elements that left unread: those that were in memory had these messages."""

    def resume(self, why: int | Wait) -> None:
        """Go on with what waits for this block to come into memory, or for this to happen."""

    def keys_of(self, sequences: SequenceOf[int]) -> SequenceOf[str]:
        """The group keys of elements that a consumer is done with, one for each that has a group."""
        return ()

    def settled(self, subscription: Subscription, keys: SequenceOf[str]) -> None:
        """Note that a subscription settled elements with these group keys (`keys_of`), and perhaps others."""

    def given_back(self, subscription: Subscription, keys: SequenceOf[str]) -> None:
        """Note that a subscription gave back elements with these group keys, and perhaps others."""

    # ------------------------------------------------------------------ blocks

    def restored(self, grouped: Iterable[int]) -> None:
        """Note blocks that an earlier run left, with elements that have a group."""

    def may_read(self, sequences: SequenceOf[int]) -> bool:
        """Whether a selector scan may yet come to where some of these lie."""
        return False

    def reading_blocks(self) -> Iterable[int]:
        """The blocks that selector scans read next."""
        return ()

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
        """What people are told about it."""
        return {}
